"""Picture files: read as RGB, and found out when they cannot be."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protail.data.sets._errors import DataSetError, missing_library

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow raises, format by format, when a file is cut short or no picture.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, struct.error, zlib.error)
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")


def read_picture(path: str | os.PathLike[str]) -> Image:
    """Read a picture file, whole, as 8-bit RGB.

    Parameters
    ----------
    path : path-like
        Any format that Pillow reads.

    Returns
    -------
    PIL.Image.Image
        Mode RGB. Greys, palettes, CMYK and 16 bits are converted; transparency is dropped.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from protail.data.sets import read_picture
    >>> file = Path(tempfile.mkdtemp()) / "grey.png"
    >>> Image.new("L", (4, 2), 7).save(file)
    >>> read_picture(file).getpixel((0, 0))
    (7, 7, 7)
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_library("Pillow", "reading images") from error
    try:
        with Image.open(path) as image:
            return _as_rgb(image)
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataSetError(
            f"{path}: it cannot be read ({reason[:200]}); expected a whole image file. Replace it, "
            "or leave such files out with on_bad_image='skip' (--on-bad-image skip)."
        ) from error


def unreadable(paths: Sequence[Path]) -> list[int]:
    """Read every file and give the positions of those that cannot be read.

    Parameters
    ----------
    paths : sequence of Path
        Picture files.

    Returns
    -------
    list of int
        Ascending.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.data.sets._pictures import unreadable
    >>> unreadable([Path("no-such-image.jpg")])
    [0]
    """
    # Pillow lets other threads run while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fine = list(pool.map(_is_readable, paths, chunksize=64))
    return np.flatnonzero(~np.array(fine, dtype=np.bool_)).tolist()


def _is_readable(path: Path) -> bool:
    try:
        read_picture(path)
    except DataSetError:
        return False
    return True


def _as_rgb(image: Image) -> Image:
    from PIL.Image import fromarray

    if image.mode == "RGB":
        image.load()
        return image.copy()
    if image.mode in _SIXTEEN_BITS:
        # Pillow would cut off everything above 255, not scale it.
        return fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
