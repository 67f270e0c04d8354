"""The pipeline: planned, evaluated by the right groups, and loaded again."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from protail.data.images import ImageSet
from protail.evaluation import Evaluation
from protail.experiments import (
    Job,
    Options,
    Run,
    choose_options,
    evaluate_heads,
    load_stages,
    plan_steps,
    run_jobs,
)
from protail.models.backbones import make_backbone
from protail.models.heads import HEADS, register_head
from protail.recipes import load_recipe
from protail.training.features import FrozenFeatures
from protail_paper.scores import score_head
from reference.feature_data import feature_data
from reference.small_images import TINY, small_images
from reference.tiny_data import RECIPE, tiny_data


def frozen(**changes):
    torch.manual_seed(0)
    data = dataclasses.replace(small_images(), **changes)
    return FrozenFeatures(make_backbone(TINY), data, torch.device("cpu"))


def test_groups_go_by_the_counts_that_a_data_set_names():
    torch.manual_seed(0)
    head = nn.Linear(16, 4)
    named = frozen(group_counts=np.array([160, 30, 20, 8]))
    assert named.counts.tolist() == [60, 30, 15, 8]  # what losses go by
    for features, groups in ((frozen(), [[], [0, 1], [2, 3]]), (named, [[0], [1, 2], [3]])):
        evaluated = Evaluation.from_dict(evaluate_heads({"": head}, features)[""]["plain"])
        assert [list(group) for group in evaluated.groups.values()] == groups
        scores = score_head(head, features)["scores"]["plain"]
        assert {name: scores[name] for name in ("many", "medium", "few")} == {
            name: getattr(evaluated, name) for name in ("many", "medium", "few")
        }


def test_counts_of_other_classes_are_refused():
    with pytest.raises(ValueError, match=r"group_counts has 3 entries; expected 4"):
        frozen(group_counts=np.array([1, 2, 3]))


def test_a_plan_counts_the_steps_of_both_stages(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    recipe, data = load_recipe(tmp_path / "tiny.toml"), tiny_data()
    plan = plan_steps(recipe, data)
    assert plan.steps == 3 * -(-len(data.train) // 16)
    a_balanced_epoch = data.train.profile.counts.max() * len(data.train.classes)
    assert plan.classifier_steps == -(-a_balanced_epoch // recipe.classifier.batch_size)
    assert (plan.image_size, plan.gflops) == ((16, 16), None)
    of_features = plan_steps(dataclasses.replace(recipe, representation=None), feature_data())
    assert of_features.steps == 0 < of_features.classifier_steps
    assert of_features.image_size is None


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("representation.augment", ["resized-crop"], "representation.augment has resized-crop"),
        ("classifier.augment", ["resized-crop"], "classifier.augment has resized-crop"),
    ],
)
def test_a_recipe_that_does_not_suit_the_data_is_told(key, value, told, tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "tiny.toml")
    with pytest.raises(ValueError, match=told):
        plan_steps(recipe.with_overrides({key: value}), tiny_data())


class Wants1024(nn.Linear):
    def __init__(self, n_classes, n_features):
        if n_features % 1024:
            raise ValueError(f"n_features={n_features}; expected a multiple of 1024.")
        super().__init__(n_features, n_classes)


def test_a_head_of_stage_2_that_cannot_be_made_is_told_before_stage_1(tmp_path, monkeypatch):
    monkeypatch.setattr(
        HEADS, "_factories", {name: HEADS._factories[name] for name in HEADS.names()}
    )
    register_head("wants-1024-for-tests")(Wants1024)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    changes = {"classifier.head": "wants-1024-for-tests", "classifier.centroids": "none"}
    recipe = load_recipe(tmp_path / "tiny.toml").with_overrides(changes)
    alone = dataclasses.replace(recipe, representation=None)
    for planned, data in ((recipe, tiny_data()), (alone, feature_data())):
        with pytest.raises(ValueError, match="expected a multiple of 1024"):
            plan_steps(planned, data)


def test_options_are_chosen_where_the_user_has_not(tmp_path):
    recipe, data, gpu = load_recipe("wd"), tiny_data(), torch.device("cuda")
    chosen = choose_options(recipe, data, gpu, resume=True)
    assert (chosen.driver, chosen.compiled, chosen.resume) == ("captured", True, True)
    assert choose_options(recipe, data, torch.device("cpu")).driver == "plain"
    assert not choose_options(recipe, data, torch.device("cpu")).compiled
    assert not choose_options(load_recipe("pc-la"), feature_data(), gpu).compiled
    assert choose_options(recipe, data, gpu, n_processes=2).driver == "fabric"
    photos = ImageSet([0], data.train.classes, files=("a.png",))
    files = dataclasses.replace(data, train=photos)
    assert choose_options(recipe, files, gpu).driver == "captured"
    with pytest.raises(ValueError, match="driver='captured' was asked for; expected a GPU"):
        choose_options(recipe, files, torch.device("cpu"), driver="captured")
    with pytest.raises(ValueError, match="Did you mean 'plain'"):
        choose_options(recipe, data, gpu, driver="plane")


def test_what_a_run_has_learned_can_be_loaded(tmp_path):
    """Also where stage 2 has a backbone of its own, whose batch norms have learned on."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    changes = {
        "representation.epochs": 1,
        "classifier.epochs": 2,
        "classifier.batch_norm": "published",
    }
    recipe = load_recipe(tmp_path / "tiny.toml").with_overrides(changes)
    data, cpu = tiny_data(), Options.automatic("cpu")
    [record] = run_jobs([Job(recipe, data, 0, tmp_path / "run")], cpu)
    run = Run.open(tmp_path / "run")
    assert any(name.startswith("classifier_backbone.") for name in run.weights())
    stages = load_stages(run, data, cpu.device)
    assert list(stages) == ["representation", "classifier"]
    for name, (head, features) in stages.items():
        assert evaluate_heads({name: head}, features)[name] == record[name]
