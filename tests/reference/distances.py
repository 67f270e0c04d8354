"""The paper's classifier as loops over batch, class and channel in float64: slow and obvious.

A distance is a name, or a matrix A: then it is the length of A (x - c), and temperatures are those
of the channels that A makes.
"""

import math

import numpy as np


def pair_distance(x, c, t, distance):
    """Distance of one feature vector from one prototype with temperatures t, one a channel."""
    if isinstance(distance, np.ndarray):
        return pair_distance(mapped(distance, x, c), np.zeros(len(t)), t, "euclidean")
    channels = range(len(x))
    if distance == "cosine":
        product = sum(x[i] * c[i] / t[i] for i in channels)
        length_x = math.sqrt(sum(x[i] * x[i] / t[i] for i in channels))
        length_c = math.sqrt(sum(c[i] * c[i] / t[i] for i in channels))
        if length_x == 0 or length_c == 0:
            return 1.0
        return 1.0 - product / (length_x * length_c)
    square = sum((x[i] - c[i]) ** 2 / t[i] for i in channels)
    return math.sqrt(square) if distance == "euclidean" else square


def mapped(matrix, x, c):
    """A (x - c)."""
    return list(matrix @ (np.asarray(x, np.float64) - np.asarray(c, np.float64)))


def pair_gradients(x, c, t, distance):
    """Slopes of one distance by x, c and t (and by A); zero where the distance has none."""
    if isinstance(distance, np.ndarray):
        by_y, _, by_t = pair_gradients(mapped(distance, x, c), np.zeros(len(t)), t, "euclidean")
        by_x, by_matrix = np.zeros(len(x)), np.zeros(distance.shape)
        for i, j in np.ndindex(distance.shape):
            by_x[j] += distance[i, j] * by_y[i]
            by_matrix[i, j] = by_y[i] * (x[j] - c[j])
        return by_x, -by_x, by_t, by_matrix
    channels = range(len(x))
    by_x, by_c, by_t = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
    if distance == "cosine":
        length_x = math.sqrt(sum(x[i] * x[i] / t[i] for i in channels))
        length_c = math.sqrt(sum(c[i] * c[i] / t[i] for i in channels))
        if length_x == 0 or length_c == 0:
            return by_x, by_c, by_t
        cosine = 1.0 - pair_distance(x, c, t, distance)
        for i in channels:
            u, v = x[i] / length_x, c[i] / length_c
            by_x[i] = (cosine * u - v) / (t[i] * length_x)
            by_c[i] = (cosine * v - u) / (t[i] * length_c)
            by_t[i] = (u * v - cosine * (u * u + v * v) / 2) / t[i] ** 2
        return by_x, by_c, by_t
    value = pair_distance(x, c, t, distance)
    if value == 0:
        return by_x, by_c, by_t
    outer = 0.5 / value if distance == "euclidean" else 1.0
    for i in channels:
        by_x[i] = outer * 2 * (x[i] - c[i]) / t[i]
        by_c[i] = -by_x[i]
        by_t[i] = -outer * (x[i] - c[i]) ** 2 / t[i] ** 2
    return by_x, by_c, by_t


def full_temperature(temperature, prototypes, distance):
    """Temperature of every class and channel: 1 without one."""
    n_classes, n_channels = prototypes.shape
    if isinstance(distance, np.ndarray):
        n_channels = len(distance)
    temperature = np.ones(1) if temperature is None else np.float64(temperature)
    return np.broadcast_to(temperature, (n_classes, n_channels))


def distances(x, prototypes, distance, temperature=None):
    x, prototypes = np.float64(x), np.float64(prototypes)
    t = full_temperature(temperature, prototypes, distance)
    result = np.zeros((len(x), len(prototypes)))
    for b in range(len(x)):
        for c in range(len(prototypes)):
            result[b, c] = pair_distance(x[b], prototypes[c], t[c], distance)
    return result


def probabilities(x, prototypes, distance, temperature=None, adjustment=None):
    adjustment = np.zeros(len(prototypes)) if adjustment is None else np.float64(adjustment)
    result = distances(x, prototypes, distance, temperature)
    for row in result:
        logits = [-0.5 * row[c] + adjustment[c] for c in range(len(row))]
        peak = max(logits)
        total = sum(math.exp(logit - peak) for logit in logits)
        row[:] = [math.exp(logit - peak) / total for logit in logits]
    return result


def losses(x, prototypes, target, distance, temperature=None, adjustment=None):
    """Cross-entropy of each row."""
    adjustment = np.zeros(len(prototypes)) if adjustment is None else np.float64(adjustment)
    result = np.zeros(len(x))
    for b, row in enumerate(distances(x, prototypes, distance, temperature)):
        logits = [-0.5 * row[c] + adjustment[c] for c in range(len(row))]
        peak = max(logits)
        total = sum(math.exp(logit - peak) for logit in logits)
        result[b] = peak + math.log(total) - logits[target[b]]
    return result


def gradients(x, prototypes, target, distance, temperature=None, adjustment=None):
    """Slopes of the mean loss by x, prototypes, temperature (of its own shape) and adjustment.

    With a matrix for a distance those by it come last.
    """
    x, prototypes = np.float64(x), np.float64(prototypes)
    p = probabilities(x, prototypes, distance, temperature, adjustment)
    t = full_temperature(temperature, prototypes, distance)
    by_matrix = [np.zeros(distance.shape)] if isinstance(distance, np.ndarray) else []
    by_x, by_c, by_t = np.zeros_like(x), np.zeros_like(prototypes), np.zeros(t.shape)
    by_adjustment = np.zeros(len(prototypes)) if adjustment is not None else None
    for b in range(len(x)):
        for c in range(len(prototypes)):
            by_logit = (p[b, c] - (target[b] == c)) / len(x)
            slopes = pair_gradients(x[b], prototypes[c], t[c], distance)
            if by_adjustment is not None:
                by_adjustment[c] += by_logit
            by_x[b] += -0.5 * by_logit * slopes[0]
            by_c[c] += -0.5 * by_logit * slopes[1]
            by_t[c] += -0.5 * by_logit * slopes[2]
            for total, slope in zip(by_matrix, slopes[3:], strict=True):
                total += -0.5 * by_logit * slope
    if temperature is None:
        return by_x, by_c, None, by_adjustment, *by_matrix
    for axis, size in enumerate(np.shape(temperature)):
        if size == 1:
            by_t = by_t.sum(axis=axis, keepdims=True)
    return by_x, by_c, by_t, by_adjustment, *by_matrix
