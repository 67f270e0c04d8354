"""What published checkpoint files hold: names and arrays, under whatever they are nested."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protail._files import read_folder
from protail.backbones._errors import problem
from protail.backbones.shards import INDEX, read_safetensors, read_shards

# Where training programs put the state dict, the last epoch before the best: which epoch is
# best was mostly decided on the test set.
_ENTRIES = ("state_dict", "state_dict_best", "model_state_dict", "model")
_PARTS = ("feat_model", "classifier")
_DEEPEST = 3  # entries inside entries; a mapping that holds itself has no end


class Checkpoint(NamedTuple):
    """The arrays of a file, and the entry they stood under ('' for none)."""

    arrays: dict[str, Tensor]
    entry: str


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the arrays of a file, or of a folder that `save_weights` has made.

    Parameters
    ----------
    path : path-like
        A .safetensors file, an index of shards or the folder it is in, or anything that
        ``torch.save`` wrote. Nothing that could run code is unpickled.

    Returns
    -------
    Checkpoint
        Names and arrays, on the CPU.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from protail.backbones._checkpoint import read_checkpoint
    >>> place = Path(tempfile.mkdtemp()) / "best.pth"
    >>> torch.save({"epoch": 7, "state_dict": {"fc.bias": torch.zeros(1)}}, place)
    >>> read_checkpoint(place)
    Checkpoint(arrays={'fc.bias': tensor([0.])}, entry='state_dict')
    """
    return read_folder(path, _read)


def _read(place: Path) -> Checkpoint:
    if place.is_dir():
        if not (place / INDEX).is_file():
            raise problem(place, f"this folder holds no {INDEX}. Give a file of weights in it.")
        return Checkpoint(read_shards(place / INDEX), "")
    if not place.is_file():
        raise problem(place, "there is no such file. Check the path.")
    if place.stat().st_size == 0:
        raise problem(place, "it is empty. Get a whole copy.")
    if place.name.endswith(".index.json"):
        return Checkpoint(read_shards(place), "")
    if place.suffix == ".safetensors":
        return Checkpoint(read_safetensors(place), "")
    return _state_dict(place, _torch_load(place), "")


def _torch_load(place: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they advise to do without weights_only
            return torch.load(place, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise problem(place, f"it cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # broken bytes fail in many ways inside torch
        if isinstance(error, pickle.UnpicklingError) and _starts_like_a_pickle(place):
            raise problem(
                place,
                "it holds Python objects beside its arrays, or is damaged; objects are not "
                "read, since reading them can run code. Where you trust it, open it with the "
                "program that made it and save the state dict alone.",
            ) from error
        raise problem(
            place,
            "it is damaged, or no checkpoint; expected what torch.save wrote (.pth, .pt, .bin) "
            "or .safetensors. Get a whole copy.",
        ) from error


def _starts_like_a_pickle(place: Path) -> bool:
    with place.open("rb") as file:
        return file.read(2).startswith((b"PK", b"\x80"))


def _state_dict(place: Path, found: Any, entry: str) -> Checkpoint:
    """Go down to the mapping of names to arrays."""
    if isinstance(found, Mapping):
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return Checkpoint({str(key): value for key, value in found.items()}, entry)
        parts = {name: found[name] for name in _PARTS if isinstance(found.get(name), Mapping)}
        if "feat_model" in parts:
            arrays = {
                f"{n}.{key}": value for n, part in parts.items() for key, value in part.items()
            }
            return _state_dict(place, arrays, entry)
        for name in _ENTRIES:
            if isinstance(found.get(name), Mapping) and entry.count(".") < _DEEPEST:
                return _state_dict(place, found[name], f"{entry}.{name}".lstrip("."))
    raise problem(
        place,
        f"it holds {_described(found)}; expected names and arrays, alone or under "
        f"{', '.join(map(repr, _ENTRIES))}. Save module.state_dict().",
    )


def _described(found: Any) -> str:
    if isinstance(found, Mapping):
        others = [key for key, value in found.items() if not isinstance(value, Tensor)]
        names = ", ".join(repr(key) for key in others[:10])
        return f"no array under {names}" if names else "nothing"
    return f"a {type(found).__name__}"
