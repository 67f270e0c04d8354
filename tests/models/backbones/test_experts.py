"""ResNet-32 with experts, against a naive one and against what each expert is alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protail.models.backbones import (
    BACKBONES,
    ExpertResNet,
    load_weights,
    make_backbone,
    resnet_cifar,
    save_weights,
)

every = pytest.mark.parametrize("n_experts", [2, 3, 4])


def pictures(n=2, size=32, seed=0, dtype=torch.float32):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tiny(n_experts=3):
    torch.manual_seed(0)
    return ExpertResNet(n_experts, n_blocks=1, widths=(4, 6, 10))


def unsettle(model):
    """Give batch norms values that a mistake in their place would show."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            for tensor in (module.bias.data, module.running_mean):
                tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model


def naive_features(state, x, n_experts):
    """Write the network out from its description, in eval mode, channel by channel where it pads.

    Shared: 3x3 convolution to 16 channels, five blocks of 16. Each expert: five blocks of 24, five
    of 48, the first of each with stride 2; the mean over pixels.
    """

    def normalised(x, conv, bn, stride=1):
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=1)
        mean, var = state[f"{bn}.running_mean"], state[f"{bn}.running_var"]
        x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return x * state[f"{bn}.weight"][:, None, None] + state[f"{bn}.bias"][:, None, None]

    def blocks(x, at, width, first_stride):
        for block in range(5):
            stride = first_stride if block == 0 else 1
            inside = normalised(x, f"{at}.{block}.conv1", f"{at}.{block}.bn1", stride).clamp(min=0)
            inside = normalised(inside, f"{at}.{block}.conv2", f"{at}.{block}.bn2")
            shortcut = torch.zeros_like(inside)
            before = (width - x.shape[1]) // 2
            for channel in range(x.shape[1]):
                shortcut[:, before + channel] = x[:, channel, ::stride, ::stride]
            x = (shortcut + inside).clamp(min=0)
        return x

    x = normalised(x, "shared.conv1", "shared.bn1").clamp(min=0)
    shared = blocks(x, "shared.layer1", 16, 1)
    features = []
    for expert in range(n_experts):
        own = blocks(shared, f"experts.{expert}.layer2", 24, 2)
        own = blocks(own, f"experts.{expert}.layer3", 48, 2)
        features.append(own.sum((2, 3)) / (own.shape[2] * own.shape[3]))
    return torch.cat(features, 1)


@every
@pytest.mark.parametrize("size", [32, 15])
def test_equals_a_naive_one(n_experts, size):
    torch.manual_seed(0)
    model = unsettle(make_backbone(f"resnet32-{n_experts}-experts")).double().eval()
    x = pictures(2, size, dtype=torch.float64)
    expected = naive_features(model.state_dict(), x, n_experts)
    assert model.n_features == 48 * n_experts == expected.shape[1]
    assert model.n_experts == n_experts
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, atol=1e-10, rtol=1e-10)


@every
def test_size_by_hand(n_experts):
    def norm(width):
        return 2 * width

    shared = 9 * 3 * 16 + norm(16) + 10 * (9 * 16 * 16 + norm(16))
    second = 9 * 16 * 24 + 9 * (9 * 24 * 24) + 10 * norm(24)
    third = 9 * 24 * 48 + 9 * (9 * 48 * 48) + 10 * norm(48)
    model = make_backbone(f"resnet32-{n_experts}-experts")
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == shared + n_experts * (second + third)
    factory = BACKBONES.factory(f"resnet32-{n_experts}-experts")
    assert BACKBONES.needs(f"resnet32-{n_experts}-experts") == {"experts": n_experts}
    assert factory is getattr(resnet_cifar, f"resnet32_{n_experts}_experts")
    in_words = {2: "two", 3: "three", 4: "four"}[n_experts]
    size = f"{found / 1e6:.2f} M parameters, {model.n_features} features"
    assert factory.__doc__ == f"Make ResNet-32 with {in_words} experts: {size}."


def test_an_expert_sees_nothing_of_the_others():
    model = tiny().train()
    features = model(pictures(4))
    features[:, 10:20].square().sum().backward()
    for key, parameter in model.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert reached == key.startswith(("shared.", "experts.1.")), key


def test_experts_start_apart():
    first, second, third = tiny().eval()(pictures()).chunk(3, 1)
    for one, other in ((first, second), (second, third), (first, third)):
        assert (one - other).abs().max() > 0.01


def test_start_is_he_normal():
    torch.manual_seed(0)
    model = make_backbone("resnet32-3-experts")
    for expert in model.experts:
        weight = expert.layer3[1].conv1.weight
        assert weight.std().item() == pytest.approx((2 / (9 * 48)) ** 0.5, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_compiled_one_is_one_graph_and_the_same(training):
    torch._dynamo.reset()
    model = unsettle(tiny()).train(training)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    x = pictures(3)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-6, rtol=1e-5)


def test_a_copy_is_its_own():
    model = tiny().eval()
    other = copy.deepcopy(model)
    x = pictures()
    before = model(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(model(x), before)
    assert not torch.equal(other(x), before)


def test_bfloat16_and_channels_last():
    model = tiny().to(memory_format=torch.channels_last)
    x = pictures(8).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(x)
    assert features.dtype == torch.bfloat16
    exact = model(x)
    assert (features.float() - exact).norm() / exact.norm() < 0.05


def test_weights_go_to_a_file_and_back(tmp_path):
    model = unsettle(make_backbone("resnet32-2-experts"))
    save_weights(model.state_dict(), tmp_path / "weights")
    other = make_backbone("resnet32-2-experts")
    report = load_weights(other, tmp_path / "weights")
    assert report.left_out == ()
    x = pictures()
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_no_experts():
    with pytest.raises(ValueError, match="n_experts=0"):
        ExpertResNet(0)
