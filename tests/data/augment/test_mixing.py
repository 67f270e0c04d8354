import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protail.data.augment import mix, mix_weights, uniforms
from protail.data.augment.on_device import _PURPOSE
from reference.augment import Kernels, cutmix_loop


def batch(n=8, size=(12, 10), seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(1000, generator=generator)[:n]
    return torch.randn(n, 3, *size, generator=generator), torch.arange(n), index


def draws(index, epoch, seed=0):
    return uniforms(seed, epoch, index, _PURPOSE, 4)


@settings(max_examples=30)
@given(st.floats(0, 1, width=32), st.integers(0, 100))
def test_mixup_equals_a_loop(weight, epoch):
    images, labels, index = batch()
    mixed = mix(images, labels, torch.tensor(weight), index, epoch)
    partner = np.argsort(draws(index, epoch)[:, 0].numpy(), kind="stable")
    assert mixed.other_labels.tolist() == labels[partner].tolist()
    assert torch.equal(mixed.labels, labels)
    assert mixed.weight.item() == np.float32(weight)
    for n in range(len(images)):
        want = weight * images[n].double() + (1 - weight) * images[partner[n]].double()
        torch.testing.assert_close(mixed.images[n].double(), want, atol=1e-5, rtol=0)


@settings(max_examples=30)
@given(st.floats(0, 1, width=32), st.integers(0, 100))
def test_cutmix_equals_a_loop(weight, epoch):
    # A side that is whole up to the last bit of a square root may be cut either way.
    sides = np.sqrt(1 - weight) * np.array([12.0, 10.0])
    assume(weight in (0.0, 1.0) or np.abs(sides - sides.round()).min() > 1e-5)
    images, labels, index = batch()
    mixed = mix(images, labels, torch.tensor(weight), index, torch.tensor(epoch), kind="cutmix")
    numbers = draws(index, epoch)
    partner = numbers[:, 0].argsort(stable=True)
    want, fraction = cutmix_loop(images, partner, weight, numbers[0, 1:3].tolist())
    assert torch.equal(mixed.images, want)
    assert mixed.weight.item() == pytest.approx(fraction, abs=1e-6)
    assert torch.equal(mixed.other_labels, labels[partner])


@settings(max_examples=30)
@given(st.floats(0, 1, width=32), st.integers(0, 100))
def test_partners_from_elsewhere_are_blended_as_in_a_loop(weight, epoch):
    images, labels, index = batch()
    others, other_labels, _ = batch(seed=1)
    other_labels = other_labels + 100
    mixed = mix(images, labels, torch.tensor(weight), index, epoch, partners=(others, other_labels))
    assert torch.equal(mixed.labels, labels)
    assert torch.equal(mixed.other_labels, other_labels)
    for n in range(len(images)):
        want = weight * images[n].double() + (1 - weight) * others[n].double()
        torch.testing.assert_close(mixed.images[n].double(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.55, 0.8, 1.0])
def test_partners_from_elsewhere_are_pasted_as_in_a_loop(weight):
    images, labels, index = batch()
    others, other_labels, _ = batch(seed=1)
    for epoch in range(5):
        mixed = mix(
            images,
            labels,
            torch.tensor(weight),
            index,
            epoch,
            kind="cutmix",
            partners=(others, other_labels + 100),
        )
        both, n = torch.cat([images, others]), len(images)
        centre = draws(index, epoch)[0, 1:3].tolist()
        want, fraction = cutmix_loop(both, torch.arange(2 * n).roll(n), weight, centre)
        assert torch.equal(mixed.images, want[:n])
        assert mixed.weight.item() == pytest.approx(fraction, abs=1e-6)
        assert torch.equal(mixed.other_labels, other_labels + 100)


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "mixup-cutmix"])
def test_partners_of_the_batch_may_be_given_as_well(kind):
    images, labels, index = batch()
    weight = torch.tensor(0.6)
    for epoch in range(10):
        order = draws(index, epoch)[:, 0].argsort(stable=True)
        given = images[order], labels[order]
        one = mix(images, labels, weight, index, epoch, kind=kind)
        other = mix(images, labels, weight, index, epoch, kind=kind, partners=given)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_either_is_one_or_the_other():
    images, labels, index = batch()
    weight = torch.tensor(0.6)
    pasted = []
    for epoch in range(60):
        both = mix(images, labels, weight, index, epoch, kind="mixup-cutmix")
        single = {
            kind: mix(images, labels, weight, index, epoch, kind=kind)
            for kind in ("mixup", "cutmix")
        }
        pasted.append(draws(index, epoch)[0, 3].item() < 0.5)
        chosen = single["cutmix" if pasted[-1] else "mixup"]
        assert torch.equal(both.images, chosen.images)
        torch.testing.assert_close(both.weight, chosen.weight)
    assert 15 < sum(pasted) < 45


