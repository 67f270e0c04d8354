"""Data sets of features: what they check, and that files give back what was written."""

import hashlib
import io
import json
import math
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from protail._files import OutputError
from protail.data import make_sampler
from protail.data.images import (
    BUNDLED_FEATURES,
    DataSetError,
    FeatureData,
    FeatureSet,
    load_dataset,
    long_tailed_counts,
    require_images,
    save_features,
)
from protail.data.images.features import bundled_features
from protail.models.backbones import bundled_weights
from protail.recipes import load_recipe
from reference.feature_data import feature_data, real_features, same, write_npz
from reference.image_data import resident


def message(path):
    with pytest.raises(DataSetError) as caught:
        load_dataset(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "; expected" in said
    return said


def test_profile_and_parts():
    data = feature_data((30, 0, 6))
    assert data.train.profile.counts.tolist() == [30, 0, 6]
    assert list(data.parts) == ["train", "stream", "test"]
    assert (
        repr(data) == "FeatureData(clusters: 36 train, 90 stream, 60 test, 3 classes, 8 features)"
    )
    assert list(feature_data(whole=False).parts) == ["train", "test"]


def test_a_class_that_only_the_list_of_classes_knows():
    rows = FeatureSet(np.eye(3), [0, 1, 1])
    data = FeatureData("insects", ("ant", "bee", "cat"), rows, rows)
    assert data.train.profile.counts.tolist() == data.test.profile.counts.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        (np.eye(3), [0, 1], "rows have shape (3, 3); expected (2, n_features)"),
        (np.ones(3), [0, 1, 1], "rows have shape (3,)"),
        (np.ones((3, 0)), [0, 1, 1], "rows have shape (3, 0)"),
        ([[1.0], [np.nan], [np.inf]], [0, 1, 1], "2 rows have numbers that are not finite"),
        ([[1.0], [1e200], [1.0]], [0, 1, 1], "the first is row 1"),
        (np.eye(2), [0, -1], "labels run from -1 to 0"),
        (np.eye(2), [], "at least one row"),
    ],
)
def test_bad_rows(rows, labels, words):
    with pytest.raises(ValueError, match="expected") as caught:
        FeatureSet(rows, labels)
    assert words in str(caught.value)


def test_parts_that_do_not_go_together():
    train, wide = FeatureSet(np.eye(3), [0, 1, 1]), FeatureSet(np.ones((1, 4)), [0])
    for arguments, words in (
        ((("ant",), train, train), "train: labels run from 0 to 1"),
        ((("ant", "bee"), train, wide), "test has 4 features and train 3"),
        ((("ant", "bee"), train, train, None, wide), "stream has 4 features and train 3"),
        ((("ant", "bee"), train, train, np.eye(3)[:2]), "flipped: rows have shape (2, 3)"),
        ((("ant", "bee"), train, train, np.ones((3, 4))), "flipped: rows have 4 features"),
    ):
        with pytest.raises(DataSetError, match="expected") as caught:
            FeatureData("insects", *arguments)
        assert words in str(caught.value)


def test_fingerprints_tell_everything_apart():
    data = feature_data()
    rows = data.train.rows.copy()
    rows[3, 2] += 1
    others = [
        data,
        feature_data(whole=False),
        FeatureData("x", data.classes, FeatureSet(rows, data.train.labels), data.test),
        FeatureData("x", data.classes, data.train, data.test, data.test.rows),
        FeatureData("x", data.classes, data.train, data.test, None, data.train),
        FeatureData("x", data.classes, data.test, data.train),
    ]
    assert len({other.fingerprint() for other in others}) == len(others)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("short", [True, False])
