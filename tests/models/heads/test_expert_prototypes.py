"""Prototypes on each expert, against loops and against what they are with one expert."""

import copy
import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import HEADS, ExpertPrototypeHead, PrototypeHead, class_means, make_head
from reference import distances as naive
from reference.problems import DISTANCES, SCHEMES


def unsettled(head, seed=0):
    """Random prototypes and temperatures, as after some training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_experts=st.integers(1, 3),
    width=st.integers(2, 4),
    distance=st.sampled_from(DISTANCES),
    scheme=st.sampled_from(SCHEMES),
    normalize=st.sampled_from([None, 4.0]),
)
def test_equals_the_loops(seed, n_experts, width, distance, scheme, normalize):
    options = {"distance": distance, "temperature": scheme, "normalize": normalize}
    head = ExpertPrototypeHead(5, n_experts * width, experts=n_experts, **options).double()
    unsettled(head, seed).requires_grad_(False)
    x = torch.randn(4, n_experts * width, dtype=torch.float64)
    expected = np.zeros((4, 5))
    for e, expert in enumerate(head.experts):
        part = x[:, e * width : (e + 1) * width].numpy().copy()
        if normalize is not None:
            part *= normalize / np.linalg.norm(part, axis=1, keepdims=True)
        temperature = None if scheme is None else expert.temperature.numpy()
        away = naive.distances(part, expert.prototypes.numpy(), distance, temperature)
        expected += -away / 2 / n_experts
    np.testing.assert_allclose(head(x), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("normalize", [None, 4.0])
def test_one_expert_is_the_prototype_head(distance, scheme, normalize):
    options = {"distance": distance, "temperature": scheme, "normalize": normalize}
    head = unsettled(ExpertPrototypeHead(5, 6, experts=1, **options))
    single = PrototypeHead(5, 6, **options)
    single.load_state_dict(head.experts[0].state_dict())
    x = torch.randn(7, 6)
    assert torch.equal(head(x), single(x))
    assert torch.equal(head.normalized(x), single.normalized(x))
    for module in (head, single):
        torch.nn.functional.cross_entropy(module(x), torch.arange(7) % 5).backward()
    for ours, theirs in zip(head.parameters(), single.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("normalize", [None, 10.0])
def test_it_starts_at_the_class_means_of_each_expert(normalize):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 6, generator=generator, dtype=torch.float64) + 2
    labels = torch.arange(60) % 4
    head = make_head("expert-prototypes", 4, 6, experts=3, normalize=normalize)
    means = class_means(features, labels, 4, transform=head.normalized)
    assert head.set_prototypes(means) is head
    for expert, part in zip(head.experts, features.chunk(3, 1), strict=True):
        alone = PrototypeHead.from_means(part.float(), labels, normalize=normalize)
        torch.testing.assert_close(expert.prototypes, alone.prototypes)


def test_each_experts_part_has_the_same_length():
    head = make_head("expert-prototypes", 2, 6, experts=2, normalize=5.0)
    x = torch.cat([torch.randn(4, 3), 1000 * torch.randn(4, 3)], 1)
    lengths = head.normalized(x).unflatten(1, (2, 3)).norm(dim=2)
    torch.testing.assert_close(lengths, torch.full((4, 2), 5.0))


def test_it_takes_what_a_prototype_head_takes():
    ours, theirs = HEADS.options("expert-prototypes"), HEADS.options("prototype")
    assert list(ours) == ["experts", *theirs]
    assert {name: ours[name] for name in theirs} == theirs
    # Every option reaches the heads: none of them is the default there.
    options = {
        "distance": "cosine",
        "temperature": "class",
        "temperature_form": "square",
        "initial_temperature": 4.0,
        "normalize": 3.0,
    }
    assert set(options) == set(theirs)
    alone = PrototypeHead(4, 2, **options)
    for expert in make_head("expert-prototypes", 4, 6, **options).experts:
        assert repr(expert) == repr(alone)
        assert torch.equal(expert.root_temperature, alone.root_temperature)


@pytest.mark.parametrize("form", ["exp", "square"])
def test_temperatures_are_the_parameters_beside_prototypes(form):
    options = {"temperature": "channel", "temperature_form": form}
    head = make_head("expert-prototypes", 4, 6, **options)
    assert len(head.temperatures) == 3
    apart = {id(parameter) for parameter in head.temperatures}
    names = [name for name, parameter in head.named_parameters() if id(parameter) in apart]
    assert len(names) == 3
    assert all("temperature" in name for name in names)
    assert make_head("expert-prototypes", 4, 6).temperatures == []


def test_every_parameter_learns():
    head = unsettled(make_head("expert-prototypes", 4, 6, temperature="dense"))
    torch.nn.functional.cross_entropy(head(torch.randn(8, 6)), torch.arange(8) % 4).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_gradients_are_finite_at_the_prototypes():
    head = make_head("expert-prototypes", 2, 6)
    x = torch.zeros(2, 6, requires_grad=True)
    head(x).sum().backward()
    assert x.grad.isfinite().all()


def test_state_and_copies():
    head = unsettled(make_head("expert-prototypes", 4, 6, temperature="channel"))
    other = make_head("expert-prototypes", 4, 6, temperature="channel")
    other.load_state_dict(head.state_dict())
    x = torch.randn(3, 6)
    assert torch.equal(other(x), head(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))


def test_wrong_prototypes_are_told():
    head = make_head("expert-prototypes", 4, 6)
    with pytest.raises(ValueError, match=r"shape \(4, 2\); expected \(4, 6\)"):
        head.set_prototypes(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="expected rows of 6"):
        head.normalized(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="distance"):
        make_head("expert-prototypes", 4, 6, distance="manhattan")


def test_the_docstring_names_every_option():
    text = inspect.getdoc(ExpertPrototypeHead)
    assert all(f"\n{name} : " in text for name in HEADS.options("expert-prototypes"))
