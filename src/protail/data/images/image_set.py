"""Labelled images, in memory or in files, and the parts of a data set."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail._files import regular
from protail._messages import imported, upgrade_advice, why
from protail.profile import ClassProfile, class_codes

if TYPE_CHECKING:
    from PIL.Image import Image

# What is opened, by content and not by name: formats of pixels alone, that Pillow decodes itself.
# Others, such as EPS, would be handed to programs outside.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")
# What is kept in memory: images as small as those whose recipes crop by a few pixels, and not more
# than any machine that trains on them has room for.
_LONGEST_SIDE = 128
_MOST_BYTES = 1 << 32


class DataSetError(ValueError):
    """Say which data set or file cannot be read, why, and what to do about it.

    Examples
    --------
    >>> from protail.data.images import DataSetError, load_dataset
    >>> try:
    ...     load_dataset("lost.protail-draw.zip")
    ... except DataSetError as error:
    ...     print(error)
    lost.protail-draw.zip: there is no such file; expected an exported subset. Check the path.
    """


@contextmanager
def reading(path: object, expected: str) -> Iterator[None]:
    """Turn what a damaged file makes its reader raise into a `DataSetError`."""
    try:
        yield
    except (DataSetError, ImportError):
        raise
    except FileNotFoundError as error:
        raise DataSetError(
            f"{path}: there is no such file; expected one that is there. Check the path."
        ) from error
    except Exception as error:  # what readers raise on damaged bytes is anything at all
        raise DataSetError(
            f"{path}: it cannot be read ({why(error)}); expected {expected}"
        ) from error


def check_version(path: Path, head: dict[str, Any], known: str, version: int) -> None:
    """Raise unless the head of a file is of a format and version that can be read."""
    if head["format"] != known or head["version"] > version:
        raise DataSetError(
            f"{path}: it is {head['format']!r}, version {head['version']}; expected {known!r}, "
            f"version {version} or older. {upgrade_advice()}, or write it again."
        )


def pillow(purpose: str) -> Any:
    """Import Pillow's module Image, or say what needs it."""
    return imported("PIL.Image", purpose, "Pillow", "vision")


def read_image(path: str | os.PathLike[str] | BinaryIO) -> Image:
    """Read a picture file, whole, as 8-bit RGB.

    Parameters
    ----------
    path : path-like or binary file
        JPEG, PNG, WebP, BMP, GIF, TIFF or PPM; of several pictures the first.

    Returns
    -------
    PIL.Image.Image
        Mode RGB, upright as the camera says. Greys, palettes, CMYK and 16 bits are converted;
        transparency is dropped.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from protail.data.images import read_image
    >>> file = Path(tempfile.mkdtemp()) / "grey.png"
    >>> Image.new("L", (4, 2), 7).save(file)
    >>> read_image(file).getpixel((0, 0))
    (7, 7, 7)
    """
    module = pillow("reading images")
    expected = (
        "a whole image file. Replace it, or leave such files out with on_bad_image='skip' "
        "(--on-bad-image skip)."
    )
    try:
        with reading(path, expected):
            file = path if isinstance(path, io.IOBase) else regular(path)  # type: ignore[arg-type]
            with module.open(file, formats=_FORMATS) as image:
                return _upright_rgb(image)
    except DataSetError as error:
        if not isinstance(error.__cause__, module.DecompressionBombError):
            raise
        raise DataSetError(
            f"{path}: it has more than {2 * module.MAX_IMAGE_PIXELS / 1e6:.0f} megapixels, as "
            "files have that are made to fill the memory; expected fewer. Make it smaller."
        ) from error


def _upright_rgb(image: Any) -> Image:
    """Decode an opened picture."""
    module = pillow("reading images")
    if image.mode in _SIXTEEN_BITS:
        # Pillow would cut off everything above 255, not scale it.
        image = module.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    rgb: Image = image.convert("RGB")
    with suppress(Exception):  # a damaged note about the camera spoils no picture
        rgb = imported("PIL.ImageOps", "reading images", "Pillow", "vision").exif_transpose(rgb)
    return rgb


