"""Exported subsets: byte for byte what was saved, cut as the original would be, or refused."""

import json
import os
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protail._files import OutputError
from protail.data.images import (
    DataSet,
    DataSetError,
    ImageSet,
    cifar,
    load_dataset,
    load_subset,
    packed,
    save_subset,
)
from reference.image_data import resident, write_cifar
from reference.real_data import real_cifar


def same(first, second):
    assert first.name == second.name
    assert first.description == second.description
    assert list(first.parts) == list(second.parts)
    for one, other in zip(first.parts.values(), second.parts.values(), strict=True):
        assert one.classes == other.classes
        assert (one.labels == other.labels).all()
        assert (one.pixels == other.pixels).all()
        assert one.pixels.dtype == other.pixels.dtype
        assert (one.origin is None) == (other.origin is None)
        assert one.origin is None or (one.origin == other.origin).all()
    return True


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path, "cifar10-lt"))
    return tmp_path


@pytest.fixture
def draw(root):
    file = root / "out" / "small.protail-draw.zip"
    save_subset(load_dataset("cifar10-lt", root=root, imbalance=2), file)
    return file


def test_a_subset_comes_back_as_it_was(root, draw):
    same(load_dataset(draw), load_dataset("cifar10-lt", root=root, imbalance=2))


@pytest.mark.parametrize("imbalance", [2, 2.0, 2.5, 7, 20])
def test_a_higher_imbalance_is_what_the_original_gives(root, draw, imbalance):
    original = load_dataset("cifar10-lt", root=root, imbalance=imbalance)
    same(load_dataset(str(draw), imbalance=imbalance), original)


def test_another_kind_where_enough_is_stored(root):
    file = root / "balanced.zip"
    save_subset(load_dataset("cifar10-lt", root=root, imbalance=1, seed=4), file)
    original = load_dataset("cifar10-lt", root=root, imbalance=10, kind="step", seed=4)
    same(load_subset(file, imbalance=10, kind="step", seed=4), original)


def test_file_order_travels_too(root):
    file = root / "first.zip"
    save_subset(load_dataset("cifar10-lt", root=root, imbalance=2, selection="first"), file)
    original = load_dataset("cifar10-lt", root=root, imbalance=5, selection="first")
    same(load_dataset(file, imbalance=5), original)


