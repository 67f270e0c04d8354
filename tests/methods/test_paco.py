"""PaCo against loops in float64, on its special cases, and trained for a few steps."""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protail.losses import make_loss
from protail.methods import METHODS, ImageBatch, make_method
from protail.models.heads import LinearHead
from reference import paco_together
from reference.augment import Kernels
from reference.paco_by_loop import PaCoByLoop, arrays, embeddings, linear, paco_loss, scores
from reference.patience import PATIENCE
from reference.small_methods import (
    COUNTS,
    OTHER_LOSSES,
    coloured_images,
    default_dtype,
    losses_of_steps,
    small_method,
)

PRIOR = [n / 80 for n in COUNTS]
N_FEATURES = 5


class Flat(nn.Linear):
    """A backbone of one layer, for images of three numbers."""

    def forward(self, images):
        return super().forward(images.flatten(1))


def paco(seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    options = {"queue": 9, "projection": 4, **options}
    with default_dtype(dtype):
        parts = Flat(3, N_FEATURES), LinearHead(len(COUNTS), N_FEATURES), nn.CrossEntropyLoss()
        return make_method("paco", *parts, COUNTS, **options)


def batch_of(labels, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, len(labels), 3, 1, 1, generator=generator, dtype=dtype)
    return ImageBatch(views[0], torch.as_tensor(labels), second=views[1])


def by_loop(method, batch):
    """What goes into the loss of a first step: logits, queries, keys, labels, queue, prior."""
    backbone, projector = (
        arrays(method.backbone.parameters()),
        arrays(method.projector.parameters()),
    )
    features = linear(batch.images.flatten(1).numpy(), *backbone)
    second = linear(batch.second.flatten(1).numpy(), *backbone)
    return (
        linear(features, *arrays(method.head.parameters())),
        embeddings(features, projector),
        embeddings(second, projector),  # key networks start as copies: a step changes nothing
        batch.labels.tolist(),
        arrays([method.queue_keys])[0],
        method.queue_labels.tolist(),
        PRIOR,
    )


def options_of(method):
    return {name: getattr(method, name) for name in ("alpha", "beta", "gamma", "temperature")}


LABELS = st.lists(st.integers(0, len(COUNTS) - 1), min_size=2, max_size=6)


@settings(max_examples=40)
@given(
    labels=LABELS,
    seed=st.integers(0, 99),
    queue=st.integers(6, 12),
    alpha=st.sampled_from([0.0, 0.01, 0.7]),
    beta=st.floats(0.1, 2),
    gamma=st.sampled_from([0.0, 0.3, 1.0]),
    temperature=st.floats(0.05, 2),
)
def test_the_loss_equals_a_loop(labels, seed, queue, **options):
    method, batch = paco(seed, queue=queue, **options), batch_of(labels, seed)
    expected = paco_loss(*by_loop(method, batch), **options)
    assert method(batch).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("key_momentum", [0.25, 0.999])
def test_steps_with_their_queue_and_key_networks_equal_a_loop(key_momentum):
    method = paco(key_momentum=key_momentum, alpha=0.5, temperature=0.2)
    loop = PaCoByLoop(method)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    places = [t.data_ptr() for t in (*method.parameters(), *method.buffers())]
    for step, size in enumerate([4, 4, 4, 3, 9, 2]):  # wraps around, fills all, a short last one
        batch = batch_of([(step + i) % 4 for i in range(size)], seed=step)
        loss = method(batch)
        views = (view.flatten(1).numpy() for view in (batch.images, batch.second))
        expected = loop.step(*views, batch.labels.tolist(), PRIOR)
        assert loss.item() == pytest.approx(expected, rel=1e-8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    keys, labels = zip(*loop.queue, strict=True)
    np.testing.assert_allclose(method.queue_keys, keys, rtol=1e-8)
    assert method.queue_labels.tolist() == list(labels)
    assert method.queue_place.item() == loop.place == sum([4, 4, 4, 3, 9, 2]) % 9
    own = [*method.key_backbone.parameters(), *method.key_projector.parameters()]
    for tensor, expected in zip(own, loop.key_parameters, strict=True):
        np.testing.assert_allclose(tensor, expected, rtol=1e-8)
    # A captured step looks where they were.
    assert places == [t.data_ptr() for t in (*method.parameters(), *method.buffers())]


def test_gradients_equal_slopes_of_the_loop():
    """Through both sides of products of queries, and never through keys or queue."""
    method, batch = paco(alpha=0.6, temperature=0.3, gamma=0.5), batch_of([0, 1, 0, 3])
    logits, queries, *rest = by_loop(method, batch)
    leaves = [torch.tensor(each, requires_grad=True) for each in (logits, queries)]
    keys = torch.from_numpy(rest[0])
    method._contrast(*leaves, keys, batch.labels).backward()
    for leaf, place in zip(leaves, (0, 1), strict=True):
        slopes = np.zeros(leaf.shape)
        for where in np.ndindex(*leaf.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [logits.copy(), queries.copy()]
                moved[place][where] += step
                ends.append(paco_loss(*moved, *rest, **options_of(method)))
            slopes[where] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(leaf.grad, slopes, atol=1e-8)


@settings(max_examples=20)
@given(labels=LABELS, seed=st.integers(0, 99))
def test_without_samples_it_is_the_balanced_softmax(labels, seed):
    method, batch = paco(seed, alpha=0.0, gamma=0.0), batch_of(labels, seed)
    with default_dtype(torch.float64):
        balanced = make_loss("logit-adjusted", COUNTS, tau=1.0)
    expected = balanced(method.logits(batch.images), batch.labels)
    torch.testing.assert_close(method(batch), expected, rtol=1e-12, atol=0)
    method(batch).backward()
    assert method.projector[0].weight.grad.abs().max() == 0
    assert method.backbone.weight.grad.isfinite().all()


def test_samples_as_rivals_alone_add_what_the_formula_says():
    method, batch = paco(alpha=0.0, gamma=0.4, temperature=0.3), batch_of([0, 1, 1, 3])
    logits, queries, keys, labels, queue, _, prior = by_loop(method, batch)
    expected = []
    for i, label in enumerate(labels):
        u, v = scores(i, logits, queries, keys, queue, prior, 0.3)
        classes = sum(map(math.exp, u))
        rivals = sum(math.exp(each) for each in v if each is not None)
        expected.append(math.log(classes) - u[label] + math.log(1 + 0.4 * rivals / classes))
    assert method(batch).item() == pytest.approx(np.mean(expected), rel=1e-9)


def test_the_order_of_the_queue_changes_nothing():
    method, batch = paco(alpha=0.5).eval(), batch_of([0, 1, 0, 3])
    before = method(batch)
    order = torch.tensor([3, 1, 8, 0, 2, 7, 6, 5, 4])
    method.queue_labels.copy_(method.queue_labels[order])
    assert not torch.isclose(method(batch), before)  # keys without their labels do change it
    method.queue_keys.copy_(method.queue_keys[order])
    torch.testing.assert_close(method(batch), before)


def test_the_own_key_is_the_one_positive_where_no_label_comes_twice():
    alpha, method, batch = 0.5, paco(alpha=0.5, gamma=0.5, temperature=0.3), batch_of([0, 1, 2])
    method.queue_labels.fill_(3)
    logits, queries, keys, labels, queue, _, prior = by_loop(method, batch)
    expected = []
    for i, label in enumerate(labels):
        u, v = scores(i, logits, queries, keys, queue, prior, 0.3)
        rivals = sum(math.exp(each) for each in v if each is not None)
        log_d = math.log(sum(map(math.exp, u)) + 0.5 * rivals)
        own_key = v[len(labels) + i]
        expected.append(-(u[label] - log_d + alpha * (own_key - log_d)) / (1 + alpha))
    assert method(batch).item() == pytest.approx(np.mean(expected), rel=1e-9)


def test_at_rest_the_class_has_its_share_beside_the_positives():
    """The slope by a class's logit is its probability less 1 / (1 + alpha |P|) where it is own."""
    method, batch = paco(alpha=0.5, temperature=0.3), batch_of([0, 1, 0])
    logits, queries, keys, labels, queue, queue_labels, prior = by_loop(method, batch)
    leaf = torch.tensor(logits, requires_grad=True)
    method._contrast(
        leaf, torch.from_numpy(queries), torch.from_numpy(keys), batch.labels
    ).backward()
    for i, label in enumerate(labels):
        u, v = scores(i, logits, queries, keys, queue, prior, 0.3)
        bottom = sum(math.exp(each) for each in [*u, *v] if each is not None)
        n_positive = [*labels, *labels, *queue_labels].count(label) - 1
        for c in range(len(COUNTS)):
            fraction = 1 / (1 + 0.5 * n_positive) if c == label else 0.0
            slope = (math.exp(u[c]) / bottom - fraction) / len(labels)
            assert leaf.grad[i, c].item() == pytest.approx(slope, abs=1e-12)


def test_only_what_is_judged_and_the_projector_learn():
    method = paco()
    method(batch_of([0, 1, 0, 3])).backward()
    learning = {name for name, each in method.named_parameters() if each.grad is not None}
    assert learning == {name for name, each in method.named_parameters() if each.requires_grad}
    assert {name.split(".")[0] for name in learning} == {"backbone", "projector", "head"}
    for name, parameter in method.named_parameters():
        if parameter.grad is not None and name != "projector.0.bias":  # which batch norm takes away
            assert parameter.grad.abs().max() > 0, name
    before = copy.deepcopy(method.state_dict())
    torch.optim.SGD(method.parameters(), lr=0.1, weight_decay=0.1).step()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, before[name]) != (name in learning), name


def test_key_networks_follow_before_they_are_asked_and_have_their_own_statistics():
    method, batch = paco(key_momentum=0.75), batch_of([0, 1, 0, 3])
    start = method.key_backbone.weight.clone()
    with torch.no_grad():
        method.backbone.weight.add_(1)
    method(batch)
    torch.testing.assert_close(method.key_backbone.weight, 0.75 * start + 0.25 * (start + 1))
    assert not method.key_backbone.weight.requires_grad
    hidden = method.key_projector[0](method.key_backbone(batch.second))
    torch.testing.assert_close(method.key_projector[1].running_mean, 0.1 * hidden.mean(0))
    hidden = method.projector[0](method.backbone(batch.images))
    torch.testing.assert_close(method.projector[1].running_mean, 0.1 * hidden.mean(0))


def test_outside_training_nothing_changes():
    method = paco()
    method(batch_of([0, 1, 0, 3]))
    with torch.no_grad():
        method.backbone.weight.add_(1)
    method.eval()
    before = copy.deepcopy(method.state_dict())
    assert torch.equal(method(batch_of([0, 1])), method(batch_of([0, 1])))
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_parameters_and_buffers_are_all_there_is():
    """A captured step's rehearsals are undone by putting them back."""
    method, batches = paco(), [batch_of([0, 1, 0, 3], seed) for seed in range(3)]
    state = [*method.parameters(), *method.buffers()]
    saved = [tensor.detach().clone() for tensor in state]
    first = [method(batch).item() for batch in batches]
    with torch.no_grad():
        for tensor, before in zip(state, saved, strict=True):
            tensor.copy_(before)
    assert [method(batch).item() for batch in batches] == first
    other = paco(seed=5)
    other.load_state_dict(method.state_dict())
    for batch in batches:
        assert torch.equal(other(batch), method(batch))
    assert torch.equal(other.queue_labels, method.queue_labels)
    assert other.queue_place == method.queue_place


def test_the_start_hangs_on_torchs_seed_alone():
    one, same, other = paco(3), paco(3), paco(4)
    for name in ("queue_keys", "queue_labels"):
        assert torch.equal(getattr(one, name), getattr(same, name))
        assert not torch.equal(getattr(one, name), getattr(other, name))
    many = paco(queue=400)
    torch.testing.assert_close(many.queue_keys.norm(dim=1), torch.ones(400).double())
    assert many.queue_labels.unique().tolist() == [0, 1, 2, 3]


def test_half_precision_ends_before_the_scores():
    method, batch = (
        paco(dtype=torch.float32, alpha=0.5),
        batch_of([0, 1, 0, 3], dtype=torch.float32),
    )
    twin = copy.deepcopy(method)
    with torch.autocast("cpu", torch.bfloat16):
        loss = method(batch)
        features, second = twin.backbone(batch.images), twin.backbone(batch.second)
        logits = twin.head(features)
        queries, keys = twin.projector(features), twin.key_projector(second)
    assert logits.dtype == queries.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    rows = [nn.functional.normalize(each.detach().double()).numpy() for each in (queries, keys)]
    queue = twin.queue_keys.double().numpy(), twin.queue_labels.tolist()
    logits = logits.detach().double().numpy()
    expected = paco_loss(logits, *rows, batch.labels.tolist(), *queue, PRIOR, **options_of(method))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def small_paco():
    return small_method("paco", queue=48, projection=8)


def test_a_small_network_learns():
    method = small_paco()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    losses = losses_of_steps(method, optimizer)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    evaluated = coloured_images(64, 99)
    method.eval()
    assert (method.logits(evaluated.images).argmax(1) == evaluated.labels).float().mean() > 0.9


def test_a_graph_can_hold_a_step():
    method, batch = small_paco(), coloured_images(6, 0)
    with Kernels() as kernels:
        method(batch).backward()
    assert {"_foreach_lerp_", "index_copy_"} <= set(kernels.names)


def test_key_networks_go_where_the_method_goes():
    method = small_paco().to(memory_format=torch.channels_last)
    assert method.key_backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert method.key_backbone.bn1.training
    method.eval()
    assert not method.key_backbone.bn1.training
    assert not method.key_projector[1].training
    assert {each.device.type for each in small_paco().to("meta").state_dict().values()} == {"meta"}


def test_it_says_what_it_needs():
    needs = METHODS.needs("paco")
    assert (
        needs.items()
        >= {"views": 2, "heads": ("linear",), "losses": ("cross-entropy",), "mixes": False}.items()
    )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (batch_of([0, 1])._replace(second=None), "batch.second is missing.*two views"),
        (batch_of([0, 1])._replace(other=torch.tensor([1, 0])), "Switch mixup and cutmix off"),
        (batch_of([0] * 10), "batch has 10 images.*the 9 that its queue can take"),
        (batch_of([0]), "batch has 1 images; 'paco' expected from 2"),
    ],
)
def test_batches_it_cannot_take_are_refused(batch, message):
    with pytest.raises(ValueError, match=message):
        paco()(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"gamma": math.inf}, "gamma=inf"),
        ({"alpha": 0, "beta": 0}, "nothing to learn"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"queue": 0}, "queue=0"),
        ({"projection": 0}, "projection=0"),
        ({"key_momentum": 1.1}, "key_momentum=1.1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        paco(**options)


@pytest.mark.parametrize("loss", OTHER_LOSSES)
def test_a_loss_that_would_be_passed_over_is_refused(loss):
    with pytest.raises(ValueError, match="'paco' has a loss of its own"):
        make_method("paco", Flat(3, 5), LinearHead(4, 5), loss, COUNTS)


def test_a_class_without_images_is_refused():
    with pytest.raises(ValueError, match="1 empty of 4 classes"):
        make_method("paco", Flat(3, 5), LinearHead(4, 5), nn.CrossEntropyLoss(), [5, 3, 0, 1])


def test_processes_that_train_together_share_one_queue(tmp_path):
    """Two of them, three images each, then three and two: places 0 to 5, then 6 to 9 and 0."""
    results = [tmp_path / f"{rank}.pt" for rank in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, paco_together.__file__, str(rank), str(tmp_path / "meeting"), result],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    for each in running:
        _, err = each.communicate(timeout=PATIENCE)
        assert each.returncode == 0, err
    found = [torch.load(result, weights_only=True) for result in results]
    keys, labels = found[0]["start"]
    for step in range(2):
        for rank in range(2):
            for i, label in enumerate(paco_together.LABELS[rank][step]):
                place = (6 * step + 3 * rank + i) % paco_together.QUEUE
                keys[place], labels[place] = found[rank]["keys"][step][i], label
    for of_process in found:
        for ours, expected in zip(of_process["queue"], (keys, labels, 1), strict=True):
            assert torch.equal(ours, torch.as_tensor(expected))
        assert "batch has 6 images in each of 2 processes" in of_process["refused"]
        assert "to the 10 that its queue can take" in of_process["refused"]
    assert not torch.equal(*(of_process["keys"][0] for of_process in found))
