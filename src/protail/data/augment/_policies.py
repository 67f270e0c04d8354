"""AutoAugment and RandAugment: which op, how likely, how strong, and all of them on a batch.

Values are torchvision's: rotation and translation have a random sign, translation is cut to whole
pixels, Solarize inverts from 255 (1 - m / 9) on. An op moves pixels, looks up new levels or blends
an image with another one made from it; for every image all ops but one change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protail.data.augment._steps import (
    GREY_WEIGHTS,
    Matrix,
    Size,
    Step,
    move_pixels,
    pixel_maps,
    rotation,
)


class Action(NamedTuple):
    """One op with its strength: a signed tangent, pixels, degrees, factor - 1, bits or level."""

    op: str
    strength: float = 0.0


# "op, chance, magnitude of 0 to 9; op, chance, magnitude": sub-policies, drawn equally.
_POLICIES = {
    "autoaugment": """
Invert .1 0; Contrast .2 6 | Rotate .7 2; TranslateX .3 9
Sharpness .8 1; Sharpness .9 3 | ShearY .5 8; TranslateY .7 9
AutoContrast .5 0; Equalize .9 0 | ShearY .2 7; Posterize .3 7
Color .4 3; Brightness .6 7 | Sharpness .3 9; Brightness .7 9
Equalize .6 0; Equalize .5 0 | Contrast .6 7; Sharpness .6 5
Color .7 7; TranslateX .5 8 | Equalize .3 0; AutoContrast .4 0
TranslateY .4 3; Sharpness .2 6 | Brightness .9 6; Color .2 8
Solarize .5 2; Invert 0 0 | Equalize .2 0; AutoContrast .6 0
Equalize .2 0; Equalize .6 0 | Color .9 9; Equalize .6 0
AutoContrast .8 0; Solarize .2 8 | Brightness .1 3; Color .7 0
Solarize .4 5; AutoContrast .9 0 | TranslateY .9 9; TranslateY .7 9
AutoContrast .9 0; Solarize .8 3 | Equalize .8 0; Invert .1 0
TranslateY .7 9; AutoContrast .9 0
""",
    "autoaugment-imagenet": """
