"""Distillation of mixtures against loops in float64, on its special cases, and trained."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protail.heads.cosine import CosineHead
from protail.heads.linear import LinearHead
from protail.losses.registry import make_loss
from protail.methods import ImageBatch, make_method
from reference.mixture_consistency_by_loop import cosine_logits, disagreement, mixed_loss
from reference.mixture_distillation_by_loop import taught_loss
from reference.paco_by_loop import arrays, linear
from reference.small_methods import COUNTS, default_dtype

N_FEATURES = 5
LOSSES = {
    "cross-entropy": [0.0] * len(COUNTS),
    "logit-adjusted": [0.25 * math.log(n) for n in COUNTS],
}


class Flat(nn.Linear):
    """A backbone of one layer, for images of three numbers."""

    n_features = N_FEATURES

    def forward(self, images):
        return super().forward(images.flatten(1))


def made(
    name="mixture-distillation",
    seed=0,
    dtype=torch.float64,
    head=LinearHead,
    loss="cross-entropy",
    **options,
):
    """Make a method whose teacher, where it has one, is another network."""
    torch.manual_seed(seed)
    with default_dtype(dtype):
        parts = Flat(3, N_FEATURES), head(len(COUNTS), N_FEATURES), make_loss(loss, COUNTS)
        method = make_method(name, *parts, COUNTS, **{"projection": 4, **options})
        if name == "mixture-distillation":
            for parameter in method.teacher.parameters():
                parameter.normal_()
    return method


def batch_of(labels, shares=(0.3, 0.45), seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, len(labels), 3, 1, 1, generator=generator, dtype=dtype)
    share, second_share = (torch.tensor(each, dtype=dtype) for each in shares)
    classes = torch.tensor(labels), torch.tensor(labels[::-1])
    return ImageBatch(views[0], *classes, share, views[1], second_share)


def halves(rows):
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def logits_by_loop(network, features):
    if isinstance(network.head, LinearHead):
        return linear(features, *arrays(network.head.parameters()))
    return cosine_logits(features, *arrays([network.head.weight]), network.head.scale)


def parts_by_loop(method, batch, loss="cross-entropy"):
    """Compute the three parts of the loss; give the aims of the disagreement too."""
    images = np.concatenate(arrays([batch.images.flatten(1), batch.second.flatten(1)]))
    features, others = (
        linear(images, *arrays(network.backbone.parameters()))
        for network in (method, method.teacher)
    )
    logits, aims = logits_by_loop(method, features), logits_by_loop(method.teacher, others)
    classes = batch.labels.tolist(), batch.other.tolist()
    labelled = [
        mixed_loss(view, *classes, share.item(), LOSSES[loss])
        for view, share in zip(halves(logits), (batch.share, batch.second_share), strict=True)
    ]
    taught = taught_loss(logits, aims, COUNTS, tau=method.tau, temperature=method.temperature)
    projected = linear(features, *arrays(method.projector.parameters()))
    predicted = linear(projected, *arrays(method.predictor.parameters()))
    return sum(labelled) / 2, taught, halves(projected), halves(predicted)


def sum_of_parts(method, labelled, taught, *compared):
    by_labels, by_teacher = (1 - method.taught) * labelled, method.taught * taught
    return by_labels + by_teacher + method.weight * disagreement(*compared)


labels_of = st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=5)
shares_of = st.tuples(st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=40, deadline=None)
@given(
    labels_of,
    shares_of,
    st.fixed_dictionaries(
        {
            "weight": st.floats(0, 20),
            "taught": st.floats(0, 1),
            "tau": st.floats(0, 2),
            "temperature": st.floats(0.2, 10),
        }
    ),
    st.sampled_from([LinearHead, CosineHead]),
    st.sampled_from(sorted(LOSSES)),
    st.integers(0, 1000),
)
def test_it_is_the_loop(labels, shares, options, head, loss, seed):
    method = made(seed=seed, head=head, loss=loss, **options)
    batch = batch_of(labels, shares, seed)
    expected = sum_of_parts(method, *parts_by_loop(method, batch, loss))
    assert method(batch).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("tau", "temperature"), [(0.0, 1.0), (1.0, 1.0), (0.5, 3.0)])
def test_gradients_are_slopes_of_the_loop(tau, temperature):
    method = made(weight=3.0, taught=0.6, tau=tau, temperature=temperature)
    batch = batch_of([0, 1, 0, 3])
    method(batch).backward()
    _, _, aims, _ = parts_by_loop(method, batch)
    learning = [each for each in method.parameters() if each.requires_grad]
    for place_of, parameter in enumerate(learning):
        where = tuple(0 for _ in parameter.shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = copy.deepcopy(method)
            with torch.no_grad():
                [each for each in moved.parameters() if each.requires_grad][place_of][where] += step
            labelled, taught, _, predicted = parts_by_loop(moved, batch)
            ends.append(sum_of_parts(method, labelled, taught, aims, predicted))
        slope = (ends[0] - ends[1]) / 2e-5
        assert parameter.grad[where].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@settings(max_examples=15, deadline=None)
@given(labels_of, shares_of, st.sampled_from(sorted(LOSSES)), st.integers(0, 1000))
def test_without_a_share_of_the_teacher_it_is_consistency(labels, shares, loss, seed):
    method = made(seed=seed, loss=loss, taught=0.0)
    plain = made("mixture-consistency", seed, loss=loss)
    batch = batch_of(labels, shares)
    torch.testing.assert_close(method(batch), plain(batch), rtol=0, atol=0)
