"""List files and official JSON: good ones, odd ones and bad ones."""

import json
import os
import shutil

import numpy as np
import pytest

from protail.data.images import DataSetError, load_dataset, read_annotations, read_list
from reference.image_data import write_class_folders, write_picture
from reference.real_data import shared

PREFIX = {"imagenet-lt": "ImageNet_LT", "places-lt": "Places_LT"}


def message(function, *arguments, **options):
    with pytest.raises(DataSetError) as caught:
        function(*arguments, **options)
    return str(caught.value)


@pytest.fixture(params=sorted(PREFIX))
def listed(request, tmp_path):
    """Images of three classes, one of them without training images, and their lists."""
    images, lists = tmp_path / "images", tmp_path / "lists"
    lists.mkdir()
    for part, counts in {
        "train": {"ant": 3, "cat": 1},
        "val": {"ant": 1, "bee": 1},
        "test": {"ant": 1, "bee": 1, "cat": 1},
    }.items():
        write_class_folders(images / part, counts)
        lines = [
            f"{part}/{name}/{i}.jpg {['ant', 'bee', 'cat'].index(name)}"
            for name, count in counts.items()
            for i in range(count)
        ]
        (lists / f"{PREFIX[request.param]}_{part}.txt").write_text("\n".join(lines) + "\n")
    return request.param, images, lists


def test_lists(listed):
    name, images, lists = listed
    data = load_dataset(name, root=images, lists=lists)
    n_classes = {"imagenet-lt": 1000, "places-lt": 365}[name]
    assert len(data.train.classes) == n_classes
    assert data.train.classes[:3] == ("ant", "1", "cat")
    assert data.train.labels.tolist() == [0, 0, 0, 2]
    assert (len(data.validation), len(data.test)) == (2, 3)
    assert data.test.paths[1] == images / "test/bee/0.jpg"
    assert data.test.image(1).size == (12, 9)
    assert data.description == {"empty_classes": n_classes - 2, "images_skipped": 0}
    json.dumps(data.description)


def test_missing_lists_are_all_named(listed, tmp_path):
    name, images, _ = listed
    said = message(load_dataset, name, root=images, lists=tmp_path)
    for part in ("train", "val", "test"):
        assert f"{PREFIX[name]}_{part}.txt" in said
    assert "--lists" in said
    assert str(tmp_path) in said


def test_missing_images_are_counted_and_three_named(listed):
    name, images, lists = listed
    shutil.rmtree(images / "train")
    said = message(load_dataset, name, root=images, lists=lists)
    assert "4 of 4 image files" in said
    assert str(images / "train/ant/2.jpg") in said
    assert "train/cat" not in said
    assert "and 1 more" in said
    counted = load_dataset(name, root=images, lists=lists, check_files=False)
    assert counted.train.profile.counts[:3].tolist() == [3, 0, 1]


def test_bad_images_are_skipped_and_counted_or_named(listed):
    name, images, lists = listed
    bad = images / "train/ant/1.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    data = load_dataset(name, root=images, lists=lists, on_bad_image="skip")
    assert data.train.files == ("train/ant/0.jpg", "train/ant/2.jpg", "train/cat/0.jpg")
    assert data.train.labels.tolist() == [0, 0, 2]
    assert data.description["images_skipped"] == 1
    data = load_dataset(name, root=images, lists=lists)
    assert str(bad) in message(data.train.image, 1)
    with pytest.raises(ValueError, match="Did you mean 'skip'"):
        load_dataset(name, root=images, lists=lists, on_bad_image="skipp")


def test_no_readable_image_at_all(listed):
    name, images, lists = listed
    for file in (images / "val").rglob("*.jpg"):
        file.write_bytes(b"no image")
    said = message(load_dataset, name, root=images, lists=lists, on_bad_image="skip")
    assert "no validation image of ant, 1 can be read" in said


def write(tmp_path, content):
    file = tmp_path / "list.txt"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbftrain/a b/1.jpg 0\r\ntrain/c/2.jpg 3\r\n",
        b"train\\a b\\1.jpg 0\ntrain\\c\\2.jpg 3",
        b"\n  train/a b/1.jpg\t0  \n\n\ntrain/c/2.jpg   003\n",
    ],
)
def test_marks_line_ends_backslashes_and_spaces(tmp_path, content):
    files, labels = read_list(write(tmp_path, content), 4)
    assert files == ("train/a b/1.jpg", "train/c/2.jpg")
    assert labels.tolist() == [0, 3]
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a.jpg 0\nb.jpg -1\n", ["line 2", "'-1'", "from 0 to 3"]),
        (b"a.jpg cat\n", ["line 1", "'cat'"]),
        (b"a.jpg 1.0\n", ["'1.0'"]),
        (b"a.jpg 4\n", ["'4'", "from 0 to 3"]),
        (b"a.jpg " + b"9" * 5000, ["line 1", "from 0 to 3"]),
        (b"a.jpg\n", ["line 1", "one word"]),
        (b"a.jpg,2\n", ["one word", "a space"]),
        ("a.jpg \u0663\n".encode(), ["from 0 to 3"]),
        (b"", ["empty"]),
        (b"\n\n", ["empty"]),
        (b"caf\xe9.jpg 0\n", ["UTF-8"]),
    ],
)
def test_bad_lines_are_named(tmp_path, content, words):
    said = message(read_list, write(tmp_path, content), 4)
    assert "list.txt" in said
    assert all(word in said for word in words)


