"""A head for each expert: each sees its own part of the feature vector, and their mean decides."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from protail.models.heads.cosine import CosineHead
from protail.models.heads.registry import register_head
from protail.options import Count, Positive, checked


class HeadPerExpert(nn.Module):
    """Divide feature vectors into equal parts, and give each part a head.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector; the experts' parts stand in it side by side.
    experts : int
        How many parts.
    make : callable
        Length of a part to the head of one expert.

    Attributes
    ----------
    experts : nn.ModuleList
        The heads.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.models.heads import HeadPerExpert
    >>> head = HeadPerExpert(5, 6, experts=3, make=lambda width: nn.Linear(width, 5))
    >>> head(torch.zeros(4, 6)).shape
    torch.Size([4, 5])
    """

    @checked
    def __init__(
        self, n_classes: int, n_features: int, *, experts: Count, make: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        if n_features < 1 or n_features % experts:
            raise ValueError(
                f"experts={experts!r} with {n_features} features; expected as many experts as "
                "the backbone has, so that each gets an equal part."
            )
        self.n_classes, self.n_features = n_classes, n_features
        self.experts = nn.ModuleList(make(n_features // experts) for _ in range(experts))

    @property
    def n_experts(self) -> int:
        """Number of experts."""
        return len(self.experts)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Divide feature vectors into the experts' parts.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels), or anything else with such rows.

        Returns
        -------
        tuple of Tensor
            (batch, channels / experts) for each expert.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import ExpertsHead
        >>> ExpertsHead(2, 4, experts=2).parts(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        (tensor([[1., 2.]]), tensor([[3., 4.]]))
        """
        if x.ndim != 2 or x.shape[1] != self.n_features:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected rows of {self.n_features}, the features "
                f"of {self.n_experts} experts."
            )
        return x.chunk(self.n_experts, dim=1)

    def expert_logits(self, x: Tensor) -> Tensor:
        """Give the logits of every expert.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (experts, batch, classes).

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import ExpertsHead
        >>> ExpertsHead(5, 6, experts=3).expert_logits(torch.zeros(4, 6)).shape
        torch.Size([3, 4, 5])
        """
        return torch.stack(
            [head(part) for head, part in zip(self.experts, self.parts(x), strict=True)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give the mean of the experts' logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (batch, classes).
        """
        return self.expert_logits(x).mean(0)


@register_head("experts")
class ExpertsHead(HeadPerExpert):
    """Classify by the mean of several cosine classifiers, one for each expert's part.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector; the experts' parts stand in it side by side.
    experts : int
        How many experts the backbone has.
    scale : float
        What cosines are multiplied by.

    Attributes
    ----------
    experts : nn.ModuleList of CosineHead
        The classifiers.

    References
    ----------
    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import ExpertsHead
    >>> head = ExpertsHead(2, 4, experts=2, scale=10.0)
    >>> for expert in head.experts:
    ...     _ = expert.weight.data.copy_(torch.eye(2))
    >>> head(torch.tensor([[1.0, 0.0, 0.0, 1.0]])).detach()  # they disagree
    tensor([[5., 5.]])
    """

    def __init__(
        self, n_classes: int, n_features: int, *, experts: Count = 3, scale: Positive = 30.0
    ) -> None:
        super().__init__(
            n_classes,
            n_features,
            experts=experts,
            make=lambda width: CosineHead(n_classes, width, scale=scale),
        )
        self.scale = scale
