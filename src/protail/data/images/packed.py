"""Exported subsets: one lossless file with the images, labels and history of a data set."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._files import new_file
from protail.data.images.image_set import (
    DataSet,
    DataSetError,
    ImageSet,
    check_version,
    pillow,
    reading,
)
from protail.data.images.long_tail import long_tailed_counts, long_tailed_index, subset_description

_FORMAT, _VERSION = "protail-draw", 1
_HEAD = "draw.json"
# Images stand below each other in sheets. On CIFAR, sheets of 100 take 3 % less than sheets of
# 200 or sheets with several columns; the order of the images changes less than 0.4 %.
_SHEET_PIXELS = 100 * 32 * 32
_SHEET_HEIGHT = 16383  # the most WebP can hold
# Bytes of a head; a million classes need no more.
_MOST_HEAD = 2**26


class OtherSubsetError(DataSetError):
    """Say that an exported file holds another subset than the one that is wanted.

    Examples
    --------
    >>> from protail.data.images import DataSetError, OtherSubsetError
    >>> issubclass(OtherSubsetError, DataSetError)
    True
    """


def save_subset(dataset: DataSet, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a data set whose images are in memory to one file.

    Parameters
    ----------
    dataset : DataSet
        Resident images, such as those of "cifar100-lt".
    path : path-like
        The file to write; its name should end in ``.protail-draw.zip`` (it is a zip file with
        sheets of images as lossless WebP, arrays as npy, and a head as JSON).
    overwrite : bool, default=False
        Whether a file that is already there may be replaced.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet, load_subset, save_subset
    >>> images = ImageSet([0, 1], ("ant", "bee"), np.zeros((2, 3, 8, 8), np.uint8))
    >>> file = tempfile.mkdtemp() + "/ants.protail-draw.zip"
    >>> save_subset(DataSet("ants", images, images), file)
    >>> load_subset(file)
    DataSet(ants: 2 train, 2 test, 2 classes)
    """
    pixels = {
        part: images.pixels for part, images in dataset.parts.items() if images.pixels is not None
    }
    if in_files := [part for part in dataset.parts if part not in pixels]:
        raise DataSetError(
            f"data set {dataset.name!r} has images in files ({', '.join(in_files)}); expected "
            "images in memory, all of one size. Copy the folder of its images instead."
        )
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": dataset.name,
        "description": dataset.description,
        "classes": list(dataset.train.classes),
        "parts": {
            part: {"shape": list(pixels[part].shape), "sha256": images.fingerprint()}
            for part, images in dataset.parts.items()
        },
    }
    with new_file(path, overwrite=overwrite) as temporary, zipfile.ZipFile(temporary, "w") as file:
        _write(file, _HEAD, json.dumps(head, indent=1).encode(), zipfile.ZIP_DEFLATED)
        for part, images in dataset.parts.items():
            for array in ("labels", "origin"):
                values = getattr(images, array)
                if values is not None:
                    buffer = io.BytesIO()
                    np.save(buffer, values.astype("<i4"), allow_pickle=False)
                    _write(file, f"{part}/{array}.npy", buffer.getvalue(), zipfile.ZIP_DEFLATED)
            for number, sheet in enumerate(_encoded(pixels[part])):
                _write(file, f"{part}/{number:05d}.webp", sheet, zipfile.ZIP_STORED)


def load_subset(
    path: str | os.PathLike[str],
    *,
    imbalance: float | None = None,
    kind: str | None = None,
    selection: str | None = None,
    seed: int | None = None,
) -> DataSet:
    """Read a subset that `save_subset` exported, whole or cut to a higher imbalance.

    Subsets nest: cut down, it holds exactly the images that the original data would have given.

    Parameters
    ----------
    path : path-like
        The file.
    imbalance : float, optional
        No lower than what is stored; by default what is stored.
    kind : {"exp", "step"}, optional
        By default what is stored; another one will do where enough images are stored.
    selection, seed : optional
        What they must be; an exported subset cannot be drawn again. An "author" export also
        serves as each of its two subsets, "first" and "shuffled".

    Returns
    -------
    DataSet
        Byte for byte what was saved.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet, load_subset, save_subset
    >>> images = ImageSet([0, 1, 1], ("ant", "bee"), np.zeros((3, 3, 8, 8), np.uint8))
    >>> file = tempfile.mkdtemp() + "/ants.protail-draw.zip"
    >>> save_subset(DataSet("ants", images, images), file)
    >>> load_subset(file).train.labels
    array([0, 1, 1])
    >>> load_subset("cifar100.protail-draw.zip", imbalance=100)  # doctest: +SKIP
    DataSet(cifar100-lt: 10847 train, 10000 test, 100 classes)
    """
    place = Path(path)
    if not place.is_file():
        raise DataSetError(
            f"{path}: there is no such file; expected an exported subset. Check the path."
        )
    expected = "a whole exported subset. It may be cut short or damaged: copy or export it again."
    with reading(place, expected), zipfile.ZipFile(place) as file:
        head = json.loads(_read(file, _HEAD, _MOST_HEAD))
        check_version(place, head, _FORMAT, _VERSION)
        parts = {part: _read_part(file, part, head) for part in head["parts"]}
        stored = DataSet(head["name"], description=head["description"], group_counts=None, **parts)
    wanted = {"imbalance": imbalance, "kind": kind, "selection": selection, "seed": seed}
    return _cut(place, stored, {name: each for name, each in wanted.items() if each is not None})


