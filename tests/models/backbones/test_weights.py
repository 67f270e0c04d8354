"""Published checkpoints: every layout loads, whatever does not fit is refused whole."""

import io
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from protail.models.backbones import (
    CifarResNet,
    WeightsError,
    bundled_weights,
    load_weights,
    make_backbone,
    resnet32,
)


def tiny(seed=0, blocks=1):
    """Make a network with both kinds of array, small enough to write often."""
    torch.manual_seed(seed)
    return CifarResNet([blocks, 1], [2, 4], learned_shortcuts=True, fan="fan_out")


def published(seed=7):
    """Weights and running statistics, all different from a fresh network's."""
    model = tiny(seed)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 8, 8))
    return model.state_dict()


def classifier(n_classes=5):
    return {"weight": torch.randn(n_classes, 4), "bias": torch.randn(n_classes)}


def prefixed(prefix, state):
    return {f"{prefix}{key}": value for key, value in state.items()}


def same(module, state):
    return all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def saved(tmp_path, content, name="checkpoint.pth"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


LAYOUTS = {
    "flat": (lambda body, fc: {**body, **prefixed("fc.", fc)}, ""),
    "linear": (lambda body, fc: {**body, **prefixed("linear.", fc)}, ""),
    "module": (lambda body, fc: prefixed("module.", {**body, **prefixed("fc.", fc)}), ""),
    "encoder": (lambda body, fc: prefixed("encoder.", {**body, **prefixed("fc.", fc)}), ""),
    "backbone": (
        lambda body, fc: {
            "state_dict": {
                **prefixed("module.backbone.", body),
                **prefixed("module.classifier.", fc),
            },
            "epoch": 3,
        },
        "state_dict",
    ),
    "compiled": (
        lambda body, fc: {"model": prefixed("_orig_mod.", body | prefixed("head.", fc))},
        "model",
    ),
    "model_state_dict": (
        lambda body, fc: {
            "model_state_dict": {**body, **prefixed("head.fc.", fc)},
            "optimizer": {},
        },
        "model_state_dict",
    ),
    "parts": (
        lambda body, fc: {
            "epoch": 90,
            "best_acc": 0.5,
            "state_dict_best": {
                "feat_model": prefixed("module.", body),
                "classifier": prefixed("module.fc.", fc),
            },
        },
        "state_dict_best",
    ),
    "twice nested": (
        lambda body, fc: {"model": {"state_dict": body | prefixed("fc.", fc)}},
        "model.state_dict",
    ),
}


@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.bin", "a.pth.tar", "old.pth"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, layout, name):
    arrange, entry = LAYOUTS[layout]
    body, fc = published(), classifier()
    torch.save(arrange(body, fc), tmp_path / name, _use_new_zipfile_serialization=name != "old.pth")
    model, head = tiny(), nn.Linear(4, 5)
    report = load_weights(model, tmp_path / name, head=head)
    assert same(model, body)
    assert same(head, fc)
    assert report.entry == entry
    assert set(report.loaded) == set(body)
    assert set(report.head_loaded) == {"weight", "bias"}
    assert report.left_out == ()

    alone = tiny()
    report = load_weights(alone, tmp_path / name)
    assert same(alone, body)
    assert report.head_loaded == ()
    assert len(report.left_out) == 2
    assert all(key in str(report) for key in report.left_out)


def test_safetensors_and_float16(tmp_path):
    body = published()
    half = {k: v.half() if v.is_floating_point() else v for k, v in body.items()}
    save_file(prefixed("module.", half), tmp_path / "a.safetensors")
    model = tiny()
    load_weights(model, tmp_path / "a.safetensors")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert same(model, {k: v.float() if v.is_floating_point() else v for k, v in half.items()})


def test_the_last_epoch_before_the_best(tmp_path):
    last, best = published(1), published(2)
    model = tiny()
    report = load_weights(model, saved(tmp_path, {"state_dict_best": best, "state_dict": last}))
    assert report.entry == "state_dict"
    assert same(model, last)


def test_through_make_backbone(tmp_path):
    torch.manual_seed(3)
    theirs = {**resnet32().state_dict(), **prefixed("linear.", classifier())}
    path = saved(tmp_path, {"arch": "resnet32", "state_dict": prefixed("module.", theirs)})
    assert same(make_backbone("resnet32", weights=path), theirs)


def test_torchvision_weights_into_timm(tmp_path):
    models = pytest.importorskip("torchvision.models")
    pytest.importorskip("timm")
    theirs = models.resnet18().eval()
    ours = make_backbone("timm/resnet18", weights=saved(tmp_path, theirs.state_dict())).eval()
    theirs.fc = nn.Identity()
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_a_backbone_with_its_own_head_layers(tmp_path):
    pytest.importorskip("timm")
    model = make_backbone("timm/mobilenetv3_small_050")  # has conv_head and no classifier
    state = model.state_dict()
    assert any(key.startswith("conv_head.") for key in state)
    path = saved(tmp_path, {**state, "classifier.weight": torch.zeros(3, 1024)})
    assert load_weights(model, path).left_out == ("classifier.weight",)


def test_without_batch_counters(tmp_path):
    body = {k: v for k, v in published().items() if not k.endswith("num_batches_tracked")}
    model = tiny()
    load_weights(model, saved(tmp_path, body))
    assert all(torch.equal(model.state_dict()[key], value) for key, value in body.items())


def renamed(state, old, new):
    return {new if key == old else key: value for key, value in state.items()}


MISFITS = {
    "extra key": (
        lambda s: {**s, "extra.weight": torch.zeros(1)},
        ["more than there is a place for", "keys without a place (1): extra.weight"],
    ),
    "missing": (
        lambda s: {k: v for k, v in s.items() if k != "bn1.running_var"},
        ["another architecture", "get no weights (1): bn1.running_var"],
    ),
    "renamed": (
        lambda s: renamed(s, "conv1.weight", "stem.weight"),
        ["keys without a place (1): stem.weight", "get no weights (1): conv1.weight"],
    ),
    "shape": (
        lambda s: {**s, "conv1.weight": torch.zeros(2, 3, 7, 7)},
        ["another architecture", "wrong (1): conv1.weight is (2, 3, 7, 7), expected (2, 3, 3, 3)"],
    ),
    "type": (
        lambda s: {**s, "bn1.weight": torch.zeros(2, dtype=torch.int8)},
        ["bn1.weight is torch.int8", "expected torch.float32"],
    ),
    "sparse": (lambda s: {**s, "bn1.weight": torch.zeros(2).to_sparse()}, ["torch.sparse_coo"]),
    "no storage": (lambda s: {**s, "bn1.weight": torch.zeros(2, device="meta")}, ["bn1.weight"]),
    "twice": (lambda s: {**s, "module.bn1.bias": torch.zeros(2)}, ["bn1.bias' is there twice"]),
    "another": (
        lambda s: tiny(blocks=3).state_dict(),
        ["another architecture", "keys without a place (20): layer1.1.conv1.weight", ", ..."],
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_what_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path, kind):
    spoil, texts = MISFITS[kind]
    model = tiny()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    content = spoil(published())
    if kind == "another":
        content = {k: v for k, v in content.items() if not k.endswith("num_batches_tracked")}
    path = saved(tmp_path, content)
    with pytest.raises(WeightsError) as caught:
        load_weights(model, path)
    for text in [*texts, "Nothing was loaded", str(path)]:
        assert text in str(caught.value)
    assert same(model, before)


def test_at_most_ten_are_listed(tmp_path):
    extra = {f"x{i}": torch.zeros(1) for i in range(12)}
    with pytest.raises(WeightsError, match=r"\(12\): x0, x1.*, x9, \.\.\.") as caught:
        load_weights(tiny(), saved(tmp_path, published() | extra))
    assert "x10" not in str(caught.value)


@pytest.mark.parametrize(
    ("fc", "text"),
    [
        ({}, "arrays of the head that get no weights (2): weight, bias"),
        ({"fc.weight": torch.zeros(5, 4)}, "(1): bias"),
        ({"fc.weight": torch.zeros(4, 5), "fc.bias": torch.zeros(5)}, "weight is (4, 5)"),
        ({**prefixed("fc.", classifier()), "fc.scale": torch.zeros(5)}, "(1): fc.scale"),
    ],
)
def test_a_head_that_does_not_fit(tmp_path, fc, text):
    model, head = tiny(), nn.Linear(4, 5)
    before = {k: v.clone() for k, v in (model.state_dict() | head.state_dict()).items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(model, saved(tmp_path, {**published(), **fc}), head=head)
    assert text in str(caught.value)
    assert same(model, before)
    assert same(head, before)


def test_another_architecture_is_said(tmp_path):
    path = saved(tmp_path, resnet32().state_dict())
    with pytest.raises(WeightsError, match=r"another architecture .* M numbers"):
        make_backbone("resnet34-cifar", weights=path)


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["zip", "legacy", "plain pickle"])
def test_nothing_runs(tmp_path, how):
    mark, path = tmp_path / "it ran", tmp_path / "a.pth"
    content = {"state_dict": published(), "extra": Harmful(mark)}
    if how == "plain pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(WeightsError, match="can run code"):
        load_weights(tiny(), path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Harmful(mark)))
    assert mark.exists()  # it would have


def test_whole_modules_and_numpy_numbers_are_refused(tmp_path):
    for content in (tiny(), {"state_dict": published(), "acc": np.float64(0.5)}):
        with pytest.raises(WeightsError, match="save the state dict alone"):
            load_weights(tiny(), saved(tmp_path, content))


def whole_file(**options):
    stream = io.BytesIO()
    torch.save(published(), stream, **options)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x80", b"PK\x03\x04", b"0" * 99])
def test_no_checkpoint(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name):
        load_weights(tiny(), tmp_path / name)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.9, 0.999])
