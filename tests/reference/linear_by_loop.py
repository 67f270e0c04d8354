"""Linear heads of stage 1, and their logits as loops over rows, classes and channels."""

import numpy as np
import torch
from hypothesis import strategies as st

from protail.models.heads import LinearHead


def linear_logits(features, weight, bias):
    """Products of rows and weights plus bias, from nested lists, as an array of float64."""
    found = np.zeros((len(features), len(weight)))
    for b, c in np.ndindex(found.shape):
        found[b, c] = bias[c] + sum(x * w for x, w in zip(features[b], weight[c], strict=True))
    return found


def stage_1_head(n_classes=4, n_features=6, *, bias=True, seed=0):
    """Make a linear head in float64 whose classes have weights of differing lengths."""
    rng = np.random.default_rng(seed)
    head = LinearHead(n_classes, n_features, bias=bias).double().requires_grad_(False)
    lengths = rng.uniform(0.2, 3, size=(n_classes, 1))
    head.weight.copy_(torch.from_numpy(lengths * rng.normal(size=(n_classes, n_features))))
    if bias:
        head.bias.copy_(torch.from_numpy(rng.normal(size=n_classes)))
    return head


@st.composite
def stage_1_problems(draw):
    """Draw a linear head, features in float64 and class counts."""
    n_classes, n_features = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    head = stage_1_head(n_classes, n_features, bias=draw(st.booleans()), seed=seed)
    features = torch.from_numpy(rng.normal(size=(draw(st.integers(1, 5)), n_features)))
    return head, features, rng.integers(1, 600, size=n_classes).tolist()


def lists_of(head):
    """Give weight and bias of a linear head as nested lists; no bias as zeros."""
    bias = [0.0] * head.n_classes if head.bias is None else head.bias.tolist()
    return head.weight.tolist(), bias
