"""Saving, loading and sharing a fitted classifier."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from protail import ops
from protail._files import OutputError, check_free, explained, new_folder, read_folder
from protail.estimator._card import model_card
from protail.estimator._checks import METHODS, PRIORS, check_device, check_prior, check_settings
from protail.estimator._features import PREPARATION_ARRAYS, PREPARATIONS, as_tensor
from protail.estimator._whitened import space_map
from protail.models.storage import (
    CARD,
    MODEL,
    WEIGHTS,
    Contents,
    Fields,
    FlawError,
    download,
    flaws_told,
    labels_from_json,
    labels_to_json,
    model_format,
    plain_text,
    read_files,
    upload,
    write_files,
)

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

    Classifier = TypeVar("Classifier", bound=PrototypeClassifier)

FORMAT, VERSION = "protail-prototype-classifier", 2
Arrays = dict[str, NDArray[Any]]
DTypes = tuple[type[np.generic], ...]
PICTURE = "accuracy.png"
_OURS = (MODEL, WEIGHTS, CARD, PICTURE)
KEYS = (
    "settings",
    "classes",
    "feature_names",
    "normalize",
    "feature_scale",
    "scale",
    "choices",
    "evaluation",
    "about",
)
_WHITENED_CHOICES = (
    "method",
    "preparation",
    "ridge",
    "shrinkage",
    "logit_adjustment",
    "learned",
    "novelty_limit",
    "doubt_limit",
    "leave_one_out_accuracy",
    "memorised",
    "local_width",
    "why",
)
_PAPER_CHOICES = (
    "method",
    "distance",
    "temperature",
    "leave_one_out_accuracy",
    "memorised",
    "normalize",
    "feature_scale",
    "logit_adjustment",
    "logit_scale",
    "lr",
    "steps",
    "batch_size",
)
# Tensors of a whitened space.
_LINEAR = ("coef", "intercept", "covariance", "space_centre")
# They come where logits are corrected near training rows.
_LOCAL = ("landmarks", "local_coef")
# Settings that classifiers of 0.1.0 do not have; they are what is called "paper" now.
_SINCE_0_1 = {"method": "paper", "memorised": "auto", "local": True, "reject": None}
# Where to compute and how much to say belong to the machine and the moment, not to the model.
_NOT_KEPT = ("device", "verbose")
_PRIOR_IN_WEIGHTS = {"tensor": "prior"}


class SavingMixin:
    """Model folders: two files that hold the classifier, and a card for people."""

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        evaluation: Any = None,
        about: str | None = None,
        picture: bytes | None = None,
    ) -> None:
        """Write the fitted classifier to a folder.

        The folder gets ``model.json`` (readable), ``weights.safetensors`` (the arrays) and
        ``README.md`` (a model card, yours to edit). It appears when all is written; nothing half
        written stays. Whoever loads it while it is replaced gets the old model or the new one.
        Loaded again, it gives the same answers, to the bit.

        Parameters
        ----------
        folder : path-like
            Where to write it. Missing folders above it are made.
        overwrite : bool, default=False
            Whether a model that is already there may be replaced, its card and picture included;
            other files in its folder stay. A folder without a model is never replaced.
        evaluation : Evaluation or dict, optional
            Scores to write down: a ``protail.Evaluation`` or what its ``to_dict()`` gives.
        about : str, optional
            How the model was made, in your words.
        picture : bytes, optional
            A PNG file, as `protail.report.accuracy_picture` draws it; the card shows it.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from protail import PrototypeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> folder = tempfile.mkdtemp()
        >>> PrototypeClassifier(random_state=0).fit(X, y).save(folder, about="iris")
        >>> PrototypeClassifier.load(folder).predict(X[:2])
        array([0, 0])
        """
        check_replaceable(Path(folder), overwrite=overwrite)
        name = Path(folder).absolute().name
        prepared = prepare(self, evaluation, about, name, picture)
        prepared.write(folder, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str | torch.device = "auto") -> Self:
        """Read a classifier that `save` has written.

        Nothing is unpickled and no path in the files is followed, so a model of somebody else
        can do no harm. A damaged, altered or unknown one raises ``ModelFileError``.

        Parameters
        ----------
        folder : path-like
            The model's folder.
        device : str or torch.device, default="auto"
            Where it is to compute, wherever it was fitted.

        Returns
        -------
        PrototypeClassifier
            The fitted classifier, with the settings it was made with. A ``random_state`` that
            was a generator is None.

        Examples
        --------
        See `save`.
        """
        check_device(device, None)
        place = Path(folder)

        def read(folder: Path) -> tuple[Contents, Arrays]:
            _, contents, tensors = read_files(folder, {FORMAT: (VERSION, KEYS)})
            return contents, as_arrays(tensors)

        with flaws_told(place):
            contents, arrays = read_folder(place, read)
            return cast(
                Self, restore(cast("type[PrototypeClassifier]", cls), contents, arrays, device)
            )

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        **hub_arguments: Any,
    ) -> Self:
        """Load a classifier from the Hugging Face Hub, or from a folder.

        Parameters
        ----------
        name_or_folder : str or path-like
            A repository, as in ``"user/model"``, or a folder that is there.
        device : str or torch.device, default="auto"
            Where it is to compute.
        **hub_arguments
            For a repository: ``revision``, ``token``, ``cache_dir``, ``force_download`` and
            ``local_files_only``, as in ``huggingface_hub``.

        Returns
        -------
        PrototypeClassifier
            The fitted classifier.

        Examples
        --------
        >>> from protail import PrototypeClassifier
        >>> PrototypeClassifier.from_pretrained("user/model")  # doctest: +SKIP
        """
        name = os.fspath(name_or_folder)
        if os.path.isdir(name) or not isinstance(name_or_folder, str) or _is_a_path(name):
            return cls.load(name, device=device)
        return cls.load(download(name, **hub_arguments), device=device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluation: Any = None,
        about: str | None = None,
        **hub_arguments: Any,
    ) -> str:
        """Share the fitted classifier on the Hugging Face Hub, with its model card.

        Parameters
        ----------
        repo_id : str
            The repository, as in ``"user/model"``; it is made where it is missing.
        evaluation, about
            As for `save`.
        **hub_arguments
            ``private``, ``token``, ``branch``, ``commit_message``, ``create_pr`` and others of
            ``huggingface_hub.ModelHubMixin.push_to_hub``. With ``ignore_patterns="README.md"`` a
            card that was edited there stays.

        Returns
        -------
        str
            Address of the commit.

        Examples
        --------
        >>> from protail import PrototypeClassifier
        >>> classifier = PrototypeClassifier().fit([[1.0, 2.0], [2.0, 1.0]], ["a", "b"])
        >>> classifier.push_to_hub("user/model", private=True)  # doctest: +SKIP
        """
        prepared = prepare(self, evaluation, about, repo_id)
        return upload(repo_id, prepared.write, **hub_arguments)


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be written: what its files hold."""

    contents: Contents
    arrays: Arrays
    card: str
    picture: bytes | None

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the files."""
        with new_folder(folder, overwrite=overwrite, ours=_OURS.__contains__) as temporary:
            tensors = {name: as_tensor(array) for name, array in self.arrays.items()}
            write_files(temporary, FORMAT, VERSION, self.contents, tensors)
            # A label can hold half a character; a card cannot.
            (temporary / CARD).write_bytes(self.card.encode("utf-8", "replace"))
            if self.picture is not None:
                (temporary / PICTURE).write_bytes(self.picture)
            # Once more: something else may have come to stand there.
            check_replaceable(Path(folder), overwrite=overwrite)


def prepare(
    fitted: Any,
    evaluation: Any,
    about: str | None,
    place: str,
    picture: bytes | None = None,
) -> Prepared:
    """Describe a classifier, and make sure that it can be restored, before anything is written."""
    check_is_fitted(fitted)
    contents, arrays = describe(fitted, evaluation, about)
    try:
        restore(type(fitted), contents, arrays, "auto")
    except FlawError as flaw:
        raise ValueError(
            f"this classifier cannot be saved: {flaw.file} {flaw.problem} Correct that, or fit it "
            "again."
        ) from flaw
    shown = None if picture is None else PICTURE
    counts = np.ceil(arrays["class_counts"]).astype(np.int64)  # they may be sums of weights
    card = model_card(contents, counts, place, picture=shown)
    return Prepared(contents, arrays, card, picture)


def check_replaceable(folder: Path, *, overwrite: bool) -> None:
    """Refuse to overwrite what is no model: it could be anything, a home folder included."""
    check_free(folder, overwrite=overwrite, folder=True)
    try:
        is_strange = folder.is_dir() and any(folder.iterdir()) and not is_model(folder)
    except OSError as error:
        raise explained(error, folder) from error
    if is_strange:
        raise OutputError(
            errno.EEXIST,
            f"{folder} is there and holds no protail model, so it is not replaced, not even with "
            "overwrite; expected a free name or a model's folder. Choose another name.",
        )


def classifier_parts(fitted: Any) -> tuple[Contents, dict[str, torch.Tensor]]:
    """Describe a classifier as a part of a larger model: plain values, and tensors."""
    prepared = prepare(fitted, None, None, "")
    return prepared.contents, {name: as_tensor(array) for name, array in prepared.arrays.items()}


def restore_classifier(
    contents: object, tensors: Mapping[str, torch.Tensor], device: str | torch.device
) -> PrototypeClassifier:
    """Make a classifier of what `classifier_parts` gave; raise a `FlawError` for anything else."""
    from protail.estimator._classifier import PrototypeClassifier

    if not isinstance(contents, dict):
        raise FlawError(MODEL, "'classifier' is not a JSON object.")
    return restore(PrototypeClassifier, contents, as_arrays(tensors), device)


def is_model(folder: Path) -> bool:
    """Say whether a folder holds a model of ours; OSError where nobody can say."""
    return model_format(folder) is not None


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Give arrays that share the memory of tensors; raise a `FlawError` for other dtypes."""
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64, torch.int64):
            raise FlawError(
                WEIGHTS, f"has {name!r} as {tensor.dtype}; expected numbers of 64 bits."
            )
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _is_a_path(name: str) -> bool:
    """Whether a name can only be a folder's: repositories are called user/model, or model."""
    return os.path.isabs(name) or name.startswith((".", "~")) or len(Path(name).parts) > 2


