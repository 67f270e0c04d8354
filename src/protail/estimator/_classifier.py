"""PrototypeClassifier: the scikit-learn face of the prototype head."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from protail.estimator._checks import (
    check_device,
    check_labels,
    check_prior,
    check_rows,
    check_settings,
    warn_of_harm,
    warn_of_zeros,
)
from protail.estimator._features import Features, Placement
from protail.estimator._fitting import Fit, fit_prototypes
from protail.estimator._persistence import SavingMixin
from protail.estimator._predicting import PredictingMixin
from protail.estimator._updating import add_new_classes, update_prototypes
from protail.models.heads import PrototypeHead

Auto = Literal["auto"]


class PrototypeClassifier(SavingMixin, PredictingMixin, ClassifierMixin, BaseEstimator):
    """Classify by the distance from a learned prototype of each class.

    Made for frozen features with many rare classes: classes are drawn equally often, rare ones
    get a margin, and no class wins by the length of its weights. With its defaults every choice
    that depends on the data is made from the training rows and reported in ``choices_``.

    Parameters
    ----------
    distance : {"euclidean", "sqeuclidean", "cosine"}, default="euclidean"
        What is measured from row to prototype.
    temperature : {None, "channel", "class", "dense"}, default=None
        What learns a temperature of its own, which divides squared differences.
    logit_adjustment : float or "auto", default="auto"
        Tau: training adds tau * log(rows of the class) to each logit, so that rare classes must
        win by more.
    normalize : float, None or "auto", default="auto"
        Radius that rows are scaled to (it acts as the inverse temperature of the softmax); None
        takes rows as they are. "auto" drops lengths unless they carry information, and chooses
        the scale.
    prior : {"uniform", "train"} or array, default="uniform"
        The mix of classes expected in use, in the order of ``classes_``.
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
    class_means_ : ndarray of shape (n_classes, n_features_in_)
        Where the prototypes started, in the space where distances are measured.
    prototypes_ : ndarray of shape (n_classes, n_features_in_)
        Where learning took them.
    temperature_ : ndarray or None
        Learned temperatures, broadcastable to the prototypes.
    scale_ : float
        Factor on the logits that makes held-out rows most likely; 1 where the rows are taken for
        memorised, because then held-out ones say nothing.
    normalize_ : float or None
        The radius in use.
    feature_scale_ : float
        What rows are multiplied by where there is no radius.
    choices_ : dict
        What was chosen from the training rows, and the accuracy it was chosen by.
    history_ : dict
        ``step`` and ``loss`` of the training.
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
        device: str | torch.device = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
    ) -> None:
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
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Learn one prototype a class.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows; a memory-mapped array is never copied.
        y : array-like of shape (n_samples,)
            Class labels.

        Returns
        -------
        PrototypeClassifier
            This estimator.
        """
        with _unchanged_on_error(self), torch.inference_mode(False), torch.enable_grad():
            settings = check_settings(self)
            device = check_device(self.device, X)
            rows, n_zeros = check_rows(self, X, reset=True)
            classes, codes = np.unique(check_labels(y, len(rows)), return_inverse=True)
            if len(classes) < 2:
                raise ValueError(
                    f"y has only one class, {classes.tolist()[0]!r}; expected at least two to "
                    "tell apart."
                )
            counts = np.bincount(codes, minlength=len(classes))
            check_prior(self.prior, counts)
            features = Features(rows, Placement(), device)
            fit = fit_prototypes(features, codes, counts, settings, self._seed(), say=self._say)
            self.classes_ = classes
            self.class_counts_ = counts
            self._keep(fit)
            warn_of_harm(classes[fit.harmed])
        if self.normalize_ is not None:
            warn_of_zeros(n_zeros)
        return self

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """Go on learning from more rows.

        The first call learns and chooses as ``fit`` does. Every later call moves each prototype
        along with its class mean and then trains on the new rows. With ``epochs=0`` the result is
        the nearest-class-mean classifier of all rows seen.

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

        The new prototypes are placed by the training of the others, in which the class means
        stand for the rows. Where that leaves no place for a new class, every prototype is put
        back to its class mean, with a warning. ``classes_`` stays sorted, so a new label may
        come to stand between old ones.

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

    def _keep(self, fit: Fit) -> None:
        space, plan = fit.space, fit.plan
        self._keep_head(fit.head)
        self.class_means_ = space.means.cpu().numpy()
        self.scale_ = fit.scale
        self.normalize_ = space.features.placement.radius
        self.feature_scale_ = space.features.placement.factor
        self.history_: dict[str, list[Any]] = {
            "step": fit.history.steps,
            "loss": fit.history.losses,
        }
        self.choices_: dict[str, Any] = {
            "distance": self.distance,
            "temperature": self.temperature,
            "leave_one_out_accuracy": space.accuracy,
            "memorised": space.memorised,
            "normalize": self.normalize_,
            "feature_scale": self.feature_scale_,
            "logit_adjustment": space.tau,
            "logit_scale": space.logit_scale,
            "lr": plan.lr,
            "steps": plan.n_steps,
            "batch_size": plan.batch_size,
        }

    def _keep_head(self, head: PrototypeHead) -> None:
        temperature = head.temperature
        self.prototypes_ = head.prototypes.detach().cpu().numpy()
        self.temperature_ = None if temperature is None else temperature.detach().cpu().numpy()

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _say(self, text: str) -> None:
        if self.verbose:
            print(f"PrototypeClassifier: {text}", file=sys.stderr)


@contextmanager
def _unchanged_on_error(estimator: object) -> Iterator[None]:
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
