"""From tables to trainings: the experiments of tables, by the representation they use."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from protail.utils import unknown_name
from protail_paper.comparisons import COMPARISONS, Comparison
from protail_paper.large import LARGE
from protail_paper.tables import BACKBONES, TABLES, Table
from protail_paper.tuning import CHOICES
from protail_paper.wanted import Experiment

# What a reader sees of any table.
BACKBONE_NAMES = (*BACKBONES, *(name for table in LARGE.values() for name in table.backbones))


def bench_table(name: str) -> Table | Comparison:
    """Give a table by its name.

    Examples
    --------
    >>> from protail_paper.groups import bench_table
    >>> bench_table("table8").experiments("ResNet-34")[1].command
    'protail train pc-cdt --dataset cifar100-lt --imbalance 100 --seed 0'
    >>> bench_table("table9").experiments("ResNet-32")[0].command
    'protail train ce-resnet32 --dataset cifar10-lt --imbalance 100 --seed 0'
    """
    tables: dict[str, Table | Comparison] = {**TABLES, **COMPARISONS, **CHOICES, **LARGE}
    if name not in tables:
        raise ValueError(unknown_name("table", name, tables))
    return tables[name]


def wanted_experiments(names: Iterable[str], backbones: Iterable[str]) -> list[Experiment]:
    """List the experiments of tables, each once, the most wanted first.

    One seed of all tables comes before the next; then go backbones and tables, as they are named.

    Examples
    --------
    >>> from protail_paper.groups import wanted_experiments
    >>> (
    ...     len(wanted_experiments(["table1"], ["ResNet-34"])),
    ...     len(wanted_experiments(["table1", "table8"], ["ResNet-34"])),
    ... )
    (21, 27)
    """
    experiments: dict[str, Experiment] = {}
    tables, backbones = [bench_table(name) for name in names], list(backbones)
    for backbone in backbones:
        if backbone not in BACKBONE_NAMES:
            raise ValueError(unknown_name("backbone", backbone, BACKBONE_NAMES))
        for table in tables:
            for experiment in table.experiments(backbone) if backbone in table.backbones else ():
                experiments.setdefault(experiment.key, experiment)
    if not experiments and tables:
        theirs = ", ".join(dict.fromkeys(each for table in tables for each in table.backbones))
        asked = ", ".join(table.name for table in tables)
        raise ValueError(
            f"{asked}: no experiment on {', '.join(backbones)}; expected one of {theirs}."
        )
    return sorted(experiments.values(), key=lambda experiment: experiment.seed)


@dataclass(frozen=True)
class Group:
    """Experiments that share a trained representation.

    Attributes
    ----------
    experiments : tuple of Experiment
        At least one; with the same stage 1, images and seed.
    """

    experiments: tuple[Experiment, ...]

    @property
    def first(self) -> Experiment:
        """Any of them, for what they share."""
        return self.experiments[0]

    @property
    def name(self) -> str:
        """What to call it in a log."""
        # The backbone is named anyway, and once, though every phase has it.
        changes = [
            f"{key.partition('.')[2]}={value}"
            for key, value in self.first.overrides.items()
            if not key.startswith("classifier.") and not key.endswith(".backbone")
        ]
        made_by = ", ".join([self._backbone, *changes])
        first = self.first
        return f"{first.stage_1} ({made_by}) on {first.subset.folder}, seed {first.seed}"

    @property
    def file(self) -> str:
        """What to call a file of its weights."""
        first = self.first
        words = [first.stage_1, self._backbone, first.subset.folder, f"seed{first.seed}"]
        return "-".join([*words, first.representation_key[:10]]) + ".safetensors"

    @property
    def _backbone(self) -> str:
        return self.first.recipe.phases["representation"].backbone


def missing_groups(
    wanted: Iterable[Experiment], results: Container[Experiment], known: Iterable[Experiment] = ()
) -> list[Group]:
    """Sort missing experiments by the representation they need, in the order they are wanted.

    All experiments of one representation are to be comparable: where it has to be trained again,
    those of ``wanted`` and ``known`` that are there already are evaluated on it again.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.results import Results
    >>> from protail_paper.groups import missing_groups, wanted_experiments
    >>> groups = missing_groups(
    ...     wanted_experiments(["table1"], ["ResNet-34"]), Results(tempfile.mkdtemp())
    ... )
    >>> [(group.name, len(group.experiments)) for group in groups[:1]]
    [('wd (resnet34-cifar) on cifar100-lt-100, seed 0', 7)]
    """
    every = list(wanted)
    groups: dict[str, dict[str, Experiment]] = {
        experiment.representation_key: {} for experiment in every if experiment not in results
    }
    for experiment in [*every, *(experiment for experiment in known if experiment in results)]:
        group = groups.get(experiment.representation_key)
        if group is not None:
            group.setdefault(experiment.key, experiment)
    return [Group(tuple(members.values())) for members in groups.values()]


def only_named(wanted: Iterable[Experiment], patterns: Iterable[str]) -> list[Experiment]:
    """Keep the experiments of trainings whose whole name is like a pattern, in the patterns' order.

    ``*`` stands for anything, ``?`` for one letter.

    Examples
    --------
    >>> from protail_paper.groups import only_named, wanted_experiments
    >>> experiments = wanted_experiments(["table1"], ["ResNet-34"])
    >>> len(experiments), len(only_named(experiments, ["wd (*, seed 0"]))
    (21, 7)
    """
    groups = missing_groups(wanted, ())
    chosen: list[Group] = []
    for pattern in patterns if groups else ():
        # Names hold brackets, which are no sets of letters here.
        plain = pattern.replace("[", "[[]")
        alike = [group for group in groups if fnmatchcase(group.name, plain)]
        if not alike:
            raise ValueError(
                f"{pattern!r}: no training is called like that; expected a pattern of a "
                f"whole name, as in {groups[0].name!r} or '*, seed 0'. "
                "protail bench status --json lists those that are missing."
            )
        chosen += [group for group in alike if group not in chosen]
    return [experiment for group in chosen for experiment in group.experiments]
