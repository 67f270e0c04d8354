"""Weights on the disk: one safetensors file, or shards of a given size beside an index.

The index is the JSON that other tools read too: ``weight_map`` names the shard of each array.
Under ``metadata`` ours also has the size and SHA-256 of each shard, so that damage is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from protail._files import new_file, new_folder
from protail._messages import unknown_name

INDEX = "weights.safetensors.index.json"

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_WHOLE_COPY = "Get a whole copy."


class WeightsError(ValueError):
    """Say what is wrong with a file of weights, and what to do.

    Examples
    --------
    >>> from protail.models.backbones import WeightsError, make_backbone
    >>> try:
    ...     make_backbone("resnet32", weights="no-such-file.pth")
    ... except WeightsError as error:
    ...     print(error)
    no-such-file.pth: there is no such file. Check the path.
    """


def problem(path: Path, text: str) -> WeightsError:
    """Make the error about a file or folder: what is wrong with it, and what to do."""
    return WeightsError(f"{path}: {text}")


def save_weights(
    state_dict: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    shard_bytes: int | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write weights that `load_weights` reads back.

    Parameters
    ----------
    state_dict : mapping of str to torch.Tensor
        What ``module.state_dict()`` gives.
    path : path-like
        A name that ends in .safetensors becomes one file; any other a folder of shards,
        ``weights-00001-of-00003.safetensors`` and so on, with an index.
    dtype : {"float16", "bfloat16", "float32"}, optional
        Store floating-point arrays in this type; others stay as they are. A number that float16
        cannot hold is an error. The default keeps every type.
    shard_bytes : int, optional
        No shard is larger than this. The default is one shard.
    overwrite : bool, default=False
        Whether weights that are already there may be replaced. Other files in their folder stay.

    Returns
    -------
    list of Path
        The files written; the index is the last.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.models.backbones import make_backbone, save_weights
    >>> backbone = make_backbone("resnet32")
    >>> folder = Path(tempfile.mkdtemp()) / "weights"
    >>> files = save_weights(
    ...     backbone.state_dict(), folder, dtype="float16", shard_bytes=700_000
    ... )
    >>> [file.name for file in files]
    ['weights-00001-of-00002.safetensors', 'weights-00002-of-00002.safetensors',
     'weights.safetensors.index.json']
    >>> same = make_backbone("resnet32", weights=folder)
    """
    place = Path(path)
    arrays = _stored(state_dict, dtype)
    if place.suffix == ".safetensors":
        if shard_bytes is not None:
            raise ValueError(
                f"shard_bytes={shard_bytes!r} makes several files, and {place} is a name for "
                "one. Give the name of a folder, or leave shard_bytes out."
            )
        with new_file(place, overwrite=overwrite) as temporary:
            # Bytes that we write: safetensors reports a full disk as something else.
            temporary.write_bytes(save(arrays))
        return [place]
    shards = _dealt_out(arrays, shard_bytes)
    described: dict[str, dict[str, object]] = {}
    weight_map: dict[str, str] = {}
    with new_folder(place, overwrite=overwrite, ours=is_of_weights) as folder:
        for number, keys in enumerate(shards, start=1):
            name = f"weights-{number:05d}-of-{len(shards):05d}.safetensors"
            content = save({key: arrays[key] for key in keys})
            (folder / name).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            described[name] = {"bytes": len(content), "sha256": digest}
            weight_map |= dict.fromkeys(keys, name)
        total = sum(array.nbytes for array in arrays.values())
        metadata = {"total_size": total, "shards": described}
        index = json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2)
        (folder / INDEX).write_text(index + "\n", encoding="utf-8")
    return [place / name for name in (*described, INDEX)]


def is_of_weights(name: str) -> bool:
    """Say whether a file of this name is a shard or the index that `save_weights` writes."""
    return name == INDEX or bool(re.fullmatch(r"weights-\d+-of-\d+\.safetensors", name))


