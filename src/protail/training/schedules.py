"""Schedules: how the rate follows the part of the training that is done."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(done: float) -> float:
    """Keep the base rate.

    Parameters
    ----------
    done : float
        Part of the training that is done, from 0 up to 1.

    Returns
    -------
    float
        1.

    Examples
    --------
    >>> from protail.training import constant
    >>> constant(0.5)
    1.0
    """
    return 1.0


def cosine(done: float) -> float:
    """Fall from the base rate to 0 along half a cosine.

    Parameters
    ----------
    done : float
        Part of the training that is done, from 0 up to 1.

    Returns
    -------
    float
        Factor on the base rate.

    Examples
    --------
    >>> from protail.training import cosine
    >>> cosine(0.0), round(cosine(0.5), 12), cosine(1.0)
    (1.0, 0.5, 0.0)
    """
    return 0.5 * (1.0 + math.cos(math.pi * done))
