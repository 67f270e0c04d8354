"""Distillation of mixtures against loops in float64, on its special cases, and trained."""

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
from protail.methods import METHODS, ImageBatch, make_method, register_method
from protail.models.heads.linear import CosineHead, LinearHead
from protail.training.batches import mix_views
from protail.training.optimisation import MovingAverage
from reference.augment import Kernels
from reference.mixture_consistency_by_loop import cosine_logits, disagreement, mixed_loss
from reference.mixture_distillation_by_loop import taught_loss
from reference.paco_by_loop import arrays, linear
from reference.small_images import small_images
from reference.small_methods import COUNTS, coloured_images, default_dtype, small_method
from reference.small_recipes import small_distillation as small_recipe

N_FEATURES = 5
LOSSES = {
    "cross-entropy": [0.0] * len(COUNTS),
    "logit-adjusted": [0.25 * math.log(n) for n in COUNTS],
}


class Flat(nn.Linear):
    """A backbone of one layer, for images of three numbers."""

    n_features = N_FEATURES

    def forward(self, images):
        return super().forward(images.flatten(1))


def made(
    name="mixture-distillation",
    seed=0,
    dtype=torch.float64,
    head=LinearHead,
    loss="cross-entropy",
    **options,
):
    """Make a method whose teacher, where it has one, is another network."""
    torch.manual_seed(seed)
    with default_dtype(dtype):
        parts = Flat(3, N_FEATURES), head(len(COUNTS), N_FEATURES), make_loss(loss, COUNTS)
        method = make_method(name, *parts, COUNTS, **{"projection": 4, **options})
        if name == "mixture-distillation":
            for parameter in method.teacher.parameters():
                parameter.normal_()
    return method


def batch_of(labels, fractions=(0.3, 0.45), seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, len(labels), 3, 1, 1, generator=generator, dtype=dtype)
    fraction, second_fraction = (torch.tensor(each, dtype=dtype) for each in fractions)
    classes = torch.tensor(labels), torch.tensor(labels[::-1])
    return ImageBatch(views[0], *classes, fraction, views[1], second_fraction)


def halves(rows):
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def logits_by_loop(network, features):
    if isinstance(network.head, LinearHead):
        return linear(features, *arrays(network.head.parameters()))
    return cosine_logits(features, *arrays([network.head.weight]), network.head.scale)


def parts_by_loop(method, batch, loss="cross-entropy"):
    """Compute the three parts of the loss; give the aims of the disagreement too."""
    images = np.concatenate(arrays([batch.images.flatten(1), batch.second.flatten(1)]))
    features, others = (
        linear(images, *arrays(network.backbone.parameters()))
        for network in (method, method.teacher)
    )
    logits, aims = logits_by_loop(method, features), logits_by_loop(method.teacher, others)
    classes = batch.labels.tolist(), batch.other.tolist()
    labelled = [
        mixed_loss(view, *classes, fraction.item(), LOSSES[loss])
        for view, fraction in zip(
            halves(logits), (batch.fraction, batch.second_fraction), strict=True
        )
    ]
    taught = taught_loss(logits, aims, COUNTS, tau=method.tau, temperature=method.temperature)
    projected = linear(features, *arrays(method.projector.parameters()))
    predicted = linear(projected, *arrays(method.predictor.parameters()))
    return sum(labelled) / 2, taught, halves(projected), halves(predicted)


def sum_of_parts(method, labelled, taught, *compared):
    by_labels, by_teacher = (1 - method.taught) * labelled, method.taught * taught
    return by_labels + by_teacher + method.weight * disagreement(*compared)


