"""Learning prototypes: from class means, by the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protail._messages import counted
from protail.data import make_sampler
from protail.estimator._features import Features
from protail.estimator._plan import Plan
from protail.heads import PrototypeHead
from protail.training import History, PlainDriver, cosine, diverged, train
from protail.training.loop import Watcher
from protail.training.threads import threads_for

Batch = tuple[Tensor, Tensor]


class DivergenceError(ValueError):
    """The loss of a training stopped being a number."""


class Task(NamedTuple):
    """What is learned, whichever rows it is learned from."""

    features: Features
    labels: NDArray[np.int64]
    distance: str
    temperature: str | None
    logit_scale: float
    adjustment: Tensor
    sampling: str


def make_head(task: Task, prototypes: Tensor) -> PrototypeHead:
    """Make a head with these prototypes, untrained."""
    head = PrototypeHead(*prototypes.shape, distance=task.distance, temperature=task.temperature)
    head = head.to(prototypes.device, prototypes.dtype)
    return head.set_prototypes(prototypes)


def learn(
    task: Task,
    head: PrototypeHead,
    plan: Plan,
    seed: int,
    *,
    index: NDArray[np.int64] | None = None,
    watch: Watcher | None = None,
) -> History:
    """Train a head in place.

    Parameters
    ----------
    task : Task
        Rows, labels and loss.
    head : PrototypeHead
        Starts wherever it stands.
    plan : Plan
        Steps and rates.
    seed : int
        Of the order of the rows.
    index : ndarray of int, optional
        The rows to train on; by default all.
    watch : callable, optional
        Told of the progress.

    Returns
    -------
    History
        The losses.
    """
    if plan.n_steps == 0:
        return History()

    def loss(batch: Batch) -> Tensor:
        rows, target = batch
        if task.logit_scale == 1:
            return head.loss(rows, target, adjustment=task.adjustment)
        return F.cross_entropy(task.logit_scale * head(rows) + task.adjustment, target)

    groups = head.parameter_groups(
        lr=plan.lr, temperature_lr=plan.temperature_lr, momentum=plan.momentum
    )
    driver = PlainDriver(loss, torch.optim.SGD(groups, fused=True))
    stream = _stream(task, plan.batch_size, seed, index)
    with threads_for(plan.batch_size * head.prototypes.numel()):
        history = train(driver, stream, plan.n_steps, schedule=cosine, stop=diverged, watch=watch)
    if history.stopped_early:
        raise DivergenceError(
            f"the loss was {history.losses[-1]} after {counted(history.steps[-1], 'step')} with "
            f"lr={plan.lr:g} and temperature_lr={plan.temperature_lr:g}; expected a finite one. "
            "Lower the rates, or leave lr='auto'."
        )
    return history


def epoch_length(task: Task) -> int:
    """Count the draws of one epoch."""
    return len(make_sampler(task.sampling, task.labels))


def _stream(
    task: Task, batch_size: int, seed: int, index: NDArray[np.int64] | None
) -> Iterator[Batch]:
    labels = task.labels if index is None else task.labels[index]
    sampler = make_sampler(task.sampling, labels, seed=seed)
    codes = torch.from_numpy(task.labels).to(task.features.device)
    for epoch in count():
        for drawn in sampler.batches(batch_size, epoch):
            rows = drawn if index is None else index[drawn]
            target = codes.index_select(0, torch.from_numpy(rows).to(codes.device))
            yield task.features.take(rows), target
