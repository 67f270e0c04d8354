"""Consistency of two mixtures as loops in float64: slow and obvious."""

import math

from reference.losses_by_loop import log_p
from reference.paco_by_loop import dot


def cosine(a, b):
    """Cosine of two vectors; 0 where one of them has no direction."""
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths else 0.0


def cosine_logits(features, weight, scale):
    return [[scale * cosine(row, w) for w in weight] for row in features]


def mixed_loss(logits, labels, other, fraction, added):
    """Mean over images of what both classes cost, in their shares; ``added`` to every logit."""
    total = 0.0
    for row, label, partner in zip(logits, labels, other, strict=True):
        row = [z + more for z, more in zip(row, added, strict=True)]
        total += fraction * -log_p(row, label) + (1 - fraction) * -log_p(row, partner)
    return total / len(labels)


def disagreement(projected, predicted):
    """Of the two views' projections, held fixed, and what is predicted of them."""
    total = 0.0
    for z_1, z_2, p_1, p_2 in zip(*projected, *predicted, strict=True):
        total += 1 - (cosine(p_1, z_2) + cosine(p_2, z_1)) / 2
    return total / len(projected[0])
