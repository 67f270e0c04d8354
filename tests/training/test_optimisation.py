"""Row limits, moving averages and sharpness-aware steps against loops by hand."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.training import MaxNorm, MovingAverage
from protail.training.loop import interleave
from protail.training.optimisation import SharpnessAware
from protail.training.settings import RepresentationSettings
from protail.training.stage1 import RepresentationTraining
from reference.small_images import small_images

CPU = torch.device("cpu")

SETTINGS = RepresentationSettings(
    backbone="resnet32", epochs=1, batch_size=32, lr=0.05, precision="float32"
)


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
        average.recompute_batch_norms(batches, average.average, lambda own, by=factor: by * own)
        torch.testing.assert_close(average.average[0].running_mean, factor * means)
        torch.testing.assert_close(average.average[0].running_var, factor * variances)
    assert average.average[0].momentum == 0.1
    assert not average.average[0].training


def test_counting_that_fails_leaves_an_average_that_can_go_on():
    average = MovingAverage(torch.nn.BatchNorm1d(2), 0.9)

    def fail(batch):
        raise OSError("a broken image")

    with pytest.raises(OSError, match="broken"):
        average.recompute_batch_norms([1], fail)
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


def network(seed):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    return torch.nn.Sequential(*layers).double()


@given(st.integers(0, 99), st.floats(1e-3, 1.0))
def test_three_steps_by_hand(seed, radius):
    ours, theirs = network(seed), network(seed)
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.randint(2, (12,))
    cross_entropy = torch.nn.functional.cross_entropy
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    nearby = SharpnessAware(ours, optimizer, radius)
    speeds = [torch.zeros_like(each) for each in theirs.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        nearby(lambda: cross_entropy(ours(x), y)).backward()
        optimizer.step()
        theirs.zero_grad()
        cross_entropy(theirs(x), y).backward()
        slopes = [each.grad.clone() for each in theirs.parameters()]
        length = math.sqrt(sum(float((slope**2).sum()) for slope in slopes))
        moved = copy.deepcopy(theirs)
        with torch.no_grad():
            for each, slope in zip(moved.parameters(), slopes, strict=True):
                each += radius * slope / length
        moved.zero_grad()
        cross_entropy(moved(x), y).backward()  # a copy: its batch norm counts for itself
        with torch.no_grad():
            parts = zip(theirs.parameters(), moved.parameters(), speeds, strict=True)
            for each, away, speed in parts:
                speed.mul_(0.9).add_(away.grad + 0.01 * each)
                each -= 0.1 * speed
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)


def test_no_slope_no_direction():
    module = torch.nn.Linear(2, 1)
    before = copy.deepcopy(module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    SharpnessAware(module, optimizer, 0.5)(lambda: 0 * module(torch.ones(1, 2)).sum()).backward()
    optimizer.step()
    for name, tensor in before.items():
        assert torch.equal(module.state_dict()[name], tensor)


def at_two():
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, 2.0)
    module.unused = torch.nn.Parameter(torch.tensor(7.0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    return module, optimizer, SharpnessAware(module, optimizer, 0.5)


def square(module):
    return lambda: module(torch.ones(1, 1)).float().square().sum()


def test_a_second_call_before_the_step_begins_where_the_first_did():
    module, optimizer, nearby = at_two()
    assert nearby(square(module)).item() == nearby(square(module)).item() == 6.25
    optimizer.step()
    assert (module.weight.item(), module.unused.item()) == (2.0, 7.0)


def test_an_error_in_the_second_pass_leaves_the_weights_in_their_place():
    module, _, nearby = at_two()
    passes = iter([square(module)])

    def loss():
        return next(passes)()

    with pytest.raises(StopIteration):
        nearby(loss)
    assert module.weight.item() == 2.0


def test_an_autocast_around_both_passes_sees_the_moved_weights():
    module, _, nearby = at_two()
    with torch.autocast("cpu", torch.bfloat16):
        assert nearby(square(module)).item() == 6.25


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_no_radius(radius):
    module = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="expected a finite number >= 0"):
        SharpnessAware(module, torch.optim.SGD(module.parameters(), lr=0.1), radius)


def trained(**options):
    changed = dataclasses.replace(SETTINGS, sam=options.pop("sam", 0.0))
    training = RepresentationTraining(changed, small_images(), seed=0, device=CPU, **options)
    interleave([training.steps()])
    return {name: tensor.clone() for name, tensor in training.method.state_dict().items()}


def test_a_training_takes_it_up_and_a_small_radius_changes_little():
    plain, near, far = trained(), trained(sam=1e-6), trained(sam=0.5)
    name = "backbone.conv1.weight"
    little, much = ((each[name] - plain[name]).norm() for each in (near, far))
    assert 0 < 10 * little < much


def test_fabric_takes_the_same_steps():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    plain, through = trained(sam=0.1), trained(sam=0.1, fabric=fabric)
    for name, tensor in plain.items():
        torch.testing.assert_close(through[name], tensor)
