"""Parts merge in any order and grouping into what one pass gives."""

import functools
import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.ops import Parts, TopK

few = settings(max_examples=60)
logit = st.floats(-80, 80) | st.just(float("-inf"))


@st.composite
def split_logits(draw):
    """Logits of two rows, cut into pieces that may be empty, and the row's targets."""
    n = draw(st.integers(1, 8))
    rows = st.lists(logit, min_size=n, max_size=n)
    logits = torch.tensor([draw(rows), draw(rows)], dtype=torch.float64)
    targets = torch.tensor(draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=2)))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=4)))
    return logits, targets, [0, *cuts, n]


def parts_of(logits, targets, cuts):
    target_logits = logits.gather(1, targets[:, None]).squeeze(1)
    result = []
    for start, stop in itertools.pairwise(cuts):
        here = (targets >= start) & (targets < stop)
        result.append(Parts.of(logits[:, start:stop], target_logits.where(here, -torch.inf)))
    return result


@few
@given(split_logits(), st.randoms())
def test_any_order_and_grouping_gives_the_loss(problem, random):
    logits, targets, cuts = problem
    parts = parts_of(logits, targets, cuts)
    while len(parts) > 1:
        one = parts.pop(random.randrange(len(parts)))
        other = parts.pop(random.randrange(len(parts)))
        parts.append(one.merge(other))
    (whole,) = parts
    torch.testing.assert_close(whole.log_total(), logits.logsumexp(1))
    assert not whole.total_b.isnan().any()
    expected = logits.logsumexp(1) - logits.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(whole.loss(), expected, equal_nan=True)


@few
@given(split_logits())
def test_merge_is_commutative_and_associative(problem):
    logits, targets, _ = problem
    a, b, c = parts_of(
        logits, targets, [0, logits.shape[1] // 3, logits.shape[1] // 2, logits.shape[1]]
    )
    assert all(torch.equal(x, y) for x, y in zip(a.merge(b), b.merge(a), strict=True))
    for x, y in zip(a.merge(b).merge(c), a.merge(b.merge(c)), strict=True):
        torch.testing.assert_close(x, y)


def test_nothing_at_all_is_no_nan():
    empty = Parts.of(torch.empty(2, 0))
    both = empty.merge(empty)
    assert both.peak_b.tolist() == [-torch.inf] * 2
    assert both.total_b.tolist() == [0, 0]
    assert both.log_total().tolist() == [-torch.inf] * 2
    one = Parts.of(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]))
    assert empty.merge(one).loss().tolist() == [0, 0]


@few
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, float("inf")]), min_size=1, max_size=9),
    st.integers(1, 4),
    st.randoms(),
)
def test_top_k_in_any_order_is_the_sorted_head(values, k, random):
    """Equal distances go by class index."""
    pieces = []
    for cls, value in enumerate(values):
        zero = torch.zeros(1, dtype=torch.int64)
        pieces.append(TopK.of_pairs(torch.tensor([value]), zero, zero + cls, 1, k))
    random.shuffle(pieces)
    merged = functools.reduce(TopK.merge, pieces)
    expected = sorted((value, cls) for cls, value in enumerate(values))[:k]
    found = list(zip(merged.distances_bk[0].tolist(), merged.classes_bk[0].tolist(), strict=True))
    assert found[: len(expected)] == expected
    everything = TopK.of_pairs(
        torch.tensor(values),
        torch.zeros(len(values), dtype=torch.int64),
        torch.arange(len(values)),
        1,
        k,
    )
    assert all(torch.equal(a, b) for a, b in zip(everything, merged, strict=True))


def test_top_k_of_pairs_leaves_missing_rows_empty():
    found = TopK.of_pairs(
        torch.tensor([2.0, 1.0]), torch.tensor([1, 1]), torch.tensor([4, 7]), 2, 2
    )
    assert found.distances_bk.tolist() == [[torch.inf] * 2, [1, 2]]
    assert found.classes_bk[1].tolist() == [7, 4]
