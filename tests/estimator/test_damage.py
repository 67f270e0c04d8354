"""Damaged model folders: one error that names the file, never a crash, never silent success."""

import copy
import hashlib
import json
import os
import shutil
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from sklearn.datasets import make_moons

from protail import PrototypeClassifier
from protail.estimator import ModelFileError, _persistence
from protail.models.storage import FlawError, describe_weights, signed

MODEL, WEIGHTS = "model.json", "weights.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model with every optional part; tests work on copies."""
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(60) % 3]
    X = rng.normal(size=(60, 4)) + (y == "bee")[:, None]
    folder = tmp_path_factory.mktemp("models") / "model"
    PrototypeClassifier(
        temperature="class", prior=[0.2, 0.3, 0.5], max_steps=12, random_state=0
    ).fit(X, y).save(folder, evaluation={"all": 0.5, "few": None}, about="Käfer")
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "model"))


def assert_refused(folder, *names):
    with pytest.raises(ModelFileError) as caught:
        PrototypeClassifier.load(folder)
    text = str(caught.value)
    assert any(str(folder / name) in text for name in names), text
    assert len(text) < 800
    return text


# Bytes: what happens to files on disks and in downloads.


def truncated(part):
    return lambda raw: raw[: int(len(raw) * part)]


def flipped(part):
    def flip(raw):
        place = min(int(len(raw) * part), len(raw) - 1)
        return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]

    return flip


def with_header(change):
    """Change the header of a safetensors file, and its length with it."""

    def apply(raw):
        size = struct.unpack("<Q", raw[:8])[0]
        text = change(raw[8 : 8 + size])
        return struct.pack("<Q", len(text)) + text + raw[8 + size :]

    return apply


BYTES = {
    **{f"truncated to {part:.0%}": truncated(part) for part in (0.001, 0.1, 0.5, 0.9, 0.999)},
    **{f"bit flipped at {part:.0%}": flipped(part) for part in (0, 0.02, 0.3, 0.6, 0.99, 1)},
    "emptied": lambda raw: b"",
    "last byte lost": lambda raw: raw[:-1],
    "first byte lost": lambda raw: raw[1:],
    "byte added": lambda raw: raw + b"\0",
    "newline added": lambda raw: raw + b"\n",
    "doubled": lambda raw: raw + raw,
    "zeroed": lambda raw: bytes(len(raw)),
    "invalid utf-8": lambda raw: raw[:30] + b"\xff\xfe" + raw[32:],
    "a pickle": lambda raw: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    "html of a login page": lambda raw: b"<!doctype html><title>Log in</title>",
    "a git-lfs pointer": lambda raw: b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
}