def unreadable(paths: Sequence[Path]) -> list[int]:
    """Read every picture file and give the positions of those that cannot be read.

    Parameters
    ----------
    paths : sequence of Path
        Picture files.

    Returns
    -------
    list of int
        Positions, ascending.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.data.images import unreadable
    >>> unreadable([Path("no-such-image.jpg")])
    [0]
    """

    def is_bad(path: Path) -> bool:
        try:
            read_image(path)
        except DataSetError:
            return True
        return False

    # Pillow lets other threads run while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [place for place, bad in enumerate(pool.map(is_bad, paths)) if bad]


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Hold labelled images: resident in memory, or as files that are read when asked for.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        The class code of every image.
    classes : tuple of str
        The name of every class; classes without images are among them.
    pixels : ndarray of uint8, shape (n, 3, height, width), optional
        Images in memory; either these or ``files``.
    files : tuple of str, optional
        The file of every image, relative to ``folder`` or absolute. Text, not Path: a large set
        has half a million of them, and every loader worker gets a copy.
    folder : Path, optional
        Where ``files`` are.
    origin : ndarray of int, shape (n,), optional
        The number of every image in the set that this one is a subset of.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import ImageSet
    >>> images = ImageSet([0, 0, 1], ("ant", "bee"), np.zeros((3, 3, 32, 32), np.uint8))
    >>> images
    ImageSet(3 images of 2 classes, 32 x 32 pixels, resident)
    >>> images.subset([2]).labels, images.image(0).size
    (array([1]), (32, 32))
    """

    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    pixels: NDArray[np.uint8] | None = None
    files: tuple[str, ...] | None = None
    folder: Path = Path()
    origin: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "labels", class_codes(self.labels, len(self.classes)))
        if (self.pixels is None) == (self.files is None):
            raise ValueError("an ImageSet has either pixels or files; expected one of them.")
        if self.pixels is not None and (
            self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3
        ):
            raise ValueError(
                f"pixels has shape {self.pixels.shape} and dtype {self.pixels.dtype}; expected "
                "(n, 3, height, width) and uint8."
            )
        if self.files is not None:
            object.__setattr__(self, "files", tuple(self.files))
        if self.origin is not None:
            object.__setattr__(self, "origin", np.asarray(self.origin, dtype=np.int64))
        for name in ("pixels", "files", "origin"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.labels):
                raise ValueError(
                    f"{name} has {len(values)} entries; expected {len(self.labels)}, one for each "
                    "label."
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_resident(self) -> bool:
        """Whether all images are in memory, all of one size."""
        return self.pixels is not None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the file of every image is; empty for a resident set."""
        return tuple(self.folder / file for file in self.files or ())

    @cached_property
    def profile(self) -> ClassProfile:
        """The images of every class, classes without images included."""
        return ClassProfile.from_labels(self.labels, len(self.classes))

    def subset(self, index: ArrayLike) -> ImageSet:
        """Take some of the images.

        Parameters
        ----------
        index : array-like of int or bool
            Positions, in the order wanted, or a mask.

        Returns
        -------
        ImageSet
            Those images, with the same classes.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data.images import ImageSet
        >>> images = ImageSet([0, 1, 1], ("ant", "bee"), files=("a.png", "b.png", "c.png"))
        >>> images.subset([2, 0]).files
        ('c.png', 'a.png')
        """
        chosen = np.arange(len(self))[np.asarray(index)]
        return replace(
            self,
            labels=self.labels[chosen],
            pixels=None if self.pixels is None else self.pixels[chosen],
            files=None if self.files is None else tuple(self.files[i] for i in chosen),
            origin=None if self.origin is None else self.origin[chosen],
        )

    def image(self, i: int) -> Image:
        """Give one image.

        Parameters
        ----------
        i : int
            Its position.

        Returns
        -------
        PIL.Image.Image
            8-bit RGB, in the size it is stored in.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data.images import ImageSet
        >>> images = ImageSet([0], ("ant",), np.full((1, 3, 2, 2), 9, np.uint8))
        >>> images.image(0).getpixel((1, 1))
        (9, 9, 9)
        """
        if self.files is not None:
            return read_image(self.folder / self.files[i])
        assert self.pixels is not None
        pixels = np.ascontiguousarray(self.pixels[i].transpose(1, 2, 0))
        image: Image = pillow("giving single images").fromarray(pixels)
        return image

    def fingerprint(self) -> str:
        """Digest what the set holds: a key for whatever is computed from it.

        Returns
        -------
        str
            SHA-256, in hexadecimal digits, over labels and pixels; where images are files, over
            labels, relative names and sizes.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data.images import ImageSet
        >>> images = ImageSet([0, 1], ("ant", "bee"), np.zeros((2, 3, 4, 4), np.uint8))
        >>> images.fingerprint() == images.subset([1, 0]).fingerprint()
        False
        """
        digest = hashlib.sha256(self.labels.astype("<i8").tobytes())
        if self.pixels is not None:
            digest.update(repr(self.pixels.shape).encode())
            digest.update(np.ascontiguousarray(self.pixels).data)
        for file in self.files or ():
            # os.fsencode: a name need not be text that UTF-8 can hold.
            size = os.stat(self.folder / file).st_size
            digest.update(os.fsencode(file) + b"\0%d\0" % size)
        return digest.hexdigest()

    def __repr__(self) -> str:
        place = "in files"
        if self.pixels is not None:
            place = f"{self.pixels.shape[3]} x {self.pixels.shape[2]} pixels, resident"
        return f"ImageSet({len(self)} images of {len(self.classes)} classes, {place})"


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Hold labelled images in parts: a training set, a test set and maybe more.

    Parameters
    ----------
    name : str
        The name it is registered by.
    train, test : ImageSet
        Its parts, with the same classes.
    validation : ImageSet, optional
        A validation set, where the data set comes with one.
    description : dict
        How it was made, in values that JSON can hold: a part of a run's record.
    classifier_train : ImageSet, optional
        What stage 2 learns from in place of ``train``, where the stages are to see different
        images; as many of each class.
    group_counts : ndarray of int, shape (n_classes,), optional
        Images of each class that say whether it has many, medium or few, where those of ``train``
        do not: some may be held out.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> images = ImageSet([0, 0, 1], ("ant", "bee"), np.zeros((3, 3, 8, 8), np.uint8))
    >>> DataSet("ants", images, images.subset([0, 2]))
    DataSet(ants: 3 train, 2 test, 2 classes)
    """

    name: str
    train: ImageSet
    test: ImageSet
    validation: ImageSet | None = None
    description: dict[str, Any] = field(default_factory=dict)
    classifier_train: ImageSet | None = None
    group_counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, images in self.parts.items():
            if images.classes != self.train.classes:
                raise ValueError(
                    f"data set {self.name!r}: classes of {part} differ from those of train; "
                    "expected the same names in the same order."
                )
        others = self.train if self.classifier_train is None else self.classifier_train
        if not np.array_equal(others.profile.counts, self.train.profile.counts):
            raise ValueError(
                f"data set {self.name!r}: classifier_train has other numbers of images than "
                "train; expected as many of each class."
            )
        if self.group_counts is not None and len(self.group_counts) != len(self.train.classes):
            raise ValueError(
                f"data set {self.name!r}: group_counts has {len(self.group_counts)} entries; "
                f"expected {len(self.train.classes)}, one for each class."
            )

    @property
    def parts(self) -> dict[str, ImageSet]:
        """The parts there are, by name."""
        names = ("train", "classifier_train", "validation", "test")
        return {name: images for name in names if (images := getattr(self, name)) is not None}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(images)} {part}" for part, images in self.parts.items())
        return f"DataSet({self.name}: {sizes}, {len(self.train.classes)} classes)"


def in_memory(data: DataSet) -> DataSet | None:
    """Decode images in files once, where they are small and all of one size.

    Parameters
    ----------
    data : DataSet
        Images in files.

    Returns
    -------
    DataSet or None
        The same images, resident, as those of CIFAR are; its description says so. None where one
        has a side of more than 128 pixels or another size than the first, or where all of them
        would take more than 4 GiB.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from protail.data.images import DataSet, ImageSet, in_memory
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (64, 64)).save(folder / "ant.png")
    >>> photos = ImageSet([0], ("ant",), files=("ant.png",), folder=folder)
    >>> in_memory(DataSet("ants", photos, photos)).train
    ImageSet(1 images of 1 classes, 64 x 64 pixels, resident)
    """
    size = data.train.image(0).size
    n_images = sum(map(len, data.parts.values()))
    if max(size) > _LONGEST_SIDE or n_images * 3 * size[0] * size[1] > _MOST_BYTES:
        return None
    parts: dict[str, Any] = {}
    for part, images in data.parts.items():
        pixels = _decoded(images, size)
        if pixels is None:
            return None
        parts[part] = replace(images, pixels=pixels, files=None)
    return replace(data, **parts, description={**data.description, "in_memory": True})


def _decoded(images: ImageSet, size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """Decode all images, with all cores; None where one has another size."""
    pixels = np.empty((len(images), 3, size[1], size[0]), np.uint8)

    def decode(place: int) -> bool:
        image = images.image(place)
        if image.size == size:
            pixels[place] = np.asarray(image).transpose(2, 0, 1)
        return image.size == size

    # Pillow lets other threads run while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return pixels if all(list(pool.map(decode, range(len(images)), chunksize=64))) else None


def same_content(images: ImageSet) -> NDArray[np.int64]:
    """Give images numbers by their content: copies of one file get the same one.

    Splits keep such groups together, so that no image is in a training and a test set.

    Parameters
    ----------
    images : ImageSet
        In files; those of a size that no other has are not read.

    Returns
    -------
    ndarray of int64
        One number an image.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.images import ImageSet, same_content
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, content in {"a": b"one", "b": b"two", "copy of a": b"one"}.items():
    ...     _ = (folder / name).write_bytes(content)
    >>> images = ImageSet(
    ...     [0, 1, 0], ("ant", "bee"), files=("a", "b", "copy of a"), folder=folder
    ... )
    >>> same_content(images)
    array([0, 1, 0])
    """

    def size_of(path: Path) -> int:
        with reading(path, "an image file. Remove it."):
            return regular(path).stat().st_size

    sizes = list(map(size_of, images.paths))
    common = Counter(sizes)
    numbers: dict[object, int] = {}
    keys = (
        (size, hashlib.sha256(path.read_bytes()).digest()) if common[size] > 1 else path
        for size, path in zip(sizes, images.paths, strict=True)
    )
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
