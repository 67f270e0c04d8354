import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.data.augment import uniforms
from protail.data.augment._draws import draw, draw_keys, draw_scales
from reference.augment import naive_uniform

numbers = st.integers(0, 2**40)


@settings(max_examples=50)
@given(st.integers(0, 2**63), numbers, st.lists(numbers, min_size=1, max_size=5), numbers)
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
