"""Tables of other methods, each entry a recipe of its own on some images: 3, 4 and 9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protail.bench.rows import (
    AS_ON_WD,
    AS_PC,
    AUGMENT_OF_PROTOTYPES,
    PUBLISHED_DECAY,
    TWO_SETS,
)
from protail.bench.wanted import CIFAR10, CIFAR100, SEEDS, Cell, Draw

_CIFAR100 = {ratio: replace(CIFAR100, imbalance=float(ratio)) for ratio in ("100", "50", "10")}


@dataclass(frozen=True)
class Entry:
    """One number of a table, over seeds.

    Attributes
    ----------
    row, column : str
        Where it stands.
    recipe : str
        What is run.
    draw : Draw
        On which images.
    paper : str or None
        The row of the paper's table; its column is the same as ours.
    overrides : mapping of str to object
        What is set otherwise than in the recipe.
    variant : str
        What to call that beside the recipe's name.
    """

    row: str
    column: str
    recipe: str
    draw: Draw
    paper: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    def cell(self, seed: int) -> Cell:
        """Make the cell of a seed."""
        return Cell(self.recipe, self.draw, seed, self.overrides)


@dataclass(frozen=True)
class Comparison:
    """A table whose entries stand on different representations.

    Attributes
    ----------
    name : str
        What users write.
    title : str
        One line on what it shows.
    paper : int
        The number of the paper's table that it stands beside.
    entries : tuple of Entry
        Row by row, the most wanted column first.
    seeds : tuple of int
        One cell each for every entry.
    backbones : mapping of str to tuple of str
        By what the reader sees, the backbones of recipes.
    """

    name: str
    title: str
    paper: int
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...] = SEEDS
    backbones: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "ResNet-34": ("resnet34-cifar",),
            "ResNet-32": ("resnet32", *(f"resnet32-{n}-experts" for n in (2, 3, 4))),
        }
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """From left to right."""
        return tuple(dict.fromkeys(entry.column for entry in self.entries))

    def cells(self, backbone: str) -> list[Cell]:
        """List the cells on a backbone: seed by seed, and column by column."""
        return [
            cell
            for seed in self.seeds
            for column in self.columns
            for entry in self.entries
            if entry.column == column
            and (cell := entry.cell(seed)).recipe.phases["representation"].backbone
            in self.backbones[backbone]
        ]


_OWN = (
    # row, recipe, row of the paper
    ("CE", "ce-resnet32", "CE"),
    ("Focal", "focal", "Focal Loss"),
    ("Class-balanced", "class-balanced", None),
    ("LDAM", "ldam", "LDAM Loss"),
    ("LDAM-DRW", "ldam-drw", None),
    ("cRT", "crt", "cRT"),
    ("LWS", "lws", None),
    ("LogitAdjust (balanced softmax)", "logit-adjusted", "LogitAdjust"),
    ("LogitAdjust, post hoc", "logit-adjusted-post-hoc", None),
    ("DisAlign", "disalign", None),
    ("mixup", "mixup", None),
    ("CutMix", "cutmix", None),
    ("DRO-LT", "dro-lt", "DRO-LT"),
    ("PaCo", "paco", "PaCO"),
    ("PaCo, PC", "paco-pc", None),
    ("RIDE", "ride", "RIDE"),
    ("RIDE, routed", "ride-routed", None),
    ("RIDE, PC", "ride-pc", None),
)
_ON_WD = (
    ("CE, ResNet-34", "ce", None),
    ("WD", "wd", "WD"),
    ("WD, post-hoc LogitAdjust", "wd/logit-adjusted-post-hoc", None),
    ("WD, cRT", "wd/crt", None),
    ("WD, LWS", "wd/lws", None),
    ("WD, L2-norm", "l2-norm", None),
    ("WD, tau-norm", "tau-norm", None),
    ("WD, DisAlign", "wd/disalign", None),
    ("WD, LOS", "los", None),
    ("WD + WD + Max", "wd-max", "WD + WD + Max"),
    ("NCM", "ncm-augmented", "NCM"),
    ("PC + LA", "pc-la", None),
    ("PC", "pc-cdt-la", "PC (Ours)"),
)
_AS_PUBLISHED = ("as published", PUBLISHED_DECAY)
# Beyond the paper: the strongest prototypes, and their rival on the same network.
_STRONG = (
    ("Mixture distillation", "mixture-distillation"),
    (
        "Mixture distillation, post-hoc LogitAdjust",
        "mixture-distillation/logit-adjusted-post-hoc",
    ),
    ("Mixture distillation, PC (pc-strong)", "pc-strong"),
)
# What prototypes learn from is augmented more strongly: which part of their lead is due to that?
# And what methods give with settings that others have for them.
_VARIANTS: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    *(
        (row, recipe, AS_PC, {"classifier.augment": AUGMENT_OF_PROTOTYPES})
        for row, recipe in (
            ("WD, cRT", "wd/crt"),
            ("WD, LWS", "wd/lws"),
            ("WD, DisAlign", "wd/disalign"),
            ("WD, LOS", "los"),
            ("WD + WD + Max", "wd-max"),
        )
    ),
    ("Class-balanced", "class-balanced", "beta 0.9999", {"representation.beta": 0.9999}),
    ("WD + WD + Max", "wd-max", *_AS_PUBLISHED),
    ("PaCo, PC", "paco-pc", "as on WD", AS_ON_WD),
    ("RIDE, PC", "ride-pc", "as on WD", AS_ON_WD),
)
# The published code draws the images of stage 2 anew: is that why the paper's numbers differ?
_ON_TWO_SETS = (
    ("WD", "wd", "WD"),
    ("WD, cRT", "wd/crt", None),
    ("WD + WD + Max", "wd-max", "WD + WD + Max"),
    ("NCM", "ncm-augmented", "NCM"),
    ("PC", "pc-cdt-la", "PC (Ours)"),
)
# Methods of the paper on CIFAR-10-LT; it calls LDAM what is LDAM-DRW.
_OWN_ON_CIFAR10 = {
    "ce-resnet32": "CE",
    "ldam": None,
    "ldam-drw": "LDAM",
    "crt": "cRT",
    "dro-lt": "DRO-LT",
}
# What tau-norm and wd-max hold was chosen on CIFAR-100-LT, where what is published is far behind.
CHOSEN_ON_CIFAR10 = "chosen on CIFAR-10-LT"
_VARIANTS_ON_CIFAR10: tuple[tuple[str, str, str | None, str, Mapping[str, Any]], ...] = (
    ("WD, tau-norm", "tau-norm", None, CHOSEN_ON_CIFAR10, {"classifier.tau": 3.0}),
    (
        "WD + WD + Max",
        "wd-max",
        "WD + WD + Max",
        CHOSEN_ON_CIFAR10,
        {**PUBLISHED_DECAY, "classifier.epochs": 6},
    ),
    ("WD + WD + Max", "wd-max", "WD + WD + Max", *_AS_PUBLISHED),
)
# The paper does not say which network its rows CE and DRO-LT stand on.
_RESNET34 = {f"{phase}.backbone": "resnet34-cifar" for phase in ("pretraining", "representation")}
_REPRESENTATIONS: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    # row, recipe, row of the paper, what is set otherwise
    ("CE", "ce-resnet32", "CE", {}),
    ("CE, ResNet-34", "ce", "CE", {}),
    ("DRO-LT", "dro-lt", "DRO-LT", {}),
    ("DRO-LT, ResNet-34", "dro-lt", "DRO-LT", _RESNET34),
    ("WD", "wd", "WD", {}),
)
_CLASSIFIERS = (
    ("CE", None),
    ("cRT", "crt"),
    ("WD + MaxNorm", "wd-max"),
    ("PC (Ours)", "pc-cdt-la"),
)
# The settings of wd-max were chosen on WD; and not every backbone has seen images as PC has them.
OTHER_SETTINGS = ": Max as published, PC on crop and flip"
_OTHER_CLASSIFIERS = (
    ("WD + MaxNorm", "wd-max", *_AS_PUBLISHED),
    ("PC (Ours)", "pc-cdt-la", "crop and flip", {"classifier.augment": ["crop", "flip"]}),
)


def _table_4() -> Iterable[Entry]:
    for row, recipe, paper in (*_OWN, *_ON_WD):
        for column, draw in _CIFAR100.items():
            yield Entry(row, column, recipe, draw, paper)
    for row, recipe in _STRONG:
        yield Entry(row, "100", recipe, _CIFAR100["100"])
    for row, recipe, variant, overrides in _VARIANTS:
        name, draw = f"{row}, {variant}", _CIFAR100["100"]
        yield Entry(name, "100", recipe, draw, overrides=overrides, variant=variant)
    for row, recipe, paper in _ON_TWO_SETS:
        for column in ("100", "50"):
            draw = replace(_CIFAR100[column], selection="author")
            yield Entry(f"{row}, {TWO_SETS}", column, recipe, draw, paper)


def _table_3() -> Iterable[Entry]:
    draw = _CIFAR100["100"]
    for column, classifier in _CLASSIFIERS:
        for row, first, paper, changes in _REPRESENTATIONS:
            # DRO-LT has no softmax of its own but that of its balanced last stage.
            softmax = "dro-lt/softmax" if first == "dro-lt" else first
            recipe = softmax if classifier is None else f"{first}/{classifier}"
            yield Entry(row, column, recipe, draw, paper, changes)
    for column, classifier, variant, overrides in _OTHER_CLASSIFIERS:
        for row, first, _, changes in _REPRESENTATIONS:
            recipe, name = f"{first}/{classifier}", f"{row}{OTHER_SETTINGS}"
            both = {**changes, **overrides}
            yield Entry(name, column, recipe, draw, overrides=both, variant=variant)


def _table_9() -> Iterable[Entry]:
    column, draw = "all", CIFAR10
    for row, recipe, _ in _OWN:
        if recipe in _OWN_ON_CIFAR10:
            yield Entry(row, column, recipe, draw, _OWN_ON_CIFAR10[recipe])
    yield Entry("DRO-LT, ResNet-34", column, "dro-lt", draw, "DRO-LT", _RESNET34)
    for row, recipe, paper in _ON_WD:
        if recipe != "ce":
            yield Entry(row, column, recipe, draw, paper)
    for row, recipe, paper, variant, overrides in _VARIANTS_ON_CIFAR10:
        yield Entry(f"{row}, {variant}", column, recipe, draw, paper, overrides, variant)


COMPARISONS = {
    table.name: table
    for table in (
        Comparison(
            "table3",
            "Representations (rows) under classifiers (columns)",
            3,
            tuple(_table_3()),
        ),
        Comparison(
            "table4",
            "Other methods, by imbalance",
            4,
            tuple(_table_4()),
        ),
        Comparison(
            "table9",
            "Other methods on CIFAR-10-LT",
            9,
            tuple(_table_9()),
        ),
    )
}
