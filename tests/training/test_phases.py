"""Stage 1 in phases: what each begins with, and going on after an interruption."""

from dataclasses import replace

import pytest
import torch

from protail.recipes.running import Job, Options, run_jobs
from protail.training.phases import representation_steps
from protail.training.progress import Epoch
from protail.training.representation import RepresentationTraining
from protail.training.settings import RepresentationSettings
from reference.small_images import TINY, small_images
from reference.small_recipes import small_recipe

CPU = torch.device("cpu")
DATA = small_images(counts=(24, 12, 8, 6), n_test=4)
FIRST = RepresentationSettings(
    backbone=TINY, epochs=2, batch_size=16, lr=0.05, weight_decay=5e-4, precision="float32"
)
PHASES = {"pretraining": FIRST, "representation": replace(FIRST, epochs=3, lr=0.01)}


def make(stage, settings, start):
    return RepresentationTraining(settings, DATA, seed=0, device=CPU, start=start, stage=stage)


def run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_phase_begins_with_what_the_one_before_has_learned():
    first = run(make("pretraining", FIRST, None).steps())
    begun = make("representation", PHASES["representation"], first).method
    for part in ("backbone", "head"):
        expected, got = (getattr(each, part).state_dict() for each in (first, begun))
        assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_head_of_another_kind_begins_anew():
    first = make("pretraining", FIRST, None).method
    second = replace(PHASES["representation"], head="cosine")
    begun = make("representation", second, first).method
    alone = make("representation", second, None).method
    assert torch.equal(begun.head.weight, alone.head.weight)
    assert torch.equal(begun.backbone.conv1.weight, first.backbone.conv1.weight)


def test_epochs_and_steps_are_counted_over_all_phases():
    told = []
    run(representation_steps(PHASES, make, after_epoch=lambda _, epoch: told.append(epoch)))
    an_epoch = -(-len(DATA.train) // 16)
    assert [epoch.number for epoch in told] == [0, 1, 2, 3, 4]
    assert [epoch.step for epoch in told] == [an_epoch * n for n in range(1, 6)]
    assert all(isinstance(epoch, Epoch) for epoch in told)


def test_phases_draw_other_images():
    orders = [make(stage, FIRST, None)._sampler.epoch_indices(0).tolist() for stage in PHASES]
    assert orders[0] != orders[1]


OPTIONS = Options(CPU, "plain", checkpoint_seconds=0)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    recipe = small_recipe("dro-lt")
    assert [settings.epochs for settings in recipe.phases.values()] == [7, 7]
    return run_jobs([Job(recipe, DATA, 0, tmp_path_factory.mktemp("never") / "run")], OPTIONS)


@pytest.mark.parametrize("stopped_after", [1, 7, 9, 14])
def test_a_run_goes_on_to_the_same_bits_wherever_it_was_stopped(
    never_stopped, tmp_path, stopped_after
):
    job = Job(small_recipe("dro-lt"), DATA, 0, tmp_path / "run")

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.epoch == stopped_after:
            raise StopError

    with pytest.raises(StopError):
        run_jobs([job], OPTIONS, stop)
    assert run_jobs([job], replace(OPTIONS, resume=True)) == never_stopped