@pytest.mark.parametrize("imbalance", [2, 5])
def test_the_authors_two_subsets_travel(root, imbalance):
    file = root / "author.zip"
    save_subset(load_dataset("cifar10-lt", root=root, imbalance=2, selection="author"), file)
    original = load_dataset("cifar10-lt", root=root, imbalance=imbalance, selection="author")
    assert original.classifier_train.fingerprint() != original.train.fingerprint()
    same(load_dataset(file, imbalance=imbalance, selection="author"), original)
    for one in ("first", "shuffled"):
        alone = load_dataset("cifar10-lt", root=root, imbalance=imbalance, selection=one)
        same(load_dataset(file, imbalance=imbalance, selection=one), alone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"imbalance": 1}, "Ask for a higher imbalance"),
        ({"imbalance": 4, "kind": "step"}, "too few images"),
        ({"selection": "first"}, "does not give selection='first'"),
        ({"seed": 1}, "seed=0, n_max=20, which does not give seed=1"),
        ({"imbalance": 0.5}, "imbalance=0.5"),
        ({"lists": "x"}, "takes no option 'lists'"),
    ],
)
def test_what_a_subset_cannot_give(draw, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        load_dataset(draw, **options)


@settings(max_examples=15)
@given(st.integers(1, 130), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_any_number_and_size_of_images(tmp_path_factory, n, height, width, seed):
    file = tmp_path_factory.mktemp("draw") / "any.zip"
    images = resident(1, n, (height, width), seed)
    validation = resident(1, 2, (3, 5), seed)
    stored = DataSet("noise", images, images.subset([0]), validation, {"a": [1, None, "ü"]})
    save_subset(stored, file)
    same(load_subset(file), stored)


def test_tall_images_stay_below_what_webp_can_hold(tmp_path):
    assert packed._images_a_sheet(2000, 4) == 8
    images = resident(1, 9, (2000, 4))
    save_subset(DataSet("tall", images, images), tmp_path / "tall.zip")
    assert (load_subset(tmp_path / "tall.zip").train.pixels == images.pixels).all()


def test_the_same_subset_is_the_same_file(root, draw):
    again = root / "again.zip"
    save_subset(load_subset(draw), again)
    assert again.read_bytes() == draw.read_bytes()


def test_a_set_without_a_tail_has_no_imbalance(tmp_path):
    images = resident()
    save_subset(DataSet("plain", images, images), tmp_path / "plain.zip")
    with pytest.raises(DataSetError, match="of no imbalance, which does not give imbalance=2"):
        load_subset(tmp_path / "plain.zip", imbalance=2)


def test_images_in_files_are_refused(tmp_path):
    images = ImageSet([0], ("ant",), files=("a.jpg",))
    with pytest.raises(DataSetError, match="images in files"):
        save_subset(DataSet("photos", images, images), tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_nothing_is_replaced_unasked(draw):
    before = draw.read_bytes()
    with pytest.raises(OutputError, match="already there"):
        save_subset(load_subset(draw), draw)
    assert draw.read_bytes() == before
    save_subset(load_subset(draw), draw, overwrite=True)
    assert os.listdir(draw.parent) == [draw.name]


@pytest.mark.parametrize("keep", [0, 0.3, 0.9, 0.9999])
def test_a_file_cut_short(draw, keep):
    content = draw.read_bytes()
    draw.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataSetError, match=r"small\.protail-draw\.zip: it cannot be read"):
        load_dataset(draw)


@settings(max_examples=60)
@given(st.integers(0, 2**30), st.integers(1, 255))
def test_damage_is_never_silent(tmp_path_factory, position, change):
    folder = tmp_path_factory.mktemp("damage")
    images = resident()
    stored = DataSet("noise", images, images, description={"a": 1})
    save_subset(stored, folder / "x.zip")
    content = bytearray((folder / "x.zip").read_bytes())
    content[position % len(content)] ^= change
    (folder / "x.zip").write_bytes(content)
    try:
        came = load_subset(folder / "x.zip")
    except DataSetError:
        return
    # Some bytes of a zip file, such as dates, say nothing about what is in it.
    same(came, stored)


def rewritten(draw, entry, change):
    with zipfile.ZipFile(draw) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    if change is None:
        del contents[entry]
    else:
        contents[entry] = change(contents[entry])
    with zipfile.ZipFile(draw, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)


def head_with(**changes):
    return lambda content: json.dumps(json.loads(content) | changes).encode()


def swap_pixels(content):
    """A good sheet, with other images in it."""
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    with Image.open(BytesIO(content)) as sheet:
        sheet.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(buffer, "webp", lossless=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("entry", "change", "words"),
    [
        ("draw.json", None, "draw.json"),
        ("draw.json", head_with(version=2), "version 2"),
        ("draw.json", head_with(format="other"), "'other'"),
        ("draw.json", head_with(classes=["a"]), "cannot be read"),
        ("draw.json", head_with(parts={}), "cannot be read"),
        ("draw.json", lambda _: b"[]", "cannot be read"),
        ("train/labels.npy", None, "labels.npy"),
        ("train/00000.webp", None, "00000.webp"),
        ("train/00000.webp", swap_pixels, "checksum of train"),
        ("test/00000.webp", lambda content: content[:-40], "cannot be read"),
    ],
)
def test_tampered_files(draw, entry, change, words):
    rewritten(draw, entry, change)
    with pytest.raises(DataSetError) as caught:
        load_subset(draw)
    assert words in str(caught.value)


def test_arrays_of_objects_are_not_unpickled(draw, tmp_path):
    hostile = tmp_path / "hostile.npy"
    np.save(hostile, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    rewritten(draw, "train/labels.npy", lambda _: hostile.read_bytes())
    with pytest.raises(DataSetError, match="cannot be read"):
        load_subset(draw)


@pytest.mark.slow
def test_the_real_subset_is_small_and_nests(tmp_path):
    file = tmp_path / "cifar100.protail-draw.zip"
    stored = real_cifar("cifar100-lt", 10)
    save_subset(stored, file)
    assert file.stat().st_size < 50 * 2**20
    same(load_dataset(file), stored)
    for imbalance in (50, 100):
        original = real_cifar("cifar100-lt", imbalance)
        same(load_dataset(file, imbalance=imbalance), original)
