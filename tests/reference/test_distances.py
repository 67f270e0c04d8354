"""The loops themselves, against finite differences and hand-computed values."""

import numpy as np
import pytest

from reference import distances as naive

DISTANCES = ("euclidean", "sqeuclidean", "cosine")
MATRIX = np.array([[1.0, -0.5, 2.0], [0.3, 1.5, 0.0], [-1.0, 0.2, 0.7]])


@pytest.mark.parametrize("distance", [*DISTANCES, MATRIX], ids=[*DISTANCES, "mahalanobis"])
@pytest.mark.parametrize("shape", [None, (1, 3), (4, 1), (4, 3)])
def test_gradients_are_those_of_the_loss(distance, shape):
    rng = np.random.default_rng(0)
    x, prototypes, adjustment = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=4)
    temperature = None if shape is None else rng.uniform(0.5, 2, size=shape)
    target = [1, 3]
    inputs = [x, prototypes, temperature, adjustment]
    if isinstance(distance, np.ndarray):
        inputs.append(distance := distance.copy())

    def mean_loss():
        x, prototypes, temperature, adjustment = inputs[:4]
        return naive.losses(x, prototypes, target, distance, temperature, adjustment).mean()

    found = naive.gradients(x, prototypes, target, distance, temperature, adjustment)
    for values, slopes in zip(inputs, found, strict=True):
        if values is None:
            assert slopes is None
            continue
        for place in np.ndindex(values.shape):
            middle = values[place]
            values[place] = middle + 1e-6
            high = mean_loss()
            values[place] = middle - 1e-6
            low = mean_loss()
            values[place] = middle
            assert slopes[place] == pytest.approx((high - low) / 2e-6, abs=1e-8)


def test_distances_by_hand():
    x, c = [3.0, 0.0], [0.0, 4.0]
    assert naive.pair_distance(x, c, [1, 1], "euclidean") == 5
    assert naive.pair_distance(x, c, [9, 4], "sqeuclidean") == 1 + 4
    assert naive.pair_distance([1.0, 1.0], [2.0, 0.0], [1, 1], "cosine") == pytest.approx(
        1 - 0.5**0.5
    )
    assert naive.pair_distance([0.0, 0.0], c, [1, 1], "cosine") == 1
    assert naive.pair_distance(
        x, c, [1, 4, 1], np.array([[1, 0], [0, 2], [1, 1]])
    ) == pytest.approx((3**2 + 8**2 / 4 + 1) ** 0.5)
