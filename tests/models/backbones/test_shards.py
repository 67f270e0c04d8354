"""Weights written in halves and in shards come back, and damage is told."""

import errno
import hashlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from protail import _files
from protail._files import OutputError
from protail.models.backbones import WeightsError, load_weights, make_backbone, save_weights
from protail.models.backbones.weights import INDEX, read_checkpoint


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    model = make_backbone("resnet32")
    with torch.no_grad():
        model(torch.randn(4, 3, 32, 32))
    return model.state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


@pytest.mark.parametrize("place", ["weights.safetensors", "weights"])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_back_again(tmp_path, state, place, dtype):
    save_weights(state, tmp_path / place, dtype=dtype)
    stored = read_checkpoint(tmp_path / place).arrays
    expected = {
        key: value.to(getattr(torch, dtype)) if dtype and value.is_floating_point() else value
        for key, value in state.items()
    }
    assert equal(stored, expected)
    assert stored["bn1.num_batches_tracked"].dtype == torch.int64
    model = make_backbone("resnet32", weights=tmp_path / place)
    rounded = {key: value.to(state[key].dtype) for key, value in expected.items()}
    assert equal(model.state_dict(), rounded)


def test_float16_halves_the_file(tmp_path, state):
    (full,) = save_weights(state, tmp_path / "full.safetensors")
    (half,) = save_weights(state, tmp_path / "half.safetensors", dtype="float16")
    assert half.stat().st_size < 0.55 * full.stat().st_size


@pytest.mark.parametrize("shard_bytes", [160_000, 500_000, 10**9])
def test_shards(tmp_path, state, shard_bytes):
    files = save_weights(state, tmp_path / "w", shard_bytes=shard_bytes)
    shards = sorted((tmp_path / "w").glob("*.safetensors"))
    assert [*shards, tmp_path / "w" / INDEX] == files
    assert [file.name for file in shards] == [
        f"weights-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))
    ]
    assert all(file.stat().st_size <= shard_bytes for file in shards)
    total = sum(file.stat().st_size for file in shards)
    assert len(shards) <= 1 + 2 * total // shard_bytes
    merged = {key: value for file in shards for key, value in load_file(file).items()}
    assert equal(merged, state)
    assert equal(read_checkpoint(files[-1]).arrays, state)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    spare=st.integers(0, 500),
)
def test_no_shard_is_too_large(tmp_path_factory, sizes, name, spare):
    arrays = {f"{name}{i}": torch.arange(float(size)) for i, size in enumerate(sizes)}
    limit = 4 * max(sizes) + 400 + spare
    files = save_weights(arrays, tmp_path_factory.mktemp("w") / "w", shard_bytes=limit)
    assert all(file.stat().st_size <= limit for file in files[:-1])
    assert equal(read_checkpoint(files[-1]).arrays, arrays)


