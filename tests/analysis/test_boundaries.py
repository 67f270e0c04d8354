import numpy as np
import pytest

from protail.analysis import PlaneClassifier, class_norms, learn_boundaries


@pytest.fixture(scope="module")
def learned():
    return learn_boundaries()


def of(learned, model, sampling):
    [one] = [c for c in learned.classifiers if (c.model, c.sampling) == (model, sampling)]
    return one


def test_the_set_is_long_tailed(learned):
    assert learned.counts.tolist() == [500, 110, 25, 5]
    assert learned.features.shape == (640, 2)
    assert [(one.model, one.sampling) for one in learned.classifiers] == [
        ("softmax", "instance"),
        ("prototypes", "instance"),
        ("softmax", "class-balanced"),
        ("prototypes", "class-balanced"),
    ]


def test_same_seed_same_bits(learned):
    again, other = learn_boundaries(0), learn_boundaries(1)
    for one, same, different in zip(
        learned.classifiers, again.classifiers, other.classifiers, strict=True
    ):
        assert np.array_equal(one.vectors, same.vectors)
        assert not np.array_equal(one.vectors, different.vectors)


def test_norms_of_softmax_weights_follow_class_size(learned):
    biased = class_norms(of(learned, "softmax", "instance").vectors, learned.counts)
    assert biased.rank_correlation == 1.0
    assert biased.head_to_tail > 2


def test_prototypes_are_fairer(learned):
    softmax = of(learned, "softmax", "instance").accuracy
    prototypes = of(learned, "prototypes", "class-balanced").accuracy
    assert prototypes.mean() > softmax.mean() + 0.05
    assert prototypes[-1] > softmax[-1] + 0.2


def test_drawing_rows_equally_often_biases_prototypes_too(learned):
    """Those of large classes move inwards, of small ones outwards: away from their rows."""
    biased = of(learned, "prototypes", "instance")
    assert class_norms(biased.vectors, learned.counts).rank_correlation == -1.0
    assert biased.accuracy.mean() < of(learned, "prototypes", "class-balanced").accuracy.mean()


@pytest.mark.parametrize("model", ["softmax", "prototypes"])
def test_predictions_follow_the_definition(model):
    rng = np.random.default_rng(0)
    vectors, points = rng.normal(size=(4, 2)), rng.normal(size=(50, 2))
    predicted = PlaneClassifier(model, "instance", vectors, np.ones(4)).predict(points)
    for point, label in zip(points, predicted, strict=True):
        if model == "softmax":
            scores = [point @ vector for vector in vectors]
        else:
            scores = [-np.linalg.norm(point - vector) for vector in vectors]
        assert label == max(range(4), key=scores.__getitem__)
