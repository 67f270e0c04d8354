"""The linear and the cosine head, and the heads of stage 2 that go on from a trained one."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protail.models.heads.registry import register_head
from protail.ops import compute_dtype, full_precision, unit_rows
from protail.options import Count, NonNegative, Positive, checked
from protail.profile import ClassProfile, Counts


@register_head("linear", has_weight=True)
class LinearHead(nn.Linear):
    """Classify a feature vector by its product with one weight vector a class.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    bias : bool
        Whether each class has a number of its own to add.

    References
    ----------
    Decoupling Representation and Classifier for Long-Tailed Recognition. ICLR 2020. (Learned again
    on class-balanced batches: classifier re-training, cRT.)

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead
    >>> LinearHead(3, 2)(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    @checked
    def __init__(self, n_classes: Count, n_features: Count, *, bias: bool = True) -> None:
        super().__init__(n_features, n_classes, bias=bias)
        self.n_classes, self.n_features = n_classes, n_features

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        return linear(x.to(self.weight.dtype), self.weight, self.bias)

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Begin with the weights of another linear head.

        Parameters
        ----------
        head : nn.Linear
            Of as many classes and features. Where it has no bias, that of this head becomes 0.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class.

        Returns
        -------
        LinearHead
            This head.

        Examples
        --------
        >>> from torch import nn
        >>> from protail.models.heads import LinearHead
        >>> first = nn.Linear(2, 3)
        >>> bool((LinearHead(3, 2).build_on(first, [9, 3, 1]).weight == first.weight).all())
        True
        """
        weight, bias = _weight_and_bias(head, self.n_classes, self.n_features, counts)
        if self.bias is None and head.bias is not None:
            raise ValueError(
                "head has a bias and this head has none, so it would not give the same logits; "
                "expected both alike. Make this head with bias=True."
            )
        with torch.no_grad():
            self.weight.copy_(weight)
            if self.bias is not None:
                self.bias.copy_(bias)
        return self


def _weight_and_bias(
    head: nn.Module, n_classes: int, n_features: int, counts: Counts
) -> tuple[Tensor, Tensor]:
    """Give the weights of a linear head of this size, and its bias or zeros."""
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"head is a {type(head).__name__}; expected a linear head to build on. Train stage 1 "
            "with head 'linear'."
        )
    if (head.out_features, head.in_features) != (n_classes, n_features):
        raise ValueError(
            f"head has {head.out_features} classes and {head.in_features} features; expected "
            f"{n_classes} and {n_features}, as the head that is built on it."
        )
    profile = ClassProfile.of(counts)
    if profile.n_classes != n_classes:
        raise ValueError(
            f"counts has {profile.n_classes} classes; expected {n_classes}, as the heads have."
        )
    weight = head.weight.detach()
    return weight, weight.new_zeros(n_classes) if head.bias is None else head.bias.detach()


class BuiltHead(nn.Module):
    """Refuse to compute before the tensors of stage 1 have come: nobody would notice.

    They come with ``build_on``, or with a state dict that has ``taken_over``.
    """

    stage_1: ClassVar[tuple[str, ...]]  # the heads of stage 1 that it takes
    taken_over: ClassVar[str]  # the name in the state dict of a tensor that comes from there

    def __init__(self) -> None:
        super().__init__()
        self._is_built = False

    def check_built(self) -> None:
        """Raise unless the tensors of stage 1 have come."""
        if not self._is_built:
            raise ValueError(
                f"{type(self).__name__} has no weights of stage 1 yet; expected build_on(head, "
                f"counts) with the head {' or '.join(map(repr, self.stage_1))} of stage 1, or "
                "load_state_dict, first."
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._is_built |= f"{prefix}{self.taken_over}" in state_dict


class FrozenLinear(BuiltHead):
    """Hold the weights of a linear head in buffers, so that no optimiser finds them."""

    stage_1: ClassVar[tuple[str, ...]] = ("linear",)
    taken_over = "frozen_weight"
    frozen_weight: Tensor
    frozen_bias: Tensor

    @checked
    def __init__(self, n_classes: Count, n_features: Count) -> None:
        super().__init__()
        self.n_classes, self.n_features = n_classes, n_features
        self.register_buffer("frozen_weight", torch.zeros(n_classes, n_features))
        self.register_buffer("frozen_bias", torch.zeros(n_classes))

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Copy the weights of stage 1.

        Parameters
        ----------
        head : nn.Linear
            The head of stage 1, of as many classes and features.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class.

        Returns
        -------
        FrozenLinear
            This head.
        """
        weight, bias = _weight_and_bias(head, self.n_classes, self.n_features, counts)
        self.frozen_weight.copy_(weight)
        self.frozen_bias.copy_(bias)
        self._is_built = True
        return self

    def stage_1_logits(self, x: Tensor) -> Tensor:
        """Give the logits of stage 1, in the precision of the weights under autocast too."""
        with full_precision(x.device):
            return linear(self._checked_features(x), self.frozen_weight, self.frozen_bias)

    def _checked_features(self, x: Tensor) -> Tensor:
        """Check feature vectors; give them in the precision of the weights."""
        self.check_built()
        if x.ndim != 2 or x.shape[1] != self.n_features:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected (batch, {self.n_features}), feature "
                "vectors as stage 1 had them."
            )
        return x.to(self.frozen_weight.dtype)

    def extra_repr(self) -> str:
        """Show the sizes in ``repr``."""
        return f"{self.n_classes}, {self.n_features}"


