"""ImageNet-LT and Places-LT: list files of ``path label`` lines, and a folder of images."""

from __future__ import annotations

import os
import re
from pathlib import Path, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from protail.data.sets._errors import DataSetError
from protail.data.sets._files_on_disk import assemble, class_names, first_missing
from protail.data.sets.images import DataSet, ImageSet
from protail.data.sets.registry import data_root, register_dataset

Listed = tuple[tuple[str, ...], NDArray[np.int64]]

_WHOLE_NUMBER = re.compile(r"[0-9]+")


@register_dataset("imagenet-lt")
def imagenet_lt(
    root: str | os.PathLike[str] | None,
    lists: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    check_files: bool = True,
) -> DataSet:
    """ImageNet-LT, 1,000 classes: list files and the images of ImageNet-1K."""
    parts = {part: f"ImageNet_LT_{_SHORT[part]}.txt" for part in _SHORT}
    return listed_dataset(
        "imagenet-lt", parts, 1000, root, lists, on_bad_image=on_bad_image, check_files=check_files
    )


@register_dataset("places-lt")
def places_lt(
    root: str | os.PathLike[str] | None,
    lists: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    check_files: bool = True,
) -> DataSet:
    """Places-LT, 365 classes: list files and the images of Places365."""
    parts = {part: f"Places_LT_{_SHORT[part]}.txt" for part in _SHORT}
    return listed_dataset(
        "places-lt", parts, 365, root, lists, on_bad_image=on_bad_image, check_files=check_files
    )


_SHORT = {"train": "train", "validation": "val", "test": "test"}


def listed_dataset(
    name: str,
    parts: dict[str, str],
    n_classes: int,
    root: str | os.PathLike[str] | None,
    lists: str | os.PathLike[str] | None,
    *,
    on_bad_image: str,
    check_files: bool,
) -> DataSet:
    """Load a data set that list files describe.

    Parameters
    ----------
    name : str
        The data set's name.
    parts : dict of str to str
        The list file of each part.
    n_classes : int
        How many classes there are.
    root : path-like or None
        Where the images are, by default the folder ``name`` in `data_root`.
    lists : path-like or None
        Where the list files are, by default ``root``.
    on_bad_image, check_files
        As for `assemble`.

    Returns
    -------
    DataSet
        Images in files, named as in the lists.
    """
    folder = data_root() / name if root is None else Path(root)
    place = folder if lists is None else Path(lists)
    missing = first_missing(place, list(parts.values()))
    if missing:
        raise DataSetError(
            f"{name}: {', '.join(missing)} not found in {place}; expected the list files "
            f"{', '.join(parts.values())}. Name the folder that holds them (lists=, --lists) and "
            "the folder of the images (root=, --data-root)."
        )
    listed = {part: read_list(place / file, n_classes) for part, file in parts.items()}
    classes = class_names(*listed["train"], n_classes)
    return assemble(
        name,
        {
            part: ImageSet(labels, classes, files=files, folder=folder)
            for part, (files, labels) in listed.items()
        },
        on_bad_image=on_bad_image,
        check_files=check_files,
    )


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
    >>> from protail.data.sets import read_list
    >>> file = Path(tempfile.mkdtemp()) / "list.txt"
    >>> _ = file.write_text("train/ant/a b.jpg 0\r\ntrain\\bee\\c.jpg 1\r\n")
    >>> read_list(file, 2)
    (('train/ant/a b.jpg', 'train/bee/c.jpg'), array([0, 1]))
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataSetError(
            f"{path}: it cannot be read ({error}); expected a text file in UTF-8 with a path and "
            "a label on every line. Check the path, or save it again."
        ) from error
    files, labels = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            file, label = _parsed(f"{path}, line {number}", line.strip(), n_classes)
            files.append(file)
            labels.append(label)
    if not files:
        raise DataSetError(
            f"{path}: it is empty; expected a path and a label on every line. Fetch it again."
        )
    return tuple(files), np.array(labels, dtype=np.int64)


def _parsed(where: str, line: str, n_classes: int) -> tuple[str, int]:
    file, *rest = line.rsplit(None, 1)
    if not rest:
        raise DataSetError(
            f"{where}: {line[:100]!r} is one word; expected a path, a space and a label."
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
