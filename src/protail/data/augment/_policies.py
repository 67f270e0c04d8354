"""AutoAugment and RandAugment as data: which op, how likely, how strong.

Values are torchvision's: rotation and translation have a random sign, translation is cut to whole
pixels, Solarize inverts from 255 (1 - m / 9) on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Action(NamedTuple):
    """One op with its strength: a signed tangent, pixels, degrees, factor - 1, bits or level."""

    op: str
    strength: float = 0.0


SIGNED = {
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
}

# "op, chance, magnitude of 0 to 9; op, chance, magnitude": one sub-policy a line, drawn equally.
_CIFAR = """
Invert .1 0; Contrast .2 6
Rotate .7 2; TranslateX .3 9
Sharpness .8 1; Sharpness .9 3
ShearY .5 8; TranslateY .7 9
AutoContrast .5 0; Equalize .9 0
ShearY .2 7; Posterize .3 7
Color .4 3; Brightness .6 7
Sharpness .3 9; Brightness .7 9
Equalize .6 0; Equalize .5 0
Contrast .6 7; Sharpness .6 5
Color .7 7; TranslateX .5 8
Equalize .3 0; AutoContrast .4 0
TranslateY .4 3; Sharpness .2 6
Brightness .9 6; Color .2 8
Solarize .5 2; Invert 0 0
Equalize .2 0; AutoContrast .6 0
Equalize .2 0; Equalize .6 0
Color .9 9; Equalize .6 0
AutoContrast .8 0; Solarize .2 8
Brightness .1 3; Color .7 0
Solarize .4 5; AutoContrast .9 0
TranslateY .9 9; TranslateY .7 9
AutoContrast .9 0; Solarize .8 3
Equalize .8 0; Invert .1 0
TranslateY .7 9; AutoContrast .9 0
"""

_IMAGENET = """
Posterize .4 8; Rotate .6 9
Solarize .6 5; AutoContrast .6 0
Equalize .8 0; Equalize .6 0
Posterize .6 7; Posterize .6 6
Equalize .4 0; Solarize .2 4
Equalize .4 0; Rotate .8 8
Solarize .6 3; Equalize .6 0
Posterize .8 5; Equalize 1 0
Rotate .2 3; Solarize .6 8
Equalize .6 0; Posterize .4 6
Rotate .8 8; Color .4 0
Rotate .4 9; Equalize .6 0
Equalize 0 0; Equalize .8 0
Invert .6 0; Equalize 1 0
Color .6 4; Contrast 1 8
Rotate .8 8; Color 1 2
Color .8 8; Solarize .8 7
Sharpness .4 7; Invert .6 0
ShearX .6 5; Equalize 1 0
Color .4 0; Equalize .6 0
Equalize .4 0; Solarize .2 4
Solarize .6 5; AutoContrast .6 0
Invert .6 0; Equalize 1 0
Color .6 4; Contrast 1 8
Equalize .8 0; Equalize .6 0
"""

_POLICIES = {"autoaugment": _CIFAR, "autoaugment-imagenet": _IMAGENET}
# Every chance is a multiple of a tenth: ten equally likely levels, each with either sign.
AUTOAUGMENT_CASES = 20

RANDAUGMENT_OPS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
RANDAUGMENT_LARGEST = 30


def strength(op: str, magnitude: int, largest: int, size: tuple[int, int]) -> float:
    """Turn a magnitude out of 0 to ``largest`` into what the op takes.

    The steps are float32's, as torchvision's are: where a level falls on a whole number, the last
    bit of the factor decides.

    Examples
    --------
    >>> strength("TranslateX", 9, 9, (32, 32)), strength("Posterize", 7, 9, (32, 32))
    (14.0, 5.0)
    """

    def step(first: float, last: float) -> float:
        return float(torch.linspace(first, last, largest + 1)[magnitude])

    if op in ("ShearX", "ShearY"):
        return step(0.0, 0.3)
    if op in ("TranslateX", "TranslateY"):
        return float(int(step(0.0, 150 / 331 * size[op == "TranslateX"])))
    if op == "Rotate":
        return step(0.0, 30.0)
    if op in SIGNED:
        return step(0.0, 0.9)
    if op == "Posterize":
        return float(8 - round(4 * magnitude / largest))
    return 255.0 * step(1.0, 0.0) if op == "Solarize" else 0.0


def sub_policies(name: str) -> list[list[tuple[str, int, int]]]:
    """List the sub-policies of an AutoAugment policy: (op, chance in tenths, magnitude) twice.

    Examples
    --------
    >>> sub_policies("autoaugment")[1]
    [('Rotate', 7, 2), ('TranslateX', 3, 9)]
    """
    policies = []
    for line in _POLICIES[name].strip().splitlines():
        parts = [part.split() for part in line.split(";")]
        policies.append([(op, round(10 * float(p)), int(m)) for op, p, m in parts])
    return policies


def autoaugment_actions(name: str, size: tuple[int, int]) -> list[list[list[Action]]]:
    """List what each slot does in each case of each sub-policy.

    Returns
    -------
    list of list of list of Action
        By slot, sub-policy and case; the `AUTOAUGMENT_CASES` are equally likely.

    Examples
    --------
    >>> cases = autoaugment_actions("autoaugment", (32, 32))[1][1]
    >>> cases[0], cases[1], cases[6].op
    (Action(op='TranslateX', strength=14.0), Action(op='TranslateX', strength=-14.0), 'Identity')
    """
    return [
        [[_case(*policy[slot], case, size) for case in range(AUTOAUGMENT_CASES)] for policy in subs]
        for slot, subs in enumerate([sub_policies(name)] * 2)
    ]


def _case(op: str, tenths: int, magnitude: int, case: int, size: tuple[int, int]) -> Action:
    level, minus = divmod(case, 2)
    if level >= tenths:
        return Action("Identity")
    value = strength(op, magnitude, 9, size)
    return Action(op, -value if minus and op in SIGNED else value)


def randaugment_actions(magnitude: int, size: tuple[int, int]) -> list[Action]:
    """List the equally likely actions of RandAugment: every op with either sign.

    Examples
    --------
    >>> len(randaugment_actions(9, (32, 32)))
    28
    """
    actions = []
    for op in RANDAUGMENT_OPS:
        value = strength(op, magnitude, RANDAUGMENT_LARGEST, size)
        actions += [Action(op, value), Action(op, -value if op in SIGNED else value)]
    return actions
