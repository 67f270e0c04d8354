import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protail.losses import LOSSES, LogitAdjustedLoss, check_plain_cross_entropy, make_loss

COUNTS = np.array([500, 30, 5])
LOGITS = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


def test_cross_entropy_is_torchs():
    expected = cross_entropy(LOGITS, LABELS, label_smoothing=0.1)
    assert torch.equal(
        make_loss("cross-entropy", COUNTS, label_smoothing=0.1)(LOGITS, LABELS), expected
    )


def test_tau_reaches_the_loss():
    loss = make_loss("logit-adjusted", COUNTS, tau=0.5)
    assert isinstance(loss, LogitAdjustedLoss)
    expected = cross_entropy(LOGITS + 0.5 * torch.tensor(COUNTS).log(), LABELS)
    torch.testing.assert_close(loss(LOGITS, LABELS), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("logit-adjusted", {"label_smoothing": 0.1}, "takes no option 'label_smoothing'.*'tau'"),
        ("logit-adjusted", {"tau": -1.0}, "tau=-1.0"),
        ("cross-entropy", {"tau": 1.0}, "takes no option 'tau'.*'label_smoothing'"),
        ("cross-entropy", {"label_smoothing": 1.5}, "label_smoothing=1.5"),
        ("crossentropy", {}, "Did you mean 'cross-entropy'"),
    ],
)
def test_wrong_use_is_told(name, options, words):
    with pytest.raises(ValueError, match=words):
        make_loss(name, COUNTS, **options)


def test_options_are_named():
    assert list(LOSSES.options("logit-adjusted")) == ["tau"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "cross-entropy",
            {"label_smoothing": 1.0},
            "label_smoothing=1.0; expected a number",
        ),
        ("cross-entropy", {"reweight_from": -1}, "reweight_from=-1; expected a whole number >= 0"),
        ("class-balanced", {"beta": 1.0}, "beta=1.0; expected a number >= 0 and < 1"),
        ("ldam", {"scale": 0.0}, "scale=0.0; expected a finite number > 0"),
    ],
)
def test_options_are_checked_without_making_a_loss(name, options, words):
    with pytest.raises(ValueError, match=words):
        LOSSES.check_values(name, options)
    LOSSES.check_values(name, {})


class Own(nn.CrossEntropyLoss):
    pass


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(torch.ones(2)),
        nn.CrossEntropyLoss(reduction="sum"),
        make_loss("cross-entropy", [3, 1], reweight_from=2),
        make_loss("focal", [3, 1]),
        Own(),
    ],
)
def test_any_other_loss_is_refused_with_the_reason(loss):
    with pytest.raises(ValueError, match=r"loss=.*; it has one, and expected the plain cross-ent"):
        check_plain_cross_entropy(loss, "it has one")


def test_that_of_a_recipe_without_options_is_taken():
    check_plain_cross_entropy(make_loss("cross-entropy", [3, 1]), "it has one")
