"""Methods by name, and the default one: backbone, head and loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from protail._registry import Registry
from protail.losses import begin_epoch
from protail.ops import in_full
from protail.options import OneOf
from protail.profile import Counts


class ImageBatch(NamedTuple):
    """What a step gets.

    Attributes
    ----------
    images : Tensor, shape (batch, channels, height, width)
        Ready for the backbone.
    labels : Tensor of int, shape (batch,)
        Class codes.
    other : Tensor of int, shape (batch,), or None
        Where images are mixed, the class of the other one.
    fraction : Tensor, shape (), or None
        Where images are mixed, how much of each belongs to ``labels``.
    second : Tensor, shape (batch, channels, height, width), or None
        Where a method needs two views, the same images augmented another way.
    second_fraction : Tensor, shape (), or None
        Where images are mixed, how much of each of ``second`` belongs to ``labels``; the rest
        belongs to ``other``, as in the first view.
    """

    images: Tensor
    labels: Tensor
    other: Tensor | None = None
    fraction: Tensor | None = None
    second: Tensor | None = None
    second_fraction: Tensor | None = None


METHODS: Registry[Method] = Registry(
    "method", given=["backbone", "head", "loss", "counts"], package="protail.methods"
)
Kind = TypeVar("Kind", bound="Callable[..., Method]")


def register_method(
    name: str,
    *,
    views: int = 1,
    heads: Sequence[str] = (),
    losses: Sequence[str] = (),
    mixes: bool | str | None = None,
    pretrained: bool | str = False,
    plain_loss: bool = False,
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
        Whether it goes on from a backbone and a head that have been trained before, or starts from
        scratch and learns from them: they are then put into ``teacher.backbone`` and
        ``teacher.head``.
    plain_loss : bool, default=False
        Whether it takes the cross-entropy without options and no other loss, because it has a loss
        of its own.

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
    mixes = views == 1 if mixes is None else mixes
    OneOf((1, 2)).check("views", views)
    OneOf((True, False, "always")).check("mixes", mixes)
    OneOf((True, False, "teacher")).check("pretrained", pretrained)
    return METHODS.register(
        name,
        views=views,
        heads=tuple(heads),
        losses=tuple(losses),
        mixes=mixes,
        pretrained=pretrained,
        plain_loss=plain_loss,
    )


@register_method("standard")
class Method(nn.Module):
    """Compute the loss of a step, and what belongs around it.

    A subclass overrides the hooks it needs: ``forward``, ``after_step``, ``on_epoch``,
    ``on_features``. The first two are pure tensor code that a CUDA graph can hold: what changes
    lives in buffers and changes in place. The others run on the host before an epoch. ``features``
    and ``logits`` are no hooks: everything is evaluated by backbone and head alone. What is not to
    be trained has ``requires_grad`` off.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    head : nn.Module
        Features to logits.
    loss : nn.Module
        Logits and labels to a number.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class, for methods that go by them.

    Attributes
    ----------
    wants_features : bool
        Whether ``on_features`` is to be called before every epoch, which costs a pass over the
        training images.
    largest_batch : int or None
        How many images a step can take, where there is a limit.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.methods import ImageBatch, Method
    >>> method = Method(nn.Flatten(), nn.Linear(12, 3), nn.CrossEntropyLoss(), [4, 2, 1])
    >>> batch = ImageBatch(torch.zeros(2, 3, 2, 2), torch.tensor([0, 2]))
    >>> method(batch).shape, method.logits(batch.images).shape
    (torch.Size([]), torch.Size([2, 3]))
    """

    wants_features = False
    largest_batch: int | None = None

    def __init__(
        self, backbone: nn.Module, head: nn.Module, loss: nn.Module, counts: Counts
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.loss = loss

    def forward(self, batch: ImageBatch) -> Tensor:
        """Give the loss of a batch.

        Parameters
        ----------
        batch : ImageBatch
            What the step gets.

        Returns
        -------
        Tensor, shape ()
            The loss; of mixed images, of both classes in their fractions.
        """
        return self.loss_of(self.logits(batch.images), batch)

    def loss_of(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """Give the loss of logits of a batch.

        Parameters
        ----------
        logits : Tensor, shape (batch, n_classes)
            Of its images.
        batch : ImageBatch
            Knows their classes.

        Returns
        -------
        Tensor, shape ()
            The loss; of mixed images, of both classes in their fractions.
        """
        loss: Tensor = self.loss(logits, batch.labels)
        if batch.other is None or batch.fraction is None:
            return loss
        other: Tensor = self.loss(logits, batch.other)
        return batch.fraction * loss + (1 - batch.fraction) * other

    def logits(self, images: Tensor) -> Tensor:
        """Give the logits that predictions are made from.

        Parameters
        ----------
        images : Tensor
            Ready for the backbone.

        Returns
        -------
        Tensor, shape (batch, n_classes)
            In float32 at least, whatever the backbone computed in.
        """
        logits: Tensor = self.head(self.features(images))
        return in_full(logits)

    def features(self, images: Tensor) -> Tensor:
        """Give the feature vectors of images.

        Parameters
        ----------
        images : Tensor
            Ready for the backbone.

        Returns
        -------
        Tensor, shape (batch, n_features)
            What the head takes.
        """
        features: Tensor = self.backbone(images)
        return features

    def after_step(self) -> None:
        """Change parameters or buffers in place after the optimiser's step."""

    def on_epoch(self, epoch: int) -> None:
        """Change buffers in place before an epoch, counted from 0; by default those of the loss."""
        begin_epoch(self.loss, epoch)

    def on_features(self, features: Tensor, labels: Tensor) -> None:
        """Change buffers in place by what the backbone makes of the training images.

        Parameters
        ----------
        features : Tensor, shape (n_images, n_features)
            Of every training image as it is, under the backbone as it is, in eval mode.
        labels : Tensor of int, shape (n_images,)
            Class codes.
        """


def make_method(
    name: str, backbone: nn.Module, head: nn.Module, loss: nn.Module, counts: Counts, **options: Any
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
    method = METHODS.taking(name, options)(backbone, head, loss, counts, **options)
    for part, place in (("features", "backbone"), ("logits", "head")):
        if getattr(type(method), part) is not getattr(Method, part):
            raise ValueError(
                f"method {name!r} has {part} of its own, and is evaluated by its backbone and head "
                f"alone; expected those of Method. Put what it does into a {place}, or into "
                "forward where it concerns training only."
            )
    return method


def method_names() -> list[str]:
    """List the methods that `make_method` knows.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.methods import method_names
    >>> {"standard", "paco", "ride"} <= set(method_names())
    True
    """
    return METHODS.names()
