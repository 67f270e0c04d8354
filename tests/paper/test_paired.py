"""Rows of a table, image by image and seed by seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protail_paper.paired import group_images, paired_difference
from protail_paper.results import Result
from protail_paper.scores import pack_bits
from reference.made_up_results import labels_of_test, outcome_of, right_images

DATA = {"dataset": "cifar100-lt", "imbalance": 100}


def result_of(right, seed=0, data=DATA):
    views = ("plain", "mirrored")
    return Result(
        {
            "seed": seed,
            "data": data,
            "scores": {view: {"all": float(np.mean(right))} for view in views},
            "right": {view: pack_bits(np.asarray(right, dtype=bool)) for view in views},
        }
    )


def row(rights):
    return [result_of(right, seed) for seed, right in enumerate(rights)]


def two_rows(n=203, n_seeds=3):
    """Rows that agree in most images: unpaired, the interval would be several times as wide."""
    rng = np.random.default_rng(5)
    easy = rng.random(n) < 0.5
    return [
        [np.where(rng.random(n) < flips, ~easy, easy) for _ in range(n_seeds)]
        for flips in (0.05, 0.15)
    ]


def interval_by_loop(first, second, images):
    """Two t intervals, number by number."""
    by_seed = []
    for one, two in zip(first, second, strict=True):
        changes = [float(two[i]) - float(one[i]) for i in images]
        by_seed.append(sum(changes) / len(changes))
    by_image = []
    for i in images:
        changes = [float(two[i]) - float(one[i]) for one, two in zip(first, second, strict=True)]
        by_image.append(sum(changes) / len(changes))
    middle, square = sum(by_seed) / len(by_seed), 0.0
    for values in (by_seed, by_image):
        if len(values) > 1:
            square += (stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) ** 2
    return middle, middle - square**0.5, middle + square**0.5


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n_seeds=st.integers(1, 5),
    n=st.integers(2, 40),
    fractions=st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)),
    all_images=st.booleans(),
)
def test_it_is_what_loops_give(seed, n_seeds, n, fractions, all_images):
    rng = np.random.default_rng(seed)
    first, second = ([rng.random(n) < fraction for _ in range(n_seeds)] for fraction in fractions)
    # Without a right image in any result, nothing tells how many of the last byte's there are.
    first[0][0] = second[0][0] = True
    images = np.ones(n, bool) if all_images else rng.random(n) < 0.7
    images[:2] = True
    found = paired_difference(row(first), row(second), images=None if all_images else images)
    middle, low, high = interval_by_loop(first, second, np.flatnonzero(images))
    assert found.difference == pytest.approx(middle, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.first == pytest.approx(np.mean(np.array(first)[:, images]))
    assert found.second == pytest.approx(np.mean(np.array(second)[:, images]))
    assert len(found.by_seed) == n_seeds


@pytest.mark.parametrize(("of_seeds", "of_images"), [(0, 0.4), (0.1, 0.4), (0.2, 0.4), (0.2, 0)])
def test_it_holds_the_true_difference_as_often_as_it_says(of_seeds, of_images):
    """Trainings and images are drawn a thousand times; in the long run the rows are equal."""
    rng = np.random.default_rng(3)
    n_times, n, held, held_by_images = 1000, 300, 0, 0
    for _ in range(n_times):
        # Some images are always those of one row, others of chance, which each training bends.
        always = np.where(rng.random(n) < of_images, rng.choice([1, -1], n), 0)
        bent = 0.5 + rng.uniform(-of_seeds, of_seeds, (3, 1))
        chance = np.where(rng.random((3, n)) < bent, 1, -1) * (rng.random((3, n)) < 0.3)
        changes = np.where(always != 0, always, chance)
        found = paired_difference(row(list(changes < 0)), row(list(changes > 0)))
        held += found.low <= 0 <= found.high
        by_images = 1.96 * changes.mean(axis=0).std(ddof=1) / n**0.5
        held_by_images += abs(found.difference) <= by_images
    assert held > 0.94 * n_times
    if of_seeds > 0.1:
        assert held_by_images < 0.94 * n_times


def test_rows_that_are_equal_differ_by_nothing():
    first, _ = two_rows()
    found = paired_difference(row(first), row(first))
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.verdict == "cannot be told apart"


def test_the_other_way_round():
    rows = [row(rights) for rights in two_rows()]
    found, back = paired_difference(*rows), paired_difference(*reversed(rows))
    assert back.difference == -found.difference
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_verdicts():
    n = 400
    base = np.arange(n) < 200
    better = np.arange(n) < 240
    assert paired_difference([result_of(base)], [result_of(better)]).verdict == "ahead"
    assert paired_difference([result_of(better)], [result_of(base)]).verdict == "behind"
    # Three trainings of which one goes the other way say nothing, however many the images.
    other = [better, better, np.arange(n) < 190]
    assert paired_difference(row([base] * 3), row(other)).verdict == "cannot be told apart"


def test_seeds_are_paired_whatever_their_order():
    first, second = (row(rights) for rights in two_rows())
    assert paired_difference(first, second[::-1]) == paired_difference(first, second)


@pytest.mark.parametrize("n", [2, 8, 13])
def test_rows_of_nothing_right_and_of_everything(n):
    none, every = result_of(np.zeros(n)), result_of(np.ones(n))
    found = paired_difference([none], [every])
    assert (found.first, found.second, found.difference) == (0.0, 1.0, 1.0)
    assert (found.low, found.high) == (1.0, 1.0)
    assert paired_difference([none], [none]).difference == 0.0


def test_the_view_that_is_asked_for():
    one, other = result_of(np.ones(9)), result_of(np.ones(9))
    other.record["right"]["plain"] = pack_bits(np.arange(9) < 3)
    other.record["scores"]["plain"]["all"] = 3 / 9
    assert paired_difference([one], [other]).difference == 0
    assert paired_difference([one], [other], view="plain").difference == pytest.approx(-6 / 9)


def test_older_results_say_less_about_their_images():
    newer = DATA | {"imbalance": 100.0, "selection": "shuffled", "held_out": 0.0}
    assert paired_difference([result_of([1, 0])], [result_of([1, 1], data=newer)]).difference == 0.5


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([], [], r"seeds \[\]"),
        ([(0, DATA)], [(1, DATA)], "expected the same seeds"),
        ([(0, DATA), (0, DATA)], [(0, DATA)], "two results of seed 0"),
        ([(0, DATA)], [(0, DATA | {"imbalance": 50})], "same images"),
    ],
)
def test_results_that_are_no_pairs(first, second, said):
    rows = [[result_of([1, 0], *each) for each in row] for row in (first, second)]
    with pytest.raises(ValueError, match=said):
        paired_difference(*rows)


def test_results_of_other_numbers_of_images():
    with pytest.raises(ValueError, match=r"\[2, 3\] images"):
        paired_difference([result_of([1, 0])], [result_of([1, 0, 1])])


@pytest.mark.parametrize("images", [[True, False, False], [True] * 4, [False] * 3])
def test_images_that_do_not_fit(images):
    with pytest.raises(ValueError, match=r"expected \(3,\).*at least 2"):
        paired_difference([result_of([1, 0, 1])], [result_of([1, 1, 1])], images=np.array(images))


def test_a_result_that_diverged():
    with pytest.raises(ValueError, match="second has diverged with seed 0"):
        paired_difference([result_of([1])], [Result({"seed": 0, "data": DATA, "diverged": True})])


@pytest.mark.parametrize(("imbalance", "n_few"), [(100, 30), (50, 18)])
def test_images_of_few_are_those_of_its_classes(imbalance, n_few):
    outcome = outcome_of(right_images(0.5, 0), imbalance)
    result = Result({"seed": 0, "data": DATA | {"imbalance": imbalance}, **outcome})
    images = group_images([result], "few")
    classes = np.unique(labels_of_test()[images])
    assert classes.tolist() == list(range(100 - n_few, 100))
    assert images.sum() == 100 * n_few


def made_up(data=DATA, **changes):
    outcome = outcome_of(right_images(0.5, 0))
    return Result({"seed": 0, "data": data, **outcome, **changes})


def test_images_of_a_group_that_has_no_classes_or_labels():
    none = made_up(DATA | {"imbalance": 10}, **outcome_of(right_images(0.5, 0), 10))
    assert group_images([none], "few") is None
    assert group_images([none], "medium") is not None
    assert group_images([made_up(DATA | {"dataset": "cifar10-lt"})], "few") is None
    held_out = DATA | {"held_out": 0.2, "held_out_seed": 0}
    assert group_images([made_up(held_out)], "few") is None
    assert group_images([made_up(DATA | {"aside_from": 10})], "few") is None


def test_labels_are_not_taken_where_results_say_otherwise():
    scores = made_up().record["scores"]["mirrored"]
    others = {"mirrored": scores | {"few": scores["few"] + 0.01}}
    assert group_images([made_up(), made_up(scores=others)], "few") is None
    assert group_images([made_up(), made_up()], "few") is not None
    fewer = made_up(**{part: result_of([1, 0]).record[part] for part in ("right", "scores")})
    fewer.record["scores"]["mirrored"]["few"] = 0.5
    assert group_images([fewer], "few") is None


def test_images_of_results_of_several_subsets():
    with pytest.raises(ValueError, match="of 2 subsets"):
        group_images([made_up(), made_up(DATA | {"imbalance": 50})], "few")


def test_names_that_nobody_knows_are_refused():
    with pytest.raises(ValueError, match=r"group='fww' is unknown.*Did you mean 'few'"):
        group_images([], "fww")
    with pytest.raises(ValueError, match=r"view='mirored' is unknown.*Did you mean 'mirrored'"):
        paired_difference([], [], view="mirored")
