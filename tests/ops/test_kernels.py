"""The Triton kernels: in the interpreter against float64, and on a GPU where there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protail.ops import kernels, loss, nearest, reference, top_k
from protail.ops.distance import Euclidean, as_distance
from protail.ops.kernels import unsupported

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOSSES = ["small", "small cosine", "small, float16", "tiled", "tiled, kept", "tiled, tf32",
          "tiled, tf32, kept", "tiled, short", "tiled cosine"]  # fmt: skip
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, for its interpreter"
)


@pytest.fixture(scope="module")
def interpreted():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "interpreted_kernels.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@needs_triton
@pytest.mark.parametrize("case", LOSSES)
def test_losses_in_the_interpreter(interpreted, case):
    found = interpreted["losses"][case]
    assert found["same bits"]
    # TF32 keeps ten digits, so a distance is off by 1e-4 of itself; float16 inputs round gradients.
    allowed = (
        2e-3
        if "tf32" in case or "short" in case or "float16" in case or case == "tiled cosine"
        else 3e-6
    )
    assert max(found["errors"]) < allowed


@needs_triton
@pytest.mark.parametrize("case", ["all scores", "groups", "cosine"])
def test_searches_in_the_interpreter(interpreted, case):
    found = interpreted["searches"][case]
    assert found["classes"]
    assert found["nearest"]
    assert found["error"] < 1e-6


@needs_triton
def test_heads_learn_together_as_alone(interpreted):
    assert interpreted["together"]


@needs_triton
def test_gradients_are_finite_on_a_prototype(interpreted):
    assert interpreted["finite"]


@needs_triton
def test_a_target_that_is_no_class_is_not_read(interpreted):
    assert interpreted["wrong"] == [[False, True, True, False]] * 2


class Bent(Euclidean):
    """A distance with a gradient of its own."""

    def pull_(self, p, distance):
        return 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_kernels_are_refused_and_never_chosen():
    x, c, y = torch.ones(2, 3), torch.eye(3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="x is on cpu; expected an NVIDIA GPU"):
        loss(x, c, y, form="kernels")
    with pytest.raises(ValueError, match="x is on cpu; expected an NVIDIA GPU"):
        top_k(x, c, 1, form="kernels")
    torch.testing.assert_close(loss(x, c, y), reference.loss(x, c, y))


def test_wrong_forms_are_named():
    x, c, y = torch.ones(2, 3), torch.eye(3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="form='triton' is unknown"):
        loss(x, c, y, form="triton")
    with pytest.raises(ValueError, match="form='fast' is unknown"):
        nearest(x, c, form="fast")
    for form in ("fused", "chunked", "reference"):
        torch.testing.assert_close(loss(x, c, y, form=form), reference.loss(x, c, y))
    assert torch.equal(nearest(x, c, form="torch"), nearest(x, c))


def test_what_kernels_cannot_take_is_told(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, c = torch.ones(2, 3), torch.eye(3)
    plain = as_distance("euclidean")
    assert unsupported(x, c, None, plain) is None
    assert "float64" in unsupported(x.double(), c, None, plain)
    assert "prototypes is on meta; expected cpu" in unsupported(x, c.to("meta"), None, plain)
    with pytest.raises(ValueError, match="target is on meta; expected cpu"):
        kernels.loss(x, c, torch.zeros(2, dtype=torch.int64, device="meta"))
    assert "temperature is by class" in unsupported(x, c, torch.ones(3, 1), plain)
    assert "gradient of its own" in unsupported(x, c, None, Bent())
    assert "expected at most 32" in kernels.cannot_find(plain, 33)
    with pytest.raises(ValueError, match="precision='half' is unknown"):
        kernels.loss(x, c, torch.tensor([0, 1]), precision="half")
    with pytest.raises(ValueError, match="adjustment requires a gradient"):
        kernels.loss(x, c, torch.tensor([0, 1]), adjustment=torch.zeros(3, requires_grad=True))


@pytest.mark.parametrize("name", ["head", "search", "stage2"])
def test_benchmarks_run_on_a_cpu(name, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(
        f"benchmark_of_{name}", ROOT / "benchmarks" / f"{name}.py"
    )
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    rows = benchmark.main(["--quick", "--json", str(tmp_path / "found.json")])
    assert json.loads((tmp_path / "found.json").read_text())["rows"] == rows
    if name == "stage2":
        assert [row["case"] for row in rows][:2] == ["one head", "3 heads"]
        assert all(row["difference"] == 0 for row in rows)
        return
    assert any(row["way"].startswith("protail") for row in rows)
    for row in rows:
        assert row["ms"] > 0
        assert row.get("wrong rows", 0) == 0
        assert row.get("gradient error", 0) < 1e-5
    assert capsys.readouterr().out.count("| protail, torch |") == len({r["classes"] for r in rows})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
def test_losses_on_a_gpu(distance, precision):
    generator = torch.Generator("cuda").manual_seed(0)
    for small in (True, False):
        leaves = [torch.randn(n, 100, generator=generator, device="cuda") + 3 for n in (200, 1000)]
        leaves.append(torch.rand(1, 100, generator=generator, device="cuda") + 0.5)
        target = torch.randint(1000, (200,), generator=generator, device="cuda")

        def run(loss, leaves, target=target, **options):
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            value = loss(*leaves[:2], target, distance=distance, temperature=leaves[2], **options)
            return [value.detach(), *torch.autograd.grad(value, leaves)]

        found, again = (
            run(kernels.loss, leaves, precision=precision, small=small) for _ in range(2)
        )
        assert all(map(torch.equal, found, again))
        true = run(reference.loss, [leaf.double() for leaf in leaves])
        allowed = 1e-5 if small else {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 1e-2}[precision]
        for one, other in zip(found, true, strict=True):
            assert (one - other).norm() <= allowed * other.norm()
