"""A split that every class and every group of identical rows can live with."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.data.features import split

few_settings = settings(max_examples=150)
shares = st.floats(0.01, 0.99)
label_lists = st.lists(st.sampled_from("abcde"), min_size=1, max_size=60)


def quota(n, share):
    return min(max(round(share * n), 1), n - 1)


def check_partition(train, held, n_rows):
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(n_rows))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(held) > 0)


@given(label_lists, shares, st.integers(0, 99))
@few_settings
def test_every_class_gives_its_share(labels, share, seed):
    train, held = split(labels, share=share, seed=seed)
    check_partition(train, held, len(labels))
    given_up = Counter(labels[i] for i in held)
    for name, n in Counter(labels).items():
        assert given_up[name] == quota(n, share)
    again = split(np.array(labels), share=share, seed=seed, groups=range(len(labels)))
    assert np.array_equal(again[0], train)
    assert np.array_equal(again[1], held)


@given(st.data(), label_lists, shares, st.integers(0, 99))
@few_settings
def test_groups_stay_together(data, labels, share, seed):
    n_rows = len(labels)
    n_groups = data.draw(st.integers(1, n_rows))
    numbers = st.integers(-5, n_groups)
    groups = data.draw(st.lists(numbers, min_size=n_rows, max_size=n_rows))
    train, held = split(labels, share=share, groups=groups, seed=seed)
    check_partition(train, held, n_rows)
    assert not {groups[i] for i in train} & {groups[i] for i in held}

    rows_of = defaultdict(list)
    for group, label in zip(groups, labels, strict=True):
        rows_of[group].append(label)
    for name, n in Counter(labels).items():
        sizes = [len(rows) for rows in rows_of.values() if set(rows) == {name}]
        able = [size for size in sizes if size < n]
        n_held = sum(labels[i] == name for i in held)
        n_mixed = sum(labels[i] == name and len(set(rows_of[groups[i]])) > 1 for i in held)
        assert n_held < n
        if not able:
            assert n_held == n_mixed <= quota(n, share)
        elif min(able) > quota(n, share) and not n_mixed:
            assert n_held == min(able)
        elif n_held - n_mixed <= quota(n, share):
            assert 1 <= n_held <= quota(n, share)
            kept = Counter(groups[i] for i in train if set(rows_of[groups[i]]) == {name})
            # Nothing that would still fit was left behind.
            assert all(size > quota(n, share) - n_held for size in kept.values())


def test_rows_that_contradict_each_other_are_held_out_like_any_others():
    """Left in training, they would make whoever is judged look better than it is."""
    groups = np.repeat(np.arange(4000), 2)
    labels = np.where(groups < 2000, np.tile([0, 1], 4000), np.repeat([0, 1, 0, 1], 2000))
    _, held = split(labels, share=0.2, groups=groups)
    assert len(held) == pytest.approx(1600, rel=0.02)
    assert (groups[held] < 2000).mean() == pytest.approx(0.5, abs=0.05)


def test_seed_matters_and_rows_have_equal_chances():
    labels = [0] * 10
    times = Counter()
    for seed in range(2000):
        times.update(split(labels, seed=seed)[1].tolist())
    # 400 each; the standard deviation of a count is 18.
    assert all(310 < times[row] < 490 for row in range(10))


def test_lone_rows_stay_in_train():
    train, held = split([3, 1, 2])
    assert train.tolist() == [0, 1, 2]
    assert held.tolist() == []


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), 2])
def test_share_is_checked(share):
    with pytest.raises(ValueError, match="share"):
        split([0, 0], share=share)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="labels has shape"):
        split([])
    with pytest.raises(ValueError, match="labels has shape"):
        split([[0, 1]])
    with pytest.raises(ValueError, match="groups has shape"):
        split([0, 1], groups=[0])
