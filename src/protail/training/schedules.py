"""Schedules: the learning rate as the training goes on."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from protail._messages import unknown_name
from protail.training.settings import ClassifierSettings, RepresentationSettings

# Maps the fraction of the training that is done, from 0 up to 1, to a factor on the base rate.
Schedule = Callable[[float], float]


def constant(done: float) -> float:
    """Keep the base learning rate.

    Examples
    --------
    >>> from protail.training import constant
    >>> constant(0.5)
    1.0
    """
    return 1.0


def cosine(done: float) -> float:
    """Fall from the base learning rate to 0 along half a cosine.

    Parameters
    ----------
    done : float
        Fraction of the training that is done, from 0 up to 1.

    Returns
    -------
    float
        Factor on the base learning rate.

    Examples
    --------
    >>> from protail.training import cosine
    >>> cosine(0.0), round(cosine(0.5), 12), cosine(1.0)
    (1.0, 0.5, 0.0)
    """
    return 0.5 * (1.0 + math.cos(math.pi * done))


def steps(drops: Sequence[tuple[float, float]]) -> Schedule:
    """Make a schedule that changes at given fractions of the training.

    Parameters
    ----------
    drops : sequence of (float, float)
        From which fraction of the training on, which factor on the base learning rate; in order.

    Returns
    -------
    callable
        1 before the first of them.

    Examples
    --------
    >>> from protail.training import steps
    >>> schedule = steps([(0.8, 0.01), (0.9, 0.0001)])
    >>> schedule(0.5), schedule(0.8), schedule(0.95)
    (1.0, 0.01, 0.0001)
    """
    places = [place for place, _ in drops]
    if places != sorted(places) or not all(0 < place <= 1 for place in places):
        raise ValueError(
            f"drops={list(drops)!r}; expected fractions of the training above 0, in order."
        )
    factors = [1.0, *(factor for _, factor in drops)]
    return lambda done: factors[bisect.bisect_right(places, done)]


def warm_up(schedule: Schedule, part: float) -> Schedule:
    """Let the learning rate rise along a line over the first part of a training.

    Parameters
    ----------
    schedule : callable
        What follows.
    part : float
        How long the rise takes, as a fraction of the training.

    Returns
    -------
    callable
        The schedule with a rise before it; for a part of 0 the schedule itself.

    Examples
    --------
    >>> from protail.training import constant, warm_up
    >>> schedule = warm_up(constant, 0.1)
    >>> schedule(0.0), schedule(0.05), schedule(0.5)
    (0.0, 0.5, 1.0)
    """
    if not 0 <= part < 1:
        raise ValueError(f"part={part!r}; expected a fraction of the training, 0 <= part < 1.")
    if part == 0:
        return schedule
    return lambda done: min(1.0, done / part) * schedule(done)


def make_schedule(
    settings: RepresentationSettings | ClassifierSettings, n_epochs: float
) -> Schedule:
    """Make the schedule that settings name, for a stage of so many epochs.

    Examples
    --------
    >>> from protail.training import RepresentationSettings
    >>> from protail.training.schedules import make_schedule
    >>> risen = make_schedule(RepresentationSettings(warm_up_epochs=5.0), 100)
    >>> risen(0.0), risen(0.05) > 0.99
    (0.0, True)
    """
    shapes = {"cosine": cosine, "constant": constant, "steps": steps(settings.drops)}
    if settings.schedule not in shapes:
        raise ValueError(unknown_name("schedule", settings.schedule, shapes))
    # A limit on the steps may end a stage before its learning rate has risen.
    rise = min(settings.warm_up_epochs / max(n_epochs, 1e-9), 1 - 1e-9)
    return warm_up(shapes[settings.schedule], rise)
