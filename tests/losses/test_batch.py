"""What all losses of logits have in common."""

import copy
from inspect import isclass

import numpy as np
import pytest
import torch

from protail import ClassProfile
from protail.losses import LOSSES, make_loss

# Every loss that is a class of ours: cross-entropy is torch's, and routing takes more than logits.
FACTORIES = {name: LOSSES.factory(name) for name in LOSSES.names()}
NAMES = [
    name
    for name, factory in FACTORIES.items()
    if isclass(factory) and factory.__module__.startswith("protail.") and name != "routing"
]
COUNTS = [500, 30, 5]
LOGITS = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(8) % 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(name, dtype):
    loss = make_loss(name, COUNTS)
    rounded = LOGITS.to(dtype)
    value = loss(rounded, TARGET)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(rounded.float(), TARGET))
    assert make_loss(name, COUNTS).to(dtype)(rounded, TARGET).dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_no_value_is_read_back(name):
    """A tensor without values stands for one on a GPU: reading it back fails."""
    loss = make_loss(name, COUNTS).to("meta")
    logits = LOGITS.to("meta").requires_grad_()
    loss(logits, TARGET.to("meta")).backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name):
    loss = make_loss(name, COUNTS)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(LOGITS, TARGET), loss(LOGITS, TARGET))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_type", [np.array, torch.tensor, lambda c: ClassProfile(np.array(c))])
def test_counts_come_in_many_forms(name, as_type):
    value = make_loss(name, as_type(COUNTS))(LOGITS, TARGET)
    assert torch.equal(value, make_loss(name, COUNTS)(LOGITS, TARGET))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_learns_and_all_is_saved(name):
    loss, other = make_loss(name, COUNTS), make_loss(name, [1, 1, 1])
    assert not list(loss.parameters())
    other.load_state_dict(loss.state_dict())
    for same in (other, copy.deepcopy(loss)):
        assert torch.equal(same(LOGITS, TARGET), loss(LOGITS, TARGET))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_other_integer_targets(name, dtype):
    loss = make_loss(name, COUNTS)
    assert torch.equal(loss(LOGITS, TARGET.to(dtype)), loss(LOGITS, TARGET))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), r"logits has shape \(2, 4\).*\(batch, 3\)"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), r"logits has shape \(2, 1\)"),
        (torch.zeros(3), torch.tensor([0, 1, 2]), r"logits has shape \(3,\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]), "expected floating point"),
        (torch.zeros(2, 3), torch.tensor([0]), r"target has shape \(1,\).*\(2,\)"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "target .* integer class codes"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "target runs from 0 to 3; .* 0 to 2"),
        (torch.zeros(2, 3), torch.tensor([-100, 0]), "target runs from -100 to 0"),
    ],
)
def test_bad_batches(name, logits, target, message):
    with pytest.raises(ValueError, match=message):
        make_loss(name, COUNTS)(logits, target)
