"""PrototypeClassifier: the scikit-learn face of the prototype head."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from protail.data.tables import ShardedRows
from protail.estimator._checks import (
    Settings,
    check_device,
    check_labels,
    check_prior,
    check_rows,
    check_settings,
    check_total,
    check_weights,
    warn_of_zeros,
)
from protail.estimator._features import Features, Placement
from protail.estimator._gaussian import Statistics
from protail.estimator._persistence import SavingMixin
from protail.estimator._predicting import PredictingMixin
from protail.estimator._updating import add_new_classes, update_prototypes
from protail.estimator._whitened import Whitened, choose, harmless

Auto = Literal["auto"]

# What only a whitened space has.
_OF_SPACE = (
    *("coef_", "intercept_", "covariance_", "space_centre_"),
    *("landmarks_", "local_coef_", "preparation_"),
)


class PrototypeClassifier(SavingMixin, PredictingMixin, ClassifierMixin, BaseEstimator):
    """Classify by the distance from a learned prototype of each class.

    Made for frozen features with many rare classes. By default the distance is measured in a space
    where all channels say equally much (the rows whitened by the covariance that the classes
    share), prototypes are class means that are drawn together the more the fewer rows a class has,
    and then learned on with logit adjustment. Every choice that depends on the data is made from
    the training rows, each scored without itself, and reported in ``choices_``.

    Parameters
    ----------
    method : {"auto", "whitened", "closed-form", "paper"}, default="auto"
        How prototypes are made. "whitened" is what is described above; "closed-form" is the same
        without the learning; "paper" learns by stochastic gradient descent from class means, as
        published. "auto" is "paper" if one of the settings that belong to it is given, or if the
        network that made the features seems to have learned from these very rows; otherwise
        "whitened".
    memorised : bool or "auto", default="auto"
        Whether the network that made the features has learned from these very rows, in which case
        ``method="auto"`` is "paper". "auto" tells from the rows.
    local : bool, default=True
        Whether logits may be corrected near training rows, where rows that are left out gain from
        it: borders between classes then bend. The classifier keeps up to 1,024 rows for that.
        With ``local=False`` it is prototypes alone, and smaller and faster to predict with. Not
        for other methods than "whitened".
    distance : {"euclidean", "sqeuclidean", "cosine"}, default="euclidean"
        What is measured from row to prototype. This setting and those that follow, up to
        ``sampling`` and without ``prior``, belong to ``method="paper"``; giving one implies it.
    temperature : {None, "channel", "class", "dense"}, default=None
        What learns a temperature of its own, which divides squared differences.
    logit_adjustment : float or "auto", default="auto"
        Tau: training adds tau * log(rows of the class) to each logit, so that rare classes must
        win by more.
    normalize : float, None or "auto", default="auto"
        Radius that rows are scaled to (it acts as the inverse temperature of the softmax); None
        takes rows as they are. "auto" drops lengths unless they carry information, and chooses
        the scale.
    prior : {"uniform", "train", "estimate"} or array, default="uniform"
        The mix of classes expected in use, in the order of ``classes_``. "estimate" estimates it
        from the rows of each call, all of them together (see ``estimate_prior``).
    epochs : int or "auto", default="auto"
        Passes of the sampler; 0 is the nearest-class-mean classifier.
    max_steps : int or None, default=None
        Upper limit on the training steps.
    lr : float or "auto", default="auto"
        Rate of the prototypes at the start; it falls to 0 along a cosine.
    temperature_lr : float, default=0.005
        The same for the temperatures.
    momentum : float, default=0.9
        Momentum of both.
    batch_size : int or "auto", default="auto"
        Rows a step.
    sampling : {"class-balanced", "instance", "square-root"}, default="class-balanced"
        Which row comes next.
    reject : float or None, default=None
        Fraction of rows of known classes, classes weighing alike, for which ``predict`` may give
        None: those that look least like any class, and the most doubtful ones. Rows of unknown
        classes are rejected more often. Not for ``method="paper"``.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is where a tensor lies, and the CPU for everything else.
    random_state : int, RandomState or None, default=None
        Same seed, same bits.
    verbose : bool or int, default=False
        Say what is chosen and show a progress bar, on standard error.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    class_counts_ : ndarray of shape (n_classes,)
        Training rows of each class.
    class_means_ : ndarray of shape (n_classes, n_channels)
        Means of the classes: of prepared rows in a whitened space, and with the paper's method
        where its prototypes started. As many channels as features, but where very wide rows were
        projected onto ``preparation_["axes"]``.
    prototypes_ : ndarray of shape (n_classes, n_channels)
        The prototypes, in the same coordinates as ``class_means_``.
    scale_ : float
        Factor on the logits that makes held-out rows most likely; 1 where these say nothing.
    coef_, intercept_, covariance_, space_centre_ : ndarray
        Of a whitened space: weights and bias that give the logits of prepared rows, the shared
        covariance of rows around their class means, and what class means are drawn towards.
    landmarks_, local_coef_ : ndarray or None
        Of a whitened space, where logits are corrected near training rows: these rows, prepared,
        and what each adds to the logits of rows that lie at it, (n_classes, n_landmarks);
        ``choices_["local_width"]`` is the squared distance at which that has fallen to a half.
    preparation_ : dict of str to ndarray
        Of a whitened space: what is taken off a row first (``centre``), what it is divided by
        (``spread``), and what is taken off at last (``origin``); wide rows are then projected onto
        ``axes``. ``choices_["preparation"]`` says what comes in between.
    temperature_ : ndarray or None
        Of the paper's method: learned temperatures, broadcastable to the prototypes.
    normalize_, feature_scale_ : float
        Of the paper's method: the length of all rows (None if they keep theirs), and what rows are
        multiplied by where they do.
    choices_ : dict
        What was chosen from the training rows, and the accuracy it was chosen by.
    history_ : dict
        Of the paper's method: ``step`` and ``loss`` of the training; else both are empty.
    n_features_in_ : int
        Width of a row.

    References
    ----------
    S. Sharma, Y. Xian, N. Yu, A. Singh: Learning Prototype Classifiers for Long-Tailed
    Recognition. IJCAI 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from protail import PrototypeClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = PrototypeClassifier(random_state=0).fit(X, y)
    >>> classifier.predict(X[:2])
    array([0, 0])
    >>> bool(classifier.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        *,
        method: str = "auto",
        memorised: bool | Auto = "auto",
        local: bool = True,
        distance: str = "euclidean",
        temperature: str | None = None,
        logit_adjustment: float | Auto = "auto",
        normalize: float | Auto | None = "auto",
        prior: str | ArrayLike = "uniform",
        epochs: int | Auto = "auto",
        max_steps: int | None = None,
        lr: float | Auto = "auto",
        temperature_lr: float = 0.005,
        momentum: float = 0.9,
        batch_size: int | Auto = "auto",
        sampling: str = "class-balanced",
        reject: float | None = None,
        device: str | torch.device = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.memorised = memorised
        self.local = local
        self.distance = distance
        self.temperature = temperature
        self.logit_adjustment = logit_adjustment
        self.normalize = normalize
        self.prior = prior
        self.epochs = epochs
        self.max_steps = max_steps
        self.lr = lr
        self.temperature_lr = temperature_lr
        self.momentum = momentum
        self.batch_size = batch_size
        self.sampling = sampling
        self.reject = reject
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn one prototype a class.

        Parameters
        ----------
        X : array-like, tensor, frame or ShardedRows of shape (n_samples, n_features)
            Feature rows; a memory-mapped array is never copied, and of rows in several files
            (`protail.data.tables.ShardedRows`) a part at a time is read.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts: 2 is as if it came twice, 0 as if it were not there. So all
            weights twice as large say that there are twice as many rows, and prototypes move less.
            They must sum to at least the number of classes. Not for ``method="paper"``.

        Returns
        -------
        PrototypeClassifier
            This estimator.
        """
        with _unchanged_on_error(self), torch.inference_mode(False), torch.enable_grad():
            settings = check_settings(self)
            device = check_device(self.device, X)
            rows, n_zeros = check_rows(self, X, reset=True)
            labels = check_labels(y, len(rows))
            weights = check_weights(sample_weight, len(rows), settings.method)
            if weights is not None and not weights.all():
                counted = weights > 0
                rows = rows.at(counted) if isinstance(rows, ShardedRows) else rows[counted]
                labels, weights = labels[counted], weights[counted]
            classes, codes = np.unique(labels, return_inverse=True)
            if len(classes) < 2:
                raise ValueError(
                    f"y has only one class, {classes.tolist()[0]!r}; expected at least two to "
                    "tell apart."
                )
            if weights is not None:
                check_total(weights, len(classes))
            self._fit_rows(Features(rows, Placement(), device), classes, codes, settings, weights)
            if self._keeps_zeros:
                warn_of_zeros(n_zeros)
        return self

    def _fit_rows(
        self,
        features: Features,
        classes: NDArray[Any],
        codes: NDArray[np.int64],
        settings: Settings,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        """Learn from rows that are checked; classes may be without any."""
        counts = np.bincount(codes, weights, minlength=len(classes))
        check_prior(self.prior, counts)
        self.classes_, self.class_counts_ = classes, counts
        method = settings.method
        if method != "paper":
            seed = 0 if self.random_state is None else self._seed()
            space, choice = choose(features, codes, len(classes), weights, seed=seed)
            if method == "auto":
                memorised = self.memorised == "auto" and choice.memorised
                as_published = memorised and weights is None and self.reject is None
                method = "paper" if as_published else "whitened"
        if method == "paper":
            from protail.estimator._paper import learn_as_published

            if isinstance(features.rows, ShardedRows):  # its steps take rows from anywhere
                rows = np.asarray(features.rows)
                features = Features(rows, features.placement, features.device)
            for name in _OF_SPACE:  # of a fit before
                self.__dict__.pop(name, None)
            learn_as_published(self, features, codes, settings)
        else:
            learn = method == "whitened"
            model = harmless(space, choice, learn=learn, local=self.local, reject=self.reject)
            self._keep_whitened(model, method, features.dtype)

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """Go on learning from more rows.

        The first call learns and chooses as ``fit`` does. Every later call adds the new rows to
        the class means and the covariance and places all prototypes again; what was learned beyond
        that stays, and the new rows have a say in the calibration.

        With ``method="paper"`` every later call moves each prototype along with its class mean and
        then trains on the new rows; with ``epochs=0`` the result is the nearest-class-mean
        classifier of all rows seen.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            New feature rows.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like, optional
            All labels that may come; needed in the first call. Classes without rows so far are
            never predicted.

        Returns
        -------
        PrototypeClassifier
            This estimator.
        """
        with _unchanged_on_error(self), torch.inference_mode(False), torch.enable_grad():
            update_prototypes(self, X, y, classes)
        return self

    def add_classes(self, X: Any, y: Any) -> Self:
        """Add new classes from a few rows; the other prototypes stay as they are, to the bit.

        A new prototype is placed by the rule of the others, without learning: at the mean of its
        rows, drawn towards the centre of all classes the more the fewer rows it has.
        ``classes_`` stays sorted, so a new label may come to stand between old ones.

        With ``method="paper"`` new prototypes are placed by the training of the others, in which
        the class means stand for the rows. Where that leaves no place for a new class, every
        prototype is put back to its class mean, with a warning.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Rows of the new classes.
        y : array-like of shape (n_samples,)
            Their labels, none of them known yet.

        Returns
        -------
        PrototypeClassifier
            This estimator.
        """
        with _unchanged_on_error(self), torch.inference_mode(False), torch.enable_grad():
            check_is_fitted(self)
            add_new_classes(self, X, y)
        return self

    def to_module(self) -> torch.nn.Module:
        """Give the fitted classifier as a PyTorch module, for export.

        Returns
        -------
        torch.nn.Module
            Feature rows (batch, n_features_in_) to probabilities (batch, n_classes) in float32, in
            the order of ``classes_``; a copy, which later fits do not change.

        Examples
        --------
        >>> import torch
        >>> from protail import PrototypeClassifier
        >>> classifier = PrototypeClassifier().fit([[1.0, 2.0], [2.0, 1.0]], ["ant", "bee"])
        >>> classifier.to_module()(torch.tensor([[1.0, 2.0]])).argmax(1)
        tensor([0])
        """
        from protail.estimator._module import module_of

        return module_of(self)

    def _keep_whitened(self, model: Whitened, method: str, dtype: torch.dtype) -> None:
        choice, calibration = model.choice, model.choice.calibration
        self.preparation_ = model.preparation.arrays(dtype)
        self.scale_ = calibration.sharpness
        self.temperature_, self.normalize_, self.feature_scale_ = None, None, 1.0
        self.history_: dict[str, list[Any]] = {"step": [], "loss": []}
        self.choices_ = {
            "method": method,
            "preparation": model.preparation.kind,
            "ridge": choice.form.ridge,
            "shrinkage": choice.form.kappa,
            "logit_adjustment": calibration.tau,
            "learned": model.learned,
            "novelty_limit": model.limits and model.limits.novelty,
            "doubt_limit": model.limits and model.limits.doubt,
            "leave_one_out_accuracy": choice.accuracy,
            "memorised": choice.memorised,
            "local_width": model.corrections and model.corrections.width,
            "why": _why(model, method),
        }
        keep = choice.form.shrink(model.statistics.weight_c)[model.statistics.weight_c > 0]
        self._say(f"{method}: {self.choices_['why']}.")
        self._say(
            f"rows {model.preparation.kind}, ridge {choice.form.ridge:g}; prototypes keep "
            f"{100 * float(keep.min()):.0f} to {100 * float(keep.max()):.0f} % of their class "
            f"means; tau {calibration.tau:.2g}, sharpness {calibration.sharpness:.2g}."
        )
        self.landmarks_: NDArray[Any] | None = None
        self.local_coef_: NDArray[Any] | None = None
        if model.corrections is not None:
            kept = model.corrections.landmark_md, model.corrections.weight_cm
            self.landmarks_, self.local_coef_ = (part.to("cpu", dtype).numpy() for part in kept)
        self._keep_space(model.statistics, model.weight_cd, model.bias_c)

    def _keep_space(self, statistics: Statistics, weight_cd: Tensor, bias_c: Tensor) -> None:
        """Keep what is known of the rows, and where that puts prototypes."""
        apart_cd = weight_cd @ statistics.within
        apart_cd += statistics.added(self.choices_["ridge"]) * weight_cd
        parts = {
            "coef_": weight_cd,
            "intercept_": bias_c.masked_fill(statistics.weight_c == 0, 0),
            "class_means_": statistics.mean_cd,
            "covariance_": statistics.within,
            "space_centre_": statistics.centre,
            "prototypes_": statistics.centre + apart_cd / self.scale_,
        }
        dtype = self.preparation_["origin"].dtype
        for name, part in parts.items():
            setattr(self, name, part.cpu().numpy().astype(dtype, order="C"))
        counts = statistics.weight_c.cpu().numpy()
        whole = (counts == np.round(counts)).all()
        self.class_counts_ = counts.astype(np.int64) if whole else counts

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _say(self, text: str) -> None:
        if self.verbose:
            print(f"PrototypeClassifier: {text}", file=sys.stderr)


def _why(model: Whitened, method: str) -> str:
    """Say what spoke for the choices."""
    choice = model.choice
    if choice.accuracy is None:
        return "no class has a row to spare: neutral values, class means"
    right = (
        f"classes weighing alike, {100 * choice.accuracy:.1f} % of the rows are right when left out"
    )
    if choice.saturated:
        first = f"{right}: what is good for easy and for memorised rows"
    else:
        first = f"{right}, and likelier than with what else was tried"
    if method == "closed-form":
        return first
    learned = "goes on from there" if model.learned else "is left out: too many rows, or it harms"
    if model.learned and model.n_learnable is not None:
        learned += f", from {model.n_learnable:,} rows, as evenly over the classes as they go"
    return f"{first}; learning {learned}"


@contextmanager
def _unchanged_on_error(estimator: object) -> Iterator[None]:
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
