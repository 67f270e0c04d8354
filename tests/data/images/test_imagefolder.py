"""Folders of photos: good ones, odd ones and bad ones."""

import shutil

import pytest

from protail.data.images import DataSetError, load_dataset
from reference.image_data import write_class_folders, write_picture


def message(function, *arguments, **options):
    with pytest.raises(DataSetError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def test_folders_of_train_val_and_test(tmp_path):
    for part, counts in {
        "train": {"ant": 4, "bee": 2},
        "val": {"ant": 1},
        "test": {"bee": 2},
    }.items():
        write_class_folders(tmp_path / part, counts)
    data = load_dataset("imagefolder", root=tmp_path)
    assert data.train.classes == ("ant", "bee")
    assert data.train.profile.counts.tolist() == [4, 2]
    assert data.validation.labels.tolist() == [0]
    assert data.test.labels.tolist() == [1, 1]
    assert data.test.paths[0] == tmp_path / "test/bee/0.jpg"
    shutil.rmtree(tmp_path / "test")
    data = load_dataset(tmp_path)
    assert data.validation is None
    assert data.description["split"] == {"train": "train", "test": "val"}
    shutil.rmtree(tmp_path / "val")
    assert "no test" in message(load_dataset, tmp_path)


def test_one_folder_is_split_with_rare_classes_on_both_sides(tmp_path):
    write_class_folders(tmp_path, {"ant": 20, "bee": 5, "cat": 2, "dog": 1})
    write_picture(tmp_path / "ant/deeper/x.PNG", seed=900)
    (tmp_path / "ant/notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    data = load_dataset("imagefolder", root=tmp_path, test_share=0.2)
    assert data.train.profile.counts.tolist() == [17, 4, 1, 1]
    assert data.test.profile.counts.tolist() == [4, 1, 1, 0]
    assert not set(data.train.files) & set(data.test.files)
    assert "ant/deeper/x.PNG" in data.train.files + data.test.files
    assert data.description["split"] == {"test_share": 0.2, "seed": 0}
    again = load_dataset(tmp_path)
    assert again.test.files == data.test.files
    assert load_dataset(tmp_path, seed=1).test.files != data.test.files


def test_copies_of_a_photo_stay_on_one_side(tmp_path):
    write_class_folders(tmp_path, {"ant": 12})
    for i in range(12):
        shutil.copy(tmp_path / f"ant/{i}.jpg", tmp_path / f"ant/copy of {i}.jpg")
    data = load_dataset(tmp_path, test_share=0.5)

    def originals(images):
        return {file.split("/")[-1].removeprefix("copy of ") for file in images.files}

    assert len(data.test) == 12
    assert not originals(data.train) & originals(data.test)


def test_bad_photos_are_left_out_before_the_split(tmp_path):
    write_class_folders(tmp_path, {"ant": 6, "bee": 3})
    (tmp_path / "bee/1.jpg").write_bytes(b"")
    data = load_dataset(tmp_path, on_bad_image="skip")
    assert data.description["images_skipped"] == 1
    assert data.train.profile.counts[1] == 1
    assert data.test.profile.counts[1] == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: (root / "cat").mkdir(), ["cat holds no image"]),
        (lambda root: shutil.rmtree(root), ["is no folder"]),
        (lambda root: [shutil.rmtree(p) for p in root.iterdir()], ["holds no folders"]),
        (
            lambda root: [p.unlink() for p in root.rglob("*.jpg") if p.stem != "0"],
            ["one image, or copies of one, in every class"],
        ),
    ],
)
def test_bad_folders(tmp_path, make, words):
    root = write_class_folders(tmp_path / "photos", {"ant": 3, "bee": 2})
    make(root)
    said = message(load_dataset, "imagefolder", root=root)
    assert all(word in said for word in words)


def test_a_class_that_only_the_test_folder_has(tmp_path):
    write_class_folders(tmp_path / "train", {"ant": 2})
    write_class_folders(tmp_path / "test", {"ant": 2, "wasp": 1})
    said = message(load_dataset, tmp_path)
    assert "wasp" in said


def test_imagefolder_needs_a_folder():
    assert "--data-root" in message(load_dataset, "imagefolder")


@pytest.mark.parametrize("parts", [False, True])
def test_skipping_may_not_empty_a_class_folder(tmp_path, parts):
    for place in [tmp_path / "train", tmp_path / "test"] if parts else [tmp_path]:
        write_class_folders(place, {"ant": 4, "bee": 2})
    for file in (tmp_path / "train" if parts else tmp_path).glob("bee/*"):
        file.write_bytes(b"no image")
    said = message(load_dataset, "imagefolder", root=tmp_path, on_bad_image="skip")
    assert "no train image of bee can be read" in said