def test_either_takes_the_share_of_its_kind():
    images, labels, index = batch()
    fractions = {"mixup": torch.tensor(0.9), "cutmix": torch.tensor(0.4)}
    both = torch.stack(list(fractions.values()))
    kinds = set()
    for epoch in range(20):
        mixed = mix(images, labels, both, index, epoch, kind="mixup-cutmix")
        kind = "cutmix" if draws(index, epoch)[0, 3] < 0.5 else "mixup"
        alone = mix(images, labels, fractions[kind], index, epoch, kind=kind)
        assert torch.equal(mixed.images, alone.images)
        torch.testing.assert_close(mixed.weight, alone.weight)
        kinds.add(kind)
    assert len(kinds) == 2


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "mixup-cutmix"])
def test_weight_one_changes_nothing(kind):
    images, labels, index = batch()
    mixed = mix(images, labels, torch.tensor(1.0), index, 0, kind=kind)
    assert torch.equal(mixed.images, images)
    assert mixed.weight == 1


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "mixup-cutmix"])
def test_a_graph_can_hold_it(kind):
    images, labels, index = batch()
    weight, epoch = torch.tensor(0.3), torch.tensor(2)
    with Kernels() as kernels:
        mix(images, labels, weight, index, epoch, kind=kind)
    assert len(kernels.names) <= 48


def test_partners_change_with_the_epoch_and_the_seed():
    images, labels, index = batch(32)
    weight = torch.tensor(0.5)
    partners = [
        mix(images, labels, weight, index, epoch, seed=seed).other_labels.tolist()
        for epoch, seed in [(0, 0), (1, 0), (0, 1)]
    ]
    assert all(sorted(partner) == list(range(32)) for partner in partners)
    assert partners[0] != partners[1] != partners[2] != partners[0]


def test_another_view_gets_the_same_partners_and_the_same_box():
    """Whatever the images and the labels are: what is drawn depends on the indices alone."""
    images, labels, index = batch()
    other_view = torch.randn(images.shape, generator=torch.Generator().manual_seed(9))
    weight = torch.tensor(0.4)
    for epoch in range(5):
        partner = draws(index, epoch)[:, 0].argsort(stable=True)
        pasted = []
        for view in (images, other_view):
            for kind in ("mixup", "cutmix"):
                mixed = mix(view, labels, weight, index, epoch, kind=kind)
                assert torch.equal(mixed.other_labels, labels[partner])
            pasted.append(mixed)
        first, second = (
            (each.images != view).any(1).any(0)
            for each, view in zip(pasted, (images, other_view), strict=True)
        )
        assert torch.equal(first, second)
        assert pasted[0].weight == pasted[1].weight


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_weights_are_beta(alpha):
    weights = mix_weights(alpha, 20_000, seed=1)
    assert weights.dtype == torch.float32
    assert weights.mean().item() == pytest.approx(0.5, abs=0.01)
    assert weights.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
    assert torch.equal(weights, mix_weights(alpha, 20_000, seed=1))
    assert not torch.equal(weights, mix_weights(alpha, 20_000, seed=2))


def test_small_alpha_mixes_nothing():
    assert mix_weights(0.0, 5).tolist() == [1.0] * 5
    tiny = mix_weights(1e-6, 1000)
    assert torch.minimum(tiny, 1 - tiny).max() < 1e-6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mix(*batch()[:2], torch.tensor(1.0), batch()[2], 0, kind="mixp"),
            "Did you mean 'mixup'",
        ),
        (lambda: mix_weights(-1.0, 5), "alpha=-1.0"),
        (lambda: mix_weights(float("nan"), 5), "alpha=nan"),
        (lambda: mix_weights(1.0, -5), "n_steps=-5"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
