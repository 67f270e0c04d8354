"""Stage 2 against a loop written out by hand; heads at once are heads alone."""

import copy
import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from protail.data import make_sampler
from protail.models.backbones import make_backbone
from protail.models.heads import PrototypeHead, class_means
from protail.models.heads.linear import LinearHead
from protail.training import FeatureCache
from protail.training.batches import make_loader
from protail.training.features import FrozenFeatures, Stream, weights_hash
from protail.training.loop import DivergenceError
from protail.training.settings import ClassifierSettings
from protail.training.stage2 import _parameter_groups, learn_heads, learn_stable_heads
from reference.small_images import TINY, small_images

CPU = torch.device("cpu")

SETTINGS = ClassifierSettings(
    precision="float32", batch_size=16, lr=0.5, loss_options={"tau": 0.25}, augment=("crop", "flip")
)

PUBLISHED = dataclasses.replace(SETTINGS, epochs=3, batch_norm="published", centroids="clean")


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
    batches = zip(features.split(16), labels.split(16), strict=True)
    prototypes = learned_by_hand(class_means(features, labels), list(batches))
    torch.testing.assert_close(head.prototypes, prototypes, rtol=1e-4, atol=1e-5)


def learned_by_hand(start, batches):
    prototypes = start.float().requires_grad_()
    log_counts = torch.log(torch.tensor([60.0, 30.0, 15.0, 8.0]))
    speed = torch.zeros_like(prototypes)
    for step, (x, y) in enumerate(batches):
        logits = -0.5 * (x[:, None] - prototypes).square().sum(2).clamp_min(1e-12).sqrt()
        loss = torch.nn.functional.cross_entropy(logits + 0.25 * log_counts, y)
        (gradient,) = torch.autograd.grad(loss, prototypes)
        speed = 0.9 * speed + gradient
        rate = 0.5 * 0.5 * (1 + np.cos(np.pi * step / len(batches)))
        prototypes = (prototypes - rate * speed).detach().requires_grad_()
    return prototypes


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


@pytest.mark.parametrize(
    "lost",
    [
        {"lr": 1e30},
        {"lr": 1e30, "epochs": 3},  # a group of its own
        {
            "lr": 3e38,
            "weight_decay": 1e9,
            "max_steps": 1,
        },  # the only loss is a number, the weights after it are not
    ],
    ids=["beside others", "alone", "in the last step"],
)
def test_a_head_without_numbers_is_left_out_and_disturbs_no_other(frozen, lost):
    steps = {"max_steps": lost.get("max_steps")}  # so that they learn together
    squared = dataclasses.replace(SETTINGS, head_options={"distance": "sqeuclidean"}, **steps)
    sound = {
        "pc": dataclasses.replace(SETTINGS, **steps),
        "squared": dataclasses.replace(squared, lr=0.01),
    }
    settings = {**sound, "lost": dataclasses.replace(squared, **lost)}
    heads = learn_stable_heads(dict(reversed(settings.items())), frozen, seed=0)
    assert list(heads) == ["squared", "pc"]
    for name, head in learn_heads(sound, frozen, seed=0).items():
        for key, tensor in head.state_dict().items():
            assert torch.equal(heads[name].state_dict()[key], tensor)
    with pytest.raises(
        DivergenceError, match=r"stage 2 \(lost\) are not finite any more.*Lower classifier\.lr"
    ):
        learn_heads(settings, frozen, seed=0)


def test_heads_are_watched_and_learn_the_same(frozen):
    settings = {
        "pc": dataclasses.replace(SETTINGS, epochs=2),
        "ncm": dataclasses.replace(SETTINGS, epochs=0),
    }
    looks = []

    def look(step, heads):
        looks.append((step, {name: head.prototypes.clone() for name, head in heads.items()}))

    watched = learn_heads(settings, frozen, seed=0, watch=look, watch_every=4)
    alone = learn_heads(settings, frozen, seed=0)
    for name in settings:
        assert torch.equal(watched[name].prototypes, alone[name].prototypes)
    of_pc = [(step, heads["pc"]) for step, heads in looks if "pc" in heads]
    # 240 draws an epoch in batches of 16: 15 steps, and a look where an epoch ends.
    assert [step for step, _ in of_pc] == [0, 4, 8, 12, 15, 16, 20, 24, 28, 30]
    assert torch.equal(of_pc[0][1], alone["ncm"].prototypes)
    assert torch.equal(of_pc[-1][1], alone["pc"].prototypes)
    assert not torch.equal(of_pc[1][1], of_pc[2][1])
    assert [step for step, heads in looks if "ncm" in heads] == [0]


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


