"""Every recipe that comes with the package."""

import json

import pytest
import torch
from torch import nn

from protail.recipes import Recipe, load_recipe, recipe_hash, recipe_names

ASKED_FOR = {
    "author",
    "balanced-softmax",
    "ce",
    "ce-resnet32",
    "class-balanced",
    "crt",
    "cutmix",
    "disalign",
    "dro-lt",
    "focal",
    "l2-norm",
    "ldam",
    "ldam-drw",
    "logit-adjusted",
    "logit-adjusted-post-hoc",
    "los",
    "lws",
    "mixup",
    "ncm",
    "ncm-augmented",
    "paco",
    "paco-pc",
    "pc",
    "pc-cdt",
    "pc-cdt-la",
    "pc-class-t-la",
    "pc-cosine-la",
    "pc-dense-t-la",
    "pc-la",
    "pc-sqeuclidean",
    "ride",
    "ride-pc",
    "ride-routed",
    "tau-norm",
    "wd",
    "wd-max",
    "wd-resnet32",
}


def without_name(recipe):
    return recipe.resolved() | {"name": None}


def test_what_was_asked_for_is_there():
    assert set(recipe_names()) >= ASKED_FOR


@pytest.mark.parametrize("name", recipe_names())
def test_resolves_and_comes_back(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.title
    assert recipe.reference
    resolved = recipe.resolved()
    through_json = json.loads(json.dumps(resolved, allow_nan=False))
    assert through_json == resolved
    assert Recipe.from_resolved(through_json) == recipe
    file = tmp_path / "again.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    assert without_name(load_recipe(file)) == without_name(recipe)


def test_reading_makes_no_module_and_draws_no_random_numbers(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("made")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    before = torch.get_rng_state()
    for name in recipe_names():
        load_recipe(name)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_two_compute_the_same_but_for_what_has_two_names():
    same = {}
    for name in recipe_names():
        same.setdefault(recipe_hash(load_recipe(name).resolved()), []).append(name)
    twins = {tuple(names) for names in same.values() if len(names) > 1}
    assert twins == {("balanced-softmax", "logit-adjusted")}


ON_WD = {name for name in recipe_names() if name.startswith(("pc", "ncm"))} - {"pc-strong"}


@pytest.mark.parametrize("name", [*sorted(ON_WD), "author", "los", "tau-norm", "wd-max"])
def test_stage_1_is_that_of_wd(name):
    assert load_recipe(name).representation == load_recipe("wd").representation


def test_the_papers_numbers():
    full = load_recipe("pc-cdt-la")
    first, second = full.representation, full.classifier
    assert (first.epochs, first.batch_size, first.lr, first.momentum) == (200, 64, 0.01, 0.9)
    assert (first.weight_decay, first.schedule, first.augment) == (5e-3, "cosine", ("crop", "flip"))
    assert (second.epochs, second.batch_size, second.lr, second.momentum) == (1, 64, 4.0, 0.9)
    assert second.temperature_lr == 0.005
    assert second.loss_options == {"tau": 0.25}
    assert second.head_options == {
        "distance": "euclidean",
        "temperature": "channel",
        "temperature_form": "exp",
        "initial_temperature": 1.0,
        "normalize": None,
    }
    assert second.batch_norm == "eval"
    assert (second.sampler, second.sampler_options) == ("class-balanced", {"run": 4})
    assert second.augment == ("crop", "flip", "autoaugment", "cutout")


@pytest.mark.parametrize(
    ("name", "base", "changes"),
    [
        ("ce", "wd", {"representation.weight_decay": 5e-4}),
        ("ncm", "pc", {"classifier.epochs": 0, "classifier.centroids": "clean"}),
        ("ncm-augmented", "pc", {"classifier.epochs": 0}),
        ("pc-la", "pc", {"classifier.tau": 0.25}),
        ("pc-cdt", "pc", {"classifier.temperature": "channel"}),
        ("pc-class-t-la", "pc-la", {"classifier.temperature": "class"}),
        ("pc-dense-t-la", "pc-la", {"classifier.temperature": "dense"}),
        ("pc-cosine-la", "pc-la", {"classifier.distance": "cosine"}),
        ("pc-sqeuclidean", "pc", {"classifier.distance": "sqeuclidean"}),
        (
            "author",
            "pc-cdt-la",
            {
                "classifier.tau": 1 / 3.8,
                "classifier.lr": 4.2,
                "classifier.temperature_form": "square",
                "classifier.temperature_weight_decay": 2e-4,
            },
        ),
    ],
)
def test_a_variant_differs_only_in_what_it_is_named_for(name, base, changes):
    changed = load_recipe(base).with_overrides(changes)
    assert recipe_hash(changed.resolved()) == recipe_hash(load_recipe(name).resolved())
