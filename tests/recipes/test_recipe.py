"""Overrides, combinations, hashes, files of one's own."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.recipes import Recipe, RecipeError, load_recipe, recipe_hash
from protail.training.settings import ClassifierSettings, RepresentationSettings

FULL = load_recipe("pc-cdt-la")
finite = st.floats(allow_nan=False, allow_infinity=False)
OVERRIDES = {
    "representation.epochs": st.integers(0, 10**6),
    "representation.batch_size": st.integers(1, 10**6),
    "representation.weight_decay": finite.filter(lambda x: x >= 0),
    "representation.momentum": st.floats(0, 1, exclude_max=True),
    "representation.ema": st.floats(0, 1, exclude_max=True),
    "representation.precision": st.sampled_from(["float32", "bfloat16"]),
    "representation.label_smoothing": st.floats(0, 1, exclude_max=True),
    "classifier.tau": st.floats(0, 100),
    "classifier.lr": st.floats(1e-6, 1e6) | st.integers(1, 100),
    "classifier.distance": st.sampled_from(["euclidean", "sqeuclidean", "cosine"]),
    "classifier.temperature": st.sampled_from(["none", "channel", "class", "dense"]),
    "classifier.normalize": st.just("none") | st.floats(1e-3, 1e3),
    "classifier.max_steps": st.just("none") | st.integers(1, 10**6),
    "classifier.run": st.integers(1, 100),
    "classifier.centroids": st.sampled_from(["clean", "augmented"]),
    "classifier.augment": st.lists(st.sampled_from(["crop", "flip", "cutout"]), unique=True),
}
some_overrides = st.fixed_dictionaries({}, optional=OVERRIDES)


def as_text(value):
    return json.dumps(value) if isinstance(value, list) else str(value)


@given(some_overrides)
@settings(max_examples=40)
def test_overrides_arrive_and_come_back(overrides):
    changed = FULL.with_overrides({key: as_text(value) for key, value in overrides.items()})
    assert changed == FULL.with_overrides(overrides)
    resolved = changed.resolved()
    for key, value in overrides.items():
        stage, last = key.split(".")
        table = resolved[stage]
        options = {
            k: v for part in table.values() if isinstance(part, dict) for k, v in part.items()
        }
        assert (table | options)[last] == (None if value == "none" else value)
    again = Recipe.from_resolved(json.loads(json.dumps(resolved)))
    assert again == changed
    assert recipe_hash(again.resolved()) == recipe_hash(resolved)
    assert load_recipe("pc-cdt-la") == FULL


@given(some_overrides)
@settings(max_examples=20)
def test_its_toml_says_the_same(tmp_path_factory, overrides):
    changed = FULL.with_overrides(overrides)
    file = tmp_path_factory.mktemp("recipes") / "mine.toml"
    file.write_text(changed.to_toml(), encoding="utf-8")
    assert load_recipe(file).resolved() == changed.resolved() | {"name": "mine"}


@given(st.text(max_size=30), st.sampled_from(sorted(OVERRIDES)))
@settings(max_examples=150)
def test_any_text_is_a_value_or_a_recipe_error(text, key):
    try:
        recipe = FULL.with_overrides({key: text})
    except RecipeError as error:
        told = str(error)
    else:
        told = f"{key} was set"
        assert Recipe.from_resolved(recipe.resolved()) == recipe
    assert key in told


def test_the_long_form_is_the_short_form():
    short, long = (
        load_recipe("pc").with_overrides({key: "0.5"})
        for key in ("classifier.tau", "classifier.loss_options.tau")
    )
    assert short == long
    assert short.classifier.loss_options == {"tau": 0.5}


def test_another_part_starts_without_the_last_ones_options():
    changed = load_recipe("pc-cdt").with_overrides(
        {
            "classifier.centroids": "none",
            "classifier.head": "linear",
            "classifier.loss": "cross-entropy",
            "classifier.sampler": "instance",
        }
    )
    assert changed.classifier.head_options == {"bias": True}
    assert changed.classifier.loss_options == {
        "label_smoothing": 0.0,
        "reweight_from": None,
        "beta": 0.9999,
    }
    assert changed.classifier.sampler_options == {}


def test_an_option_named_like_a_setting_has_its_long_form():
    changed = load_recipe("wd").with_overrides(
        {"representation.sampler": "progressive", "representation.sampler_options.epochs": "50"}
    )
    assert changed.representation.sampler_options == {"epochs": 50}
    assert changed.representation.epochs == 200


def test_deferred_reweighting_and_the_length_of_rows_can_be_written(tmp_path):
    path = tmp_path / "deferred.toml"
    path.write_text(
        """
