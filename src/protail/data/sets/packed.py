"""A draw that travels: one lossless file with the images, labels and history of a data set."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._files import new_file
from protail._messages import upgrade_advice
from protail.data.sets._errors import DataSetError, OtherDrawError, missing_library
from protail.data.sets.images import DataSet, ImageSet
from protail.data.sets.long_tail import draw_description, long_tailed_counts, long_tailed_index

_FORMAT, _VERSION = "protail-draw", 1
_HEAD = "draw.json"
# Images stand below each other in sheets. On CIFAR, sheets of 100 take 3 % less than sheets of
# 200 or sheets with several columns; the order of the images changes less than 0.4 %.
_SHEET_PIXELS = 100 * 32 * 32
_SHEET_HEIGHT = 16383  # the most WebP can hold
_DAMAGE = (
    *(OSError, ValueError, TypeError, LookupError, EOFError, SyntaxError, RuntimeError),
    *(NotImplementedError, MemoryError, ArithmeticError, zipfile.BadZipFile, zlib.error),
)


def save_draw(dataset: DataSet, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
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
    >>> from protail.data.sets import DataSet, ImageSet, load_draw, save_draw
    >>> images = ImageSet([0, 1], ("ant", "bee"), np.zeros((2, 3, 8, 8), np.uint8))
    >>> file = tempfile.mkdtemp() + "/ants.protail-draw.zip"
    >>> save_draw(DataSet("ants", images, images), file)
    >>> load_draw(file)
    DataSet(ants: 2 train, 2 test, 2 classes)
    """
    in_files = [part for part, images in dataset.parts.items() if not images.is_resident]
    if in_files:
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
            part: {"shape": list(_pixels(images).shape), "sha256": images.fingerprint()}
            for part, images in dataset.parts.items()
        },
    }
    with new_file(path, overwrite=overwrite) as temporary, zipfile.ZipFile(temporary, "w") as file:
        _write(file, _HEAD, json.dumps(head, indent=1).encode(), zipfile.ZIP_DEFLATED)
        for part, images in dataset.parts.items():
            for array in ("labels", "origin"):
                values = getattr(images, array)
                if values is not None:
                    packed = _as_npy(values.astype("<i4"))
                    _write(file, f"{part}/{array}.npy", packed, zipfile.ZIP_DEFLATED)
            for number, sheet in enumerate(_encoded(_pixels(images))):
                _write(file, _sheet_name(part, number), sheet, zipfile.ZIP_STORED)


def load_draw(
    path: str | os.PathLike[str],
    *,
    imbalance: float | None = None,
    kind: str | None = None,
    selection: str | None = None,
    seed: int | None = None,
) -> DataSet:
    """Read a file that `save_draw` wrote, whole or cut to a higher imbalance.

    Draws nest: cut down, it holds exactly the images that the original data would have given.

    Parameters
    ----------
    path : path-like
        The file.
    imbalance : float, optional
        No lower than what is stored; by default what is stored.
    kind : {"exp", "step"}, optional
        By default what is stored; another one will do where enough images are stored.
    selection, seed : optional
        What they must be; a draw cannot be drawn anew. An "author" draw also serves as each of
        its two subsets, "first" and "shuffled".

    Returns
    -------
    DataSet
        Byte for byte what was saved.

    Examples
    --------
    >>> from protail.data.sets import load_draw
    >>> data = load_draw("cifar100.protail-draw.zip", imbalance=100)  # doctest: +SKIP
    """
    place = Path(path)
    if not place.is_file():
        raise DataSetError(
            f"{path}: there is no such file; expected an exported draw. Check the path."
        )
    with _reading(place), zipfile.ZipFile(place) as file:
        head = json.loads(file.read(_HEAD))
        if head["format"] != _FORMAT or head["version"] > _VERSION:
            raise DataSetError(
                f"{path}: it is {head['format']!r}, version {head['version']}; expected "
                f"{_FORMAT!r}, version {_VERSION} or older. {upgrade_advice()}, or export it again."
            )
        parts = {part: _read_part(file, part, head) for part in head["parts"]}
        stored = DataSet(head["name"], description=head["description"], group_counts=None, **parts)
    wanted = {"imbalance": imbalance, "kind": kind, "selection": selection, "seed": seed}
    return _cut(place, stored, {name: each for name, each in wanted.items() if each is not None})


