"""Checkpoints: tensors and a record in one file that is whole or not there.

A checkpoint is a safetensors file. Its record is JSON in the file's metadata, beside a checksum
of every byte, so a file that was cut or changed anywhere is found out. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from protail._files import new_file
from protail._messages import upgrade_advice
from protail.training._checkpoint_state import restore_training_state, training_state
from protail.training._run_json import as_json, read_object

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "load_checkpoint",
    "restore_training_state",
    "save_checkpoint",
    "training_state",
]

FORMAT = "protail-checkpoint"
VERSION = 1

_DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}
_METADATA = "__metadata__"
_BEFORE_CHECKSUM = b'"sha256": "'
_NO_CHECKSUM = b"0" * 64
_DAMAGED = "It is damaged or was changed: use another checkpoint, or begin the training anew."


class CheckpointError(ValueError):
    """Say what is wrong with a checkpoint, and what to do.

    Examples
    --------
    >>> from protail.training.checkpoint import CheckpointError, load_checkpoint
    >>> try:
    ...     load_checkpoint("no-such-file.safetensors")
    ... except CheckpointError as error:
    ...     print(error)
    no-such-file.safetensors: there is no such file; expected a checkpoint.
    Check the path.
    """


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes
    ----------
    tensors : dict of str to Tensor
        Contiguous, with the values and dtypes they were saved with.
    record : dict
        What was written down beside them.
    """

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Write tensors and a record to one file.

    A checkpoint that is already there is replaced once the new one is whole on the disk: when
    saving fails, or the process dies in the middle, the old one stays as it was.

    Parameters
    ----------
    path : path-like
        Where the file is to stand.
    tensors : mapping of str to Tensor
        On any device, with any strides.
    record : mapping
        Whatever else is to be remembered (epoch, step, history …), in strict JSON. Tuples come
        back as lists.

    Raises
    ------
    OutputError
        When it cannot be written, for instance because the disk is full.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from protail.training.checkpoint import load_checkpoint, save_checkpoint
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> save_checkpoint(path, {"weight": torch.ones(2)}, {"epoch": 3})
    >>> load_checkpoint(path)
    Checkpoint(tensors={'weight': tensor([1., 1.])}, record={'epoch': 3})
    """
    # Wide numbers first, so that each tensor starts at a multiple of its item size.
    ordered = sorted(_checked(tensors).items(), key=lambda item: -item[1].element_size())
    header = _header(ordered, as_json(record, "record"))
    digest = hashlib.sha256(header)
    with new_file(path, overwrite=True) as temporary, temporary.open("wb") as file:
        file.write(header)
        for _, tensor in ordered:
            block = _little_endian_bytes(tensor)
            file.write(block)
            digest.update(block)
        file.seek(header.index(_BEFORE_CHECKSUM) + len(_BEFORE_CHECKSUM))
        file.write(digest.hexdigest().encode())


def load_checkpoint(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Checkpoint:
    """Read a checkpoint back, every byte of it checked.

    Parameters
    ----------
    path : path-like
        A file that `save_checkpoint` has written.
    device : str or torch.device, default="cpu"
        Where the tensors are to lie.

    Returns
    -------
    Checkpoint
        Its tensors and its record.

    Raises
    ------
    CheckpointError
        When there is no such file, or it is no checkpoint, damaged, or of a newer protail.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from protail.training.checkpoint import load_checkpoint, save_checkpoint
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> save_checkpoint(path, {"counts": torch.tensor([4, 2])}, {"step": 10})
    >>> load_checkpoint(path).tensors["counts"]
    tensor([4, 2])
    """
    place = Path(path)
    # Read at once: a training that goes on may put the next checkpoint here at any moment.
    raw = _read(place)
    metadata = _metadata(place, raw)
    _check_version(place, metadata.get("format_version"))
    _check_whole(place, raw)
    try:
        record = read_object(metadata.get("record", ""))
        tensors = safetensors.torch.load(raw)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{place}: is no valid checkpoint ({error}). {_DAMAGED}") from error
    return Checkpoint({name: part.to(device) for name, part in tensors.items()}, record)


def _checked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors[{name!r}] is a {type(tensor).__name__}; expected a tensor.")
        if not isinstance(name, str) or name == _METADATA:
            raise ValueError(f"tensors has the name {name!r}; expected another text.")
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise ValueError(
                f"tensors[{name!r}] is {tensor.dtype}, {tensor.layout} on {tensor.device}; "
                f"expected a dense tensor with values of one of {dtypes}."
            )
    return dict(tensors)


def _header(ordered: list[tuple[str, Tensor]], record: dict[str, Any]) -> bytes:
    """Give the start of a safetensors file, with nothing in the checksum's place yet."""
    metadata = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "sha256": _NO_CHECKSUM.decode(),
        "record": json.dumps(record, allow_nan=False),
    }
    header: dict[str, Any] = {_METADATA: metadata}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name]["data_offsets"] = [start, end]
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text


def _little_endian_bytes(tensor: Tensor) -> memoryview:
    contiguous = tensor.detach().cpu().contiguous()
    # Of one value or none, any stride counts as contiguous, but no bytes can be viewed over it.
    flat = contiguous.as_strided((contiguous.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except FileNotFoundError:
        problem = "there is no such file; expected a checkpoint. Check the path."
        raise CheckpointError(f"{place}: {problem}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{place}: cannot be read: {reason}. Check the path.") from error


def _metadata(place: Path, raw: bytes) -> dict[str, Any]:
    """Give what the file says of itself, or raise unless it says that it is a checkpoint."""
    try:
        length = struct.unpack("<Q", raw[:8])[0]
        if length > len(raw) - 8:
            raise ValueError("its header is cut off")
        metadata = read_object(raw[8 : 8 + length]).get(_METADATA)
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
    except (ValueError, struct.error) as error:
        raise CheckpointError(
            f"{place}: is no checkpoint ({error}). Expected a file that protail has saved: if "
            "this is one, it is damaged, and another one is needed."
        ) from error
    return metadata


def _check_version(place: Path, version: object) -> None:
    if not (isinstance(version, str) and version.isdecimal()):
        raise CheckpointError(f"{place}: has no valid format version. {_DAMAGED}")
    if int(version) > VERSION:
        raise CheckpointError(
            f"{place}: made by a newer protail (format {version}; this one reads up to "
            f"{VERSION}). {upgrade_advice()}."
        )


def _check_whole(place: Path, raw: bytes) -> None:
    """Raise unless the checksum, with zeros in its own place, is that of all bytes."""
    start = raw.find(_BEFORE_CHECKSUM) + len(_BEFORE_CHECKSUM)
    end = start + len(_NO_CHECKSUM)
    view = memoryview(raw)
    digest = hashlib.sha256(view[:start])
    digest.update(_NO_CHECKSUM)
    digest.update(view[end:])
    if digest.hexdigest().encode() != raw[start:end]:
        raise CheckpointError(f"{place}: does not agree with its checksum. {_DAMAGED}")
