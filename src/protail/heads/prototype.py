"""The prototype head: logits are minus half the distances from one learned vector a class."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from protail import ops
from protail.heads._table import PrototypeTable
from protail.heads.means import class_means
from protail.ops._arguments import check_distance, compute_dtype


class PrototypeHead(PrototypeTable):
    """Classify a feature vector by its distances from one prototype a class.

    Untrained, with prototypes set to class means, this is the nearest-class-mean classifier.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    distance : str
        ``"euclidean"``, ``"sqeuclidean"`` or ``"cosine"``.
    temperature : str, optional
        ``"channel"``, ``"class"`` or ``"dense"``: what has a temperature of its own. It divides
        squared differences (for cosine, both vectors by its root first).
    temperature_form : {"exp", "square"}
        What is learned: the logarithm of a temperature, or, as in the published code, a root of
        it, of any sign, by which differences are divided before they are squared.
    initial_temperature : float
        Where temperatures start, whatever is learned.
    normalize : float, optional
        Scale every feature vector to this length first; zero vectors stay zero. Prototypes are
        free parameters and are not scaled.

    Attributes
    ----------
    prototypes : Parameter
        (classes, channels); zero until they are set.
    log_temperature, root_temperature : Parameter or None
        (1, channels), (classes, 1) or (classes, channels): one of them for each form.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.heads import PrototypeHead
    >>> features = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 1.0]])
    >>> head = PrototypeHead.from_means(features, torch.tensor([0, 0, 1]))
    >>> head.prototypes.data
    tensor([[0., 1.],
            [4., 1.]])
    >>> head(torch.tensor([[1.0, 1.0]])).detach()
    tensor([[-0.5000, -1.5000]])
    """

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        distance: str = "euclidean",
        temperature: str | None = None,
        temperature_form: str = "exp",
        initial_temperature: float = 1.0,
        normalize: float | None = None,
    ) -> None:
        super().__init__(n_classes, n_features, temperature, temperature_form, initial_temperature)
        check_distance(distance)
        if normalize is not None and not (0 < normalize < float("inf")):
            raise ValueError(f"normalize={normalize!r}; expected None or a radius above 0.")
        self.distance = distance
        self.normalize = normalize

    @classmethod
    def from_means(
        cls, features: Any, labels: Any, n_classes: int | None = None, **options: Any
    ) -> Self:
        """Make a head whose prototypes are the class means of (normalised) features.

        Parameters
        ----------
        features : Tensor or numpy array
            One vector a row; may be memory-mapped. Its device becomes the head's.
        labels : Tensor or numpy array
            Class index of each row.
        n_classes : int, optional
            Number of classes; by default one more than the largest label.
        **options
            What the head takes beside its size: ``distance``, ``temperature``, ``normalize``.

        Returns
        -------
        PrototypeHead
            In float64 for float64 tensors, otherwise in float32.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.heads import PrototypeHead
        >>> PrototypeHead.from_means(np.eye(3), np.array([0, 1, 2]), normalize=2.0).prototypes[0]
        tensor([2., 0., 0.], grad_fn=<SelectBackward0>)
        """
        # A head of one class, which knows how to normalise and then takes its true size.
        head = cls(1, features.shape[-1], **options)
        means_cd = class_means(features, labels, n_classes, transform=head.normalized)
        head = cls(*means_cd.shape, **options)
        dtype = compute_dtype(features) if isinstance(features, Tensor) else torch.float32
        return head.to(means_cd.device, dtype).set_prototypes(means_cd)

    def normalized(self, x: Tensor) -> Tensor:
        """Scale feature vectors as ``normalize`` says; zero vectors stay zero.

        Parameters
        ----------
        x : Tensor
            Feature vectors.

        Returns
        -------
        Tensor
            The same without ``normalize``, otherwise in float32 or float64.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> PrototypeHead(2, 2, normalize=10.0).normalized(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[6., 8.],
                [0., 0.]])
        """
        if self.normalize is None:
            return x
        units_bd, _ = ops.unit_rows(x.to(compute_dtype(x)))
        return units_bd * self.normalize

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits: minus half the distances.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (batch, classes), float64 if an input is, otherwise float32.
        """
        return ops.logits(self.normalized(x), self.prototypes, self.distance, self.temperature)

    def distances(self, x: Tensor) -> Tensor:
        """Measure the distance of every row from every prototype.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (batch, classes); most precise without gradients, see `protail.ops.distances`.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> with torch.no_grad():
        ...     PrototypeHead(2, 2).distances(torch.tensor([[3.0, 4.0]]))
        tensor([[5., 5.]])
        """
        return ops.distances(self.normalized(x), self.prototypes, self.distance, self.temperature)

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        adjustment: Tensor | None = None,
        *,
        reduction: str = "mean",
        memory_budget: int | None = None,
    ) -> Tensor:
        """Give the cross-entropy of the logits, faster than from the logits themselves.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).
        target : Tensor
            Class index of each row.
        adjustment : Tensor, optional
            Added to every row of logits: one number a class.
        reduction : str
            ``"mean"``, ``"sum"`` or ``"none"``.
        memory_budget : int, optional
            Bytes to use at most beside inputs and gradients; see `protail.ops.loss`.

        Returns
        -------
        Tensor
            A number, or one a row for ``"none"``.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> PrototypeHead(2, 2).loss(torch.ones(1, 2), torch.tensor([0])).item()
        0.6931...
        """
        return ops.loss(
            self.normalized(x),
            self.prototypes,
            target,
            distance=self.distance,
            temperature=self.temperature,
            adjustment=adjustment,
            reduction=reduction,
            memory_budget=memory_budget,
        )

    def nearest(self, x: Tensor) -> Tensor:
        """Find the nearest prototype of each row; of equally near ones the first.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            Class index of each row.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> head = PrototypeHead(2, 1).set_prototypes(torch.tensor([[0.0], [2.0]]))
        >>> head.nearest(torch.tensor([[1.5], [0.5]]))
        tensor([1, 0])
        """
        with torch.no_grad():
            return ops.nearest(
                self.normalized(x),
                self.prototypes,
                distance=self.distance,
                temperature=self.temperature,
            )

    def top_k(self, x: Tensor, k: int) -> ops.TopK:
        """Find the k nearest prototypes of each row, nearest first.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).
        k : int
            How many.

        Returns
        -------
        TopK
            ``distances_bk`` and ``classes_bk``.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> head = PrototypeHead(3, 1).set_prototypes(torch.tensor([[0.0], [2.0], [9.0]]))
        >>> head.top_k(torch.tensor([[1.5]]), 2).classes_bk
        tensor([[1, 0]])
        """
        with torch.no_grad():
            return ops.top_k(
                self.normalized(x),
                self.prototypes,
                k,
                distance=self.distance,
                temperature=self.temperature,
            )

    def add_classes(self, features: Any, labels: Any | None = None) -> Self:
        """Append classes from their means without touching the others.

        Class and dense temperatures of theirs start at the geometric mean of the others. The
        parameters are replaced by longer ones, so an optimiser must be made anew.

        Parameters
        ----------
        features : Tensor or numpy array
            With ``labels``, feature vectors of the new classes; without, one mean a new class,
            taken as it is.
        labels : Tensor or numpy array, optional
            Which new class each row belongs to, from 0.

        Returns
        -------
        PrototypeHead
            This head.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> new = torch.tensor([[4.0], [6.0]])
        >>> PrototypeHead(2, 1).add_classes(new, torch.tensor([0, 0])).prototypes.data
        tensor([[0.],
                [0.],
                [5.]])
        """
        if labels is None:
            means_cd = torch.as_tensor(features)
        else:
            means_cd = class_means(features, labels, transform=self.normalized)
        if means_cd.ndim != 2 or means_cd.shape[1] != self.n_features:
            raise ValueError(
                f"features has shape {tuple(means_cd.shape)}; "
                f"expected rows of {self.n_features}, as the prototypes have."
            )
        self.append_rows(means_cd)
        return self

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        form = "" if self.temperature_form == "exp" else ", temperature_form='square'"
        return (
            f"{self.n_classes}, {self.n_features}, distance={self.distance!r}, "
            f"temperature={self.temperature_scheme!r}{form}, normalize={self.normalize!r}"
        )
