"""Stage 1: every driver takes the same steps, in one phase or several, stopped or not."""

import copy
import dataclasses
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from protail.experiments import Job, Options, Run, run_jobs
from protail.experiments.checkpoint import restore_training_state, training_state
from protail.losses import class_balanced_weights
from protail.methods import MixtureDistillation
from protail.models.backbones import backbone_names, make_backbone, register_backbone
from protail.training.batches import FileLoader, draw_fractions
from protail.training.features import FrozenFeatures, Stream
from protail.training.loop import CapturedDriver, CaptureError, DivergenceError, Epoch, interleave
from protail.training.settings import RepresentationSettings
from protail.training.stage1 import (
    RepresentationTraining,
    build_method,
    stage1_steps,
)
from reference.small_images import TINY, six_images, small_images
from reference.small_recipes import small_distillation, small_recipe

CPU = torch.device("cpu")

FORGETFUL = "forgetful-for-tests"


class Forgetful(nn.Module):
    """A backbone that draws random numbers while it trains."""

    def __init__(self, in_channels):
        super().__init__()
        self.body, self.dropout = make_backbone(TINY, in_channels=in_channels), nn.Dropout(0.3)
        self.n_features = self.body.n_features

    def forward(self, images):
        return self.dropout(self.body(images))


if FORGETFUL not in backbone_names():
    register_backbone(FORGETFUL)(Forgetful)

SETTINGS = RepresentationSettings(
    backbone=TINY, epochs=2, batch_size=32, lr=0.05, weight_decay=5e-4, precision="float32"
)


def trained(settings=SETTINGS, data=None, **options):
    training = RepresentationTraining(
        settings, data or small_images(), **{"seed": 0, "device": CPU, **options}
    )
    epochs = []
    interleave([training.steps(after_epoch=epochs.append)])
    return training, epochs