def describe(
    fitted: PrototypeClassifier, evaluation: Any, about: str | None
) -> tuple[Contents, Arrays]:
    """Give what `restore` needs: plain values for the JSON, and the arrays, not copied."""
    if about is not None and not isinstance(about, str):
        raise TypeError(f"about is a {type(about).__name__}; expected text or None.")
    tensors: Arrays = {
        "prototypes": fitted.prototypes_,
        "class_means": fitted.class_means_,
        "class_counts": fitted.class_counts_,
    }
    if fitted.choices_["method"] == "paper":
        tensors["history_step"] = np.array(fitted.history_["step"], dtype=np.int64)
        tensors["history_loss"] = np.array(fitted.history_["loss"], dtype=np.float64)
        if fitted.temperature_ is not None:
            tensors["temperature"] = fitted.temperature_
    else:
        tensors |= {name: getattr(fitted, f"{name}_") for name in _LINEAR}
        if fitted.choices_["local_width"] is not None:
            tensors |= {name: getattr(fitted, f"{name}_") for name in _LOCAL}
        tensors |= fitted.preparation_
    settings = fitted.get_params(deep=False)
    if not isinstance(fitted.prior, str):
        tensors["prior"] = check_prior(fitted.prior, fitted.class_counts_)
        settings["prior"] = _PRIOR_IN_WEIGHTS
    names = getattr(fitted, "feature_names_in_", None)
    contents: Contents = {
        "settings": {
            name: _plain_value(name, value)
            for name, value in settings.items()
            if name not in _NOT_KEPT
        },
        "classes": labels_to_json(fitted.classes_),
        "feature_names": None
        if names is None
        else [plain_text(name, "feature_names_in_") for name in names],
        "normalize": _plain_value("normalize_", fitted.normalize_),
        "feature_scale": _plain_value("feature_scale_", fitted.feature_scale_),
        "scale": _plain_value("scale_", fitted.scale_),
        "choices": {name: _plain_value(name, value) for name, value in fitted.choices_.items()},
        "evaluation": _plain_evaluation(evaluation),
        "about": about,
    }
    return contents, tensors


