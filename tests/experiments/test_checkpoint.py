"""Checkpoints: the same bits back, or one clear error; never half of anything."""

import multiprocessing
import pickle
import signal

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from protail._files import OutputError
from protail.experiments.checkpoint import (
    CheckpointError,
    load_checkpoint,
    restore_training_state,
    save_checkpoint,
    training_state,
)
from reference.patience import PATIENCE

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.mT if tensor.ndim >= 2 else tensor,
    "every other": lambda tensor: tensor[..., ::2] if tensor.ndim else tensor,
    "expanded": lambda tensor: tensor.expand(3, *tensor.shape),
    "channels last": lambda tensor: (
        tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
    ),
    "parameter": lambda tensor: (
        nn.Parameter(tensor) if tensor.is_floating_point() else tensor.clone()
    ),
}


def random_bits(dtype, shape, seed):
    """Any value the dtype has, also those that are no numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    width = torch.empty((), dtype=dtype).element_size()
    size = (*shape, width)
    raw = torch.randint(256, size, generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor):
    return (
        tensor.detach()
        .clone(memory_format=torch.contiguous_format)
        .reshape(-1)
        .view(torch.uint8)
        .tolist()
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


@pytest.fixture
def saved(path):
    save_checkpoint(path, {"a": torch.arange(3.0), "b": torch.tensor(True)}, {"step": 7})
    return path


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 4), max_size=4),
            st.sampled_from(sorted(LAYOUTS)),
        ),
        max_size=4,
    ),
    st.integers(0, 1000),
)
def test_every_bit_comes_back(tmp_path_factory, kinds, seed):
    path = tmp_path_factory.mktemp("folder") / "file"
    tensors = {
        f"tensor {place}": LAYOUTS[layout](random_bits(dtype, tuple(shape), seed + place))
        for place, (dtype, shape, layout) in enumerate(kinds)
    }
    save_checkpoint(path, tensors, {"step": seed})
    found = load_checkpoint(path)
    assert found.record == {"step": seed}
    assert found.tensors.keys() == tensors.keys()
    outside = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        for back in (found.tensors[name], outside[name]):
            assert back.dtype == tensor.dtype
            assert back.shape == tensor.shape
            assert bits(back) == bits(tensor)


RECORDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Also a lone surrogate, as in file names that are no UTF-8.
    | st.text()
    | st.just("\udcff"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), RECORDS, max_size=4))
def test_records_come_back(tmp_path_factory, record):
    path = tmp_path_factory.mktemp("folder") / "file"
    save_checkpoint(path, {}, record)
    assert load_checkpoint(path).record == record


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        ({"loss": [1.0, float("nan")]}, ValueError, r"record\.loss\[1\] is nan"),
        ({"a": {"b": float("inf")}}, ValueError, r"record\.a\.b is inf"),
        ({"a": {1: 2}}, TypeError, r"record\.a has the key 1"),
        ({"a": torch.ones(1)}, TypeError, r"record\.a is a Tensor"),
    ],
)
def test_records_that_are_not_strict_json(path, record, error, words):
    with pytest.raises(error, match=words):
        save_checkpoint(path, {}, record)
    assert not path.exists()


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"a": 1.0}, TypeError, "'a'.*float.*expected a tensor"),
        ({"__metadata__": torch.ones(1)}, ValueError, "__metadata__"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, ValueError, "'a'.*complex64"),
        ({"a": torch.eye(2).to_sparse()}, ValueError, "'a'.*sparse"),
        ({"a": torch.empty(1, device="meta")}, ValueError, "'a'.*meta"),
    ],
)
def test_tensors_that_cannot_be_saved(path, tensors, error, words):
    with pytest.raises(error, match=words):
        save_checkpoint(path, tensors, {})
    assert not path.exists()


def test_the_metadata_says_what_it_is(saved):
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "protail-checkpoint"
    assert metadata["format_version"] == "1"


def test_any_changed_byte_is_found_out(saved):
    whole = saved.read_bytes()
    for place in range(len(whole)):
        for flip in (0x01, 0x2A):  # 0x2A turns a blank into a line end: still JSON
            changed = bytearray(whole)
            changed[place] ^= flip
            saved.write_bytes(changed)
            with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: "):
                load_checkpoint(saved)


def test_any_cut_is_found_out(saved):
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="checksum"):
        load_checkpoint(saved)


def test_a_newer_file(saved):
    text = saved.read_bytes().replace(b'"format_version": "1"', b'"format_version": "2"')
    saved.write_bytes(text)
    with pytest.raises(CheckpointError, match=r"newer protail .*format 2.*pip install"):
        load_checkpoint(saved)


def test_no_file_and_no_checkpoint(tmp_path, path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(path)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_pickles_stay_closed(path):
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(path)


def test_a_full_disk_leaves_the_old_checkpoint(saved):
    """A limit on the size of files stands for the full disk: the system refuses to write."""
    before = saved.read_bytes()

    def fill_the_disk(told):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            save_checkpoint(saved, {"large": torch.zeros(1000, 1000)}, {"step": 8})
        except BaseException as error:
            told.send((type(error), str(error)))

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=fill_the_disk, args=(there,))
    child.start()
    child.join(PATIENCE)
    assert here.poll(), "no error came"
    kind, words = here.recv()
    assert kind is OutputError
    assert "cannot be written" in words
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_to_the_gpu_and_back(path):
    tensor = torch.randn(3, 4, 5, 6, device="cuda").to(memory_format=torch.channels_last)
    save_checkpoint(path, {"a": tensor}, {})
    assert torch.equal(load_checkpoint(path).tensors["a"], tensor.cpu())
    assert torch.equal(load_checkpoint(path, "cuda").tensors["a"], tensor)


class Network(nn.Module):
    """Has all that a state may hold: batch norm, a counter, a buffer its state_dict leaves out."""

    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, images):
        self.seen += len(images)
        mean = self.norm(self.conv(images)).relu().mean((2, 3))
        return ((mean + self.frozen) * self.scale * self.seen.log1p()).square().sum()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def make(optimizer, seed=0, width=4):
    torch.manual_seed(seed)
    module = Network(width)
    return module, OPTIMIZERS[optimizer](module.parameters())


def take_steps(module, optimizer, first, last):
    for step in range(first, last):
        images = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad(set_to_none=True)
        module(images).backward()
        optimizer.step()


def copies(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert bits(tensor) == bits(expected[name]), name


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_training_goes_on_bit_for_bit(path, name, used, steps_before):
    whole = make(name)
    take_steps(*whole, 0, steps_before)
    save_checkpoint(path, training_state(*whole), {})
    take_steps(*whole, steps_before, 7)

    other = make(name, seed=1)
    if used:
        take_steps(*other, 10, 12)
    restore_training_state(load_checkpoint(path).tensors, *other)
    take_steps(*other, steps_before, 7)
    assert_same(training_state(*other), training_state(*whole))


def test_a_look_at_the_state_changes_nothing():
    """Not even before the first step, when momentum is made of zeros."""
    looked_at, left_alone = make("momentum"), make("momentum")
    training_state(*looked_at)
    for training in (looked_at, left_alone):
        take_steps(*training, 0, 4)
    assert_same(training_state(*looked_at), training_state(*left_alone))


def test_restored_in_place():
    module, optimizer = make("momentum")
    take_steps(module, optimizer, 0, 2)
    state = training_state(module, optimizer)
    saved = copies(state)
    places = {name: (t.data_ptr(), t.stride()) for name, t in state.items()}
    take_steps(module, optimizer, 2, 4)
    restore_training_state(saved, module, optimizer)
    after = training_state(module, optimizer)
    assert {name: (t.data_ptr(), t.stride()) for name, t in after.items()} == places
    assert_same(after, saved)


def test_everything_is_in_the_state():
    names = set(training_state(*make("momentum")))
    own = {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "frozen", "scale"}
    buffers = {"seen", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert names == {f"module.{name}" for name in own | buffers} | {
        f"optimizer.momentum_buffer.{name}" for name in own
    }


def test_all_that_does_not_fit_is_listed_and_nothing_restored():
    module, optimizer = make("momentum")
    state = copies(training_state(module, optimizer))
    before = copies(state)
    del state["module.scale"]
    state["module.extra"] = torch.ones(1)
    state["module.conv.bias"] = torch.ones(9)
    state["module.frozen"] = state["module.frozen"].double() + 1
    with pytest.raises(ValueError, match="do not fit") as raised:
        restore_training_state(state, module, optimizer)
    for words in (
        "module.scale is missing",
        "module.extra is unknown",
        "module.conv.bias is float32 of shape (9,), expected float32 of shape (4,)",
        "module.frozen is float64 of shape (4,), expected float32 of shape (4,)",
    ):
        assert words in str(raised.value)
    assert_same(training_state(module, optimizer), before)


@pytest.mark.parametrize("there", OPTIMIZERS)
@pytest.mark.parametrize("here", OPTIMIZERS)
def test_the_state_of_another_optimizer(here, there):
    if here == there:
        return
    with pytest.raises(ValueError, match=r"optimizer\.\w+\.conv\.weight is (missing|unknown)"):
        restore_training_state(training_state(*make(there)), *make(here))


def test_optimizers_that_are_not_known():
    module, _ = make("sgd")
    with pytest.raises(TypeError, match="Rprop; expected SGD"):
        training_state(module, torch.optim.Rprop(module.parameters()))
    dampened = torch.optim.SGD(module.parameters(), momentum=0.9, dampening=0.5)
    with pytest.raises(ValueError, match=r"dampening=0\.5"):
        training_state(module, dampened)
    stranger = torch.optim.SGD([*module.parameters(), nn.Parameter(torch.ones(2, 3))], lr=0.1)
    with pytest.raises(ValueError, match=r"place 6 a parameter of shape \(2, 3\)"):
        training_state(module, stranger)