Posterize .4 8; Rotate .6 9 | Solarize .6 5; AutoContrast .6 0
Equalize .8 0; Equalize .6 0 | Posterize .6 7; Posterize .6 6
Equalize .4 0; Solarize .2 4 | Equalize .4 0; Rotate .8 8
Solarize .6 3; Equalize .6 0 | Posterize .8 5; Equalize 1 0
Rotate .2 3; Solarize .6 8 | Equalize .6 0; Posterize .4 6
Rotate .8 8; Color .4 0 | Rotate .4 9; Equalize .6 0
Equalize 0 0; Equalize .8 0 | Invert .6 0; Equalize 1 0
Color .6 4; Contrast 1 8 | Rotate .8 8; Color 1 2
Color .8 8; Solarize .8 7 | Sharpness .4 7; Invert .6 0
ShearX .6 5; Equalize 1 0 | Color .4 0; Equalize .6 0
Equalize .4 0; Solarize .2 4 | Solarize .6 5; AutoContrast .6 0
Invert .6 0; Equalize 1 0 | Color .6 4; Contrast 1 8
Equalize .8 0; Equalize .6 0
""",
}
# Every chance is a multiple of a tenth: ten equally likely levels, each with either sign.
_N_CASES = 20

SIGNED = {
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
}
RANDAUGMENT_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
RANDAUGMENT_LARGEST = 30

_N_LEVELS = 256
# Added to every level before it is blended and cut to a whole number: a sum that should come out
# whole does, whatever the rounding of the device. Blends are off by 1e-4 at most.
_NUDGE = 2.0**-10
_PLAIN, _AUTOCONTRAST, _EQUALIZE = range(3)
# What these pull an image towards: its mean grey, its grey, its blurred self.
_BLENDS = ("Contrast", "Color", "Sharpness")


class Policy(Step):
    """Do a few ops one after the other, chosen per image.

    ``cases`` are actions by slot, sub-policy and case; sub-policies and cases are equally likely.
    Numbers: a sub-policy, then for each slot one of its cases.

    One flat table, ``values``, holds the new level of every pixel: 256 levels for each op that
    looks at the pixel alone, 256 for each contrast range that a channel can have, and one row of
    ranks for each step of Equalize. ``starts`` says where the answers of a channel start, by kind
    and by highest rank less lowest. ``settings`` has, by action: the kind; 1 where ranks count
    pixels; -1 where ranks start at the lowest; the smallest span that is changed at all.
    ``first_ranks`` are, by action, steps of the rank from one level to the next before pixels are
    counted.
    """

    choices: Tensor
    slots: Tensor
    maps: Tensor
    fill: Tensor
    weights: Tensor
    grey_weights: Tensor
    values: Tensor
    starts: Tensor
    first_ranks: Tensor
    settings: Tensor

    def __init__(
        self, purpose: str, cases: list[list[list[Action]]], size: Size, fill: int
    ) -> None:
        n_slots, n_policies, n_cases = len(cases), len(cases[0]), len(cases[0][0])
        super().__init__((purpose, (float(n_policies), *[float(n_cases)] * n_slots)))
        self.size = size
        flat = [action for slot in cases for policy in slot for action in policy]
        actions = list(dict.fromkeys(flat))
        numbers = torch.tensor([actions.index(action) for action in flat])
        weights = torch.zeros(len(actions), len(_BLENDS))
        for row, (op, value) in zip(weights, actions, strict=True):
            if op in _BLENDS:
                row[_BLENDS.index(op)] = -value
        self.keep(
            choices=numbers.view(n_slots, n_policies, n_cases),
            slots=torch.arange(n_slots),
            maps=pixel_maps([matrix(action, size) for action in actions], size),
            fill=torch.full((1, 1, 1), fill),
            weights=weights,
            grey_weights=torch.tensor(GREY_WEIGHTS).view(3, 1, 1),
        )
        self._keep_levels(actions, size[0] * size[1])

    def _keep_levels(self, actions: Sequence[Action], n_pixels: int) -> None:
        """Build the table of new levels for some actions and a size of image."""
        values = [torch.arange(_N_LEVELS), *(_plain_levels(action) for action in actions)]
        stretched = _N_LEVELS * len(values)
        equalized = stretched + _N_LEVELS * _N_LEVELS
        # AutoContrast's answers, by range and height over the lowest level.
        height = torch.arange(_N_LEVELS, dtype=torch.float32)
        scale = height.clone().mul_(1.0 / 255)[:, None]
        scale[0] = 1.0
        values.append(height.div(scale).clamp_(0, 255).to(torch.uint8).view(-1))
        # Equalize's answers, by step (1, 2, ...) and number of darker pixels.
        step = torch.arange(1, n_pixels // 255 + 1)[:, None]
        darker = torch.arange(n_pixels + 1) + step // 2
        values.append(darker.div(step, rounding_mode="floor").clamp_(0, 255).view(-1))
        span = torch.arange(max(n_pixels, _N_LEVELS - 1) + 1)
        starts = torch.zeros(3, span.numel(), dtype=torch.int64)
        starts[_AUTOCONTRAST] = stretched + _N_LEVELS * span.clamp(max=_N_LEVELS - 1)
        starts[_EQUALIZE] = equalized + (span // 255 - 1).clamp(min=0) * (n_pixels + 1)
        first_ranks = torch.ones(len(actions), 1, _N_LEVELS + 1, dtype=torch.int64)
        settings = torch.zeros(len(actions), 4, dtype=torch.int64)
        for number, (op, _) in enumerate(actions):
            first_ranks[number, 0, 0] = 0
            if op == "Equalize":
                first_ranks[number] = 0
                settings[number] = torch.tensor([_EQUALIZE, 1, 0, 255])
            elif op == "AutoContrast":
                settings[number] = torch.tensor([_AUTOCONTRAST, 0, -1, 1])
            else:
                first_ranks[number, 0, 0] = _N_LEVELS * (number + 1)
        self.keep(
            values=torch.cat(values) + _NUDGE,
            starts=starts,
            first_ranks=first_ranks,
            settings=settings,
        )

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Do the ops of every slot."""
        chosen = self.choices[self.slots, whole[:, :1], whole[:, 1:]]
        settings, weights = self.settings[chosen], self.weights[chosen]
        levels = levels.long()
        for slot, action in enumerate(chosen.unbind(1)):
            # An action is one op: for every image all of these but one change nothing.
            levels = move_pixels(levels, self.maps.index_select(0, action), self.fill)
            changed = self._changed_levels(levels, action, settings[:, slot])
            image = changed.view(*changed.shape[:2], *self.size)
            levels = self._blended(image, weights[:, slot]).flatten(2)
        return levels

    def _changed_levels(self, levels: Tensor, action: Tensor, settings: Tensor) -> Tensor:
        """Look up the new level of every pixel, plus `_NUDGE`, in float32.

        A pixel's rank is its level, or for Equalize the number of darker pixels in its channel.
        Both come from one running sum over 256 levels that starts with ``first_ranks``.
        """
        kind, counts, from_lowest, smallest = settings[:, :, None, None].unbind(1)
        steps = self.first_ranks.expand(-1, levels.shape[1], -1).index_select(0, action)
        steps[..., 1:].scatter_add_(2, levels, counts.expand_as(levels))
        rank = steps.cumsum(2).gather(2, levels)
        lowest, highest = rank.aminmax(dim=2, keepdim=True)
        span = highest - lowest
        start = torch.addcmul(self.starts[kind, span], from_lowest, lowest)
        return self.values[torch.where(span < smallest, levels, rank + start)]

    def _blended(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Blend each image with its mean grey, its grey or its blurred self, by weights (b, 3).

        Overwrites ``levels``; gives whole levels. At most one weight of an image differs from 0;
        a negative one pushes away.
        """
        to_mean, to_grey, to_blur = weights[:, :, None, None, None].unbind(1)
        grey = (levels * self.grey_weights).sum(1, keepdim=True).floor_()
        levels.lerp_(grey.mean((2, 3), keepdim=True), to_mean).lerp_(grey, to_grey)
        if min(levels.shape[2:]) > 2:
            # The border is never blurred. Nine neighbours and four times the middle, over 13.
            inner = levels[:, :, 1:-1, 1:-1]
            blur = F.avg_pool2d(levels, 3, stride=1, divisor_override=13)
            inner.lerp_(blur.add_(inner, alpha=4 / 13).round_(), to_blur)
        return levels.clamp_(0, 255).long()


def matrix(action: Action, size: Size) -> Matrix:
    """Give the matrix of an action; most move no pixel."""
    op, value = action
    matrices: dict[str, Matrix] = {
        # The upper left corner stays.
        "ShearX": (1.0, value, value * size[0] / 2, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, value, 1.0, value * size[1] / 2),
        "TranslateX": (1.0, 0.0, -float(int(value)), 0.0, 1.0, -0.0),
        "TranslateY": (1.0, 0.0, -0.0, 0.0, 1.0, -float(int(value))),
        "Rotate": rotation(value),
    }
    return matrices.get(op, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def _plain_levels(action: Action) -> Tensor:
    """Give the new level of each of the 256 levels, where the pixel alone decides."""
    levels = torch.arange(_N_LEVELS, dtype=torch.uint8)
    if action.op == "Invert":
        return levels.bitwise_not()
    if action.op == "Posterize":
        return levels & (0xFF << (8 - int(action.strength)) & 0xFF)
    if action.op == "Solarize":
        return torch.where(levels >= action.strength, levels.bitwise_not(), levels)
    if action.op == "Brightness":
        return levels.mul(1.0 + action.strength).clamp(0, 255).to(torch.uint8)
    return levels


def strength(op: str, magnitude: int, largest: int, size: Size) -> float:
    """Turn a magnitude out of 0 to ``largest`` into what the op takes.

    The steps are float32's, as torchvision's are: where a level falls on a whole number, the last
    bit of the factor decides.
    """

    def step(first: float, last: float) -> float:
        return float(torch.linspace(first, last, largest + 1)[magnitude])

    if op in ("TranslateX", "TranslateY"):
        return float(int(step(0.0, 150 / 331 * size[op == "TranslateX"])))
    if op in SIGNED:
        return step(0.0, {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}.get(op, 0.9))
    if op == "Posterize":
        return float(8 - round(4 * magnitude / largest))
    return 255.0 * step(1.0, 0.0) if op == "Solarize" else 0.0


def sub_policies(name: str) -> list[list[tuple[str, int, int]]]:
    """List the sub-policies of a policy: (op, chance in tenths, magnitude) twice."""
    policies = []
    for policy in re.split(r"[|\n]", _POLICIES[name].strip()):
        parts = [part.split() for part in policy.split(";")]
        policies.append([(op, round(10 * float(p)), int(m)) for op, p, m in parts])
    return policies


def autoaugment_actions(name: str, size: Size) -> list[list[list[Action]]]:
    """List what is done by slot, sub-policy and case; the `_N_CASES` are equally likely."""
    return [
        [[_case(*policy[slot], case, size) for case in range(_N_CASES)] for policy in subs]
        for slot, subs in enumerate([sub_policies(name)] * 2)
    ]


def _case(op: str, tenths: int, magnitude: int, case: int, size: Size) -> Action:
    """Give what a slot of a sub-policy does in one of its cases."""
    level, minus = divmod(case, 2)
    if level >= tenths:
        return Action("Identity")
    value = strength(op, magnitude, 9, size)
    return Action(op, -value if minus and op in SIGNED else value)


def randaugment_actions(magnitude: int, size: Size) -> list[Action]:
    """List the equally likely actions of RandAugment: every op with either sign."""
    actions = []
    for op in RANDAUGMENT_OPS:
        value = strength(op, magnitude, RANDAUGMENT_LARGEST, size)
        actions += [Action(op, value), Action(op, -value if op in SIGNED else value)]
    return actions
