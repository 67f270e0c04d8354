"""Weights into a backbone, and into a head: all of them fit, or none is loaded."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from protail._files import read_folder
from protail.models.backbones.shards import INDEX, problem, read_safetensors, read_shards

# Where training programs put the state dict, the last epoch before the best: which epoch is
# best was mostly decided on the test set.
_ENTRIES = ("state_dict", "state_dict_best", "model_state_dict", "model")
_PARTS = ("feat_model", "classifier")
_DEEPEST = 3  # entries inside entries; a mapping that holds itself has no end
# What wrappers and training programs put before a name.
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "encoder.", "feat_model.")
_CLASSIFIERS = ("fc.", "classifier.", "linear.", "head.")
# What the files of our own runs hold beside a backbone.
_OF_A_RUN = ("representation.", "optimizer.")
_BUNDLED = "resnet32-cifar100-lt.safetensors"
# Batch norm counts its batches and never uses the number; old checkpoints lack it.
_COUNTER = "num_batches_tracked"


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


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, head: nn.Module | None = None
) -> LoadReport:
    """Load published weights into a backbone, and its classifier into a head.

    Names may be nested under ``state_dict``, ``state_dict_best``, ``model_state_dict`` or
    ``model`` (where a file has several, the first of these), with ``feat_model`` and
    ``classifier`` parts, and may start with ``module.``, ``backbone.``, ``encoder.`` or
    ``feat_model.``. Numbers are converted to the type the model has.

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
        raise problem(place, _misfit(stored, backbone, classifier, homeless))
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
    hint = ""
    if any(key.startswith(_OF_A_RUN) for key in stored):
        hint = (
            " It is a file of a run: 'protail weights RUN -o FOLDER' writes the backbone alone; "
            "give that folder."
        )
    return f"{cause}. Nothing was loaded. {found}.{hint}"


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
        return f"the entries {', '.join(map(repr, list(found)[:10])) or 'of nothing'}"
    return f"a {type(found).__name__}"
