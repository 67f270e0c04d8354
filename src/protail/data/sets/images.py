"""Labelled images, in memory or in files, and the parts of a data set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail.data.sets._errors import missing_library
from protail.data.sets._pictures import read_picture
from protail.profile import ClassProfile, class_codes

if TYPE_CHECKING:
    from PIL.Image import Image


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
        The number of every image in the set that this one was drawn from.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import ImageSet
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
        if self.pixels is not None:
            if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3:
                raise ValueError(
                    f"pixels has shape {self.pixels.shape} and dtype {self.pixels.dtype}; expected "
                    "(n, 3, height, width) and uint8."
                )
            self._check_length("pixels", self.pixels)
        if self.files is not None:
            object.__setattr__(self, "files", tuple(self.files))
            self._check_length("files", self.files)
        if self.origin is not None:
            object.__setattr__(self, "origin", np.asarray(self.origin, dtype=np.int64))
            self._check_length("origin", self.origin)

    def _check_length(self, name: str, values: Sequence[object] | NDArray[Any]) -> None:
        if len(values) != len(self.labels):
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
        >>> from protail.data.sets import ImageSet
        >>> images = ImageSet([0, 1, 1], ("ant", "bee"), files=("a.png", "b.png", "c.png"))
        >>> images.subset([2, 0]).files
        ('c.png', 'a.png')
        """
        chosen = np.arange(len(self))[np.asarray(index)]
        return ImageSet(
            labels=self.labels[chosen],
            classes=self.classes,
            pixels=None if self.pixels is None else self.pixels[chosen],
            files=None if self.files is None else tuple(self.files[i] for i in chosen),
            folder=self.folder,
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
        >>> from protail.data.sets import ImageSet
        >>> images = ImageSet([0], ("ant",), np.full((1, 3, 2, 2), 9, np.uint8))
        >>> images.image(0).getpixel((1, 1))
        (9, 9, 9)
        """
        if self.files is not None:
            return read_picture(self.folder / self.files[i])
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_library("Pillow", "giving single images") from error
        assert self.pixels is not None
        return Image.fromarray(np.ascontiguousarray(self.pixels[i].transpose(1, 2, 0)))

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
        >>> from protail.data.sets import ImageSet
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
    """Hold what to train on and what to judge on.

    Parameters
    ----------
    name : str
        The name it is registered by.
    train, test : ImageSet
        Its parts, with the same classes.
    validation : ImageSet, optional
        A part to choose on, where the data set comes with one.
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
    >>> from protail.data.sets import DataSet, ImageSet
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
        parts = {
            "train": self.train,
            "classifier_train": self.classifier_train,
            "validation": self.validation,
            "test": self.test,
        }
        return {name: images for name, images in parts.items() if images is not None}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(images)} {part}" for part, images in self.parts.items())
        return f"DataSet({self.name}: {sizes}, {len(self.train.classes)} classes)"
