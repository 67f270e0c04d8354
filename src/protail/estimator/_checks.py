"""Checking what users give: every error names the argument, what came and what was expected."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from protail import ops
from protail._files import check_mapped
from protail._messages import counted, unknown_name
from protail.data.tables import ShardedRows
from protail.estimator._features import Rows, as_tensor
from protail.profile import host_array

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier
    from protail.estimator._predicting import PredictingMixin

METHODS = ("auto", "whitened", "closed-form", "paper")
# The settings of the constructor that only the paper's method has.
PAPER_SETTINGS = (
    "distance",
    "temperature",
    "logit_adjustment",
    "normalize",
    "epochs",
    "max_steps",
    "lr",
    "temperature_lr",
    "momentum",
    "batch_size",
    "sampling",
)
PRIORS = ("uniform", "train", "estimate")
SAMPLINGS = ("class-balanced", "instance", "square-root")
_CHECKED_AT_A_TIME = 2**22
# No row counts more often than this: sums of two such would lose the others.
_MOST_WEIGHT = 1e9


Auto = Literal["auto"]


@dataclass(frozen=True)
class Settings:
    """What the user asked of the fit, checked; ``method`` is "auto" only where rows decide."""

    method: str
    memorised: bool | Auto
    distance: str
    temperature: str | None
    logit_adjustment: float | Auto
    normalize: float | Auto | None
    epochs: int | Auto
    max_steps: int | None
    lr: float | Auto
    temperature_lr: float
    momentum: float
    batch_size: int | Auto
    sampling: str
    reject: float | None
    verbose: bool


def check_settings(estimator: PrototypeClassifier) -> Settings:
    """Check every argument of the constructor but prior and device, which data decide."""
    given = estimator.get_params()
    if given["method"] not in METHODS:
        raise ValueError(unknown_name("method", given["method"], METHODS))
    memorised = given["memorised"]
    if not (isinstance(memorised, (bool, np.bool_)) or memorised == "auto"):
        raise ValueError(f"memorised={memorised!r} is not valid; expected True, False or 'auto'.")
    given["memorised"] = memorised if isinstance(memorised, str) else bool(memorised)
    if not isinstance(given["local"], (bool, np.bool_)):
        raise ValueError(f"local={given['local']!r} is not valid; expected True or False.")
    # A distance with a map of its own cannot be made from its name alone.
    distances = ops.distance_names(ready=True)
    for name, valid in (("distance", distances), ("sampling", SAMPLINGS)):
        if given[name] not in valid:
            raise ValueError(unknown_name(name, given[name], valid))
    if given["temperature"] is not None and given["temperature"] not in ops.TEMPERATURES:
        names = [name for name in ops.TEMPERATURES if name is not None]
        raise ValueError(
            unknown_name("temperature", given["temperature"], names) + " None is fine."
        )
    _check_number(given, "logit_adjustment", least=0, or_auto=True)
    _check_number(given, "normalize", above=0, or_auto=True, or_none=True)
    _check_number(given, "epochs", least=0, whole=True, or_auto=True)
    _check_number(given, "max_steps", least=1, whole=True, or_none=True)
    _check_number(given, "lr", above=0, or_auto=True)
    _check_number(given, "temperature_lr", least=0)
    _check_number(given, "momentum", least=0, below=1)
    _check_number(given, "batch_size", least=1, whole=True, or_auto=True)
    _check_number(given, "reject", above=0, below=1, or_none=True)
    # numpy's small integers overflow in sums that Python's carry through.
    given |= {name: int(n) for name, n in given.items() if isinstance(n, np.integer)}
    given["method"] = _method(estimator, given)
    names = [name for name in Settings.__dataclass_fields__ if name != "verbose"]
    return Settings(**{name: given[name] for name in names}, verbose=bool(given["verbose"]))


def _method(estimator: PrototypeClassifier, given: dict[str, Any]) -> str:
    """Find the method that the settings ask for."""
    method: str = given["method"]
    default = {
        name: parameter.default
        for name, parameter in inspect.signature(type(estimator).__init__).parameters.items()
    }
    own = [name for name in PAPER_SETTINGS if given[name] != default.get(name, given[name])]
    if method == "auto":
        method = "paper" if own or given["memorised"] is True else "auto"
    elif own and method != "paper":
        raise ValueError(
            f"{own[0]}={given[own[0]]!r} is a setting of method='paper', and method is {method!r}; "
            "expected one or the other. Leave it out, or set method='paper'."
        )
    if method == "paper" and given["reject"] is not None:
        raise ValueError(
            f"reject={given['reject']!r} needs training rows that are scored without themselves, "
            "which method='paper', and what implies it, does not have; expected None. Leave it "
            "out, or set method='whitened'."
        )
    return method


def check_weights(sample_weight: Any, n_rows: int, method: str) -> NDArray[np.float64] | None:
    """Check how often each row counts."""
    if sample_weight is None:
        return None
    if method == "paper":
        raise ValueError(
            "sample_weight was given with method='paper', or with a setting that only this method "
            "has; expected none. Leave it out, or set method='whitened'."
        )
    given = host_array(sample_weight) if isinstance(sample_weight, torch.Tensor) else sample_weight
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("sample_weight is not numeric; expected one number a row.") from error
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.shape != (n_rows,):
        raise ValueError(
            f"sample_weight.shape == {weights.shape}, and X has {n_rows} rows; expected one number "
            "a row."
        )
    # A comparison with NaN is never true.
    if not (weights.min() >= 0 and weights.max() <= _MOST_WEIGHT and weights.any()):
        raise ValueError(
            f"sample_weight has smallest number {weights.min()} and largest {weights.max()}; "
            f"expected how often each row counts: from 0 to {_MOST_WEIGHT:g}, and not every weight "
            "zero."
        )
    return weights


def check_total(weights: NDArray[np.float64], n_classes: int) -> None:
    """Refuse weights that compare rows but do not count them."""
    if (total := weights.sum()) < n_classes * (1 - 1e-9):  # 1 / count has rounding
        raise ValueError(
            f"sample_weight sums to {total:g}, and y has {n_classes} classes; expected how often "
            "each row counts, which is at least one row a class on average. Multiply weights that "
            "only compare rows, by len(y) / sample_weight.sum()."
        )


def _check_number(
    given: dict[str, Any],
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    or_auto: bool = False,
    or_none: bool = False,
) -> None:
    value: Any = given[name]
    if (or_auto and isinstance(value, str) and value == "auto") or (or_none and value is None):
        return
    kind = Integral if whole else Real
    if isinstance(value, kind) and not isinstance(value, bool):
        number = float(value)
        enough = (least is None or number >= least) and (above is None or number > above)
        if enough and number < (np.inf if below is None else below):
            return
    limits = [
        f"{word} {limit}"
        for word, limit in (("at least", least), ("above", above), ("below", below))
        if limit is not None
    ]
    expected = f"a {'whole' if whole else 'finite'} number {' and '.join(limits)}"
    others = [f"{word}" for word, ok in (("'auto'", or_auto), ("None", or_none)) if ok]
    raise ValueError(
        f"{name}={value!r} is not valid; expected {', or '.join([expected, *others])}."
    )


class CheckedRows(NamedTuple):
    """Feature rows, and how many of them are all zeros."""

    rows: Rows
    n_zeros: int


def check_rows(estimator: PredictingMixin, X: Any, *, reset: bool) -> CheckedRows:
    """Check feature rows; nothing is copied that need not be."""
    n_dimensions = getattr(X, "ndim", None)
    if n_dimensions is not None and n_dimensions != 2:
        raise ValueError(
            f"X has {n_dimensions} dimensions, shape {tuple(X.shape)}; expected 2: rows and "
            "features. Reshape your data, for a single row with X.reshape(1, -1)."
        )
    if isinstance(X, ShardedRows):
        return CheckedRows(X, _check_sharded(estimator, X, reset=reset))
    if isinstance(X, torch.Tensor) and (X.is_cuda or X.dtype == torch.bfloat16):
        rows: NDArray[Any] | torch.Tensor = _check_tensor(estimator, X, reset=reset)
    else:
        rows = validate_data(
            estimator,
            host_array(X) if isinstance(X, torch.Tensor) else X,
            reset=reset,
            dtype=[np.float64, np.float32, np.float16],
            ensure_all_finite=False,
        )
    return CheckedRows(rows, _check_values(rows))


def _check_tensor(estimator: PredictingMixin, X: torch.Tensor, *, reset: bool) -> torch.Tensor:
    """Do for a tensor that numpy cannot hold what scikit-learn does for arrays."""
    if 0 in X.shape or X.is_complex():
        raise ValueError(
            f"X is {X.dtype} of shape {tuple(X.shape)}; expected real numbers, at least one row "
            "and one feature."
        )
    _check_width(estimator, X.shape[1], reset=reset)
    return X.detach() if X.is_floating_point() else X.detach().double()


def _check_width(estimator: PredictingMixin, n_features: int, *, reset: bool) -> None:
    if reset:
        estimator.n_features_in_ = n_features
        vars(estimator).pop("feature_names_in_", None)
    elif n_features != estimator.n_features_in_:
        raise ValueError(
            f"X has {n_features} features, but PrototypeClassifier is expecting "
            f"{estimator.n_features_in_} features as input."
        )


def _check_sharded(estimator: PredictingMixin, rows: ShardedRows, *, reset: bool) -> int:
    """Check the rows of several files where their engine reads them, if that was not done yet."""
    if not len(rows):
        raise ValueError("X has no rows; expected at least one.")
    _check_width(estimator, rows.shape[1], reset=reset)
    if rows.n_zero is None:
        rows.n_zero = sum(rows.map(_zeros_of_part))
    return rows.n_zero


def _zeros_of_part(blocks: Iterable[NDArray[Any]]) -> int:
    return sum(map(_check_values, blocks))


def _check_values(rows: NDArray[Any] | torch.Tensor) -> int:
    """Refuse what is not finite and count the rows of zeros, reading every row once."""
    step = max(1, _CHECKED_AT_A_TIME // max(1, rows.shape[1]))
    n_zeros = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), step):
            check_mapped(rows)
            block = rows[start : start + step]
            # A sum is finite only if all its terms are; it can overflow when they are.
            if not np.isfinite(float(as_tensor(block).sum())):
                exact = block.float() if isinstance(block, torch.Tensor) else block
                _refuse_non_finite(host_array(exact), start)
            # Few rows with zeros at three places are looked at whole.
            places = (block[:, 0] == 0) & (block[:, -1] == 0) & (block[:, rows.shape[1] // 2] == 0)
            suspects = block[places]
            n_zeros += int((~suspects.any(1)).sum()) if len(suspects) else 0
    return n_zeros


def _refuse_non_finite(block: NDArray[Any], start: int) -> None:
    found = np.argwhere(~np.isfinite(block))
    if len(found):
        row, column = found[0]
        kind = "NaN" if np.isnan(block[row, column]) else "infinity"
        raise ValueError(
            f"X contains {kind} (first at row {start + row}, column {column}); expected finite "
            "numbers only, no NaN, no inf. Drop those rows, or fill them in with "
            "sklearn.impute.SimpleImputer."
        )


def warn_of_zeros(n_zeros: int) -> None:
    """Warn, once, of rows that have no direction."""
    if n_zeros:
        warnings.warn(
            f"{counted(n_zeros, 'row of X is', 'rows of X are')} all zeros and left so, since "
            "there is no direction to normalise. Check how these features were made.",
            UserWarning,
            stacklevel=4,
        )


def warn_of_harm(labels: NDArray[Any]) -> None:
    """Warn of classes that settings of the user's lose."""
    if len(labels):
        named = ", ".join(map(repr, labels[:5].tolist())) + (", ..." if len(labels) > 5 else "")
        warnings.warn(
            f"of {counted(len(labels), 'class', 'classes')} ({named}) fewer training rows are "
            "classified right than by nearest class means; expected no more errors than chance "
            "explains. Leave logit_adjustment and epochs at 'auto', or lower them.",
            UserWarning,
            stacklevel=4,
        )


