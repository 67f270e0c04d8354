"""The default method: backbone, head and loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from protail.losses.reweighted import begin_epoch


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
    share : Tensor, shape (), or None
        Where images are mixed, how much of each belongs to ``labels``.
    """

    images: Tensor
    labels: Tensor
    other: Tensor | None = None
    share: Tensor | None = None


class Method(nn.Module):
    """Compute the loss of a step, and what belongs around it.

    A subclass overrides the hooks it needs: ``forward``, ``after_step``, ``on_epoch``. The first
    two are pure tensor code that a CUDA graph can hold: what changes lives in buffers and changes
    in place. ``on_epoch`` runs on the host. ``features`` and ``logits`` are no hooks: everything is
    judged by backbone and head alone.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    head : nn.Module
        Features to logits.
    loss : nn.Module
        Logits and labels to a number.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.methods import ImageBatch, Method
    >>> method = Method(nn.Flatten(), nn.Linear(12, 3), nn.CrossEntropyLoss())
    >>> batch = ImageBatch(torch.zeros(2, 3, 2, 2), torch.tensor([0, 2]))
    >>> method(batch).shape, method.logits(batch.images).shape
    (torch.Size([]), torch.Size([2, 3]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, loss: nn.Module) -> None:
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
            The loss; of mixed images, of both classes in their shares.
        """
        logits = self.logits(batch.images)
        loss: Tensor = self.loss(logits, batch.labels)
        if batch.other is None or batch.share is None:
            return loss
        other: Tensor = self.loss(logits, batch.other)
        return batch.share * loss + (1 - batch.share) * other

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
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

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
        """Change buffers in place before an epoch; by default those of the loss.

        Parameters
        ----------
        epoch : int
            Which epoch begins, from 0.
        """
        begin_epoch(self.loss, epoch)