def test_npz(tmp_path, whole, short):
    data = feature_data(whole=whole)
    file = write_npz(tmp_path / "rows.npz", data, train_index=np.arange(5), odd=np.array("text"))
    read = load_dataset(file) if short else load_dataset("features", root=file)
    same(read, data)
    assert (read.name, read.description) == ("rows", {})
    assert read.classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_npz_of_other_numbers(tmp_path, dtype):
    data = feature_data(whole=False)
    rows = data.train.rows.astype(dtype)
    read = load_dataset(write_npz(tmp_path / "a.npz", data, x_train=rows))
    np.testing.assert_array_equal(read.train.rows, rows.astype(np.float32))


@pytest.mark.parametrize("whole", [True, False])
def test_safetensors_are_exact_in_float32(tmp_path, whole):
    data, file = feature_data(whole=whole), tmp_path / "a.safetensors"
    save_features(file, data, "float32")
    read = load_dataset(str(file))
    same(read, data)
    kept = (read.name, read.classes, read.description)
    assert kept == (data.name, data.classes, data.description)
    again = tmp_path / "b.safetensors"
    save_features(again, read, "float32")
    assert again.read_bytes() == file.read_bytes()


def test_float16_rounds_as_numpy_does(tmp_path):
    data = feature_data()
    save_features(tmp_path / "a.safetensors", data, "float16")
    read = load_dataset(tmp_path / "a.safetensors")
    for part in data.parts:
        rounded = data.parts[part].rows.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(read.parts[part].rows, rounded)
    large = FeatureSet(np.full((1, 2), 1e5), [0])
    with pytest.raises(ValueError, match=r"x_train .* float16 cannot hold.*float32"):
        save_features(tmp_path / "b.safetensors", FeatureData("b", ("a",), large, large))
    assert not (tmp_path / "b.safetensors").exists()


tables = hnp.arrays(
    np.float32, (4, 3), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
)


@settings(max_examples=50)
@given(tables, tables, tables, tables)
def test_bytes_are_off_by_half_a_step(tmp_path_factory, train, test, flipped, stream):
    labels = np.array([0, 1, 1, 0])
    sets = [FeatureSet(rows, labels) for rows in (train, test, stream)]
    data = FeatureData("a", ("x", "y"), sets[0], sets[1], flipped, sets[2])
    file = tmp_path_factory.mktemp("bytes") / "a.safetensors"
    save_features(file, data, "uint8")
    read = load_dataset(file)
    given_rows = np.stack([train, test, flipped, stream]).astype(np.float64)
    read_rows = [read.train.rows, read.test.rows, read.flipped, read.stream.rows]
    for channel in range(3):
        values = given_rows[..., channel]
        step = (values.max() - values.min()) / 255
        rounding = 4 * np.finfo(np.float32).eps * np.abs(values).max()
        errors = [abs(r[:, channel] - v) for r, v in zip(read_rows, values, strict=True)]
        assert np.max(errors) <= step / 2 + rounding + 1e-37


def test_a_bundle_of_cifar_is_small(tmp_path):
    rng = np.random.default_rng(0)

    def part(n):
        return FeatureSet(rng.normal(size=(n, 64)), rng.integers(100, size=n))

    classes = [f"class {code}" for code in range(100)]
    test = part(10_000)
    flipped = rng.normal(size=(10_000, 64))
    data = FeatureData("c", classes, part(10_847), test, flipped, part(50_000))
    save_features(tmp_path / "c.safetensors", data, "uint8")
    assert (tmp_path / "c.safetensors").stat().st_size < 6_000_000


