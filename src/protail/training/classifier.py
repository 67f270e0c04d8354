"""Stage 2: learn heads on the frozen backbone, any number of them at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protail.heads import class_means
from protail.heads.registry import make_head
from protail.losses.registry import make_loss
from protail.training.captured import CapturedDriver
from protail.training.constraints import MaxNorm, head_constraint
from protail.training.frozen import Stream, stage_steps
from protail.training.given import Features
from protail.training.head_group import FeatureBatch, HeadGroup
from protail.training.loop import Driver, train
from protail.training.making import make_schedule
from protail.training.plain import PlainDriver
from protail.training.progress import DivergenceError
from protail.training.settings import ClassifierSettings
from protail.training.threads import threads_for

Watch = Callable[[int, Mapping[str, nn.Module]], None]


def learn_heads(
    settings: Mapping[str, ClassifierSettings],
    frozen: Features,
    *,
    seed: int,
    driver: str = "plain",
    first_head: nn.Module | None = None,
    watch: Watch | None = None,
    watch_every: int = 20,
) -> dict[str, nn.Module]:
    """Learn a head for each of the settings; those with the same stream learn together.

    Parameters
    ----------
    settings : mapping of str to ClassifierSettings
        What each head hangs on, by name.
    frozen : FrozenFeatures or GivenFeatures
        The frozen backbone and the training images.
    seed : int
        Same seed, same heads.
    driver : {"plain", "captured"}
        How a step is taken.
    first_head : nn.Module, optional
        The head that stage 1 has learned, for those that begin with it.
    watch : callable, optional
        Shown the steps taken and the heads as they are then, by name: before the first step, every
        ``watch_every`` steps and after the last; those that learn together, together, and those
        that have lost their numbers too. It must not change them.
    watch_every : int
        Steps between two looks.

    Returns
    -------
    dict of str to nn.Module
        The heads, by name. Judge each on the features of ``frozen.for_stage(its settings, seed)``.
    """
    heads = learn_stable_heads(
        settings,
        frozen,
        seed=seed,
        driver=driver,
        first_head=first_head,
        watch=watch,
        watch_every=watch_every,
    )
    lost = [name for name in settings if name not in heads]
    if lost:
        of = f" ({', '.join(lost)})" if len(settings) > 1 else ""
        raise DivergenceError(
            f"the loss or the weights of stage 2{of} are no numbers any more; expected numbers. "
            "Lower classifier.lr."
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
    """Learn heads as `learn_heads` does, and leave out those that have lost their numbers.

    Parameters
    ----------
    settings, frozen, seed, driver, first_head, watch, watch_every
        As in `learn_heads`.

    Returns
    -------
    dict of str to nn.Module
        The other heads, by name.
    """
    alike: dict[tuple[Any, ...], dict[str, ClassifierSettings]] = defaultdict(dict)
    for name, one in settings.items():
        alike[_what_is_shared(one)][name] = one
    heads: dict[str, nn.Module] = {}
    for group in alike.values():
        starts = {name: _start(one, frozen, seed, first_head) for name, one in group.items()}
        heads.update(_learn_group(group, starts, frozen, seed, driver, watch, watch_every))
    return {name: heads[name] for name in settings if name in heads}


def _what_is_shared(settings: ClassifierSettings) -> tuple[Any, ...]:
    """Name what heads must have in common to learn in the same steps."""
    return (
        Stream.of(settings),
        settings.epochs,
        settings.max_steps,
        settings.batch_size,
        settings.schedule,
        settings.drops,
        settings.warm_up_epochs,
        settings.batch_norm,
    )


def _learn_group(
    settings: Mapping[str, ClassifierSettings],
    heads: dict[str, nn.Module],
    frozen: Features,
    seed: int,
    driver: str,
    watch: Watch | None,
    watch_every: int,
) -> dict[str, nn.Module]:
    first = next(iter(settings.values()))
    frozen = frozen.for_stage(first, seed)
    if watch is not None:
        watch(0, heads)
    if first.epochs == 0:
        return heads
    losses = {
        name: make_loss(one.loss, frozen.counts, **one.loss_options).to(frozen.device)
        for name, one in settings.items()
    }
    group = HeadGroup(heads, losses).train()
    limits = _limits(settings, heads)
    taking_steps = _make_driver(
        driver, group, _parameter_groups(settings, heads), limits["step"], frozen.device
    )
    stream = Stream.of(first)
    steps_an_epoch, n_steps = stage_steps(first, frozen.n_draws(stream, seed))
    schedule = make_schedule(first, n_steps / steps_an_epoch)
    for epoch, start in enumerate(range(0, n_steps, steps_an_epoch)):
        group.on_epoch(epoch)
        n_left = (n_steps - start) * first.batch_size
        started_there = epoch == 0 and any(
            one.centroids == "augmented" for one in settings.values()
        )
        features, labels = frozen.stream(stream, seed, epoch, None if started_there else n_left)
        with threads_for(first.batch_size * len(frozen.counts) * frozen.n_features):
            train(
                taking_steps,
                _batches(features, labels, first.batch_size),
                n_steps,
                schedule=schedule,
                watch=None if watch is None else lambda step, _: watch(step, heads),
                record_every=n_steps + 1 if watch is None else watch_every,
                start=start,
            )
        if not any(group.are_sound()):
            return {}
        for limit in limits["epoch"]:
            limit()
        del features, labels  # there may not be room for those of two epochs
    group.eval()
    return {
        name: head
        for (name, head), is_sound in zip(heads.items(), group.are_sound(), strict=True)
        if is_sound
    }


def _limits(
    settings: Mapping[str, ClassifierSettings], heads: Mapping[str, nn.Module]
) -> dict[str, list[MaxNorm]]:
    limits: dict[str, list[MaxNorm]] = {"step": [], "epoch": []}
    for name, one in settings.items():
        limit = head_constraint(heads[name], one.max_norm, one.max_norm_part)
        if limit is not None:
            limits[one.max_norm_every].append(limit)
    return limits


def _start(
    settings: ClassifierSettings, frozen: Features, seed: int, first_head: nn.Module | None
) -> nn.Module:
    frozen = frozen.for_stage(settings, seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's is that of recorded steps
        head = make_head(
            settings.head, len(frozen.counts), frozen.n_features, **settings.head_options
        )
    head.to(frozen.device)
    if settings.start == "representation":
        if first_head is None:
            raise ValueError(
                f"head {settings.head!r} begins with the one that stage 1 has learned, and there "
                "are only features here; expected a head that begins anew, such as 'prototype'."
            )
        build_on: Any = head.build_on
        build_on(first_head, frozen.counts)
    if settings.centroids is not None:
        if settings.centroids == "clean":
            features, labels = frozen.clean(settings.precision)
        else:
            features, labels = frozen.stream(Stream.of(settings), seed, epoch=0)
        prototypes: Any = head
        transform = prototypes.normalized
        means = class_means(features, labels, len(frozen.counts), transform=transform)
        prototypes.set_prototypes(means)
    return head.eval()


def _parameter_groups(
    settings: Mapping[str, ClassifierSettings], heads: Mapping[str, nn.Module]
) -> list[dict[str, Any]]:
    groups = []
    for name, one in settings.items():
        shared = {"momentum": one.momentum, "nesterov": one.nesterov}
        temperatures = [id(each) for each in getattr(heads[name], "temperatures", ())]
        for parameter in heads[name].parameters():
            warm = id(parameter) in temperatures
            groups.append(
                {
                    **shared,
                    "params": [parameter],
                    "lr": one.temperature_lr if warm else one.lr,
                    "weight_decay": one.temperature_weight_decay if warm else one.weight_decay,
                }
            )
    return groups


def _make_driver(
    name: str,
    group: HeadGroup,
    parameters: list[dict[str, Any]],
    limits: list[MaxNorm],
    device: torch.device,
) -> Driver[FeatureBatch]:
    optimizer = torch.optim.SGD(parameters, lr=1.0, fused=device.type == "cuda")

    def after_step() -> None:
        for limit in limits:
            limit()

    if name == "captured":
        return CapturedDriver(group, group, optimizer, after_step)
    return PlainDriver(group, optimizer, after_step)


def _batches(features: Tensor, labels: Tensor, batch_size: int) -> Iterator[FeatureBatch]:
    for begin in range(0, len(features), batch_size):
        part = slice(begin, begin + batch_size)
        yield FeatureBatch(features[part], labels[part])
