"""How many images of each class, and which: exact counts, the legacy shuffle, nested subsets."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.data.images import long_tailed_counts, long_tailed_index
from protail.profile import ClassProfile
from reference.real_data import real_cifar, shared


@pytest.mark.parametrize(
    ("n_max", "n_classes", "imbalance", "total", "groups"),
    [
        (500, 100, 100, 10_847, [35, 35, 30]),
        (500, 100, 50, 12_608, [41, 41, 18]),
        (500, 100, 10, 19_573, [70, 30, 0]),
        (5000, 10, 100, 12_406, [8, 2, 0]),
        (500, 100, 1, 50_000, [100, 0, 0]),
    ],
)
def test_known_totals_and_groups(n_max, n_classes, imbalance, total, groups):
    profile = ClassProfile(long_tailed_counts(n_max, n_classes, imbalance))
    assert profile.n_samples == total
    assert [len(group) for group in profile.groups().values()] == groups
    assert profile.imbalance == imbalance


def exact_count(n_max, n_classes, imbalance, c):
    """The largest n with n <= n_max * imbalance ** (-c / (n_classes - 1)), by search."""
    m, ratio = n_classes - 1, Fraction(imbalance)
    low, high = 0, n_max
    while low < high:
        middle = (low + high + 1) // 2
        if middle**m * ratio**c <= n_max**m:
            low = middle
        else:
            high = middle - 1
    return low


@settings(max_examples=60)
@given(
    st.integers(1, 2000),
    st.integers(2, 12),
    st.one_of(st.sampled_from([1, 2, 4, 8, 10, 100, 1000]), st.floats(1, 200)),
)
def test_counts_are_exact(n_max, n_classes, imbalance):
    imbalance = min(imbalance, n_max)
    expected = [exact_count(n_max, n_classes, imbalance, c) for c in range(n_classes)]
    assert long_tailed_counts(n_max, n_classes, imbalance).tolist() == expected


def test_floats_that_miss_whole_numbers():
    # 1000 * 1000 ** (-1 / 3) is 100.00000000000001 or 99.99999999999999, as rounding falls.
    assert long_tailed_counts(1000, 4, 1000).tolist() == [1000, 100, 10, 1]
    assert long_tailed_counts(3**10, 11, 3**10).tolist() == [3**k for k in range(10, -1, -1)]


def test_step():
    assert long_tailed_counts(500, 10, 50, "step").tolist() == [500] * 5 + [10] * 5
    assert long_tailed_counts(500, 5, 3, "step").tolist() == [500] * 2 + [166] * 3
    assert long_tailed_counts(7, 1, 2, "step").tolist() == [7]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((500, 100, 0.5), "imbalance=0.5"),
        ((500, 100, 501), "from 1 (balanced) to 500"),
        ((500, 100, float("nan")), "imbalance=nan"),
        ((500, 100, 10, "stairs"), "kind='stairs'"),
        ((0, 100, 1), "n_max=0"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        long_tailed_counts(*arguments)


def labels_like_cifar(n_classes=10, per_class=60, seed=3):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(n_classes), per_class))


def test_shuffled_is_the_legacy_generator_seeded_once():
    labels, counts = labels_like_cifar(), long_tailed_counts(60, 10, 20)
    state = np.random.get_state()
    try:
        np.random.seed(0)
        expected = []
        for c, count in enumerate(counts):
            members = np.where(labels == c)[0]
            np.random.shuffle(members)
            expected += members[:count].tolist()
    finally:
        np.random.set_state(state)
    assert long_tailed_index(labels, counts).tolist() == expected


def test_first_takes_file_order():
    labels = np.array([1, 0, 1, 0, 2, 0])
    assert long_tailed_index(labels, [2, 1, 1], "first", seed=7).tolist() == [1, 3, 0, 4]


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(1, 60), st.floats(1, 60))
def test_subsets_nest_and_keep_their_order(seed, first, second):
    labels = labels_like_cifar()
    low, high = sorted((first, second))
    larger = long_tailed_index(labels, long_tailed_counts(60, 10, low), seed=seed)
    counts = long_tailed_counts(60, 10, high)
    smaller = long_tailed_index(labels, counts, seed=seed)
    assert set(smaller) <= set(larger)
    # Stored class by class, the smaller subset is the beginning of each class.
    again = larger[long_tailed_index(labels[larger], counts, "first")]
    assert again.tolist() == smaller.tolist()


def test_an_image_is_taken_once_and_has_its_label():
    labels, counts = labels_like_cifar(), long_tailed_counts(60, 10, 7)
    index = long_tailed_index(labels, counts, seed=5)
    assert len(set(index)) == len(index)
    assert np.bincount(labels[index]).tolist() == counts.tolist()
    assert (long_tailed_index(labels, counts, seed=6) != index).any()


def test_too_few_images_and_unknown_selection():
    with pytest.raises(ValueError, match="3 images of class 1, which has 2"):
        long_tailed_index([0, 0, 1, 1], [1, 3])
    with pytest.raises(ValueError, match="Did you mean 'shuffled'"):
        long_tailed_index([0, 1], [1, 1], "shufled")


def test_the_real_subset_is_the_published_one():
    draw = real_cifar("cifar100-lt")
    with np.load(shared("data/features/cifar100-lt-100_resnet34.npz")) as known:
        assert (draw.train.origin == known["train_index"]).all()
        assert (draw.train.labels == known["y_train"]).all()


def test_the_real_subsets():
    draws = {ratio: real_cifar("cifar100-lt", ratio) for ratio in (100, 50, 10)}
    assert [len(draws[ratio].train) for ratio in (100, 50, 10)] == [10_847, 12_608, 19_573]
    members = {ratio: set(draw.train.origin.tolist()) for ratio, draw in draws.items()}
    assert members[100] < members[50] < members[10]


def test_the_real_subset_of_ten_classes():
    draw = real_cifar("cifar10-lt")
    assert draw.train.profile.counts.tolist() == long_tailed_counts(5000, 10, 100).tolist()
    assert len(draw.train) == 12_406
    assert draw.test.profile.counts.tolist() == [1000] * 10
