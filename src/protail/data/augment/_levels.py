"""Ops that give a pixel a new level by a look-up, AutoContrast and Equalize among them.

One flat table holds every answer: 256 levels for each op that looks at the pixel alone, 256 for
each contrast range that a channel can have, and one row of ranks for each step of Equalize. An
image then needs no arithmetic on its pixels but the place where its answers start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from protail.data.augment._policies import Action

N_LEVELS = 256
# Added to every level before it is blended and cut to a whole number: a sum that should come out
# whole does, whatever the rounding of the device. Blends are off by 1e-4 at most.
NUDGE = 2.0**-10

_PLAIN, _AUTOCONTRAST, _EQUALIZE = range(3)


class LevelTable(NamedTuple):
    """Everything that a look-up needs, by action where it says so.

    Attributes
    ----------
    values : Tensor of float32
        New levels, each with `NUDGE` added; the first 256 change nothing.
    starts : Tensor of int64, shape (3, n_spans)
        Where the answers of a channel start, by kind and by highest rank less lowest.
    first_ranks : Tensor of int64, shape (n_actions, 1, 257)
        By action: steps of the rank from one level to the next before pixels are counted.
    settings : Tensor of int64, shape (n_actions, 4)
        By action: kind; 1 where ranks count pixels; -1 where ranks start at the lowest; smallest
        span that is changed at all.
    """

    values: Tensor
    starts: Tensor
    first_ranks: Tensor
    settings: Tensor


def plain_levels(action: Action) -> Tensor:
    """Give the new level of each of the 256 levels, where the pixel alone decides.

    Examples
    --------
    >>> plain_levels(Action("Posterize", 1.0)).unique().tolist()
    [0, 128]
    """
    levels = torch.arange(N_LEVELS, dtype=torch.uint8)
    if action.op == "Invert":
        return levels.bitwise_not()
    if action.op == "Posterize":
        return levels & (0xFF << (8 - int(action.strength)) & 0xFF)
    if action.op == "Solarize":
        return torch.where(levels >= action.strength, levels.bitwise_not(), levels)
    if action.op == "Brightness":
        return levels.mul(1.0 + action.strength).clamp(0, 255).to(torch.uint8)
    return levels


def _stretched_levels() -> Tensor:
    """Give AutoContrast's answers by range and height over the lowest level, flat."""
    height = torch.arange(N_LEVELS, dtype=torch.float32)
    scale = height.clone().mul_(1.0 / 255)[:, None]
    scale[0] = 1.0
    return height.div(scale).clamp_(0, 255).to(torch.uint8).view(-1)


def _equalized_levels(n_pixels: int) -> Tensor:
    """Give Equalize's answers by step (1, 2, ...) and number of darker pixels, flat."""
    darker = torch.arange(n_pixels + 1)
    step = torch.arange(1, n_pixels // 255 + 1)[:, None]
    return (darker + step // 2).div(step, rounding_mode="floor").clamp_(0, 255).view(-1)


def level_table(actions: Sequence[Action], n_pixels: int) -> LevelTable:
    """Build the table for some actions and a size of image.

    Parameters
    ----------
    actions : sequence of Action
        The actions.
    n_pixels : int
        Pixels of an image.

    Returns
    -------
    LevelTable
        On the CPU.

    Examples
    --------
    >>> level_table([Action("Identity"), Action("Equalize")], 1024).settings.tolist()
    [[0, 0, 0, 0], [2, 1, 0, 255]]
    """
    identity = torch.arange(N_LEVELS)
    values = [identity, *(plain_levels(action) for action in actions)]
    stretched = N_LEVELS * len(values)
    equalized = stretched + N_LEVELS * N_LEVELS
    values += [_stretched_levels(), _equalized_levels(n_pixels)]

    span = torch.arange(max(n_pixels, N_LEVELS - 1) + 1)
    starts = torch.zeros(3, span.numel(), dtype=torch.int64)
    starts[_AUTOCONTRAST] = stretched + N_LEVELS * span.clamp(max=N_LEVELS - 1)
    starts[_EQUALIZE] = equalized + (span // 255 - 1).clamp(min=0) * (n_pixels + 1)

    first_ranks = torch.ones(len(actions), 1, N_LEVELS + 1, dtype=torch.int64)
    settings = torch.zeros(len(actions), 4, dtype=torch.int64)
    for number, (op, _) in enumerate(actions):
        first_ranks[number, 0, 0] = 0
        if op == "Equalize":
            first_ranks[number] = 0
            settings[number] = torch.tensor([_EQUALIZE, 1, 0, 255])
        elif op == "AutoContrast":
            settings[number] = torch.tensor([_AUTOCONTRAST, 0, -1, 1])
        else:
            first_ranks[number, 0, 0] = N_LEVELS * (number + 1)
    return LevelTable(torch.cat(values) + NUDGE, starts, first_ranks, settings)


def change_levels(levels: Tensor, table: LevelTable, action: Tensor, settings: Tensor) -> Tensor:
    """Look up the new level of every pixel.

    A pixel's rank is its level, or for Equalize the number of darker pixels in its channel. Both
    come from one running sum over 256 levels that starts with ``table.first_ranks``.

    Parameters
    ----------
    levels : Tensor of int64, shape (b, 3, h * w)
        Levels 0 to 255.
    table : LevelTable
        The answers.
    action : Tensor of int64, shape (b,)
        Action of each image.
    settings : Tensor of int64, shape (b, 4)
        Its row of ``table.settings``.

    Returns
    -------
    Tensor of float32, shape (b, 3, h * w)
        New levels plus `NUDGE`.

    Examples
    --------
    >>> import torch
    >>> table = level_table([Action("Invert"), Action("AutoContrast")], 2)
    >>> levels, action = torch.tensor([[[10, 20]] * 3] * 2), torch.tensor([0, 1])
    >>> change_levels(levels, table, action, table.settings[action])[:, 0].long().tolist()
    [[245, 235], [0, 254]]
    """
    kind, counts, from_lowest, smallest = settings[:, :, None, None].unbind(1)
    steps = table.first_ranks.expand(-1, levels.shape[1], -1).index_select(0, action)
    steps[..., 1:].scatter_add_(2, levels, counts.expand_as(levels))
    rank = steps.cumsum(2).gather(2, levels)
    lowest, highest = rank.aminmax(dim=2, keepdim=True)
    span = highest - lowest
    start = torch.addcmul(table.starts[kind, span], from_lowest, lowest)
    return table.values[torch.where(span < smallest, levels, rank + start)]