def restore(
    kind: type[Classifier], contents: Contents, tensors: Arrays, device: str | torch.device
) -> Classifier:
    """Make a classifier of what `describe` gave; raise a `FlawError` for anything else."""
    fields = Fields(_upgraded(contents), KEYS, MODEL)
    if not isinstance(fields["evaluation"], (dict, type(None))):
        raise fields.wrong("evaluation", "a JSON object or null")
    if fields["about"] is not None:
        fields.text("about")
    restored = _with_settings(kind, fields["settings"], tensors, device)
    restored.classes_ = labels_from_json(fields["classes"], MODEL)
    restored.normalize_ = fields.number_or_none("normalize", above=0)
    restored.feature_scale_ = fields.number("feature_scale", above=0)
    restored.scale_ = fields.number("scale", above=0)
    restored.choices_ = _choices(fields["choices"])
    _take_arrays(restored, tensors)
    if fields["feature_names"] is not None:
        names = fields.list_of("feature_names", str)
        if len(names) != restored.n_features_in_:
            raise fields.wrong("feature_names", f"{restored.n_features_in_} names")
        restored.feature_names_in_ = np.array(names, dtype=object)
    return restored


def _upgraded(contents: Contents) -> Contents:
    """Add what 0.1.0 did not write down."""
    settings, choices = contents.get("settings"), contents.get("choices")
    if not (isinstance(settings, dict) and isinstance(choices, dict)):
        return contents
    if "method" in choices or _SINCE_0_1.keys() & settings.keys():
        return contents
    upgraded = {"settings": settings | _SINCE_0_1, "choices": choices | {"method": "paper"}}
    return contents | upgraded


