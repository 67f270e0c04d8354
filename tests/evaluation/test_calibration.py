import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.evaluation import calibration_error
from reference import evaluation as naive

# Edges of the bins are drawn often: that is where bins can go wrong.
confidences = st.one_of(st.floats(0, 1), st.integers(0, 15).map(lambda k: k / 15))
rows = st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40)


@settings(max_examples=200)
@given(rows, st.sampled_from([1, 2, 10, 15]))
def test_agrees_with_a_naive_loop(rows, n_bins):
    confidence, right = zip(*rows, strict=True)
    expected = naive.calibration_error(confidence, right, n_bins)
    assert calibration_error(confidence, right, n_bins) == pytest.approx(expected, abs=1e-12)


def test_certain_and_right_is_perfect_and_certain_and_wrong_is_the_worst():
    assert calibration_error([1.0, 1.0], [True, True]) == 0
    assert calibration_error([1.0, 1.0], [False, False]) == 1


def test_a_float32_softmax_just_above_one_will_do():
    confidence = np.array([1 + 2**-23], dtype=np.float32)
    assert calibration_error(confidence, [True]) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_of_any_precision_will_do(dtype):
    confidence = torch.tensor([0.75, 0.5], dtype=dtype, requires_grad=True)
    assert calibration_error(confidence, torch.tensor([True, False])) == 0.375
