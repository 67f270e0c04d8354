"""Labels beside points: none lies on another, on a mark, or outside."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protail_paper.figures._cost import _cross, _overlap, _run_through, place_labels

FRAME = np.array([0.0, 0.0, 1200.0, 900.0])


def lie_on_each_other(one, other):
    return bool(one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3])


def placed(points, widths, height=16.0, half=6.0):
    sizes = np.stack([widths, np.full(len(widths), height)], 1)
    marks = np.concatenate([points - half, points + half], 1)
    boxes = place_labels(points, sizes, marks, FRAME)
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], sizes)
    return boxes, marks


def check(boxes, marks):
    for i, box in enumerate(boxes):
        assert (box[:2] >= FRAME[:2]).all()
        assert (box[2:] <= FRAME[2:]).all()
        assert not any(lie_on_each_other(box, mark) for mark in marks)
        assert not any(lie_on_each_other(box, other) for other in boxes[:i])


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), spread=st.sampled_from([60, 200, 400]))
def test_labels_of_a_crowd(seed, n, spread):
    rng = np.random.default_rng(seed)
    points = np.clip(rng.normal((600, 450), spread, (n, 2)), 10, (1190, 890))
    check(*placed(points, rng.uniform(20, 160, n)))


def test_labels_of_a_column_of_points():
    """Classifiers on one representation all take the same seconds."""
    y = np.sort(np.random.default_rng(0).uniform(400, 560, 14))
    check(*placed(np.stack([np.full(14, 600.0), y], 1), np.full(14, 120.0)))


def test_points_that_are_one():
    check(*placed(np.full((5, 2), 300.0), np.full(5, 80.0)))


def test_a_lonely_label_stands_close_by():
    [box], _ = placed(np.array([[600.0, 450.0]]), np.array([100.0]))
    nearest = np.clip([600.0, 450.0], box[:2], box[2:])
    assert np.hypot(*(nearest - [600.0, 450.0])) < 16


def test_boxes_and_lines_by_hand():
    boxes = np.array([[0.0, 0, 10, 10], [20.0, 0, 30, 10]])
    assert _overlap(boxes, boxes, 0.0).tolist() == [[True, False], [False, True]]
    assert _overlap(boxes, boxes, 11.0).all()
    lines = np.array([[[-5.0, 5], [15, 5]], [[-5.0, -5], [40, -5]], [[5.0, -10], [5, 20]]])
    assert _run_through(lines, boxes).tolist() == [[True, False], [False, False], [True, False]]
    assert _cross(lines, lines).tolist() == [
        [False, False, True],
        [False, False, True],
        [True, True, False],
    ]
