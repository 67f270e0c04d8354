import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import ClassProfile
from protail.profile import class_codes, host_array


def long_tail(n_classes: int, largest: int, imbalance: float) -> ClassProfile:
    """Counts of CIFAR-LT: an exponential from ``largest`` down, cut to whole numbers."""
    return ClassProfile(
        np.array(
            [int(largest * (1 / imbalance) ** (c / (n_classes - 1))) for c in range(n_classes)]
        )
    )


@pytest.mark.parametrize(
    ("n_classes", "largest", "imbalance", "n_samples", "group_sizes"),
    [
        (100, 500, 100, 10_847, (35, 35, 30)),
        (100, 500, 50, 12_608, None),
        (100, 500, 10, 19_573, None),
        (10, 5000, 100, 12_406, (8, 2, 0)),
    ],
)
def test_cifar_long_tails(n_classes, largest, imbalance, n_samples, group_sizes):
    profile = long_tail(n_classes, largest, imbalance)
    assert profile.n_classes == n_classes
    assert profile.n_samples == n_samples
    assert profile.imbalance == pytest.approx(imbalance, rel=0.03)
    if group_sizes:
        assert tuple(map(len, profile.groups().values())) == group_sizes


labels_lists = st.lists(st.integers(0, 6), min_size=1, max_size=60)


@given(labels_lists, st.integers(0, 5))
@settings(max_examples=60)
def test_counting_equals_a_loop(labels, more):
    n_classes = max(labels) + 1 + more
    counts = [0] * n_classes
    for label in labels:
        counts[label] += 1
    profile = ClassProfile.from_labels(labels, n_classes)
    assert profile.counts.tolist() == counts
    assert profile.counts.dtype == np.int64
    assert profile.n_samples == len(labels)
    assert profile.imbalance == max(counts) / min(n for n in counts if n)
    np.testing.assert_allclose(profile.prior, [n / len(labels) for n in counts], rtol=1e-15)
    assert profile.head_first().tolist() == sorted(range(n_classes), key=lambda c: (-counts[c], c))


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=40).filter(any),
    st.integers(0, 60),
    st.integers(60, 200),
    st.booleans(),
)
@settings(max_examples=60)
def test_groups_equal_a_loop(counts, few, many, many_inclusive):
    expected = {"many": [], "medium": [], "few": []}
    for c, n in enumerate(counts):
        if n > many or (many_inclusive and n == many):
            expected["many"].append(c)
        elif n < few:
            expected["few"].append(c)
        else:
            expected["medium"].append(c)
    found = ClassProfile(np.array(counts)).groups(many, few, many_inclusive)
    assert {name: classes.tolist() for name, classes in found.items()} == expected
    assert list(found) == ["many", "medium", "few"]


def test_group_borders_follow_the_paper_or_its_code():
    profile = ClassProfile(np.array([101, 100, 99, 20, 19]))
    assert profile.groups()["many"].tolist() == [0, 1]
    assert profile.groups(many_inclusive=False)["many"].tolist() == [0]
    assert profile.groups()["few"].tolist() == [4]


def test_log_counts():
    profile = ClassProfile(np.array([1, 10, 100]))
    np.testing.assert_allclose(np.exp(profile.log_counts), [1, 10, 100], rtol=1e-14)
    with pytest.raises(ValueError, match=r"2 empty of 4 classes \(first: \[1, 2\]\)"):
        _ = ClassProfile(np.array([5, 0, 0, 1])).log_counts


def test_counts_are_a_read_only_copy():
    mine = np.array([3, 2])
    profile = ClassProfile(mine)
    mine[0] = 99
    assert profile.counts.tolist() == [3, 2]
    for same in (profile, copy.deepcopy(profile), pickle.loads(pickle.dumps(profile))):
        with pytest.raises(ValueError, match="read-only"):
            same.counts[0] = 1
    with pytest.raises(AttributeError):
        profile.counts = mine


def test_equality_and_hash():
    one, same, other = (ClassProfile(np.array(c)) for c in ([3, 2], [3, 2], [2, 3]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != ClassProfile(np.array([3, 2, 0]))
    assert one != [3, 2]


def test_repr_is_short():
    assert repr(long_tail(100, 500, 100)) == (
        "ClassProfile(100 classes, 10847 samples, imbalance 100)"
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_may_be_tensors(dtype):
    profile = ClassProfile.from_labels(torch.tensor([0, 2, 2], dtype=dtype))
    assert profile == ClassProfile(np.array([1, 0, 2]))


def test_unsigned_labels_are_codes_too():
    assert ClassProfile.from_labels(np.array([0, 1, 1], dtype=np.uint64)).counts.tolist() == [1, 2]


def test_int64_codes_are_not_copied():
    labels = np.array([0, 1])
    assert class_codes(labels) is labels or np.shares_memory(class_codes(labels), labels)
    assert np.shares_memory(host_array(torch.from_numpy(labels)), labels)


@pytest.mark.parametrize(
    ("labels", "n_classes", "error", "message"),
    [
        ([], None, ValueError, r"labels has shape \(0,\)"),
        ([[0, 1]], None, ValueError, r"labels has shape \(1, 2\)"),
        ([0.5, 1.0], None, TypeError, "dtype float64; expected integer class codes"),
        (["a", "b"], None, TypeError, "numpy.unique"),
        ([0, -1], None, ValueError, "run from -1 to 0"),
        ([0, 5], 5, ValueError, r"run from 0 to 5; expected class codes from 0 to 4"),
    ],
)
def test_bad_labels(labels, n_classes, error, message):
    with pytest.raises(error, match=message):
        ClassProfile.from_labels(labels, n_classes)


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ([1.5, 2.0], TypeError, "counts has shape"),
        ([[1, 2]], TypeError, "counts has shape"),
        ([3, -1], ValueError, "no negative count"),
        ([0, 0], ValueError, "at least one sample"),
        (np.array([], dtype=int), ValueError, "at least one sample"),
    ],
)
def test_bad_counts(counts, error, message):
    with pytest.raises(error, match=message):
        ClassProfile(np.asarray(counts))


def test_bad_groups():
    with pytest.raises(ValueError, match="few=30 and many=20"):
        ClassProfile(np.array([5])).groups(many=20, few=30)


@pytest.mark.parametrize(
    "counts", [[4, 2, 1], (4, 2, 1), np.array([4, 2, 1]), torch.tensor([4, 2, 1])]
)
def test_counts_in_any_form_are_a_profile(counts):
    assert ClassProfile.of(counts) == ClassProfile.from_labels([0, 0, 0, 0, 1, 1, 2])


def test_a_profile_is_given_back_as_it_is():
    profile = long_tail(10, 100, 10)
    assert ClassProfile.of(profile) is profile


def test_what_is_no_counts_is_refused():
    with pytest.raises(TypeError, match="expected whole numbers, one for each class"):
        ClassProfile.of([0.5, 0.5])
