"""Class products in full precision, whatever precision the backbone computed in."""

import pytest
import torch

from protail.models.heads import HEADS, ExpertsHead, LinearHead, make_head

STAGE_1 = {"linear": LinearHead, "experts": ExpertsHead}
OPTIONS = {"tau-normalized": {"tau": 0.5, "bias": True}}
NAMES = [
    "aligned",
    "cosine",
    "expert-prototypes",
    "experts",
    "post-hoc-adjusted",
    "prototype",
    "routed-experts",
    "scaled",
    "tau-normalized",
]


def head_of(name):
    torch.manual_seed(0)
    head = make_head(name, 5, 12, **OPTIONS.get(name, {}))
    for first in HEADS.needs(name)["builds_on"][:1]:
        head.build_on(STAGE_1[first](5, 12), [9, 7, 5, 3, 1])
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    return head.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_gradients_are_those_of_single_precision(name, dtype):
    head = head_of(name)
    features = 3 * torch.randn(64, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected, found = (features.float().requires_grad_() for _ in range(2))
    head(expected).square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(found.to(dtype))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, head(expected), rtol=1e-6, atol=1e-6)
    logits.square().sum().backward()
    if dtype == torch.float32:  # through bfloat16 features a gradient is rounded on its way back
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_gates_open_as_in_single_precision(training):
    head = head_of("routed-experts").train(training)
    features = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    expected = head.routing(features)
    with torch.autocast("cpu", torch.bfloat16):
        found = head.routing(features)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_how_far_rows_are_aligned_is_as_in_single_precision():
    head, features = head_of("aligned"), torch.randn(64, 12)
    with torch.autocast("cpu", torch.bfloat16):
        found = head.kappa(features)
    torch.testing.assert_close(found, head.kappa(features), rtol=1e-6, atol=1e-6)
