"""Stage 2: learn heads on the features of a frozen backbone, any number of them at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protail.losses import LogitAdjustedLoss, begin_epoch, make_loss
from protail.models.heads import PrototypeHead, class_means, make_head
from protail.ops import kernels
from protail.ops.distance import Euclidean, SqEuclidean
from protail.training.features import Features, Stream, stage_steps
from protail.training.loop import (
    DivergenceError,
    PlainDriver,
    SlicedDriver,
    make_schedule,
    threads_for,
    train,
)
from protail.training.optimisation import head_constraint
from protail.training.settings import ClassifierSettings

# What heads must have in common, beside the stream, to learn in the same steps.
_SHARED = ("epochs", "max_steps", "batch_size", "schedule", "drops", "warm_up_epochs", "batch_norm")

Watch = Callable[[int, Mapping[str, nn.Module]], None]


def learn_heads(
    settings: Mapping[str, ClassifierSettings], frozen: Features, **options: Any
) -> dict[str, nn.Module]:
    """Learn a head for each of the settings; those with the same stream learn together.

    Parameters
    ----------
    settings : mapping of str to ClassifierSettings
        What each head depends on, by name.
    frozen : FrozenFeatures or GivenFeatures
        The frozen backbone and the training images.
    **options
        What `learn_stable_heads` takes: ``seed``, ``driver``, ``first_head``, ``watch``,
        ``watch_every``.

    Returns
    -------
    dict of str to nn.Module
        The heads, by name. Evaluate each on the features of ``frozen.for_stage(its settings,
        seed)``.
    """
    heads = learn_stable_heads(settings, frozen, **options)
    lost = [name for name in settings if name not in heads]
    if lost:
        of = f" ({', '.join(lost)})" if len(settings) > 1 else ""
        raise DivergenceError(
            f"the loss or the weights of stage 2{of} are not finite any more; expected finite "
            "ones. Lower classifier.lr."
        )
    return heads


def learn_stable_heads(
    settings: Mapping[str, ClassifierSettings],
    frozen: Features,
    *,
    seed: int,
    driver: str = "plain",
    first_head: nn.Module | None = None,
    watch: Watch | None = None,
    watch_every: int = 20,
) -> dict[str, nn.Module]:
    """Learn heads as `learn_heads` does, and leave out those whose numbers are not finite.

    Parameters
    ----------
    settings, frozen
        As in `learn_heads`.
    seed : int
        Same seed, same heads.
    driver : {"plain", "captured"}
        How a step is taken.
    first_head : nn.Module, optional
        The head that stage 1 has learned, for those that begin with it.
    watch : callable, optional
        Shown the steps taken and the heads as they are then, by name: before the first step, every
        ``watch_every`` steps and after the last; those that learn together, together, and those
        that have diverged too. It must not change them.
    watch_every : int
        Steps between two calls of ``watch``.

    Returns
    -------
    dict of str to nn.Module
        The other heads, by name.
    """
    alike: dict[tuple[Any, ...], dict[str, ClassifierSettings]] = defaultdict(dict)
    for name, one in settings.items():
        shared = (getattr(one, key) for key in _SHARED)
        alike[Stream.of(one), *shared][name] = one
    learned: dict[str, nn.Module] = {}
    for group in alike.values():
        own = frozen.for_stage(next(iter(group.values())), seed)
        heads = {name: _start(one, own, seed, first_head) for name, one in group.items()}
        if watch is not None:
            watch(0, heads)
        learned |= _learn_group(group, heads, own, seed, driver, watch, watch_every)
    return {name: learned[name] for name in settings if name in learned}


def count_steps(settings: ClassifierSettings, frozen: Features) -> int:
    """Count the steps of stage 2; raise where it cannot be learned, before stage 1 takes hours.

    Parameters
    ----------
    settings : ClassifierSettings
        What it depends on.
    frozen : FrozenFeatures or GivenFeatures
        What it is to learn from.

    Returns
    -------
    int
        The steps.
    """
    make_loss(settings.loss, frozen.counts, **settings.loss_options)
    _make_head(settings, frozen, 0)
    return stage_steps(settings, frozen.n_draws(Stream.of(settings), 0))[1]


def _make_head(settings: ClassifierSettings, frozen: Features, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's is that of captured steps
        size = len(frozen.counts), frozen.n_features
        return make_head(settings.head, *size, **settings.head_options).to(frozen.device)


def _start(
    settings: ClassifierSettings, frozen: Features, seed: int, first_head: nn.Module | None
) -> nn.Module:
    n_classes = len(frozen.counts)
    head = _make_head(settings, frozen, seed)
    if settings.start == "representation":
        if first_head is None:
            raise ValueError(
                f"head {settings.head!r} begins with the one that stage 1 has learned, and there "
                "are only features here; expected a new one, such as 'prototype'."
            )
        head.build_on(first_head, frozen.counts)
    if settings.centroids is not None:
        if settings.centroids == "clean":
            features, labels = frozen.clean(settings.precision)
        else:
            features, labels = frozen.stream(Stream.of(settings), seed, epoch=0)
        head.set_prototypes(class_means(features, labels, n_classes, transform=head.normalized))
    started: nn.Module = head.eval()
    return started


class FeatureBatch(NamedTuple):
    """What a step of stage 2 gets: features, shape (batch, n_features), and class codes."""

    features: Tensor
    labels: Tensor


class HeadGroup(nn.Module):
    """Heads that learn from the same features, each with its own loss, both by name.

    Their losses are added up: no parameter is shared, so each gets the gradient it would get
    alone, even where the loss of another is not finite any more.
    """

    were_finite: Tensor

    def __init__(self, heads: Mapping[str, nn.Module], losses: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads.values())
        self.losses = nn.ModuleList(losses.values())
        device = next((each.device for each in self.parameters()), None)
        were_finite = torch.ones(len(heads), dtype=torch.bool, device=device)
        self.register_buffer("were_finite", were_finite)
        self._adjustments = _shared_adjustments([*heads.values()], [*losses.values()])

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Give the sum of the losses of a batch."""
        if self._adjustments is not None and self._are_one(batch):
            first, *_ = heads = self._plain_heads
            total, together = kernels.losses(
                first.normalized(batch.features),
                [head.prototypes for head in heads],
                batch.labels,
                distance=first.metric,
                adjustment=self._adjustments,
            )
            self.were_finite &= together.isfinite()
            return total
        pairs = zip(self.heads, self.losses, strict=True)
        losses = [_loss_of(head, loss, batch) for head, loss in pairs]
        together = losses[0].unsqueeze(0) if len(losses) == 1 else torch.stack(losses)
        self.were_finite &= together.detach().isfinite()
        return losses[0] if len(losses) == 1 else together.sum()

    def _are_one(self, batch: FeatureBatch) -> bool:
        """Say whether all heads can take a step of such a batch at once."""
        x, heads = batch.features, self._plain_heads
        reason = kernels.not_together([head.prototypes for head in heads], len(x))
        first = heads[0]
        return (reason or kernels.unsupported(x, first.prototypes, None, first.metric)) is None

    @property
    def _plain_heads(self) -> list[Any]:
        return list(self.heads)

    def are_finite(self) -> list[bool]:
        """Say of each head whether all its losses have been finite, and its weights still are."""
        return [
            were_finite and all(bool(each.isfinite().all()) for each in head.parameters())
            for were_finite, head in zip(self.were_finite.tolist(), self.heads, strict=True)
        ]


