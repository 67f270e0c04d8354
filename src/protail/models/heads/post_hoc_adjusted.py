"""The post-hoc adjusted head: the classifier of stage 1 less what the class counts gave it."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from protail.models.heads.cosine import CosineHead
from protail.models.heads.linear import FrozenLinear, LinearHead
from protail.models.heads.registry import register_head
from protail.ops import unit_rows
from protail.options import NonNegative, checked
from protail.profile import ClassProfile, Counts


@register_head("post-hoc-adjusted", builds_on=("linear", "cosine"), learns=False)
class PostHocAdjustedHead(FrozenLinear):
    """Subtract ``tau * log prior`` from the logits of stage 1.

    Nothing learns here: there are no parameters.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    tau : float, default=1
        Strength of the adjustment; 0 gives the logits of stage 1.

    Attributes
    ----------
    log_prior : Tensor, shape (n_classes,)
        The logarithm of every class's fraction of the training set.
    cosine_scale : Tensor, shape ()
        What a cosine head of stage 1 multiplies cosines by; 0 where it is a linear one.

    References
    ----------
    Long-Tail Learning via Logit Adjustment. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead, PostHocAdjustedHead
    >>> first, x = LinearHead(2, 3), torch.ones(1, 3)
    >>> head = PostHocAdjustedHead(2, 3).build_on(first, [30, 10])
    >>> (head(x) - first(x)).detach()  # -log(3/4) and -log(1/4)
    tensor([[0.2877, 1.3863]])
    """

    stage_1 = ("linear", "cosine")
    log_prior: Tensor
    cosine_scale: Tensor

    @checked
    def __init__(self, n_classes: int, n_features: int, *, tau: NonNegative = 1.0) -> None:
        super().__init__(n_classes, n_features)
        self.tau = tau
        self.register_buffer("log_prior", torch.zeros(n_classes))
        self.register_buffer("cosine_scale", torch.zeros(()))

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Copy the weights of stage 1, and take the prior from the class counts.

        Parameters
        ----------
        head : nn.Linear or CosineHead
            The head of stage 1, of as many classes and features.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class, none of them 0.

        Returns
        -------
        PostHocAdjustedHead
            This head.
        """
        profile = ClassProfile.of(counts)
        log_prior = torch.from_numpy(profile.log_prior)
        scale = 0.0
        if isinstance(head, CosineHead):
            scale, head = head.scale, _linear_on_unit_rows(head)
        super().build_on(head, profile)
        self.log_prior.copy_(log_prior)
        self.cosine_scale.fill_(scale)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        return self.stage_1_logits(x) - self.tau * self.log_prior

    def stage_1_logits(self, x: Tensor) -> Tensor:
        """Give the logits of stage 1; a cosine head sees all feature vectors at one length."""
        x_bd = self._checked_features(x)
        unit_bd, _ = unit_rows(x_bd)
        is_cosine = self.cosine_scale > 0
        return super().stage_1_logits(torch.where(is_cosine, self.cosine_scale * unit_bd, x_bd))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Weights of versions that knew linear heads only do not have it.
        state_dict.setdefault(f"{prefix}cosine_scale", torch.zeros(()))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, tau={self.tau!r}"


def _linear_on_unit_rows(head: CosineHead) -> LinearHead:
    """Give the linear head that is a cosine head on features as long as its scale."""
    same = LinearHead(head.n_classes, head.n_features, bias=False)
    weight_cd, _ = unit_rows(head.weight.detach())
    same.weight = nn.Parameter(weight_cd)
    return same
