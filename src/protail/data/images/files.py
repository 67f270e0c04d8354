"""Data sets of image files: class folders of your own; ImageNet-LT, Places-LT, iNaturalist 2018.

The last three are files that list images and labels, and a folder. A list file holds a path and a
label a line; iNaturalist's official files are JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._files import regular
from protail._messages import counted, first_few, unknown_name
from protail.data.images.image_set import (
    DataSet,
    DataSetError,
    ImageSet,
    reading,
    same_content,
    unreadable,
)
from protail.data.images.registry import data_root, register_dataset
from protail.data.tables import split

Listed = tuple[tuple[str, ...], NDArray[np.int64]]

_WHOLE_NUMBER = re.compile(r"[0-9]+")
_N_SPECIES = 8142
_SHORT = {"train": "train", "validation": "val", "test": "test"}
# Of files that are images.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
)
# Which part a folder of this name holds; where there are several, the last one counts.
_FOLDERS = {"train": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val"), "validation"
)
_ON_BAD_IMAGE = ("error", "skip")


@register_dataset("imagefolder")
def imagefolder(
    root: str | os.PathLike[str] | None,
    test_share: float = 0.2,
    seed: int = 0,
    on_bad_image: str = "error",
) -> DataSet:
    """Your own photos: class folders, in train/val/test or split here."""
    if root is None or not os.path.isdir(root):
        raise DataSetError(
            f"imagefolder: {root} is no folder; expected one that holds a folder of photos for "
            "every class. Name it (root=, --data-root)."
        )
    folder = Path(root)
    given = _given_parts(folder)
    classes = _class_folders(given["train"])
    listed = {part: _read_class_folders(place, classes) for part, place in given.items()}
    # Before a split: a rare class must not lose what it was to be trained on.
    parts = _readable("imagefolder", listed, on_bad_image)
    how: dict[str, Any] = {part: place.name for part, place in given.items()}
    if "test" not in given:
        images, how = parts["train"], {"test_share": test_share, "seed": seed}
        groups = same_content(images)
        train, test = split(images.labels, fraction=test_share, groups=groups, seed=seed)
        if not test.size:
            raise DataSetError(
                f"imagefolder: {folder} has one image, or copies of one, in every class; expected "
                "two of some class, one of them to test on. Add images."
            )
        parts = {"train": images.subset(train), "test": images.subset(test)}
    return _assembled("imagefolder", listed, parts, {"split": how})


def _given_parts(root: Path) -> dict[str, Path]:
    """Find the folders of train, test and validation; ``root`` alone where classes lie in it."""
    parts = {part: root / name for name, part in _FOLDERS.items() if (root / name).is_dir()}
    if "train" not in parts:
        return {"train": root}
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")  # all there is to test on
    if "test" not in parts:
        raise DataSetError(
            f"imagefolder: {root} has a folder train, but no test; expected both. To have it split "
            f"here, name {parts['train']} itself."
        )
    return parts


def _class_folders(root: Path) -> list[str]:
    """List the folders in ``root``; Finder's and hidden ones are none of a class."""
    names = sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith((".", "__MACOSX"))
    )
    if not names:
        raise DataSetError(
            f"imagefolder: {root} holds no folders; expected a folder of images for every class."
        )
    return names


def _read_class_folders(root: Path, classes: list[str]) -> ImageSet:
    """List the images below every class folder in ``root``, each folder one of ``classes``."""
    there = _class_folders(root)
    if unknown := sorted(set(there) - set(classes)):
        raise DataSetError(
            f"imagefolder: {root} has class folders that the folder train has not "
            f"({first_few(unknown)}); expected the same classes. Rename or remove them."
        )
    images = {name: _images_below(root / name, root) for name in there}
    if empty := [root / name for name, files in images.items() if not files]:
        raise DataSetError(
            f"imagefolder: {first_few(empty)} holds no image; expected at least one in every "
            f"class folder ({', '.join(IMAGE_SUFFIXES)}). Add images, or remove the folder."
        )
    codes = {name: code for code, name in enumerate(classes)}
    labels = [codes[name] for name in there for _ in images[name]]
    files = tuple(file for name in there for file in images[name])
    return ImageSet(np.array(labels), tuple(classes), files=files, folder=root)


def _images_below(folder: Path, root: Path) -> list[str]:
    """List the image files at any depth below ``folder``, relative to ``root``."""
    return sorted(
        Path(place, file).relative_to(root).as_posix()
        for place, _, names in os.walk(folder)
        for file in names
        if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith(".")
    )


