"""Consistency of mixtures against loops in float64, on its special cases, and trained."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protail.experiments import Job, Options, run_jobs
from protail.losses.registry import make_loss
from protail.methods import METHODS, ImageBatch, make_method
from protail.models.heads.linear import CosineHead, LinearHead
from protail.training.batches import mix_views
from reference.augment import Kernels
from reference.mixture_consistency_by_loop import cosine_logits, disagreement, mixed_loss
from reference.paco_by_loop import arrays, linear
from reference.small_images import small_images
from reference.small_methods import COUNTS, coloured_images, default_dtype, small_method
from reference.small_recipes import small_recipe

N_FEATURES = 5
LOSSES = {
    "cross-entropy": [0.0] * len(COUNTS),
    "logit-adjusted": [0.75 * math.log(n) for n in COUNTS],
}
OPTIONS = {"cross-entropy": {}, "logit-adjusted": {"tau": 0.75}}


class Flat(nn.Linear):
    """A backbone of one layer, for images of three numbers."""

    n_features = N_FEATURES

    def forward(self, images):
        return super().forward(images.flatten(1))


def consistency(seed=0, dtype=torch.float64, head=LinearHead, loss="cross-entropy", **options):
    torch.manual_seed(seed)
    with default_dtype(dtype):
        return make_method(
            "mixture-consistency",
            Flat(3, N_FEATURES),
            head(len(COUNTS), N_FEATURES),
            make_loss(loss, COUNTS, **OPTIONS[loss]),
            COUNTS,
            **{"projection": 4, **options},
        )


def batch_of(labels, other=None, fractions=(0.3, 0.45), seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, len(labels), 3, 1, 1, generator=generator, dtype=dtype)
    fraction, second_fraction = (torch.tensor(each, dtype=dtype) for each in fractions)
    other = torch.as_tensor(labels[::-1] if other is None else other)
    return ImageBatch(views[0], torch.tensor(labels), other, fraction, views[1], second_fraction)


def halves(rows):
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def parts_by_loop(method, batch):
    """Compute both views' mixed losses, projections and predictions out of the parameters."""
    images = np.concatenate(arrays([batch.images.flatten(1), batch.second.flatten(1)]))
    features = linear(images, *arrays(method.backbone.parameters()))
    if isinstance(method.head, LinearHead):
        logits = linear(features, *arrays(method.head.parameters()))
    else:
        logits = cosine_logits(features, *arrays([method.head.weight]), method.head.scale)
    projected = linear(features, *arrays(method.projector.parameters()))
    predicted = linear(projected, *arrays(method.predictor.parameters()))
    classes = batch.labels.tolist(), batch.other.tolist()
    adjusted = "logit-adjusted" if hasattr(method.loss, "tau") else "cross-entropy"
    losses = [
        mixed_loss(view, *classes, fraction.item(), LOSSES[adjusted])
        for view, fraction in zip(
            halves(logits), (batch.fraction, batch.second_fraction), strict=True
        )
    ]
    return losses, halves(projected), halves(predicted)


labels_of = st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=5)
shares_of = st.tuples(st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=30, deadline=None)
@given(
    labels_of,
    shares_of,
    st.floats(0, 20),
    st.integers(1, 6),
    st.sampled_from([LinearHead, CosineHead]),
    st.sampled_from(sorted(LOSSES)),
    st.integers(0, 1000),
)
def test_it_is_the_loop(labels, fractions, weight, projection, head, loss, seed):
    method = consistency(seed, head=head, loss=loss, weight=weight, projection=projection)
    batch = batch_of(labels, fractions=fractions, seed=seed)
    losses, *compared = parts_by_loop(method, batch)
    expected = sum(losses) / 2 + weight * disagreement(*compared)
    assert method(batch).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(labels_of, shares_of, st.sampled_from(sorted(LOSSES)), st.integers(0, 1000))
def test_weight_0_leaves_the_mean_of_both_mixed_losses(labels, fractions, loss, seed):
    method, batch = consistency(seed, loss=loss, weight=0.0), batch_of(labels, fractions=fractions)
    standard = make_method("standard", method.backbone, method.head, method.loss, COUNTS)
    first = standard(batch)
    second = standard(batch._replace(images=batch.second, fraction=batch.second_fraction))
    torch.testing.assert_close(method(batch), (first + second) / 2)


