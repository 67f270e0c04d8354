"""Checkpoints: tensors and a record in one file that is whole or not there.

A checkpoint is a safetensors file. Its record is JSON in the file's metadata, beside a checksum
of every byte, so a file that was cut or changed anywhere is found out. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from protail._files import new_file, regular
from protail._messages import upgrade_advice

__all__ = [
    "Checkpoint", "CheckpointError", "load_checkpoint", "restore_training_state", "save_checkpoint",
    "training_state",
]  # fmt: skip

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
_DAMAGED = "It is damaged or was changed: use another checkpoint, or train again from scratch."


class CheckpointError(ValueError):
    """Say what is wrong with a checkpoint, and what to do.

    Examples
    --------
    >>> from protail.experiments.checkpoint import CheckpointError, load_checkpoint
    >>> try:
    ...     load_checkpoint("no-such-file.safetensors")
    ... except CheckpointError as error:
    ...     print(error)
    no-such-file.safetensors: there is no such file; expected a checkpoint.
    Check the path.
    """


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint, contiguous and as they were saved, and its record."""

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
        The file.
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
    >>> from protail.experiments.checkpoint import load_checkpoint, save_checkpoint
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> save_checkpoint(path, {"weight": torch.ones(2)}, {"epoch": 3})
    >>> load_checkpoint(path)
    Checkpoint(tensors={'weight': tensor([1., 1.])}, record={'epoch': 3})
    """
    _check_tensors(tensors)
    # Written by hand: safetensors orders its metadata at random, refuses tensors that share
    # memory, and needs all bytes at once. Wide numbers first, so that each tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header = _header(ordered, as_json(record, "record"))
    digest = hashlib.sha256(header)
    with new_file(path, overwrite=True) as temporary, temporary.open("wb") as file:
        file.write(header)
        for _, tensor in ordered:
            contiguous = tensor.detach().cpu().contiguous()
            # With one value or none, any stride is contiguous, but its bytes cannot be viewed.
            flat = contiguous.as_strided((contiguous.numel(),), (1,))
            block = flat.view(torch.uint8).numpy().data
            file.write(block)
            digest.update(block)
        file.seek(header.index(_BEFORE_CHECKSUM) + len(_BEFORE_CHECKSUM))
        file.write(digest.hexdigest().encode())


def load_checkpoint(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Checkpoint:
    """Read a checkpoint back, with every byte of it checked.

    Parameters
    ----------
    path : path-like
        A file that `save_checkpoint` has written.
    device : str or torch.device, default="cpu"
        Where the tensors are put.

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
    >>> from protail.experiments.checkpoint import load_checkpoint, save_checkpoint
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> save_checkpoint(path, {"counts": torch.tensor([4, 2])}, {"step": 10})
    >>> load_checkpoint(path).tensors["counts"]
    tensor([4, 2])
    """
    place = Path(path)
    # Read at once: a training that goes on may replace the file at any moment.
    raw = _read(place)
    metadata = _metadata(place, raw)
    version = metadata.get("format_version")
    if not (isinstance(version, str) and version.isdecimal()):
        raise CheckpointError(f"{place}: has no valid format version. {_DAMAGED}")
    if int(version) > VERSION:
        raise CheckpointError(
            f"{place}: made by a newer protail (format {version}; this one reads up to "
            f"{VERSION}). {upgrade_advice()}."
        )
    _check_whole(place, raw)
    try:
        record = read_object(metadata.get("record", ""))
        tensors = safetensors.torch.load(raw)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{place}: is no valid checkpoint ({error}). {_DAMAGED}") from error
    return Checkpoint({name: part.to(device) for name, part in tensors.items()}, record)


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
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


def _header(ordered: list[tuple[str, Tensor]], record: dict[str, Any]) -> bytes:
    """Make the start of a safetensors file, with zeros in the place of the checksum."""
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


def _read(place: Path) -> bytes:
    try:
        return regular(place).read_bytes()
    except FileNotFoundError:
        problem = "there is no such file; expected a checkpoint. Check the path."
        raise CheckpointError(f"{place}: {problem}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{place}: cannot be read: {reason}. Check the path.") from error


def _metadata(place: Path, raw: bytes) -> dict[str, Any]:
    """Read the metadata, or raise unless it says that the file is a checkpoint."""
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


def training_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Name every tensor that a training step may change.

    Parameters
    ----------
    module : nn.Module
        Its parameters and all its buffers, also those its ``state_dict`` leaves out.
    optimizer : torch.optim.SGD
        The momentum of parameters of the module; zeros before the first step. Learning rates are
        not part of it: the schedule sets them.

    Returns
    -------
    dict of str to Tensor
        The tensors themselves, not copies: ``module.NAME`` and ``optimizer.KEY.NAME``.

    Examples
    --------
    >>> import torch
    >>> from protail.experiments.checkpoint import training_state
    >>> model = torch.nn.Linear(2, 1)
    >>> list(training_state(model, torch.optim.SGD(model.parameters(), momentum=0.9)))
    ['module.weight', 'module.bias',
     'optimizer.momentum_buffer.weight', 'optimizer.momentum_buffer.bias']
    """
    if not isinstance(optimizer, SGD):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; expected SGD, whose state is known here."
        )
    parameters = dict(module.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    state = {**parameters, **dict(module.named_buffers())}
    tensors = {f"module.{name}": tensor.detach() for name, tensor in state.items()}
    learned = [(group, each) for group in optimizer.param_groups for each in group["params"]]
    for place, (group, parameter) in enumerate(learned):
        if id(parameter) not in names:
            raise ValueError(
                f"optimizer has at place {place} a parameter of shape "
                f"{tuple(parameter.shape)} that is not in module; expected parameters of the "
                "module only. Make the optimizer from module.parameters()."
            )
        if group["dampening"]:
            # Its first step does not dampen: no momentum yet differs from a momentum of zeros.
            raise ValueError(f"optimizer has dampening={group['dampening']}; expected 0.")
        if group["momentum"]:
            own = optimizer.state[parameter]
            if own.get("momentum_buffer") is None:
                own["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
            tensors[f"optimizer.momentum_buffer.{names[id(parameter)]}"] = own["momentum_buffer"]
    return tensors


def restore_training_state(
    tensors: Mapping[str, Tensor], module: nn.Module, optimizer: Optimizer
) -> None:
    """Copy what `training_state` gave back into a training, once all of it is checked.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The state; on any device. Its values are copied into the tensors that are there, so
        whatever refers to these, such as a CUDA graph, stays valid.
    module : nn.Module
        Built as the one the state is from.
    optimizer : torch.optim.SGD
        Built as the one the state is from; it need not have taken a step.

    Examples
    --------
    >>> import torch
    >>> from protail.experiments.checkpoint import restore_training_state, training_state
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    >>> state = {k: torch.ones_like(v) for k, v in training_state(model, optimizer).items()}
    >>> restore_training_state(state, model, optimizer)
    >>> model.bias
    Parameter containing:
    tensor([1.], requires_grad=True)
    """
    own = training_state(module, optimizer)
    flaws = [f"{name} is missing" for name in own if name not in tensors]
    flaws += [f"{name} is unknown" for name in tensors if name not in own]
    flaws += [
        f"{name} is {_described(tensors[name])}, expected {_described(tensor)}"
        for name, tensor in own.items()
        if name in tensors and _described(tensors[name]) != _described(tensor)
    ]
    if flaws:
        raise ValueError(
            f"tensors do not fit this module and optimizer: {'; '.join(flaws)}. Build both as "
            "they were when the state was saved."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def as_json(value: object, where: str) -> Any:
    """Give ``value`` as strict JSON will give it back; raise, saying where, if it cannot."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {float(value)}; expected a finite number.")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [as_json(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; expected text as keys.")
        return {key: as_json(item, f"{where}.{key}") for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__name__}; expected text, a number, true or false, nothing, "
        "or a list or mapping of these."
    )


def read_object(text: str | bytes) -> dict[str, Any]:
    """Parse a strict JSON object; whatever is wrong with the text is a ValueError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a finite number")

    if not isinstance(text, (str, bytes)):
        raise ValueError("not text")
    try:
        found = json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
