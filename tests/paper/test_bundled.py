"""What the bundled features come to, beside the results of the images they were computed from."""

import numpy as np
import pytest
import torch

from protail.data import make_sampler
from protail.data.images import load_dataset
from protail.models.backbones import bundled_weights, make_backbone
from protail.recipes import load_recipe
from protail.training.batches import CLEAN_BATCH, make_loader
from protail.training.features import FrozenFeatures, collect, inferring, weights_hash
from protail_paper.bundled import BUNDLED_TABLES, bundled_experiment, evaluate_bundled
from protail_paper.results import GROUPS, VIEWS, Results
from reference.documents import ROOT
from reference.real_data import real_cifar

RESULTS = ROOT / "results" / "cells"
ROWS = {
    row.classifier or "softmax": bundled_experiment(table, row)
    for table in BUNDLED_TABLES
    for row in table.rows
}


@pytest.fixture(scope="module")
def bundle():
    return load_dataset("cifar100-lt-features")


@pytest.fixture(scope="module")
def evaluated(bundle):
    return evaluate_bundled(bundle)


@pytest.fixture(scope="module")
def results():
    if not RESULTS.is_dir():
        pytest.skip("needs the committed results (results/cells), which come with a clone only")
    return Results(RESULTS)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", sorted(set(ROWS) - {"softmax"}))
def test_rows_agree_with_the_results_they_came_from(name, view, evaluated, results):
    experiment = ROWS[name]
    ours, theirs = evaluated[experiment.key][view], results.get(experiment)
    points = {group: 100 * (getattr(ours, group) - theirs.score(group, view)) for group in GROUPS}
    assert abs(points["all"]) <= 0.3
    assert max(map(abs, points.values())) <= 0.6


@pytest.mark.parametrize("view", VIEWS)
def test_a_refitted_softmax_is_near_the_one_that_was_not_kept(view, evaluated, results):
    experiment = ROWS["softmax"]
    ours, theirs = evaluated[experiment.key][view], results.get(experiment)
    assert abs(100 * (ours.all - theirs.score("all", view))) <= 1.0
    assert ours.few < 0.05 > theirs.score("few", view)


def test_every_row_of_the_three_tables_is_there(evaluated):
    assert set(evaluated) == {experiment.key for experiment in ROWS.values()}
    assert len(evaluated) == 13


def test_the_weights_are_those_the_results_stand_on(results):
    ours = weights_hash(make_backbone("resnet32", weights=bundled_weights()))
    for experiment in ROWS.values():
        assert ours.startswith(results.get(experiment).record["backbone"])


@pytest.fixture(scope="module")
def frozen():
    backbone = make_backbone("resnet32", weights=bundled_weights())
    images = real_cifar("cifar100-lt")
    return FrozenFeatures(backbone, images, torch.device("cpu")), images


def assert_same_but_for_rounding(stored, computed, bundle):
    # Half a step of 255 in every channel, and what bfloat16 loses, which differs from chip to chip.
    spread = bundle.stream.rows.max(0) - bundle.stream.rows.min(0)
    assert np.abs(stored - computed.numpy()).max(0).max() < 0.1 * spread.max()
    assert np.abs(stored - computed.numpy()).mean() < 0.003 * spread.mean()


def test_the_weights_make_these_features_of_these_images(frozen, bundle):
    features, images = frozen
    some = np.arange(64)
    for part, precision in (("train", "bfloat16"), ("test", "float32")):
        computed = features.of(getattr(images, part).subset(some), precision)
        assert_same_but_for_rounding(getattr(bundle, part).rows[some], computed, bundle)
    flipped = features.of(images.test.subset(some), "float32", flipped=True)
    assert_same_but_for_rounding(bundle.flipped[some], flipped, bundle)


def test_the_stream_is_augmented_as_stage_2_does_it(frozen, bundle):
    features, images = frozen
    settings = load_recipe("pc").classifier
    options = settings.sampler_options
    sampler = make_sampler(settings.sampler, images.train.labels, seed=0, **options)
    loader = make_loader(images.train, settings.augment, seed=0, device=features.device)
    batch = loader(next(iter(loader.batches(sampler, CLEAN_BATCH, 0)))).images[:128]
    with inferring(features.backbone):
        computed = collect(features.backbone, [batch], settings.precision)
    assert_same_but_for_rounding(bundle.stream.rows[:128], computed, bundle)
