"""Tables 5 and 6: other methods on ImageNet-LT and iNaturalist18, whose images you bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protail.bench.cells import GROUPS
from protail.bench.comparisons import Comparison, Entry
from protail.bench.rows import PUBLISHED_DECAY
from protail.bench.wanted import Cell, Draw
from protail.data.sets import DataSet

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


def _changed(stage: str, **settings: Any) -> dict[str, Any]:
    return {f"{stage}.{key}": value for key, value in settings.items()}


def _published(backbone: str, weight_decay: float, augment: list[str]) -> dict[str, Overrides]:
    """Say how Decoupling (ICLR 2020) trains, which later methods took for their first stage."""
    plain = {
        "backbone": backbone,
        "epochs": 90,
        "batch_size": 512,
        "lr": 0.2,
        "weight_decay": weight_decay,
        "augment": augment,
    }
    # Where the recipe has steps for CIFAR.
    cosine = {"schedule": "cosine", "drops": [], "warm_up_epochs": 0}
    balanced = {
        "epochs": 1,
        "batch_size": 512,
        "lr": 0.2,
        "weight_decay": weight_decay,
        **cosine,
        "augment": augment,
    }
    return {
        "ce": _changed("representation", **plain),
        "focal": _changed("representation", **plain, **cosine),
        "balanced": _changed("classifier", **balanced),
        # It has settings for ImageNet-LT only.
        "disalign": _changed("classifier", batch_size=256, augment=augment),
    }


def _papers(backbone: str, batch_size: int) -> dict[str, Overrides]:
    """Say how Prototype Classifiers (IJCAI 2023) trains; images in files know no Cutout."""
    augment = ["resized-crop", "flip"]
    return {
        "wd": _changed("representation", backbone=backbone, batch_size=batch_size, augment=augment),
        "wd-max": {**_changed("classifier", augment=augment), **PUBLISHED_DECAY},
        "prototypes": _changed("classifier", augment=[*augment, "autoaugment-imagenet"]),
    }


def _paco(backbone: str, weight_decay: float, temperature: float) -> Overrides:
    """Say how PaCo (ICCV 2021) trains; its first view has grey and blurred images in addition."""
    return _changed(
        "representation",
        backbone=backbone,
        lr=0.02,
        weight_decay=weight_decay,
        schedule="cosine",
        drops=[],
        alpha=0.05,
        temperature=temperature,
        queue=8192,
        projection=128,
        augment=["resized-crop", "flip", "jitter", "randaugment"],
    )


def _rows(
    stages: Mapping[str, Overrides], crt_steps: int, lws_steps: int
) -> Iterator[tuple[str, str, str | None, Overrides]]:
    """Give row, recipe, row of the paper and overrides, as in Table 4: methods, then WD's heads."""
    ce, wd = stages["ce"], stages["wd"]
    heads: dict[str, Overrides] = {
        "crt": {**stages["balanced"], "classifier.max_steps": crt_steps},
        "lws": {**stages["balanced"], "classifier.max_steps": lws_steps},
        "tau-norm": {"classifier.tau": 1.0},
        "logit-adjusted-post-hoc": {},
        "disalign": stages["disalign"],
    }
    names = ("cRT", "LWS", "tau-norm", "LogitAdjust, post hoc", "DisAlign")
    labels = dict(zip(heads, names, strict=True))
    papers = {"crt": "cRT", "disalign": "DisAlign"}
    yield "CE", "ce", "CE", ce
    yield "Focal", "focal", "Focal Loss", stages["focal"]
    for head, changes in heads.items():
        yield labels[head], f"ce/{head}", papers.get(head), {**ce, **changes}
    yield "PaCo", "paco", "PaCO", stages["paco"]
    yield "WD", "wd", "WD", wd
    for head, changes in heads.items():
        yield f"WD, {labels[head]}", f"wd/{head}", None, {**wd, **changes}
    yield "WD + WD + Max", "wd-max", "WD + WD + Max", {**wd, **stages["wd-max"]}
    prototypes = {**wd, **stages["prototypes"]}
    yield "NCM", "ncm-augmented", "NCM", prototypes
    yield "PC + LA", "pc-la", None, prototypes
    yield "PC", "pc-cdt-la", "PC (Ours)", prototypes


