"""Label over-smoothing: cross-entropy with nearly all of each label spread over all classes."""

import math

import pytest
import torch

from protail.losses import make_loss

N_CLASSES, SMOOTHING = 100, 0.98


@pytest.fixture
def loss():
    return make_loss("cross-entropy", [5] * N_CLASSES, label_smoothing=SMOOTHING)


def slopes(loss, logits, label):
    logits = logits.clone().requires_grad_()
    loss(logits[None], torch.tensor([label])).backward()
    return logits.grad


def test_labels_are_spread(loss):
    # The slope by a logit is its softmax, here 1/100, less what the label says of its class.
    label = 1 / N_CLASSES - slopes(loss, torch.zeros(N_CLASSES).double(), 7)
    expected = torch.full((N_CLASSES,), 0.0098).double()
    expected[7] = 0.0298
    torch.testing.assert_close(label, expected)


def test_value_by_hand(loss):
    logits = torch.randn(N_CLASSES, generator=torch.Generator().manual_seed(0)).double()
    total = math.log(sum(math.exp(z) for z in logits.tolist()))
    expected = sum(
        (0.0298 if c == 7 else 0.0098) * (total - z) for c, z in enumerate(logits.tolist())
    )
    assert loss(logits[None], torch.tensor([7])).item() == pytest.approx(expected, rel=1e-12)


def test_the_best_gap_between_own_and_other_logits(loss):
    def of_gap(gap):
        logits = torch.zeros(N_CLASSES).double()
        logits[7] = gap
        return logits

    best = math.log(1 + N_CLASSES * (1 - SMOOTHING) / SMOOTHING)
    assert best == pytest.approx(1.112, abs=5e-4)
    assert slopes(loss, of_gap(best), 7).abs().max() < 1e-12
    values = [loss(of_gap(best + d)[None], torch.tensor([7])).item() for d in (-0.1, 0.0, 0.1)]
    assert min(values) == values[1]


def test_none_spread_is_cross_entropy():
    logits, target = torch.randn(6, 3), torch.arange(6) % 3
    loss = make_loss("cross-entropy", [3, 2, 1], label_smoothing=0.0)
    assert torch.equal(loss(logits, target), torch.nn.functional.cross_entropy(logits, target))
