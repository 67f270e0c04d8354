"""Stage 2 against a loop written out by hand; heads at once are heads alone."""

import dataclasses

import numpy as np
import pytest
import torch

from protail.backbones import make_backbone
from protail.heads import PrototypeHead, class_means
from protail.training import FeatureCache
from protail.training.classifier import learn_heads
from protail.training.frozen import FrozenFeatures, Stream, weights_hash
from protail.training.settings import ClassifierSettings
from reference.small_images import TINY, small_images

CPU = torch.device("cpu")
SETTINGS = ClassifierSettings(
    precision="float32", batch_size=16, lr=0.5, loss_options={"tau": 0.25}, augment=("crop", "flip")
)


@pytest.fixture(scope="module")
def frozen():
    torch.manual_seed(0)
    backbone = make_backbone(TINY)
    with torch.no_grad():  # statistics of its own, so that eval mode differs from train mode
        backbone(torch.randn(64, 3, 32, 32))
    return FrozenFeatures(backbone, small_images(), CPU)


def test_by_hand(frozen):
    head = learn_heads({"pc": SETTINGS}, frozen, seed=1)["pc"]
    features, labels = frozen.stream(Stream.of(SETTINGS), 1, 0)
    prototypes = class_means(features, labels).float().requires_grad_()
    log_counts = torch.log(torch.tensor([60.0, 30.0, 15.0, 8.0]))
    speed = torch.zeros_like(prototypes)
    n_steps = -(-len(features) // 16)
    for step in range(n_steps):
        x, y = features[16 * step : 16 * step + 16], labels[16 * step : 16 * step + 16]
        logits = -0.5 * (x[:, None] - prototypes).square().sum(2).clamp_min(1e-12).sqrt()
        loss = torch.nn.functional.cross_entropy(logits + 0.25 * log_counts, y)
        (gradient,) = torch.autograd.grad(loss, prototypes)
        speed = 0.9 * speed + gradient
        rate = 0.5 * 0.5 * (1 + np.cos(np.pi * step / n_steps))
        prototypes = (prototypes - rate * speed).detach().requires_grad_()
    torch.testing.assert_close(head.prototypes, prototypes, rtol=1e-4, atol=1e-5)


def test_an_epoch_draws_every_class_equally_often(frozen):
    _, labels = frozen.stream(Stream.of(SETTINGS), 0, 0)
    assert torch.bincount(labels).tolist() == [60] * 4


def test_an_image_drawn_twice_is_augmented_in_two_ways(frozen):
    features, labels = frozen.stream(Stream.of(SETTINGS), 0, 0)
    rarest = features[labels == 3]
    assert len(rarest.unique(dim=0)) > 8  # more than it has images


def test_heads_at_once_are_heads_alone(frozen):
    variants = {
        "pc": dataclasses.replace(SETTINGS, loss_options={"tau": 0.0}),
        "cdt": dataclasses.replace(SETTINGS, head_options={"temperature": "channel"}),
        "cosine": dataclasses.replace(SETTINGS, head_options={"distance": "cosine"}, lr=0.1),
        "linear": dataclasses.replace(SETTINGS, head="linear", head_options={}, centroids=None),
        "clean": dataclasses.replace(SETTINGS, centroids="clean", epochs=0),
        "slow": dataclasses.replace(SETTINGS, batch_size=32),
    }
    together = learn_heads(variants, frozen, seed=0)
    assert list(together) == list(variants)
    for name, one in variants.items():
        alone = learn_heads({name: one}, frozen, seed=0)[name]
        for key, tensor in alone.state_dict().items():
            torch.testing.assert_close(together[name].state_dict()[key], tensor)


def test_zero_epochs_is_the_nearest_class_mean(frozen):
    settings = dataclasses.replace(SETTINGS, epochs=0, centroids="clean")
    head = learn_heads({"ncm": settings}, frozen, seed=0)["ncm"]
    features, labels = frozen.clean("float32")
    assert isinstance(head, PrototypeHead)
    torch.testing.assert_close(
        head.prototypes.double(), class_means(features, labels), rtol=1e-6, atol=1e-6
    )


def test_max_steps_caps_the_training(frozen):
    one = learn_heads({"pc": dataclasses.replace(SETTINGS, max_steps=1)}, frozen, seed=0)["pc"]
    start = learn_heads({"pc": dataclasses.replace(SETTINGS, epochs=0)}, frozen, seed=0)["pc"]
    whole = learn_heads({"pc": SETTINGS}, frozen, seed=0)["pc"]
    moved = (one.prototypes - start.prototypes).norm()
    assert 0 < moved < (whole.prototypes - start.prototypes).norm()


def test_the_backbone_is_not_touched(frozen):
    before = weights_hash(frozen._backbone)
    learn_heads({"pc": SETTINGS}, frozen, seed=0)
    assert weights_hash(frozen._backbone) == before
    assert not any(p.grad is not None for p in frozen._backbone.parameters())


def test_features_are_kept_on_disk_under_what_they_hang_on(tmp_path):
    torch.manual_seed(0)
    backbone, data = make_backbone(TINY), small_images()
    first = FrozenFeatures(backbone, data, CPU, FeatureCache(tmp_path))
    features, _ = first.stream(Stream.of(SETTINGS), 0, 0)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1

    class Unused(torch.nn.Module):
        n_features = backbone.n_features

        def state_dict(self, *args, **kwargs):
            return backbone.state_dict()

        def forward(self, images):
            raise AssertionError("computed again")

    again = FrozenFeatures(Unused(), data, CPU, FeatureCache(tmp_path))
    assert torch.equal(again.stream(Stream.of(SETTINGS), 0, 0)[0], features)
    with pytest.raises(AssertionError, match="computed again"):
        again.stream(Stream.of(SETTINGS), 1, 0)
    for damaged in tmp_path.glob("*.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:100])
    assert torch.equal(first.stream(Stream.of(SETTINGS), 0, 0)[0], features)
