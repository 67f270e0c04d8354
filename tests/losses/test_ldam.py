import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail.data.images import long_tailed_counts
from protail.losses import LOSSES, LDAMLoss, class_margins
from protail.models.heads import CosineHead
from reference import losses_by_loop as naive
from reference.losses_by_loop import assert_equals_loop, batches, dtypes


@settings(max_examples=60)
@given(
    batches(),
    dtypes,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([1.0, 30.0]),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([0, 2, 3, 4]),
)
def test_equals_a_loop(batch, dtype, max_margin, scale, reweight_from, epoch):
    logits, target, counts = batch
    loss = LDAMLoss(
        counts, max_margin=max_margin, scale=scale, reweight_from=reweight_from, beta=0.99
    )
    loss.on_epoch(epoch)
    np.testing.assert_allclose(loss.margins, naive.margins(counts, max_margin), rtol=1e-6)
    is_weighted = reweight_from is not None and epoch >= reweight_from
    expected = naive.effective_number_weights(counts, 0.99) if is_weighted else [1.0] * len(counts)
    np.testing.assert_allclose(loss.weights, expected, rtol=1e-6)
    margins, weights = loss.margins.tolist(), loss.weights.tolist()

    def loop(rows, labels):
        return naive.ldam(rows, labels, weights, margins, scale)

    assert_equals_loop(loss, loop, logits, target, dtype)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_without_margins_it_is_the_cross_entropy_of_scaled_cosines(scale):
    head, features = CosineHead(4, 6, scale=scale), torch.randn(9, 6)
    target = torch.arange(9) % 4
    cosines = torch.cosine_similarity(features[:, None], head.weight[None], dim=2)
    loss = LDAMLoss([9, 4, 2, 1], max_margin=0, scale=scale)
    torch.testing.assert_close(loss(head(features), target), cross_entropy(scale * cosines, target))


def test_margins_stand_in_cosine():
    head, features = CosineHead(3, 6, scale=30.0).double(), torch.randn(7, 6).double()
    target = torch.arange(7) % 3
    cosines = torch.cosine_similarity(features[:, None], head.weight[None], dim=2)
    margins = torch.tensor([0.25, 0.125, 0.5]).double()
    lowered = 30 * (cosines - margins * torch.nn.functional.one_hot(target, 3))
    loss = LDAMLoss([16, 256, 1])
    torch.testing.assert_close(loss(head(features), target), cross_entropy(lowered, target))


def test_lengths_of_features_and_weights_change_nothing():
    head, features = CosineHead(3, 6, scale=30.0).double(), torch.randn(7, 6).double()
    target, loss = torch.arange(7) % 3, LDAMLoss([50, 9, 1])
    before = loss(head(features), target)
    head.weight.data *= torch.tensor([[0.1], [1.0], [20.0]])
    torch.testing.assert_close(loss(head(3 * features), target), before)


def test_margins_of_long_tailed_cifar_100():
    margins = LDAMLoss(long_tailed_counts(500, 100, 100)).margins
    assert margins[0].item() == pytest.approx(0.1581, abs=5e-5)
    assert margins[-1].item() == 0.5
    assert (margins.diff() >= 0).all()


def test_equal_counts_have_equal_margins():
    np.testing.assert_array_equal(class_margins([37] * 5), np.full(5, 0.5))


def test_weights_are_deferred_in_place():
    loss = LDAMLoss([500, 5], reweight_from=160)
    place = loss.weights.data_ptr()
    seen = {}
    for epoch in (0, 159, 160, 199, 3):
        loss.on_epoch(epoch)
        seen[epoch] = (loss.weights[1] / loss.weights[0]).item()
        assert loss.weights.data_ptr() == place  # a captured step looks there
    assert [seen[epoch] for epoch in (0, 159, 3)] == [1.0] * 3
    expected = (1 - 0.9999**500) / (1 - 0.9999**5)
    assert [seen[160], seen[199]] == pytest.approx([expected] * 2, rel=1e-6)


def test_by_default_weights_never_come():
    loss = LDAMLoss([500, 5])
    loss.on_epoch(10_000)
    assert torch.equal(loss.weights, torch.ones(2))


def test_it_says_whose_logits_it_takes():
    assert LOSSES.needs("ldam") == {"heads": ("cosine", "experts")}
    assert {name: option.default for name, option in LOSSES.options("ldam").items()} == {
        "max_margin": 0.5,
        "scale": 30.0,
        "reweight_from": None,
        "beta": 0.9999,
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_margin": -0.1}, "max_margin=-0.1; expected a finite number >= 0"),
        ({"max_margin": math.nan}, "max_margin=nan"),
        ({"scale": 0.0}, "scale=0.0; expected a finite number > 0"),
        ({"reweight_from": -1}, "reweight_from=-1"),
        ({"beta": 1.0}, "beta=1.0"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        LDAMLoss([2, 1], **options)