@register_head("scaled", builds_on=("linear",))
class ScaledHead(FrozenLinear):
    """Multiply the logits of stage 1, bias included, by one learned factor a class (LWS).

    Before it learns every factor is 1 and the logits are those of stage 1.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.

    Attributes
    ----------
    scales : Parameter, shape (n_classes,)
        The factors, all that learns.

    References
    ----------
    Decoupling Representation and Classifier for Long-Tailed Recognition. ICLR 2020.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead, ScaledHead
    >>> first, x = LinearHead(3, 2), torch.ones(1, 2)
    >>> head = ScaledHead(3, 2).build_on(first, [9, 3, 1])
    >>> torch.equal(head(x), first(x)), [name for name, _ in head.named_parameters()]
    (True, ['scales'])
    """

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__(n_classes, n_features)
        self.scales = nn.Parameter(torch.ones(n_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        return self.scales * self.stage_1_logits(x)


@register_head("aligned", builds_on=("linear",))
class AlignedHead(FrozenLinear):
    """Blend the logits of stage 1 with a learned scaling and shift of them (DisAlign).

    Of logits ``z`` it makes ``kappa * (scales * z + offsets) + (1 - kappa) * z``, where ``kappa``,
    between 0 and 1, is the logistic function of a learned product with the feature vector. Before
    it learns, the logits are those of stage 1.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.

    Attributes
    ----------
    scales, offsets : Parameter, shape (n_classes,)
        What logits are multiplied by, and what is added.
    confidence : Linear
        Features to the log-odds of ``kappa``.

    References
    ----------
    Distribution Alignment: A Unified Framework for Long-tail Visual Recognition. CVPR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import AlignedHead, LinearHead
    >>> first, x = LinearHead(3, 2), torch.ones(1, 2)
    >>> head = AlignedHead(3, 2).build_on(first, [9, 3, 1])
    >>> torch.equal(head(x), first(x)), head.kappa(x).shape
    (True, torch.Size([1, 1]))
    """

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__(n_classes, n_features)
        self.scales = nn.Parameter(torch.ones(n_classes))
        self.offsets = nn.Parameter(torch.zeros(n_classes))
        self.confidence = nn.Linear(n_features, 1)
        nn.init.constant_(self.confidence.weight, 0.1)

    def kappa(self, x: Tensor) -> Tensor:
        """Say how far each row is calibrated (batch, 1): 0 as in stage 1, 1 in full."""
        with full_precision(x.device):
            kappa: Tensor = self.confidence(self._checked_features(x)).sigmoid()
        return kappa

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        logits_bc = self.stage_1_logits(x)
        # The blend written as a change: where nothing is learned yet it is nothing, to the bit.
        return logits_bc + self.kappa(x) * ((self.scales - 1) * logits_bc + self.offsets)


@register_head("tau-normalized", builds_on=("linear",), learns=False)
class TauNormalizedHead(FrozenLinear):
    """Divide the weight vector of each class by its length to the power of tau.

    Frequent classes have long weight vectors; without the lengths they lose that advantage.
    Nothing learns here: there are no parameters.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    tau : float, default=1
        0 leaves the weights as they are; at 1 all have length 1 (L2-norm).
    bias : bool, default=False
        Whether the bias of stage 1 is added, as it is.

    References
    ----------
    Decoupling Representation and Classifier for Long-Tailed Recognition. ICLR 2020.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead, TauNormalizedHead
    >>> first = LinearHead(2, 2)
    >>> _ = first.weight.data.copy_(torch.tensor([[6.0, 8.0], [0.0, 0.5]]))
    >>> TauNormalizedHead(2, 2).build_on(first, [9, 1])(torch.ones(1, 2))
    tensor([[1.4000, 1.0000]])
    """

    @checked
    def __init__(
        self, n_classes: int, n_features: int, *, tau: NonNegative = 1.0, bias: bool = False
    ) -> None:
        super().__init__(n_classes, n_features)
        self.tau = tau
        self.has_bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        bias_c = self.frozen_bias if self.has_bias else None
        with full_precision(x.device):
            return linear(self._checked_features(x), self.normalized_weight(), bias_c)

    def normalized_weight(self) -> Tensor:
        """Give the weights as they are used; a row without length stays as it is."""
        _, zero_c = unit_rows(self.frozen_weight)
        lengths_c = torch.linalg.vector_norm(self.frozen_weight, dim=1)
        lengths_c = torch.where(zero_c > 0, 1, lengths_c)
        return self.frozen_weight * lengths_c.pow(-self.tau)[:, None]

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, tau={self.tau!r}, bias={self.has_bias!r}"


@register_head("cosine", has_weight=True)
class CosineHead(nn.Module):
    """Classify a feature vector by its cosine with one weight vector a class.

    Neither the length of a feature vector nor that of a weight vector counts, so no class has a
    larger influence by a longer one.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    scale : float
        What cosines are multiplied by: logits lie between minus this and this.

    Attributes
    ----------
    weight : Parameter
        (classes, channels).

    References
    ----------
    Dynamic Few-Shot Visual Learning without Forgetting. CVPR 2018.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import CosineHead
    >>> head = CosineHead(2, 2, scale=10.0)
    >>> _ = head.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.1]]))
    >>> head(torch.tensor([[0.0, 7.0]])).detach()
    tensor([[ 0., 10.]])
    """

    @checked
    def __init__(self, n_classes: Count, n_features: Count, *, scale: Positive = 16.0) -> None:
        super().__init__()
        self.n_classes, self.n_features, self.scale = n_classes, n_features, scale
        self.weight = nn.Parameter(torch.empty(n_classes, n_features))
        nn.init.normal_(self.weight, std=n_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels). The logits of a zero vector are zero.

        Returns
        -------
        Tensor
            (batch, classes), float64 if an input is, otherwise float32, under autocast too.
        """
        with full_precision(x.device):  # which would round a logit of 30 to 0.125
            x_bd, _ = unit_rows(x.to(compute_dtype(x, self.weight)))
            weight_cd, _ = unit_rows(self.weight)
            return self.scale * linear(x_bd, weight_cd.to(x_bd.dtype))

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{self.n_classes}, {self.n_features}, scale={self.scale!r}"


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