def _shared_adjustments(heads: Sequence[Any], losses: Sequence[Any]) -> Tensor | None:
    """Give the adjustments of several plain heads that measure alike; None if they do not."""
    kinds = {(type(head), type(loss)) for head, loss in zip(heads, losses, strict=True)}
    if len(heads) < 2 or kinds != {(PrototypeHead, LogitAdjustedLoss)}:
        return None
    first = heads[0]
    measures = {(type(head.metric), head.normalize) for head in heads}
    kind: Any = type(first.metric)
    if len(measures) > 1 or kind not in (Euclidean, SqEuclidean):
        return None
    if any(head.temperature is not None for head in heads):
        return None
    adjustments: list[Tensor] = [loss.adjustment for loss in losses]
    return torch.stack(adjustments).float()


def _loss_of(head: nn.Module, loss: nn.Module, batch: FeatureBatch) -> Tensor:
    """Give the loss of one head; on a GPU in one go, where prototypes and loss are plain."""
    x, labels = batch
    if x.is_cuda and type(head) is PrototypeHead and type(loss) is LogitAdjustedLoss:
        return head.loss(x, labels, loss.adjustment)
    value: Tensor = loss(head(x), labels)
    return value


def _learn_group(
    settings: Mapping[str, ClassifierSettings],
    heads: dict[str, nn.Module],
    frozen: Features,
    seed: int,
    driver: str,
    watch: Watch | None,
    watch_every: int,
) -> dict[str, nn.Module]:
    """Let heads that share stream and steps learn in place; leave out those that diverged."""
    first = next(iter(settings.values()))
    if first.epochs == 0:
        return heads
    losses = {
        name: make_loss(one.loss, frozen.counts, **one.loss_options).to(frozen.device)
        for name, one in settings.items()
    }
    group = HeadGroup(heads, losses).train()
    shorten = _row_limits(settings, heads)
    after_step = partial(shorten, "step")
    fused = frozen.device.type == "cuda"
    optimizer = torch.optim.SGD(_parameter_groups(settings, heads), lr=1.0, fused=fused)
    steps = (
        SlicedDriver(group, group, optimizer, after_step)
        if driver == "captured"
        else PlainDriver(group, optimizer, after_step)
    )
    stream, size = Stream.of(first), first.batch_size
    steps_an_epoch, n_steps = stage_steps(first, frozen.n_draws(stream, seed))
    # The whole of the first epoch is there already where prototypes have started from it.
    is_whole = any(one.centroids == "augmented" for one in settings.values())
    for epoch, start in enumerate(range(0, n_steps, steps_an_epoch)):
        for loss in group.losses:
            begin_epoch(loss, epoch)
        n_left = None if epoch == 0 and is_whole else (n_steps - start) * size
        features, labels = frozen.stream(stream, seed, epoch, n_left)
        schedule = make_schedule(first, n_steps / steps_an_epoch)
        batches: Any = (
            FeatureBatch(x.to(frozen.device), y.to(frozen.device))
            for x, y in zip(torch.split(features, size), torch.split(labels, size), strict=True)
        )
        if isinstance(steps, SlicedDriver):
            factors = [
                schedule(min(step, n_steps - 1) / n_steps)
                for step in range(start, start - (-len(labels) // size))
            ]
            batches = steps.begin(FeatureBatch(features, labels), size, factors)
        with threads_for(size * len(frozen.counts) * frozen.n_features):
            train(
                steps,
                batches,
                n_steps,
                schedule=schedule,
                watch=None if watch is None else lambda step, _: watch(step, heads),
                record_every=n_steps + 1 if watch is None else watch_every,
                start=start,
            )
        if not any(group.are_finite()):
            return {}
        shorten("epoch")
        if isinstance(steps, SlicedDriver):
            steps.end()
        del features, labels, batches  # there may not be room for those of two epochs
    group.eval()
    finite = zip(heads.items(), group.are_finite(), strict=True)
    return {name: head for (name, head), is_finite in finite if is_finite}


def _row_limits(
    settings: Mapping[str, ClassifierSettings], heads: Mapping[str, nn.Module]
) -> Callable[[str], None]:
    """Give what makes rows shorter that are too long, told whether a step or an epoch has ended."""
    limits = [
        (one.max_norm_every, head_constraint(heads[name], one.max_norm, one.max_norm_part))
        for name, one in settings.items()
    ]

    def shorten(ended: str) -> None:
        for every, limit in limits:
            if limit is not None and every == ended:
                limit()

    return shorten


def _parameter_groups(
    settings: Mapping[str, ClassifierSettings], heads: Mapping[str, nn.Module]
) -> list[dict[str, Any]]:
    groups = []
    for name, one in settings.items():
        temperatures = {id(each) for each in getattr(heads[name], "temperatures", ())}
        for parameter in heads[name].parameters():
            lr, decay = one.lr, one.weight_decay
            if id(parameter) in temperatures:
                lr, decay = one.temperature_lr, one.temperature_weight_decay
            own = {"params": [parameter], "lr": lr, "weight_decay": decay}
            groups.append({**own, "momentum": one.momentum, "nesterov": one.nesterov})
    return groups
