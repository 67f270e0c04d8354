"""Recorded steps against plain ones, on a GPU."""

import dataclasses

import numpy as np
import pytest
import torch

from protail.models.backbones import make_backbone
from protail.training.batches import FileLoader
from protail.training.features import FrozenFeatures
from protail.training.loop import CapturedDriver, PlainDriver, interleave
from protail.training.settings import ClassifierSettings, RepresentationSettings
from protail.training.stage1 import RepresentationTraining
from protail.training.stage2 import learn_heads, learn_stable_heads
from reference.small_images import TINY, six_images, small_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def full_precision():
    """Full float32, and sums in one order: what differs then is not chance."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = cudnn.benchmark = False
    cudnn.deterministic = True
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def settings(**changes):
    base = RepresentationSettings(
        backbone="resnet32", batch_size=32, lr=0.01, weight_decay=5e-4, precision="float32"
    )
    return dataclasses.replace(base, epochs=5, **changes)


def trained(how, data, **options):
    training = RepresentationTraining(how, data, seed=0, device=GPU, **options)
    losses = []
    interleave([training.steps(after_epoch=lambda epoch: losses.append(epoch.loss))])
    torch.cuda.synchronize()
    return training, losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9},
        {"sam": 0.1},
        {"sam": 0.1, "ema": 0.9, "max_norm": 0.5, "mixup": 0.5},
        {"mixup": 0.5},
        {"augment": ("crop", "autoaugment", "cutout")},
        {
            "method": "mixture-consistency",
            "second_view": ("crop", "flip"),
            "mixup": 1.0,
            "cutmix": 1.0,
        },
        {"cutmix": 1.0, "partners": "class-balanced"},
        {
            "method": "mixture-consistency",
            "second_view": ("crop", "flip"),
            "mixup": 1.0,
            "cutmix": 1.0,
            "partners": "square-root",
        },
    ],
)
def test_captured_steps_are_the_plain_ones(changes):
    """Twenty steps, the last, smaller batch of each epoch among them."""
    assert_captured_is_plain(settings(**changes), small_images())


def assert_captured_is_plain(how, data, **options):
    plain, plain_losses = trained(how, data, **options)
    captured, losses = trained(how, data, captured=True, **options)
    np.testing.assert_allclose(losses, plain_losses, atol=1e-4)
    for name, tensor in plain.state.state_dict().items():
        torch.testing.assert_close(
            captured.state.state_dict()[name], tensor, rtol=1e-4, atol=1e-4, msg=name
        )
    return captured


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_captured_steps_leave_a_teacher_as_it_was(ema):
    how = settings(
        method="mixture-consistency", second_view=("crop", "flip"), mixup=1.0, cutmix=1.0, ema=ema
    )
    options = {"tau": 0.5, "temperature": 2.0}
    taught = dataclasses.replace(how, method="mixture-distillation", method_options=options)
    data = small_images()
    first, _ = trained(how, data, stage="pretraining")
    start = first.evaluated
    captured = assert_captured_is_plain(taught, data, start=start)
    for part in ("backbone", "head"):
        expected, got = (getattr(m, part).state_dict() for m in (start, captured.method.teacher))
        assert all(torch.equal(expected[name], got[name]) for name in expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "method": "mixture-consistency",
            "second_view": ("resized-crop", "flip"),
            "mixup": 1.0,
            "cutmix": 1.0,
            "partners": "class-balanced",
        },
    ],
)
def test_captured_steps_on_files_are_the_plain_ones(changes, tmp_path, monkeypatch):
    monkeypatch.setattr(FileLoader, "workers", 2)
    photos = six_images(tmp_path)
    data = dataclasses.replace(small_images(), train=photos, test=photos)
    how = {"backbone": TINY, "augment": ("resized-crop", "flip"), **changes}
    captured = assert_captured_is_plain(
        dataclasses.replace(settings(**how), batch_size=4, epochs=3), data
    )
    assert len(captured.image_size) == 2


def test_a_step_that_waits_for_the_gpu_is_taken_plainly():
    batch = (torch.randn(8, 2, device=GPU),)

    def make(kind, waits):
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 1).to(GPU)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, fused=True)

        def loss(batch):
            factor = batch[0].abs().sum().item() if waits else 1.0
            return layer(batch[0]).square().mean() * factor

        return layer, kind(*([layer] if kind is CapturedDriver else []), loss, optimizer)

    plain, expected = make(PlainDriver, waits=True)
    layer, driver = make(CapturedDriver, waits=True)
    with pytest.warns(UserWarning, match="not captured as a CUDA graph: called a synch"):
        driver.advance(batch)
    driver.advance(batch)
    for _ in range(2):
        expected.advance(batch)
    torch.testing.assert_close(layer.state_dict(), plain.state_dict())
    # What comes after it is captured as ever.
    torch.cuda.empty_cache()
    _, fine = make(CapturedDriver, waits=False)
    fine.advance(batch)
    assert fine._graphs


def test_fabric_steps_are_the_plain_ones():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1)
    fabric.launch()
    data = small_images()
    _, expected = trained(settings(), data)
    _, losses = trained(settings(), data, fabric=fabric)
    np.testing.assert_allclose(losses, expected, atol=1e-4)


def test_trainings_on_streams_do_not_disturb_each_other():
    data = small_images()
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    together = [
        RepresentationTraining(settings(), data, seed=s, device=GPU, captured=True)
        for s in range(3)
    ]
    torch.cuda.synchronize()
    interleave([training.steps() for training in together], streams)
    torch.cuda.synchronize()
    alone, _ = trained(settings(), data, captured=True)
    for name, tensor in alone.method.state_dict().items():
        torch.testing.assert_close(
            together[0].method.state_dict()[name], tensor, rtol=1e-4, atol=1e-4, msg=name
        )


def test_heads_learned_from_recorded_steps_are_the_plain_ones():
    torch.manual_seed(0)
    backbone = make_backbone("resnet32").to(GPU)
    with torch.no_grad():  # statistics of its own, without which features would overflow
        for _ in range(50):
            backbone(torch.randn(64, 3, 32, 32, device=GPU))
    frozen = FrozenFeatures(backbone, small_images(), GPU)
    base = ClassifierSettings(precision="float32", lr=0.01, loss_options={"tau": 0.25})
    variants = {
        f"{distance}-{temperature}": dataclasses.replace(
            base, head_options={"distance": distance, "temperature": temperature}
        )
        for distance in ("euclidean", "cosine", "sqeuclidean")
        for temperature in (None, "channel", "class", "dense")
    }
    plain = learn_heads(variants, frozen, seed=0)
    lost = dataclasses.replace(base, lr=1e30, head_options={"distance": "sqeuclidean"})
    with_lost = {"lost": lost, **variants}
    captured = learn_stable_heads(with_lost, frozen, seed=0, driver="captured")
    assert list(captured) == list(plain)
    for name, head in plain.items():
        for key, tensor in head.state_dict().items():
            torch.testing.assert_close(
                captured[name].state_dict()[key], tensor, rtol=1e-3, atol=1e-4, msg=f"{name} {key}"
            )
