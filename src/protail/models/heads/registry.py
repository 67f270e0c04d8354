"""Heads by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from protail._registry import Registry
from protail.ops import Distance

Head = TypeVar("Head", bound=Callable[..., nn.Module])

HEADS: Registry[nn.Module] = Registry(
    "head", given=["n_classes", "n_features"], package="protail.models.heads"
)


def register_head(
    name: str,
    *,
    builds_on: Sequence[str] = (),
    losses: Sequence[str] = (),
    learns: bool = True,
    has_weight: bool = False,
) -> Callable[[Head], Head]:
    """Give a head a name that `make_head` and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.
    builds_on : sequence of str
        Heads of stage 1 that this one, in stage 2, can be built on; empty for a head that needs
        none. One that names some has ``build_on(head, counts)``, called before it learns.
    losses : sequence of str
        The losses that take what it gives in training; empty where that is logits, which any loss
        takes.
    learns : bool, default=True
        Whether it has parameters to learn.
    has_weight : bool, default=False
        Whether its parameters are in ``weight``, a row a class, which MaxNorm can keep short.

    Returns
    -------
    callable
        A decorator for a class or function that takes ``n_classes``, ``n_features`` and options
        and gives a module: features (batch, n_features) to logits (batch, n_classes). One with
        an option ``experts`` needs a backbone with as many.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.models.heads import make_head, register_head
    >>> @register_head("two-layers")
    ... def two_layers(n_classes: int, n_features: int, *, width: int = 8) -> nn.Module:
    ...     first, last = nn.Linear(n_features, width), nn.Linear(width, n_classes)
    ...     return nn.Sequential(first, nn.ReLU(), last)
    >>> len(make_head("two-layers", 3, 2, width=4))
    3
    """
    return HEADS.register(
        name, builds_on=tuple(builds_on), losses=tuple(losses), learns=learns, has_weight=has_weight
    )


def make_head(name: str, n_classes: int, n_features: int, **options: Any) -> nn.Module:
    """Make a head by name.

    Parameters
    ----------
    name : str
        One of `head_names`.
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    **options
        What that head takes; for "prototype" ``distance``, ``temperature`` (with its form and
        start) and ``normalize``, for "linear" ``bias``, for "cosine" ``scale``.

    Returns
    -------
    torch.nn.Module
        Features to logits.

    Examples
    --------
    >>> from protail.models.heads import make_head
    >>> make_head("prototype", 3, 2, distance="cosine")
    PrototypeHead(3, 2, distance='cosine', temperature=None, normalize=None)
    """
    head = HEADS.taking(name, options)(n_classes, n_features, **options)
    # A distance is made again by its name, if it has one, and its tensors are the head's.
    named = {
        key: each.name if isinstance(each, Distance) else each for key, each in options.items()
    }
    if "" not in named.values():
        head.made_by = (name, named)  # type: ignore[assignment]
    return head


def head_names() -> list[str]:
    """List the heads that `make_head` knows.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.models.heads import head_names
    >>> {"linear", "prototype"} <= set(head_names())
    True
    """
    return HEADS.names()
