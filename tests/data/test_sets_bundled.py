"""The features that come with the package."""

import hashlib

import numpy as np
import pytest

from protail.backbones import bundled_weights
from protail.data import make_sampler
from protail.data.sets import DataSetError, load_dataset, long_tailed_counts
from protail.data.sets.bundled import BUNDLED_FEATURES, bundled_features
from protail.recipes import load_recipe


@pytest.fixture(scope="module")
def bundle():
    return load_dataset(BUNDLED_FEATURES)


def test_they_are_those_of_cifar_100_lt(bundle):
    assert (bundle.name, bundle.n_features, len(bundle.classes)) == (BUNDLED_FEATURES, 64, 100)
    assert bundle.train.profile.counts.tolist() == long_tailed_counts(500, 100, 100).tolist()
    assert bundle.test.profile.counts.tolist() == [100] * 100
    assert bundle.mirrored.shape == bundle.test.rows.shape
    assert (bundle.classes[0], bundle.classes[99]) == ("apple", "worm")


def test_the_stream_is_the_one_epoch_that_stage_2_sees(bundle):
    settings = load_recipe("pc").classifier
    sampler = make_sampler(
        settings.sampler, bundle.train.labels, seed=0, **settings.sampler_options
    )
    drawn = bundle.train.labels[sampler.epoch_indices(0)]
    np.testing.assert_array_equal(bundle.stream.labels, drawn)


def test_it_says_where_it_comes_from(bundle):
    weights = hashlib.sha256(bundled_weights().read_bytes()).hexdigest()
    assert bundle.description["weights"] == weights
    assert bundle.description["images"]["name"] == "cifar100-lt"
    assert (bundle.description["recipe"], bundle.description["seed"]) == ("wd-resnet32/pc", 0)


def test_it_is_small_enough_to_come_with_every_install():
    assert bundled_features().stat().st_size < 8_000_000


def test_it_is_nowhere_else():
    with pytest.raises(DataSetError, match=r"comes with the package.*--data-root"):
        load_dataset(BUNDLED_FEATURES, root="elsewhere")
