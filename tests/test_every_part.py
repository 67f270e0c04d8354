"""Every registered backbone, head, loss and method: it is public, documented, and it learns."""

import importlib
import inspect

import pytest
import torch
from torch import nn

from protail.losses import LOSSES, make_loss
from protail.methods import METHODS, ImageBatch, Method, make_method
from protail.models.backbones import BACKBONES, CifarResNet, make_backbone
from protail.models.backbones.registry import TIMM_NAMES
from protail.models.heads import HEADS, Routing, make_head

COUNTS = [8, 4, 2, 1]
LABELS = torch.arange(8) % 4


def ours(registry):
    """Names of the parts that come with the package; tests register parts of their own."""
    names = registry.names()
    return [name for name in names if registry.factory(name).__module__.startswith("protail.")]


def finite_gradients(module, *, everywhere=True):
    gradients = {name: each.grad for name, each in module.named_parameters() if each.requires_grad}
    for name, gradient in gradients.items():
        assert (gradient is not None) == everywhere, name
        assert gradient is None or gradient.isfinite().all(), name
    return gradients


@pytest.mark.parametrize("registry", [BACKBONES, HEADS, LOSSES, METHODS], ids=lambda r: r.what)
def test_it_is_public_and_says_what_it_does(registry):
    for name in ours(registry):
        factory = registry.factory(name)
        assert factory.__doc__, name
        if inspect.isclass(factory):
            package = importlib.import_module(factory.__module__.rpartition(".")[0])
            assert factory.__name__ in package.__all__
            assert "Examples\n" in factory.__doc__, name
            assert factory is Method or "References\n" in factory.__doc__, name


@pytest.mark.parametrize("registry", [HEADS, LOSSES, METHODS], ids=lambda r: r.what)
def test_its_defaults_are_options_that_it_takes(registry):
    for name in ours(registry):
        registry.check_values(name, {})


@pytest.mark.parametrize("name", [*ours(BACKBONES), *TIMM_NAMES])
def test_backbone(name):
    if name in TIMM_NAMES:
        pytest.importorskip("timm")
    torch.manual_seed(0)
    model = make_backbone(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # timm starts some at 0, where no gradient passes
            nn.init.uniform_(module.weight, 0.5, 1.5)
    features = model(torch.randn(3, 3, 64, 64))
    assert features.shape == (3, model.n_features)
    (features * torch.randn(features.shape)).sum().backward()
    assert all(gradient.abs().max() > 0 for gradient in finite_gradients(model).values())


@pytest.mark.parametrize("name", ours(HEADS))
def test_head(name):
    head, needs = make_head(name, 4, 6), HEADS.needs(name)
    for first in needs["builds_on"][:1]:
        head.build_on(make_head(first, 4, 6), COUNTS)
    features = torch.randn(5, 6, requires_grad=True)
    logits = head.eval()(features)
    assert logits.shape == (5, 4)
    logits.square().sum().backward()
    assert features.grad.isfinite().all()
    # What a loss of its own trains is no part of the logits.
    learned = finite_gradients(head, everywhere=not needs["losses"])
    assert bool(learned) == needs["learns"]
    weight = learned.get("weight")
    assert needs["has_weight"] == (weight is not None and weight.shape == (4, 6))


@pytest.mark.parametrize("name", ours(LOSSES))
def test_loss(name):
    loss, given = make_loss(name, COUNTS), torch.randn(8, 4, requires_grad=True)
    if LOSSES.needs(name)["heads"] == ("routed-experts",):
        value = loss(Routing(given[:, :2], torch.randn(8, 3, 4)), LABELS)
    else:
        value = loss(given, LABELS)
    assert value.shape == ()
    value.backward()
    assert given.grad.isfinite().all()
    assert given.grad.abs().max() > 0


@pytest.mark.parametrize("name", ours(METHODS))
def test_method(name):
    needs = METHODS.needs(name)
    backbone = CifarResNet([1], [6], learned_shortcuts=False, fan="fan_in")
    head = make_head((needs["heads"] or ("linear",))[0], 4, 6)
    loss = make_loss((needs["losses"] or ("cross-entropy",))[-1], COUNTS)
    method = make_method(name, backbone, head, loss, COUNTS).train()
    first, second = torch.rand(2, 8, 3, 8, 8)
    batch = ImageBatch(first, LABELS, second=second if needs["views"] == 2 else None)
    if needs["mixes"] == "always":
        fraction = torch.tensor(0.7)
        batch = batch._replace(other=LABELS.flip(0), fraction=fraction, second_fraction=fraction)
    method.on_epoch(0)
    if method.wants_features:
        method.on_features(method.features(batch.images).detach(), batch.labels)
    value = method(batch)
    assert value.shape == ()
    value.backward()
    method.after_step()
    assert finite_gradients(method)