labels_of = st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=5)
shares_of = st.tuples(st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=40, deadline=None)
@given(
    labels_of,
    shares_of,
    st.fixed_dictionaries(
        {
            "weight": st.floats(0, 20),
            "taught": st.floats(0, 1),
            "tau": st.floats(0, 2),
            "temperature": st.floats(0.2, 10),
        }
    ),
    st.sampled_from([LinearHead, CosineHead]),
    st.sampled_from(sorted(LOSSES)),
    st.integers(0, 1000),
)
def test_it_is_the_loop(labels, fractions, options, head, loss, seed):
    method = made(seed=seed, head=head, loss=loss, **options)
    batch = batch_of(labels, fractions, seed)
    expected = sum_of_parts(method, *parts_by_loop(method, batch, loss))
    assert method(batch).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("tau", "temperature"), [(0.0, 1.0), (1.0, 1.0), (0.5, 3.0)])
def test_gradients_are_slopes_of_the_loop(tau, temperature):
    method = made(weight=3.0, taught=0.6, tau=tau, temperature=temperature)
    batch = batch_of([0, 1, 0, 3])
    method(batch).backward()
    _, _, aims, _ = parts_by_loop(method, batch)
    learning = [each for each in method.parameters() if each.requires_grad]
    for place_of, parameter in enumerate(learning):
        where = tuple(0 for _ in parameter.shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = copy.deepcopy(method)
            with torch.no_grad():
                [each for each in moved.parameters() if each.requires_grad][place_of][where] += step
            labelled, taught, _, predicted = parts_by_loop(moved, batch)
            ends.append(sum_of_parts(method, labelled, taught, aims, predicted))
        slope = (ends[0] - ends[1]) / 2e-5
        assert parameter.grad[where].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@settings(max_examples=15, deadline=None)
@given(labels_of, shares_of, st.sampled_from(sorted(LOSSES)), st.integers(0, 1000))
def test_without_a_share_of_the_teacher_it_is_consistency(labels, fractions, loss, seed):
    method = made(seed=seed, loss=loss, taught=0.0)
    plain = made("mixture-consistency", seed, loss=loss)
    batch = batch_of(labels, fractions)
    torch.testing.assert_close(method(batch), plain(batch), rtol=0, atol=0)


def test_a_student_that_says_what_its_teacher_says_has_nothing_to_learn_from_it():
    method, batch = made(taught=1.0, weight=0.0, tau=0.5, temperature=2.0), batch_of([0, 1, 3])
    assert method(batch) > 0.01
    method.backbone.load_state_dict(method.teacher.backbone.state_dict())
    method.head.load_state_dict(method.teacher.head.state_dict())
    loss = method(batch)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert method.head.weight.grad.abs().max() < 1e-12


def test_one_that_is_only_taught_does_not_look_at_labels():
    method, batch = made(taught=1.0), batch_of([0, 1, 3])
    assert method(batch) == method(batch._replace(labels=batch.other, other=batch.labels))


def test_tau_compares_as_if_classes_were_equally_frequent():
    """With tau 1, logits that are the shares' logarithms say that all classes are alike."""
    method, batch = made(taught=1.0, weight=0.0, tau=1.0), batch_of([0, 1])
    with torch.no_grad():
        for network in (method, method.teacher):
            network.head.weight.zero_()
        method.head.bias.zero_()
        method.teacher.head.bias.copy_(torch.tensor(COUNTS).double().log())
    prior = np.array(COUNTS) / sum(COUNTS)
    inverse = 1 / prior / (1 / prior).sum()
    even = 1 / len(COUNTS)
    assert method(batch).item() == pytest.approx(sum(even * np.log(even / inverse)), rel=1e-9)
    method.tau = 0.0
    assert method(batch).item() == pytest.approx(sum(prior * np.log(prior / even)), rel=1e-9)


def test_high_temperatures_compare_logits():
    """T^2 KL becomes half the variance over classes of how far logits are apart."""
    method, batch = made(taught=1.0, weight=0.0, temperature=1e4), batch_of([0, 1, 3])
    images = torch.cat([batch.images, batch.second])
    apart = method.logits(images) - method.teacher.logits(images)
    expected = apart.var(1, correction=0).mean() / 2
    torch.testing.assert_close(method(batch), expected, rtol=1e-3, atol=0)


def test_half_precision_ends_before_the_divergence():
    method = made(dtype=torch.float32, taught=1.0, weight=0.0, tau=0.5, temperature=2.0)
    batch = batch_of([0, 1, 0, 3], dtype=torch.float32)
    images = torch.cat([batch.images, batch.second])
    with torch.autocast("cpu", torch.bfloat16):
        loss = method(batch)
        logits, aims = (each.head(each.backbone(images)) for each in (method, method.teacher))
    assert logits.dtype == aims.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    expected = taught_loss(logits.tolist(), aims.tolist(), COUNTS, tau=0.5, temperature=2.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_confident_teachers_and_students_leave_numbers():
    method, batch = (
        made(dtype=torch.float32, temperature=0.1),
        batch_of([0, 1], dtype=torch.float32),
    )
    with torch.no_grad():
        method.head.weight.mul_(1e4)
        method.teacher.head.weight.mul_(-1e4)
    loss = method(batch)
    loss.backward()
    assert loss.isfinite()
    learning = [each for each in method.parameters() if each.requires_grad]
    assert all(each.grad.isfinite().all() for each in learning)


def mixed_colours(n, seed):
    fraction = torch.tensor(0.5 + 0.5 * (seed % 8) / 8)
    return mix_views(
        coloured_images(n, seed), fraction, torch.arange(n), seed, kind="mixup-cutmix", seed=0
    )


def small_distillation(**options):
    return small_method("mixture-distillation", **{"projection": 8, **options})


def same(one, other):
    return {name: torch.equal(tensor, other[name]) for name, tensor in one.items()}


def test_nothing_of_the_teacher_changes_in_training_and_all_the_rest_does():
    method = small_distillation()
    before = copy.deepcopy(method.state_dict())
    method.train()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(2):
        method(mixed_colours(8, step)).backward()
        optimizer.step()
    assert all(each.grad is None for each in method.teacher.parameters())
    for name, stayed in same(method.state_dict(), before).items():
        frozen = name.startswith("teacher.") or name == "log_prior"
        assert stayed == frozen, name


def test_the_teacher_sees_in_eval_mode_what_the_student_sees_in_one_pass():
    method, seen = small_distillation().eval().train(), []
    for network in (method, method.teacher):
        network.backbone.register_forward_hook(
            lambda module, given, _: seen.append((module.training, given[0]))
        )
    batch = mixed_colours(6, 0)
    method(batch)
    assert [training for training, _ in seen] == [True, False]
    both = torch.cat([batch.images, batch.second])
    assert all(torch.equal(images, both) for _, images in seen)


def test_the_teacher_is_in_eval_mode_from_the_first():
    method = small_distillation()
    assert method.training
    assert not any(each.training for each in method.teacher.modules())
    assert not any(each.requires_grad for each in method.teacher.parameters())
    assert not any(each.training for each in method.eval().modules())


def test_an_average_keeps_the_teacher():
    method = small_distillation()
    for norm in method.teacher.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
    average = MovingAverage(method, 0.9)
    before = copy.deepcopy(method.state_dict())
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.head.parameters()):
            parameter.add_(0.1)
    average.update()
    average.recompute_batch_norms([mixed_colours(6, 0)], average.average)
    after = same(average.average.state_dict(), before)
    assert all(stayed for name, stayed in after.items() if name.startswith("teacher."))
    assert not after["backbone.bn1.running_mean"]
    assert not average.average.training


def test_the_loss_is_saved_once():
    method = made(loss="logit-adjusted")
    own = {name.split(".")[0] for name in method.state_dict()}
    assert own == {
        *("backbone", "head", "loss", "projector", "predictor"),
        *("teacher", "log_prior"),
    }
    parts = {name.split(".")[1] for name in method.teacher.state_dict(prefix="teacher.")}
    assert parts == {"backbone", "head"}


def test_parameters_and_buffers_are_all_there_is():
    method, other = made(tau=1.0), made(tau=1.0, seed=5)
    batch = batch_of([0, 1, 3])
    assert other(batch) != method(batch)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other(batch), method(batch))


