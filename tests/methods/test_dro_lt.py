"""DRO-LT against loops in float64, on its special cases, and trained for a few steps."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protail.methods import METHODS, ImageBatch, make_method
from protail.models.heads import LinearHead
from reference.augment import Kernels
from reference.dro_lt_by_loop import (
    centroids_by_loop,
    class_losses,
    dro_lt_loss,
    robust_loss,
    weighted_cross_entropy,
)
from reference.small_methods import (
    COUNTS,
    OTHER_LOSSES,
    coloured_images,
    default_dtype,
    losses_of_steps,
    small_method,
)

N_FEATURES = 3


def dro_lt(seed=0, dtype=torch.float64, **options):
    """Make one whose features are the images themselves, with centroids and radii anywhere."""
    torch.manual_seed(seed)
    with default_dtype(dtype):
        parts = nn.Flatten(), LinearHead(len(COUNTS), N_FEATURES), nn.CrossEntropyLoss()
        method = make_method("dro-lt", *parts, COUNTS, **options)
        method.centroids.normal_()
        with torch.no_grad():
            method.radii.mul_(torch.rand(len(COUNTS)) + 0.5)
        return method


def batch_of(labels, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(len(labels), N_FEATURES, 1, 1, generator=generator, dtype=dtype)
    return ImageBatch(images, torch.as_tensor(labels))


def by_loop(method, batch):
    features = batch.images.flatten(1)
    logits = method.logits(batch.images).tolist()
    state = method.centroids.tolist(), method.radii.tolist()
    return features.tolist(), logits, batch.labels.tolist(), *state, COUNTS


LABELS = st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=7)


@settings(max_examples=50)
@given(
    labels=LABELS,
    seed=st.integers(0, 99),
    temperature=st.floats(0.1, 3),
    cross_entropy=st.sampled_from([0.0, 0.4, 1.0]),
    radius=st.floats(0, 3),
    learned=st.booleans(),
)
def test_the_loss_equals_a_loop(labels, seed, temperature, cross_entropy, radius, learned):
    options = {"temperature": temperature, "cross_entropy": cross_entropy}
    method = dro_lt(seed, radius=radius, learned=learned, **options)
    batch = batch_of(labels, seed)
    expected = dro_lt_loss(*by_loop(method, batch), **options)
    assert method(batch).item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_gradients_equal_slopes_of_the_loop():
    method, batch = dro_lt(temperature=0.7), batch_of([0, 1, 0, 3, 3])
    features, _, labels, centroids, radii, _ = by_loop(method, batch)
    leaf = torch.tensor(features, dtype=torch.float64, requires_grad=True)
    method._robust(leaf, batch.labels).backward()

    def slope(values, where, loss):
        ends = []
        for step in (1e-5, -1e-5):
            moved = np.array(values)
            moved[where] += step
            ends.append(loss(moved))
        return (ends[0] - ends[1]) / 2e-5

    for where in np.ndindex(*leaf.shape):
        expected = slope(features, where, lambda x: robust_loss(x, centroids, labels, radii, 0.7))
        assert leaf.grad[where].item() == pytest.approx(expected, abs=1e-8)
    for c in range(len(COUNTS)):
        expected = slope(radii, c, lambda r: robust_loss(features, centroids, labels, r, 0.7))
        assert method.radii.grad[c].item() == pytest.approx(expected, abs=1e-8)
    assert method.radii.grad[2] == 0  # of a class that is not there


def test_the_cross_entropy_weighs_a_class_by_its_share_of_the_largest():
    method, batch = dro_lt(), batch_of([0, 1, 0, 3])
    with torch.no_grad():
        robust = method._robust(batch.images.flatten(1), batch.labels)
    logits = method.logits(batch.images).tolist()
    expected = weighted_cross_entropy(logits, batch.labels.tolist(), COUNTS)
    assert (method(batch) - robust).item() == pytest.approx(expected, rel=1e-7)


@settings(max_examples=30)
@given(n=st.integers(1, 8), seed=st.integers(0, 99), c=st.integers(0, 3))
def test_one_class_in_the_batch(n, seed, c):
    method, batch = dro_lt(seed, cross_entropy=0.0), batch_of([c] * n, seed)
    before = method(batch)
    assert before >= -1e-12
    with torch.no_grad():
        method.radii[c] = 1e4  # all images are as much further away: it cancels
    torch.testing.assert_close(method(batch), before, rtol=1e-9, atol=1e-9)
    # All equally far: nothing tells one image from another.
    directions = nn.functional.normalize(batch.images.flatten(1))
    at_two = method.centroids[c] + 2 * directions
    equal = method(batch._replace(images=at_two[:, :, None, None]))
    assert equal.item() == pytest.approx(math.log(n), abs=1e-9)


def test_a_large_radius_takes_its_class_out_of_its_own_softmax():
    method, batch = dro_lt(cross_entropy=0.0), batch_of([0, 0, 1])
    near = method(batch)
    with torch.no_grad():
        method.radii[0] += 5
    assert method(batch) > near + 1


def test_classes_that_are_not_there_count_nothing():
    method, batch = dro_lt(cross_entropy=0.0), batch_of([0, 3, 0])
    before = method(batch)
    features, _, labels, centroids, radii, _ = by_loop(method, batch)
    losses = class_losses(features, centroids, labels, radii, 1.0)
    assert sorted(losses) == [0, 3]
    assert before.item() == pytest.approx(sum(losses.values()) / 2, rel=1e-7)
    with torch.no_grad():
        method.centroids[1:3] += 7
        method.radii[1:3] += 7
    # The others' distances are rounded alike: they are computed about the middle of all.
    torch.testing.assert_close(method(batch), before, rtol=1e-9, atol=0)


@settings(max_examples=20)
@given(labels=LABELS, seed=st.integers(0, 99), data=st.data())
def test_the_order_of_the_batch_changes_nothing(labels, seed, data):
    method, batch = dro_lt(seed), batch_of(labels, seed)
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
    shuffled = ImageBatch(batch.images[order], batch.labels[order])
    torch.testing.assert_close(method(shuffled), method(batch), rtol=1e-9, atol=1e-12)


def test_each_image_gets_the_radius_of_its_own_class():
    """In whatever order the classes come in the batch."""
    method, batch = dro_lt(cross_entropy=0.0), batch_of([3, 0, 1, 0])
    with torch.no_grad():
        method.radii.copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    features, _, labels, centroids, _, _ = by_loop(method, batch)
    expected = robust_loss(features, centroids, labels, [0, 1, 2, 3], 1.0)
    assert method(batch).item() == pytest.approx(expected, rel=1e-7)


def test_gradients_are_finite_on_a_centroid():
    method = dro_lt(dtype=torch.float32)
    method.centroids[1] = method.centroids[0]
    leaf = torch.stack([method.centroids[0], method.centroids[2]]).requires_grad_()
    method._robust(leaf, torch.tensor([0, 1])).backward()
    assert leaf.grad.isfinite().all()
    assert method.radii.grad.isfinite().all()


def test_centroids_are_class_means_and_stay_where_a_class_has_no_images():
    method, batch = dro_lt(), batch_of([3, 0, 3, 0, 0, 1])
    place, before = method.centroids.data_ptr(), method.centroids.tolist()
    features = batch.images.flatten(1)
    method.on_features(features, batch.labels)
    expected = centroids_by_loop(features.tolist(), batch.labels.tolist(), before)
    torch.testing.assert_close(method.centroids, torch.tensor(expected, dtype=torch.float64))
    assert method.centroids[2].tolist() == before[2]
    assert method.centroids.data_ptr() == place  # a captured step looks there
    method.on_features(features.bfloat16(), batch.labels)
    assert method.centroids.dtype == torch.float64


def set_centroids(method, batch):
    method.eval()
    with torch.no_grad():
        method.on_features(method.features(batch.images), batch.labels)
    method.train()


@pytest.mark.parametrize("learned", [True, False])
def test_backbone_and_radii_learn_and_the_head_does_not(learned):
    method, batch = small_method("dro-lt", learned=learned), coloured_images(8, 0)
    set_centroids(method, batch)
    method(batch).backward()
    learning = {name for name, each in method.named_parameters() if each.grad is not None}
    assert learning == {name for name, each in method.named_parameters() if each.requires_grad}
    parts = {name.split(".")[0] for name in learning}
    assert parts == ({"backbone", "radii"} if learned else {"backbone"})
    assert ("radii" in dict(method.named_buffers())) != learned
    for name in learning:
        assert method.get_parameter(name).grad.abs().max() > 0, name
    assert not method.centroids.requires_grad
    before = copy.deepcopy(method.state_dict())
    torch.optim.SGD(method.parameters(), lr=0.1, weight_decay=0.1).step()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, before[name]) != (name in learning), name


def test_a_small_network_learns():
    method = small_method("dro-lt")
    optimizer = torch.optim.SGD(method.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    def renew_centroids(step):
        if step % 10 == 0:
            set_centroids(method, coloured_images(32, 0))

    losses = losses_of_steps(method, optimizer, before_step=renew_centroids)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    assert not torch.allclose(method.radii, torch.ones(4))


def test_a_graph_can_hold_a_step():
    method, batch = small_method("dro-lt"), coloured_images(6, 0)
    with Kernels() as kernels:
        method(batch).backward()
    assert "logsumexp" in kernels.names


def test_parameters_and_buffers_are_all_there_is():
    method, batch = small_method("dro-lt"), coloured_images(8, 0)
    set_centroids(method, batch)
    other = small_method("dro-lt", radius=3.0)
    with torch.no_grad():
        other.head.weight.add_(1)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other(batch), method(batch))


def test_half_precision_ends_before_the_distances():
    method, batch = dro_lt(dtype=torch.float32), batch_of([0, 1, 0, 3], dtype=torch.float32)
    images = batch.images.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = method(batch._replace(images=images.requires_grad_()))
    assert loss.dtype == torch.float32
    features = images.detach().flatten(1).double().tolist()
    state = method.centroids.tolist(), batch.labels.tolist(), method.radii.tolist()
    with torch.autocast("cpu", torch.bfloat16):
        logits = method.logits(images).tolist()
    expected = robust_loss(features, *state, 1.0)
    expected += weighted_cross_entropy(logits, batch.labels.tolist(), COUNTS)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_it_says_what_it_needs():
    needs = METHODS.needs("dro-lt")
    assert (
        needs.items()
        >= {"views": 1, "heads": ("linear",), "losses": ("cross-entropy",), "mixes": False}.items()
    )
    assert small_method("dro-lt").wants_features


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross_entropy": -1.0}, "cross_entropy=-1.0"),
        ({"radius": math.inf}, "radius=inf"),
        ({"temperature": 0.0}, "temperature=0.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dro_lt(**options)


@pytest.mark.parametrize("loss", OTHER_LOSSES)
def test_a_loss_that_would_be_passed_over_is_refused(loss):
    with pytest.raises(ValueError, match="'dro-lt' weighs the classes itself"):
        make_method("dro-lt", nn.Flatten(), LinearHead(4, 3), loss, COUNTS)


def test_mixed_images_are_refused():
    batch = batch_of([0, 1])._replace(other=torch.tensor([1, 0]), fraction=torch.tensor(0.5))
    with pytest.raises(ValueError, match="Switch mixup and cutmix off"):
        dro_lt()(batch)
