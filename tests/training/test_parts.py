"""Schedules, moving average, constraint and feeds, each against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from protail.backbones import make_backbone
from protail.data import ClassBalancedSampler, InstanceSampler
from protail.data.sets import ImageSet
from protail.training import MaxNorm, MovingAverage, constant, steps, warm_up
from protail.training.loader import make_feed
from reference.small_images import small_images

CPU = torch.device("cpu")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 1)), max_size=4), st.floats(0, 1))
def test_steps_by_hand(drops, done):
    drops = sorted(drops)
    expected = 1.0
    for place, factor in drops:
        if done >= place:
            expected = factor
    assert steps(drops)(done) == expected


@pytest.mark.parametrize("drops", [[(0.5, 0.1), (0.2, 0.1)], [(0.0, 0.1)], [(1.5, 0.1)]])
def test_steps_out_of_order_are_refused(drops):
    with pytest.raises(ValueError, match="in order"):
        steps(drops)


@pytest.mark.parametrize("part", [-0.1, 1.0])
def test_warm_up_must_leave_room(part):
    with pytest.raises(ValueError, match="part="):
        warm_up(constant, part)


def test_moving_average_by_hand():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    average = MovingAverage(module, 0.9)
    expected = module[0].weight.detach().clone()
    mean = module[1].running_mean.clone()
    for step in range(5):
        with torch.no_grad():
            module[0].weight.add_(step)
            module[1].running_mean.add_(step)
            module[1].num_batches_tracked.add_(1)
        average.update()
        expected = 0.9 * expected + 0.1 * module[0].weight.detach()
        mean = 0.9 * mean + 0.1 * module[1].running_mean
    torch.testing.assert_close(average.average[0].weight, expected)
    torch.testing.assert_close(average.average[1].running_mean, mean)
    assert average.average[1].num_batches_tracked == 5
    assert not any(p.requires_grad for p in average.parameters())


def test_an_average_counts_the_statistics_of_batches():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
    average = MovingAverage(module, 0.9)
    batches = [torch.randn(4, 2, dtype=torch.float64) for _ in range(3)]
    means = torch.stack([batch.mean(0) for batch in batches]).mean(0)
    variances = torch.stack([batch.var(0) for batch in batches]).mean(0)
    average.double()
    for factor in (1, 2):  # the second time as though another process had three times as much
        average.count_anew(batches, average.average, lambda own, by=factor: by * own)
        torch.testing.assert_close(average.average[0].running_mean, factor * means)
        torch.testing.assert_close(average.average[0].running_var, factor * variances)
    assert average.average[0].momentum == 0.1
    assert not average.average[0].training


def test_counting_that_fails_leaves_an_average_that_can_go_on():
    average = MovingAverage(torch.nn.BatchNorm1d(2), 0.9)

    def fail(batch):
        raise OSError("a broken image")

    with pytest.raises(OSError, match="broken"):
        average.count_anew([1], fail)
    assert average.average.momentum == 0.1
    assert not average.average.training


@settings(max_examples=50)
@given(st.integers(0, 2**20), st.floats(0, 1))
def test_max_norm_by_hand(seed, part):
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lengths = weight.norm(dim=1)
    radius = lengths.min() + part * (lengths.max() - lengths.min())
    expected = torch.stack([row * min(1.0, float(radius / row.norm())) for row in weight])
    constraint = MaxNorm(weight, part)
    constraint()
    torch.testing.assert_close(weight, expected)
    constraint()
    torch.testing.assert_close(weight, expected)


def test_max_norm_at_infinity_constrains_nothing():
    weight = torch.randn(5, 3)
    before = weight.clone()
    constraint = MaxNorm(weight, float("inf"))
    weight.mul_(100)
    constraint()
    assert torch.equal(weight, 100 * before)


def test_ranks_see_the_images_one_process_would_see():
    data = small_images()
    feed = make_feed(data.train, ["crop", "flip"], seed=0, device=CPU)
    alone = feed.batches(ClassBalancedSampler(data.train.labels), 16, 0)
    whole = torch.cat([feed(batch).images for batch in alone])
    for rank in range(2):
        sampler = ClassBalancedSampler(data.train.labels, rank=rank, world_size=2)
        part = torch.cat([feed(batch).images for batch in feed.batches(sampler, 8, 0)])
        assert torch.equal(part, whole[rank::2])


def test_an_epoch_can_be_entered_in_the_middle():
    data = small_images()
    feed = make_feed(data.train, ["crop"], seed=0, device=CPU)
    sampler = InstanceSampler(data.train.labels)
    whole = list(feed.batches(sampler, 32, 3))
    rest = list(feed.batches(sampler, 32, 3, start=2))
    assert len(rest) == len(whole) - 2
    assert torch.equal(feed(rest[0]).images, feed(whole[2]).images)


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


@pytest.mark.parametrize("workers", [0, 2])
def test_files_come_through_workers_in_the_same_way(files, workers):
    sampler = InstanceSampler(files.labels)
    feeds = [
        make_feed(files, ["resized-crop", "flip"], seed=0, device=CPU, workers=w)
        for w in (0, workers)
    ]
    first, second = (list(map(feed, feed.batches(sampler, 4, 1))) for feed in feeds)
    assert [len(batch.labels) for batch in first] == [4, 4, 1]
    for one, other in zip(first, second, strict=True):
        assert one.images.shape[1:] == (3, 224, 224)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    rows = sampler.epoch_indices(1)
    assert torch.cat([b.labels for b in first]).tolist() == files.labels[rows].tolist()


def test_clean_files_are_all_there_in_order(files):
    feed = make_feed(files, ["flip"], seed=0, device=CPU, workers=0)
    clean = torch.cat(list(feed.clean(files)))
    assert clean.shape == (9, 3, 224, 224)
    other = make_feed(files, [], seed=5, device=CPU, workers=0)
    assert torch.equal(torch.cat(list(other.clean(files))), clean)


def test_files_are_made_as_the_backbone_wants_them(files):
    pytest.importorskip("timm")
    backbone = make_backbone("timm/test_resnet")
    feed = make_feed(files, ["resized-crop"], seed=0, device=CPU, workers=0, backbone=backbone)
    one = next(feed.clean(files))
    assert one.shape[1:] == (3, 160, 160)
    plain = make_feed(files, [], seed=0, device=CPU, workers=0)
    # 0.5 and 0.5, not ImageNet's: black is -1.
    assert one.min() >= -1
    assert next(plain.clean(files)).min() < -1
    drawn = feed(next(feed.batches(InstanceSampler(files.labels), 4, 0)))
    assert drawn.images.shape == (4, 3, 160, 160)
