import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from protail.evaluation import novelty_auroc
from reference import evaluation as naive

scores = st.lists(
    st.one_of(st.integers(-2, 2), st.floats(allow_nan=False)), min_size=1, max_size=25
)


@settings(max_examples=150)
@given(scores, scores)
def test_agrees_with_a_loop_over_pairs(known, unseen):
    assert novelty_auroc(known, unseen) == pytest.approx(naive.auroc(known, unseen), abs=1e-15)


@settings(max_examples=50)
@given(scores, scores)
def test_swapping_the_two_turns_it_round(known, unseen):
    assert novelty_auroc(known, unseen) + novelty_auroc(unseen, known) == pytest.approx(1)


def test_agrees_with_scikit_learn_on_many_ties():
    rng = np.random.default_rng(0)
    known, unseen = rng.integers(50, size=3000), rng.integers(10, 60, size=500)
    truth = np.repeat([0, 1], [3000, 500])
    expected = roc_auc_score(truth, np.concatenate([known, unseen]))
    assert novelty_auroc(known, unseen) == pytest.approx(expected, abs=1e-12)


def test_an_infinite_score_is_the_strangest():
    assert novelty_auroc([1.0, 1e300], [math.inf]) == 1