def _register(name: str, title: str, n_classes: int, *choices: dict[str, str]) -> None:
    """Register a data set that one of several choices of files describes."""

    @register_dataset(name)
    def load(
        root: str | os.PathLike[str] | None,
        lists: str | os.PathLike[str] | None = None,
        on_bad_image: str = "error",
        check_files: bool = True,
    ) -> DataSet:
        folder = data_root() / name if root is None else Path(root)
        place = folder if lists is None else Path(lists)
        whole = [files for files in choices if all((place / f).is_file() for f in files.values())]
        if not whole:
            wanted = [", ".join(files.values()) for files in choices]
            every = dict.fromkeys(file for files in choices for file in files.values())
            missing = [file for file in every if not (place / file).is_file()]
            raise DataSetError(
                f"{name}: {', '.join(missing)} not found in {place}; expected the list files "
                f"{' or '.join(wanted)}. Name the folder that holds them (lists=, --lists) and "
                "the folder of the images (root=, --data-root)."
            )
        listed = {}
        for part, file in whole[0].items():
            read = read_annotations if file.endswith(".json") else read_list
            listed[part] = read(place / file, n_classes)
        classes = _class_names(*listed["train"], n_classes)
        parts = {
            part: ImageSet(labels, classes, files=files, folder=folder)
            for part, (files, labels) in listed.items()
        }
        if check_files:
            for images in parts.values():
                _check_there(name, images)
        return _assembled(name, parts, _readable(name, parts, on_bad_image), {})

    load.__doc__ = title


def read_list(path: str | os.PathLike[str], n_classes: int) -> Listed:
    r"""Read a list file: a path and a class code on every line.

    Parameters
    ----------
    path : path-like
        UTF-8 text, with or without a byte order mark; Windows line ends and backslashes will do.
    n_classes : int
        Codes run from 0 to one less.

    Returns
    -------
    files : tuple of str
        Paths with ``/``.
    labels : ndarray of int64
        The class of each.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.images import read_list
    >>> file = Path(tempfile.mkdtemp()) / "list.txt"
    >>> _ = file.write_text("train/ant/a b.jpg 0\r\ntrain\\bee\\c.jpg 1\r\n")
    >>> read_list(file, 2)
    (('train/ant/a b.jpg', 'train/bee/c.jpg'), array([0, 1]))
    """
    with reading(
        path,
        "a text file in UTF-8 with a path and a label on every line. Check the path, or save it "
        "again.",
    ):
        text = regular(path).read_text("utf-8-sig")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataSetError(
            f"{path}: it is empty; expected a path and a label on every line. Fetch it again."
        )
    entries = [_entry(f"{path}, line {number}", line, n_classes) for number, line in lines]
    files, labels = zip(*entries, strict=True)
    return files, np.array(labels, dtype=np.int64)


def _entry(where: str, line: str, n_classes: int) -> tuple[str, int]:
    """Take a line of a list file apart."""
    file, *rest = line.strip().rsplit(None, 1)
    if not rest:
        raise DataSetError(
            f"{where}: {file[:100]!r} is one word; expected a path, a space and a label."
        )
    label = rest[0]
    # Length first: int() of thousands of digits raises an error of its own.
    if not _WHOLE_NUMBER.fullmatch(label) or len(label) > 18 or int(label) >= n_classes:
        raise DataSetError(
            f"{where}: the label is {label[:40]!r}; expected a class code from 0 to "
            f"{n_classes - 1}. Correct that line."
        )
    if PureWindowsPath(file).drive and os.name != "nt":
        raise DataSetError(
            f"{where}: {file[:100]!r} is a path on a Windows drive; expected a path relative to "
            "the folder of the images. Take the beginning off every line."
        )
    return file.replace("\\", "/"), int(label)