def _cut(place: Path, stored: DataSet, wanted: dict[str, Any]) -> DataSet:
    """Give the subset that is wanted out of a stored one."""
    other, selection = stored.classifier_train, wanted.get("selection")
    if other is not None and selection in ("first", "shuffled"):
        # One of the two subsets of the published code.
        about = {**stored.description, "selection": selection}
        if selection == "first":
            stored = replace(stored, classifier_train=None, description=about | {"seed": None})
        else:
            stored = replace(stored, train=other, classifier_train=None, description=about)
    has = stored.description
    if all(has.get(name) == value for name, value in wanted.items()):
        return stored
    about, there = {**has, **wanted}, stored.train.profile.counts
    if "n_max" not in has or any(about[name] != has[name] for name in ("selection", "seed")):
        raise OtherSubsetError(
            f"{place}: it holds a subset of {_in_words(has) or 'no imbalance'}, which does not "
            f"give {_in_words(wanted)}. Load the original data by its name."
        )
    imbalance, kind = about["imbalance"], about["kind"]
    counts = long_tailed_counts(about["n_max"], len(there), imbalance, kind)
    if (counts > there).any():
        raise OtherSubsetError(
            f"{place}: it holds imbalance {has['imbalance']} ({has['kind']}), too few images for "
            f"imbalance {imbalance} ({kind}). Ask for a higher imbalance, or load the original "
            "data by its name."
        )

    def cut(images: ImageSet) -> ImageSet:
        # Stored class by class in shuffled order: the first ones are the smaller subset.
        return images.subset(long_tailed_index(images.labels, counts, "first"))

    other = stored.classifier_train
    return replace(
        stored,
        train=cut(stored.train),
        classifier_train=None if other is None else cut(other),
        description=subset_description(**about),
    )


def _in_words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _write(file: zipfile.ZipFile, name: str, content: bytes, method: int) -> None:
    """Write an entry with a fixed date: the same subset is the same file, byte for byte."""
    file.writestr(zipfile.ZipInfo(name), content, compress_type=method)


def _images_a_sheet(height: int, width: int) -> int:
    """Say how many images of a size stand below each other."""
    return max(1, min(_SHEET_PIXELS // (height * width), _SHEET_HEIGHT // height))


def _encoded(pixels: NDArray[np.uint8]) -> Iterator[bytes]:
    """Encode images sheet by sheet."""
    image = pillow("exporting a subset")

    def encode(images: NDArray[np.uint8]) -> bytes:
        sheet = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).reshape(-1, images.shape[3], 3)
        buffer = io.BytesIO()
        image.fromarray(sheet).save(buffer, "webp", lossless=True, quality=75, method=4)
        return buffer.getvalue()

    step = _images_a_sheet(*pixels.shape[2:])
    sheets = (pixels[begin : begin + step] for begin in range(0, len(pixels), step))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(encode, sheets)


def _read(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read an entry, unless unpacked it is larger than what it is for."""
    if (size := file.getinfo(name).file_size) > most:
        raise ValueError(f"{name} has {size:,} bytes, and needs {most:,} at most")
    return file.read(name)


def _read_part(file: zipfile.ZipFile, part: str, head: dict[str, Any]) -> ImageSet:
    """Read the images, labels and places of a part, and compare their checksum."""
    image = pillow("reading an exported subset")
    n, channels, height, width = head["parts"][part]["shape"]
    if channels != 3 or not all(0 < side <= _SHEET_HEIGHT for side in (height, width)) or n < 1:
        raise ValueError(f"images of {part} have shape {(n, channels, height, width)}")
    step = _images_a_sheet(height, width)
    # Memory for no more images than there are sheets.
    file.getinfo(f"{part}/{(n - 1) // step:05d}.webp")
    pixels = np.empty((n, channels, height, width), dtype=np.uint8)
    for number, begin in enumerate(range(0, n, step)):
        block = pixels[begin : begin + step]
        room = 2 * block.nbytes + 4096
        content = io.BytesIO(_read(file, f"{part}/{number:05d}.webp", room))
        with image.open(content, formats=["webp"]) as sheet:
            if sheet.size != (width, height * len(block)):
                raise ValueError(f"sheet {number} of {part} has size {sheet.size}")
            tiles = np.asarray(sheet.convert("RGB")).reshape(-1, height, width, 3)
        block[:] = tiles.transpose(0, 3, 1, 2)
    stored = {}
    for array in ("labels", "origin"):
        if array == "labels" or f"{part}/{array}.npy" in file.namelist():
            content = io.BytesIO(_read(file, f"{part}/{array}.npy", 8 * n + 10_000))
            stored[array] = np.load(content, allow_pickle=False).astype(np.int64)
    images = ImageSet(classes=tuple(head["classes"]), pixels=pixels, **stored)
    if images.fingerprint() != head["parts"][part]["sha256"]:
        raise ValueError(f"the checksum of {part} differs")
    return images
