"""The closed form of the default classifier in float64, a class at a time."""

import numpy as np


def prototypes_by_loop(means, weights, covariance, kappa, common):
    """Place prototypes of class means, less their centre.

    ``common`` of the variance of class means is alike in all directions, the rest as the means of
    the other classes lie around their own mean.
    """
    lower, unit = np.linalg.cholesky(covariance), np.eye(len(covariance))
    mapped = np.linalg.solve(lower, (means - means.mean(0)).T).T
    prototypes = []
    for own, (mean, weight) in enumerate(zip(mapped, weights, strict=True)):
        others = np.delete(mapped, own, axis=0)
        away = others - others.mean(0)
        total = np.square(mapped).sum()
        between = common * unit + (1 - common) * len(unit) / total * away.T @ away
        prototypes.append(lower @ between @ np.linalg.solve(between + kappa / weight * unit, mean))
    return np.array(prototypes)


def logits_by_loop(x, code, new, n_classes, ridge, kappa, common=1.0):
    """Score ``new`` with ``W + ridge I``, an absolute ridge, and this kappa."""
    weight = np.bincount(code, minlength=n_classes)
    filled = np.flatnonzero(weight)
    means = np.array([x[code == c].mean(0) for c in filled])
    away = x - means[np.searchsorted(filled, code)]
    w = away.T @ away / max(1, len(x) - len(means)) + ridge * np.eye(x.shape[1])
    out = np.full((len(new), n_classes), -np.inf)
    prototypes = prototypes_by_loop(means, weight[filled], w, kappa, common)
    for c, p in zip(filled, prototypes, strict=True):
        for i, row in enumerate(new):
            away = row - means.mean(0)
            out[i, c] = away @ np.linalg.solve(w, p) - p @ np.linalg.solve(w, p) / 2
    return out
