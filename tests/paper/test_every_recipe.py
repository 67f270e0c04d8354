"""A cell of every recipe that comes with the package: run, kept, read back."""

from dataclasses import dataclass
from functools import cache, cached_property

import pytest
import torch

from protail.experiments import Options
from protail.models.heads.registry import HEADS
from protail.recipes import recipe_hash, recipe_names
from protail_paper.cells import Cells
from protail_paper.running import run_missing
from protail_paper.scores import class_vectors, unpack_bits
from protail_paper.wanted import Cell, Draw, cell_key
from reference.small_images import small_images
from reference.small_recipes import small_recipe

DATA = small_images(counts=(48, 24, 12, 8))
WITH_ONE_MATRIX = {"linear", "cosine", "prototype"}


small = cache(small_recipe)


@dataclass(frozen=True)
class SmallCell(Cell):
    """A cell whose networks and trainings are small."""

    @cached_property
    def recipe(self):
        return small(self.recipe_name)

    @cached_property
    def key(self):
        return cell_key(self.recipe, self.draw, self.seed)

    @cached_property
    def representation_key(self):
        return recipe_hash({**self.recipe.resolved(), "classifier": None})


CELLS = {name: SmallCell(name, Draw("small", 6), 0) for name in recipe_names()}


def last_head(name):
    recipe = small(name)
    return (recipe.classifier or recipe.representation).head


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    options = Options(torch.device("cpu"), "plain")
    run_missing(CELLS.values(), Cells(folder), lambda draw: DATA, options)
    return Cells(folder)


@pytest.mark.parametrize("name", recipe_names())
def test_its_cell_is_there(kept, name):
    result = kept.get(CELLS[name])
    assert result is not None
    assert not result.diverged
    for view in ("plain", "mirrored"):
        right = unpack_bits(result.record["right"][view], len(DATA.test))
        assert right.mean() == pytest.approx(result.score("all", view))
    assert result.record["cost"]["gflops"] > 0
    assert result.record["seconds"]["representation"] > 0


@pytest.mark.parametrize("name", recipe_names())
def test_it_has_norms_where_it_has_one_matrix_of_class_vectors(kept, name):
    norms = kept.get(CELLS[name]).record.get("norms")
    if last_head(name) in WITH_ONE_MATRIX:
        assert len(norms) == len(DATA.train.classes)
    else:
        assert norms is None


def test_gates_say_how_many_experts_they_ask(kept):
    routed = [name for name in CELLS if last_head(name) == "routed-experts"]
    assert routed
    for name, cell in CELLS.items():
        cost = kept.get(cell).record["cost"]
        assert ("experts_used" in cost) == (name in routed)
        if name in routed:
            assert 1 <= cost["experts_used"] <= small(name).classifier.head_options["experts"]


def test_recipes_that_share_a_stage_1_share_its_training(kept):
    trained = {}
    for cell in CELLS.values():
        backbone = kept.get(cell).record["backbone"]
        assert trained.setdefault(cell.representation_key, backbone) == backbone
    assert len(trained) < len(CELLS)


def test_heads_without_class_vectors_say_so():
    for name in set(HEADS.names()) - WITH_ONE_MATRIX:
        with pytest.raises(TypeError, match="a vector for each class"):
            class_vectors(HEADS.make(name, 4, 6))
