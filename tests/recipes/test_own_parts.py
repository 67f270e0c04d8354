"""Parts of anybody's: a recipe is checked by what they declare, and none of them is made for it."""

import re
from typing import Annotated

import pytest
from torch import nn

from protail.data import RowSampler, register_sampler
from protail.losses import register_loss
from protail.methods import Method, register_method
from protail.models.backbones import register_backbone
from protail.models.heads import register_head
from protail.options import Count, OneOf, Positive
from protail.recipes import RecipeError, load_recipe


@register_head("wants-64-for-tests", has_weight=True)
class Wants64(nn.Linear):
    def __init__(self, n_classes, n_features, *, groups: Count = 4):
        if n_features % 64:
            raise ValueError(f"n_features={n_features}; expected a multiple of 64.")
        super().__init__(n_features, n_classes)


@register_loss("wants-3-classes-for-tests")
class Wants3Classes(nn.CrossEntropyLoss):
    def __init__(
        self, counts, *, sharpness: Positive = 1.0, sums: Annotated[str, OneOf(("a", "b"))] = "a"
    ):
        if len(counts) < 3:
            raise ValueError(f"counts has {len(counts)} classes; expected 3 or more.")
        super().__init__()

    @staticmethod
    def check_options(sharpness, sums):
        if sums == "b" and sharpness == 1:
            raise ValueError("sharpness=1.0 with sums='b'; expected another.")


@register_sampler("wants-many-rows-for-tests")
class WantsManyRows(RowSampler):
    def __init__(self, labels, *, every: Count, **ranks):
        raise AssertionError("made")


@register_method("never-made-for-tests")
class NeverMade(Method):
    def __init__(self, *parts):
        raise AssertionError("made")


@register_backbone("never-made-for-tests", experts=3)
def never_made(in_channels):
    raise AssertionError("made")


@register_head("learns-nothing-for-tests", learns=False)
def learns_nothing(n_classes, n_features):
    raise AssertionError("made")


OWN = """
title = "Parts of my own"

[representation]
backbone = "resnet32"
method = "never-made-for-tests"
head = "wants-64-for-tests"
groups = 2
loss = "wants-3-classes-for-tests"
sampler = "wants-many-rows-for-tests"
every = 2
max_norm = 1.0

[classifier]
head = "wants-64-for-tests"
centroids = "none"
loss = "wants-3-classes-for-tests"
sharpness = 2
sums = "b"
sampler = "wants-many-rows-for-tests"
every = 2
max_norm_part = 0.1
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return load_recipe(path)


def test_parts_that_need_more_than_two_classes_and_few_features_are_fine(recipe):
    first, second = recipe.representation, recipe.classifier
    assert first.head_options == {"groups": 2}
    assert first.loss_options == {"sharpness": 1.0, "sums": "a"}
    assert second.loss_options == {"sharpness": 2.0, "sums": "b"}
    assert second.sampler_options == {"every": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classifier.groups": 0}, "classifier.groups = 0; expected a whole number >= 1"),
        ({"classifier.sharpness": 0}, "classifier.sharpness = 0.0; expected a finite number > 0"),
        ({"classifier.sums": "c"}, "classifier.sums='c' is unknown; expected one of 'a', 'b'"),
        ({"classifier.sharpness": 1}, "classifier.sharpness=1.0 with sums='b'; expected another"),
        ({"classifier.every": 1.5}, "classifier.every = 1.5; expected a whole number"),
        (
            {"classifier.head": "learns-nothing-for-tests", "classifier.max_norm_part": "none"},
            "classifier.epochs = 1; expected 0: head 'learns-nothing-for-tests' learns nothing",
        ),
        (
            {"classifier.head": "learns-nothing-for-tests", "classifier.epochs": 0},
            "max_norm_part = 0.1; expected \"none\": head 'learns-nothing-for-tests' has no rows",
        ),
    ],
)
def test_what_they_declare_is_kept(recipe, changes, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        recipe.with_overrides(changes)


def test_the_experts_of_a_backbone_are_those_it_declares():
    ride, backbone = load_recipe("ride"), {"representation.backbone": "never-made-for-tests"}
    assert ride.with_overrides(backbone).representation.backbone == "never-made-for-tests"
    with pytest.raises(RecipeError, match=r"is for 2 experts, and backbone 'never-.* has 3"):
        load_recipe("ride-2-experts").with_overrides(backbone)
