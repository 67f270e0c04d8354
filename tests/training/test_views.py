"""Two views of an image: another augment, other random numbers, the same image."""

from dataclasses import replace

import pytest
import torch

from protail.data import InstanceSampler
from protail.data.augment import mix, uniforms
from protail.data.augment._mix import _PURPOSE
from protail.methods import ImageBatch
from protail.training.loader import make_feed
from protail.training.mixtures import mix_views
from protail.training.representation import RepresentationTraining
from reference.augment import Kernels, cutmix_loop
from reference.small_images import six_images, small_images
from reference.small_recipes import small_recipe

CPU = torch.device("cpu")


@pytest.fixture(params=["resident", "files"])
def images(request, tmp_path):
    return six_images(None if request.param == "resident" else tmp_path)


def batches(images, augment, second, seed=0):
    feed = make_feed(images, augment, seed=seed, device=CPU, second=second, workers=0)
    sampler = InstanceSampler(images.labels, seed=0)
    return [feed(batch) for batch in feed.batches(sampler, 4, epoch=0)]


MIXING = {
    "mixup": torch.tensor([0.3, 0.8]),
    "cutmix": torch.tensor([0.3, 0.8]),
    "mixup-cutmix": torch.tensor([[0.3, 0.55], [0.8, 0.05]]),
}


def mixed_batches(images, augment, second, kind, seed=0):
    feed = make_feed(images, augment, seed=seed, device=CPU, second=second, workers=0, mixing=kind)
    sampler = InstanceSampler(images.labels, seed=0)
    return [feed(batch) for batch in feed.batches(sampler, 4, epoch=0, shares=MIXING[kind])]


def blended(view, partner, share, _):
    return share * view + (1 - share) * view[partner], share


LOOPS = {"mixup": blended, "cutmix": cutmix_loop}


def augments(images):
    return ["crop", "flip"] if images.is_resident else ["resized-crop", "flip"]


def test_without_a_second_view_there_is_none(images):
    assert all(batch.second is None for batch in batches(images, augments(images), ()))


def test_the_first_view_is_what_it_is_without_a_second(images):
    names = augments(images)
    alone, both = (batches(images, names, second) for second in ((), names))
    for one, two in zip(alone, both, strict=True):
        torch.testing.assert_close(one.images, two.images, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, two.labels)


def test_the_same_augment_draws_other_numbers_in_the_second_view(images):
    names = augments(images)
    for batch in batches(images, names, names):
        assert batch.second.shape == batch.images.shape
        assert not torch.equal(batch.second, batch.images)


def test_views_hang_on_the_seed_alone(images):
    names = augments(images)
    once, again, other = (batches(images, names, names, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.second, b.second) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a.second, b.second) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "of_first", "of_second"),
    [("mixup", "mixup", "mixup"), ("cutmix", "cutmix", "cutmix"),
     ("mixup-cutmix", "mixup", "cutmix")],
)  # fmt: skip
def test_both_views_are_mixed_with_the_same_partner_and_the_same_share(
    images, kind, of_first, of_second
):
    names = augments(images)
    views = batches(images, names, names, seed=5)
    for number, (mixed, plain) in enumerate(
        zip(mixed_batches(images, names, names, kind, seed=5), views, strict=True)
    ):
        places = 4 * number + torch.arange(len(plain.labels))
        draws = uniforms(5, 0, places, _PURPOSE, 4)
        partner = draws[:, 0].argsort(stable=True)
        drawn = MIXING[kind][number].flatten()[0].item()
        centre = draws[0, 1:3].tolist()
        for way, view, found, share in (
            (of_first, plain.images, mixed.images, mixed.share),
            (of_second, plain.second, mixed.second, mixed.second_share),
        ):
            expected, true_share = LOOPS[way](view, partner, drawn, centre)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            assert share.shape == ()
            assert share.item() == pytest.approx(true_share, abs=1e-6)
        assert torch.equal(mixed.labels, plain.labels)
        assert torch.equal(mixed.other, plain.labels[partner])
        assert not torch.equal(plain.images, plain.second)


@pytest.mark.parametrize("kind", MIXING)
def test_without_a_second_view_images_are_mixed_as_ever(images, kind):
    names = augments(images)
    views = batches(images, names, ())
    for number, (mixed, plain) in enumerate(
        zip(mixed_batches(images, names, (), kind), views, strict=True)
    ):
        share, places = MIXING[kind][number], 4 * number + torch.arange(len(plain.labels))
        expected = mix(plain.images, plain.labels, share, places, 0, kind=kind)
        assert torch.equal(mixed.images, expected.images)
        assert torch.equal(mixed.other, expected.other_labels)
        assert torch.equal(mixed.share, expected.weight)
        assert mixed.second is mixed.second_share is None


def test_a_graph_can_hold_two_mixed_views():
    views = ImageBatch(torch.rand(4, 3, 8, 8), torch.arange(4), second=torch.rand(4, 3, 8, 8))
    share, places, epoch = torch.tensor([0.5, 0.2]), torch.arange(4), torch.tensor(2)
    with Kernels() as kernels:
        mix_views(views, share, places, epoch, kind="mixup-cutmix", seed=0)
    assert kernels.names.count("lerp") == 2


def test_batches_that_a_method_cannot_take_are_refused_before_training():
    data = small_images(counts=(24, 12, 8, 5), n_test=4)
    for changes, words in (
        ({"method_options": {"queue": 8}, "batch_size": 16}, "takes 8 images at most"),
        ({"batch_size": 48}, "has one image, and method 'paco' needs two"),
    ):
        settings = replace(PACO, **changes)
        with pytest.raises(ValueError, match=words):
            RepresentationTraining(settings, data, seed=0, device=CPU)


PACO = replace(small_recipe("paco").representation, batch_size=16)
