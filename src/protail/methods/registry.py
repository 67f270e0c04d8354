"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from torch import nn

from protail._registry import Registry
from protail.methods.method import Method
from protail.profile import Counts

Kind = TypeVar("Kind", bound=Callable[..., Method])

METHODS: Registry[Method] = Registry(
    "method", given=["backbone", "head", "loss", "counts"], package="protail.methods"
)
METHODS.register("standard", views=1, heads=(), losses=(), mixes=True, pretrained=False)(Method)


def register_method(
    name: str,
    *,
    views: int = 1,
    heads: Sequence[str] = (),
    losses: Sequence[str] = (),
    mixes: bool | Literal["always"] | None = None,
    pretrained: bool | Literal["teacher"] = False,
) -> Callable[[Kind], Kind]:
    """Give a method a name that `make_method` and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.
    views : {1, 2}
        How many augmented views of each image a step needs; the second is ``batch.second``.
    heads, losses : sequence of str
        The heads and losses it can work with; empty for any.
    mixes : bool or "always", optional
        Whether it can learn from mixtures of images, or learns from nothing else; by default, a
        method of one view can and one of two cannot. Two views of an image are mixed with the same
        partner.
    pretrained : bool or "teacher"
        Whether it goes on from a backbone and a head that have been trained before, or begins anew
        and learns from them: they are then put into ``teacher.backbone`` and ``teacher.head``.

    Returns
    -------
    callable
        A decorator for a `Method` that takes ``backbone``, ``head``, ``loss``, ``counts`` and
        options. It leaves ``features`` and ``logits`` as they are.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.methods import Method, make_method, register_method
    >>> @register_method("halved")
    ... class Halved(Method):
    ...     def forward(self, batch):
    ...         return super().forward(batch) / 2
    >>> parts = nn.Flatten(), nn.Linear(3, 2), nn.CrossEntropyLoss()
    >>> type(make_method("halved", *parts, [3, 1])).__name__
    'Halved'
    """
    if views not in (1, 2):
        raise ValueError(f"views={views!r}; expected 1 or 2.")
    if mixes not in (True, False, "always", None):
        raise ValueError(f"mixes={mixes!r}; expected True, False, 'always' or None.")
    if pretrained not in (True, False, "teacher"):
        raise ValueError(f"pretrained={pretrained!r}; expected True, False or 'teacher'.")
    return METHODS.register(
        name,
        views=views,
        heads=tuple(heads),
        losses=tuple(losses),
        mixes=views == 1 if mixes is None else mixes,
        pretrained=pretrained,
    )


def make_method(
    name: str,
    backbone: nn.Module,
    head: nn.Module,
    loss: nn.Module,
    counts: Counts,
    **options: Any,
) -> Method:
    """Make a method by name.

    Parameters
    ----------
    name : str
        Which method; "standard" is backbone, head and loss.
    backbone, head, loss : nn.Module
        What it is made of.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class.
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
    >>> parts = nn.Flatten(), nn.Linear(3, 2), nn.CrossEntropyLoss()
    >>> type(make_method("standard", *parts, [3, 1]).head).__name__
    'Linear'
    """
    method = METHODS.make(name, backbone, head, loss, counts, **options)
    for part, place in (("features", "backbone"), ("logits", "head")):
        if getattr(type(method), part) is not getattr(Method, part):
            raise ValueError(
                f"method {name!r} has {part} of its own, and is judged by its backbone and head "
                f"alone; expected those of Method. Put what it does into a {place}, or into "
                "forward where it concerns training only."
            )
    return method
