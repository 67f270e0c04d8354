"""The paper's figures from the cells of the bench, with the numbers they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protail.analysis import (
    Boundaries,
    ClassNorms,
    Separation,
    class_separation,
    learn_boundaries,
    mean_class_norms,
)
from protail.analysis.separation import PAIRS
from protail.bench.cells import GROUPS, Cells, Result
from protail.bench.questions import QUESTIONS
from protail.bench.rows import Row
from protail.bench.scores import class_vectors
from protail.bench.tables import BACKBONES, TABLES
from protail.bench.wanted import CIFAR100
from protail.data.sets import FeatureData, long_tailed_counts
from protail.recipes import load_recipe
from protail.report.bench_cost import method_costs
from protail.report.figures import figure1, figure2, figure3, figure4
from protail.report.figures._curves import Curve
from protail.training.classifier import learn_heads
from protail.training.given import GivenFeatures

# Whose norms Figure 2 shows; the last are where prototypes start, and only measured.
_VECTORS = {
    "softmax": Row("softmax", None),
    "centroids": Row("centroids", "ncm"),
    "prototypes": Row("prototypes", "pc-cdt-la"),
    "augmented centroids": Row("augmented centroids", "ncm-augmented"),
}
_DRAWN = ("softmax", "centroids", "prototypes")
# Panels of Figure 4, each the question of which it is the answer.
_PANELS = {"lr": "rate", "epochs": "epochs", "tau": "tau"}
_WATCHED = ("pc", "pc-la")
_LARGEST_CLASS = 500
_TABLE = TABLES["questions"]


class Drawn(NamedTuple):
    """A picture and what it shows.

    Attributes
    ----------
    name : str
        What its file is called, without an ending.
    picture : bytes
        A PNG file.
    numbers : dict
        What it rests on, ready for JSON; empty where the cells say it.
    """

    name: str
    picture: bytes
    numbers: dict[str, Any]


def draw_figures(
    cells: Cells, features: FeatureData | None, say: Callable[[str], None] = print
) -> Iterator[Drawn]:
    """Draw every figure whose numbers are there.

    Parameters
    ----------
    cells : Cells
        What Figures 2 and 4 and the one of costs are made from.
    features : FeatureData or None
        What the prototypes of Figure 3 learn from; without them it is left out.
    say : callable
        Told what was left out, and why.

    Yields
    ------
    Drawn
        Figure 1; Figures 2 and 4 of each backbone; Figure 3 of PC and of PC + LA; accuracy
        against training cost.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.report.bench_figures import draw_figures
    >>> [drawn.name for drawn in draw_figures(Cells(tempfile.mkdtemp()), None, say=str)]
    ['figure1']
    """
    boundaries = learn_boundaries()
    yield Drawn("figure1", figure1(boundaries), _said_by_boundaries(boundaries))
    for backbone in BACKBONES:
        norms = seed_norms(cells, backbone)
        if set(_DRAWN) <= set(norms):
            yield _draw_norms(backbone, norms)
        else:
            say(f"Figure 2 of {backbone} is left out: cells of wd, ncm or pc-cdt-la are missing.")
    if features is not None:
        for recipe, (steps, looks) in watch_separation(features).items():
            numbers = {"features": features.name, "steps": steps, **_series(looks)}
            yield Drawn(f"figure3-{recipe}", figure3(steps, looks), numbers)
    for backbone in BACKBONES:
        curves = seed_curves(cells, backbone)
        if all(curves.values()):
            yield Drawn(f"figure4-{_file_name(backbone)}", figure4(curves), {})
        else:
            say(f"Figure 4 of {backbone} is left out: cells of rate, epochs or tau are missing.")
    yield from _draw_costs(cells, say)


def _draw_costs(cells: Cells, say: Callable[[str], None]) -> Iterator[Drawn]:
    costs = method_costs(cells)
    if len(costs.points) < 2:
        say(
            "The figure of costs is left out: fewer than two rows of table4 at imbalance 100 have "
            "cells that know their seconds on one kind of GPU. Run them again."
        )
        return
    if costs.left_out:
        rows = ", ".join(costs.left_out)
        say(f"The figure of costs is without {rows}: diverged, or no seconds on {costs.hardware}.")
    yield Drawn("cost", costs.picture(), costs.to_dict())


def seed_norms(cells: Cells, backbone: str) -> dict[str, NDArray[np.float64]]:
    """Give the norms of the class vectors that cells hold.

    Parameters
    ----------
    cells : Cells
        What has been run.
    backbone : str
        On what.

    Returns
    -------
    dict of str to ndarray, shape (n_seeds, n_classes)
        "softmax", "centroids", "prototypes" and "augmented centroids", as far as they are there.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.report.bench_figures import seed_norms
    >>> seed_norms(Cells(tempfile.mkdtemp()), "ResNet-34")
    {}
    """
    found = {}
    for name, row in _VECTORS.items():
        norms = [result.record["norms"] for result in _row_results(cells, row, backbone)]
        if norms:
            found[name] = np.array(norms, dtype=np.float64)
    return found


def seed_curves(cells: Cells, backbone: str) -> dict[str, Curve]:
    """Give accuracies against rate, epochs and tau.

    Parameters
    ----------
    cells : Cells
        What has been run.
    backbone : str
        On what.

    Returns
    -------
    dict of str to mapping
        As `protail.report.figures.figure4` takes them; a setting without cells is empty.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.report.bench_figures import seed_curves
    >>> seed_curves(Cells(tempfile.mkdtemp()), "ResNet-34")
    {'lr': {}, 'epochs': {}, 'tau': {}}
    """
    questions = {question.name: question for question in QUESTIONS}
    curves: dict[str, Curve] = {}
    for setting, name in _PANELS.items():
        question = questions[name]
        assert question.axis is not None
        curve: dict[float, Mapping[str, list[float]]] = {}
        for row in question.rows:
            scores = _row_scores(cells, row, backbone)
            if scores:
                curve[float(row.overrides[question.axis])] = scores
        curves[setting] = curve
    return curves


def _row_results(cells: Cells, row: Row, backbone: str) -> list[Result]:
    wanted = _TABLE.cells(backbone, [row])
    return [result for cell in wanted if (result := cells.get(cell)) is not None]


def _row_scores(cells: Cells, row: Row, backbone: str) -> dict[str, list[float]]:
    found = _row_results(cells, row, backbone)
    scores = {
        group: [share for result in found if (share := result.score(group)) is not None]
        for group in GROUPS
    }
    return {group: shares for group, shares in scores.items() if shares}


def watch_separation(features: FeatureData) -> dict[str, tuple[list[int], list[Separation]]]:
    """Learn prototypes and measure how far apart they are meanwhile.

    Parameters
    ----------
    features : FeatureData
        What they learn from: its stream where it has one.

    Returns
    -------
    dict of str to (list of int, list of Separation)
        Steps taken and what was measured then, by recipe: "pc" and "pc-la".
    """
    given = GivenFeatures(features, torch.device("cpu"))
    settings = {}
    for name in _WATCHED:
        classifier = load_recipe(name).classifier
        assert classifier is not None
        settings[name] = classifier
    seen: dict[str, tuple[list[int], list[Separation]]] = {name: ([], []) for name in _WATCHED}

    def look(step: int, heads: Mapping[str, nn.Module]) -> None:
        for name, head in heads.items():
            steps, looks = seen[name]
            steps.append(step)
            looks.append(class_separation(class_vectors(head), given.counts))

    learn_heads(settings, given, seed=0, watch=look)
    return seen


def _draw_norms(backbone: str, norms: Mapping[str, NDArray[np.float64]]) -> Drawn:
    n_classes = norms["softmax"].shape[1]
    counts = long_tailed_counts(_LARGEST_CLASS, n_classes, CIFAR100.imbalance)
    picture = figure2(counts, *(norms[name] for name in _DRAWN))
    numbers = {
        name: _said_by_norms(mean_class_norms(of_seeds, counts), len(of_seeds))
        for name, of_seeds in norms.items()
    }
    return Drawn(f"figure2-{_file_name(backbone)}", picture, numbers)


def _said_by_norms(measured: ClassNorms, n_seeds: int) -> dict[str, Any]:
    norms = measured.norms
    said = {
        "seeds": n_seeds,
        "rank_correlation": measured.rank_correlation,
        "variation": measured.variation,
        "head_to_tail": measured.head_to_tail,
        "mean": float(norms.mean()),
        "least": float(norms.min()),
        "greatest": float(norms.max()),
    }
    return {key: _rounded(value) for key, value in said.items()}


def _said_by_boundaries(boundaries: Boundaries) -> dict[str, Any]:
    return {
        f"{one.model}, {one.sampling}": {
            "norms": [_rounded(norm) for norm in np.linalg.norm(one.vectors, axis=1)],
            "accuracy": [_rounded(share) for share in one.accuracy],
            "mean accuracy": _rounded(one.accuracy.mean()),
        }
        for one in boundaries.classifiers
    }


def _series(looks: list[Separation]) -> dict[str, Any]:
    measured = [look.to_dict() for look in looks]
    return {
        measure: {pair: [_rounded(look[measure][pair]) for look in measured] for pair in PAIRS}
        for measure in ("distance", "cosine")
    }


def _rounded(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else round(float(value), 4)


def _file_name(backbone: str) -> str:
    return backbone.lower().replace("-", "")