def _with_settings(
    kind: type[Classifier], found: object, tensors: Arrays, device: str | torch.device
) -> Classifier:
    names = [name for name in kind().get_params(deep=False) if name not in _NOT_KEPT]
    fields = Fields(found, names, MODEL, "settings")
    settings = {name: fields[name] for name in names}
    if fields["prior"] == _PRIOR_IN_WEIGHTS and "prior" in tensors:
        settings["prior"] = tensors["prior"]
    else:
        fields.one_of("prior", PRIORS)
    if fields["random_state"] is not None and fields.whole("random_state") >= 2**32:
        raise fields.wrong("random_state", "a whole number below 2**32, or null")
    made = kind(**settings, device=device)
    try:
        check_settings(made)
    except (ValueError, TypeError, OverflowError) as error:
        raise FlawError(MODEL, f"has settings that no classifier takes: {error}") from error
    return made


def _choices(found: object) -> dict[str, Any]:
    is_paper = not isinstance(found, dict) or found.get("method") == "paper"
    fields = Fields(found, _PAPER_CHOICES if is_paper else _WHITENED_CHOICES, MODEL, "choices")
    choices = {
        "method": fields.one_of("method", METHODS[1:]),
        "leave_one_out_accuracy": fields.number_or_none("leave_one_out_accuracy", least=0, most=1),
        "memorised": fields.truth("memorised"),
    }
    if not is_paper:
        if (fields["novelty_limit"] is None) != (fields["doubt_limit"] is None):
            raise fields.wrong("doubt_limit", "null where 'novelty_limit' is, and only there")
        return choices | {
            "preparation": fields.one_of("preparation", PREPARATIONS),
            "ridge": fields.number("ridge", above=0),
            "shrinkage": fields.number("shrinkage", least=0),
            "logit_adjustment": fields.number("logit_adjustment"),
            "learned": fields.truth("learned"),
            "local_width": fields.number_or_none("local_width", above=1e-30),
            "novelty_limit": fields.number_or_none("novelty_limit"),
            "why": fields.text("why"),
            "doubt_limit": fields.number_or_none("doubt_limit", least=0, most=1),
        }
    return choices | {
        "distance": fields.one_of("distance", ops.distance_names(ready=True)),
        "temperature": fields.one_of("temperature", (None, *ops.TEMPERATURES)),
        "normalize": fields.number_or_none("normalize", above=0),
        "feature_scale": fields.number("feature_scale", above=0),
        "logit_adjustment": fields.number("logit_adjustment", least=0),
        "logit_scale": fields.number("logit_scale", above=0),
        "lr": fields.number("lr", least=0),
        "steps": fields.whole("steps"),
        "batch_size": fields.whole("batch_size", least=1),
    }


