"""Tables 5 and 6: other methods on ImageNet-LT and iNaturalist18, whose images you bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protail.data.images import DataSet
from protail_paper.comparisons import Comparison, Entry
from protail_paper.paper import GROUPS, read_data
from protail_paper.tables import named, settings
from protail_paper.wanted import Experiment, Subset

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class LargeSet:
    """What the training images of a data set are known by.

    Attributes
    ----------
    title : str
        As the paper calls it.
    n_images, n_max, n_classes : int
        Training images of all classes, those of the largest class, and classes.
    """

    title: str
    n_images: int
    n_max: int
    n_classes: int


LARGE_SETS = {
    "imagenet-lt": LargeSet("ImageNet-LT", 115_846, 1280, 1000),
    "inaturalist18": LargeSet("iNaturalist18", 437_513, 1000, 8142),
}


# What each method sets for a data set, by stage.
_STAGES = {
    dataset: {
        method: {
            key: value
            for stage, values in stages.items()
            for key, value in settings(stage, **values).items()
        }
        for method, stages in methods.items()
    }
    for dataset, methods in read_data("large.toml").items()
}


def _rows(
    stages: Mapping[str, Overrides], crt_steps: int, lws_steps: int
) -> Iterator[tuple[str, str, str | None, Overrides]]:
    """Give row, recipe, row of the paper and overrides, as in Table 4: methods, then WD's heads."""
    ce, wd = stages["ce"], stages["wd"]
    heads: tuple[tuple[str, str, str | None, Overrides], ...] = (
        ("cRT", "crt", "cRT", {**stages["balanced"], "classifier.max_steps": crt_steps}),
        ("LWS", "lws", None, {**stages["balanced"], "classifier.max_steps": lws_steps}),
        ("tau-norm", "tau-norm", None, {"classifier.tau": 1.0}),
        ("LogitAdjust, post hoc", "logit-adjusted-post-hoc", None, {}),
        ("DisAlign", "disalign", "DisAlign", stages["disalign"]),
    )
    yield "CE", "ce", "CE", ce
    yield "Focal", "focal", "Focal Loss", stages["focal"]
    for label, head, paper, changes in heads:
        yield label, f"ce/{head}", paper, {**ce, **changes}
    yield "PaCo", "paco", "PaCO", stages["paco"]
    yield "WD", "wd", "WD", wd
    for label, head, _, changes in heads:
        yield f"WD, {label}", f"wd/{head}", None, {**wd, **changes}
    yield "WD + WD + Max", "wd-max", "WD + WD + Max", {**wd, **stages["wd-max"]}
    prototypes = {**wd, **stages["prototypes"]}
    yield "NCM", "ncm-augmented", "NCM", prototypes
    yield "PC + LA", "pc-la", None, prototypes
    yield "PC", "pc-cdt-la", "PC (Ours)", prototypes


def _entries(dataset: str, crt_steps: int, lws_steps: int) -> Iterator[Entry]:
    for row, recipe, paper, overrides in _rows(_STAGES[dataset], crt_steps, lws_steps):
        for group in GROUPS:
            yield Entry(row, group, recipe, Subset(dataset), paper, overrides)


# As many steps as 10 and 5 passes over the images; epochs of the sampler are longer. cRT's 30
# passes over iNaturalist18 would be more than an epoch, and two of them do not fit into a GPU: one.
LARGE: dict[str, Comparison] = named(
    (
        Comparison(
            "table5",
            "Other methods on ImageNet-LT",
            5,
            tuple(_entries("imagenet-lt", 2260, 1130)),
            backbones={"ResNeXt-50": ("resnext50",)},
        ),
        Comparison(
            "table6",
            "Other methods on iNaturalist18",
            6,
            tuple(_entries("inaturalist18", 15_903, 4270)),
            backbones={"ResNet-50": ("resnet50",)},
        ),
    )
)


def mark_miniatures(
    wanted: Iterable[Experiment], load: Callable[[Subset], DataSet], say: Callable[[str], None]
) -> list[Experiment]:
    """Make experiments on other images than the paper's experiments of a miniature, and say so.

    ``load`` gives the images of a subset; it is asked where the data set is a large one.

    Examples
    --------
    >>> import numpy as np
    >>> from protail_paper.large import mark_miniatures
    >>> from protail_paper.wanted import Experiment, Subset
    >>> from protail.data.images import DataSet, ImageSet
    >>> images = ImageSet([0, 1], ("ant", "bee"), np.zeros((2, 3, 8, 8), np.uint8))
    >>> data = DataSet("imagenet-lt", images, images)
    >>> [experiment] = mark_miniatures(
    ...     [Experiment("wd", Subset("imagenet-lt"), 0)], lambda subset: data, print
    ... )
    Not the ImageNet-LT of the paper (2 images instead of 115,846): results are marked 'miniature'.
    >>> experiment.subset.miniature
    2
    """
    marked: dict[Subset, Subset] = {}
    experiments = []
    for experiment in wanted:
        subset = experiment.subset
        if subset not in marked:
            known = LARGE_SETS.get(subset.dataset)
            n = miniature_size(subset, load(subset)) if known else 0
            if known and n:
                say(
                    f"Not the {known.title} of the paper ({n:,} images instead of "
                    f"{known.n_images:,}): results are marked 'miniature'."
                )
            marked[subset] = replace(subset, miniature=n) if known else subset
        experiments.append(replace(experiment, subset=marked[subset]))
    return experiments


def miniature_size(subset: Subset, data: DataSet) -> int:
    """Count the training images where they are not those that the paper has; else give 0."""
    known = LARGE_SETS.get(subset.dataset)
    return 0 if known is None or len(data.train) == known.n_images else len(data.train)