def read_annotations(path: str | os.PathLike[str], n_classes: int = _N_SPECIES) -> Listed:
    """Read an official file of iNaturalist: which images there are, and the class of each.

    Parameters
    ----------
    path : path-like
        JSON with ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``,
        ``category_id``).
    n_classes : int, default=8142
        Codes run from 0 to one less.

    Returns
    -------
    files : tuple of str
        Paths, in the order of ``images``.
    labels : ndarray of int64
        The class of each.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from protail.data.images import read_annotations
    >>> file = Path(tempfile.mkdtemp()) / "val2018.json"
    >>> images = [{"id": 7, "file_name": "val/ant.jpg"}]
    >>> annotations = [{"image_id": 7, "category_id": 3}]
    >>> _ = file.write_text(json.dumps({"images": images, "annotations": annotations}))
    >>> read_annotations(file)
    (('val/ant.jpg',), array([3]))
    """
    expected = "JSON with 'images' and 'annotations'. It may be cut short: fetch it again."
    with reading(path, expected):
        content = json.loads(regular(path).read_bytes())
        files = {image["id"]: str(image["file_name"]) for image in content["images"]}
        classes: dict[Any, int] = {}
        for annotation in content["annotations"]:
            code = annotation["category_id"]
            if type(code) is not int or not 0 <= code < n_classes:
                raise DataSetError(
                    f"{path}: an image has the category {code!r}; expected a class code from 0 to "
                    f"{n_classes - 1}. Fetch the file again."
                )
            if classes.setdefault(annotation["image_id"], code) != code:
                raise DataSetError(
                    f"{path}: image {annotation['image_id']!r} has two categories; expected one."
                )
    unpaired = [key for key in files if key not in classes]
    unpaired += [key for key in classes if key not in files]
    if unpaired or not files:
        raise DataSetError(
            f"{path}: {counted(len(unpaired), 'image is', 'images are')} not both listed and "
            f"labelled ({first_few(unpaired)}); expected one annotation for every image, "
            "and at least one image. Fetch the file again."
        )
    return tuple(files.values()), np.array([classes[key] for key in files], dtype=np.int64)


def _class_names(
    files: Sequence[str], labels: NDArray[np.int64], n_classes: int
) -> tuple[str, ...]:
    """Name classes after their folders where each class has one of its own, otherwise by codes."""
    codes = tuple(map(str, range(n_classes)))
    parents = [str(PurePosixPath(file).parent) for file in files]
    pairs = set(zip(labels.tolist(), parents, strict=True))
    folders = dict(pairs)
    if len(folders) < len(pairs):
        return codes
    # What all folders have in common names no class.
    common = ""
    if len(folders) > 1 and len({folder.startswith("/") for folder in folders.values()}) == 1:
        common = os.path.commonpath(folders.values())
    prefix = f"{common}/" if common else ""
    names = tuple(folders.get(code, codes[code]).removeprefix(prefix) for code in range(n_classes))
    return names if len(set(names)) == n_classes else codes


_register(
    "imagenet-lt",
    "ImageNet-LT, 1,000 classes: list files and the images of ImageNet-1K.",
    1000,
    {part: f"ImageNet_LT_{short}.txt" for part, short in _SHORT.items()},
)
_register(
    "places-lt",
    "Places-LT, 365 classes: list files and the images of Places365.",
    365,
    {part: f"Places_LT_{short}.txt" for part, short in _SHORT.items()},
)
# The official test labels are secret: everyone, the paper included, tests on validation.
_register(
    "inaturalist18",
    "iNaturalist 2018, 8,142 species: official JSON or list files, and images.",
    _N_SPECIES,
    {"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"},
    {"train": "train2018.json", "test": "val2018.json"},
)


def _check_there(name: str, images: ImageSet) -> None:
    """Raise where files of images are missing."""
    missing = [path for path in images.paths if not os.path.isfile(path)]
    if missing:
        raise DataSetError(
            f"{name}: {len(missing)} of {len(images)} image files are not there "
            f"({first_few(missing)}); expected all that are listed. Check the folder of the images "
            "(root=, --data-root), or take the missing ones out of the list."
        )


def _readable(name: str, listed: dict[str, ImageSet], on_bad_image: str) -> dict[str, ImageSet]:
    """Read all images and leave out bad ones with "skip"; read none with "error"."""
    if on_bad_image not in _ON_BAD_IMAGE:
        raise ValueError(unknown_name("on_bad_image", on_bad_image, _ON_BAD_IMAGE))
    if on_bad_image == "error":
        return listed
    parts = {}
    for part, images in listed.items():
        fine = np.setdiff1d(np.arange(len(images)), unreadable(images.paths))
        counts = np.bincount(images.labels[fine], minlength=len(images.classes))
        lost = np.flatnonzero((counts == 0) & (images.profile.counts > 0))
        if not fine.size or (part == "train" and lost.size):
            raise DataSetError(
                f"{name}: no {part} image of {first_few([images.classes[c] for c in lost])} can be "
                "read; expected one at least of every class. Replace the images, or take the class "
                "out."
            )
        parts[part] = images.subset(fine)
    return parts


def _assembled(
    name: str, listed: dict[str, ImageSet], parts: dict[str, ImageSet], description: dict[str, Any]
) -> DataSet:
    """Make a data set of parts, and say how many of the images that were listed are left out."""
    n_listed, n_kept = (sum(map(len, each.values())) for each in (listed, parts))
    about = {
        "empty_classes": int((parts["train"].profile.counts == 0).sum()),
        "images_skipped": n_listed - n_kept,
    }
    return DataSet(name, description=description | about, group_counts=None, **parts)
