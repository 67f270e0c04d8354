"""Figures from results: what is drawn is what the results say, and what is missing is said."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from protail.data.images import FeatureData, FeatureSet
from protail.models.heads import class_means
from protail_paper.drawing import (
    draw_figures,
    seed_curves,
    seed_norms,
    watch_separation,
)
from protail_paper.results import Results
from protail_paper.tables import QUESTIONS, TABLES, Row

TABLE = TABLES["questions"]
COUNTS = [120, 110, 10, 5]


def keep(results, row, backbone, seed, all_classes=0.5, norms=(7.0,) * 100):
    scores = {"many": 0.7, "medium": 0.5, "few": 0.1, "all": all_classes}
    outcome = {"scores": {"plain": scores, "mirrored": scores}, "norms": list(norms)}
    results.add(TABLE.experiment(row, backbone, seed), outcome)


@pytest.fixture
def results(tmp_path):
    """Results of ResNet-34 that Figures 2 and 4 need, none of ResNet-32."""
    results = Results(tmp_path)
    for seed in range(2):
        for recipe, norms in (
            (None, np.arange(100, 0, -1) + seed),
            ("ncm", np.arange(100) + 1 + seed),
            ("pc-cdt-la", np.full(100, 7.0)),
        ):
            keep(results, Row("", recipe), "ResNet-34", seed, norms=norms.tolist())
    for question in QUESTIONS:
        if question.name in ("rate", "epochs", "tau"):
            for place, row in enumerate(question.rows):
                keep(results, row, "ResNet-34", 1, all_classes=0.5 + place / 100)
    return results


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    labels = np.repeat(range(4), COUNTS)
    rows = rng.normal(size=(len(labels), 6)) + 3 * rng.normal(size=(4, 6))[labels]
    part = FeatureSet(rows, labels)
    return FeatureData("small", tuple("abcd"), part, part)


def test_norms_are_those_of_the_results(results):
    norms = seed_norms(results, "ResNet-34")
    assert set(norms) == {"softmax", "centroids", "prototypes"}
    assert norms["softmax"].shape == (2, 100)
    assert norms["softmax"][:, 0].tolist() == [100, 101]
    assert seed_norms(results, "ResNet-32") == {}


def test_curves_are_those_of_the_questions(results):
    curves = seed_curves(results, "ResNet-34")
    assert list(curves["tau"]) == [0, 0.125, 0.25, 0.5, 0.75, 1, 1.5]
    assert curves["tau"][0.0]["all"] == [0.5]
    assert list(curves["lr"]) == [0.25, 0.5, 1, 2, 4, 8, 16]
    assert list(curves["epochs"]) == [1, 2, 5, 10]
    assert seed_curves(results, "ResNet-32") == {"lr": {}, "epochs": {}, "tau": {}}


def test_every_figure_that_can_be_drawn_is(results, features):
    said = []
    drawn = {one.name: one for one in draw_figures(results, features, said.append)}
    assert list(drawn) == [
        *("figure1", "figure2-resnet34", "figure3-pc", "figure3-pc-la", "figure4-resnet34")
    ]
    assert all(one.picture[1:4] == b"PNG" for one in drawn.values())
    assert [line[:21] for line in said] == [
        *("Figure 2 of ResNet-32", "Figure 4 of ResNet-32", "The figure of costs i")
    ]
    norms = drawn["figure2-resnet34"].numbers
    # Of 1 to 100 and of 2 to 101 by themselves, not of their mean.
    spread = np.std(np.arange(100)) * np.mean([1 / 50.5, 1 / 51.5])
    assert norms["centroids"]["variation"] == pytest.approx(spread, abs=1e-4)
    assert norms["softmax"]["rank_correlation"] == pytest.approx(1, abs=1e-3)
    assert norms["centroids"]["rank_correlation"] == pytest.approx(-1, abs=1e-3)
    assert norms["prototypes"] == {
        **{"seeds": 2, "rank_correlation": None, "variation": 0.0, "head_to_tail": 1.0},
        **{"mean": 7.0, "least": 7.0, "greatest": 7.0},
    }


def test_separation_starts_at_the_class_means_and_grows(features):
    seen = watch_separation(features)
    assert list(seen) == ["pc", "pc-la"]
    for steps, looks in seen.values():
        # An epoch is 4 classes times 120 draws, in batches of 64.
        assert steps == [0, 8]
        assert looks[-1].distance["all-all"] > looks[0].distance["all-all"]
    assert seen["pc"][1][0].distance == seen["pc-la"][1][0].distance
    assert seen["pc"][1][1].distance != seen["pc-la"][1][1].distance


def test_the_start_is_measured_on_the_stream(features):
    import torch

    given = features.train
    means = class_means(torch.from_numpy(given.rows), torch.tensor(given.labels))
    start = watch_separation(features)["pc"][1][0].distance["all-all"]
    # The stream draws rows again and again: near the means of all rows, not on them.
    assert start == pytest.approx(torch.pdist(means).mean().item(), rel=0.1)
