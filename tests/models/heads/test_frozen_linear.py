"""What all heads that are built on a linear head of stage 1 have in common."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from protail.models.heads import HEADS, CosineHead, LinearHead, PrototypeHead, make_head
from reference.linear_by_loop import stage_1_head

COUNTS = [500, 30, 5, 1]
LEARNED = {
    "scaled": {"scales"},
    "aligned": {"scales", "offsets", "confidence.weight", "confidence.bias"},
    "tau-normalized": set(),
    "post-hoc-adjusted": set(),
}
X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def built(name, *, bias=True, **options):
    head = make_head(name, 4, 6, **options).double()
    return head.build_on(stage_1_head(bias=bias), COUNTS)


@pytest.mark.parametrize("name", LEARNED)
class TestEveryHead:
    def test_it_says_what_it_builds_on(self, name):
        assert HEADS.needs(name)["builds_on"][0] == "linear"

    def test_stage_1_is_copied_into_buffers(self, name):
        first, head = stage_1_head(), built(name)
        assert (head.n_classes, head.n_features) == (4, 6)
        assert {each for each, _ in head.named_parameters()} == LEARNED[name]
        assert torch.equal(head.frozen_weight, first.weight)
        assert torch.equal(head.frozen_bias, first.bias)
        assert head.frozen_weight.data_ptr() != first.weight.data_ptr()
        assert torch.equal(built(name, bias=False).frozen_bias, torch.zeros(4).double())

    def test_what_learns_gets_a_gradient_and_nothing_else_changes(self, name):
        head, target = built(name), torch.tensor([0, 1, 2, 3, 3])
        parameters = list(head.parameters())
        before = {each: buffer.clone() for each, buffer in head.named_buffers()}
        if not parameters:
            assert not head(X).requires_grad
            return
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(2):  # at the very start, nothing hangs on how far rows are aligned
            optimizer.zero_grad()
            cross_entropy(head(X), target).backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in parameters)
            optimizer.step()
        assert all(p.grad.abs().max() > 0 for p in parameters)
        assert all(torch.equal(before[each], b) for each, b in head.named_buffers())

    def test_features_get_a_gradient(self, name):
        x = X.clone().requires_grad_()
        built(name)(x).square().sum().backward()
        assert torch.isfinite(x.grad).all()
        assert x.grad.abs().max() > 0

    def test_constructor_and_state_dict_are_enough(self, name):
        head, again = built(name), make_head(name, 4, 6).double()
        again.load_state_dict(head.state_dict())
        assert torch.equal(again(X), head(X))
        outer = torch.nn.ModuleDict({"head": make_head(name, 4, 6).double()})
        outer.load_state_dict({f"head.{each}": value for each, value in head.state_dict().items()})
        assert torch.equal(outer["head"](X), head(X))
        assert torch.equal(copy.deepcopy(again)(X), head(X))

    def test_it_is_of_no_use_before_it_is_built(self, name):
        head = make_head(name, 4, 6)
        with pytest.raises(ValueError, match=r"no weights of stage 1 yet.*build_on"):
            head(X)
        head.load_state_dict({}, strict=False)
        with pytest.raises(ValueError, match="no weights of stage 1 yet"):
            head(X)

    @pytest.mark.parametrize(
        ("first", "counts", "error", "words"),
        [
            (PrototypeHead(4, 6), COUNTS, TypeError, "head is a PrototypeHead; expected a linear"),
            (LinearHead(5, 6), COUNTS, ValueError, "5 classes and 6 features; expected 4 and 6"),
            (LinearHead(4, 7), COUNTS, ValueError, "4 classes and 7 features; expected 4 and 6"),
            (LinearHead(4, 6), [3, 2, 1], ValueError, "counts has 3 classes; expected 4"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, name, first, counts, error, words):
        head = make_head(name, 4, 6)
        with pytest.raises(error, match=words):
            head.build_on(first, counts)
        with pytest.raises(ValueError, match="no weights of stage 1 yet"):
            head(X)

    def test_a_cosine_head_only_where_it_says_so(self, name):
        if "cosine" in HEADS.needs(name)["builds_on"]:
            make_head(name, 4, 6).build_on(CosineHead(4, 6), COUNTS)
            return
        with pytest.raises(TypeError, match="head is a CosineHead; expected a linear head"):
            make_head(name, 4, 6).build_on(CosineHead(4, 6), COUNTS)

    @pytest.mark.parametrize("shape", [(5, 7), (6,), (2, 5, 6)])
    def test_features_of_another_shape_are_refused(self, name, shape):
        with pytest.raises(ValueError, match=r"x has shape .*; expected \(batch, 6\)"):
            built(name)(torch.zeros(shape))

    def test_half_precision_features(self, name):
        head = built(name).float()
        logits = head(X.bfloat16())
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, head(X.bfloat16().float()))

    def test_no_value_is_read_back(self, name):
        """A tensor without values stands for one on a GPU: reading it back fails."""
        assert built(name).to("meta")(X.to("meta")).shape == (5, 4)

    @pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
    def test_it_needs_classes_and_features(self, name, sizes):
        with pytest.raises(ValueError, match="expected a whole number >= 1"):
            make_head(name, *sizes)
