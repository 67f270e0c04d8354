"""Memory budgets follow the device; what fits is done in one piece, and nothing waits for it."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protail.ops import MEMORY_BUDGET, _arguments, chunked, loss, nearest, search, top_k
from protail.ops._arguments import Blocks, memory_budget
from protail.ops._precision import _embedding_gradient, sum_rows
from protail.ops.selected import _form
from reference.problems import ALL_DISTANCES, DISTANCES, SCHEMES, make_problem

GIB = 2**30
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Watch(TorchDispatchMode):
    """Keep what each operator was called with and gave."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function.overloadpacket.__name__, args, result))
        return result

    def names(self):
        return [name for name, _, _ in self.calls]

    def count(self, *names):
        return sum(name in names for name in self.names())


# Operators whose result has a shape, or a value in Python, that depends on numbers on the device.
WAITING = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal")


def waits(watch):
    by_mask = [
        name
        for name, args, _ in watch.calls
        if name in ("index", "index_put_", "_index_put_impl_")
        and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    ]
    return [name for name in watch.names() if name in WAITING] + by_mask


@pytest.fixture
def gpu_memory(monkeypatch):
    """A GPU's answers to how much memory is free, and how often it was asked."""

    class Memory:
        free, reserved, active, asked = 100 * GIB, 0, 0, 0

        def mem_get_info(self, device):
            self.asked += 1
            return self.free, 141 * GIB

        def stats(self, device):
            kinds = {"reserved_bytes": self.reserved, "active_bytes": self.active}
            return {kind: {"all": {"current": n_bytes}} for kind, n_bytes in kinds.items()}

    memory = Memory()
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory.mem_get_info)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", memory.stats)
    return memory


@pytest.fixture
def like_a_gpu(gpu_memory, monkeypatch):
    """Compute on the CPU with the pieces of a GPU: no caches to fit into, 100 GiB free."""
    monkeypatch.setattr(_arguments, "memory_budget", lambda _, needed: memory_budget(GPU, needed))
    monkeypatch.setattr(chunked, "_CACHED_BYTES", None)
    monkeypatch.setattr(search, "_cached", lambda blocks, itemsize: blocks)
    return gpu_memory


def test_the_budget_of_a_gpu_is_half_of_what_is_free(gpu_memory):
    assert memory_budget(CPU, 10 * GIB) == MEMORY_BUDGET
    assert memory_budget(GPU, 10 * GIB) == 32 * GIB
    # A bit more or less changes nothing: the pieces, and so the last bits, stay the same.
    gpu_memory.free = 127 * GIB
    assert memory_budget(GPU, 10 * GIB) == 32 * GIB
    gpu_memory.free = 10 * GIB
    assert memory_budget(GPU, 10 * GIB) == 4 * GIB
    # What torch holds and does not use is free as well.
    gpu_memory.reserved, gpu_memory.active = 60 * GIB, 6 * GIB
    assert memory_budget(GPU, 10 * GIB) == 32 * GIB
    gpu_memory.free = gpu_memory.reserved = gpu_memory.active = 0
    assert memory_budget(GPU, 10 * GIB) == MEMORY_BUDGET


def test_small_computations_do_not_ask_the_gpu(gpu_memory):
    assert memory_budget(GPU, MEMORY_BUDGET) == MEMORY_BUDGET
    assert gpu_memory.asked == 0


def test_what_fits_is_one_piece(like_a_gpu):
    x, prototypes = torch.randn(200, 16), torch.randn(50_000, 16)
    target = torch.randint(50_000, (200,))
    assert Blocks.within(None, x, prototypes, 4) == (200, 50_000)
    assert _form(x, prototypes, None, "mean", None) == "fused"
    whole = {}
    for name, call in {
        "loss": lambda: chunked.loss(x, prototypes, target),
        "top_k": lambda: top_k(x, prototypes, 5).classes_bk,
        "nearest": lambda: nearest(x, prototypes),
    }.items():
        with Watch() as watch:
            whole[name] = call()
        assert watch.count("addmm") == 1, name
    assert like_a_gpu.asked >= 3
    like_a_gpu.free = 0
    assert Blocks.within(None, x, prototypes, 4).classes < 50_000
    assert _form(x, prototypes, None, "mean", None) == "chunked"
    assert torch.equal(top_k(x, prototypes, 5).classes_bk, whole["top_k"])
    torch.testing.assert_close(chunked.loss(x, prototypes, target), whole["loss"])


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_never_waits_for_its_numbers(distance, scheme):
    problem = make_problem(1, (64, 100, 16), distance, scheme, dtype=torch.float32)
    with Watch() as watch:
        problem.loss_and_gradients(loss)
    assert waits(watch) == []


def test_a_small_step_is_few_operators():
    """On a GPU it lasts as long as starting them takes; the naive line starts 31 kernels."""
    x, target = torch.randn(64, 512), torch.randint(100, (64,))
    prototypes = torch.randn(100, 512, requires_grad=True)
    views = ("unsqueeze", "t", "transpose", "detach", "empty", "view", "alias")
    with Watch() as watch:
        torch.autograd.grad(loss(x, prototypes, target), prototypes)
    names = [name for name in watch.names() if name not in views]
    assert len(names) <= 32, " ".join(names)
    assert watch.count("addmm", "addmm_", "mm") == 2
    # In place: what addmm adds to would be copied first.
    assert watch.count("addmm") == 0


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("distance", DISTANCES)
def test_only_the_k_found_are_computed_again(distance, k):
    n_rows, n_classes, width = 40, 300, 32
    generator = torch.manual_seed(0)
    x = torch.randn(n_rows, width, generator=generator)
    prototypes = torch.randn(n_classes, width, generator=generator)
    with Watch() as watch:
        top_k(x, prototypes, k, distance=distance)
    exact = [
        result.numel()
        for _, _, result in watch.calls
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64
    ]
    # One more than is asked for: where the k-th and the next are close, it decides.
    assert max(exact) == n_rows * (k + 1) * width
    # One question at the end: is anything left open?
    assert waits(watch) == ["_local_scalar_dense"]


def test_sums_of_rows():
    generator = torch.manual_seed(0)
    rows, index = torch.randn(40, 3, generator=generator), torch.randint(5, (40,))
    expected = torch.zeros(6, 3).index_add_(0, index, rows)
    torch.testing.assert_close(sum_rows(index, rows, 6), expected)
    torch.testing.assert_close(_embedding_gradient(index, rows, 6), expected)


def test_the_benchmark_runs_on_a_cpu(tmp_path, capsys):
    benchmark = load_benchmark()
    written = tmp_path / "ops.json"
    arguments = ["--scale", "0.005", "--calls", "2", "--device", "cpu", "--json", str(written)]
    rows = benchmark.main(arguments)
    assert json.loads(written.read_text())["cases"] == rows
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert [row["case"] for row in rows] == ["step"] * 3 + ["top-5"] * 2
    assert all(row["ratio"] > 0 and row["protail peak MiB"] is None for row in rows)


def load_benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "ops.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_ops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("number", range(5))
def test_on_a_gpu_nothing_is_slower_than_the_naive_line(number):
    benchmark = load_benchmark()
    case = benchmark.CASES[number]
    needed = 64 * case.classes * (case.rows + case.channels)
    if needed > torch.cuda.mem_get_info()[0]:
        pytest.skip(f"needs {needed / GIB:.0f} GiB of GPU memory")
    # Ratios of medians in turns, the best of three: what else the machine does slows both.
    rows = [benchmark.measure(case, GPU, n_calls=21) for _ in range(3)]
    assert min(row["ratio"] for row in rows) <= case.limit, rows
