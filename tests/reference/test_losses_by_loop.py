"""The loops themselves, against values worked out by hand."""

import math

import pytest

from reference import losses_by_loop as naive

# p = 1/4, 3/4 in the first row and 4/5, 1/5 in the second.
LOGITS = [[0.0, math.log(3)], [math.log(4), 0.0]]
TARGET = [0, 1]


def test_losses_by_hand():
    first, second = math.log(4), math.log(5)
    assert naive.cross_entropy(LOGITS, TARGET, [1, 3]) == pytest.approx((first + 3 * second) / 4)
    assert naive.focal(LOGITS, TARGET, 2) == pytest.approx((9 / 16 * first + 16 / 25 * second) / 2)
    # Of two classes the other's 1 - p is the own p.
    assert naive.balanced_binary(LOGITS, TARGET, [1, 3]) == pytest.approx(
        (2 * first + 3 * 2 * second) / 4
    )
    raised = [[math.log(3), math.log(3)], [math.log(4), math.log(4)]]
    assert naive.ldam(raised, TARGET, [1, 1], [math.log(3) / 10, math.log(4) / 10], 10) == (
        pytest.approx((first + second) / 2)
    )


def test_logarithms_are_cut_off():
    assert naive.balanced_binary([[2000.0, 0.0]], [1], [1.0, 1.0]) == 100
    assert naive.balanced_binary([[50.0, 0.0]], [1], [1.0, 1.0]) == pytest.approx(50)


def test_slopes_of_a_parabola():
    def parabola(rows):
        return sum(z * z for row in rows for z in row)

    assert naive.slopes(parabola, [[1.0, -2.0]]).ravel() == pytest.approx([2.0, -4.0])
