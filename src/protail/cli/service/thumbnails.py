"""Training photos that are shown beside an answer, small."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_SIDE = 192
_OF_A_CLASS = 6


class Thumbnails:
    """A few training photos of each class.

    Parameters
    ----------
    files : mapping of int to list of Path
        Photos by the code of their class. Only these are ever read.

    Examples
    --------
    >>> from protail.cli.service import Thumbnails
    >>> Thumbnails({}).number(0)
    0
    """

    def __init__(self, files: Mapping[int, list[Path]]) -> None:
        self._files = dict(files)
        self.thumbnail = lru_cache(maxsize=2048)(self._thumbnail)

    @classmethod
    def in_folders(cls, folder: Path, classes: Iterable[Any]) -> Thumbnails:
        """Find photos in a folder that has one folder for each class.

        Parameters
        ----------
        folder : Path
            Where the class folders are, or ``train`` with them.
        classes : iterable
            Class names, in the order of their codes.

        Returns
        -------
        Thumbnails
            The first few photos of each class.
        """
        from protail.data.images import IMAGE_SUFFIXES

        place = folder / "train" if (folder / "train").is_dir() else folder
        if not place.is_dir():
            raise ValueError(
                f"{folder}: there is no such folder; expected class folders. Check --photos."
            )
        codes = {str(name): code for code, name in enumerate(classes)}
        found: dict[int, list[Path]] = {}
        for below in sorted(place.iterdir()):
            if below.is_dir() and below.name in codes:
                photos = sorted(p for p in below.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
                found[codes[below.name]] = photos[:_OF_A_CLASS]
        if not any(found.values()):
            raise ValueError(
                f"{folder} has photos of none of the model's classes; expected a folder for each "
                f"class, as in {folder}/{next(iter(codes))}. Check --photos."
            )
        return cls(found)

    def number(self, code: int) -> int:
        """Say how many photos of a class there are to show.

        Parameters
        ----------
        code : int
            The class.

        Returns
        -------
        int
            From 0 on.
        """
        return len(self._files.get(code, ()))

    def _thumbnail(self, code: int, number: int) -> bytes | None:
        """Give a JPEG of one photo; None where there is none, or it cannot be read."""
        from protail.data.images import DataSetError, read_image

        if not 0 <= number < self.number(code):
            return None
        try:
            image = read_image(self._files[code][number])
        except (DataSetError, ValueError, OSError):
            return None
        image.thumbnail((_SIDE, _SIDE))
        found = io.BytesIO()
        image.save(found, "JPEG", quality=82)
        return found.getvalue()
