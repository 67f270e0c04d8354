"""Rows that may be more than memory should hold: blocks, and a file nobody has to remove."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from protail._files import explained

BLOCK_BYTES = 16 << 20
IN_MEMORY_BYTES = 256 << 20


def rows_a_block(row_bytes: int) -> int:
    """Say how many rows make a block of about 16 MiB; at least one."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def row_bytes(rows: NDArray[Any]) -> int:
    """Say how many bytes one row of a 2-d array takes."""
    return int(rows.shape[1]) * rows.itemsize


def spans(n_rows: int, size: int) -> Iterator[slice]:
    """Cut ``range(n_rows)`` into slices of ``size``."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def take(rows: NDArray[Any], index: ArrayLike) -> NDArray[Any]:
    """Take the chosen rows, on disk where they are many.

    Parameters
    ----------
    rows : ndarray, shape (n_rows, width)
        May be memory mapped.
    index : array-like of int or bool
        Which rows, in which order; or a mask of length n_rows.

    Returns
    -------
    ndarray, shape (n_chosen, width)
        In memory below 256 MiB; otherwise mapped from a temporary file, which goes away with the
        array.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.features import take
    >>> take(np.array([[1.0], [2.0], [3.0]]), [2, 0])
    array([[3.],
           [1.]])
    """
    chosen = np.asarray(index)
    if chosen.dtype == bool:
        if chosen.shape != rows.shape[:1]:
            raise ValueError(f"index is a mask of shape {chosen.shape}; expected ({len(rows)},).")
        chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64) if chosen.size == 0 else chosen
    plain = np.asarray(rows)
    parts = spans(len(chosen), rows_a_block(row_bytes(plain)))
    blocks = (plain[chosen[part]] for part in parts)
    return gather(blocks, (len(chosen), plain.shape[1]), plain.dtype)


def gather(
    blocks: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: DTypeLike
) -> NDArray[Any]:
    """Put blocks one below the other, in memory or in a temporary file."""
    kind = np.dtype(dtype)
    if shape[0] * shape[1] * kind.itemsize < IN_MEMORY_BYTES:
        return _in_memory(blocks, shape, kind)
    return _on_disk(blocks, shape, kind)


def _in_memory(
    blocks: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty(shape, dtype)
    filled = 0
    for block in blocks:
        # A block too many does not fit: numpy raises.
        out[filled : filled + len(block)] = block
        filled += len(block)
    _check_filled(filled, shape[0])
    return out


def _on_disk(
    blocks: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    filled = 0
    with tempfile.TemporaryFile(prefix="protail-") as file:
        for block in blocks:
            # Written, not mapped: a full disk is then an error and not the end of the process.
            try:
                file.write(np.ascontiguousarray(block, dtype).data)
                file.flush()
            except OSError as error:
                raise explained(error, Path(tempfile.gettempdir())) from error
            filled += len(block)
        _check_filled(filled, shape[0])
        return np.memmap(file, dtype, "r+", shape=shape)


def _check_filled(filled: int, n_rows: int) -> None:
    if filled != n_rows:
        raise ValueError(f"{filled} rows came; expected {n_rows}. Did the file change meanwhile?")
