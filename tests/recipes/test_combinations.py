"""What does not go together is refused when a recipe is read, with the reason."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from protail.recipes import PARTS, RecipeError, load_recipe
from protail.training.settings import PartnerSource
from protail.training.stage1 import build_method
from reference.small_recipes import small_distillation

TWO_MIXTURES = {
    "representation.method": "mixture-consistency",
    "representation.second_view": ["crop", "flip"],
}
WRONG = [
    (
        "paco",
        {"representation.second_view": []},
        "second_view = []; expected what makes the second view of method 'paco'",
    ),
    (
        "paco",
        {"representation.mixup": 0.2},
        "mixup = 0.2; expected 0: method 'paco' cannot learn from mixtures",
    ),
    (
        "dro-lt",
        {"representation.cutmix": 1.0},
        "cutmix = 1.0; expected 0: method 'dro-lt' cannot learn from mixtures",
    ),
    (
        "wd",
        {"representation.second_view": ["simclr"]},
        "second_view = [\"simclr\"]; expected none: method 'standard' looks at one view",
    ),
    ("paco", {"representation.second_view": ["simcrl"]}, "simclr"),
    (
        "mixup",
        {"representation.method": "mixture-consistency"},
        "second_view = []; expected what makes the second view of method 'mixture-consistency'",
    ),
    (
        "ce",
        TWO_MIXTURES,
        "mixup = 0.0; expected mixup, cutmix or both above 0: method 'mixture-consistency' learns",
    ),
    (
        "mixup",
        {**TWO_MIXTURES, "representation.cutmix": 0.5},
        "cutmix = 0.5; expected 1.0, as mixup has: method 'mixture-consistency' mixes both",
    ),
    (
        "ce",
        {"representation.partners": "class-balanced"},
        'partners = "class-balanced"; expected "batch", or mixup, cutmix or both above 0: nothing',
    ),
    (
        "mixup",
        {"representation.partners": "class-balance"},
        "representation.partners='class-balance' is unknown; expected one of 'batch', 'instance', "
        "'class-balanced', 'square-root'. Did you mean 'class-balanced'?",
    ),
    (
        "mixup",
        {"representation.partners": "progressive"},
        "representation.partners='progressive' is unknown; expected one of 'batch', 'instance', ",
    ),
    ("mixup", {**TWO_MIXTURES, "representation.sam": 0.1}, 'expected 0: method = "mixture-cons'),
    ("mixup", {**TWO_MIXTURES, "representation.weight": -1.0}, "weight = -1.0; expected a finite"),
    (
        "mixup",
        {**TWO_MIXTURES, "representation.projection": 0},
        "projection = 0; expected a whole",
    ),
    (
        "ldam",
        {"representation.head": "linear"},
        "head = \"linear\"; expected 'cosine' or 'experts' with loss 'ldam'",
    ),
    (
        "ldam",
        {"representation.head": "prototype"},
        "expected 'cosine' or 'experts' with loss 'ldam'",
    ),
    (
        "pc",
        {"classifier.loss": "ldam"},
        "head = \"prototype\"; expected 'cosine' or 'experts' with loss 'ldam'",
    ),
    (
        "ldam",
        {"representation.head_options.scale": 16.0},
        "scale = 30.0; expected 16, the scale of head 'cosine'",
    ),
    ("ride", {"representation.head": "linear"}, "with loss 'ldam'"),
    ("ride", {"representation.method": "paco"}, "with method 'paco'"),
    (
        "paco",
        {"representation.loss": "focal"},
        "loss = \"focal\"; expected 'cross-entropy' with method 'paco'",
    ),
    (
        "ride-routed",
        {"classifier.loss": "cross-entropy"},
        "loss = \"cross-entropy\"; expected 'routing' with head 'routed-experts'",
    ),
    ("pc", {"classifier.loss": "routing"}, "expected 'routed-experts' with loss 'routing'"),
    (
        "ride-routed",
        {"classifier.experts": 2},
        "classifier.head_options.experts = 2; expected 3, as the head of the representation has",
    ),
    (
        "ride",
        {"representation.method_options.reweight_from": 100},
        "reweight_from = 100; expected 160, from which on the loss has its weights",
    ),
    (
        "lws",
        {"classifier.start": "new"},
        'start = "new"; expected "representation": head \'scaled\' is built on the one of stage 1',
    ),
    (
        "pc",
        {"classifier.start": "representation"},
        "expected \"new\": head 'prototype' cannot begin with the one of stage 1",
    ),
    (
        "tau-norm",
        {"classifier.epochs": 1},
        "epochs = 1; expected 0: head 'tau-normalized' learns nothing",
    ),
    ("ride", {"representation.sam": 0.1}, 'expected 0: method = "ride" takes one pass'),
    ("wd-max", {"classifier.max_norm": 1.0}, "one of max_norm and max_norm_part, not both"),
    (
        "pc",
        {"classifier.max_norm_part": 0.1},
        "expected \"none\": head 'prototype' has no rows of weights",
    ),
    (
        "dro-lt",
        {"pretraining.backbone": "resnet34-cifar"},
        "\"resnet34-cifar\"; expected 'resnet32', that of the representation",
    ),
    (
        "ldam/lws",
        {},
        "expected 'linear', which the classifier's head 'scaled' needs there",
    ),
    ("wd/ride-routed", {}, "representation.head = \"linear\"; expected 'experts'"),
    ("wd/ride-pc", {}, "representation.head = \"linear\"; expected 'experts'"),
    ("ride/wd-max", {}, "representation.head = \"experts\"; expected 'linear'"),
    ("ride-2-experts/ride-pc", {}, "classifier.head_options.experts = 3; expected 2"),
]


@pytest.mark.parametrize(("name", "changes", "words"), WRONG, ids=[f"{n} {c}" for n, c, _ in WRONG])
def test_it_is_refused_with_the_reason(name, changes, words):
    with pytest.raises(RecipeError, match=re.escape(words)) as told:
        load_recipe(name).with_overrides(changes)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("mixing", [{"mixup": 0.5}, {"cutmix": 0.5}, {"mixup": 1, "cutmix": 1.0}])
@pytest.mark.parametrize("parts", [{}, {"head": "cosine"}, {"loss": "logit-adjusted"}])
def test_two_mixtures_take_one_kind_or_both_alike_and_any_head_and_loss(mixing, parts):
    changes = {f"representation.{key}": value for key, value in (mixing | parts).items()}
    recipe = load_recipe("ce").with_overrides(TWO_MIXTURES | changes)
    assert recipe.representation.method_options == {"weight": 4.0, "projection": 256}


def test_every_sampler_that_needs_no_options_can_draw_partners():
    samplers = PARTS["sampler"]
    free = [
        name
        for name in samplers.names()
        if not any(option.is_required for option in samplers.options(name).values())
    ]
    assert sorted(get_args(PartnerSource)) == sorted(["batch", *free])
    for name in free:
        for changes in ({}, TWO_MIXTURES):
            recipe = load_recipe("mixup").with_overrides(
                {**changes, "representation.partners": name}
            )
            assert recipe.representation.partners == name


@pytest.mark.parametrize("first", ["ce-resnet32", "ce", "dro-lt", "wd"])
@pytest.mark.parametrize("second", ["crt", "wd-max", "pc-cdt-la"])
def test_the_combinations_of_table_3_are_recipes(first, second):
    recipe = load_recipe(f"{first}/{second}")
    assert recipe.phases == load_recipe(first).phases
    assert recipe.classifier == load_recipe(second).classifier


MORE_WRONG = [
    (
        "ride",
        {"representation.backbone": "resnet32"},
        "backbone: head 'experts' is for 3 experts, and backbone 'resnet32' has none",
    ),
    ("wd", {"representation.head": "scaled"}, "a head that starts from scratch"),
    ("wd", {"representation.method": "dro-lt"}, "goes on from a backbone and a head"),
    ("dro-lt", {"pretraining.head": "cosine"}, "'linear', with which the representation goes on"),
    (
        "dro-lt",
        {"pretraining.bias": False},
        "head_options = {bias = false}; expected {bias = true}, those of the representation",
    ),
    (
        "dro-lt",
        {"representation.weights": "a.safetensors"},
        'representation.weights = "a.safetensors"; expected it in the pretraining',
    ),
    (
        "dro-lt",
        {"representation.label_smoothing": 0.1},
        "representation.loss_options.label_smoothing = 0.1; expected 0.0: method 'dro-lt' has a "
        "loss of its own",
    ),
    (
        "mixture-distillation",
        {"pretraining.epochs": 0},
        "epochs = 0; expected more: method 'mixture-distillation' needs what has been trained",
    ),
    (
        "mixture-distillation",
        {"pretraining.method": "mixture-distillation"},
        'pretraining.method = "mixture-distillation"; expected a method that starts from scratch',
    ),
    (
        "mixture-consistency",
        {"representation.method": "mixture-distillation"},
        "representation.method = 'mixture-distillation' learns from a backbone and a head that "
        "have been trained before, and there is no pretraining stage; expected one, as in recipe "
        "'mixture-distillation'.",
    ),
    (
        "mixture-consistency",
        {"representation.method": "mixture-distillation", "representation.taught": 2.0},
        "taught = 2.0; expected a number >= 0 and <= 1",
    ),
    ("wd-max", {"classifier.bias": False}, "head_options.bias = false; expected true, as the head"),
    ("ride", {"representation.epochs": 20}, "fewer than epochs, which is 20"),
]


@pytest.mark.parametrize(
    ("name", "changes", "words"), MORE_WRONG, ids=[f"{n} {c}" for n, c, _ in MORE_WRONG]
)
def test_what_would_fail_after_hours_is_refused_at_once(name, changes, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        load_recipe(name).with_overrides(changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"pretraining.head": "linear"},
            "'cosine', that of the representation, which learns from it",
        ),
        (
            {"pretraining.scale": 8.0},
            "head_options = {scale = 8.0}; expected {scale = 16.0}, those of the representation",
        ),
        (
            {"pretraining.backbone": "resnet32"},
            'pretraining.backbone = "resnet32"; expected',
        ),
        (
            {"representation.weights": "a.safetensors"},
            'representation.weights = "a.safetensors"; expected nothing: the representation starts',
        ),
    ],
)
def test_a_teacher_that_cannot_be_one_is_refused(changes, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        small_distillation().with_overrides(changes)


def test_experts_are_counted_in_the_same_words_where_a_method_is_built():
    recipe = load_recipe("ride-2-experts")
    with pytest.raises(RecipeError) as read:
        recipe.with_overrides({"representation.backbone": "resnet32"})
    with pytest.raises(ValueError, match="is for 2 experts, and backbone 'resnet32'") as built:
        build_method(replace(recipe.representation, backbone="resnet32"), np.array([2, 1]), 0)
    assert str(read.value).endswith(str(built.value))


def test_who_extends_a_representation_gets_what_it_goes_on_from(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('title = "Mine"\n[representation]\nextends = "dro-lt"\nepochs = 40\n')
    assert load_recipe(file).pretraining == load_recipe("dro-lt").pretraining
    assert load_recipe(file).representation.epochs == 40