def read_shards(index: Path) -> dict[str, Tensor]:
    """Read all arrays that an index names, in its order."""
    weight_map, known = _read_index(index)
    names = list(dict.fromkeys(weight_map.values()))
    found: dict[str, Tensor] = {}
    for name in names:
        shard = index.parent / name
        if not shard.is_file():
            raise problem(shard, f"this shard, one of {len(names)}, is missing. {_WHOLE_COPY}")
        if isinstance(known.get(name), dict):  # other tools' indexes say nothing of their shards
            _check_shard(shard, known[name])
        arrays = read_safetensors(shard)
        missing = [key for key in weight_map if weight_map[key] == name and key not in arrays]
        if missing:
            raise problem(
                shard, f"{missing[0]!r} is not in it, though {index.name} says so. {_WHOLE_COPY}"
            )
        found |= arrays
    unnamed = [key for key in found if key not in weight_map]
    if unnamed:
        raise problem(index, f"it does not name {unnamed[0]!r}, which a shard holds. {_WHOLE_COPY}")
    return {key: found[key] for key in weight_map}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read one safetensors file, which is there."""
    try:
        return load_file(str(path), device="cpu")
    except SafetensorError as error:
        raise problem(path, f"it is no whole safetensors file ({error}). {_WHOLE_COPY}") from error
    except OSError as error:
        raise problem(path, f"it cannot be read: {error.strerror or error}.") from error


def _stored(state_dict: Mapping[str, Tensor], dtype: str | None) -> dict[str, Tensor]:
    """Copy tensors in the type in which they are stored."""
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(unknown_name("dtype", dtype, _DTYPES))
    if not isinstance(state_dict, Mapping) or not state_dict:
        raise TypeError(
            f"state_dict is {'empty' if isinstance(state_dict, Mapping) else state_dict!r:.80}; "
            "expected names and tensors. Give module.state_dict()."
        )
    arrays = {}
    for key, tensor in state_dict.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise TypeError(
                f"state_dict has {key!r} as {type(tensor).__name__}; expected a name and a "
                "tensor. Give module.state_dict()."
            )
        source = tensor.detach().cpu()
        kind = source.dtype
        if dtype is not None and source.is_floating_point():
            kind = _DTYPES[dtype]
        # A clone in plain order: safetensors takes neither shared memory nor channels-last.
        arrays[key] = source.to(kind).clone(memory_format=torch.contiguous_format)
        if kind != source.dtype and bool((arrays[key].isinf() & ~source.isinf()).any()):
            raise ValueError(
                f"state_dict has {source.abs().max().item():.4g} in {key!r}, which {kind} cannot "
                "hold. Use another one (dtype=, --dtype), such as 'bfloat16'."
            )
    return arrays


def _dealt_out(arrays: Mapping[str, Tensor], limit: int | None) -> list[list[str]]:
    """Deal the names out in order, so that no file is larger than ``limit``."""
    if limit is None:
        return [list(arrays)]
    if type(limit) is not int or limit < 1:
        raise ValueError(f"shard_bytes={limit!r}; expected a whole number from 1 on.")
    frame = 64  # the length of the header, what stands in it for no array, and padding
    # An array takes its numbers, and its entry in the header.
    sizes = {
        key: array.nbytes + len(json.dumps(key)) + 100 + 21 * array.dim()
        for key, array in arrays.items()
    }
    largest = max(sizes, key=sizes.__getitem__)
    if frame + sizes[largest] > limit:
        raise ValueError(
            f"shard_bytes={limit} is too small for {largest!r}; expected "
            f"{frame + sizes[largest]} or more (shard_bytes=, --max-shard-size)."
        )
    shards: list[list[str]] = []
    left = 0
    for key, size in sizes.items():
        if size > left:
            shards.append([])
            left = limit - frame
        shards[-1].append(key)
        left -= size
    return shards


def _read_index(index: Path) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
        weight_map = document["weight_map"]
        known = document.get("metadata", {}).get("shards", {})
        # Never a path: files elsewhere are nobody's to name.
        sound = bool(weight_map) and all(
            isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")
            for name in weight_map.values()
        )
        if not sound or not isinstance(known, dict):
            raise ValueError("'weight_map' must give the file beside it that holds each array")
    except OSError as error:
        raise problem(index, f"it cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise problem(
            index, f"it is no index of shards ({type(error).__name__}: {error}). {_WHOLE_COPY}"
        ) from error
    return weight_map, known


def _check_shard(shard: Path, described: Mapping[str, object]) -> None:
    size = shard.stat().st_size
    if size != described.get("bytes"):
        raise problem(
            shard, f"it has {size} bytes; expected {described.get('bytes')}. {_WHOLE_COPY}"
        )
    with shard.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != described.get("sha256"):
        raise problem(shard, f"it does not agree with its checksum in the index. {_WHOLE_COPY}")