title = "Weights from epoch 160 on"

[representation]
loss = "cross-entropy"
reweight_from = 160
max_norm = 0.5

[classifier]
extends = "pc"
head = "linear"
centroids = "none"
max_norm = 1
"""
    )
    recipe = load_recipe(path)
    assert recipe.representation.loss_options["reweight_from"] == 160
    assert (recipe.representation.max_norm, recipe.classifier.max_norm) == (0.5, 1.0)
    assert Recipe.from_resolved(recipe.resolved()) == recipe
    never = recipe.with_overrides({"representation.reweight_from": "none"})
    assert never.representation.loss_options["reweight_from"] is None


def test_a_combination_takes_a_stage_of_each():
    combined = load_recipe("ce/pc-la")
    assert combined.name == "ce/pc-la"
    assert combined.representation == load_recipe("ce").representation
    assert combined.classifier == load_recipe("pc-la").classifier
    same = recipe_hash(load_recipe("wd/pc").resolved()), recipe_hash(load_recipe("pc").resolved())
    assert same[0] == same[1]


def test_the_hash_does_not_change_from_day_to_day():
    resolved = {"name": "a", "representation": None, "classifier": {"lr": 4.0, "b": [1, 0.5]}}
    expected = "3f91f2c9"
    assert recipe_hash(resolved)[:8] == expected
    reordered = {"classifier": {"b": [1.0, 0.5], "lr": 4}, "representation": None, "title": "x"}
    assert recipe_hash(reordered)[:8] == expected
    assert recipe_hash(resolved | {"classifier": {"lr": 4.5, "b": [1, 0.5]}})[:8] != expected


@pytest.mark.parametrize(("name", "expected"), [("wd", "93ecc8"), ("pc-la", "c762e8")])
def test_a_setting_that_came_later_leaves_the_hash_as_it_was(name, expected):
    """Runs are found by it, and go on where an earlier version has left them."""
    recipe = load_recipe(name)
    assert recipe_hash(recipe.resolved())[:6] == expected
    mixed = recipe.with_overrides({"representation.mixup": 1.0})
    drawn = mixed.with_overrides({"representation.partners": "square-root"})
    assert recipe_hash(mixed.resolved()) != recipe_hash(drawn.resolved())


def test_recipes_made_in_python_are_checked_and_completed():
    made = Recipe(name="mine", title="x", classifier=ClassifierSettings(loss_options={"tau": 1}))
    assert made.classifier.loss_options == {"tau": 1.0}
    assert made.classifier.head_options["distance"] == "euclidean"
    assert made.stages == ("classifier",)
    with pytest.raises(RecipeError, match=r"recipe 'mine': representation\.lr = -1\.0; expected"):
        Recipe(name="mine", title="x", representation=RepresentationSettings(lr=-1.0))
    with pytest.raises(RecipeError, match="no stage"):
        Recipe(name="mine", title="x")


def test_files_of_ones_own_extend_names_and_files(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "base.toml").write_text(
        'title = "b"\n[classifier]\nextends = "pc-cdt-la"\ntau = 0.5\n'
    )
    (tmp_path / "more" / "mine.toml").write_text(
        'title = "m"\n[classifier]\nextends = "../base.toml"\nlr = 1\n[classifier.head_options]\n'
        'distance = "cosine"\n'
    )
    mine = load_recipe(tmp_path / "more" / "mine.toml")
    assert mine.name == "mine"
    assert mine.stages == ("classifier",)
    assert mine.classifier.loss_options == {"tau": 0.5}
    assert mine.classifier.lr == 1.0
    assert mine.classifier.head_options["distance"] == "cosine"
    assert mine.classifier.head_options["temperature"] == "channel"