@pytest.mark.parametrize("damage", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("name", [MODEL, WEIGHTS])
def test_bytes(folder, name, damage):
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    assert_refused(folder, name)


TEXT = {
    "deep nesting": lambda raw: b"[" * 100_000,
    "deep nesting in an object": lambda raw: b'{"format":' * 100_000,
    "a list": lambda raw: b"[]",
    "a number": lambda raw: b"3",
    "null": lambda raw: b"null",
    "an empty object": lambda raw: b"{}",
    "another's json": lambda raw: b'{"model_type": "bert"}',
    "repeated key": lambda raw: raw.replace(b'"about"', b'"scale": 1.0,\n  "about"'),
    "NaN": lambda raw: raw.replace('"Käfer"'.encode(), b"NaN"),
    "infinity": lambda raw: raw.replace(b'"scale": ', b'"scale": Infinity, "x": '),
    "number beyond floats": lambda raw: raw.replace(b'"scale": ', b'"scale": 1e999, "x": '),
    "number of 5,000 digits": lambda raw: raw.replace(
        b'"scale": ', b'"scale": 1' + b"0" * 5000 + b', "x": '
    ),
    "byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "utf-16": lambda raw: raw.decode().encode("utf-16"),
    "reformatted": lambda raw: json.dumps(json.loads(raw)).encode(),
    "one space more": lambda raw: raw.replace(b": ", b":  ", 1),
    "checksum in capitals": lambda raw: raw[:-70] + raw[-70:].upper(),
    "checksum of another": lambda raw: raw[:-68] + b"0" * 64 + raw[-4:],
    "checksum removed": lambda raw: raw[:-81] + b"\n}\n",
    "value changed": lambda raw: raw.replace(b'"max_steps": 12', b'"max_steps": 13'),
    "label changed": lambda raw: raw.replace(b'"bee"', b'"bea"'),
    "text after the end": lambda raw: raw + b"{}",
}


@pytest.mark.parametrize("damage", TEXT.values(), ids=TEXT)
def test_text_of_the_json(folder, damage):
    path = folder / MODEL
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    assert_refused(folder, MODEL)


# Files and folders.


def swap(folder):
    (folder / MODEL).rename(folder / "third")
    (folder / WEIGHTS).rename(folder / MODEL)
    (folder / "third").rename(folder / WEIGHTS)


def make_folder(name):
    def apply(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return apply


def make_pipe(name):
    def apply(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return apply


def dangling(name):
    def apply(folder):
        (folder / name).unlink()
        (folder / name).symlink_to(folder / "nowhere")

    return apply


PLACES = {
    "json removed": (lambda folder: (folder / MODEL).unlink(), MODEL),
    "weights removed": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "json is a folder": (make_folder(MODEL), MODEL),
    "weights are a folder": (make_folder(WEIGHTS), WEIGHTS),
    "json is a pipe": (make_pipe(MODEL), MODEL),
    "weights are a pipe": (make_pipe(WEIGHTS), WEIGHTS),
    "json is a dead link": (dangling(MODEL), MODEL),
    "weights are a dead link": (dangling(WEIGHTS), WEIGHTS),
    "files swapped": (swap, MODEL),
    "json in place of weights": (
        lambda folder: shutil.copy(folder / MODEL, folder / WEIGHTS),
        WEIGHTS,
    ),
    "folder removed": (shutil.rmtree, ""),
    "folder is a file": (lambda f: (shutil.rmtree(f), f.write_text("a file")), ""),
    "folder is empty": (lambda f: (shutil.rmtree(f), f.mkdir()), MODEL),
}


@pytest.mark.parametrize(("damage", "name"), PLACES.values(), ids=PLACES)
def test_files_and_folders(folder, damage, name):
    damage(folder)
    assert_refused(folder, name)


@pytest.mark.parametrize("path", ["x" * 300, "nul\0byte"])
def test_impossible_paths(tmp_path, path):
    with pytest.raises(ModelFileError):
        PrototypeClassifier.load(tmp_path / path)


def test_weights_of_another_model(folder, tmp_path):
    X = np.random.default_rng(1).normal(size=(60, 4))
    other = PrototypeClassifier(max_steps=3, random_state=0).fit(X, np.arange(60) % 3)
    other.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / WEIGHTS, folder / WEIGHTS)
    assert_refused(folder, WEIGHTS)


# Values: the JSON is signed again, so that no checksum stands in the way.


def sign_again(folder, document):
    document = {key: value for key, value in document.items() if key != "checksum"}
    (folder / MODEL).write_bytes(signed(document))


def put(path, value):
    def apply(document):
        *above, last = path.split("/")
        for key in above:
            document = document[key]
        document[last] = value

    return apply


def drop(path):
    def apply(document):
        *above, last = path.split("/")
        for key in above:
            document = document[key]
        del document[last]

    return apply


TOP = ("protail_version", "settings", "classes", "feature_names", "normalize", "feature_scale")
TOP = (*TOP, "scale", "choices", "evaluation", "about", "weights")
NESTED = ("settings", "classes", "choices", "weights", "weights/tensors/prototypes")
VALUES = {
    **{f"no {key}": drop(key) for key in TOP},
    **{f"no {key}": drop(key) for key in ("format", "format_version", "settings/lr", "choices/lr")},
    **{f"no {key}": drop(key) for key in ("classes/dtype", "weights/sha256", "weights/tensors")},
    **{f"no {key}": drop(key) for key in ("weights/tensors/prototypes/shape",)},
    **{f"{key} is a list": put(key, [1]) for key in TOP},
    **{f"{key} is a number": put(key, 7) for key in ("settings", "classes", "choices", "weights")},
    **{f"{key} is true": put(key, True) for key in ("normalize", "scale", "feature_scale")},
    **{f"extra key in {key}": put(f"{key}/extra", 1) for key in NESTED},
    "extra key": put("extra", 1),
    "another format": put("format", "protail-head"),
    "newer format": put("format_version", 3),
    "format 0": put("format_version", 0),
    "format true": put("format_version", True),
    "format '1'": put("format_version", "1"),
    "format 1.0": put("format_version", 1.0),
    "path up": put("weights/file", "../../x"),
    "absolute path": put("weights/file", "/etc/passwd"),
    "path with a dot": put("weights/file", "./weights.safetensors"),
    "file null": put("weights/file", None),
    "wrong size": put("weights/bytes", 3),
    "size is text": put("weights/bytes", "3"),
    "checksum of weights wrong": put("weights/sha256", "0" * 64),
    "checksum of weights null": put("weights/sha256", None),
    "no such dtype": put("weights/tensors/prototypes/dtype", "F99"),
    "other dtype": put("weights/tensors/prototypes/dtype", "F32"),
    "other shape": put("weights/tensors/prototypes/shape", [4, 3]),
    "shape of text": put("weights/tensors/prototypes/shape", ["3", "4"]),
    "shape is huge": put("weights/tensors/prototypes/shape", [2**62, 2**62]),
    "tensor of another name": put("weights/tensors/extra", {"dtype": "F64", "shape": [1]}),
    "tensor forgotten": drop("weights/tensors/prior"),
    "unsorted labels": put("classes/values", ["bee", "ant", "cat"]),
    "repeated label": put("classes/values", ["ant", "ant", "cat"]),
    "label too few": put("classes/values", ["ant", "bee"]),
    "label too many": put("classes/values", ["ant", "bee", "cat", "dog"]),
    "one label": put("classes/values", ["ant"]),
    "no labels": put("classes/values", []),
    "labels of two types": put("classes/values", ["ant", 2, "cat"]),
    "label null": put("classes/values", ["ant", "bee", None]),
    "labels do not fit": put("classes/values", ["ant", "bee", "caterpillar"]),
    "label ends in zero bytes": put("classes/values", ["ant", "bee", "c\0"]),
    "labels and dtype": put("classes/dtype", "<i8"),
    "labels beyond their dtype": put("classes", {"dtype": "|i1", "values": [1, 2, 300]}),
    "labels below their dtype": put("classes", {"dtype": "|u1", "values": [-1, 2, 3]}),
    "labels rounded": put("classes", {"dtype": "<f2", "values": [0.1, 0.2, 0.3]}),
    "labels overflow": put("classes", {"dtype": "<f2", "values": [0.0, 1.0, 1e300]}),
    "labels huge": put("classes", {"dtype": "<i8", "values": [0, 1, 10**400]}),
    "dtype of objects with numbers": put("classes", {"dtype": "|O", "values": [1, 2, 3]}),
    "dtype of records": put("classes/dtype", "i4,i4"),
    "dtype of dates": put("classes/dtype", "<M8[s]"),
    "dtype with too much room": put("classes/dtype", "<U999999999"),
    "dtype without room": put("classes/dtype", "<U0"),
    "feature names too few": put("feature_names", ["a"]),
    "feature names are numbers": put("feature_names", [1, 2, 3, 4]),
    "radius 0": put("normalize", 0),
    "radius negative": put("normalize", -1.0),
    "scale 0": put("scale", 0.0),
    "scale beyond floats": put("scale", 10**400),
    "feature scale null": put("feature_scale", None),
    "unknown distance": put("settings/distance", "manhattan"),
    "distance is a list": put("settings/distance", ["cosine"]),
    "unknown temperature": put("settings/temperature", "warm"),
    "temperature is an object": put("settings/temperature", {}),
    "rate negative": put("settings/lr", -1),
    "rate beyond floats": put("settings/lr", 10**400),
    "epochs half": put("settings/epochs", 0.5),
    "steps true": put("settings/max_steps", True),
    "momentum 1": put("settings/momentum", 1.0),
    "unknown sampling": put("settings/sampling", "random"),
    "seed negative": put("settings/random_state", -1),
    "seed too large": put("settings/random_state", 2**32),
    "seed is text": put("settings/random_state", "0"),
    "unknown prior": put("settings/prior", "flat"),
    "prior is a list": put("settings/prior", [0.2, 0.3, 0.5]),
    "prior from another tensor": put("settings/prior", {"tensor": "class_means"}),
    "prior forgotten": put("settings/prior", "train"),
    "device kept": put("settings/device", "cuda"),
    "chosen distance": put("choices/distance", "manhattan"),
    "chosen temperature none": put("choices/temperature", None),
    "chosen temperature dense": put("choices/temperature", "dense"),
    "chosen temperature channel": put("choices/temperature", "channel"),
    "accuracy above 1": put("choices/leave_one_out_accuracy", 1.5),
    "memorised 0": put("choices/memorised", 0),
    "chosen radius 0": put("choices/normalize", 0),
    "chosen rate negative": put("choices/lr", -0.5),
    "chosen steps half": put("choices/steps", 0.5),
    "chosen batch 0": put("choices/batch_size", 0),
    "chosen batch huge": put("choices/batch_size", 2**80),
    "logit scale text": put("choices/logit_scale", "1"),
    "logit adjustment negative": put("choices/logit_adjustment", -1),
    "evaluation is text": put("evaluation", "good"),
    "about is an object": put("about", {}),
}


@pytest.mark.parametrize("damage", VALUES.values(), ids=VALUES)
def test_values(folder, damage):
    document = json.loads((folder / MODEL).read_bytes())
    damage(document)
    sign_again(folder, document)
    assert_refused(folder, MODEL, WEIGHTS)


def test_signing_again_is_no_damage(folder):
    before = (folder / MODEL).read_bytes()
    sign_again(folder, json.loads(before))
    assert (folder / MODEL).read_bytes() == before
    PrototypeClassifier.load(folder)


def test_newer_format_says_what_to_do(folder):
    document = json.loads((folder / MODEL).read_bytes())
    sign_again(folder, document | {"format_version": 3, "something": "new"})
    text = assert_refused(folder, MODEL)
    assert "made by a newer protail (format 3; this one reads up to 2). " in text


# Arrays: both files are signed again.


def entry(name, change):
    def apply(tensors):
        array = tensors[name].copy()
        tensors[name] = change(array)

    return apply


def with_value(value, place=-1):
    def change(array):
        array.reshape(-1)[place] = value
        return array

    return change


def without(name):
    return lambda tensors: tensors.pop(name)


FLOATS = ("prototypes", "class_means", "temperature", "prior", "history_loss")
ARRAYS = {
    **{f"NaN in {name}": entry(name, with_value(np.nan)) for name in FLOATS},
    **{f"infinity in {name}": entry(name, with_value(np.inf, 0)) for name in FLOATS},
    **{f"-infinity in {name}": entry(name, with_value(-np.inf)) for name in FLOATS},
    **{f"{name} short": entry(name, lambda a: a[:-1]) for name in (*FLOATS, "class_counts")},
    **{f"{name} narrow": entry(name, lambda a: a[:, :-1]) for name in FLOATS[:3]},
    **{f"{name} flat": entry(name, np.ravel) for name in FLOATS[:3]},
    **{f"{name} deep": entry(name, lambda a: a[None]) for name in (*FLOATS, "class_counts")},
    **{f"{name} whole numbers": entry(name, lambda a: a.astype(int)) for name in FLOATS},
    **{f"{name} float32": entry(name, lambda a: a.astype("f4")) for name in FLOATS},
    **{f"{name} float64": entry(name, lambda a: a * 1.0) for name in ("class_counts",)},
    **{f"no {name}": without(name) for name in (*FLOATS, "class_counts", "history_step")},
    "prototypes a number": entry("prototypes", lambda a: a.reshape(-1)[:1].reshape(())),
    "no features": lambda tensors: tensors.update(
        prototypes=np.zeros((3, 0)), class_means=np.zeros((3, 0))
    ),
    "temperature 0": entry("temperature", with_value(0)),
    "temperature negative": entry("temperature", with_value(-1)),
    "count negative": entry("class_counts", with_value(-1)),
    "counts all 0": entry("class_counts", np.zeros_like),
    "prior negative": entry("prior", lambda a: np.array([-0.5, 0.5, 1.0])),
    "prior sums to 2": entry("prior", lambda a: 2 * a),
    "step negative": entry("history_step", with_value(-1, 0)),
    "more steps than losses": entry("history_step", lambda a: np.append(a, 99)),
    "strange tensor": lambda tensors: tensors.update(strange=np.zeros(2)),
    "no tensors": lambda tensors: tensors.clear(),
}


@cache
def arrays_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / WEIGHTS)


@pytest.mark.parametrize("damage", ARRAYS.values(), ids=ARRAYS)
def test_arrays(folder, whole, damage):
    tensors = dict(arrays_of(whole))
    damage(tensors)
    document = json.loads((folder / MODEL).read_bytes())
    save_file(tensors, folder / WEIGHTS)
    document["weights"] = describe_weights(folder / WEIGHTS)
    sign_again(folder, document)
    assert_refused(folder, WEIGHTS, MODEL)


HEADERS = {
    "length huge": lambda raw: struct.pack("<Q", 2**63) + raw[8:],
    "length beyond the file": lambda raw: struct.pack("<Q", len(raw)) + raw[8:],
    "length 0": lambda raw: struct.pack("<Q", 0) + raw[8:],
    "length short": lambda raw: struct.pack("<Q", 20) + raw[8:],
    "no JSON": with_header(lambda text: b"x" * len(text)),
    "invalid utf-8": with_header(lambda text: b"\xff" + text[1:]),
    "deep nesting": with_header(lambda text: b'{"a":' * 5000),
    "empty": with_header(lambda text: b"{}"),
    "offsets overlap": with_header(lambda text: text.replace(b"[136,", b"[128,", 1)),
    "offsets negative": with_header(lambda text: text.replace(b"[0,", b"[-8,", 1)),
    "shape overflows": with_header(lambda text: text.replace(b"[3,4]", b"[9223372036854775807,9]")),
    "dtype unknown": with_header(lambda text: text.replace(b"F64", b"X64", 1)),
    "dtype of 8 bits": with_header(
        lambda text: text.replace(b'"I64","shape":[3]', b'"U8","shape":[24]')
    ),
    "tensor renamed": with_header(lambda text: text.replace(b"prototypes", b"prototypez")),
    "shape turned": with_header(lambda text: text.replace(b"[3,4]", b"[4,3]", 1)),
    "tensors exchanged": with_header(
        lambda text: text.replace(b"class_means", b"x").replace(b"prior", b"class_means")
    ),
    "data cut": lambda raw: raw[:-8],
    "data added": lambda raw: raw + bytes(8),
    "emptied": lambda raw: b"",
    "8 bytes": lambda raw: raw[:8],
}


@pytest.mark.parametrize("damage", HEADERS.values(), ids=HEADERS)
def test_header_of_weights_that_are_signed_again(folder, damage):
    path = folder / WEIGHTS
    before = path.read_bytes()
    raw = damage(before)
    assert raw != before
    path.write_bytes(raw)
    document = json.loads((folder / MODEL).read_bytes())
    document["weights"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    sign_again(folder, document)
    assert_refused(folder, WEIGHTS)


# Anything, anywhere.

ANYWHERE = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def restored(whole, folder):
    for name in (MODEL, WEIGHTS):
        shutil.copy(whole / name, folder / name)
    return folder


@ANYWHERE
@given(name=st.sampled_from([MODEL, WEIGHTS]), place=st.floats(0, 1), change=st.integers(1, 255))
def test_any_byte(whole, folder, name, place, change):
    path = restored(whole, folder) / name
    raw = bytearray(path.read_bytes())
    raw[min(int(place * len(raw)), len(raw) - 1)] ^= change
    path.write_bytes(raw)
    assert_refused(folder, name)


@ANYWHERE
@given(name=st.sampled_from([MODEL, WEIGHTS]), place=st.floats(0, 1, exclude_max=True))
def test_any_length(whole, folder, name, place):
    path = restored(whole, folder) / name
    raw = path.read_bytes()
    path.write_bytes(raw[: int(place * len(raw))])
    assert_refused(folder, name)


def places_in(value, path=()):
    """All places in a JSON value that hold something."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, (dict, list)):
            yield from places_in(child, (*path, key))


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**30, 10**400]),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["<i8", "|O", "<U3", "class", "prior", "auto", "../x", "F32"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@ANYWHERE
@given(data=st.data(), value=json_values)
def test_any_value_is_taken_or_refused(whole, folder, data, value):
    document = copy.deepcopy(json.loads((whole / MODEL).read_bytes()))
    place = data.draw(st.sampled_from(list(places_in(document))))
    target = document
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    sign_again(restored(whole, folder), document)
    try:
        loaded = PrototypeClassifier.load(folder)
    except ModelFileError:
        return
    # Nothing that is taken may break what comes after.
    answers = loaded.predict_proba(np.ones((2, 4)))
    assert answers.shape == (2, 3)
    loaded.save(folder, overwrite=True)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("axes", np.zeros((7, 9), np.float32)),
        ("axes", np.full((2, 2), np.nan, np.float32)),
        ("landmarks", np.zeros((3, 2), np.float32)),
        ("landmarks", np.float32(1)),
        ("local_coef", np.full((2, 120), np.inf, np.float32)),
    ],
)
def test_what_corrections_have_no_use_for(name, array):
    x, y = make_moons(120, noise=0.15, random_state=0)
    fitted = PrototypeClassifier().fit(x.astype(np.float32), y)
    assert fitted.landmarks_.shape == (120, 2)
    known, arrays = _persistence.describe(fitted, None, None)
    with pytest.raises(FlawError, match=r"axes|landmarks|local_coef"):
        _persistence.restore(PrototypeClassifier, known, {**arrays, name: array}, "cpu")