def weights(training):
    return {name: t.clone() for name, t in training.method.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_learns():
    data = small_images()
    settings = dataclasses.replace(SETTINGS, epochs=15)
    training, epochs = trained(settings, data)
    assert [epoch.number for epoch in epochs] == list(range(15))
    assert [epoch.step for epoch in epochs] == list(range(4, 61, 4))
    assert epochs[-1].loss < 0.5 * epochs[0].loss
    training.method.eval()
    with torch.no_grad():
        logits = torch.cat([training.method.logits(b) for b in training.loader.clean(data.train)])
    assert (logits.argmax(1).numpy() == data.train.labels).mean() > 0.7


def test_by_hand():
    """The loop that everybody would write, with the same images, takes the same steps."""
    data = small_images()
    settings = dataclasses.replace(SETTINGS, epochs=1, nesterov=True)
    training, _ = trained(settings, data)
    by_hand = RepresentationTraining(settings, data, seed=0, device=CPU)
    method = by_hand.method.train()
    optimizer = torch.optim.SGD(
        method.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    batches = list(by_hand.loader.batches(by_hand._sampler, 32, 0))
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.5 * (1 + np.cos(np.pi * step / len(batches)))
        images = by_hand.loader(batch)
        loss = torch.nn.functional.cross_entropy(method.logits(images.images), images.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, training.method.state_dict()[name])


def test_same_seed_same_bits_other_seed_other_bits():
    first, again, other = (weights(trained(seed=seed)[0]) for seed in (3, 3, 4))
    assert_same(first, again)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_trainings_at_once_are_those_alone():
    data = small_images()
    together = [RepresentationTraining(SETTINGS, data, seed=s, device=CPU) for s in (0, 1)]
    interleave([training.steps() for training in together])
    for seed, training in enumerate(together):
        assert_same(weights(training), weights(trained(data=data, seed=seed)[0]))


VARIANTS = {
    "plain": SETTINGS,
    "dropout": dataclasses.replace(SETTINGS, backbone=FORGETFUL),
    "max norm": dataclasses.replace(SETTINGS, max_norm=0.2),
    "re-weighted": dataclasses.replace(SETTINGS, loss_options={"reweight_from": 1}),
    "sharpness-aware": dataclasses.replace(SETTINGS, sam=0.1),
    "mixed": dataclasses.replace(SETTINGS, mixup=0.4, cutmix=1.0, ema=0.9),
    "two mixtures": dataclasses.replace(
        SETTINGS, method="mixture-consistency", second_view=("flip",), mixup=1.0, cutmix=1.0
    ),
    "drawn partners": dataclasses.replace(SETTINGS, cutmix=1.0, partners="class-balanced"),
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_entered_at_an_epoch_it_goes_on_as_if_never_stopped(settings):
    whole, _ = trained(settings)
    first = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    steps = first.steps()
    for _ in range(first.steps_an_epoch):
        next(steps)
    torch.rand(3)  # whoever else draws random numbers meanwhile
    kept = {k: t.clone() for k, t in training_state(first.state, first.optimizer).items()}
    second = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    restore_training_state(kept, second.state, second.optimizer)
    interleave([second.steps(first_epoch=1)])
    assert_same(weights(second), weights(whole))


def test_a_network_that_draws_is_repeatable_alone_and_at_once():
    settings, data = VARIANTS["dropout"], small_images()
    alone = [weights(trained(settings, data, seed=seed)[0]) for seed in (0, 1)]
    torch.manual_seed(99)
    together = [RepresentationTraining(settings, data, seed=s, device=CPU) for s in (0, 1)]
    interleave([training.steps() for training in together])
    for training, expected in zip(together, alone, strict=True):
        assert_same(weights(training), expected)


def test_training_leaves_torchs_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained(VARIANTS["dropout"])
    assert torch.equal(torch.rand(3), expected)


def test_dropout_differs_from_epoch_to_epoch():
    training = RepresentationTraining(VARIANTS["dropout"], small_images(), seed=0, device=CPU)
    drawn = []
    training.method.backbone.dropout.register_forward_hook(
        lambda module, given, got: drawn.append(got == 0)
    )
    interleave([training.steps()])
    n = training.steps_an_epoch
    assert len(drawn) == 2 * n
    assert not torch.equal(drawn[0], drawn[n])


def test_stage_2_does_not_see_again_what_stage_1_saw():
    data = small_images()
    training = RepresentationTraining(SETTINGS, data, seed=0, device=CPU)
    rows = training._sampler.epoch_indices(0)
    seen = training.loader(next(training._batches(0))).images
    frozen = FrozenFeatures(make_backbone(TINY), data, CPU)
    stream = Stream("instance", "{}", SETTINGS.augment, "float32")
    assert not np.array_equal(rows, stream.make_sampler(data.train.labels, 0).epoch_indices(0))
    loader = frozen._loader(data.train, stream.augment, 0)
    batch = next(loader.batches(training._sampler, 32, 0))
    assert not torch.equal(loader(batch).images, seen)


def test_shares_of_mixtures_have_the_alpha_of_their_kind():
    settings = dataclasses.replace(SETTINGS, epochs=500, mixup=0.05, cutmix=20.0)
    fractions = draw_fractions(settings, 2000, seed=1).double()
    assert fractions.shape == (2000, 2)
    for series, alpha in zip(fractions.T, (0.05, 20.0), strict=True):
        assert series.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
    alone = dataclasses.replace(settings, epochs=2, mixup=0.0)
    assert torch.equal(draw_fractions(alone, 2000, seed=1).double(), fractions[:, 1])
    training = RepresentationTraining(alone, small_images(), seed=0, device=CPU)
    drawn = [batch.fraction for epoch in range(2) for batch in training._batches(epoch)]
    assert torch.equal(torch.stack(drawn), draw_fractions(alone, 8, training._stream_seed))


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_max_norm_holds_after_every_step(ema):
    settings = dataclasses.replace(SETTINGS, max_norm=0.2, ema=ema)
    training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    longest = []
    for _ in training.steps():
        longest.append(training.method.head.weight.norm(dim=1).max().item())
    assert len(longest) == 8
    assert max(longest) <= 0.2 * (1 + 1e-6)
    free, _ = trained()
    assert free.method.head.weight.norm(dim=1).max() > 0.3


def test_max_norm_needs_rows_of_weights():
    settings = dataclasses.replace(SETTINGS, head="prototype", max_norm=1.0)
    with pytest.raises(ValueError, match="max_norm=1: PrototypeHead has no matrix of weights"):
        trained(settings)


def test_classes_are_reweighted_from_their_epoch_on():
    settings = dataclasses.replace(
        SETTINGS, epochs=3, loss_options={"reweight_from": 1, "beta": 0.99}
    )
    training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    seen = []
    interleave(
        [training.steps(after_epoch=lambda e: seen.append(training.method.loss.weights + 0))]
    )
    balanced = torch.from_numpy(class_balanced_weights([60, 30, 15, 8], 0.99)).float()
    for found, expected in zip(seen, (torch.ones(4), balanced, balanced), strict=True):
        torch.testing.assert_close(found, expected)
    plain, _ = trained(dataclasses.replace(SETTINGS, epochs=3))
    assert not torch.equal(plain.method.head.weight, training.method.head.weight)


def test_fabric_takes_the_same_steps():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    plain, _ = trained()
    through_fabric, _ = trained(fabric=fabric)
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(
            through_fabric.method.state_dict()[name], tensor, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("mixing", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}])
def test_mixing_changes_the_training_and_is_repeatable(mixing):
    settings = dataclasses.replace(SETTINGS, epochs=1, **mixing)
    first, again = (weights(trained(settings)[0]) for _ in range(2))
    assert_same(first, again)
    plain = weights(trained(dataclasses.replace(SETTINGS, epochs=1))[0])
    assert not torch.equal(first["head.weight"], plain["head.weight"])


def test_the_moving_average_is_what_is_evaluated():
    training, _ = trained(dataclasses.replace(SETTINGS, ema=0.5))
    assert training.evaluated is not training.method
    assert not torch.equal(training.evaluated.head.weight, training.method.head.weight)


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.4}])
def test_the_moving_average_has_statistics_of_its_own(mixing):
    """Those of the last weights may be far off where the average is long."""
    settings = dataclasses.replace(SETTINGS, ema=0.9, precision="float32", **mixing)
    training, _ = trained(settings)
    averaged, seen = training.evaluated.backbone, []
    handle = averaged.conv1.register_forward_hook(lambda _, __, out: seen.append(out.double()))
    with torch.no_grad():
        for rows in training._batches(settings.epochs - 1):
            averaged(training.loader(rows).images)
    handle.remove()
    means = torch.stack([out.mean((0, 2, 3)) for out in seen]).mean(0)
    variances = torch.stack([out.transpose(0, 1).flatten(1).var(1) for out in seen]).mean(0)
    assert torch.allclose(averaged.bn1.running_mean.double(), means, atol=1e-5)
    assert torch.allclose(averaged.bn1.running_var.double(), variances, rtol=1e-4)
    last = training.method.backbone.bn1
    assert not torch.allclose(averaged.bn1.running_mean, last.running_mean, atol=1e-4)
    assert averaged.bn1.momentum == last.momentum


