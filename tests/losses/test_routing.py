"""The loss of gates, against loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.losses import LOSSES, make_loss
from protail.losses.routing import should_be_open
from protail.models.heads import Routing
from reference import ride_by_loop as naive


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_images, n_experts = draw(st.integers(1, 8)), draw(st.integers(2, 4))
    n_classes = draw(st.integers(2, 4))
    return (
        torch.from_numpy(3 * rng.normal(size=(n_images, n_experts - 1))),
        torch.from_numpy(rng.normal(size=(n_images, n_experts, n_classes))),
        torch.from_numpy(rng.integers(n_classes, size=n_images)),
    )


@settings(max_examples=80)
@given(problems(), st.sampled_from([1.0, 2.5, 100.0]))
def test_equals_the_loops(problem, weight):
    gates, running, labels = problem
    expected = naive.routing_loss(gates.numpy(), running.numpy(), labels.tolist(), weight)
    loss = make_loss("routing", [3, 1], positive_weight=weight)
    gates.requires_grad_()
    found = loss(Routing(gates, running), labels)
    assert found.item() == pytest.approx(expected, rel=1e-9)
    found.backward()
    slopes = naive.slopes(
        lambda at: naive.routing_loss(at, running.numpy(), labels.tolist(), weight),
        gates.detach().numpy(),
    )
    np.testing.assert_allclose(gates.grad, slopes, rtol=1e-5, atol=1e-6)
    targets = naive.gate_targets(running.numpy(), labels.tolist())
    assert should_be_open(running, labels).double().tolist() == targets


def running_predictions(*predictions):
    """Mean logits of one image that predict these classes of three, one after the other."""
    return torch.eye(3)[torch.tensor(predictions)][None]


@pytest.mark.parametrize(
    ("predictions", "wanted"),
    [
        ((0, 0, 0), [False, False]),  # right from the first
        ((1, 2, 1), [False, False]),  # wrong whatever is asked
        ((1, 0, 0), [True, False]),
        ((1, 1, 0), [True, True]),
        ((1, 0, 1), [True, False]),  # right in between: asking on was right, asking more is not
        ((0, 1, 0), [False, True]),
    ],
)
def test_a_gate_should_be_open_where_it_helps(predictions, wanted):
    running = running_predictions(*predictions)
    assert should_be_open(running, torch.tensor([0])).tolist() == [wanted]


def test_the_paper_weighs_open_gates_a_hundred_times():
    loss = make_loss("routing", [3, 1])
    gates, label = torch.zeros(1, 2), torch.tensor([0])
    found = loss(Routing(gates, running_predictions(1, 0, 0)), label)
    assert found.item() == pytest.approx((100 + 1) / 2 * math.log(2))


def test_half_precision_is_summed_in_single():
    loss = make_loss("routing", [3, 1])
    routing = Routing(torch.randn(4, 2).half(), torch.randn(4, 3, 3).half())
    labels = torch.arange(4) % 3
    assert loss(routing, labels).dtype == torch.float32
    single = Routing(routing.gates.float(), routing.running)
    assert torch.equal(loss(routing, labels), loss(single, labels))


def test_large_gates_stay_finite():
    loss = make_loss("routing", [3, 1])
    gates = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss(Routing(gates, running_predictions(1, 1, 0)), torch.tensor([0])).backward()
    assert gates.grad.isfinite().all()


def test_it_takes_what_the_head_gives_in_training():
    assert LOSSES.needs("routing") == {"heads": ("routed-experts",)}
    with pytest.raises(TypeError, match="got a Tensor; expected what the head 'routed-experts'"):
        make_loss("routing", [3, 1])(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="positive_weight=0"):
        make_loss("routing", [3, 1], positive_weight=0.0)
