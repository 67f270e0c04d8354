"""Heads that learn together, from the same features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protail.losses.reweighted import begin_epoch


class FeatureBatch(NamedTuple):
    """What a step of stage 2 gets.

    Attributes
    ----------
    features : Tensor, shape (batch, n_features)
        What the frozen backbone made of the images.
    labels : Tensor of int, shape (batch,)
        Class codes.
    """

    features: Tensor
    labels: Tensor


class HeadGroup(nn.Module):
    """Heads that learn from the same features, each with its own loss.

    Their losses are added up: no parameter is shared, so each gets the gradient it would get
    alone, even where the loss of another is no number any more.

    Parameters
    ----------
    heads, losses : mapping of str to nn.Module
        By name.

    Attributes
    ----------
    had_numbers : Tensor of bool, shape (n_heads,)
        Whether every loss of a head has been a number.
    """

    had_numbers: Tensor

    def __init__(self, heads: Mapping[str, nn.Module], losses: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads.values())
        self.losses = nn.ModuleList(losses.values())
        device = next((each.device for each in self.parameters()), None)
        had_numbers = torch.ones(len(heads), dtype=torch.bool, device=device)
        self.register_buffer("had_numbers", had_numbers)

    def forward(self, batch: FeatureBatch) -> Tensor:
        """Give the sum of the losses of a batch."""
        losses = torch.stack(
            [
                loss(head(batch.features), batch.labels)
                for head, loss in zip(self.heads, self.losses, strict=True)
            ]
        )
        self.had_numbers &= losses.detach().isfinite()
        return losses.sum()

    def are_sound(self) -> list[bool]:
        """Say of each head whether its losses and its weights have stayed numbers."""
        weights = [
            all(bool(each.isfinite().all()) for each in head.parameters()) for head in self.heads
        ]
        return [
            losses and numbers
            for losses, numbers in zip(self.had_numbers.tolist(), weights, strict=True)
        ]

    def on_epoch(self, epoch: int) -> None:
        """Tell the losses which epoch begins."""
        for loss in self.losses:
            begin_epoch(loss, epoch)
