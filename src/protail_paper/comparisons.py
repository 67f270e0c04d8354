"""Tables of other methods, each entry a recipe of its own on some images: 3, 4 and 9."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protail_paper.paper import read_data
from protail_paper.tables import TWO_SETS, VARIANTS, named
from protail_paper.wanted import CIFAR10, CIFAR100, SEEDS, Experiment, Subset

_CIFAR100 = {ratio: replace(CIFAR100, imbalance=float(ratio)) for ratio in ("100", "50", "10")}


@dataclass(frozen=True)
class Entry:
    """One number of a table, over seeds.

    Attributes
    ----------
    row, column : str
        Its place in the table.
    recipe : str
        What is run.
    subset : Subset
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
    subset: Subset
    paper: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    def experiment(self, seed: int) -> Experiment:
        """Make the experiment of a seed."""
        return Experiment(self.recipe, self.subset, seed, self.overrides)


@dataclass(frozen=True)
class Comparison:
    """A table whose entries use different representations.

    Attributes
    ----------
    name : str
        What users write.
    title : str
        One line on what it shows.
    paper : int
        The number of the paper's table that it is compared with.
    entries : tuple of Entry
        Row by row, the most wanted column first.
    seeds : tuple of int
        One experiment each for every entry.
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

    def backbone_of(self, entry: Entry) -> str:
        """Name the backbone of an entry, for the reader."""
        trained = entry.experiment(self.seeds[0]).recipe.phases["representation"].backbone
        return next(name for name, known in self.backbones.items() if trained in known)

    def experiments(self, backbone: str) -> list[Experiment]:
        """List the experiments on a backbone: seed by seed, and column by column."""
        entries = [entry for entry in self.entries if self.backbone_of(entry) == backbone]
        return [
            entry.experiment(seed)
            for seed in self.seeds
            for column in self.columns
            for entry in entries
            if entry.column == column
        ]


CHOSEN_ON_CIFAR10 = "chosen on CIFAR-10-LT"
# The settings of wd-max were chosen on WD; and not every backbone has seen images as PC has them.
OTHER_SETTINGS = ": Max as published, PC on crop and flip"
_RESNET34 = {f"{phase}.backbone": "resnet34-cifar" for phase in ("pretraining", "representation")}
# Columns of Table 3: the classifier on a representation, and a variant of it.
_CLASSIFIERS = {"CE": None, "cRT": "crt", "WD + MaxNorm": "wd-max", "PC (Ours)": "pc-cdt-la"}
_OTHER_CLASSIFIERS = (
    ("WD + MaxNorm", "wd-max", "as published"),
    ("PC (Ours)", "pc-cdt-la", "crop and flip"),
)
_DATA = read_data("tables.toml")


def _listed(*lists: str) -> Iterator[tuple[str, str, str | None]]:
    """Give label, recipe and the paper's row (or a variant) of the methods of some lists."""
    for name in lists:
        for row, recipe, *paper in _DATA["methods"][name]:
            yield row, recipe, paper[0] if paper else None


def _table_4() -> Iterator[Entry]:
    for row, recipe, paper in _listed("own", "on_wd"):
        for column, subset in _CIFAR100.items():
            yield Entry(row, column, recipe, subset, paper)
    for row, recipe, _ in _listed("strong"):
        yield Entry(row, "100", recipe, CIFAR100)
    for row, recipe, variant in _listed("varied"):
        assert variant is not None
        name, changes = f"{row}, {variant}", VARIANTS[variant]
        yield Entry(name, "100", recipe, CIFAR100, overrides=changes, variant=variant)
    for row, recipe, paper in _listed("two_sets"):
        for column in ("100", "50"):
            subset = replace(_CIFAR100[column], selection="author")
            yield Entry(f"{row}, {TWO_SETS}", column, recipe, subset, paper)


def _table_3() -> Iterator[Entry]:
    representations = [
        (row, first, paper, _RESNET34 if row == "DRO-LT, ResNet-34" else {})
        for row, first, paper in _listed("representations")
    ]
    for column, classifier in _CLASSIFIERS.items():
        for row, first, paper, changes in representations:
            # DRO-LT has no softmax of its own but that of its balanced last stage.
            softmax = "dro-lt/softmax" if first == "dro-lt" else first
            recipe = softmax if classifier is None else f"{first}/{classifier}"
            yield Entry(row, column, recipe, CIFAR100, paper, changes)
    for column, classifier, variant in _OTHER_CLASSIFIERS:
        for row, first, _, changes in representations:
            recipe, name = f"{first}/{classifier}", f"{row}{OTHER_SETTINGS}"
            both = {**changes, **VARIANTS[variant]}
            yield Entry(name, column, recipe, CIFAR100, overrides=both, variant=variant)


def _table_9() -> Iterator[Entry]:
    for row, recipe, paper in _listed("own_on_cifar10"):
        yield Entry(row, "all", recipe, CIFAR10, paper)
    yield Entry("DRO-LT, ResNet-34", "all", "dro-lt", CIFAR10, "DRO-LT", _RESNET34)
    for row, recipe, paper in _listed("on_wd"):
        if recipe != "ce":
            yield Entry(row, "all", recipe, CIFAR10, paper)
    for each in _DATA["varied_on_cifar10"]:
        yield Entry(column="all", subset=CIFAR10, **each)


COMPARISONS: dict[str, Comparison] = named(
    (
        Comparison(
            "table3", "Representations (rows) under classifiers (columns)", 3, tuple(_table_3())
        ),
        Comparison("table4", "Other methods, by imbalance", 4, tuple(_table_4())),
        Comparison("table9", "Other methods on CIFAR-10-LT", 9, tuple(_table_9())),
    )
)
