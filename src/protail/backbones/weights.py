"""Published weights into a backbone, and into a head: all of them fit, or none is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from protail.backbones._checkpoint import read_checkpoint
from protail.backbones._errors import problem

# What wrappers and training programs put before a name.
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "encoder.", "feat_model.")
_CLASSIFIERS = ("fc.", "classifier.", "linear.", "head.")
# What the files of our own runs hold beside a backbone.
_OF_A_RUN = ("representation.", "optimizer.")
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
    >>> from protail.backbones import LoadReport
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
    >>> from protail.backbones import load_weights, make_backbone
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
    backbone = _Places(_arrays(model))
    classifier = _Places(_arrays(head) if head is not None else {})
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


@dataclass
class _Places:
    """The arrays of a module, and what a file has for them."""

    arrays: Mapping[str, Tensor]
    taken: dict[str, Tensor] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

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


def _arrays(module: nn.Module) -> dict[str, Tensor]:
    return {k: value for k, value in module.state_dict().items() if isinstance(value, Tensor)}


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
        cause = (
            "it holds more than there is a place for: another architecture, or parts beside the "
            "backbone"
        )
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
