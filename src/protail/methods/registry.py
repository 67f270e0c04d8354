"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from protail._registry import Registry
from protail.methods.method import Method

Kind = TypeVar("Kind", bound=Callable[..., Method])

METHODS: Registry[Method] = Registry(
    "method", given=["backbone", "head", "loss"], package="protail.methods"
)
METHODS.register("standard")(Method)


def register_method(name: str) -> Callable[[Kind], Kind]:
    """Give a method a name that `make_method` and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.

    Returns
    -------
    callable
        A decorator for a `Method` that takes ``backbone``, ``head``, ``loss`` and options. It
        leaves ``features`` and ``logits`` as they are.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.methods import Method, make_method, register_method
    >>> @register_method("halved")
    ... class Halved(Method):
    ...     def forward(self, batch):
    ...         return super().forward(batch) / 2
    >>> type(
    ...     make_method("halved", nn.Flatten(), nn.Linear(3, 2), nn.CrossEntropyLoss())
    ... ).__name__
    'Halved'
    """
    return METHODS.register(name)


def make_method(
    name: str, backbone: nn.Module, head: nn.Module, loss: nn.Module, **options: Any
) -> Method:
    """Make a method by name.

    Parameters
    ----------
    name : str
        Which method; "standard" is backbone, head and loss.
    backbone, head, loss : nn.Module
        What it is made of.
    **options
        What the method takes beside them.

    Returns
    -------
    Method
        What a training step computes.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.methods import make_method
    >>> method = make_method("standard", nn.Flatten(), nn.Linear(3, 2), nn.CrossEntropyLoss())
    >>> type(method.head).__name__
    'Linear'
    """
    method = METHODS.make(name, backbone, head, loss, **options)
    for part, place in (("features", "backbone"), ("logits", "head")):
        if getattr(type(method), part) is not getattr(Method, part):
            raise ValueError(
                f"method {name!r} has {part} of its own, and is judged by its backbone and head "
                f"alone; expected those of Method. Put what it does into a {place}, or into "
                "forward where it concerns training only."
            )
    return method
