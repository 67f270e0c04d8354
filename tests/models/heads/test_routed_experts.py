"""Gates on frozen experts, against loops and at their extremes."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.losses import make_loss
from protail.models.heads import (
    HEADS,
    ExpertsHead,
    LinearHead,
    RoutedExpertsHead,
    Routing,
    make_head,
)
from reference import ride_by_loop as naive


def routed(n_classes=5, width=4, experts=3, seed=0, dtype=torch.float32, **options):
    """The head on a random one of stage 1, and that one."""
    torch.manual_seed(seed)
    first = ExpertsHead(n_classes, width * experts, experts=experts).to(dtype)
    head = RoutedExpertsHead(n_classes, width * experts, experts=experts, **options).to(dtype)
    assert head.build_on(first, [1] * n_classes) is head
    return head, first


def force(head, *, is_open):
    with torch.no_grad():
        head.gate.weight.zero_()
        head.gate.bias.fill_(1.0 if is_open else -1.0)
    return head


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    experts=st.integers(2, 4),
    n_classes=st.integers(2, 6),
    width=st.integers(1, 4),
    top=st.integers(1, 8),
    units=st.integers(1, 3),
)
def test_equals_the_loops(seed, experts, n_classes, width, top, units):
    head, first = routed(n_classes, width, experts, seed, torch.float64, top=top, units=units)
    head.requires_grad_(False)
    x = torch.randn(6, experts * width, dtype=torch.float64)
    head.gate.bias -= head(x).gates.mean()  # some open, some shut
    weights = [expert.weight.tolist() for expert in first.experts]
    logits = naive.expert_logits(x.tolist(), weights, 30.0)
    running = naive.running_means(logits)
    assert head.gate.in_features == min(top, n_classes) + units
    gates = np.array(
        [
            [
                naive.gate(
                    running[row][e].tolist(),
                    x[row, e * width : (e + 1) * width].tolist(),
                    head.summaries[e].weight.tolist(),
                    head.gate.weight[0].tolist(),
                    head.gate.bias.item(),
                )
                for e in range(experts - 1)
            ]
            for row in range(6)
        ]
    )
    found = head.train()(x)
    assert isinstance(found, Routing)
    np.testing.assert_allclose(found.running, running, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.gates, gates, rtol=1e-9, atol=1e-9)
    expected, used = naive.routed_logits(gates, logits)
    np.testing.assert_allclose(head.eval()(x), expected, rtol=1e-9, atol=1e-9)
    assert head.experts_used(x).tolist() == used


def test_gates_decide_for_each_image():
    head, _ = routed(seed=1)
    x = torch.randn(300, 12)
    with torch.no_grad():
        head.gate.bias -= head(x).gates.median()
    assert set(head.experts_used(x).tolist()) == {1, 2, 3}


@pytest.mark.parametrize("experts", [2, 3, 4])
def test_all_gates_open_is_the_head_of_stage_1(experts):
    head, first = routed(experts=experts)
    force(head, is_open=True).eval()
    x = torch.randn(7, 4 * experts)
    assert torch.equal(head(x), first(x))
    assert head.experts_used(x).tolist() == [experts] * 7


@pytest.mark.parametrize("experts", [2, 3, 4])
def test_all_gates_shut_is_the_first_expert_alone(experts):
    head, first = routed(experts=experts)
    force(head, is_open=False).eval()
    x = torch.randn(7, 4 * experts)
    assert torch.equal(head(x), first.expert_logits(x)[0])
    assert head.experts_used(x).tolist() == [1] * 7


def test_an_open_gate_behind_a_shut_one_changes_nothing():
    head, first = routed(seed=3)
    x = torch.randn(4, 12)
    gates = torch.tensor([[-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    head.routing = lambda x: Routing(gates, RoutedExpertsHead.routing(head, x).running)
    assert head.experts_used(x).tolist() == [1, 2, 3, 1]
    one, two, three = first.expert_logits(x).detach()
    expected = [one[0], (one + two)[1] / 2, (one + two + three)[2] / 3, one[3]]
    torch.testing.assert_close(head.eval()(x).detach(), torch.stack(expected))


def test_only_gates_learn():
    head, first = routed()
    frozen = {name for name, _ in head.named_buffers()}
    assert frozen == {f"frozen.experts.{e}.weight" for e in range(3)}
    learned = {name for name, _ in head.named_parameters()}
    assert learned == {"summaries.0.weight", "summaries.1.weight", "gate.weight", "gate.bias"}
    x, labels = torch.randn(64, 12), torch.arange(64) % 5
    make_loss("routing", [1] * 5)(head.train()(x), labels).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    for buffer in head.buffers():
        assert not buffer.requires_grad
        assert buffer.grad is None
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0, weight_decay=0.5)
    optimizer.step()
    for expert, theirs in zip(head.frozen.experts, first.experts, strict=True):
        assert torch.equal(expert.weight, theirs.weight)


def test_gates_learn_when_to_ask():
    """The second expert is right where the first is wrong, and a feature says where that is."""
    generator = torch.Generator().manual_seed(0)
    head, first = routed(n_classes=2, width=3, experts=2)
    with torch.no_grad():
        first.experts[0].weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
        first.experts[1].weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    head.build_on(first, [1, 1])
    labels = torch.randint(0, 2, (400,), generator=generator)
    side, lost = 1.0 - 2 * labels, torch.arange(400) % 2 * 1.0
    zeros = torch.zeros(400)
    x = torch.stack([side * (1 - 1.3 * lost), lost, zeros, 4 * side, zeros, zeros], 1)
    loss = make_loss("routing", [1, 1], positive_weight=2.0)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        loss(head.train()(x), labels).backward()
        optimizer.step()
    assert torch.equal(head.experts_used(x), 1 + lost.long())
    assert (head.eval()(x).argmax(1) == labels).all()
    force(head, is_open=False)
    assert (head.eval()(x).argmax(1) == labels).float().mean() == 0.5


def test_the_length_of_features_does_not_count():
    head, _ = routed(dtype=torch.float64)
    x = torch.randn(5, 12, dtype=torch.float64)
    torch.testing.assert_close(head(x).gates, head(1000 * x).gates)


def test_it_is_rebuilt_from_its_state_alone():
    head, _ = routed(top=3)
    other = make_head("routed-experts", 5, 12, experts=3, top=3)
    x = torch.randn(20, 12)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.eval()(x), head.eval()(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))
    assert not list(other.frozen.parameters())


def test_untrained_classifiers_are_not_routed():
    head = make_head("routed-experts", 5, 12)
    head.load_state_dict(dict(head.gate.named_parameters("gate")), strict=False)
    for use in (head.train(), head.eval(), head.experts_used):
        with pytest.raises(
            ValueError, match=r"no weights of stage 1 yet; expected build_on.*'experts'"
        ):
            use(torch.zeros(2, 12))


def test_stage_1_keeps_its_head():
    head, first = routed()
    before = copy.deepcopy(first.state_dict())
    with torch.no_grad():
        head.frozen.experts[0].weight.zero_()
    assert all(torch.equal(value, before[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_compiled_one_is_one_graph(training):
    torch._dynamo.reset()
    head, _ = routed()
    head.train(training)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 12)
    torch.testing.assert_close(tuple(compiled(x)), tuple(head(x)))


def test_half_precision_features():
    head, _ = routed()
    x = torch.randn(3, 12).bfloat16()
    assert head(x).gates.dtype == head(x).running.dtype == torch.float32


def test_what_it_goes_with():
    needs = HEADS.needs("routed-experts")
    assert (needs["builds_on"], needs["losses"]) == (("experts",), ("routing",))
    assert HEADS.options("routed-experts")["top"].default == 30
    assert HEADS.options("routed-experts")["units"].default == 16
    assert make_head("routed-experts", 100, 144).gate.in_features == 46


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experts": 1}, "experts=1; expected a whole number >= 2"),
        ({"experts": 5}, "experts=5 with 12 features"),
        ({"top": 0}, "top=0"),
        ({"units": 0}, "units=0"),
        ({"scale": 0.0}, "scale=0.0"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        RoutedExpertsHead(5, 12, **options)


def test_a_head_of_stage_1_that_does_not_fit():
    head, _ = routed()
    with pytest.raises(TypeError, match="LinearHead; expected an ExpertsHead"):
        head.build_on(LinearHead(5, 12), [1] * 5)
    for other in (
        ExpertsHead(5, 12, experts=2),
        ExpertsHead(4, 12, experts=3),
        ExpertsHead(5, 12, experts=3, scale=16.0),
    ):
        with pytest.raises(ValueError, match=r"the head of stage 1 has .* this one 5 classes"):
            head.build_on(other, [1] * 5)
