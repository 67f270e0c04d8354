"""The steps of an augment: each takes whole levels and gives whole levels.

A step says how many random numbers it needs and how large they may get; all steps draw together.
Images travel as whole levels, flat in space, of shape (b, 3, h * w).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from protail.data.augment import _pixels
from protail.data.augment._blends import GREY_WEIGHTS, blend_images, blend_weights
from protail.data.augment._levels import LevelTable, change_levels, level_table
from protail.data.augment._pixels import move_pixels, pixel_maps
from protail.data.augment._policies import Action

Size = tuple[int, int]


class Step(nn.Module, ABC):
    """One step of an augment.

    Attributes
    ----------
    draws : list of (str, tuple of float)
        Purposes, and the upper ends of the random numbers of each.
    """

    draws: list[tuple[str, tuple[float, ...]]]

    def __init__(self, draws: list[tuple[str, tuple[float, ...]]]) -> None:
        super().__init__()
        self.draws = draws

    def constant(self, name: str, value: Tensor) -> None:
        """Keep a tensor that follows the step to its device and is never saved."""
        self.register_buffer(name, value, persistent=False)

    @abstractmethod
    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Change the images by random numbers, given as drawn and cut to whole numbers."""


class CropFlip(Step):
    """Shift the image by up to ``pad`` pixels and mirror it by chance.

    Numbers: rows and columns cut off the image after it was mirrored and padded with black; 1 for
    a mirror image.
    """

    map: Tensor
    black: Tensor

    def __init__(self, size: Size, pad: int, *, crop: bool = True, flip: bool = True) -> None:
        crops = [("crop", (2.0 * pad + 1, 2.0 * pad + 1))] if crop else []
        super().__init__(crops + ([("flip", (2.0,))] if flip else []))
        self.crop, self.flip = crop, flip
        pad = pad if crop else 0
        self.size = size
        n_pixels = size[0] * size[1]
        pixels = torch.arange(n_pixels).view(1, *size)
        both = torch.cat([pixels, pixels.flip(2)])
        outside = (pad, pad, pad, pad)
        self.constant("map", nn.functional.pad(both, outside, value=n_pixels))
        self.constant("black", torch.zeros(1, 1, 1, dtype=torch.uint8))

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Shift and mirror."""
        height, width = self.size
        # All windows of the padded map as a view: only the chosen ones are ever read.
        windows = self.map.unfold(1, height, 1).unfold(2, width, 1)
        top, left = (whole[:, 0], whole[:, 1]) if self.crop else (0, 0)
        mirror = whole[:, -1] if self.flip else 0
        source = windows[mirror, top, left]
        return move_pixels(levels, source.flatten(1), self.black)


class Rotate(Step):
    """Turn the image by an angle out of ``degrees``; what comes from outside is black.

    Number: which angle.
    """

    maps: Tensor
    black: Tensor

    def __init__(self, size: Size, degrees: Sequence[float]) -> None:
        super().__init__([("rotate", (float(len(degrees)),))])
        self.constant("maps", pixel_maps([_pixels.rotate(angle) for angle in degrees], size))
        self.constant("black", torch.zeros(1, 1, 1, dtype=torch.uint8))

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Turn."""
        source = self.maps.index_select(0, whole[:, 0])
        return move_pixels(levels, source, self.black)


class Cutout(Step):
    """Make a square black, clipped at the border; its middle is any pixel.

    Numbers: rows and columns between the middle and the lower right pixel of the image.
    """

    mask: Tensor

    def __init__(self, size: Size, side: int) -> None:
        super().__init__([("cutout", (float(size[0]), float(size[1])))])
        self.size = size
        inside = []
        for length in size:
            away = torch.arange(2 * length - 1) - (length - 1)
            inside.append((away >= -(side // 2)) & (away < side // 2))
        mask = ~(inside[0][:, None] & inside[1][None, :])
        self.constant("mask", mask.to(torch.uint8))

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Cut."""
        height, width = self.size
        kept = self.mask.unfold(0, height, 1).unfold(1, width, 1)[whole[:, 0], whole[:, 1]]
        return levels * kept.flatten(1)[:, None]


class Policy(Step):
    """Do a few ops one after the other, chosen per image.

    Numbers: a sub-policy, then for each slot one of its cases.

    Parameters
    ----------
    purpose : str
        Name of the policy.
    cases : list of list of list of Action
        By slot, sub-policy and case; sub-policies and cases are equally likely.
    size : (int, int)
        Height and width.
    fill : int
        Level of pixels that come from outside.
    """

    choices: Tensor
    slots: Tensor
    maps: Tensor
    fill: Tensor
    weights: Tensor
    grey_weights: Tensor

    def __init__(
        self, purpose: str, cases: list[list[list[Action]]], size: Size, fill: int
    ) -> None:
        n_slots, n_policies, n_cases = len(cases), len(cases[0]), len(cases[0][0])
        super().__init__([(purpose, (float(n_policies), *[float(n_cases)] * n_slots))])
        self.size = size
        flat = [action for slot in cases for policy in slot for action in policy]
        actions = list(dict.fromkeys(flat))
        numbers = torch.tensor([actions.index(action) for action in flat])
        self.constant("choices", numbers.view(n_slots, n_policies, n_cases))
        self.constant("slots", torch.arange(n_slots))
        self.constant("maps", pixel_maps([matrix(action, size) for action in actions], size))
        self.constant("fill", torch.full((1, 1, 1), fill))
        self.constant("weights", blend_weights(actions))
        self.constant("grey_weights", torch.tensor(GREY_WEIGHTS).view(3, 1, 1))
        for name, value in level_table(actions, size[0] * size[1])._asdict().items():
            self.constant(name, value)

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Do the ops of every slot."""
        table = LevelTable(*(self.get_buffer(name) for name in LevelTable._fields))
        chosen = self.choices[self.slots, whole[:, :1], whole[:, 1:]]
        settings, weights = table.settings[chosen], self.weights[chosen]
        levels = levels.long()
        for slot, action in enumerate(chosen.unbind(1)):
            # An action is one op: for every image all of these but one change nothing.
            levels = move_pixels(levels, self.maps.index_select(0, action), self.fill)
            changed = change_levels(levels, table, action, settings[:, slot])
            image = changed.view(*changed.shape[:2], *self.size)
            levels = blend_images(image, weights[:, slot], self.grey_weights).flatten(2)
        return levels


def matrix(action: Action, size: Size) -> _pixels.Matrix:
    """Give the matrix of an action; most move no pixel.

    Examples
    --------
    >>> matrix(Action("TranslateY", 3.0), (32, 32))
    (1.0, 0.0, -0.0, 0.0, 1.0, -3.0)
    """
    op, value = action
    if op == "ShearX":
        return _pixels.shear_x(value, size)
    if op == "ShearY":
        return _pixels.shear_y(value, size)
    if op == "TranslateX":
        return _pixels.translate(int(value), 0)
    if op == "TranslateY":
        return _pixels.translate(0, int(value))
    return _pixels.rotate(value) if op == "Rotate" else _pixels.IDENTITY