def test_gradients_are_those_of_the_loop_with_the_aims_held_fixed():
    method, batch = consistency(weight=3.0), batch_of([0, 1, 0, 3])
    method(batch).backward()
    _, aims, _ = parts_by_loop(method, batch)
    for parameter in (*method.projector.parameters(), *method.backbone.parameters()):
        place = tuple(0 for _ in parameter.shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = copy.deepcopy(method)
            twin = dict(zip(method.parameters(), moved.parameters(), strict=True))[parameter]
            with torch.no_grad():
                twin[place] += step
            losses, _, predicted = parts_by_loop(moved, batch)
            ends.append(sum(losses) / 2 + 3.0 * disagreement(aims, predicted))
        slope = (ends[0] - ends[1]) / 2e-5
        assert parameter.grad[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_nothing_is_learned_through_the_aim():
    """Of a predictor that says the same of all, only the aim still hangs on the projector."""
    method, batch = consistency(), batch_of([0, 1, 0, 3])
    method(batch).backward()
    assert method.projector.weight.grad.any()
    method.zero_grad(set_to_none=False)
    with torch.no_grad():
        method.predictor.weight.zero_()
    method(batch).backward()
    assert not method.projector.weight.grad.any()
    assert not method.projector.bias.grad.any()
    assert method.predictor.bias.grad.any()


def test_views_that_are_the_same_still_have_shares_of_their_own():
    method, batch = consistency(weight=0.0), batch_of([0, 1, 2], fractions=(1.0, 0.0))
    batch = batch._replace(second=batch.images)
    logits = method.logits(batch.images)
    both = method.loss(logits, batch.labels) + method.loss(logits, batch.other)
    torch.testing.assert_close(method(batch), both / 2)


@pytest.mark.parametrize("layer", ["projector", "predictor"])
def test_what_has_no_direction_disagrees_by_1_and_teaches_nothing(layer):
    method, batch = consistency(weight=2.0), batch_of([0, 1, 0])
    plain = consistency(weight=0.0)
    with torch.no_grad():
        for parameter in getattr(method, layer).parameters():
            parameter.zero_()
        if layer == "projector":
            method.predictor.bias.zero_()
    loss = method(batch)
    torch.testing.assert_close(loss, plain(batch) + 2.0)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
    assert not method.projector.weight.grad.any()


def test_half_precision_ends_before_the_cosines():
    method = consistency(dtype=torch.float32, weight=3.0)
    batch = batch_of([0, 1, 0, 3], dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = method(batch)
        features = method.backbone(torch.cat([batch.images, batch.second]))
        logits, z = method.head(features), method.projector(features)
        p = method.predictor(z)
    assert logits.dtype == p.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    logits, z, p = (halves(each.detach().double().numpy()) for each in (logits, z, p))
    classes = batch.labels.tolist(), batch.other.tolist()
    losses = [
        mixed_loss(view, *classes, fraction.item(), LOSSES["cross-entropy"])
        for view, fraction in zip(logits, (batch.fraction, batch.second_fraction), strict=True)
    ]
    expected = sum(losses) / 2 + 3.0 * disagreement(z, p)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def mixed_colours(n, seed):
    fraction = torch.tensor(0.5 + 0.5 * (seed % 8) / 8)
    return mix_views(
        coloured_images(n, seed), fraction, torch.arange(n), seed, kind="mixup-cutmix", seed=0
    )


def test_a_small_network_learns_and_its_views_come_to_agree():
    method = small_method("mixture-consistency", projection=8)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    losses, apart = [], []
    for step in range(60):
        batch = mixed_colours(16, step)
        loss = method(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            views = torch.cat([batch.images, batch.second])
            apart.append(method._disagreement(method.features(views)).item())
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    assert np.mean(apart[-5:]) < np.mean(apart[:5]) / 2
    evaluated = coloured_images(64, 99)
    method.eval()
    assert (method.logits(evaluated.images).argmax(1) == evaluated.labels).float().mean() > 0.9


def test_the_backbone_runs_once_over_both_views():
    method, sizes = small_method("mixture-consistency"), []
    method.backbone.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    method(mixed_colours(6, 0))
    assert sizes == [12]


def test_a_graph_can_hold_a_step():
    method, batch = small_method("mixture-consistency", projection=8), mixed_colours(6, 0)
    with Kernels() as kernels:
        method(batch).backward()
    assert "roll" in kernels.names


def test_a_step_is_one_graph():
    torch._dynamo.reset()
    method, batch = consistency(), batch_of([0, 1, 0, 3])
    compiled = torch.compile(method, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), method(batch))


def test_it_says_what_it_needs():
    needs = {"views": 2, "heads": (), "losses": (), "mixes": "always", "pretrained": False}
    assert METHODS.needs("mixture-consistency").items() >= needs.items()


@pytest.mark.parametrize("missing", ["second", "other", "fraction", "second_fraction"])
def test_batches_it_cannot_take_are_refused(missing):
    with pytest.raises(ValueError, match=rf"batch\.{missing} is missing.*two views"):
        consistency()(batch_of([0, 1])._replace(**{missing: None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -0.1}, "weight=-0.1"),
        ({"weight": math.inf}, "weight=inf"),
        ({"weight": math.nan}, "weight=nan"),
        ({"projection": 0}, "projection=0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        consistency(**options)


COSINE = {"head": "cosine", "loss": "logit-adjusted"}


@pytest.mark.parametrize(
    ("mixing", "parts"),
    [
        ({"mixup": 1.0, "cutmix": 1.0}, {"head": "linear"}),
        ({"mixup": 0.0, "cutmix": 1.0}, COSINE),
    ],
)
def test_a_recipe_with_it_is_trained_and_judged(mixing, parts, tmp_path):
    changes = {
        "method": "mixture-consistency",
        "projection": 8,
        "second_view": ["crop", "flip"],
        "ema": 0.9,
        **mixing,
        **parts,
    }
    recipe = small_recipe("mixup").with_overrides(
        {f"representation.{key}": value for key, value in changes.items()}
    )
    data = small_images(counts=(48, 24, 12, 8), size=24)
    job = Job(recipe, data, 0, tmp_path / "run")
    [record] = run_jobs([job], Options(torch.device("cpu"), "plain"))
    assert record["representation"]["plain"]["all"] > 1.5 / data.train.profile.n_classes
