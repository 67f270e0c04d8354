"""Photos with their labels, in class folders and lists; formats that are opened and those not."""

import numpy as np
import pytest
from PIL import Image

from protail.data.images import (
    DataSetError,
    content_digests,
    find_photos,
    is_photo_list,
    photo_parts,
    read_image,
)
from reference.made_photos import pattern, write_bomb


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_class_folders_at_any_depth(tmp_path):
    touch(tmp_path, "bee/old/2.PNG", "bee/1.jpg", "ant/1.webp", "ant/Thumbs.db", "ant/a.txt")
    touch(tmp_path, ".hidden/1.jpg", "__MACOSX/1.jpg", "bee/.1.jpg", "notes.txt", "1.jpg")
    (tmp_path / "cow").mkdir()
    found = find_photos(tmp_path)
    assert found.images.classes == ("ant", "bee")
    assert found.names.tolist() == ["ant", "bee", "bee"]
    assert found.images.files == ("ant/1.webp", "bee/1.jpg", "bee/old/2.PNG")
    assert found.empty == ("cow",)
    assert {each.name for each in found.ignored} == {"a.txt", "notes.txt", "1.jpg"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "path,label\nx/1.jpg,ant\n2.png,bee\n"),
        ("b.csv", "\ufeffid,Species,file\n7z,ant,x/1.jpg\n8z,bee,2.png\n"),
        ("c.csv", "x/1.jpg,ant\n2.png,bee\n"),
        ("d.tsv", "path\tlabel\r\nx/1.jpg\t ant \r\n\r\n2.png\tbee\r\n"),
    ],
)
def test_lists(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert is_photo_list(tmp_path / name)
    found = find_photos(tmp_path / name)
    assert found.names.tolist() == ["ant", "bee"]
    assert found.images.paths == (tmp_path / "x/1.jpg", tmp_path / "2.png")


@pytest.mark.parametrize(
    "text",
    [
        "path,label,f0,f1\n1.jpg,ant,0.5,1\n",
        "f0,f1,label\n1,2,ant\n",
        "path,label\nrow 1,ant\n",
        "",
        "1,2\n",
    ],
)
def test_tables_of_features_are_no_lists(text, tmp_path):
    (tmp_path / "rows.csv").write_text(text)
    assert not is_photo_list(tmp_path / "rows.csv")


def test_parts(tmp_path):
    touch(tmp_path, "train/ant/1.jpg")
    assert photo_parts(tmp_path) == (tmp_path, None)  # may be a class of trains
    touch(tmp_path, "val/ant/1.jpg")
    assert photo_parts(tmp_path) == (tmp_path / "train", tmp_path / "val")


def test_copies_have_the_same_digest(tmp_path):
    for name, content in {"a": b"one", "b": b"two", "c": b"one"}.items():
        (tmp_path / name).write_bytes(content)
    a, b, c, lost = content_digests([tmp_path / name for name in ("a", "b", "c", "lost")])
    assert a == c != b
    assert lost is None


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "bmp", "gif", "tif"])
def test_formats_that_are_opened(ending, tmp_path):
    file = tmp_path / f"photo.{ending}"
    more = {"save_all": True, "append_images": [pattern(1, 1)]} if ending == "gif" else {}
    pattern(0, 0).save(file, **more)
    found = np.asarray(read_image(file)).astype(int)
    assert np.abs(found - np.asarray(pattern(0, 0))).mean() < 30


@pytest.mark.parametrize(("ending", "made"), [("eps", "eps"), ("jpg", "eps"), ("png", "pdf")])
def test_formats_that_are_not(ending, made, tmp_path):
    pattern(0, 0).save(tmp_path / f"made.{made}")
    file = (tmp_path / f"made.{made}").rename(tmp_path / f"photo.{ending}")
    with pytest.raises(DataSetError, match="cannot identify image file"):
        read_image(file)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    file = write_bomb(tmp_path / "bomb.png")
    assert file.stat().st_size < 200
    with pytest.raises(DataSetError, match=r"more than 179 megapixels.*Make it smaller"):
        read_image(file)


def test_photos_stand_upright(tmp_path):
    image = Image.fromarray(np.zeros((4, 8, 3), np.uint8))
    exif = image.getexif()
    exif[0x112] = 6  # the camera was held on its side
    image.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").size == (4, 8)
