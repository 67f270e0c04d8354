import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from protail.losses import LogitAdjustedLoss
from protail.losses.registry import LOSSES, loss_names, make_loss

COUNTS = np.array([500, 30, 5])
LOGITS = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


@pytest.mark.parametrize("name", [name for name in loss_names() if name != "routing"])
def test_every_loss_gives_a_number_and_gradients(name):
    logits = LOGITS.clone().requires_grad_()
    loss = make_loss(name, COUNTS)(logits, LABELS)
    assert loss.shape == ()
    loss.backward()
    assert torch.isfinite(logits.grad).all()


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
