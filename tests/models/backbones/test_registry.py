"""Backbones by name: ours, timm's, and names that are neither."""

import copy
import sys

import pytest
import torch
from torch import nn

from protail.models.backbones import (
    WeightsError,
    backbone_names,
    check_backbone_name,
    check_images,
    make_backbone,
    register_backbone,
    registry,
)

pytest.importorskip("timm")


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "BACKBONES", copy.deepcopy(registry.BACKBONES))


def test_names():
    assert backbone_names() == sorted(backbone_names())
    assert {"resnet32", "resnet34-cifar", "resnet50", "resnext50"} <= set(backbone_names())


@pytest.mark.parametrize(
    ("name", "width", "millions"), [("resnet50", 2048, 23.5), ("resnext50", 2048, 23.0)]
)
def test_short_names_of_timm(name, width, millions):
    model = make_backbone(name)
    assert model.n_features == width
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("name", ["timm/resnet10t", "resnet10t", "resnet10t.c3_in1k"])
def test_any_name_of_timm(name):
    model = make_backbone(name, in_channels=1).eval()
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, model.n_features) == (2, 512)


def test_width_after_a_last_hidden_layer():
    model = make_backbone("timm/mobilenetv3_small_050").eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape[1] == model.n_features == 1024


@pytest.mark.parametrize("name", ["resnet32", "resnet34-cifar"])
def test_channels(name):
    assert make_backbone(name, in_channels=1).eval()(torch.zeros(2, 1, 32, 32)).shape[0] == 2


def test_register(own_registry):
    @register_backbone("flat")
    def flat(in_channels):
        module = nn.Flatten()
        module.n_features = in_channels * 4
        return module

    assert "flat" in backbone_names()
    assert make_backbone("flat")(torch.zeros(2, 3, 2, 2)).shape == (2, 12)
    with pytest.raises(ValueError, match="already a backbone"):
        register_backbone("flat")(nn.Flatten)


@pytest.mark.parametrize("name", ["resnet50", "resnet32", "timm/mine"])
def test_a_taken_name(own_registry, name):
    with pytest.raises(ValueError, match="Choose another name"):
        register_backbone(name)(nn.Flatten)


@pytest.mark.parametrize("name", ["", 3])
def test_no_name(own_registry, name):
    with pytest.raises(ValueError, match="no name for a backbone"):
        register_backbone(name)


def test_a_backbone_without_width(own_registry):
    register_backbone("bare")(lambda in_channels: nn.Flatten())
    with pytest.raises(TypeError, match="'bare' has no whole number n_features"):
        make_backbone("bare")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet-32", "'resnet32'"),
        ("resnet34_cifar", "'resnet34-cifar'"),
        ("resnet5O", "'resnet50'"),
        ("timm/convnext_atoo", "'convnext_atto'"),
        ("resnet50.no_such_tag", "'a1_in1k'"),
        ("nothing like it", "list_models"),
        ("", "list_models"),
    ],
)
def test_unknown_name(name, near):
    with pytest.raises(ValueError, match="is unknown") as caught:
        make_backbone(name)
    assert near in str(caught.value)
    assert str(caught.value).endswith("is imported.") == ("no_such_tag" not in name)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"name": 32}, TypeError, "expected text"),
        ({"name": "resnet32", "in_channels": 0}, ValueError, "in_channels=0"),
        ({"name": "resnet32", "in_channels": True}, ValueError, "in_channels=True"),
        ({"name": "resnet32", "pretrained": True}, ValueError, "weights="),
        ({"name": "resnet50", "pretrained": True, "weights": "a"}, ValueError, "Leave one out"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        make_backbone(**arguments)


@pytest.mark.parametrize("error", [OSError("no route"), RuntimeError(), ConnectionError("x\ny")])
def test_no_network(monkeypatch, error):
    def fail(name, *, pretrained, **_):
        assert (name, pretrained) == ("resnext50_32x4d", True)
        raise error

    monkeypatch.setattr("timm.create_model", fail)
    with pytest.raises(WeightsError, match=r"could not be fetched .*weights=\.\.\."):
        make_backbone("resnext50", pretrained=True)


def test_pretrained_is_asked_of_timm(monkeypatch):
    asked = {}

    def create(name, **options):
        asked.update(options, name=name)
        model = nn.Identity()
        model.num_features = 7
        return model

    monkeypatch.setattr("timm.create_model", create)
    assert make_backbone("resnet50", pretrained=True).n_features == 7
    assert asked == {"name": "resnet50", "pretrained": True, "num_classes": 0, "in_chans": 3}


@pytest.mark.parametrize("name", ["resnet50", "timm/resnet18", "resnet-32"])
def test_without_timm(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"pip install .*\[vision\]"):
        make_backbone(name)
    assert make_backbone("resnet32").n_features == 64


def test_a_backbone_of_timm_knows_the_images_it_wants():
    wanted = make_backbone("timm/vit_tiny_patch16_384").input_spec
    assert (wanted.size, wanted.crop, wanted.interpolation) == (384, 1.0, "bicubic")
    assert wanted.mean == wanted.std == (0.5, 0.5, 0.5)
    assert make_backbone("timm/resnet10t").input_spec.mean == (0.485, 0.456, 0.406)
    # The papers' way of cutting, not timm's.
    assert not hasattr(make_backbone("resnet50"), "input_spec")


@pytest.mark.parametrize("name", ["resnet32", "resnet50", "timm/resnet10t", "resnet10t.c3_in1k"])
def test_known_names_pass(name):
    check_backbone_name(name)


@pytest.mark.parametrize("name", ["resnet33", "timm/resnet33", "resnet10t.nobody"])
def test_unknown_names_are_told_without_building(name, monkeypatch):
    monkeypatch.setattr("timm.create_model", None)
    with pytest.raises(ValueError, match="is unknown"):
        check_backbone_name(name)


def test_without_timm_its_names_are_believed(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    check_backbone_name("timm/resnet10t")
    check_backbone_name("resnet50")
    with pytest.raises(ValueError, match=r"resnet33.*is imported\. Any other one needs timm"):
        check_backbone_name("resnet33")


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("timm/vit_tiny_patch16_224", 32, "32 x 32 pixels.*It was made for 224 x 224"),
        ("timm/inception_v3", 32, "32 x 32 pixels.*It was made for 299 x 299"),
    ],
)
def test_images_that_do_not_fit_are_told(name, size, words):
    backbone = make_backbone(name)
    with pytest.raises(ValueError, match=words):
        check_images(backbone, (size, size))


def test_a_check_leaves_the_backbone_as_it_was():
    backbone = make_backbone("resnet32")
    backbone.bn1.eval()
    before = copy.deepcopy(backbone.state_dict())
    check_images(backbone, (16, 16))
    check_images(backbone, (16, 16), alone=True)
    assert backbone.training
    assert not backbone.bn1.training
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_one_image_that_batch_norm_cannot_learn_from():
    backbone = make_backbone("resnet34-cifar")
    check_images(backbone, (8, 8))
    with pytest.raises(ValueError, match=r"one image of 8 x 8.*batch_size"):
        check_images(backbone, (8, 8), alone=True)