def _take_arrays(restored: PrototypeClassifier, tensors: Arrays) -> None:
    is_paper = restored.choices_["method"] == "paper"
    _check_names(restored, tensors)
    prototypes = tensors["prototypes"]
    n_classes = len(restored.classes_)
    n_channels = max(1, prototypes.shape[-1]) if prototypes.ndim else 1
    table, real = (n_classes, n_channels), (np.float32, np.float64)
    _check(tensors, "prototypes", table, real)
    same = (prototypes.dtype.type,)
    _check(tensors, "class_means", table, same)
    whole = (np.int64,) if is_paper else (np.int64, np.float64)
    _check(tensors, "class_counts", (n_classes,), whole, least=0)
    if not tensors["class_counts"].any():
        raise FlawError(WEIGHTS, "has only zeros in 'class_counts'; expected rows of some class.")
    if not isinstance(restored.prior, str):
        _check(tensors, "prior", (n_classes,), (np.float64,), least=0)
        try:
            check_prior(tensors["prior"], tensors["class_counts"])
        except ValueError as error:
            raise FlawError(WEIGHTS, str(error)) from error
    restored.prototypes_ = prototypes
    restored.class_means_ = tensors["class_means"]
    restored.class_counts_ = tensors["class_counts"]
    restored.temperature_ = None
    restored.history_ = {"step": [], "loss": []}
    (_take_learned if is_paper else _take_space)(restored, tensors, n_channels, same)


def _take_learned(
    restored: PrototypeClassifier, tensors: Arrays, n_channels: int, same: DTypes
) -> None:
    """Take what only the paper's method has."""
    n_classes = len(restored.classes_)
    if scheme := restored.choices_["temperature"]:
        shape = {
            "channel": (1, n_channels),
            "class": (n_classes, 1),
            "dense": (n_classes, n_channels),
        }[scheme]
        _check(tensors, "temperature", shape, same, above=0)
        restored.temperature_ = tensors["temperature"]
    steps = tensors["history_step"]
    _check(tensors, "history_step", (steps.size,), (np.int64,), least=0)
    _check(tensors, "history_loss", (steps.size,), (np.float64,))
    restored.history_ = {"step": steps.tolist(), "loss": tensors["history_loss"].tolist()}
    restored.n_features_in_ = n_channels


