"""RIDE, one number at a time in float64: slow and obvious."""

import math

import numpy as np


def class_temperatures(counts, rho, temperature=1.0):
    total, n_classes = sum(counts), len(counts)
    spread = [rho * n_classes * (n / total) + (1 - rho) for n in counts]
    return [temperature * b / max(spread) for b in spread]


def cosine_logits(x, weights, scale):
    """Logits of one expert for one feature vector."""
    return [
        scale
        * sum(a * b for a, b in zip(x, weight, strict=True))
        / math.sqrt(sum(a * a for a in x) * sum(b * b for b in weight))
        for weight in weights
    ]


def expert_logits(rows, weights, scale):
    """(experts, batch, classes) from feature vectors that hold the experts' parts side by side."""
    width = len(rows[0]) // len(weights)
    return np.array(
        [
            [cosine_logits(row[e * width : (e + 1) * width], weights[e], scale) for row in rows]
            for e in range(len(weights))
        ]
    )


def softmax(logits, temperatures):
    scaled = [z / t for z, t in zip(logits, temperatures, strict=True)]
    top = max(scaled)
    total = sum(math.exp(s - top) for s in scaled)
    return [math.exp(s - top) / total for s in scaled]


def divergence(p, q):
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def cross_entropy(logits, labels):
    """Mean over a batch."""
    ones = [1.0] * len(logits[0])
    parts = [
        -math.log(softmax(row, ones)[label]) for row, label in zip(logits, labels, strict=True)
    ]
    return sum(parts) / len(parts)


def mean_over_experts(logits_ebc, row):
    n_experts, _, n_classes = logits_ebc.shape
    return [
        sum(logits_ebc[e][row][c] for e in range(n_experts)) / n_experts for c in range(n_classes)
    ]


def ride_loss(logits_ebc, labels, temperatures, diversity, *, pairwise=False, given_mean=None):
    """Sum over experts; ``given_mean`` (batch, classes) stands in for the mean of the logits."""
    n_experts, n_images, n_classes = logits_ebc.shape
    factor = (sum(temperatures) / n_classes) ** 2
    total = 0.0
    for e in range(n_experts):
        total += cross_entropy(logits_ebc[e], labels)
        for row in range(n_images):
            own = softmax(logits_ebc[e][row], temperatures)
            if pairwise:
                for other in range(n_experts):
                    if other != e:
                        its = softmax(logits_ebc[other][row], temperatures)
                        total -= diversity / (n_experts - 1) * divergence(own, its) / n_images
            else:
                mean = mean_over_experts(logits_ebc, row) if given_mean is None else given_mean[row]
                away = divergence(softmax(mean, temperatures), own)
                total -= diversity * factor * away / n_images
    return total


def slopes(function, at, step=1e-5):
    """Central differences of a function of an array."""
    result = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        result[place] = (function(up) - function(down)) / (2 * step)
    return result


def running_means(logits_ebc):
    """(batch, experts, classes): mean logits of the experts up to each."""
    n_experts, n_images, _ = logits_ebc.shape
    return np.array(
        [
            [mean_over_experts(logits_ebc[: e + 1], row) for e in range(n_experts)]
            for row in range(n_images)
        ]
    )


def gate(running, x, summary, weight, bias):
    """Logit of one gate: ``running`` mean logits, ``x`` the features of its expert."""
    units = len(summary)
    n_top = len(weight) - units
    highest = sorted(running, reverse=True)[:n_top]
    length = math.sqrt(sum(a * a for a in x))
    hidden = [max(0.0, sum(a * b / length for a, b in zip(row, x, strict=True))) for row in summary]
    return bias + sum(w * a for w, a in zip(weight, highest + hidden, strict=True))


def gate_targets(running, labels):
    """1 where the experts so far are wrong together and a later mean is right."""
    n_images, n_experts, _ = running.shape
    targets = []
    for row in range(n_images):
        right = [int(running[row][e].argmax()) == labels[row] for e in range(n_experts)]
        targets.append([float(not right[e] and any(right[e + 1 :])) for e in range(n_experts - 1)])
    return targets


def routing_loss(gates, running, labels, positive_weight):
    """Binary cross-entropy, averaged over images and then over gates."""
    targets = gate_targets(running, labels)
    n_images, n_gates = gates.shape
    total = 0.0
    for e in range(n_gates):
        for row in range(n_images):
            probability = 1 / (1 + math.exp(-gates[row][e]))
            if targets[row][e]:
                total -= positive_weight * math.log(probability) / n_images
            else:
                total -= math.log(1 - probability) / n_images
    return total / n_gates


def routed_logits(gates, logits_ebc):
    """Logits and experts used: ask the next expert while the gate after this one says so."""
    logits, used = [], []
    for row in range(logits_ebc.shape[1]):
        n_asked = 1
        while n_asked < len(logits_ebc) and 1 / (1 + math.exp(-gates[row][n_asked - 1])) > 0.5:
            n_asked += 1
        used.append(n_asked)
        logits.append(mean_over_experts(logits_ebc[:n_asked], row))
    return np.array(logits), used