def test_shared_and_channels_last_arrays(tmp_path):
    shared = torch.randn(4, 4)
    arrays = {
        "a": shared,
        "b": shared,
        "row": shared[1],
        "transposed": shared.t(),
        "last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "scalar": torch.tensor(3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    (file,) = save_weights(arrays, tmp_path / "w.safetensors")
    assert equal(load_file(file), {key: value.detach() for key, value in arrays.items()})


def test_other_tools_indexes_and_their_names(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {"b": "model-2.safetensors", "a": "model-1.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 20}, "weight_map": weight_map}))
    assert list(read_checkpoint(index).arrays) == ["b", "a"]


@pytest.fixture
def folder(tmp_path, state):
    save_weights(state, tmp_path / "w", shard_bytes=700_000)
    assert len(list((tmp_path / "w").iterdir())) >= 4
    return tmp_path / "w"


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(bytes(content))


def edit_index(folder, change):
    document = json.loads((folder / INDEX).read_text())
    change(document)
    (folder / INDEX).write_text(json.dumps(document))


def test_replaced_weights_leave_what_else_is_there(folder, state):
    (folder / "notes.txt").write_text("mine")
    save_weights(state, folder, overwrite=True)
    assert sorted(file.name for file in folder.iterdir()) == [
        "notes.txt",
        "weights-00001-of-00001.safetensors",
        INDEX,
    ]
    assert (folder / "notes.txt").read_text() == "mine"
    assert equal(read_checkpoint(folder).arrays, state)


FIRST = "weights-00001-of-00003.safetensors"
DAMAGES = {
    "missing shard": (lambda f: (f / FIRST).unlink(), "which .*index.json names, is missing"),
    "short shard": (lambda f: (f / FIRST).write_bytes((f / FIRST).read_bytes()[:-1]), "bytes"),
    "empty shard": (lambda f: (f / FIRST).write_bytes(b""), "it has 0 bytes"),
    "flipped number": (lambda f: flip(f / FIRST, 0.9), "checksum"),
    "flipped header": (lambda f: flip(f / FIRST, 0.0), "checksum"),
    "swapped shards": (
        lambda f: (f / FIRST).write_bytes((f / FIRST.replace("1-", "2-")).read_bytes()),
        "bytes",
    ),
    "missing index": (lambda f: (f / INDEX).unlink(), "holds no weights.safetensors.index.json"),
    "half an index": (
        lambda f: (f / INDEX).write_text((f / INDEX).read_text()[:500]),
        "no index of shards",
    ),
    "other JSON": (lambda f: (f / INDEX).write_text("[1]"), "no index of shards"),
    "nothing in it": (lambda f: edit_index(f, lambda d: d["weight_map"].clear()), "no index"),
    "a path out": (
        lambda f: edit_index(f, lambda d: d["weight_map"].update(x="../a.safetensors")),
        "no index",
    ),
    "a number": (lambda f: edit_index(f, lambda d: d["weight_map"].update(x=1)), "no index"),
    "one key more": (
        lambda f: edit_index(f, lambda d: d["weight_map"].update(x=FIRST)),
        "do not hold 'x' as it says",
    ),
    "one key less": (
        lambda f: edit_index(f, lambda d: d["weight_map"].pop("bn1.bias")),
        "do not hold 'bn1.bias' as it says",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(folder, damage):
    spoil, text = DAMAGES[damage]
    spoil(folder)
    model = make_backbone("resnet32")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(WeightsError, match=text):
        load_weights(model, folder)
    assert equal(model.state_dict(), before)


def test_a_shard_that_is_no_safetensors_file(folder):
    (folder / FIRST).write_bytes(b"junk" * 10)
    digest = hashlib.sha256(b"junk" * 10).hexdigest()
    entry = {"bytes": 40, "sha256": digest}
    edit_index(folder, lambda d: d["metadata"]["shards"].update({FIRST: entry}))
    with pytest.raises(WeightsError, match="no whole safetensors file"):
        load_weights(make_backbone("resnet32"), folder)


@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 70_000.0), ("float16", -1e30), ("bfloat16", 3.4028e38)]
)
def test_a_number_too_large(tmp_path, dtype, value):
    with pytest.raises(ValueError, match=r"'big', which torch\.\w+ cannot hold"):
        save_weights({"big": torch.tensor([1.0, value])}, tmp_path / "w", dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_infinity_stays(tmp_path):
    (file,) = save_weights(
        {"a": torch.tensor([torch.inf, 1])}, tmp_path / "w.safetensors", dtype="float16"
    )
    assert load_file(file)["a"].isinf().tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"dtype": "float8"}, ValueError, "dtype='float8' is unknown"),
        ({"shard_bytes": 0}, ValueError, "shard_bytes=0"),
        ({"shard_bytes": 1.5}, ValueError, "shard_bytes=1.5"),
        ({"shard_bytes": 100}, ValueError, "too small for 'a'; expected"),
        ({"path": "w.safetensors", "shard_bytes": 9999}, ValueError, "name of a folder"),
        ({"state_dict": {}}, TypeError, "empty"),
        ({"state_dict": [1]}, TypeError, "Give module.state_dict"),
        ({"state_dict": {"a": 1}}, TypeError, "'a' as int"),
        ({"state_dict": {1: torch.zeros(1)}}, TypeError, "a name and a tensor"),
    ],
)
def test_bad_arguments(tmp_path, options, error, text):
    arguments = {"state_dict": {"a": torch.zeros(9)}, "path": "w"} | options
    with pytest.raises(error, match=text):
        save_weights(**arguments | {"path": tmp_path / arguments["path"]})
    assert list(tmp_path.iterdir()) == []


def test_the_size_that_is_named_does(tmp_path):
    arrays = {"a": torch.zeros(1000), "b": torch.zeros(3)}
    with pytest.raises(ValueError, match="expected") as caught:
        save_weights(arrays, tmp_path / "w", shard_bytes=100)
    enough = int(str(caught.value).split("expected ")[1].split()[0])
    save_weights(arrays, tmp_path / "w", shard_bytes=enough)


@pytest.mark.parametrize("place", ["w", "w.safetensors"])
def test_what_is_there_stays(tmp_path, place, monkeypatch):
    old, new = {"a": torch.zeros(2)}, {"a": torch.ones(2)}
    save_weights(old, tmp_path / place)
    with pytest.raises(OutputError, match="already there"):
        save_weights(new, tmp_path / place)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_files, "_flush", full)
        with pytest.raises(OutputError, match="disk is full"):
            save_weights(new, tmp_path / place, overwrite=True)
    assert equal(read_checkpoint(tmp_path / place).arrays, old)
    save_weights(new, tmp_path / place, overwrite=True)
    assert equal(read_checkpoint(tmp_path / place).arrays, new)
