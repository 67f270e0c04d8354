"""Stage 1 in phases: what each begins with, and going on after an interruption."""

import copy
from dataclasses import replace

import pytest
import torch

from protail.methods.mixture_distillation import MixtureDistillation
from protail.recipes.running import Job, Options, run_jobs
from protail.training.making import build_method
from protail.training.phases import representation_steps
from protail.training.progress import Epoch
from protail.training.representation import RepresentationTraining
from protail.training.runs import Run
from protail.training.settings import RepresentationSettings
from reference.small_images import TINY, small_images
from reference.small_recipes import small_distillation, small_recipe

CPU = torch.device("cpu")
DATA = small_images(counts=(24, 12, 8, 6), n_test=4)
COUNTS = DATA.train.profile.counts
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


TAUGHT = small_distillation().phases


def equal(one, other):
    expected, got = one.state_dict(), other.state_dict()
    return all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_phase_that_has_a_teacher_begins_anew():
    first = run(make("pretraining", replace(TAUGHT["pretraining"], epochs=1), None).steps())
    begun = make("representation", TAUGHT["representation"], first).method
    as_first = make("pretraining", TAUGHT["pretraining"], None).method
    for part in ("backbone", "head"):
        taught, own = getattr(begun.teacher, part), getattr(begun, part)
        assert equal(taught, getattr(first, part))
        for name, parameter in own.named_parameters():
            if parameter.any() and (parameter != 1).any():  # others begin as they are in all
                assert not torch.equal(parameter, getattr(first, part).get_parameter(name))
                assert not torch.equal(parameter, getattr(as_first, part).get_parameter(name))
    again = make("representation", TAUGHT["representation"], None).method
    assert equal(again.backbone, begun.backbone)
    assert equal(again.head, begun.head)


def test_other_seeds_make_other_students():
    students = [build_method(TAUGHT["representation"], COUNTS, seed) for seed in (0, 1)]
    assert not torch.equal(*(each.head.weight for each in students))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head": "linear", "head_options": {}}, "another head .LinearHead. than the teacher"),
        ({"backbone": "resnet32"}, "another backbone .CifarResNet. than the teacher"),
    ],
)
def test_a_teacher_of_another_kind_is_refused(changes, words):
    first = make("pretraining", replace(TAUGHT["pretraining"], **changes), None).method
    with pytest.raises(ValueError, match=words):
        make("representation", TAUGHT["representation"], first)


def test_a_method_that_is_to_have_a_teacher_and_has_none_is_told(monkeypatch):
    first = make("pretraining", TAUGHT["pretraining"], None).method
    made = MixtureDistillation.__init__

    def without(self, *arguments, **options):
        made(self, *arguments, **options)
        del self.teacher

    monkeypatch.setattr(MixtureDistillation, "__init__", without)
    with pytest.raises(ValueError, match=r"MixtureDistillation has no teacher\.backbone; expected"):
        make("representation", TAUGHT["representation"], first)


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}])
def test_the_teacher_stays_what_the_first_phase_came_to(changes):
    made = {}

    def remembered(stage, settings, start):
        made[stage] = make(stage, replace(settings, epochs=2), start), copy.deepcopy(start)
        return made[stage][0]

    recipe = small_distillation(**changes)
    method = run(representation_steps(recipe.phases, remembered))
    training, first = made["representation"]
    for trained in (training.method, method):
        assert equal(trained.teacher.backbone, first.backbone)
        assert equal(trained.teacher.head, first.head)
    begun = build_method(training.settings, COUNTS, 0)
    assert not equal(training.method.backbone, begun.backbone)


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


SHORT = {"pretraining.epochs": 3, "representation.epochs": 3}
RECIPES = {
    "goes on": small_recipe("dro-lt").with_overrides(SHORT),
    "has a teacher": small_distillation(ema=0.9, tau=0.5).with_overrides(SHORT),
}


@pytest.fixture(scope="module", params=RECIPES)
def never_stopped(request, tmp_path_factory):
    recipe = RECIPES[request.param]
    assert [settings.epochs for settings in recipe.phases.values()] == [3, 3]
    job = Job(recipe, DATA, 0, tmp_path_factory.mktemp("never") / "run")
    return job, run_jobs([job], OPTIONS)


@pytest.mark.parametrize("stopped_after", [1, 3, 4, 6])
def test_a_run_goes_on_to_the_same_bits_wherever_it_was_stopped(
    never_stopped, tmp_path, stopped_after
):
    straight, records = never_stopped
    job = replace(straight, folder=tmp_path / "run")

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.epoch == stopped_after:
            raise StopError

    with pytest.raises(StopError):
        run_jobs([job], OPTIONS, stop)
    assert run_jobs([job], replace(OPTIONS, resume=True)) == records
    expected, got = (Run.open(each.folder).weights() for each in (straight, job))
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
