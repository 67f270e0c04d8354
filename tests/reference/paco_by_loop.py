"""Parametric contrastive learning as loops in float64: slow and obvious."""

import math

import numpy as np


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def scores(i, logits, queries, keys, queue_keys, prior, temperature):
    """Scores of every class and of every sample for image i; its own embedding is None."""
    classes = [z + math.log(fraction) for z, fraction in zip(logits[i], prior, strict=True)]
    others = [None if j == i else dot(queries[i], q) / temperature for j, q in enumerate(queries)]
    kept = [dot(queries[i], k) / temperature for k in [*keys, *queue_keys]]
    return classes, others + kept


def paco_loss(
    logits,
    queries,
    keys,
    labels,
    queue_keys,
    queue_labels,
    prior,
    *,
    alpha,
    beta,
    gamma,
    temperature,
):
    total = 0.0
    for i, label in enumerate(labels):
        u, v = scores(i, logits, queries, keys, queue_keys, prior, temperature)
        bottom = sum(math.exp(score) for score in u)
        bottom += gamma * sum(math.exp(score) for score in v if score is not None)
        log_d = math.log(bottom)
        top, n_positive = beta * (u[label] - log_d), 0
        for score, other in zip(v, [*labels, *labels, *queue_labels], strict=True):
            if score is not None and other == label:
                top += alpha * (score - log_d)
                n_positive += 1
        total -= top / (beta + alpha * n_positive)
    return total / len(labels)


def linear(x, weight, bias):
    return np.array([[dot(row, w) + b for w, b in zip(weight, bias, strict=True)] for row in x])


def batch_norm(x, weight, bias, eps=1e-5):
    result = np.empty_like(x)
    for d in range(x.shape[1]):
        mean = sum(x[:, d]) / len(x)
        variance = sum((value - mean) ** 2 for value in x[:, d]) / len(x)
        for b in range(len(x)):
            result[b, d] = (x[b, d] - mean) / math.sqrt(variance + eps) * weight[d] + bias[d]
    return result


def embeddings(features, projector):
    """Embed by the projector's six arrays: two of each linear layer and of the batch norm."""
    hidden = batch_norm(linear(features, *projector[:2]), *projector[2:4])
    projected = linear(np.maximum(hidden, 0), *projector[4:])
    return np.array([row / math.sqrt(dot(row, row)) for row in projected])


class PaCoByLoop:
    """Follow a method whose backbone is one linear layer, step by step."""

    def __init__(self, method):
        self.method = method
        self.key_parameters = self.query_parameters()
        (keys,) = arrays([method.queue_keys])
        self.queue = list(zip(keys, method.queue_labels.tolist(), strict=True))
        self.place = 0

    def query_parameters(self):
        return arrays([*self.method.backbone.parameters(), *self.method.projector.parameters()])

    def step(self, images, second, labels, prior):
        """Give the loss before the optimiser moves, and let keys and queue follow."""
        method, query = self.method, self.query_parameters()
        for own, followed in zip(self.key_parameters, query, strict=True):
            own[:] = method.key_momentum * own + (1 - method.key_momentum) * followed
        features = linear(images, *query[:2])
        keys = embeddings(linear(second, *self.key_parameters[:2]), self.key_parameters[2:])
        loss = paco_loss(
            linear(features, *arrays(method.head.parameters())),
            embeddings(features, query[2:]),
            keys,
            labels,
            *zip(*self.queue, strict=True),
            prior,
            alpha=method.alpha,
            beta=method.beta,
            gamma=method.gamma,
            temperature=method.temperature,
        )
        for key, label in zip(keys, labels, strict=True):
            self.queue[self.place] = (key, label)
            self.place = (self.place + 1) % len(self.queue)
        return loss


def arrays(tensors):
    return [tensor.detach().double().numpy().copy() for tensor in tensors]
