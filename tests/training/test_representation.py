"""Stage 1: every driver takes the same steps, and trainings do not disturb each other."""

import dataclasses

import numpy as np
import pytest
import torch

from protail.training.loop import interleave
from protail.training.representation import (
    DivergenceError,
    RepresentationTraining,
    make_schedule,
)
from protail.training.settings import RepresentationSettings
from reference.small_images import TINY, small_images

CPU = torch.device("cpu")
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


def test_entered_at_an_epoch_it_goes_on_as_if_never_stopped():
    whole, _ = trained()
    first = RepresentationTraining(SETTINGS, small_images(), seed=0, device=CPU)
    steps = first.steps()
    for _ in range(first.steps_an_epoch):
        next(steps)
    second = RepresentationTraining(SETTINGS, small_images(), seed=0, device=CPU)
    second.method.load_state_dict(first.method.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    interleave([second.steps(first_epoch=1)])
    assert_same(weights(second), weights(whole))


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
    mean = training.method.backbone.bn1.running_mean
    assert torch.equal(training.evaluated.backbone.bn1.running_mean, mean)


def test_divergence_is_told():
    with pytest.raises(DivergenceError, match=r"Lower representation\.lr"):
        trained(dataclasses.replace(SETTINGS, lr=1e12))


def test_schedules_by_name():
    cosine = make_schedule(dataclasses.replace(SETTINGS, epochs=10, warm_up_epochs=1))
    assert cosine(0.0) == 0
    assert cosine(0.05) == pytest.approx(0.5 * 0.5 * (1 + np.cos(np.pi * 0.05)))
    steps = make_schedule(dataclasses.replace(SETTINGS, schedule="steps", drops=((0.5, 0.1),)))
    assert (steps(0.4), steps(0.6)) == (1.0, 0.1)
    with pytest.raises(ValueError, match="Did you mean 'cosine'"):
        make_schedule(dataclasses.replace(SETTINGS, schedule="cosin"))


def test_a_batch_that_processes_cannot_share_is_refused():
    class Three:
        global_rank, world_size = 0, 3

    with pytest.raises(ValueError, match="32 cannot be shared by 3"):
        trained(fabric=Three())
