"""What a teacher teaches, as loops in float64: slow and obvious."""

import math

from reference.losses_by_loop import log_p


def compared(row, counts, tau, temperature):
    """Logits of an image as they are compared."""
    fractions = [n / sum(counts) for n in counts]
    return [(z - tau * math.log(n)) / temperature for z, n in zip(row, fractions, strict=True)]


def taught_loss(logits, aims, counts, *, tau, temperature):
    """Mean over images of the divergence of what is said from what is taught, times T^2."""
    total = 0.0
    for own, aim in zip(logits, aims, strict=True):
        said, taught = (compared(row, counts, tau, temperature) for row in (own, aim))
        for c in range(len(counts)):
            log_q = log_p(taught, c)
            total += math.exp(log_q) * (log_q - log_p(said, c))
    return temperature**2 * total / len(logits)