@pytest.mark.skipif(os.name == "nt", reason="there it is a good path")
def test_a_path_on_a_windows_drive_is_explained(tmp_path):
    said = message(read_list, write(tmp_path, rb"C:\photos\a.jpg 0"), 4)
    assert "Windows drive" in said
    assert "line 1" in said


@pytest.fixture
def species(tmp_path):
    """Official files of two images to train on and one to test on."""

    def annotations(file, entries, **changes):
        content = {
            "images": [{"id": key, "file_name": name} for key, name, _ in entries],
            "annotations": [{"image_id": key, "category_id": code} for key, _, code in entries],
        } | changes
        # Annotations need not come in the order of the images.
        content["annotations"] = content["annotations"][::-1]
        (tmp_path / file).write_text(json.dumps(content))

    train = [(10, "train_val2018/Aves/7/a.jpg", 7), (3, "train_val2018/Fungi/9/b.jpg", 9)]
    test = [(5, "train_val2018/Aves/7/c.jpg", 7)]
    for _, name, _ in (*train, *test):
        write_picture(tmp_path / name)
    annotations("train2018.json", train)
    annotations("val2018.json", test)
    return tmp_path, annotations


def test_official_json(species):
    data = load_dataset("inaturalist18", root=species[0])
    assert data.train.labels.tolist() == [7, 9]
    assert data.train.files[0] == "train_val2018/Aves/7/a.jpg"
    assert data.train.classes[7] == "Aves/7"
    assert len(data.train.classes) == 8142
    assert data.test.labels.tolist() == [7]
    assert data.validation is None


def test_lists_in_place_of_json(species):
    root = species[0]
    by_json = load_dataset("inaturalist18", root=root)
    for part, images in (("train", by_json.train), ("val", by_json.test)):
        lines = [f"{f} {c}\n" for f, c in zip(images.files, images.labels, strict=True)]
        (root / f"iNaturalist18_{part}.txt").write_text("".join(lines))
    for file in root.glob("*.json"):
        file.unlink()
    by_list = load_dataset("inaturalist18", root=root)
    assert by_list.train.fingerprint() == by_json.train.fingerprint()
    assert by_list.test.fingerprint() == by_json.test.fingerprint()


def test_the_needed_files_are_named(tmp_path):
    said = message(load_dataset, "inaturalist18", root=tmp_path)
    for file in ("train2018.json", "val2018.json", "iNaturalist18_train.txt"):
        assert file in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"annotations": []}, "2 images are not both"),
        ({"annotations": [{"image_id": 10}]}, "category_id"),
        ({"annotations": [{"image_id": 10, "category_id": -1}]}, "category -1"),
        ({"annotations": [{"image_id": 10, "category_id": "7"}]}, "category '7'"),
        ({"images": "none"}, "cannot be read"),
        (
            {"annotations": [{"image_id": 10, "category_id": c} for c in (1, 2)]},
            "two categories",
        ),
    ],
)
def test_bad_annotations(species, changes, words):
    root, annotations = species
    annotations("train2018.json", [(10, "a.jpg", 7), (3, "b.jpg", 9)], **changes)
    said = message(read_annotations, root / "train2018.json")
    assert words in said
    assert "train2018.json" in said


def test_json_cut_short(species):
    file = species[0] / "val2018.json"
    file.write_bytes(file.read_bytes()[:40])
    assert "cut short" in message(load_dataset, "inaturalist18", root=species[0])


@pytest.mark.parametrize(
    ("name", "n_images", "n_classes"),
    [("ImageNet_LT_val.txt", 20_000, 1000), ("iNaturalist18_val.txt", 3 * 8142, 8142)],
)
def test_a_real_list(name, n_images, n_classes):
    assert len(read_list(shared(f"data/splits/{name}"), n_classes)[0]) == n_images


def test_real_lists_of_places():
    splits = shared("data/splits/Places_LT_train.txt").parent
    places = load_dataset("places-lt", root=splits, lists=splits, check_files=False)
    assert [len(part) for part in places.parts.values()] == [62_500, 7_300, 36_500]
    assert (places.train.profile.n_classes, places.train.profile.imbalance) == (365, 996)
    assert places.train.classes[0] == "airfield"


def test_skipping_may_not_empty_a_class_of_lists(listed):
    name, images, lists = listed
    (images / "train/cat/0.jpg").write_bytes(b"no image")
    said = message(load_dataset, name, root=images, lists=lists, on_bad_image="skip")
    assert "no train image of cat can be read" in said
