"""Stage 1: every driver takes the same steps, and trainings do not disturb each other."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from protail.backbones import backbone_names, make_backbone, register_backbone
from protail.losses.reweighted import class_balanced_weights
from protail.training.checkpoint import restore_training_state, training_state
from protail.training.frozen import FrozenFeatures, Stream
from protail.training.loop import interleave
from protail.training.progress import DivergenceError
from protail.training.representation import RepresentationTraining, make_schedule
from protail.training.settings import RepresentationSettings
from reference.small_images import TINY, small_images

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
        logits = torch.cat([training.method.logits(b) for b in training.feed.clean(data.train)])
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
    batches = list(by_hand.feed.batches(by_hand._sampler, 32, 0))
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.5 * (1 + np.cos(np.pi * step / len(batches)))
        images = by_hand.feed(batch)
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
    seen = training.feed(next(training._batches(0))).images
    frozen = FrozenFeatures(make_backbone(TINY), data, CPU)
    stream = Stream("instance", "{}", SETTINGS.augment, "float32")
    assert not np.array_equal(rows, frozen._sampler(stream, 0).epoch_indices(0))
    sampler, feed = training._sampler, frozen._feed(stream, 0)
    assert not torch.equal(feed(next(feed.batches(sampler, 32, 0))).images, seen)


def test_shares_of_mixtures_have_the_alpha_of_their_kind():
    settings = dataclasses.replace(SETTINGS, epochs=500, mixup=0.05, cutmix=20.0)
    training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    shares = torch.cat([training._shares(epoch) for epoch in range(500)]).double()
    assert shares.shape == (2000, 2)
    for series, alpha in zip(shares.T, (0.05, 20.0), strict=True):
        assert series.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
    alone = RepresentationTraining(
        dataclasses.replace(settings, mixup=0.0), small_images(), seed=0, device=CPU
    )
    assert torch.equal(alone._shares(3), training._shares(3)[:, 1])


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
            averaged(training.feed(rows).images)
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


def test_schedules_by_name():
    cosine = make_schedule(dataclasses.replace(SETTINGS, warm_up_epochs=1), 10)
    assert cosine(0.0) == 0
    assert cosine(0.05) == pytest.approx(0.5 * 0.5 * (1 + np.cos(np.pi * 0.05)))
    steps = make_schedule(dataclasses.replace(SETTINGS, schedule="steps", drops=((0.5, 0.1),)), 5)
    assert (steps(0.4), steps(0.6)) == (1.0, 0.1)
    with pytest.raises(ValueError, match="Did you mean 'cosine'"):
        make_schedule(dataclasses.replace(SETTINGS, schedule="cosin"), 5)


def test_a_batch_that_processes_cannot_share_is_refused():
    class Three:
        global_rank, world_size = 0, 3

    with pytest.raises(ValueError, match="32 cannot be shared by 3"):
        trained(fabric=Three())
    shared = dataclasses.replace(SETTINGS, batch_size=33, sam=0.1)
    with pytest.raises(ValueError, match=r"sam=0.1 with 3 processes.* expected .*sam=0"):
        trained(shared, fabric=Three())