def test_a_small_network_learns_of_its_teacher_alone():
    """Whose classes are others than the labels say: it is the teacher that is followed."""
    method = small_distillation(taught=1.0)
    teacher = small_method("standard")
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9)
    for step in range(40):
        shown = coloured_images(16, step)
        loss = teacher(ImageBatch(shown.images, (shown.labels + 1) % len(COUNTS)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for part in ("backbone", "head"):
        getattr(method.teacher, part).load_state_dict(getattr(teacher, part).state_dict())
    learning = [each for each in method.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.05, momentum=0.9)
    for step in range(60):
        loss = method(mixed_colours(16, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    evaluated = coloured_images(64, 99)
    method.eval()
    said = method.logits(evaluated.images).argmax(1)
    assert (said == (evaluated.labels + 1) % len(COUNTS)).float().mean() > 0.9


def test_a_graph_can_hold_a_step():
    method, batch = small_distillation(tau=0.5), mixed_colours(6, 0)
    with Kernels() as kernels:
        method(batch).backward()
    assert "_log_softmax" in kernels.names


def test_a_step_is_one_graph():
    torch._dynamo.reset()
    method, batch = made(tau=0.5, temperature=2.0), batch_of([0, 1, 0, 3])
    compiled = torch.compile(method, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), method(batch))


def test_it_says_what_it_needs():
    needs = {"views": 2, "heads": (), "losses": (), "mixes": "always", "pretrained": "teacher"}
    assert METHODS.needs("mixture-distillation").items() >= needs.items()


@pytest.mark.parametrize("pretrained", ["student", "always", None])
def test_what_is_trained_before_is_a_teacher_or_the_beginning(pretrained):
    with pytest.raises(ValueError, match=r"pretrained=.*; expected one of True, False, 'teacher'"):
        register_method("never", pretrained=pretrained)


@pytest.mark.parametrize("missing", ["second", "other", "fraction", "second_fraction"])
def test_batches_it_cannot_take_are_refused(missing):
    words = rf"batch\.{missing} is missing; 'mixture-distillation' expected two views"
    with pytest.raises(ValueError, match=words):
        made()(batch_of([0, 1])._replace(**{missing: None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taught": -0.1}, "taught=-0.1; expected a number >= 0 and <= 1"),
        ({"taught": 1.1}, "taught=1.1"),
        ({"taught": math.nan}, "taught=nan"),
        ({"tau": -1.0}, "tau=-1.0; expected a finite number >= 0"),
        ({"tau": math.inf}, "tau=inf"),
        ({"tau": math.nan}, "tau=nan"),
        ({"temperature": 0.0}, "temperature=0.0; expected a finite number > 0"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"weight": -1.0}, "weight=-1.0"),
        ({"projection": 0}, "projection=0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_classes_without_images_have_no_logarithm():
    parts = Flat(3, N_FEATURES), LinearHead(3, N_FEATURES), nn.CrossEntropyLoss()
    with pytest.raises(ValueError, match="1 empty of 3 classes"):
        make_method("mixture-distillation", *parts, [3, 0, 1])


def test_a_recipe_with_it_is_trained_and_judged(tmp_path):
    """As it is, tests/recipes/test_every_recipe.py trains it."""
    data = small_images(counts=(48, 24, 12, 8), size=24)
    job = Job(small_recipe(ema=0.9, tau=1.0, temperature=2.0), data, 0, tmp_path / "run")
    [record] = run_jobs([job], Options(torch.device("cpu"), "plain"))
    assert record["representation"]["plain"]["all"] > 1.5 / data.train.profile.n_classes