def _cut(place: Path, stored: DataSet, wanted: dict[str, Any]) -> DataSet:
    stored = _one_of_two(stored, wanted.get("selection"))
    has = stored.description
    if all(has.get(name) == value for name, value in wanted.items()):
        return stored
    for name in ("selection", "seed"):
        if wanted.get(name, has.get(name)) != has.get(name):
            raise OtherDrawError(
                f"{place}: it was drawn with {name}={has.get(name)!r}; {name}={wanted[name]!r} "
                "needs the original data. Load that by its name."
            )
    if "n_max" not in has:
        raise OtherDrawError(
            f"{place}: data set {stored.name!r} was not cut to a long tail; expected no option "
            f"{' or '.join(wanted)}."
        )
    draw = {**has, **wanted}
    counts = long_tailed_counts(
        draw["n_max"], len(stored.train.classes), draw["imbalance"], draw["kind"]
    )
    if (counts > stored.train.profile.counts).any():
        raise OtherDrawError(
            f"{place}: it holds imbalance {has['imbalance']} ({has['kind']}), too few images for "
            f"imbalance {draw['imbalance']} ({draw['kind']}). Ask for a higher imbalance, or load "
            "the original data by its name."
        )

    def cut(images: ImageSet) -> ImageSet:
        # Stored class by class in the order of the draw: the first ones are the smaller draw.
        return images.subset(long_tailed_index(images.labels, counts, "first"))

    other = stored.classifier_train
    return replace(
        stored,
        train=cut(stored.train),
        classifier_train=None if other is None else cut(other),
        description=draw_description(**draw),
    )


def _one_of_two(stored: DataSet, selection: str | None) -> DataSet:
    """Take one of the published code's two subsets, where that is what is wanted."""
    other = stored.classifier_train
    if other is None or selection not in ("first", "shuffled"):
        return stored
    about = {**stored.description, "selection": selection}
    if selection == "first":
        return replace(stored, classifier_train=None, description=about | {"seed": None})
    return replace(stored, train=other, classifier_train=None, description=about)


def _pixels(images: ImageSet) -> NDArray[np.uint8]:
    assert images.pixels is not None
    return images.pixels


def _write(file: zipfile.ZipFile, name: str, content: bytes, method: int) -> None:
    # A fixed date: the same draw is the same file, byte for byte.
    entry = zipfile.ZipInfo(name)
    file.writestr(entry, content, compress_type=method)


def _as_npy(values: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _sheet_name(part: str, number: int) -> str:
    return f"{part}/{number:05d}.webp"


def _images_a_sheet(height: int, width: int) -> int:
    return max(1, min(_SHEET_PIXELS // (height * width), _SHEET_HEIGHT // height))


def _encoded(pixels: NDArray[np.uint8]) -> Iterator[bytes]:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_library("Pillow", "exporting a draw") from error

    def encode(images: NDArray[np.uint8]) -> bytes:
        sheet = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).reshape(-1, images.shape[3], 3)
        buffer = io.BytesIO()
        Image.fromarray(sheet).save(buffer, "webp", lossless=True, quality=75, method=4)
        return buffer.getvalue()

    step = _images_a_sheet(*pixels.shape[2:])
    sheets = (pixels[begin : begin + step] for begin in range(0, len(pixels), step))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(encode, sheets)


def _read_part(file: zipfile.ZipFile, part: str, head: dict[str, Any]) -> ImageSet:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_library("Pillow", "reading an exported draw") from error
    n, channels, height, width = head["parts"][part]["shape"]
    pixels = np.empty((n, channels, height, width), dtype=np.uint8)
    step = _images_a_sheet(height, width)
    for number, begin in enumerate(range(0, n, step)):
        room = pixels[begin : begin + step]
        with Image.open(
            io.BytesIO(file.read(_sheet_name(part, number))), formats=["webp"]
        ) as sheet:
            if sheet.size != (width, height * len(room)):
                raise ValueError(f"sheet {number} of {part} has size {sheet.size}")
            tiles = np.asarray(sheet.convert("RGB")).reshape(-1, height, width, 3)
        room[:] = tiles.transpose(0, 3, 1, 2)
    labels = _from_npy(file, f"{part}/labels.npy")
    has_origin = f"{part}/origin.npy" in file.namelist()
    origin = _from_npy(file, f"{part}/origin.npy") if has_origin else None
    images = ImageSet(labels, tuple(head["classes"]), pixels, origin=origin)
    if images.fingerprint() != head["parts"][part]["sha256"]:
        raise ValueError(f"the checksum of {part} differs")
    return images


def _from_npy(file: zipfile.ZipFile, name: str) -> NDArray[np.int64]:
    values: NDArray[Any] = np.load(io.BytesIO(file.read(name)), allow_pickle=False)
    return values.astype(np.int64)


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    try:
        yield
    except (DataSetError, ImportError):
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataSetError(
            f"{place}: it cannot be read ({reason[:200]}); expected a whole exported draw. It may "
            "be cut short or damaged: copy or export it again."
        ) from error