def test_truncated(tmp_path, kind, part):
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pth")
    if kind == "safetensors":
        save_file(published(), path)
        content = path.read_bytes()
    else:
        content = whole_file(_use_new_zipfile_serialization=kind == "zip")
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(WeightsError, match=r"whole|damaged"):
        load_weights(tiny(), path)


def holds_itself():
    loop = {"epoch": 1}
    loop["model"] = loop
    return loop


@pytest.mark.parametrize(
    "content",
    [{}, {"epoch": 3, "optimizer": {}}, [torch.zeros(1)], torch.zeros(1), 5, holds_itself()],
    ids=["empty", "no weights", "list", "tensor", "number", "holds itself"],
)
def test_no_names_and_arrays(tmp_path, content):
    with pytest.raises(WeightsError, match="expected names and arrays"):
        load_weights(tiny(), saved(tmp_path, content))


def test_no_such_file(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        load_weights(tiny(), tmp_path / "a.pth")
    with pytest.raises(WeightsError, match="this folder holds no"):
        load_weights(tiny(), tmp_path)


@pytest.mark.parametrize("place", ["representation.weight", "optimizer.momentum_buffer.0.x"])
def test_a_file_of_a_run_leads_to_the_command_that_takes_the_backbone_out(tmp_path, place):
    content = {**prefixed("backbone.", published()), place: torch.zeros(2, 4)}
    save_file(content, tmp_path / "weights.safetensors")
    with pytest.raises(WeightsError, match=r"file of a run: 'protail weights RUN -o FOLDER'"):
        load_weights(tiny(), tmp_path / "weights.safetensors")


def test_the_bundled_weights_fill_a_resnet32_and_are_small():
    report = load_weights(make_backbone("resnet32"), bundled_weights())
    assert len(report.loaded) == 186
    assert report.left_out == ()
    assert bundled_weights().stat().st_size < 2_000_000