def test_what_cannot_be_written(tmp_path):
    data = feature_data()
    with pytest.raises(ValueError, match="dtype='int4' is unknown"):
        save_features(tmp_path / "a.safetensors", data, "int4")
    with pytest.raises(ValueError, match=r"a\.npz.*\.safetensors"):
        save_features(tmp_path / "a.npz", data)
    save_features(tmp_path / "a.safetensors", data)
    with pytest.raises(OutputError, match="already there"):
        save_features(tmp_path / "a.safetensors", data)
    save_features(tmp_path / "a.safetensors", data, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": np.arange(3)}, "test: rows have shape (100, 8); expected (3, n_features)"),
        ({"y_train": np.full(221, -1)}, "train: labels run from -1 to -1"),
        ({"y_train": np.full(221, 0.5)}, "train: labels has dtype float64"),
        ({"y_train": np.array(["ant"] * 221)}, "train: labels has dtype <U3"),
        ({"y_test": np.full(100, 20240101)}, "labels run up to 20240101"),
        ({"x_train": np.ones((221, 3))}, "has 8 features and train 3"),
        (
            {"x_train": np.ones((221, 2, 2))},
            "train: rows have shape (221, 2, 2); expected (221, n_features)",
        ),
        ({"x_train": np.full((221, 8), np.nan)}, "train: 221 rows have numbers that are not"),
        ({"x_train": np.full((221, 8), None)}, "Python objects are never unpickled"),
        ({"y_train": np.full(221, None)}, "Python objects are never unpickled"),
        ({"x_test_mirror": np.ones((7, 8))}, "flipped: rows have shape (7, 8)"),
        ({"x_stream": np.ones((5, 8))}, "it has no array y_stream (found: "),
    ],
)
def test_bad_npz(tmp_path, changes, words):
    write_npz(tmp_path / "a.npz", feature_data(whole=False), **changes)
    assert words in message(tmp_path / "a.npz")


def test_missing_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y_test=[0, 1])
    said = message(tmp_path / "a.npz")
    assert "no array x_train or y_train or x_test (found: X, y_test)" in said
    assert "x_test_mirror" in said


def test_no_such_file(tmp_path):
    for path in ("a.npz", "a.safetensors"):
        assert "it is no file of features" in message(tmp_path / path)
    with pytest.raises(DataSetError, match=r"it is no file of features.*--data-root"):
        load_dataset("features")
    with pytest.raises(ValueError, match="'features' takes no option 'imbalance'"):
        load_dataset(write_npz(tmp_path / "a.npz", feature_data()), imbalance=10)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_damage(tmp_path, suffix):
    whole, file = tmp_path / f"whole{suffix}", tmp_path / f"a{suffix}"
    write_npz(whole, feature_data()) if suffix == ".npz" else save_features(whole, feature_data())
    content = whole.read_bytes()
    for cut in (0, 1, 7, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:cut])
        message(file)
    file.write_bytes(b"nothing of the kind" * 20)
    assert "damaged" in message(file)


def test_a_flipped_bit_is_found(tmp_path):
    file, labels = tmp_path / "a.npz", np.arange(3)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.savez(file, x_train=rows, y_train=labels, x_test=rows + 7, y_test=labels)
    assert load_dataset(file).test.rows.tolist() == (rows + 7).tolist()
    content = file.read_bytes()
    place = content.index((rows + 7).tobytes()) + rows.nbytes - 1
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert "x_test.npy" in message(file)