def check_labels(y: Any, n_rows: int) -> NDArray[Any]:
    """Check labels: one a row, of any kind that names classes."""
    if y is None:
        raise ValueError(
            "PrototypeClassifier requires y to be passed, but the target y is None; expected one "
            "class label a row."
        )
    labels: NDArray[Any] = column_or_1d(
        host_array(y) if isinstance(y, torch.Tensor) else y, warn=True
    )
    if len(labels) != n_rows:
        raise ValueError(
            f"y has {len(labels)} labels and X has {n_rows} rows; expected one label a row."
        )
    if not _names_something(labels):
        raise ValueError("y contains NaN, None or infinity; expected a class label in every row.")
    if labels.dtype.kind == "O" and len({isinstance(each, str) for each in labels.tolist()}) == 2:
        raise ValueError(
            "y mixes numbers and text; expected labels of one kind. Turn all of them into text, "
            "with str."
        )
    try:
        with warnings.catch_warnings():  # many classes of few rows are what this is for
            warnings.filterwarnings("ignore", "The number of unique classes is greater")
            check_classification_targets(labels)
    except ValueError as error:
        raise ValueError(
            f"y does not name classes. {error} Expected whole numbers, booleans or strings."
        ) from error
    return labels


def _names_something(labels: NDArray[Any]) -> bool:
    if labels.dtype.kind == "f":
        return bool(np.isfinite(labels).all())
    try:
        return labels.dtype.kind != "O" or all(x is not None and x == x for x in labels.tolist())
    except TypeError:  # pandas' NA is neither
        return False


