"""Batches: rows by a sampler, from memory or files, in one view or two, mixed or not."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from protail.data import ClassBalancedSampler, InstanceSampler, SquareRootSampler, make_sampler
from protail.data.augment import make_augment, make_loader_transform, mix, uniforms
from protail.data.augment.on_device import _PURPOSE
from protail.data.images import ImageSet
from protail.methods import ImageBatch
from protail.models.backbones import make_backbone
from protail.training.batches import FileLoader, Partners, derived_seed, make_loader, mix_views
from protail.training.loop import interleave
from protail.training.settings import RepresentationSettings
from protail.training.stage1 import RepresentationTraining
from reference.augment import Kernels, cutmix_loop
from reference.small_images import TINY, six_images, small_images

CPU = torch.device("cpu")

LABELS = np.repeat(np.arange(4), (60, 30, 15, 8))

SETTINGS = RepresentationSettings(
    backbone=TINY, epochs=2, batch_size=32, lr=0.05, weight_decay=5e-4, precision="float32"
)

TWO_VIEWS = {"method": "mixture-consistency", "second_view": ("crop", "flip")}

SHARES = {
    "mixup": torch.tensor([0.3, 0.8]),
    "cutmix": torch.tensor([0.3, 0.8]),
    "mixup-cutmix": torch.tensor([[0.3, 0.55], [0.8, 0.05]]),
}


def augments(images):
    return ["crop", "flip"] if images.is_resident else ["resized-crop", "flip"]


@pytest.fixture(autouse=True)
def no_workers(monkeypatch):
    """Read files in the process of the test, unless it asks for others."""
    monkeypatch.setattr(FileLoader, "workers", 0)


@pytest.fixture(params=["resident", "files"])
def images(request, tmp_path):
    return six_images(None if request.param == "resident" else tmp_path)


def test_ranks_see_the_images_one_process_would_see():
    data = small_images()
    loader = make_loader(data.train, ["crop", "flip"], seed=0, device=CPU)
    sampler = ClassBalancedSampler(data.train.labels)
    alone = loader.batches(sampler, 16, 0)
    whole = torch.cat([loader(batch).images for batch in alone])
    for rank in range(2):
        batches = loader.batches(sampler, 16, 0, part=(rank, 2))
        part = torch.cat([loader(batch).images for batch in batches])
        assert torch.equal(part, whole[rank::2])


@pytest.mark.parametrize("n_last", [0, 1, 3, 4, 6, 15])
def test_parts_of_a_last_batch_weigh_what_they_hold(n_last):
    """A part without images has one of another part, so that all take as many steps."""
    data = small_images(counts=(32 + n_last, 0))
    loader = make_loader(data.train, [], seed=0, device=CPU)
    sampler = InstanceSampler(data.train.labels)
    parts = [list(loader.batches(sampler, 16, 0, part=(each, 4))) for each in range(4)]
    [whole] = [list(loader.batches(sampler, 16, 0))]
    for batch, *own in zip(whole, *parts, strict=True):
        n = len(batch.rows)
        weights = [1.0 if each.weight is None else each.weight for each in own]
        held = [each.rows for each, weight in zip(own, weights, strict=True) if weight]
        assert sorted(torch.cat(held).tolist()) == sorted(batch.rows.tolist())
        assert all(len(each.rows) for each in own)
        means = [w * each.rows.double().mean() for each, w in zip(own, weights, strict=True)]
        torch.testing.assert_close(sum(means) / 4, batch.rows.double().mean())
        assert n == 16 or weights == [len(range(each, n, 4)) * 4 / n for each in range(4)]


@pytest.fixture
def files(tmp_path):
    """The same images as files."""
    data = small_images(counts=(6, 3), n_test=2)
    names = []
    for number, pixels in enumerate(data.train.pixels):
        names.append(f"{number}.png")
        large = Image.fromarray(np.moveaxis(pixels, 0, 2)).resize((280, 270))
        large.save(tmp_path / names[-1])
    return ImageSet(data.train.labels, data.train.classes, None, tuple(names), tmp_path)


def test_files_come_through_workers_in_the_same_way(files, monkeypatch):
    sampler = InstanceSampler(files.labels)
    loader = make_loader(files, ["resized-crop", "flip"], seed=0, device=CPU)
    first = list(map(loader, loader.batches(sampler, 4, 1)))
    monkeypatch.setattr(FileLoader, "workers", 2)
    second = list(map(loader, loader.batches(sampler, 4, 1)))
    assert [len(batch.labels) for batch in first] == [4, 4, 1]
    for one, other in zip(first, second, strict=True):
        assert one.images.shape[1:] == (3, 224, 224)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    rows = sampler.epoch_indices(1)
    assert torch.cat([b.labels for b in first]).tolist() == files.labels[rows].tolist()


def test_clean_files_are_all_there_in_order(files):
    loader = make_loader(files, ["flip"], seed=0, device=CPU)
    clean = torch.cat(list(loader.clean(files)))
    assert clean.shape == (9, 3, 224, 224)
    other = make_loader(files, [], seed=5, device=CPU)
    assert torch.equal(torch.cat(list(other.clean(files))), clean)


def test_files_are_made_as_the_backbone_wants_them(files):
    pytest.importorskip("timm")
    backbone = make_backbone("timm/test_resnet")
    loader = make_loader(files, ["resized-crop"], seed=0, device=CPU, backbone=backbone)
    one = next(loader.clean(files))
    assert one.shape[1:] == (3, 160, 160)
    plain = make_loader(files, [], seed=0, device=CPU)
    # 0.5 and 0.5, not ImageNet's: black is -1.
    assert one.min() >= -1
    assert next(plain.clean(files)).min() < -1
    drawn = loader(next(loader.batches(InstanceSampler(files.labels), 4, 0)))
    assert drawn.images.shape == (4, 3, 160, 160)


def batches(images, second=(), seed=5, epoch=1, n=None, **options):
    loader = make_loader(images, augments(images), seed=seed, device=CPU, second=second, **options)
    fractions = SHARES.get(options.get("mixing"))
    sampler = InstanceSampler(images.labels, seed=0)
    return list(map(loader, loader.batches(sampler, 4, epoch, fractions=fractions, n=n)))


def blended(view, partner, fraction, _):
    return fraction * view + (1 - fraction) * view[partner], fraction


LOOPS = {"mixup": blended, "cutmix": cutmix_loop}


def test_without_a_second_view_there_is_none(images):
    assert all(batch.second is None for batch in batches(images))


def test_the_first_view_is_what_it_is_without_a_second(images):
    names = augments(images)
    alone, both = (batches(images, second) for second in ((), names))
    for one, two in zip(alone, both, strict=True):
        torch.testing.assert_close(one.images, two.images, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, two.labels)


def test_the_same_augment_draws_other_numbers_in_the_second_view(images):
    names = augments(images)
    for batch in batches(images, names):
        assert batch.second.shape == batch.images.shape
        assert not torch.equal(batch.second, batch.images)


def test_views_depend_on_the_seed_alone(images):
    names = augments(images)
    once, again, other = (batches(images, names, seed) for seed in (3, 3, 4))
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
    views = batches(images, names)
    for number, (mixed, plain) in enumerate(
        zip(batches(images, names, mixing=kind), views, strict=True)
    ):
        places = 4 * number + torch.arange(len(plain.labels))
        draws = uniforms(5, 1, places, _PURPOSE, 4)
        partner = draws[:, 0].argsort(stable=True)
        drawn = SHARES[kind][number].flatten()[0].item()
        centre = draws[0, 1:3].tolist()
        for way, view, found, fraction in (
            (of_first, plain.images, mixed.images, mixed.fraction),
            (of_second, plain.second, mixed.second, mixed.second_fraction),
        ):
            expected, true_share = LOOPS[way](view, partner, drawn, centre)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            assert fraction.shape == ()
            assert fraction.item() == pytest.approx(true_share, abs=1e-6)
        assert torch.equal(mixed.labels, plain.labels)
        assert torch.equal(mixed.other, plain.labels[partner])
        assert not torch.equal(plain.images, plain.second)


@pytest.mark.parametrize("kind", SHARES)
def test_without_a_second_view_images_are_mixed_as_ever(images, kind):
    views = batches(images)
    for number, (mixed, plain) in enumerate(
        zip(batches(images, (), mixing=kind), views, strict=True)
    ):
        fraction, places = SHARES[kind][number], 4 * number + torch.arange(len(plain.labels))
        expected = mix(plain.images, plain.labels, fraction, places, 1, kind=kind, seed=5)
        assert torch.equal(mixed.images, expected.images)
        assert torch.equal(mixed.other, expected.other_labels)
        assert torch.equal(mixed.fraction, expected.weight)
        assert mixed.second is mixed.second_fraction is None


def test_a_graph_can_hold_two_mixed_views():
    views = ImageBatch(torch.rand(4, 3, 8, 8), torch.arange(4), second=torch.rand(4, 3, 8, 8))
    fraction, places, epoch = torch.tensor([0.5, 0.2]), torch.arange(4), torch.tensor(2)
    with Kernels() as kernels:
        mix_views(views, fraction, places, epoch, kind="mixup-cutmix", seed=0)
    assert kernels.names.count("lerp") == 2


def partners_of(source, seed=0):
    own = derived_seed(seed, "partners")
    return Partners(make_sampler(source, LABELS, seed=own), [])


def test_balanced_partners_come_from_every_class_equally_often():
    drawn = [
        partners_of("class-balanced").rows(InstanceSampler(LABELS), epoch) for epoch in range(9)
    ]
    for rows in drawn:
        counts = np.bincount(LABELS[rows])
        assert counts.sum() == 113
        assert counts.max() - counts.min() <= 1
    # Every row of a class is as likely as any other: of the largest, half is drawn an epoch.
    times = np.bincount(np.concatenate(drawn), minlength=113)
    assert times.min() > 0
    assert times[105:].sum() == pytest.approx(9 * 113 / 4, rel=0.05)


def test_partners_have_the_shares_of_their_sampler():
    drawn = np.concatenate(
        [partners_of("square-root").rows(InstanceSampler(LABELS), epoch) for epoch in range(50)]
    )
    roots = np.sqrt([60, 30, 15, 8])
    np.testing.assert_allclose(np.bincount(LABELS[drawn]) / drawn.size, roots / roots.sum(), 0.06)
    rows = partners_of("instance").rows(InstanceSampler(LABELS), 0)
    assert sorted(rows) == list(range(113))


@pytest.mark.parametrize("source", ["instance", "class-balanced", "square-root"])
def test_partners_depend_on_seed_and_epoch_alone_and_not_on_the_images(source):
    sampler = InstanceSampler(LABELS, seed=3)
    rows = partners_of(source, 3).rows(sampler, 5)
    assert np.array_equal(rows, partners_of(source, 3).rows(InstanceSampler(LABELS, seed=8), 5))
    assert not np.array_equal(rows, partners_of(source, 3).rows(sampler, 6))
    assert not np.array_equal(rows, partners_of(source, 4).rows(sampler, 5))
    # Not the stream of the images themselves, which would meet themselves.
    own = make_sampler(source, LABELS, seed=3)
    assert not np.array_equal(rows[:100], own.epoch_indices(5)[:100])


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("source", ["instance", "class-balanced"])
def test_ranks_draw_the_partners_that_one_process_would(source, world_size):
    for kind in (InstanceSampler, ClassBalancedSampler, SquareRootSampler):
        whole = partners_of(source).rows(kind(LABELS), 2)
        cut = len(whole) - len(whole) % world_size
        for rank in range(world_size):
            sampler = kind(LABELS, rank=rank, world_size=world_size)
            part = partners_of(source).rows(sampler, 2)
            assert np.array_equal(part, whole[:cut][rank::world_size])


def test_an_epoch_longer_than_a_pass_of_partners_takes_several_other_ones():
    sampler = ClassBalancedSampler(LABELS)
    rows = partners_of("instance").rows(sampler, 0)
    assert len(rows) == len(sampler) == 240
    first, second, rest = rows[:113], rows[113:226], rows[226:]
    assert sorted(first) == sorted(second) == list(range(113))
    assert not np.array_equal(first, second)
    assert not np.array_equal(rest, first[:14])
    following = partners_of("instance").rows(sampler, 1)
    assert not np.array_equal(second, following[:113])


def seen(images, rows, seed):
    """Augment images one by one, the n-th of them as that in place n of epoch 1."""
    names = augments(images)
    if images.is_resident:
        augment = make_augment(names, seed=seed)
        pixels = torch.from_numpy(images.pixels)
        one_by_one = [
            augment(pixels[row : row + 1], torch.tensor([place]), 1)[0]
            for place, row in enumerate(rows)
        ]
    else:
        transform = make_loader_transform(names, seed=seed)
        one_by_one = [transform(images.image(row), place, 1) for place, row in enumerate(rows)]
    return torch.stack(one_by_one)


@pytest.mark.parametrize("second", [False, True], ids=["one view", "two views"])
@pytest.mark.parametrize("kind", SHARES)
def test_images_are_mixed_with_drawn_partners_as_in_a_loop(images, kind, second):
    names = augments(images)
    mixed = batches(images, names if second else (), mixing=kind, partners="class-balanced")
    own_seed = derived_seed(5, "partners")
    sampler = InstanceSampler(images.labels, seed=0)
    rows = Partners(ClassBalancedSampler(images.labels, seed=own_seed), []).rows(sampler, 1)
    seeds = {"images": (5, own_seed)}
    if second:
        seeds["second"] = tuple(derived_seed(each, "second view") for each in (5, own_seed))
    for view, (of_image, of_partner) in seeds.items():
        found = torch.cat([getattr(batch, view) for batch in mixed])
        own = seen(images, sampler.epoch_indices(1), of_image)
        others = seen(images, rows, of_partner)
        for number, begin in enumerate((0, 4)):
            part = slice(begin, begin + 4)
            how, drawn, centre = way_of(kind, view, number, second)
            expected, fraction = looped(own[part], others[part], how, drawn, centre)
            torch.testing.assert_close(found[part], expected, atol=1e-5, rtol=0)
            told = mixed[number].fraction if view == "images" else mixed[number].second_fraction
            assert told.item() == pytest.approx(fraction, abs=1e-6)
    assert torch.cat([b.labels for b in mixed]).tolist() == list(
        images.labels[sampler.epoch_indices(1)]
    )
    assert torch.cat([b.other for b in mixed]).tolist() == list(images.labels[rows])


def way_of(kind, view, number, second):
    """Say how a view of a batch is mixed, with which share, around which centre."""
    places = torch.arange(6)[4 * number : 4 * number + 4]
    numbers = uniforms(5, 1, places, _PURPOSE, 4)
    fractions = SHARES[kind][number].flatten().tolist()
    centre = numbers[0, 1:3].tolist()
    if kind != "mixup-cutmix":
        return kind, fractions[0], centre
    if second:
        return ("mixup" if view == "images" else "cutmix"), fractions[0], centre
    pasted = numbers[0, 3] < 0.5
    return ("cutmix", fractions[1], centre) if pasted else ("mixup", fractions[0], centre)


def looped(images, others, kind, fraction, centre):
    if kind == "mixup":
        pairs = zip(images.double(), others.double(), strict=True)
        return torch.stack([fraction * a + (1 - fraction) * b for a, b in pairs]).float(), fraction
    n = len(images)
    both = torch.cat([images, others])
    mixed, true_share = cutmix_loop(both, torch.arange(2 * n).roll(n), fraction, centre)
    return mixed[:n], true_share


def test_both_views_meet_both_views_of_the_same_partner(images):
    """With a share of 0 nothing but the partner is left."""
    names = augments(images)
    loader = make_loader(
        images, names, seed=5, device=CPU, second=names, mixing="mixup",
        partners="square-root",
    )  # fmt: skip
    sampler = InstanceSampler(images.labels, seed=0)
    rows = Partners(SquareRootSampler(images.labels, seed=derived_seed(5, "partners")), []).rows(
        sampler, 1
    )
    [batch] = map(loader, loader.batches(sampler, 6, 1, fractions=torch.zeros(1)))
    for view, seed in (
        (batch.images, derived_seed(5, "partners")),
        (batch.second, derived_seed(derived_seed(5, "partners"), "second view")),
    ):
        torch.testing.assert_close(view, seen(images, rows, seed), atol=1e-6, rtol=0)


def test_an_image_that_is_its_own_partner_is_augmented_another_way():
    alone = ImageSet([0], ("ant",), small_images().train.pixels[:1])
    loader = make_loader(
        alone, ["crop", "flip"], seed=0, device=CPU, mixing="mixup", partners="class-balanced"
    )
    sampler = InstanceSampler(alone.labels)
    differing = 0
    for epoch in range(10):
        [kept], [partner] = (
            [
                loader(each)
                for each in loader.batches(sampler, 1, epoch, fractions=torch.full((1,), fraction))
            ]
            for fraction in (1.0, 0.0)
        )
        differing += not torch.equal(kept.images, partner.images)
    assert differing >= 8


@pytest.mark.parametrize("kind", [None, *SHARES])
def test_the_first_images_of_an_epoch_are_those_of_the_whole(images, kind):
    options = {"mixing": kind, "partners": "class-balanced"}
    first = batches(images, n=4, **options)
    for one, whole in zip(first, batches(images, **options)[:1], strict=True):
        assert torch.equal(one.images, whole.images)
        assert torch.equal(one.labels, whole.labels)
        assert kind is None or torch.equal(one.other, whole.other)
    assert [len(batch.labels) for batch in batches(images, n=5)] == [4, 1]


@pytest.mark.parametrize("images", ["files"], indirect=True)
def test_workers_read_the_partners_too(images, monkeypatch):
    options = {"mixing": "cutmix", "partners": "class-balanced", "second": augments(images)}
    alone = batches(images, **options)
    monkeypatch.setattr(FileLoader, "workers", 2)
    for one, other in zip(alone, batches(images, **options), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_without_shares_nobody_is_drawn(images):
    for drawn, plain in zip(
        batches(images, partners="class-balanced"), batches(images), strict=True
    ):
        assert torch.equal(drawn.images, plain.images)
        assert drawn.other is None


def test_a_batch_names_its_partners_and_none_where_they_are_its_own():
    data = small_images()
    for partners, there in (("batch", False), ("class-balanced", True)):
        settings = dataclasses.replace(SETTINGS, cutmix=1.0, partners=partners)
        training = RepresentationTraining(settings, data, seed=0, device=CPU)
        for batch in training._batches(0):
            assert (batch.partners is not None) == there
            assert not there or batch.partners.shape == batch.rows.shape


def test_a_graph_can_hold_it():
    settings = dataclasses.replace(
        SETTINGS, **TWO_VIEWS, mixup=1.0, cutmix=1.0, partners="class-balanced"
    )
    training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    batch = next(training._batches(0))
    with Kernels() as kernels:
        training.loader(batch)
    assert kernels.names.count("lerp") == 2


@pytest.mark.parametrize("changes", [{"mixup": 1.0}, {"mixup": 1.0, **TWO_VIEWS}])
def test_two_processes_mix_as_one_would(changes):
    data = small_images()
    settings = dataclasses.replace(SETTINGS, partners="class-balanced", **changes)
    alone = RepresentationTraining(settings, data, seed=0, device=CPU)
    whole = [alone.loader(batch) for batch in alone._batches(1)]
    for rank in range(2):
        part = RepresentationTraining(settings, data, seed=0, device=CPU, fabric=two(rank))
        for one, both in zip(map(part.loader, part._batches(1)), whole, strict=True):
            n = len(one.labels)
            assert torch.equal(one.images, both.images[rank::2][:n])
            assert torch.equal(one.other, both.other[rank::2][:n])
            if both.second is not None:
                assert torch.equal(one.second, both.second[rank::2][:n])


def two(rank):
    class Two:
        global_rank, world_size, backward = rank, 2, None

        def setup(self, *parts):
            return parts

    return Two()


def test_a_training_sees_rare_classes_in_front_of_all_others():
    settings = dataclasses.replace(SETTINGS, epochs=8, cutmix=1.0, partners="class-balanced")
    training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
    batches = [training.loader(batch) for epoch in range(8) for batch in training._batches(epoch)]
    other = torch.cat([batch.other for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    assert labels.bincount().tolist() == [8 * n for n in (60, 30, 15, 8)]
    assert (other.bincount() - 8 * 113 / 4).abs().max() <= 8
    rarest = labels[other == 3].bincount(minlength=4) / (other == 3).sum()
    torch.testing.assert_close(rarest, torch.tensor([60, 30, 15, 8]) / 113, atol=0.08, rtol=0)


@pytest.mark.parametrize("views", [{}, TWO_VIEWS])
def test_it_trains_otherwise_than_within_the_batch_and_repeatably(views):
    def weights(partners):
        settings = dataclasses.replace(SETTINGS, mixup=1.0, epochs=1, partners=partners, **views)
        training = RepresentationTraining(settings, small_images(), seed=0, device=CPU)
        interleave([training.steps()])
        return training.method.head.weight

    first, again, batch = map(weights, ("class-balanced", "class-balanced", "batch"))
    assert torch.equal(first, again)
    assert not torch.equal(first, batch)


@pytest.mark.parametrize("name", ["progressive", "class-balance"])
def test_unknown_partners_are_named(name):
    settings = dataclasses.replace(SETTINGS, mixup=1.0, partners=name)
    with pytest.raises(ValueError, match=rf"partners='{name}' is unknown; expected .*'square-root"):
        RepresentationTraining(settings, small_images(), seed=0, device=CPU)
