"""Class means against plain averages, on every kind of array."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import class_means, prototype


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_equals_an_average_by_class(labels, n_features, seed):
    labels = np.array([0, 1, 2, 3, *labels])
    features = np.random.default_rng(seed).normal(size=(len(labels), n_features)) + 100
    expected = [[np.mean(column[labels == c]) for column in features.T] for c in range(4)]
    np.testing.assert_allclose(class_means(features, labels), expected, rtol=1e-13)
    tensors = torch.tensor(features), torch.tensor(labels)
    np.testing.assert_allclose(class_means(*tensors), expected, rtol=1e-13)


def test_slices_add_up(monkeypatch):
    features, labels = torch.randn(100, 3, generator=torch.manual_seed(0)), torch.arange(100) % 7
    whole = class_means(features, labels)
    monkeypatch.setattr(prototype, "_SLICE_BYTES", 8 * 3 * 9)
    torch.testing.assert_close(class_means(features, labels), whole)


def test_float32_sums_do_not_drift():
    features = torch.full((100_000, 1), 0.1)
    features[0] = 1e7
    expected = features.double().mean().item()
    assert class_means(features, torch.zeros(100_000, dtype=torch.long)).item() == pytest.approx(
        expected, rel=1e-12
    )


def test_memory_mapped_and_read_only_arrays(tmp_path, recwarn):
    np.save(tmp_path / "x.npy", np.arange(12, dtype="f4").reshape(6, 2))
    features = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = class_means(features, np.array([0, 0, 0, 1, 1, 1], dtype=np.int32))
    assert found.tolist() == [[2, 3], [8, 9]]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (np.ones(3), [0, 0, 0], ValueError, r"features has shape \(3,\)"),
        (np.ones((3, 2)), [0, 1], ValueError, r"labels has shape \(2,\); expected \(3,\)"),
        (np.ones((3, 2)), [0.0, 1.0, 1.0], TypeError, "labels has dtype float64"),
        (np.ones((3, 2)), [0, -1, 1], ValueError, "labels run from -1 to 1"),
        (np.ones((3, 2)), [0, 2, 2], ValueError, "labels has no row of class 1"),
        (np.ones((0, 2)), np.ones(0, int), ValueError, "expected .* at least one row"),
    ],
)
def test_wrong_arguments_are_named(features, labels, error, message):
    with pytest.raises(error, match=message):
        class_means(features, labels)


def test_labels_beyond_the_given_number_of_classes():
    with pytest.raises(
        ValueError, match="labels run from 0 to 4; expected class codes from 0 to 2"
    ):
        class_means(np.ones((2, 2)), [0, 4], n_classes=3)
