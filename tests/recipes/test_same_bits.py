"""Every recipe, trained twice with one seed on one machine, comes to the same bits."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch

from protail.experiments import Job, Options, Run, pipeline, run_jobs
from protail.recipes import recipe_names
from reference.small_images import small_images
from reference.small_recipes import small_recipe

DATA = small_images(counts=(16, 8, 4, 3), n_test=4, size=16)


@pytest.fixture(scope="module")
def train_again(tmp_path_factory):
    """Train with the global random numbers somewhere else; recipes that share a stage 1 share it.

    Each round trains every stage 1 once more.
    """
    trained, steps = {}, pipeline.stage1_steps

    def train(name, round):
        def once(phases, *data, **options):
            if (key := (round, repr(phases))) not in trained:
                trained[key] = yield from steps(phases, *data, **options)
            return deepcopy(trained[key])

        for seed in random.seed, np.random.seed, torch.manual_seed:
            seed(round)
        folder = tmp_path_factory.mktemp(name) / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "stage1_steps", once)
            job = Job(small_recipe(name, epochs=2), DATA, 0, folder)
            run_jobs([job], Options(torch.device("cpu"), "plain"))
        return Run.open(folder)

    return train


@pytest.mark.parametrize("name", recipe_names())
def test_the_same_seed_gives_the_same_bits(name, train_again):
    first, second = (train_again(name, round) for round in (1, 2))
    weights, again = ((run.folder / "weights.safetensors").read_bytes() for run in (first, second))
    assert weights == again
    assert first.evaluation() == second.evaluation()
