"""A fitted classifier as plain values and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from protail import ops
from protail.estimator._checks import check_prior, check_settings
from protail.estimator._fields import Fields, FlawError
from protail.estimator._labels import labels_from_json, labels_to_json, plain_text
from protail.estimator._model_file import MODEL, WEIGHTS, Contents, Tensors

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

    Classifier = TypeVar("Classifier", bound=PrototypeClassifier)

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
_CHOICES = (
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
# Where to compute and how much to say belong to the machine and the moment, not to the model.
_NOT_KEPT = ("device", "verbose")
_PRIOR_IN_WEIGHTS = {"tensor": "prior"}


def describe(
    fitted: PrototypeClassifier, evaluation: Any, about: str | None
) -> tuple[Contents, Tensors]:
    """Give what `restore` needs to make the classifier again.

    Parameters
    ----------
    fitted : PrototypeClassifier
        A fitted classifier.
    evaluation : object with to_dict, mapping or None
        Its scores.
    about : str or None
        How it was made.

    Returns
    -------
    contents : dict
        Plain values for the JSON.
    tensors : dict of str to ndarray
        The arrays; none is copied.
    """
    if about is not None and not isinstance(about, str):
        raise TypeError(f"about is a {type(about).__name__}; expected text or None.")
    tensors: Tensors = {
        "prototypes": fitted.prototypes_,
        "class_means": fitted.class_means_,
        "class_counts": fitted.class_counts_,
        "history_step": np.array(fitted.history_["step"], dtype=np.int64),
        "history_loss": np.array(fitted.history_["loss"], dtype=np.float64),
    }
    if fitted.temperature_ is not None:
        tensors["temperature"] = fitted.temperature_
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
    kind: type[Classifier], contents: Contents, tensors: Tensors, device: str | torch.device
) -> Classifier:
    """Make a classifier of what `describe` gave; raise a ``FlawError`` for anything else.

    Parameters
    ----------
    kind : type
        PrototypeClassifier, or a class made from it.
    contents : dict
        With the keys ``KEYS``.
    tensors : dict of str to ndarray
        The arrays; they are not copied.
    device : str or torch.device
        Where it is to compute.

    Returns
    -------
    PrototypeClassifier
        A fitted classifier.
    """
    fields = Fields(contents, KEYS, MODEL)
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


def _with_settings(
    kind: type[Classifier], found: object, tensors: Tensors, device: str | torch.device
) -> Classifier:
    names = [name for name in kind().get_params(deep=False) if name not in _NOT_KEPT]
    fields = Fields(found, names, MODEL, "settings")
    settings = {name: fields[name] for name in names}
    if fields["prior"] == _PRIOR_IN_WEIGHTS and "prior" in tensors:
        settings["prior"] = tensors["prior"]
    else:
        fields.one_of("prior", ("uniform", "train"))
    if fields["random_state"] is not None and fields.whole("random_state") >= 2**32:
        raise fields.wrong("random_state", "a whole number below 2**32, or null")
    made = kind(**settings, device=device)
    try:
        check_settings(made)
    except (ValueError, TypeError, OverflowError) as error:
        raise FlawError(MODEL, f"has settings that no classifier takes: {error}") from error
    return made


def _choices(found: object) -> dict[str, Any]:
    fields = Fields(found, _CHOICES, MODEL, "choices")
    return {
        "distance": fields.one_of("distance", ops.DISTANCES),
        "temperature": fields.one_of("temperature", (None, *ops.TEMPERATURES)),
        "leave_one_out_accuracy": fields.number_or_none("leave_one_out_accuracy", least=0, most=1),
        "memorised": fields.truth("memorised"),
        "normalize": fields.number_or_none("normalize", above=0),
        "feature_scale": fields.number("feature_scale", above=0),
        "logit_adjustment": fields.number("logit_adjustment", least=0),
        "logit_scale": fields.number("logit_scale", above=0),
        "lr": fields.number("lr", least=0),
        "steps": fields.whole("steps"),
        "batch_size": fields.whole("batch_size", least=1),
    }


def _take_arrays(restored: PrototypeClassifier, tensors: Tensors) -> None:
    scheme = restored.choices_["temperature"]
    _check_names(tensors, scheme is not None, not isinstance(restored.prior, str))
    prototypes = tensors["prototypes"]
    n_classes = len(restored.classes_)
    n_features = max(1, prototypes.shape[-1]) if prototypes.ndim else 1
    table, real = (n_classes, n_features), (np.float32, np.float64)
    _check(tensors, "prototypes", table, real)
    same = (prototypes.dtype.type,)
    _check(tensors, "class_means", table, same)
    _check(tensors, "class_counts", (n_classes,), (np.int64,), least=0)
    if not tensors["class_counts"].any():
        raise FlawError(WEIGHTS, "has only zeros in 'class_counts'; expected rows of some class.")
    if scheme is not None:
        shape = {"channel": (1, n_features), "class": (n_classes, 1), "dense": table}[scheme]
        _check(tensors, "temperature", shape, same, above=0)
    if not isinstance(restored.prior, str):
        _check(tensors, "prior", (n_classes,), (np.float64,), least=0)
        try:
            check_prior(tensors["prior"], tensors["class_counts"])
        except ValueError as error:
            raise FlawError(WEIGHTS, str(error)) from error
    steps = tensors["history_step"]
    _check(tensors, "history_step", (steps.size,), (np.int64,), least=0)
    _check(tensors, "history_loss", (steps.size,), (np.float64,))
    restored.prototypes_ = prototypes
    restored.class_means_ = tensors["class_means"]
    restored.class_counts_ = tensors["class_counts"]
    restored.temperature_ = tensors.get("temperature")
    restored.history_ = {"step": steps.tolist(), "loss": tensors["history_loss"].tolist()}
    restored.n_features_in_ = n_features


def _check_names(tensors: Tensors, has_temperature: bool, has_prior: bool) -> None:
    expected = {"prototypes", "class_means", "class_counts", "history_step", "history_loss"}
    expected |= {"temperature"} if has_temperature else set()
    expected |= {"prior"} if has_prior else set()
    if set(tensors) != expected:
        raise FlawError(
            WEIGHTS,
            f"has the tensors {', '.join(sorted(tensors)) or 'none'}; expected "
            f"{', '.join(sorted(expected))}, as {MODEL} says.",
        )


def _check(
    tensors: Tensors,
    name: str,
    shape: tuple[int, ...],
    dtypes: tuple[type[np.generic], ...],
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
