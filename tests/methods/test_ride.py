"""RIDE's loss, against loops, on its special cases, and as a training."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protail.losses import make_loss
from protail.methods import METHODS, ImageBatch, Method, class_temperatures, make_method
from protail.models.backbones import ExpertResNet
from protail.models.heads import CosineHead, ExpertsHead, HeadPerExpert
from reference import ride_by_loop as naive

COUNTS = [50, 10, 3, 1]
CIFAR100_IR100 = [int(500 * 100 ** (-c / 99)) for c in range(100)]


class Given(nn.Module):
    """A loss function to look at: the logits are parameters, whatever the image."""

    def __init__(self, logits_ebc):
        super().__init__()
        self.logits_ebc = nn.Parameter(logits_ebc)

    def forward(self, images):
        return self.logits_ebc.transpose(0, 1).flatten(1)


def given_logits(logits_ebc, counts, loss=None, **options):
    """The method on experts whose logits are these numbers."""
    n_experts, _, n_classes = logits_ebc.shape
    head = ExpertsHead(n_classes, n_experts * n_classes, experts=n_experts)
    head.experts = nn.ModuleList(nn.Identity() for _ in range(n_experts))
    parts = Given(torch.as_tensor(logits_ebc)), head, loss or nn.CrossEntropyLoss()
    return make_method("ride", *parts, counts, **options).double()


def flat_method(n_experts=3, width=4, loss=None, name="ride", seed=0, **options):
    torch.manual_seed(seed)
    head = ExpertsHead(4, n_experts * width, experts=n_experts)
    return make_method(name, nn.Flatten(), head, loss or nn.CrossEntropyLoss(), COUNTS, **options)


def flat_batch(n_features=12, mixed=False, n=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(n, n_features, 1, 1, generator=generator, dtype=dtype)
    batch = ImageBatch(images, torch.arange(n) % 4)
    return (
        batch._replace(other=batch.labels.flip(0), fraction=torch.tensor(0.3)) if mixed else batch
    )


@st.composite
def problems(draw):
    n_experts, n_images, n_classes = (draw(st.integers(*x)) for x in ((1, 3), (1, 4), (2, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (
        2 * rng.normal(size=(n_experts, n_images, n_classes)),
        rng.integers(n_classes, size=n_images),
        rng.integers(1, 500, size=n_classes).tolist(),
    )


@settings(max_examples=40)
@given(
    problems(),
    st.floats(0.0, 0.9),
    st.floats(0.0, 0.9),
    st.sampled_from([1.0, 2.0]),
    st.booleans(),
)
def test_loss_and_gradients_equal_the_loops(problem, diversity, rho, temperature, pairwise):
    logits, labels, counts = problem
    options = {"diversity": diversity, "rho": rho, "temperature": temperature}
    method = given_logits(logits, counts, reweight_from=5, pairwise=pairwise, **options)
    batch = ImageBatch(torch.zeros(len(labels), 1), torch.from_numpy(labels))
    # No gradient passes into the mean: for slopes it stands still.
    means = np.array([naive.mean_over_experts(logits, row) for row in range(len(labels))])
    for epoch, temperatures in (
        (4, [1.0] * len(counts)),
        (5, naive.class_temperatures(counts, rho, temperature)),
    ):
        method.on_epoch(epoch)
        np.testing.assert_allclose(method.temperatures, temperatures, rtol=1e-6)
        method.temperatures.copy_(torch.tensor(temperatures, dtype=torch.float64))
        arguments = (labels, temperatures, diversity)
        expected = naive.ride_loss(logits, *arguments, pairwise=pairwise)
        method.zero_grad()
        found = method(batch)
        assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        found.backward()
        slopes = naive.slopes(
            lambda at, rest=arguments: naive.ride_loss(
                at, *rest, pairwise=pairwise, given_mean=None if pairwise else means
            ),
            logits,
        )
        np.testing.assert_allclose(method.backbone.logits_ebc.grad, slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("pairwise", [False, True])
def test_mixed_images_count_in_their_shares(pairwise):
    method = flat_method(pairwise=pairwise)
    batch = flat_batch(mixed=True)
    labels, other = (
        method(batch._replace(labels=codes, other=None)) for codes in (batch.labels, batch.other)
    )
    assert not torch.isclose(labels, other)
    torch.testing.assert_close(method(batch), 0.3 * labels + 0.7 * other)


def test_the_whole_of_it_on_features():
    method = flat_method(diversity=0.45, rho=0.5, reweight_from=0).double()
    method.on_epoch(0)
    batch = flat_batch(dtype=torch.float64)
    rows = batch.images.flatten(1).tolist()
    weights = [expert.weight.tolist() for expert in method.head.experts]
    logits = naive.expert_logits(rows, weights, 30.0)
    expected = naive.ride_loss(
        logits, batch.labels.tolist(), method.temperatures.tolist(), diversity=0.45
    )
    assert method(batch).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("options", [{"diversity": 0.0}, {}, {"pairwise": True}])
def test_one_expert_is_the_loss_itself(mixed, options):
    method = flat_method(n_experts=1, width=12, reweight_from=0, rho=0.5, **options)
    method.on_epoch(0)
    head = CosineHead(4, 12, scale=30.0)
    head.load_state_dict(method.head.experts[0].state_dict())
    plain = Method(nn.Flatten(), head, nn.CrossEntropyLoss(), COUNTS)
    batch = flat_batch(mixed=mixed)
    torch.testing.assert_close(method(batch), plain(batch))
    for one in (method, plain):
        one(batch).backward()
    torch.testing.assert_close(method.head.experts[0].weight.grad, head.weight.grad)


@pytest.mark.parametrize("epoch", [0, 160])
@pytest.mark.parametrize("mixed", [False, True])
def test_one_expert_without_diversity_is_ldam_drw(epoch, mixed):
    loss = make_loss("ldam", COUNTS, reweight_from=160)
    method = flat_method(n_experts=1, width=12, loss=loss, diversity=0.0)
    head = CosineHead(4, 12, scale=30.0)
    head.load_state_dict(method.head.experts[0].state_dict())
    plain = Method(nn.Flatten(), head, make_loss("ldam", COUNTS, reweight_from=160), COUNTS)
    batch = flat_batch(mixed=mixed)
    for one in (method, plain):
        one.on_epoch(epoch)
        one(batch).backward()
    torch.testing.assert_close(method(batch), plain(batch))
    torch.testing.assert_close(method.head.experts[0].weight.grad, head.weight.grad)


@pytest.mark.parametrize("epoch", [0, 160])
def test_every_expert_has_the_margins_and_weights_of_ldam_drw(epoch):
    """Cross-entropy of scale (cosine - margin), classes weighed by effective numbers from 160."""
    method = flat_method(loss=make_loss("ldam", COUNTS, reweight_from=160), diversity=0.0).double()
    method.on_epoch(epoch)
    batch = flat_batch(dtype=torch.float64)
    labels = batch.labels.tolist()
    margins = [0.5 * (n / min(COUNTS)) ** -0.25 for n in COUNTS]
    weights = [1.0 if epoch < 160 else (1 - 0.9999) / (1 - 0.9999**n) for n in COUNTS]
    rows = batch.images.flatten(1).tolist()
    logits = naive.expert_logits(rows, [e.weight.tolist() for e in method.head.experts], 30.0)
    expected = 0.0
    for of_expert in logits:
        for row, label in zip(of_expert, labels, strict=True):
            shifted = [z - 30 * margins[label] * (c == label) for c, z in enumerate(row)]
            part = weights[label] * naive.cross_entropy([shifted], [label])
            expected += part / sum(weights[label] for label in labels)
    assert method(batch).item() == pytest.approx(expected, rel=1e-6)


def test_without_diversity_it_is_the_sum_of_the_experts_losses():
    method = flat_method(diversity=0.0)
    batch = flat_batch()
    parts = batch.images.flatten(1).chunk(3, 1)
    alone = [
        nn.functional.cross_entropy(expert(part), batch.labels)
        for expert, part in zip(method.head.experts, parts, strict=True)
    ]
    torch.testing.assert_close(method(batch), sum(alone))
    # And not that of the mean, which is what is evaluated.
    together = nn.functional.cross_entropy(method.logits(batch.images), batch.labels)
    assert not torch.isclose(method(batch), 3 * together)


@pytest.mark.parametrize("pairwise", [False, True])
def test_identical_experts_do_not_diverge(pairwise):
    logits = np.random.default_rng(0).normal(size=(1, 5, 4)).repeat(3, 0)
    batch = ImageBatch(torch.zeros(5, 1), torch.arange(5) % 4)
    losses = [
        given_logits(logits, COUNTS, diversity=diversity, pairwise=pairwise)(batch).item()
        for diversity in (0.0, 0.9)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    apart = logits + np.random.default_rng(1).normal(size=(3, 5, 4))
    losses = [
        given_logits(apart, COUNTS, diversity=diversity, pairwise=pairwise)(batch).item()
        for diversity in (0.0, 0.9)
    ]
    assert losses[1] < losses[0] - 0.01


def test_a_lower_temperature_lets_a_rare_class_count_more():
    """The same disagreement, about the most frequent class or about the rarest."""
    batch = ImageBatch(torch.zeros(1, 1), torch.tensor([1]))
    gains = []
    for about in (0, 3):
        logits = np.zeros((2, 1, 4))
        logits[:, 0, about] = 1.0, -1.0
        losses = []
        for diversity in (0.0, 0.5):
            method = given_logits(logits, COUNTS, diversity=diversity, rho=0.5, reweight_from=0)
            method.on_epoch(0)
            losses.append(method(batch).item())
        gains.append(losses[0] - losses[1])
    assert gains[1] > 1.5 * gains[0] > 0


def test_temperatures_of_cifar_100():
    temperatures = class_temperatures(CIFAR100_IR100, rho=0.05)
    assert temperatures[0] == 1
    assert temperatures[99] == pytest.approx(0.8067, abs=5e-5)
    assert temperatures.mean() == pytest.approx(0.8471, abs=5e-5)


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    st.floats(0, 0.99),
    st.floats(0.1, 10),
)
def test_temperatures_equal_the_loops(counts, rho, temperature):
    found = class_temperatures(counts, rho, temperature)
    expected = naive.class_temperatures(counts, rho, temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.max() == pytest.approx(temperature)
    assert (
        np.argsort(found, kind="stable") == np.argsort(counts, kind="stable")
    ).all() or rho < 1e-9


@pytest.mark.parametrize(("counts", "rho"), [(COUNTS, 0.0), ([7] * 4, 0.05)])
def test_nothing_to_tell_classes_apart_by_leaves_one_temperature(counts, rho):
    np.testing.assert_allclose(class_temperatures(counts, rho, 1.5), [1.5] * 4)


def test_temperatures_change_in_place_and_the_loss_is_told():
    class Counting(nn.CrossEntropyLoss):
        def on_epoch(self, epoch):
            self.epoch = epoch

    method = flat_method(loss=Counting(), rho=0.5, reweight_from=160)
    place = method.temperatures.data_ptr()
    later = torch.tensor(naive.class_temperatures(COUNTS, 0.5))
    for epoch, expected in ((0, torch.ones(4)), (159, torch.ones(4)), (160, later), (199, later)):
        method.on_epoch(epoch)
        torch.testing.assert_close(method.temperatures, expected)
        assert method.temperatures.data_ptr() == place
        assert method.loss.epoch == epoch
    method.on_epoch(3)  # as when a training is entered again
    assert (method.temperatures == 1).all()


class Projected(nn.Linear):
    """A backbone that autocast shortens."""

    def forward(self, images):
        return super().forward(images.flatten(1))


@pytest.mark.parametrize("loss", ["ldam", "cross-entropy"])
@pytest.mark.parametrize("pairwise", [False, True])
def test_half_precision_ends_with_the_features(pairwise, loss):
    torch.manual_seed(0)
    parts = Projected(12, 12), ExpertsHead(4, 12, experts=3), make_loss(loss, COUNTS)
    options = {"pairwise": pairwise, "rho": 0.5, "reweight_from": 0}
    method, batch = make_method("ride", *parts, COUNTS, **options), flat_batch(mixed=True)
    method.on_epoch(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = method(batch)
        features = method.features(batch.images)
    assert features.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    found.backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    exact = make_method("ride", nn.Flatten(), *parts[1:], COUNTS, **options)
    exact.on_epoch(0)
    expected = exact(batch._replace(images=features.detach().float()[:, :, None, None]))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_experts_that_compute_in_half_precision_are_summed_in_single():
    """Linear ones do under autocast."""
    torch.manual_seed(0)
    head = HeadPerExpert(4, 12, experts=3, make=lambda width: nn.Linear(width, 4))
    method = make_method("ride", nn.Flatten(), head, nn.CrossEntropyLoss(), COUNTS)
    batch = flat_batch()
    with torch.autocast("cpu", torch.bfloat16):
        found = method(batch)
        logits_ebc = head.expert_logits(batch.images.flatten(1))
    assert logits_ebc.dtype == torch.bfloat16
    expected = naive.ride_loss(
        logits_ebc.detach().double().numpy(), batch.labels.numpy(), [1.0] * 4, diversity=0.45
    )
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("pairwise", [False, True])
def test_a_step_is_one_graph(pairwise):
    torch._dynamo.reset()
    method = flat_method(pairwise=pairwise)
    batch = flat_batch(mixed=True)
    compiled = torch.compile(method, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), method(batch))
    method.on_epoch(160)  # what it reads changes, and the graph sees it
    torch.testing.assert_close(compiled(batch), method(batch))


def test_a_training_brings_the_loss_down_and_reaches_everything():
    torch.manual_seed(0)
    backbone = ExpertResNet(2, n_blocks=1, widths=(4, 6, 8))
    head = ExpertsHead(4, backbone.n_features, experts=2, scale=10.0)
    method = make_method("ride", backbone, head, nn.CrossEntropyLoss(), COUNTS, reweight_from=8)
    labels = torch.arange(24) % 4
    images = 0.3 * torch.randn(24, 3, 8, 8) + torch.eye(4)[labels][:, :3, None, None]
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    method.train()
    for epoch in range(16):
        method.on_epoch(epoch)
        optimizer.zero_grad()
        method(ImageBatch(images, labels)).backward()
        for name, parameter in method.named_parameters():
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name
        optimizer.step()
    assert (method.logits(images).argmax(1) == labels).float().mean() > 0.9


def test_diversity_drives_experts_apart():
    def divergence(diversity):
        method = flat_method(diversity=diversity, seed=4)
        batch = flat_batch(n=16)
        optimizer = torch.optim.SGD(method.parameters(), lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            method(batch).backward()
            optimizer.step()
        with torch.no_grad():
            logits = method.head.expert_logits(batch.images.flatten(1)).double().numpy()
        rows = range(logits.shape[1])
        soft = [[naive.softmax(logits[e][row], [1.0] * 4) for row in rows] for e in range(3)]
        pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
        return sum(naive.divergence(soft[i][row], soft[j][row]) for i, j in pairs for row in rows)

    assert divergence(0.9) > 1.05 * divergence(0.0)


def test_state_and_copies():
    method = flat_method()
    method.on_epoch(160)
    other = flat_method(seed=1)
    other.load_state_dict(method.state_dict())
    batch = flat_batch()
    assert torch.equal(other(batch), method(batch))
    assert torch.equal(copy.deepcopy(method)(batch), method(batch))


def test_what_it_goes_with():
    needs = {"views": 1, "heads": ("experts",), "losses": ("ldam", "cross-entropy"), "mixes": True}
    assert METHODS.needs("ride").items() >= needs.items()
    defaults = {name: option.default for name, option in METHODS.options("ride").items()}
    assert defaults == {
        "diversity": 0.45,
        "rho": 0.05,
        "temperature": 1.0,
        "reweight_from": 160,
        "pairwise": False,
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"diversity": -0.1}, "diversity=-0.1"),
        ({"diversity": 1.0}, "diversity=1.0"),
        ({"rho": 1.0}, "rho=1.0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"reweight_from": -1}, "reweight_from=-1"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        flat_method(**options)


def test_a_head_without_experts_is_told_at_once():
    with pytest.raises(TypeError, match="head is a CosineHead; expected one with experts"):
        make_method("ride", nn.Flatten(), CosineHead(4, 12), nn.CrossEntropyLoss(), COUNTS)
