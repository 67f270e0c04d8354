"""Stage 2 that begins with the head of stage 1, and what keeps its weights short."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protail.backbones import make_backbone
from protail.heads.linear import LinearHead
from protail.training.classifier import learn_heads
from protail.training.frozen import FrozenFeatures
from protail.training.settings import ClassifierSettings
from reference.small_images import TINY, small_images

CPU = torch.device("cpu")
SETTINGS = ClassifierSettings(
    head="linear",
    start="representation",
    centroids=None,
    loss="cross-entropy",
    epochs=2,
    lr=0.05,
    batch_size=16,
    augment=("flip",),
    precision="float32",
)


@pytest.fixture(scope="module")
def frozen():
    torch.manual_seed(0)
    data = small_images(counts=(24, 12, 8, 6), n_test=4)
    return FrozenFeatures(make_backbone(TINY), data, CPU)


@pytest.fixture(scope="module")
def first(frozen):
    torch.manual_seed(1)
    return LinearHead(4, frozen.n_features)


def learn(frozen, first, **changes):
    settings = replace(SETTINGS, **changes)
    return learn_heads({"": settings}, frozen, seed=0, first_head=first)[""]


def test_without_a_step_it_is_the_head_of_stage_1(frozen, first):
    head = learn(frozen, first, epochs=0)
    assert torch.equal(head.weight, first.weight)
    assert torch.equal(head.bias, first.bias)


def test_the_head_of_stage_1_stays_as_it_was(frozen, first):
    before = first.weight.clone()
    head = learn(frozen, first)
    assert torch.equal(first.weight, before)
    assert not torch.equal(head.weight, before)


def test_a_new_head_has_nothing_of_it(frozen, first):
    head = learn(frozen, first, start="new", epochs=0)
    assert not torch.equal(head.weight, first.weight)


def test_without_a_head_to_begin_with_it_says_so(frozen):
    with pytest.raises(ValueError, match="'linear' begins with the one that stage 1 has learned"):
        learn(frozen, None)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_rows_stay_within_a_part_of_what_they_were(frozen, first, every):
    lengths = first.weight.norm(dim=1)
    limit = lengths.min() + 0.1 * (lengths.max() - lengths.min())
    free = learn(frozen, first)
    head = learn(frozen, first, max_norm_part=0.1, max_norm_every=every)
    assert (free.weight.norm(dim=1) > 1.001 * limit).any()
    assert (head.weight.norm(dim=1) <= limit * (1 + 1e-6)).all()


def test_an_endless_part_constrains_nothing(frozen, first):
    free, endless = learn(frozen, first), learn(frozen, first, max_norm_part=float("inf"))
    assert torch.equal(free.weight, endless.weight)


def test_once_an_epoch_is_another_thing_than_every_step(frozen, first):
    heads = [
        learn(frozen, first, max_norm_part=0.1, max_norm_every=every) for every in ("step", "epoch")
    ]
    assert not torch.equal(heads[0].weight, heads[1].weight)


def test_the_rate_rises_from_0_in_the_first_epochs(frozen, first):
    """One step of a whole epoch's rise: its rate is 0."""
    risen = learn(frozen, first, warm_up_epochs=1.0, max_steps=1, weight_decay=0.0)
    np.testing.assert_array_equal(risen.weight.detach(), first.weight.detach())
    assert not torch.equal(learn(frozen, first, max_steps=1).weight, first.weight)


def test_a_learned_head_is_in_eval_mode(frozen, first):
    assert not learn(frozen, first).training
