import pytest
import torch
from torch import nn

from protail.losses._plain import check_plain_cross_entropy
from protail.losses.registry import make_loss


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
