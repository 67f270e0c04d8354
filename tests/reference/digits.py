"""scikit-learn's digits made long-tailed: what README takes for the reader's own features."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

_IMBALANCE = 50


def long_tailed_digits():
    """Give training images and digits, 104 zeros down to 2 nines, and test ones."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    rng = np.random.default_rng(0)
    largest = np.bincount(y).min()
    kept = np.concatenate(
        [
            rng.permutation(np.flatnonzero(y == digit))[
                : round(largest * _IMBALANCE ** (-digit / 9))
            ]
            for digit in range(10)
        ]
    )
    return X[kept], y[kept], X_test, y_test