@pytest.mark.parametrize(("max_steps", "n_computed"), [(5, 8), (9, 12), (15, 15), (23, 15 + 8)])
def test_max_steps_caps_the_features_too(frozen, monkeypatch, max_steps, n_computed):
    """An epoch has 15 steps of 16 images; 64 images at a time are computed."""
    monkeypatch.setattr("protail.training.features.CLEAN_BATCH", 64)
    fresh = FrozenFeatures(frozen.backbone, small_images(), CPU)
    sizes = []
    hook = frozen.backbone.register_forward_hook(lambda module, given, got: sizes.append(len(got)))
    settings = dataclasses.replace(
        SETTINGS, epochs=2, max_steps=max_steps, head="linear", head_options={}, centroids=None
    )
    try:
        capped = learn_heads({"": settings}, fresh, seed=0)[""]
    finally:
        hook.remove()
    assert sum(sizes) == 16 * n_computed
    stream = Stream.of(settings)
    for n in (1, 64, 100, 239, 240, 1000):
        for some, whole in zip(
            fresh.stream(stream, 0, 1, n), fresh.stream(stream, 0, 1), strict=True
        ):
            assert torch.equal(some, whole[:n])
    monkeypatch.setattr(
        FrozenFeatures,
        "stream",
        lambda self, *key, stream=FrozenFeatures.stream: stream(self, *key[:3]),
    )
    uncapped = learn_heads({"": settings}, fresh, seed=0)[""]
    assert torch.equal(capped.weight, uncapped.weight)


def test_max_norm_and_reweighting_in_stage_2(frozen):
    linear = dataclasses.replace(
        SETTINGS, epochs=2, head="linear", head_options={}, centroids=None, loss="cross-entropy"
    )
    linear = dataclasses.replace(linear, loss_options={})
    variants = {
        "free": linear,
        "short": dataclasses.replace(linear, max_norm=0.1),
        "shorter": dataclasses.replace(linear, max_norm=0.05),
        "reweighted": dataclasses.replace(linear, loss_options={"reweight_from": 1}),
        "never": dataclasses.replace(linear, loss_options={"reweight_from": 9}),
    }
    longest = {name: [] for name in variants}

    def look(step, heads):
        for name, head in heads.items():
            longest[name].append(head.weight.norm(dim=1).max().item())

    heads = learn_heads(variants, frozen, seed=0, watch=look, watch_every=1)
    assert max(longest["short"][1:]) <= 0.1 * (1 + 1e-6)
    assert max(longest["shorter"][1:]) <= 0.05 * (1 + 1e-6)
    assert max(longest["free"]) > 0.2
    assert torch.allclose(heads["never"].weight, heads["free"].weight)
    assert not torch.allclose(heads["reweighted"].weight, heads["free"].weight)
    with pytest.raises(ValueError, match="max_norm=1: PrototypeHead"):
        learn_heads({"": dataclasses.replace(SETTINGS, max_norm=1.0)}, frozen, seed=0)


def test_the_backbone_is_not_touched(frozen):
    before = weights_hash(frozen.backbone)
    learn_heads({"pc": SETTINGS, "published": PUBLISHED}, frozen, seed=0)
    assert weights_hash(frozen.backbone) == before
    assert not any(p.grad is not None for p in frozen.backbone.parameters())


def drifted_by_hand(frozen, settings, n_steps):
    """Walk through the epochs as the published code does: eval mode in the first, then train."""
    backbone, images = copy.deepcopy(frozen.backbone), small_images().train
    sampler = make_sampler("class-balanced", images.labels, seed=1, run=4)
    loader = make_loader(images, settings.augment, seed=1, device=CPU)
    batches = []
    with torch.no_grad():
        for epoch in range(settings.epochs):
            backbone.train(epoch > 0)
            for batch in loader.batches(sampler, settings.batch_size, epoch):
                if len(batches) < n_steps:
                    pixels, labels = loader(batch)[:2]
                    batches.append((backbone(pixels), labels))
    return backbone.eval(), batches


