"""A whole augment: what it draws, what it may not do inside a CUDA graph, what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.data.augment import CIFAR_MEAN, CIFAR_STD, make_augment, uniforms
from protail.data.augment.on_device import draw, draw_keys, draw_scales
from reference.augment import (
    Kernels,
    all_images,
    crop_flip_loop,
    cutout_loop,
    naive_uniform,
    noise_images,
    smooth_images,
)
from reference.real_data import cifar_root

RECIPES = [
    [],
    ["crop"],
    ["flip"],
    ["flip", "crop"],
    ["crop", "flip"],
    ["crop", "flip", "rotate"],
    ["crop", "flip", "autoaugment", "cutout"],
    ["crop", "flip", "randaugment", "cutout"],
    ["autoaugment-imagenet"],
    ["simclr"],
]


def levels(augment, result):
    """Undo the normalising."""
    return ((result - augment.shift) / augment.scale).round().long()


def numbers(augment, index, epoch):
    return draw(augment.keys, epoch, index, augment.scales)


@pytest.mark.parametrize("names", RECIPES)
def test_an_image_depends_on_its_key_alone(names):
    augment = make_augment(names, seed=3)
    images, index = all_images(8), torch.arange(100, 116)
    together = augment(images, index, 5)
    order = torch.randperm(16)
    shuffled = augment(images[order], index[order], torch.tensor(5))
    assert torch.equal(shuffled, together[order])
    assert torch.equal(augment(images[3:4], index[3:4], 5), together[3:4])
    if names:
        others = [
            augment(images, index, 6),
            augment(images, index + 1, 5),
            make_augment(names, seed=4)(images, index, 5),
        ]
        assert not any(torch.equal(other, together) for other in others)


@pytest.mark.parametrize("size", [(32, 32), (6, 9)])
@pytest.mark.parametrize("names", [["crop"], ["flip"], ["crop", "flip"]])
def test_crop_and_flip_equal_a_loop(names, size):
    augment = make_augment(names, size=size, pad=3)
    images, index = noise_images(40, size), torch.arange(40)
    got = levels(augment, augment(images, index, 1))
    for image, result, row in zip(images, got, numbers(augment, index, 1).tolist(), strict=True):
        top, left = (int(row[0]), int(row[1])) if "crop" in names else (3, 3)
        mirror = int(row[-1]) if "flip" in names else 0
        assert torch.equal(result, crop_flip_loop(image, 3, top, left, mirror).long())


def test_crop_and_flip_equal_torchvision():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    augment = make_augment(["crop", "flip"])
    images, index = smooth_images(20), torch.arange(20)
    got = levels(augment, augment(images, index, 0))
    for image, result, row in zip(images, got, numbers(augment, index, 0).long(), strict=True):
        top, left, mirror = row.tolist()
        padded = v2.functional.pad(v2.functional.horizontal_flip(image) if mirror else image, [4])
        assert torch.equal(result, v2.functional.crop(padded, top, left, 32, 32).long())


@pytest.mark.parametrize(("size", "side"), [((32, 32), 16), ((7, 12), 4), ((5, 5), 20)])
def test_cutout_equals_a_loop(size, side):
    augment = make_augment(["cutout"], size=size, cutout=side)
    images, index = noise_images(60, size), torch.arange(60)
    got = levels(augment, augment(images, index, 2))
    draws = numbers(augment, index, 2).long()
    for image, result, (below, right) in zip(images, got, draws.tolist(), strict=True):
        want = cutout_loop(image, side, size[0] - 1 - below, size[1] - 1 - right)
        assert torch.equal(result, want.long())


def test_cutout_is_black_before_normalising():
    augment = make_augment(["cutout"], cutout=64)
    result = augment(all_images(), torch.arange(8), 0)
    black = -torch.tensor(CIFAR_MEAN) / torch.tensor(CIFAR_STD)
    assert (result == black.view(3, 1, 1)).float().mean() > 0.9


def test_rotate_equals_torchvision():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    augment = make_augment(["rotate"])
    images, index = noise_images(121), torch.arange(121)
    got = levels(augment, augment(images, index, 0))
    angles = numbers(augment, index, 0).long()[:, 0] / 4 - 15
    assert angles.unique().numel() > 60
    for image, result, angle in zip(images, got, angles.tolist(), strict=True):
        assert torch.equal(result, v2.functional.rotate(image, angle).long())


def test_every_shift_and_mirror_is_equally_likely():
    augment = make_augment(["crop", "flip"], pad=1)
    index = torch.arange(36_000)
    top, left, mirror = numbers(augment, index, 0).long().unbind(1)
    counts = torch.bincount(top * 6 + left * 2 + mirror, minlength=18)
    assert (counts - 2000).abs().max() < 250


@pytest.mark.parametrize("name", ["autoaugment", "randaugment"])
def test_policies_change_most_images_and_draw_every_action(name):
    augment = make_augment([name])
    images = smooth_images(2)[:1].expand(500, -1, -1, -1)
    result = augment(images, torch.arange(500), 0)
    assert len(torch.unique(result.flatten(1), dim=0)) > 40
    policy = augment.steps[0]
    whole = numbers(augment, torch.arange(20_000), 0).long()
    chosen = policy.choices[policy.slots, whole[:, :1], whole[:, 1:]]
    assert chosen.unique().numel() == policy.choices.unique().numel()


def test_normalising_equals_torchvision():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    images = all_images()
    normalise = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR_MEAN, CIFAR_STD)]
    )
    for result in (
        make_augment(["crop"]).clean(images),
        make_augment([])(images, torch.arange(8), 0),
    ):
        torch.testing.assert_close(result, normalise(images), atol=2e-6, rtol=0)


@pytest.mark.parametrize("names", RECIPES)
def test_layouts(names):
    augment = make_augment(names, channels_last=True)
    images, index = all_images(), torch.arange(8)
    result = augment(images.contiguous(memory_format=torch.channels_last), index, 0)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result, make_augment(names)(images, index, 0))


@pytest.mark.parametrize(
    ("names", "most"),
    [
        ([], 2),
        (["crop", "flip"], 14),
        (["crop", "flip", "autoaugment", "cutout"], 74),
        (["simclr"], 190),
    ],
)
def test_a_graph_can_hold_it_and_it_takes_few_kernels(names, most):
    augment = make_augment(names)
    images, index, epoch = all_images(), torch.arange(8), torch.tensor(1)
    with Kernels() as kernels:
        augment(images, index, epoch)
        augment.clean(images)
    assert len(kernels.names) - 2 <= most


@pytest.mark.parametrize("names", [["crop", "flip", "autoaugment", "cutout"], ["simclr"]])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_in_one_piece(names, backend):
    augment = make_augment(names)
    compiled = torch.compile(augment, fullgraph=True, backend=backend)
    images, index = all_images(), torch.arange(8)
    for epoch in (torch.tensor(0), torch.tensor(9)):
        expected = augment(images, index, epoch)
        torch.testing.assert_close(compiled(images, index, epoch), expected, atol=1e-4, rtol=0)


def test_has_nothing_to_save():
    assert make_augment(["crop", "autoaugment"]).state_dict() == {}


@pytest.mark.parametrize("name", ["autoaugment", "randaugment"])
def test_real_images_look_like_torchvisions(name):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    datasets = pytest.importorskip("torchvision.datasets")
    data = datasets.CIFAR100(cifar_root("cifar100-lt"), train=False).data[:1500]
    images = torch.from_numpy(data).permute(0, 3, 1, 2).contiguous()
    policies = {
        "autoaugment": v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128),
        "randaugment": v2.RandAugment(fill=128),
    }
    torch.manual_seed(0)
    theirs = torch.stack([policies[name](image) for image in images]).float()
    augment = make_augment([name])
    ours = levels(augment, augment(images, torch.arange(1500), 0)).float()
    for statistic in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3))):
        expected, got = statistic(theirs), statistic(ours)
        error = (expected.var() / 1500 + got.var() / 1500).sqrt()
        assert (expected.mean() - got.mean()).abs() < 4 * error
        assert abs(expected.std() / got.std() - 1) < 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_augment(["autoaugmnt"]), "Did you mean 'autoaugment'"),
        (lambda: make_augment("crop"), "one string"),
        (lambda: make_augment(["crop", "crop"]), "twice"),
        (lambda: make_augment([], mean=(0.5,)), "mean="),
        (lambda: make_augment([], std=(0.5, 0.0, 1.0)), "std="),
        (lambda: make_augment(["autoaugment"], fill=300), "fill=300"),
        (lambda: make_augment(["randaugment"], magnitude=31), "magnitude=31"),
        (lambda: make_augment(["crop"], pad=-1), "pad=-1"),
        (lambda: make_augment(["simclr"], size=(4, 32)), "simclr needs"),
        (lambda: make_augment([])(noise_images(2).float(), torch.arange(2), 0), "uint8"),
        (lambda: make_augment([])(noise_images(2, (8, 8)), torch.arange(2), 0), "make_augment"),
        (lambda: make_augment([])(noise_images(2), torch.arange(3), 0), "index has shape"),
        (lambda: make_augment([]).clean(torch.zeros(1, 3, 32, 32)), "uint8"),
        (lambda: make_augment([]).to("meta").clean(noise_images(1)), "augment.to('cpu')"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises((TypeError, ValueError)) as error:
        make()
    assert words in str(error.value)


whole = st.integers(0, 2**40)


@settings(max_examples=50)
@given(st.integers(0, 2**63), whole, st.lists(whole, min_size=1, max_size=5), whole)
def test_equals_whole_number_arithmetic(seed, epoch, index, purpose):
    got = uniforms(seed, torch.tensor(epoch), torch.tensor(index), purpose, 3)
    want = [[naive_uniform(seed, epoch, i, purpose, d) for d in range(3)] for i in index]
    assert got.dtype == torch.float32
    assert got.tolist() == want
    assert torch.equal(uniforms(seed, epoch, torch.tensor(index), purpose, 3), got)


def test_batch_and_order_do_not_matter():
    index = torch.randperm(1000)
    together = uniforms(3, 7, index, 1, 4)
    for part in (slice(0, 1), slice(10, 500), slice(999, 1000)):
        assert torch.equal(together[part], uniforms(3, 7, index[part], 1, 4))


def test_first_draws_do_not_depend_on_how_many_follow():
    index = torch.arange(50)
    assert torch.equal(uniforms(0, 0, index, 1, 2), uniforms(0, 0, index, 1, 9)[:, :2])


def chi_square(counts):
    """Give the deviation from equal counts in standard deviations of chi-square."""
    counts = np.asarray(counts, dtype=float).ravel()
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1))


def table(first, second, bins=20):
    return np.histogram2d(first, second, bins=bins, range=[[0, 1], [0, 1]])[0]


@pytest.mark.parametrize("n", [8, 25, 1000])
def test_uniform(n):
    u = uniforms(0, 5, torch.arange(200_000), 2, 3).numpy()
    for column in u.T:
        assert abs(chi_square(np.bincount((column * n).astype(int), minlength=n))) < 5


NEIGHBOURS = {
    "draw": lambda i: (uniforms(0, 0, i, 1, 2)[:, 0], uniforms(0, 0, i, 1, 2)[:, 1]),
    "epoch": lambda i: (uniforms(0, 0, i, 1), uniforms(0, 1, i, 1)),
    "index": lambda i: (uniforms(0, 0, i, 1), uniforms(0, 0, i + 1, 1)),
    "far index": lambda i: (uniforms(0, 0, i, 1), uniforms(0, 0, i + 2**32, 1)),
    "seed": lambda i: (uniforms(0, 0, i, 1), uniforms(1, 0, i, 1)),
    "purpose": lambda i: (uniforms(0, 0, i, 1), uniforms(0, 0, i, 2)),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_neighbours_are_independent(neighbour):
    first, second = (u.flatten().numpy() for u in NEIGHBOURS[neighbour](torch.arange(200_000)))
    assert abs(chi_square(table(first, second))) < 5
    assert abs(chi_square(table(first * 32 % 1, second * 32 % 1))) < 5


def test_one_image_over_epochs_is_uniform_too():
    index = torch.tensor([4321])
    u = torch.cat([uniforms(0, epoch, index, 1, 2) for epoch in range(4000)]).numpy()
    assert abs(chi_square(table(u[:, 0], u[:, 1], bins=8))) < 5


@pytest.mark.parametrize("high", [2, 3, 9, 25, 28, 121, 224, 4097, 1_000_003])
def test_upper_end_is_never_reached(high):
    largest = torch.tensor([0x7FFF_FF00], dtype=torch.int32) * draw_scales([high])
    assert largest.long().item() == high - 1 or high > 2**22


def test_scales_stretch_the_same_numbers():
    keys, index = draw_keys(0, 1, 2), torch.arange(100)
    stretched = draw(keys, 0, index, draw_scales([1.0, 8.0]))
    assert torch.equal(stretched, draw(keys, 0, index) * torch.tensor([1.0, 8.0]))
