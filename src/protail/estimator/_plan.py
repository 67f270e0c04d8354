"""How long and how fast to train: plans, from the shortest to the longest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from protail.estimator._space import Space

Auto = Literal["auto"]


class _Effort(NamedTuple):
    """How far prototypes may move, how often each class is seen, and the limits on the steps."""

    movement: float
    visits: int
    fewest_steps: int
    most_steps: int


# Few steps near the class means for memorised or scarce rows; more where rows have more to say.
_EFFORTS = (
    _Effort(6.0, 32, 100, 2000),
    _Effort(64.0, 256, 120, 250),
    _Effort(768.0, 640, 300, 400),
)
# The longest training is offered only where nearest means leave this much to learn, and none but
# the shortest where classes have so few rows that class means are hard to beat.
_LONG_WORTH = 0.04
_FEW_ROWS = 16
_FEW_CLASSES = 256
_SMALL_BATCH, _LARGE_BATCH = 64, 256
_USUAL_MOMENTUM = 0.9
_STABLE = 4.0


@dataclass(frozen=True)
class Plan:
    """One training: its steps and rates.

    Attributes
    ----------
    n_steps, batch_size : int
        How many steps, and rows in each.
    lr, temperature_lr, momentum : float
        Rates at the start (they fall to 0 along a cosine), and momentum.
    """

    n_steps: int
    batch_size: int
    lr: float
    temperature_lr: float
    momentum: float


def plans(
    space: Space,
    n_classes: int,
    n_rows: int,
    epoch_length: int,
    *,
    distance: str,
    epochs: int | Auto,
    max_steps: int | None,
    batch_size: int | Auto,
    lr: float | Auto,
    temperature_lr: float,
    momentum: float,
) -> list[Plan]:
    """List the trainings worth trying, shortest first; what the user fixed is the same in all.

    Parameters
    ----------
    space : Space
        Where prototypes are learned.
    n_classes, n_rows, epoch_length : int
        Classes, rows, and draws of one epoch.
    distance, epochs, max_steps, batch_size, lr, temperature_lr, momentum
        As the user gave them.

    Returns
    -------
    list of Plan
        One if the space leaves no choice, and none twice.
    """
    efforts: tuple[_Effort, ...] = _EFFORTS
    if space.accuracy is None or space.memorised or n_rows < _FEW_ROWS * n_classes:
        efforts = _EFFORTS[:1]
    elif 1 - space.accuracy < _LONG_WORTH:
        efforts = _EFFORTS[:2]
    size = batch_size
    if size == "auto":
        size = _SMALL_BATCH if n_classes <= _FEW_CLASSES else _LARGE_BATCH
    found: list[Plan] = []
    shortest = 0  # no longer training has fewer steps than a shorter one
    for effort in efforts:
        steps = max(effort.fewest_steps, math.ceil(effort.visits * n_classes / size))
        steps = min(steps, max(effort.most_steps, shortest))
        shortest = max(shortest, steps)
        if epochs != "auto":
            steps = epochs * math.ceil(epoch_length / size)
        steps = steps if max_steps is None else min(steps, max_steps)
        rate = _rate(effort.movement, steps, n_classes, space, distance, momentum)
        rate = rate if lr == "auto" else lr
        rate = rate if steps else 0.0
        plan = Plan(steps, size, rate, temperature_lr, momentum)
        if plan not in found:
            found.append(plan)
    return found


def _rate(
    movement: float, steps: int, n_classes: int, space: Space, distance: str, momentum: float
) -> float:
    """Spread a movement over the steps: a class gets one part in C of the mean's gradient.

    The factor 2 makes up for the cosine, whose mean is 1/2. Under the Euclidean distance a
    gradient is no longer than 1/2 whatever the distance; under the others it must be made so,
    and the squared one has a curvature, d^2 / 4C at most, that limits the rate.
    """
    rate = 2 * movement * n_classes / max(steps, 1) * (1 - momentum) / (1 - _USUAL_MOMENTUM)
    if distance == "sqeuclidean":
        slope = max(1.0, 2 * math.sqrt(space.own_distance))
        return min(rate / slope, _STABLE * n_classes / max(space.own_distance, 1.0))
    if distance == "cosine":
        return rate / max(1.0, space.logit_scale) ** 2
    return rate