def test_divergence_is_told():
    with pytest.raises(DivergenceError, match=r"Lower representation\.lr"):
        trained(dataclasses.replace(SETTINGS, lr=1e12))


def test_a_batch_that_processes_cannot_share_is_refused():
    class Three:
        global_rank, world_size = 0, 3

    with pytest.raises(ValueError, match="32 cannot be shared by 3"):
        trained(fabric=Three())
    shared = dataclasses.replace(SETTINGS, batch_size=33, sam=0.1)
    with pytest.raises(ValueError, match=r"sam=0.1 with 3 processes.* expected .*sam=0"):
        trained(shared, fabric=Three())


def test_batches_that_a_method_cannot_take_are_refused_before_training():
    data = small_images(counts=(24, 12, 8, 5), n_test=4)
    for changes, words in (
        ({"method_options": {"queue": 8}, "batch_size": 16}, "takes 8 images at most"),
        ({"batch_size": 48}, "has 1 image for 1 process, and method 'paco' needs two"),
    ):
        settings = replace(PACO, **changes)
        with pytest.raises(ValueError, match=words):
            RepresentationTraining(settings, data, seed=0, device=CPU)


PACO = replace(small_recipe("paco").representation, batch_size=16)

DATA = small_images(counts=(24, 12, 8, 6), n_test=4, size=16)

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
    first, training = None, None

    def remember(trained, epoch):
        nonlocal first, training
        if trained._stage == "pretraining":
            first = copy.deepcopy(trained.evaluated)
        else:
            training = trained

    phases = {
        n: replace(each, epochs=2) for n, each in small_distillation(**changes).phases.items()
    }
    method = run(stage1_steps(phases, DATA, seed=0, device=CPU, after_epoch=remember))
    for trained in (training.method, method):
        assert equal(trained.teacher.backbone, first.backbone)
        assert equal(trained.teacher.head, first.head)
    begun = build_method(training.settings, COUNTS, 0)
    assert not equal(training.method.backbone, begun.backbone)


def test_epochs_and_steps_are_counted_over_all_phases():
    told = []
    run(
        stage1_steps(
            PHASES, DATA, seed=0, device=CPU, after_epoch=lambda _, epoch: told.append(epoch)
        )
    )
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


def test_a_run_goes_on_to_the_same_bits_wherever_it_was_stopped(never_stopped, tmp_path):
    straight, records = never_stopped
    job, going_on = replace(straight, folder=tmp_path / "run"), replace(OPTIONS, resume=True)

    class StopError(Exception):
        pass

    def stop(after, progress):
        if progress.epoch == after:
            raise StopError

    for after in (1, 3, 4, 6):  # in the first phase, between them, in the second, at its end
        with pytest.raises(StopError):
            run_jobs([job], going_on, partial(stop, after))
    assert run_jobs([job], going_on) == records
    expected, got = (Run.open(each.folder).weights() for each in (straight, job))
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_captured_step_on_files_begins_where_images_are_mixed(tmp_path, monkeypatch):
    """And where it cannot be captured, the plain one is taken instead."""
    monkeypatch.setattr(FileLoader, "workers", 0)
    photos = six_images(tmp_path)
    data = replace(small_images(), train=photos, test=photos)
    views = {"method": "mixture-consistency", "second_view": ("resized-crop",), "mixup": 1.0}
    how = {"augment": ("flip",), "cutmix": 1.0, "partners": "class-balanced", "ema": 0.9, **views}
    settings = replace(SETTINGS, epochs=1, batch_size=4, **how)
    plain, expected = trained(settings, data)

    def refuse(self, step, after=None):
        raise CaptureError("there is no GPU")

    monkeypatch.setattr(CapturedDriver, "_record", refuse)
    with pytest.warns(UserWarning, match="not captured as a CUDA graph: there is no GPU"):
        captured, epochs = trained(settings, data, captured=True)
    assert epochs == expected
    assert_same(weights(captured), weights(plain))
    for batch in captured._batches(0):
        assert all(isinstance(part, torch.Tensor) for part in batch)
