"""Image sets: parts of them, their fingerprints, and picture files of every kind."""

import re
import warnings

import numpy as np
import pytest
from PIL import Image

from protail.data.images import (
    DataSet,
    DataSetError,
    ImageSet,
    in_memory,
    read_image,
    unreadable,
)
from reference.image_data import resident, write_class_folders, write_picture


def in_files(tmp_path, n=4):
    write_class_folders(tmp_path, {"ant": n})
    files = tuple(f"ant/{i}.jpg" for i in range(n))
    return ImageSet(np.zeros(n, np.int64), ("ant", "bee"), files=files, folder=tmp_path)


def test_classes_without_images_are_in_the_profile():
    images = ImageSet([0, 2, 2], ("a", "b", "c", "d"), np.zeros((3, 3, 2, 2), np.uint8))
    assert images.profile.counts.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("index", [[3, 0, 3], np.array([3, 0, 3])])
def test_subset_keeps_order_and_origin(index):
    images = resident()
    images = ImageSet(images.labels, images.classes, images.pixels, origin=np.arange(12) * 10)
    part = images.subset(index)
    assert (part.pixels == images.pixels[[3, 0, 3]]).all()
    assert part.origin.tolist() == [30, 0, 30]
    assert part.classes == images.classes


def test_subset_by_mask_of_files(tmp_path):
    images = in_files(tmp_path)
    assert images.subset([False, True, False, True]).files == ("ant/1.jpg", "ant/3.jpg")
    assert images.subset([1]).paths == (tmp_path / "ant/1.jpg",)
    assert not images.is_resident


def test_image_gives_what_is_stored(tmp_path):
    images = resident(size=(5, 7))
    assert images.is_resident
    assert np.asarray(images.image(4)).tolist() == images.pixels[4].transpose(1, 2, 0).tolist()
    path = write_picture(tmp_path / "a.png", seed=4)
    files = ImageSet([0], ("ant",), files=("a.png",), folder=tmp_path)
    assert np.asarray(files.image(0)).tolist() == np.asarray(Image.open(path)).tolist()


@pytest.mark.parametrize("change", ["pixel", "label", "order"])
def test_fingerprint_sees_every_change(change):
    images = resident()
    pixels, labels = images.pixels.copy(), images.labels.copy()
    assert ImageSet(labels, images.classes, pixels).fingerprint() == images.fingerprint()
    if change == "pixel":
        pixels[7, 1, 2, 3] ^= 1
    elif change == "label":
        labels[0] = 1
    else:
        pixels = pixels[::-1]
    assert ImageSet(labels, images.classes, pixels).fingerprint() != images.fingerprint()


def test_fingerprint_of_files_sees_names_sizes_and_labels_but_not_the_root(tmp_path):
    first = in_files(tmp_path / "one")
    second = in_files(tmp_path / "two")
    assert first.fingerprint() == second.fingerprint()
    assert first.subset([1, 0, 2, 3]).fingerprint() != first.fingerprint()
    with (tmp_path / "two/ant/2.jpg").open("ab") as file:
        file.write(b"\0")
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": [0], "classes": ("a",)}, "either pixels or files"),
        ({"labels": [1], "classes": ("a",), "files": ("x",)}, "from 0 to 0"),
        ({"labels": [0], "classes": ("a",), "files": ("x", "y")}, "files has 2 entries"),
        ({"labels": [0], "classes": ("a",), "pixels": np.zeros((1, 3, 2, 2))}, "uint8"),
        ({"labels": [0], "classes": ("a",), "pixels": np.zeros((1, 2, 2, 3), np.uint8)}, "(n, 3"),
        ({"labels": [0], "classes": ("a",), "files": ("x",), "origin": [1, 2]}, "origin has 2"),
    ],
)
def test_bad_sets_are_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        ImageSet(**arguments)


def test_parts_must_have_the_same_classes():
    with pytest.raises(ValueError, match="classes of test differ"):
        DataSet("x", resident(3), resident(4))


def test_both_stages_must_have_as_many_images_of_each_class():
    images, test = resident(3), resident(3, 1)
    other = resident(3, seed=1)
    data = DataSet("x", images, test, classifier_train=other)
    assert data.parts == {"train": images, "classifier_train": other, "test": test}
    assert repr(data) == "DataSet(x: 12 train, 12 classifier_train, 3 test, 3 classes)"
    for wrong in (resident(3, 5), images.subset([0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 0]), test):
        with pytest.raises(ValueError, match="classifier_train has other numbers of images"):
            DataSet("x", images, test, classifier_train=wrong)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(tmp_path, mode):
    ending = "tif" if mode == "CMYK" else "png"
    path = write_picture(tmp_path / f"a.{ending}", mode=mode)
    image = read_image(path)
    assert image.mode == "RGB"
    with Image.open(path) as stored:
        assert np.asarray(image).tolist() == np.asarray(stored.convert("RGB")).tolist()


def test_sixteen_bits_are_scaled_not_cut(tmp_path):
    values = np.array([[0, 255, 256, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.asarray(read_image(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 0, 1, 255]


def test_a_palette_with_transparency_warns_nobody(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.info["transparency"] = b"\0\xff"
    image.save(tmp_path / "a.png", transparency=b"\0\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(tmp_path / "a.png").getpixel((0, 0)) == (200, 100, 50)


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "webp", "bmp", "tif"])
@pytest.mark.parametrize("keep", [0, 0.1, 0.6])
def test_truncated_files_of_every_format_are_found(tmp_path, ending, keep):
    path = write_picture(tmp_path / f"a.{ending}", size=(60, 60))
    fine = write_picture(tmp_path / f"b.{ending}", size=(60, 60))
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataSetError, match="on_bad_image='skip'"):
        read_image(path)
    assert unreadable([fine, path, fine, tmp_path / "lost.jpg"]) == [1, 3]


def test_small_photos_of_one_size_are_kept_in_memory(tmp_path):
    photos = in_files(tmp_path, 5)
    kept = in_memory(DataSet("ants", photos, photos.subset([4, 1]), description={"split": "own"}))
    assert kept.description == {"split": "own", "in_memory": True}
    assert kept.train.is_resident
    assert not kept.train.paths
    for i in range(5):
        assert (np.asarray(kept.train.image(i)) == np.asarray(photos.image(i))).all()
    assert (kept.test.pixels == kept.train.pixels[[4, 1]]).all()


@pytest.mark.parametrize("size", [(9, 12), (129, 9)])
def test_other_photos_stay_in_files(tmp_path, size):
    photos = in_files(tmp_path)
    write_picture(tmp_path / f"ant/{0 if max(size) > 128 else 2}.jpg", size=size)
    assert in_memory(DataSet("ants", photos, photos)) is None


def test_a_photo_that_cannot_be_read_is_named(tmp_path):
    photos = in_files(tmp_path)
    (tmp_path / "ant/3.jpg").write_bytes(b"no picture")
    with pytest.raises(DataSetError, match=r"ant/3.jpg: it cannot be read"):
        in_memory(DataSet("ants", photos, photos))
