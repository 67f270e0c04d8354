"""The loss of DRO-LT as loops in float64: slow and obvious."""

import math


def class_losses(features, centroids, labels, radii, temperature):
    """The robust loss of every class that has an image in the batch."""
    losses = {}
    for c in sorted(set(labels)):
        a = []
        for feature, label in zip(features, labels, strict=True):
            away = math.sqrt(sum((x - m) ** 2 for x, m in zip(feature, centroids[c], strict=True)))
            a.append(-(away + (radii[c] if label == c else 0)) / temperature)
        log_sum = math.log(sum(math.exp(each) for each in a))
        own = [a[i] - log_sum for i, label in enumerate(labels) if label == c]
        losses[c] = -sum(own) / len(own)
    return losses


def robust_loss(features, centroids, labels, radii, temperature):
    losses = class_losses(features, centroids, labels, radii, temperature)
    return sum(losses.values()) / len(losses)


def weighted_cross_entropy(logits, labels, counts):
    top = bottom = 0.0
    for row, label in zip(logits, labels, strict=True):
        weight = counts[label] / max(counts)
        top += weight * (math.log(sum(math.exp(z) for z in row)) - row[label])
        bottom += weight
    return top / bottom


def dro_lt_loss(
    features, logits, labels, centroids, radii, counts, *, temperature=1.0, cross_entropy=1.0
):
    robust = robust_loss(features, centroids, labels, radii, temperature)
    return cross_entropy * weighted_cross_entropy(logits, labels, counts) + robust


def centroids_by_loop(features, labels, before):
    after = [list(row) for row in before]
    for c in range(len(before)):
        members = [row for row, label in zip(features, labels, strict=True) if label == c]
        if members:
            after[c] = [sum(column) / len(members) for column in zip(*members, strict=True)]
    return after
