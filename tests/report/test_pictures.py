import io
import sys

import matplotlib.image
import numpy as np
import pytest

from protail import Evaluation
from protail.report import accuracy_picture


def evaluation(counts, seed=0, labels=None):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(counts)), 5)
    predicted = np.where(rng.random(len(truth)) < 0.6, truth, rng.permutation(truth))
    names = np.arange(len(counts)) if labels is None else np.array(labels)
    return Evaluation.from_predictions(
        names[truth], names[predicted], classes=names, counts=np.array(counts)
    )


def pixels(picture):
    return matplotlib.image.imread(io.BytesIO(picture), format="png")


@pytest.mark.parametrize("counts", [[300, 40, 3], [7, 7], [0, 5], [500] * 30, [1]])
def test_any_profile_can_be_drawn(counts):
    image = pixels(accuracy_picture({"prototypes": evaluation(counts)}))
    assert image.shape == (675, 1200, 4)


def test_each_result_has_its_own_colour():
    counts = [400, 90, 30, 8, 2]
    two = {"softmax": evaluation(counts), "prototypes": evaluation(counts, seed=1)}
    image = pixels(accuracy_picture(two))[..., :3]
    for colour in [(0x8C, 0x8C, 0x8C), (0x1F, 0x6F, 0xB4)]:
        assert np.isclose(image, np.array(colour) / 255, atol=0.01).all(-1).sum() > 50


def test_higher_accuracy_stands_higher():
    """The line of a group's mean is where the axis says: 100 % above 50 % above 0 %."""
    heights = []
    for right in (0, 5, 10):
        truth = np.array([0] * 10 + [1] * 10)
        predicted = np.r_[np.zeros(10), np.ones(right), np.zeros(10 - right)].astype(int)
        result = Evaluation.from_predictions(truth, predicted, classes=[0, 1], counts=[300, 3])
        image = pixels(accuracy_picture({"only": result}))[..., :3]
        blue = np.isclose(image, np.array([0x1F, 0x6F, 0xB4]) / 255, atol=0.01).all(-1)
        left = blue[:, : blue.shape[1] // 3]  # the rare class
        heights.append(np.flatnonzero(left.any(1)).mean())
    assert heights[0] > heights[1] + 100 > heights[2] + 200


def test_names_are_drawn_as_they_are():
    odd = ["$x_1$", "<script>", "\\frac", "a" * 300, "日本"]
    result = evaluation([300, 100, 30, 5, 1], labels=odd)
    assert pixels(accuracy_picture({"$x^{$": result}, title="$\\oops{")).size


def test_too_many_and_none_are_refused():
    result = evaluation([3, 2])
    for results in ({}, {str(i): result for i in range(5)}):
        with pytest.raises(ValueError, match=r"expected 1 to 4"):
            accuracy_picture(results)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install .*\[report\]"):
        accuracy_picture({"only": evaluation([3, 2])})