def check_prior(prior: Any, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Turn a prior into one probability a class."""
    n_classes = len(counts)
    if isinstance(prior, str):
        if prior in ("uniform", "estimate"):  # the latter is where the estimate starts
            return np.full(n_classes, 1 / n_classes)
        if prior == "train":
            return counts.astype(np.float64) / float(counts.sum())
        raise ValueError(unknown_name("prior", prior, PRIORS) + " Or an array.")
    try:
        fractions = np.asarray(host_array(prior), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"prior={prior!r} is not valid; expected 'uniform', 'train' or one fraction a class."
        ) from error
    if fractions.shape != (n_classes,):
        raise ValueError(
            f"prior has shape {fractions.shape}; expected one fraction for each of the {n_classes} "
            "classes, in the order of classes_."
        )
    valid = np.isfinite(fractions).all() and fractions.min() >= 0
    if not valid or abs(fractions.sum() - 1) > 1e-6:
        raise ValueError(
            f"prior has smallest fraction {fractions.min():g} and sum {fractions.sum():g}; "
            "expected fractions of at least 0 that sum to 1. Divide it by its sum."
        )
    if not fractions[counts > 0].any():
        raise ValueError(
            "prior gives every fraction to classes that have had no rows yet; expected a fraction "
            "above 0 for a class that can be predicted. Give one, or wait for rows of the others."
        )
    return fractions


def check_device(device: Any, X: Any) -> torch.device:
    """Find where to compute: the device asked for, or the tensor's own, or the CPU."""
    if isinstance(device, str) and device == "auto":
        return X.device if isinstance(X, torch.Tensor) else torch.device("cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is no device; expected 'auto', 'cpu', 'cuda', 'cuda:0', ..."
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not supported; expected 'auto', 'cpu' or 'cuda'.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={device!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA "
            "devices here; expected one that exists. Use device='auto' or 'cpu'."
        )
    return found
