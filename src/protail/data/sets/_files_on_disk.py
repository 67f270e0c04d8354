"""What data sets of image files have in common: names, checks, and what is left out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import unknown_name
from protail.data.sets._errors import DataSetError, first_few
from protail.data.sets._pictures import unreadable
from protail.data.sets.images import DataSet, ImageSet

ON_BAD_IMAGE = ("error", "skip")


def assemble(
    name: str,
    parts: dict[str, ImageSet],
    *,
    on_bad_image: str,
    check_files: bool = True,
    already_skipped: int = 0,
    description: dict[str, Any] | None = None,
) -> DataSet:
    """Put a data set together: check that its files are there, leave out what cannot be read.

    Parameters
    ----------
    name : str
        The data set's name.
    parts : dict of str to ImageSet
        "train", "test" and maybe "validation".
    on_bad_image : {"error", "skip"}
        "error": reading such an image raises, when it is read. "skip": all images are read now,
        and those that cannot be are left out and counted in the description.
    check_files : bool, default=True
        Whether all files must be there; without them a set can be counted, not read.
    already_skipped : int, default=0
        Images that were left out before.
    description : dict, optional
        What else there is to say about it.

    Returns
    -------
    DataSet
        With ``empty_classes`` (train) and ``images_skipped`` in its description.
    """
    if check_files:
        for images in parts.values():
            _check_there(name, images)
    kept = {part: readable(name, images, on_bad_image) for part, images in parts.items()}
    check_classes_left(name, parts["train"], kept["train"])
    skipped = sum(len(parts[part]) - len(kept[part]) for part in parts)
    return DataSet(
        name=name,
        train=kept["train"],
        test=kept["test"],
        validation=kept.get("validation"),
        description={
            **(description or {}),
            "empty_classes": int((kept["train"].profile.counts == 0).sum()),
            "images_skipped": already_skipped + skipped,
        },
    )


def _check_there(name: str, images: ImageSet) -> None:
    missing = [path for path in images.paths if not os.path.isfile(path)]
    if missing:
        raise DataSetError(
            f"{name}: {len(missing)} of {len(images)} image files are not there "
            f"({first_few(missing)}); expected all that are listed. Check the folder of the images "
            "(root=, --data-root), or take the missing ones out of the list."
        )


def readable(name: str, images: ImageSet, on_bad_image: str) -> ImageSet:
    """Leave out images that cannot be read, where the user wants that; otherwise read none."""
    if on_bad_image not in ON_BAD_IMAGE:
        raise ValueError(unknown_name("on_bad_image", on_bad_image, ON_BAD_IMAGE))
    bad = unreadable(images.paths) if on_bad_image == "skip" else []
    if len(bad) == len(images):
        raise DataSetError(
            f"{name}: none of {len(images)} images can be read ({first_few(images.paths)}); "
            "expected image files. Check the folder."
        )
    return images.subset(np.setdiff1d(np.arange(len(images)), bad)) if bad else images


def check_classes_left(name: str, images: ImageSet, kept: ImageSet) -> None:
    """Raise where leaving images out has left a class with nothing to learn from."""
    lost = np.flatnonzero((images.profile.counts > 0) & (kept.profile.counts == 0))
    if lost.size:
        raise DataSetError(
            f"{name}: no training image of {first_few([images.classes[code] for code in lost])} "
            "can be read; expected one at least of every class. Replace the images, or take the "
            "class out."
        )


def same_content(images: ImageSet) -> NDArray[np.int64]:
    """Give copies of one file the same number: none is then judged on while trained on.

    Parameters
    ----------
    images : ImageSet
        In files; those of a size that no other has are not read.

    Returns
    -------
    ndarray of int64
        One number an image.
    """
    sizes = [path.stat().st_size for path in images.paths]
    common = Counter(sizes)
    numbers: dict[object, int] = {}
    keys = (
        (size, hashlib.sha256(path.read_bytes()).digest()) if common[size] > 1 else path
        for size, path in zip(sizes, images.paths, strict=True)
    )
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def class_names(files: Sequence[str], labels: NDArray[np.int64], n_classes: int) -> tuple[str, ...]:
    """Name classes after the folders of their images, where each class has one of its own.

    Parameters
    ----------
    files : sequence of str
        Relative names, with ``/``.
    labels : ndarray of int64
        The class of each.
    n_classes : int
        How many classes there are.

    Returns
    -------
    tuple of str
        Folders, less what is common to all of them; otherwise codes as text. A class without
        images is named by its code.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets._files_on_disk import class_names
    >>> class_names(["train/ant/1.jpg", "train/bee/2.jpg"], np.array([0, 1]), 3)
    ('ant', 'bee', '2')
    """
    folder_of: dict[int, str] = {}
    for file, label in zip(files, labels.tolist(), strict=True):
        folder = str(PurePosixPath(file).parent)
        if folder_of.setdefault(label, folder) != folder:
            return tuple(map(str, range(n_classes)))
    common = _common_folder(list(folder_of.values()))
    named = {label: folder.removeprefix(common) for label, folder in folder_of.items()}
    names = tuple(named.get(code, str(code)) for code in range(n_classes))
    return names if len(set(names)) == n_classes else tuple(map(str, range(n_classes)))


def _common_folder(folders: list[str]) -> str:
    if len(folders) < 2 or len({folder.startswith("/") for folder in folders}) > 1:
        return ""
    common = os.path.commonpath(folders)
    return f"{common}/" if common else ""


def first_missing(folder: Path, names: Sequence[str]) -> list[str]:
    """Give those of ``names`` that are no files in ``folder``."""
    return [name for name in names if not (folder / name).is_file()]
