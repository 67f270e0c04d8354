"""A head for each expert, which sees its own part of the feature vector: all decide, or the first.

The mean of all experts decides, or gates ask one after the other and stop where no further one is
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from protail.models.heads.linear import BuiltHead, CosineHead
from protail.models.heads.prototype import PrototypeHead, TemperatureForm, TemperatureScheme
from protail.models.heads.registry import register_head
from protail.ops import Distance, full_precision, unit_rows
from protail.options import Count, Positive, Range, checked
from protail.profile import Counts


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


class Routing(NamedTuple):
    """What the gates learn from.

    Attributes
    ----------
    gates : Tensor, shape (batch, experts - 1)
        Logits: above 0 the expert after this one is asked too.
    running : Tensor, shape (batch, experts, classes)
        Mean logits of the experts up to each.
    """

    gates: Tensor
    running: Tensor


@register_head("routed-experts", builds_on=("experts",), losses=("routing",))
class RoutedExpertsHead(BuiltHead):
    """Classify by the mean logits of the first experts, as many as an image needs.

    After each expert but the last a gate sees the highest mean logits so far and at the
    expert's features, and says whether to ask the next one. Only the gates learn; the classifiers
    are those of stage 1. All experts are computed and the unused ones left out, which gives the
    same logits as not computing them.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector; the experts' parts stand in it side by side.
    experts : int
        How many experts the backbone has, at least 2.
    scale : float
        What cosines are multiplied by, as in stage 1.
    top : int
        How many of the highest mean logits a gate sees; all of them where there are fewer.
    units : int
        How many numbers a gate makes of an expert's features.

    Attributes
    ----------
    frozen : ExpertsHead
        The classifiers of stage 1; their weights are buffers.
    summaries : nn.ModuleList of nn.Linear
        What the gates see of each expert's features.
    gate : nn.Linear
        What they all decide by.

    References
    ----------
    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import ExpertsHead, RoutedExpertsHead
    >>> stage_1 = ExpertsHead(5, 6, experts=3)
    >>> head = RoutedExpertsHead(5, 6, experts=3).build_on(stage_1, [9, 7, 5, 3, 1])
    >>> x = torch.randn(4, 6)
    >>> head(x).gates.shape, head(x).running.shape
    (torch.Size([4, 2]), torch.Size([4, 3, 5]))
    >>> head.eval()(x).shape
    torch.Size([4, 5])
    """

    stage_1 = ("experts",)
    taken_over = "frozen.experts.0.weight"

    @checked
    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        experts: Annotated[int, Range(2, kind=int)] = 3,
        scale: Positive = 30.0,
        top: Count = 30,
        units: Count = 16,
    ) -> None:
        super().__init__()
        self.n_classes, self.n_features = n_classes, n_features
        self.frozen = ExpertsHead(n_classes, n_features, experts=experts, scale=scale)
        _turn_into_buffers(self.frozen)
        self.top = min(top, n_classes)
        width = n_features // experts
        self.summaries = nn.ModuleList(
            nn.Linear(width, units, bias=False) for _ in range(experts - 1)
        )
        self.gate = nn.Linear(self.top + units, 1)

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Take over the classifiers of stage 1.

        Parameters
        ----------
        head : ExpertsHead
            What stage 1 has learned, of the same size and scale.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class; not needed.

        Returns
        -------
        RoutedExpertsHead
            This head.
        """
        if not isinstance(head, ExpertsHead):
            raise TypeError(
                f"head is a {type(head).__name__}; expected an ExpertsHead (head 'experts' in "
                "stage 1)."
            )
        theirs, ours = _size(head), _size(self.frozen)
        if theirs != ours:
            raise ValueError(
                f"the head of stage 1 has {theirs}, this one {ours}; expected the same. Give "
                "'routed-experts' the options experts and scale of stage 1."
            )
        self.frozen.load_state_dict(head.state_dict())
        self._is_built = True
        return self

    def routing(self, x: Tensor) -> Routing:
        """Give gates and running means.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Routing
            What the loss "routing" takes.
        """
        self.check_built()
        with full_precision(x.device):  # whether a gate opens must not depend on rounding
            logits_ebc = self.frozen.expert_logits(x)
            # The mean over all of them is the very number that the head of stage 1 gives.
            running_bec = torch.stack(
                [logits_ebc[:n_asked].mean(0) for n_asked in range(1, len(logits_ebc) + 1)], dim=1
            )
            dtype = self.gate.weight.dtype
            highest_bek = running_bec[:, :-1].topk(self.top).values.to(dtype)
            parts = zip(self.summaries, self.frozen.parts(x.to(dtype))[:-1], strict=True)
            summaries_beh = torch.stack(
                [relu(summary(unit_rows(part)[0])) for summary, part in parts], dim=1
            )
            seen_beh = torch.cat([highest_bek, summaries_beh], dim=2)
            return Routing(self.gate(seen_beh).squeeze(2), running_bec)

    def experts_used(self, x: Tensor) -> Tensor:
        """Count the experts that are asked.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor of int, shape (batch,)
            From 1 to the number of experts.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import ExpertsHead
        >>> from protail.models.heads import RoutedExpertsHead
        >>> stage_1 = ExpertsHead(5, 6, experts=3)
        >>> head = RoutedExpertsHead(5, 6, experts=3).build_on(stage_1, [9, 7, 5, 3, 1])
        >>> _ = head.gate.weight.data.zero_(), head.gate.bias.data.fill_(-1.0)
        >>> head.experts_used(torch.randn(4, 6))
        tensor([1, 1, 1, 1])
        """
        return _n_asked(self.routing(x).gates)

    def forward(self, x: Tensor) -> Routing | Tensor:
        """Give what the gates learn from in training mode, otherwise the logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Routing or Tensor
            In training mode what the loss "routing" takes; in eval mode the mean logits (batch,
            classes) of the experts that are asked.
        """
        routing = self.routing(x)
        if self.training:
            return routing
        last_b11 = (_n_asked(routing.gates) - 1)[:, None, None]
        return routing.running.gather(1, last_b11.expand(-1, 1, self.n_classes)).squeeze(1)


def _n_asked(gates: Tensor) -> Tensor:
    """One, and one more for each gate that is open before the first that is shut."""
    return 1 + ((~(gates > 0)).cumsum(1) == 0).sum(1)


def _turn_into_buffers(module: nn.Module) -> None:
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())


def _size(head: ExpertsHead) -> str:
    return (
        f"{head.n_classes} classes, {head.n_features} features, {head.n_experts} experts and "
        f"scale {head.scale:g}"
    )


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
