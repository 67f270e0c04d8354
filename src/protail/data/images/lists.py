"""ImageNet-LT, Places-LT and iNaturalist 2018: files that list images and labels, and a folder.

List files hold a path and a label a line; iNaturalist's official files are JSON.
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

from protail._messages import counted, first_few
from protail.data.images.image_set import DataSet, DataSetError, ImageSet, assemble, reading
from protail.data.images.registry import data_root, register_dataset

Listed = tuple[tuple[str, ...], NDArray[np.int64]]

_WHOLE_NUMBER = re.compile(r"[0-9]+")
_N_SPECIES = 8142
_SHORT = {"train": "train", "validation": "val", "test": "test"}


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
        listed = {part: _read(place / file, n_classes) for part, file in whole[0].items()}
        classes = _class_names(*listed["train"], n_classes)
        parts = {
            part: ImageSet(labels, classes, files=files, folder=folder)
            for part, (files, labels) in listed.items()
        }
        return assemble(name, parts, on_bad_image=on_bad_image, check_files=check_files)

    load.__doc__ = title


def _read(path: Path, n_classes: int) -> Listed:
    """Read a file of either kind."""
    return (read_annotations if path.suffix == ".json" else read_list)(path, n_classes)


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
        text = Path(path).read_text("utf-8-sig")
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
    with reading(path, expected, TypeError, RecursionError):
        content = json.loads(Path(path).read_bytes())
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