@pytest.mark.parametrize("shape", [(10**15, 8), (10**30, 8), (3, -8)])
def test_a_head_that_promises_what_is_not_there(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            buffer = io.BytesIO()
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            npy_format.write_array_header_1_0(buffer, head)
            file.writestr(f"{name}.npy", buffer.getvalue())
    assert "it cannot be read" in message(tmp_path / "a.npz")


def rewrite(path, change_head=lambda head: None, change_arrays=lambda arrays: None):
    with safe_open(path, framework="numpy") as file:
        head = json.loads(file.metadata()["protail"])
    arrays = load_file(path)
    change_head(head)
    change_arrays(arrays)
    save_file(arrays, path, {"protail": json.dumps(head)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2; expected 'protail-features', version 1 or older."),
        (
            {"format": "other"},
            "it is 'other', version 1; expected 'protail-features'",
        ),
        ({"classes": 5}, "it cannot be read (classes is 5)"),
        ({"description": None}, "description is None"),
        ({"name": None}, "name is None"),
        ({"version": None}, "save_features wrote"),
        ({"classes": ["a", "b"]}, "train: labels run from 0 to 4"),
    ],
)
def test_bad_heads(tmp_path, changes, words):
    file = tmp_path / "a.safetensors"
    save_features(file, feature_data())
    rewrite(file, lambda head: head.update(changes))
    assert words in message(file)


def test_safetensors_of_somebody_else(tmp_path):
    save_file({"x_train": np.eye(2)}, tmp_path / "a.safetensors")
    assert "save_features" in message(tmp_path / "a.safetensors")


def test_bad_scales(tmp_path):
    file = tmp_path / "a.safetensors"
    for change, words in (
        (lambda arrays: arrays.pop("step"), "array step is float32 of shape (0,)"),
        (lambda arrays: arrays.update(step=np.ones(3, np.float32)), "array step is float32 of"),
        (lambda arrays: arrays.update(minimum=np.full(8, np.nan, np.float32)), "array minimum is"),
        (lambda arrays: arrays.update(x_test=np.ones((100, 3), np.uint8)), "test has 3 features"),
    ):
        save_features(file, feature_data(), "uint8", overwrite=True)
        rewrite(file, change_arrays=change)
        assert words in message(file)


def test_require_images():
    with pytest.raises(DataSetError, match="clusters holds features and no images; expected"):
        require_images(feature_data(), "look at")
    images = resident()
    assert require_images(images, "look at") is images


def test_real_features(tmp_path):
    data = load_dataset(real_features("resnet32"))
    assert repr(data) == (
        "FeatureData(cifar100-lt-100_resnet32: 10847 train, 50000 stream, 10000 test, "
        "100 classes, 64 features)"
    )
    groups = {name: len(group) for name, group in data.train.profile.groups().items()}
    assert groups == {"many": 35, "medium": 35, "few": 30}
    file = tmp_path / "bundle.safetensors"
    save_features(file, data, "uint8")
    assert file.stat().st_size < 8_000_000
    read = load_dataset(file)
    scale = np.abs(data.test.rows).max()
    assert math.isclose(np.abs(read.test.rows).max(), scale, rel_tol=0.01)


@pytest.fixture(scope="module")
def bundle():
    return load_dataset(BUNDLED_FEATURES)


def test_they_are_those_of_cifar_100_lt(bundle):
    assert (bundle.name, bundle.n_features, len(bundle.classes)) == (BUNDLED_FEATURES, 64, 100)
    assert bundle.train.profile.counts.tolist() == long_tailed_counts(500, 100, 100).tolist()
    assert bundle.test.profile.counts.tolist() == [100] * 100
    assert bundle.flipped.shape == bundle.test.rows.shape
    assert (bundle.classes[0], bundle.classes[99]) == ("apple", "worm")


def test_the_stream_is_the_one_epoch_that_stage_2_sees(bundle):
    settings = load_recipe("pc").classifier
    sampler = make_sampler(
        settings.sampler, bundle.train.labels, seed=0, **settings.sampler_options
    )
    drawn = bundle.train.labels[sampler.epoch_indices(0)]
    np.testing.assert_array_equal(bundle.stream.labels, drawn)


def test_it_says_where_it_comes_from(bundle):
    weights = hashlib.sha256(bundled_weights().read_bytes()).hexdigest()
    assert bundle.description["weights"] == weights
    assert bundle.description["images"]["name"] == "cifar100-lt"
    assert (bundle.description["recipe"], bundle.description["seed"]) == ("wd-resnet32/pc", 0)


def test_it_is_small_enough_to_come_with_every_install():
    assert bundled_features().stat().st_size < 8_000_000


def test_it_is_nowhere_else():
    with pytest.raises(DataSetError, match=r"comes with the package.*--data-root"):
        load_dataset(BUNDLED_FEATURES, root="elsewhere")