def _take_space(
    restored: PrototypeClassifier, tensors: Arrays, n_channels: int, same: DTypes
) -> None:
    """Take what only a whitened space has."""
    n_classes, n_features = len(restored.classes_), max(1, tensors["origin"].size)
    _check(tensors, "coef", (n_classes, n_channels), same)
    _check(tensors, "intercept", (n_classes,), same)
    _check(tensors, "covariance", (n_channels, n_channels), same)
    for name in ("centre", "origin", "spread"):
        _check(tensors, name, (n_features,), same, above=0 if name == "spread" else None)
    if n_features != n_channels or "axes" in tensors:
        _check(tensors, "axes", (n_features, n_channels), same)
    _check(tensors, "space_centre", (n_channels,), same)
    if restored.choices_["local_width"] is not None:
        n_landmarks = len(np.atleast_1d(tensors["landmarks"]))
        _check(tensors, "landmarks", (n_landmarks, n_channels), same)
        _check(tensors, "local_coef", (n_classes, n_landmarks), same)
    for name in (*_LINEAR, *_LOCAL):
        setattr(restored, f"{name}_", tensors.get(name))
    restored.preparation_ = {name: tensors[name] for name in PREPARATION_ARRAYS if name in tensors}
    try:
        space_map(restored)
    except ValueError as error:
        raise FlawError(WEIGHTS, str(error)) from error
    restored.n_features_in_ = n_features


def _check_names(restored: PrototypeClassifier, tensors: Arrays) -> None:
    expected = {"prototypes", "class_means", "class_counts"}
    if restored.choices_["method"] == "paper":
        expected |= {"history_step", "history_loss"}
        expected |= {"temperature"} if restored.choices_["temperature"] is not None else set()
    else:
        expected |= {*_LINEAR, "centre", "spread", "origin", *({"axes"} & tensors.keys())}
        expected |= {*_LOCAL} if restored.choices_["local_width"] is not None else set()
    expected |= set() if isinstance(restored.prior, str) else {"prior"}
    if set(tensors) != expected:
        raise FlawError(
            WEIGHTS,
            f"has the tensors {', '.join(sorted(tensors)) or 'none'}; expected "
            f"{', '.join(sorted(expected))}, as {MODEL} says.",
        )


def _check(
    tensors: Arrays,
    name: str,
    shape: tuple[int, ...],
    dtypes: DTypes,
    *,
    least: float | None = None,
    above: float | None = None,
) -> None:
    array: NDArray[Any] = tensors[name]
    if array.shape != shape or array.dtype.type not in dtypes:
        wanted = " or ".join(dtype.__name__ for dtype in dtypes)
        raise FlawError(
            WEIGHTS,
            f"has {name!r} of shape {array.shape} and dtype {array.dtype}; expected shape {shape} "
            f"and dtype {wanted}.",
        )
    if not array.size:
        return
    # The extremes tell all, without an array of truth values as large as the model.
    low, high = array.min(), array.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise FlawError(WEIGHTS, f"has NaN or infinity in {name!r}; expected finite numbers.")
    if (least is not None and low < least) or (above is not None and low <= above):
        limit = f"at least {least:g}" if least is not None else f"above {above:g}"
        raise FlawError(WEIGHTS, f"has {low} in {name!r}; expected numbers {limit}.")


def _plain_value(name: str, value: Any) -> Any:
    if name == "random_state" and not isinstance(value, (Integral, type(None))):
        return None  # a generator has moved on: there is no seed to write down
    if isinstance(value, (str, bool, type(None), dict)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise ValueError(f"{name}={value!r} is not valid; expected a number, text or None.")


def _plain_evaluation(evaluation: Any) -> Any:
    if evaluation is None:
        return None
    found = evaluation.to_dict() if hasattr(evaluation, "to_dict") else evaluation
    if not isinstance(found, Mapping):
        raise TypeError(
            f"evaluation is a {type(evaluation).__name__}; expected a protail.Evaluation, what its "
            "to_dict() gives, or None."
        )
    return _plain(found)


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's; a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, (str, bool, int, float, type(None))):
        return value
    raise TypeError(
        f"evaluation holds a {type(value).__name__}; expected numbers, text, lists and dicts."
    )
