"""Rows of a table, image by image."""

import numpy as np
import pytest

from protail.bench.cells import Result
from protail.bench.paired import paired_difference
from protail.bench.scores import pack_bits

DATA = {"dataset": "cifar100-lt", "imbalance": 100}


def cell(right, seed=0, data=DATA):
    views = ("plain", "mirrored")
    return Result(
        {
            "seed": seed,
            "data": data,
            "scores": {view: {"all": float(np.mean(right))} for view in views},
            "right": {view: pack_bits(np.asarray(right, dtype=bool)) for view in views},
        }
    )


def two_rows(n=203, seeds=(0, 1, 2)):
    """Rows that agree in most images: unpaired, the interval would be several times as wide."""
    rng = np.random.default_rng(5)
    easy = rng.random(n) < 0.5
    rows = []
    for flips in (0.05, 0.15):
        rows.append([np.where(rng.random(n) < flips, ~easy, easy) for _ in seeds])
    return rows


def interval_by_loop(first, second, n_resamples, seed=1):
    rng = np.random.default_rng(seed)
    n = len(first[0])
    drawn = []
    for _ in range(n_resamples):
        images = rng.integers(n, size=n)
        each = [
            two[images].mean() - one[images].mean() for one, two in zip(first, second, strict=True)
        ]
        drawn.append(np.mean(each))
    return np.quantile(drawn, [0.025, 0.975])


def test_it_is_what_a_loop_over_drawn_images_gives():
    first, second = two_rows()
    found = paired_difference(
        *([cell(right, seed) for seed, right in enumerate(row)] for row in (first, second))
    )
    assert found.first == pytest.approx(np.mean(first))
    assert found.second == pytest.approx(np.mean(second))
    assert found.difference == pytest.approx(np.mean(second) - np.mean(first))
    low, high = interval_by_loop(first, second, 2000)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.1 * width)
    assert found.high == pytest.approx(high, abs=0.1 * width)


def test_rows_that_are_equal_differ_by_nothing():
    first, _ = two_rows()
    row = [cell(right, seed) for seed, right in enumerate(first)]
    found = paired_difference(row, row)
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.verdict == "no clear difference"


def test_it_is_the_same_each_time_and_the_other_way_round():
    rows = [[cell(right, seed) for seed, right in enumerate(row)] for row in two_rows()]
    found, again = paired_difference(*rows), paired_difference(*rows)
    assert found == again
    assert paired_difference(*rows, random_state=1) != found
    back = paired_difference(*reversed(rows))
    assert back.difference == -found.difference
    assert back.low == pytest.approx(-found.high, abs=0.01)


def test_seeds_are_paired_whatever_their_order():
    first, second = ([cell(r, seed) for seed, r in enumerate(row)] for row in two_rows())
    assert paired_difference(first, second[::-1]) == paired_difference(first, second)


@pytest.mark.parametrize("n", [1, 8, 13])
def test_rows_of_nothing_right_and_of_everything(n):
    none, every = cell(np.zeros(n)), cell(np.ones(n))
    found = paired_difference([none], [every])
    assert (found.first, found.second, found.difference) == (0.0, 1.0, 1.0)
    assert (found.low, found.high) == (1.0, 1.0)
    assert paired_difference([none], [none]).difference == 0.0


def test_the_view_that_is_asked_for():
    one, other = cell(np.ones(9)), cell(np.ones(9))
    other.record["right"]["plain"] = pack_bits(np.arange(9) < 3)
    other.record["scores"]["plain"]["all"] = 3 / 9
    assert paired_difference([one], [other]).difference == 0
    assert paired_difference([one], [other], view="plain").difference == pytest.approx(-6 / 9)


def test_older_cells_say_less_about_their_images():
    newer = DATA | {"imbalance": 100.0, "selection": "shuffled", "held_out": 0.0}
    assert paired_difference([cell([1, 0])], [cell([1, 1], data=newer)]).difference == 0.5


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([], [], r"seeds \[\]"),
        ([(0, DATA)], [(1, DATA)], "expected the same seeds"),
        ([(0, DATA), (0, DATA)], [(0, DATA)], "two cells of seed 0"),
        ([(0, DATA)], [(0, DATA | {"imbalance": 50})], "same images"),
    ],
)
def test_cells_that_are_no_pairs(first, second, said):
    rows = [[cell([1, 0], *each) for each in row] for row in (first, second)]
    with pytest.raises(ValueError, match=said):
        paired_difference(*rows)


def test_cells_of_other_numbers_of_images():
    with pytest.raises(ValueError, match=r"\[2, 3\] images"):
        paired_difference([cell([1, 0])], [cell([1, 0, 1])])


def test_a_cell_that_diverged():
    with pytest.raises(ValueError, match="second has diverged with seed 0"):
        paired_difference([cell([1])], [Result({"seed": 0, "data": DATA, "diverged": True})])
