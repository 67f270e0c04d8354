"""An experiment of every recipe that comes with the package: run, kept, read back."""

from dataclasses import dataclass
from functools import cache, cached_property, partial

import pytest
import torch

from protail.experiments import Options
from protail.models.heads.registry import HEADS
from protail.recipes import recipe_hash, recipe_names
from protail_paper.results import Results
from protail_paper.running import run_missing
from protail_paper.scores import class_vectors, unpack_bits
from protail_paper.wanted import Experiment, Subset, experiment_key
from reference.small_images import small_images
from reference.small_recipes import small_recipe

DATA = small_images(counts=(48, 24, 12, 8), size=16)
WITH_ONE_MATRIX = {"linear", "cosine", "prototype"}


small = cache(partial(small_recipe, epochs=2))


@dataclass(frozen=True)
class SmallExperiment(Experiment):
    """An experiment whose networks and trainings are small."""

    @cached_property
    def recipe(self):
        return small(self.recipe_name)

    @cached_property
    def key(self):
        return experiment_key(self.recipe, self.subset, self.seed)

    @cached_property
    def representation_key(self):
        return recipe_hash({**self.recipe.resolved(), "classifier": None})


EXPERIMENTS = {name: SmallExperiment(name, Subset("small", 6), 0) for name in recipe_names()}


def last_head(name):
    recipe = small(name)
    return (recipe.classifier or recipe.representation).head


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    options = Options(torch.device("cpu"), "plain")
    run_missing(EXPERIMENTS.values(), Results(folder), lambda subset: DATA, options)
    return Results(folder)


@pytest.mark.parametrize("name", recipe_names())
def test_its_result_is_there(kept, name):
    result = kept.get(EXPERIMENTS[name])
    assert result is not None
    assert not result.diverged
    for view in ("plain", "mirrored"):
        right = unpack_bits(result.record["right"][view], len(DATA.test))
        assert right.mean() == pytest.approx(result.score("all", view))
    assert result.record["cost"]["gflops"] > 0
    assert result.record["seconds"]["representation"] > 0


@pytest.mark.parametrize("name", recipe_names())
def test_it_has_norms_where_it_has_one_matrix_of_class_vectors(kept, name):
    norms = kept.get(EXPERIMENTS[name]).record.get("norms")
    if last_head(name) in WITH_ONE_MATRIX:
        assert len(norms) == len(DATA.train.classes)
    else:
        assert norms is None


def test_gates_say_how_many_experts_they_ask(kept):
    routed = [name for name in EXPERIMENTS if last_head(name) == "routed-experts"]
    assert routed
    for name, experiment in EXPERIMENTS.items():
        cost = kept.get(experiment).record["cost"]
        assert ("experts_used" in cost) == (name in routed)
        if name in routed:
            assert 1 <= cost["experts_used"] <= small(name).classifier.head_options["experts"]


def test_recipes_that_share_a_stage_1_share_its_training(kept):
    trained = {}
    for experiment in EXPERIMENTS.values():
        backbone = kept.get(experiment).record["backbone"]
        assert trained.setdefault(experiment.representation_key, backbone) == backbone
    assert len(trained) < len(EXPERIMENTS)


def test_heads_without_class_vectors_say_so():
    own = {name for name in HEADS.names() if HEADS.factory(name).__module__.startswith("protail.")}
    for name in own - WITH_ONE_MATRIX:  # other tests register heads, too
        with pytest.raises(TypeError, match="a vector for each class"):
            class_vectors(HEADS.make(name, 4, 6))