@pytest.mark.parametrize("max_steps", [None, 10, 23, 30])  # an epoch has 15
def test_batch_norms_as_published(frozen, max_steps):
    settings = dataclasses.replace(PUBLISHED, max_steps=max_steps)
    backbone, batches = drifted_by_hand(frozen, settings, max_steps or 45)
    drifted = frozen.for_stage(settings, 1)
    for name, tensor in backbone.state_dict().items():
        torch.testing.assert_close(drifted.backbone.state_dict()[name], tensor)
    parts = [
        drifted.stream(Stream.of(settings), 1, epoch) for epoch in range(-(-len(batches) // 15))
    ]
    for found, expected in zip(zip(*parts, strict=True), zip(*batches, strict=True), strict=True):
        whole = torch.cat(expected)
        torch.testing.assert_close(torch.cat(found)[: len(whole)], whole, rtol=1e-4, atol=1e-5)
    head = learn_heads({"pc": settings}, frozen, seed=1)["pc"]
    prototypes = learned_by_hand(class_means(*frozen.clean("float32")), batches)
    torch.testing.assert_close(head.prototypes, prototypes, rtol=1e-3, atol=1e-4)
    drift = (drifted.test() - frozen.test()).norm() / frozen.test().norm()
    assert drift == 0 if max_steps == 10 else drift > 0.01


def test_batch_norms_drift_once_for_all_heads(frozen):
    drifted = frozen.for_stage(PUBLISHED, 0)
    other_head = dataclasses.replace(PUBLISHED, lr=0.1, head_options={"distance": "cosine"})
    assert frozen.for_stage(other_head, 0) is drifted
    assert drifted.for_stage(PUBLISHED, 0) is drifted
    for other, seed in (
        (PUBLISHED, 1),
        (dataclasses.replace(PUBLISHED, batch_size=8), 0),
        (dataclasses.replace(PUBLISHED, epochs=2), 0),
        (dataclasses.replace(PUBLISHED, augment=()), 0),
    ):
        assert not torch.equal(frozen.for_stage(other, seed).test(), drifted.test())
    for still in (SETTINGS, dataclasses.replace(SETTINGS, epochs=5)):
        assert frozen.for_stage(still, 0) is frozen
        assert drifted.for_stage(still, 0) is frozen
    assert frozen.for_stage(dataclasses.replace(PUBLISHED, epochs=1), 0) is frozen
    for given in (frozen, drifted):
        heads = learn_heads({"published": PUBLISHED, "eval": SETTINGS}, given, seed=0)
        for name, one in (("published", PUBLISHED), ("eval", SETTINGS)):
            alone = learn_heads({name: one}, frozen, seed=0)[name]
            assert torch.equal(heads[name].prototypes, alone.prototypes)


def test_stage_2_learns_from_its_own_images():
    torch.manual_seed(0)
    backbone = make_backbone(TINY)
    one, other = small_images(), small_images(seed=5)
    both = dataclasses.replace(one, classifier_train=other.train)
    found, expected, unlike = (
        FrozenFeatures(backbone, data, CPU)
        for data in (both, dataclasses.replace(one, train=other.train), one)
    )
    for settings in (SETTINGS, PUBLISHED, dataclasses.replace(SETTINGS, centroids="clean")):
        heads = [
            learn_heads({"": settings}, each, seed=0)[""] for each in (found, expected, unlike)
        ]
        assert torch.equal(heads[0].prototypes, heads[1].prototypes)
        assert not torch.equal(heads[0].prototypes, heads[2].prototypes)
    assert torch.equal(found.test(), unlike.test())
    assert found.counts.tolist() == [60, 30, 15, 8]


@pytest.mark.parametrize("form", ["exp", "square"])
def test_temperatures_have_a_rate_and_a_decay_of_their_own(frozen, form):
    options = {"temperature": "channel", "temperature_form": form, "initial_temperature": 2.0}
    settings = dataclasses.replace(
        SETTINGS, head_options=options, temperature_lr=0.1, temperature_weight_decay=5.0
    )
    head = learn_heads({"": settings}, frozen, seed=0)[""]
    first, second = _parameter_groups({"": settings}, {"": head})
    assert first["params"] == [head.prototypes]
    assert (first["lr"], first["weight_decay"]) == (0.5, 0.0)
    assert second["params"] == [head.learned_temperature]
    assert (second["lr"], second["weight_decay"]) == (0.1, 5.0)
    # Without decay it hardly moves; with it, what is learned ends close to 0.
    assert ((head.temperature - (1.0 if form == "exp" else 0.0)).abs() < 0.5).all()


def test_features_of_test_images(frozen, tmp_path):
    data = small_images()
    flipped = dataclasses.replace(data.test, pixels=data.test.pixels[..., ::-1].copy())
    torch.testing.assert_close(frozen.test(), frozen.of(data.test, "float32"))
    torch.testing.assert_close(frozen.test(flipped=True), frozen.of(flipped, "float32"))
    assert frozen.test().dtype == torch.float32
    assert frozen.test_labels.tolist() == data.test.labels.tolist()
    FrozenFeatures(frozen.backbone, data, CPU, FeatureCache(tmp_path)).test()
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


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


def test_small_steps_take_one_thread(frozen):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []
    try:
        learn_heads(
            {"pc": SETTINGS},
            frozen,
            seed=0,
            watch=lambda step, heads: seen.append(torch.get_num_threads()),
            watch_every=4,
        )
        assert seen[0] == torch.get_num_threads() == 2
        assert set(seen[1:]) == {1}
    finally:
        torch.set_num_threads(before)


LINEAR = ClassifierSettings(
    head="linear",
    start="representation",
    centroids=None,
    loss="cross-entropy",
    epochs=2,
    lr=0.05,
    batch_size=16,
    augment=("flip",),
    precision="float32",
)


@pytest.fixture(scope="module")
def first(frozen):
    torch.manual_seed(1)
    return LinearHead(4, frozen.n_features)


def learn(frozen, first, **changes):
    settings = replace(LINEAR, **changes)
    return learn_heads({"": settings}, frozen, seed=0, first_head=first)[""]


def test_without_a_step_it_is_the_head_of_stage_1(frozen, first):
    head = learn(frozen, first, epochs=0)
    assert torch.equal(head.weight, first.weight)
    assert torch.equal(head.bias, first.bias)


def test_the_head_of_stage_1_stays_as_it_was(frozen, first):
    before = first.weight.clone()
    head = learn(frozen, first)
    assert torch.equal(first.weight, before)
    assert not torch.equal(head.weight, before)


def test_a_new_head_has_nothing_of_it(frozen, first):
    head = learn(frozen, first, start="new", epochs=0)
    assert not torch.equal(head.weight, first.weight)


def test_without_a_head_to_begin_with_it_says_so(frozen):
    with pytest.raises(ValueError, match="'linear' begins with the one that stage 1 has learned"):
        learn(frozen, None)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_rows_stay_within_a_part_of_what_they_were(frozen, first, every):
    lengths = first.weight.norm(dim=1)
    limit = lengths.min() + 0.1 * (lengths.max() - lengths.min())
    free = learn(frozen, first)
    head = learn(frozen, first, max_norm_part=0.1, max_norm_every=every)
    assert (free.weight.norm(dim=1) > 1.001 * limit).any()
    assert (head.weight.norm(dim=1) <= limit * (1 + 1e-6)).all()


def test_an_endless_part_constrains_nothing(frozen, first):
    free, endless = learn(frozen, first), learn(frozen, first, max_norm_part=float("inf"))
    assert torch.equal(free.weight, endless.weight)


def test_once_an_epoch_is_another_thing_than_every_step(frozen, first):
    heads = [
        learn(frozen, first, max_norm_part=0.1, max_norm_every=every) for every in ("step", "epoch")
    ]
    assert not torch.equal(heads[0].weight, heads[1].weight)


def test_the_rate_rises_from_0_in_the_first_epochs(frozen, first):
    """One step of a whole epoch's rise: its rate is 0."""
    risen = learn(frozen, first, warm_up_epochs=1.0, max_steps=1, weight_decay=0.0)
    np.testing.assert_array_equal(risen.weight.detach(), first.weight.detach())
    assert not torch.equal(learn(frozen, first, max_steps=1).weight, first.weight)


def test_a_learned_head_is_in_eval_mode(frozen, first):
    assert not learn(frozen, first).training
