"""Prototypes on each expert."""

from __future__ import annotations

from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from protail.models.heads.experts import HeadPerExpert
from protail.models.heads.prototype import PrototypeHead, TemperatureForm, TemperatureScheme
from protail.models.heads.registry import register_head
from protail.ops import Distance
from protail.options import Count, Positive


@register_head("expert-prototypes")
class ExpertPrototypeHead(HeadPerExpert):
    """Classify by the mean of several prototype heads, one for each expert's part.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector; the experts' parts stand in it side by side.
    experts : int
        How many experts the backbone has.
    distance : str or Distance
        ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"``, ``"mahalanobis"`` (for each expert a map
        of its own), or one of your own.
    temperature : str, optional
        ``"channel"``, ``"class"`` or ``"dense"``: what has a temperature of its own, for each
        expert another.
    temperature_form : {"exp", "square"}
        What is learned: the logarithm of a temperature, or a root of it.
    initial_temperature : float
        Where temperatures start.
    normalize : float, optional
        Scale the part of each expert to this length first; zero vectors stay zero.

    Attributes
    ----------
    experts : nn.ModuleList of PrototypeHead
        The heads.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import ExpertPrototypeHead
    >>> head = ExpertPrototypeHead(2, 2, experts=2)
    >>> _ = head.set_prototypes(torch.tensor([[0.0, 0.0], [4.0, 8.0]]))
    >>> head(torch.tensor([[1.0, 1.0]])).detach()  # -1/2 (1 + 1) / 2 and -1/2 (3 + 7) / 2
    tensor([[-0.5000, -2.5000]])
    """

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        experts: Count = 3,
        distance: str | Distance = "euclidean",
        temperature: TemperatureScheme | None = None,
        temperature_form: TemperatureForm = "exp",
        initial_temperature: Positive = 1.0,
        normalize: Positive | None = None,
    ) -> None:
        super().__init__(
            n_classes,
            n_features,
            experts=experts,
            make=lambda width: PrototypeHead(
                n_classes,
                width,
                distance=distance,
                temperature=temperature,
                temperature_form=temperature_form,
                initial_temperature=initial_temperature,
                normalize=normalize,
            ),
        )

    @staticmethod
    def check_options(experts: int, **options: Any) -> None:
        """Raise unless the options can be together."""
        PrototypeHead.check_options(**options)

    @property
    def temperatures(self) -> list[nn.Parameter]:
        """What learns at the temperatures' own learning rate, of all experts."""
        return [parameter for head in self._heads() for parameter in head.temperatures]

    def set_prototypes(self, prototypes: Tensor) -> Self:
        """Copy prototypes into the heads.

        Parameters
        ----------
        prototypes : Tensor
            (classes, channels), the experts' parts side by side.

        Returns
        -------
        ExpertPrototypeHead
            This head.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import ExpertPrototypeHead
        >>> head = ExpertPrototypeHead(1, 2, experts=2)
        >>> head.set_prototypes(torch.tensor([[3.0, 5.0]])).experts[1].prototypes.data
        tensor([[5.]])
        """
        if prototypes.shape != (self.n_classes, self.n_features):
            raise ValueError(
                f"prototypes has shape {tuple(prototypes.shape)}; expected "
                f"{(self.n_classes, self.n_features)}, classes by channels of all experts."
            )
        for head, part in zip(self._heads(), self.parts(prototypes), strict=True):
            head.set_prototypes(part)
        return self

    def normalized(self, x: Tensor) -> Tensor:
        """Scale each expert's part as ``normalize`` says; zero vectors stay zero.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            The same without ``normalize``, otherwise in float32 or float64.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import ExpertPrototypeHead
        >>> head = ExpertPrototypeHead(2, 4, experts=2, normalize=10.0)
        >>> head.normalized(torch.tensor([[3.0, 4.0, 0.0, 5.0]]))
        tensor([[ 6.,  8.,  0., 10.]])
        """
        parts = zip(self._heads(), self.parts(x), strict=True)
        return torch.cat([head.normalized(part) for head, part in parts], dim=1)

    def _heads(self) -> list[PrototypeHead]:
        return cast(list[PrototypeHead], list(self.experts))
