import json
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from protail.evaluation import Comparison, Evaluation
from protail.evaluation.comparison import resampled_differences
from reference import evaluation as naive

NAMES = ("all", "balanced_accuracy", *naive.GROUPS)


def two_models(seed=0, rows=60):
    """Make a small test set with a class of two rows, which often drops out of a resample."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([[3, 3], rng.integers(3, size=rows - 2)])
    first = np.where(rng.random(rows) < 0.5, truth, rng.integers(4, size=rows))
    second = np.where(rng.random(rows) < 0.7, truth, rng.integers(4, size=rows))
    known = {"classes": [0, 1, 2, 3], "counts": [200, 100, 50, 4], "many": 100, "few": 20}
    return {"truth": truth.tolist(), "first": first.tolist(), "second": second.tolist()} | known


@settings(max_examples=100)
@given(naive.problems())
def test_scores_agree_with_naive_loops(problem):
    truth, known = problem["truth"], problem["known"]
    comparison = Comparison.from_predictions(
        truth, problem["first"], problem["second"], n_resamples=20, **known
    )
    one = naive.accuracies(truth, problem["first"], **known)
    two = naive.accuracies(truth, problem["second"], **known)
    for name, found in comparison.differences.items():
        if one[name] is None:
            assert found is None
            continue
        assert found.first == pytest.approx(one[name])
        assert found.second == pytest.approx(two[name])
        assert found.difference == pytest.approx(two[name] - one[name], abs=1e-12)
        assert not found.low > found.high
    rows = [
        (a == t, b == t)
        for t, a, b in zip(truth, problem["first"], problem["second"], strict=True)
        if t in known["classes"]
    ]
    assert comparison.only_first == rows.count((True, False))
    assert comparison.only_second == rows.count((False, True))
    assert sum(c["only_first"] for c in comparison.changed.values()) == comparison.only_first
    assert sum(c["only_second"] for c in comparison.changed.values()) == comparison.only_second
    assert comparison.n_rows == len(rows)
    assert comparison.n_rows + comparison.n_unseen == len(truth)


def test_scores_are_those_of_two_evaluations():
    problem = two_models(rows=300)
    comparison = Comparison.from_predictions(**problem)
    truth, first, second = (problem.pop(name) for name in ("truth", "first", "second"))
    one = Evaluation.from_predictions(truth, first, **problem)
    two = Evaluation.from_predictions(truth, second, **problem)
    for name, found in comparison.differences.items():
        assert found.first == pytest.approx(getattr(one, name))
        assert found.second == pytest.approx(getattr(two, name))


def test_changed_rows_by_hand():
    comparison = Comparison.from_predictions(
        ["a", "a", "a", "b", "b", "x"],
        ["a", "a", "b", "a", "a", "a"],
        ["a", "b", "b", "b", "b", "a"],
        classes=["a", "b"],
        counts=[100, 3],
    )
    assert (comparison.only_first, comparison.only_second) == (1, 2)
    assert comparison.changed == {
        "many": {"only_first": 1, "only_second": 0},
        "medium": {"only_first": 0, "only_second": 0},
        "few": {"only_first": 0, "only_second": 2},
    }
    assert comparison.medium is None
    assert comparison.group_classes == {"many": 1, "medium": 0, "few": 1}


def drawn_by_cells(problem, n_resamples, seed=0):
    """Catch the differences that Comparison draws."""
    with mock.patch(
        "protail.evaluation.comparison.resampled_differences", side_effect=resampled_differences
    ) as draw:
        comparison = Comparison.from_predictions(
            **problem, n_resamples=n_resamples, random_state=seed
        )
    cells, members, _, _ = draw.call_args.args
    samples = resampled_differences(cells, members, n_resamples, np.random.default_rng(seed))
    return comparison, dict(zip(NAMES, samples.T, strict=True))


def test_the_bootstrap_has_the_distribution_of_resampling_rows():
    problem = two_models()
    comparison, drawn = drawn_by_cells(problem, n_resamples=3000)
    rows = naive.bootstrap(**problem, n_resamples=3000, seed=1)
    for name in NAMES:
        found = drawn[name][~np.isnan(drawn[name])]
        expected = np.array(rows[name])
        # Rounding would tell values apart that are the same fraction.
        assert ks_2samp(found.round(9), expected.round(9)).pvalue > 1e-3, name
        # How often a whole group drops out is part of the distribution too.
        assert len(found) / 3000 == pytest.approx(len(expected) / 3000, abs=0.04)
        spread = expected.std()
        assert found.mean() == pytest.approx(expected.mean(), abs=5 * spread / 3000**0.5)
        assert found.std() == pytest.approx(spread, rel=0.08)
        interval = getattr(comparison, name)
        low, high = np.quantile(expected, [0.025, 0.975])
        assert interval.low == pytest.approx(low, abs=0.25 * spread)
        assert interval.high == pytest.approx(high, abs=0.25 * spread)
    assert len(rows["few"]) < 3000  # the class of two rows did drop out


def test_intervals_cover_the_true_difference_as_often_as_they_say():
    rng = np.random.default_rng(0)
    chance = np.array([[0.8, 0.8], [0.6, 0.7], [0.3, 0.5]])  # of each class, each model
    true = {"all": 0.3 * 0.1 + 0.2 * 0.2, "balanced_accuracy": 0.1, "few": 0.2, "medium": 0.1}
    trials, covered = 300, dict.fromkeys(true, 0)
    for _ in range(trials):
        truth = rng.choice(3, size=300, p=[0.5, 0.3, 0.2])
        right = rng.random((300, 2)) < chance[truth]
        guess = np.where(right, truth[:, None], (truth[:, None] + 1) % 3)
        comparison = Comparison.from_predictions(
            truth,
            guess[:, 0],
            guess[:, 1],
            classes=[0, 1, 2],
            counts=[500, 50, 5],
            n_resamples=300,
            confidence_level=0.9,
            random_state=rng,
        )
        for name, value in true.items():
            interval = getattr(comparison, name)
            covered[name] += interval.low <= value <= interval.high
    for name, times in covered.items():
        assert 0.84 <= times / trials <= 0.95, name


def test_equal_models_show_no_difference():
    problem = two_models()
    problem["second"] = problem["first"]
    for difference in Comparison.from_predictions(**problem).differences.values():
        assert (difference.difference, difference.low, difference.high) == (0, 0, 0)
        assert difference.verdict == "no clear difference"


def test_better_and_worse_are_seen_from_the_second():
    truth = [0, 1] * 40
    good, bad = truth, [0] * 80
    known = {"classes": [0, 1], "counts": [500, 5]}
    assert Comparison.from_predictions(truth, bad, good, **known).few.verdict == "better"
    assert Comparison.from_predictions(truth, good, bad, **known).few.verdict == "worse"


def test_cancelling_fractions_are_no_difference():
    # In many resamples the classes cancel, as in 0.1 + 0.2 - 0.3: that must be 0, not 5e-17.
    cells = np.array([[0, 1, 9], [0, 2, 8], [3, 0, 7]])
    drawn = resampled_differences(cells, np.ones((3, 1)), 5000, np.random.default_rng(0))
    assert (drawn[np.abs(drawn) < 1e-9] == 0).all()


def test_every_resample_has_as_many_rows_as_the_test_set():
    # All rows change, so that the fraction of changed rows is 1 whatever is drawn.
    cells = np.array([[0, 10, 0], [0, 5, 0], [0, 1, 0]])
    drawn = resampled_differences(cells, np.ones((3, 1)), 200, np.random.default_rng(0))
    assert (drawn == 1).all()


@settings(max_examples=20)
@given(st.integers(1, 30_000))
def test_the_size_of_chunks_changes_nothing(chunk_bytes):
    problem = two_models()
    whole = Comparison.from_predictions(**problem, n_resamples=50)
    with mock.patch("protail.evaluation.comparison._CHUNK_BYTES", chunk_bytes):
        assert Comparison.from_predictions(**problem, n_resamples=50) == whole


def test_the_bootstrap_stays_below_64_mib():
    import tracemalloc

    rng = np.random.default_rng(0)
    cells, members = rng.integers(1, 9, size=(20_000, 3)), np.ones((20_000, 4))
    tracemalloc.start()
    try:
        resampled_differences(cells, members, 40, rng)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_seeds():
    problem = two_models()
    assert Comparison.from_predictions(**problem) == Comparison.from_predictions(**problem)
    other = Comparison.from_predictions(**problem, random_state=1)
    assert other != Comparison.from_predictions(**problem)


@settings(max_examples=40)
@given(naive.problems())
def test_to_dict_is_strict_json(problem):
    comparison = Comparison.from_predictions(
        problem["truth"], problem["first"], problem["second"], n_resamples=1, **problem["known"]
    )
    record = comparison.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["all"]["verdict"] == comparison.all.verdict