def _entries(dataset: str, *settings: Any) -> Iterator[Entry]:
    for row, recipe, paper, overrides in _rows(*settings):
        for group in GROUPS:
            yield Entry(row, group, recipe, Draw(dataset), paper, overrides)


_IMAGENET = {
    **_published("resnext50", 5e-4, ["resized-crop", "flip", "jitter"]),
    **_papers("resnext50", 64),
    "paco": _paco("resnext50", 5e-4, 0.07),
}
_INATURALIST = {
    **_published("resnet50", 1e-4, ["resized-crop", "flip"]),
    **_papers("resnet50", 512),
    "paco": _paco("resnet50", 1e-4, 0.2),
}

# As many steps as 10 and 5 passes over the images; epochs of the sampler are longer. cRT's 30
# passes over iNaturalist18 would be more than an epoch, and two of them do not fit into a GPU: one.
LARGE = {
    table.name: table
    for table in (
        Comparison(
            "table5",
            "Other methods on ImageNet-LT",
            5,
            tuple(_entries("imagenet-lt", _IMAGENET, 2260, 1130)),
            backbones={"ResNeXt-50": ("resnext50",)},
        ),
        Comparison(
            "table6",
            "Other methods on iNaturalist18",
            6,
            tuple(_entries("inaturalist18", _INATURALIST, 15_903, 4270)),
            backbones={"ResNet-50": ("resnet50",)},
        ),
    )
}


def mark_miniatures(
    wanted: Iterable[Cell], load: Callable[[Draw], DataSet], say: Callable[[str], None]
) -> list[Cell]:
    """Make cells on other images than those of the paper cells of a miniature.

    Parameters
    ----------
    wanted : iterable of Cell
        Of any data set.
    load : callable
        Gives the images of a draw; asked where the data set is a large one.
    say : callable
        Told where the images are not the paper's.

    Returns
    -------
    list of Cell
        The same, but that those on other images are not what any table shows.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.bench.large import mark_miniatures
    >>> from protail.bench.wanted import Cell, Draw
    >>> from protail.data.sets import DataSet, ImageSet
    >>> images = ImageSet([0, 1], ("ant", "bee"), np.zeros((2, 3, 8, 8), np.uint8))
    >>> data = DataSet("imagenet-lt", images, images)
    >>> [cell] = mark_miniatures([Cell("wd", Draw("imagenet-lt"), 0)], lambda draw: data, print)
    Not the ImageNet-LT of the paper (2 images instead of 115,846): cells are marked as a miniature.
    >>> cell.draw.miniature
    2
    """
    marked: dict[Draw, Draw] = {}
    cells = []
    for cell in wanted:
        if cell.draw not in marked:
            marked[cell.draw] = _marked(cell.draw, load, say)
        cells.append(replace(cell, draw=marked[cell.draw]))
    return cells


def _marked(draw: Draw, load: Callable[[Draw], DataSet], say: Callable[[str], None]) -> Draw:
    if draw.dataset not in LARGE_SETS:
        return draw
    miniature = miniature_size(draw, load(draw))
    if miniature:
        known = LARGE_SETS[draw.dataset]
        say(
            f"Not the {known.title} of the paper ({miniature:,} images instead of "
            f"{known.n_images:,}): cells are marked as a miniature."
        )
    return replace(draw, miniature=miniature)


def miniature_size(draw: Draw, data: DataSet) -> int:
    """Count the training images where they are not those that the paper has; else give 0."""
    known = LARGE_SETS.get(draw.dataset)
    return 0 if known is None or len(data.train) == known.n_images else len(data.train)
