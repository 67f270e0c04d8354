"""ResNet-32 and ResNet-34 for small images, against naive code and torchvision."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protail.models.backbones import CifarResNet, make_backbone, resnet32, resnet34_cifar

both = pytest.mark.parametrize("name", ["resnet32", "resnet34-cifar"])


def pictures(n=2, size=32, seed=0, dtype=torch.float32):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def unsettle(model, seed=1):
    """Give batch norms values that a mistake in their place or mode would show."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            for tensor in (module.bias.data, module.running_mean):
                tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model


def naive_batch_norm(x, state, name, *, training):
    if training:
        mean = x.mean((0, 2, 3))
        var = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
    else:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    unit = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return unit * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]


def naive_resnet32(state, x, *, training):
    """Write ResNet-32 out from its description, channel by channel where it pads."""

    def normalised(x, conv, bn, stride=1):
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=1)
        return naive_batch_norm(x, state, bn, training=training)

    x = normalised(x, "conv1", "bn1").clamp(min=0)
    for stage, width in enumerate([16, 32, 64], start=1):
        for block in range(5):
            at = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            inside = normalised(x, f"{at}.conv1", f"{at}.bn1", stride).clamp(min=0)
            inside = normalised(inside, f"{at}.conv2", f"{at}.bn2")
            if stride == 2:
                shortcut = torch.zeros_like(inside)
                for channel in range(width // 2):
                    shortcut[:, width // 4 + channel] = x[:, channel, 0::2, 0::2]
                x = shortcut
            x = (x + inside).clamp(min=0)
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3])


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [("resnet32", 463_504, 64), ("resnet34-cifar", 21_276_992, 512)],
)
def test_size(name, parameters, width):
    model = make_backbone(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.n_features == width


@both
@pytest.mark.parametrize("size", [32, 64, 33])
def test_feature_shapes(name, size):
    model = make_backbone(name).eval()
    with torch.no_grad():
        assert model(pictures(size=size)).shape == (2, model.n_features)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [32, 15])
def test_resnet32_equals_a_naive_one(training, size):
    torch.manual_seed(0)
    model = unsettle(resnet32()).double().train(training)
    x = pictures(3, size, dtype=torch.float64)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected = naive_resnet32(state, x, training=training)
    torch.testing.assert_close(model(x), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_resnet34_equals_torchvision(training):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    theirs = models.resnet34()
    theirs.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    theirs.fc = nn.Identity()
    unsettle(theirs).train(training)
    ours = resnet34_cifar().train(training)
    ours.load_state_dict(theirs.state_dict())  # strict: the very same names
    x = pictures(2)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, atol=1e-5, rtol=1e-5)


def test_start_is_he_normal():
    torch.manual_seed(0)
    small, large = resnet32(), resnet34_cifar()
    convolutions = [(small.layer3[1].conv1.weight, 64), (large.layer2[0].conv1.weight, 128)]
    for weight, fan in convolutions:  # the second by its outputs: 64 in, 128 out
        expected = (2 / (9 * fan)) ** 0.5
        assert weight.std().item() == pytest.approx(expected, rel=0.02)
        assert abs(weight.mean().item()) < 0.02 * expected
    for module in (*small.modules(), *large.modules()):
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()


@both
def test_running_statistics_move_in_place(name):
    model = make_backbone(name)
    before = {key: (buffer.data_ptr(), buffer.clone()) for key, buffer in model.named_buffers()}
    with torch.no_grad():
        model(pictures())
    for key, buffer in model.named_buffers():
        assert buffer.data_ptr() == before[key][0], key
        assert not buffer.equal(before[key][1]), key
    model.eval()
    after = {key: buffer.clone() for key, buffer in model.named_buffers()}
    model(pictures(seed=5))
    assert all(buffer.equal(after[key]) for key, buffer in model.named_buffers())


@both
def test_bfloat16_autocast(name):
    torch.manual_seed(0)
    model = make_backbone(name)
    x = pictures(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(x)
    assert features.dtype == torch.bfloat16
    assert features.isfinite().all()
    features.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    exact = model(x)
    error = (features.float() - exact).norm() / exact.norm()
    assert error < 0.05


@both
def test_channels_last_gives_the_same_and_stays(name):
    torch.manual_seed(0)
    model = unsettle(make_backbone(name)).eval()
    x = pictures()
    expected = model(x)
    model.to(memory_format=torch.channels_last)
    formats = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda _, inputs: formats.append(
                    inputs[0].is_contiguous(memory_format=torch.channels_last)
                )
            )
    got = model(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert all(formats)


def test_stages_must_agree():
    with pytest.raises(ValueError, match="zip"):
        CifarResNet([1, 1], [4], learned_shortcuts=False, fan="fan_in")
