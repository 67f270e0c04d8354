import pytest
import torch

from protail.models.heads import CosineHead, LinearHead
from reference.linear_by_loop import stage_1_head

COUNTS = [500, 30, 5, 1]


def test_building_copies_weight_and_bias_and_shares_nothing():
    first, head = stage_1_head(), LinearHead(4, 6).double()
    assert head.build_on(first, COUNTS) is head
    assert torch.equal(head.weight, first.weight)
    assert torch.equal(head.bias, first.bias)
    x = torch.randn(3, 6).double()
    before = first(x)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    assert torch.equal(first(x), before)


def test_what_is_built_still_learns():
    head = LinearHead(4, 6).double().build_on(stage_1_head(), COUNTS)
    head(torch.randn(3, 6).double()).square().sum().backward()
    assert all(p.is_leaf and p.grad.abs().max() > 0 for p in head.parameters())


def test_a_bias_that_is_not_there_is_zero():
    head = LinearHead(4, 6).build_on(stage_1_head(bias=False), COUNTS)
    assert torch.equal(head.bias, torch.zeros(4))
    without = LinearHead(4, 6, bias=False).build_on(stage_1_head(bias=False), COUNTS)
    torch.testing.assert_close(without.weight.double(), stage_1_head().weight)


def test_a_bias_is_not_lost_silently():
    with pytest.raises(ValueError, match=r"has a bias and this head has none.*bias=True"):
        LinearHead(4, 6, bias=False).build_on(stage_1_head(), COUNTS)


@pytest.mark.parametrize(
    ("first", "counts", "error", "words"),
    [
        (CosineHead(4, 6), COUNTS, TypeError, "head is a CosineHead; expected a linear head"),
        (LinearHead(5, 6), COUNTS, ValueError, "5 classes and 6 features; expected 4 and 6"),
        (LinearHead(4, 7), COUNTS, ValueError, "4 classes and 7 features; expected 4 and 6"),
        (LinearHead(4, 6), [3, 2, 1], ValueError, "counts has 3 classes; expected 4"),
    ],
)
def test_what_does_not_fit_is_refused(first, counts, error, words):
    head = LinearHead(4, 6)
    before = head.weight.clone()
    with pytest.raises(error, match=words):
        head.build_on(first, counts)
    assert torch.equal(head.weight, before)
