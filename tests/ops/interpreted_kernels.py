"""Run the kernels in Triton's interpreter and print what they came to, as JSON.

A program of its own: Triton looks at ``TRITON_INTERPRET`` as it is imported.
"""

import json
import sys

import torch

from protail.losses import LogitAdjustedLoss
from protail.models.heads import PrototypeHead
from protail.ops import kernels, nearest, reference, top_k
from protail.ops.kernels import PRECISIONS
from protail.training.stage2 import FeatureBatch, HeadGroup

# It stands for bfloat16, which the interpreter does not know.
PRECISIONS["float16"] = 1, torch.float16

# Name: distance, temperature by channel, reduction, precision, small, classes, dtype.
LOSSES = {
    "small": ("euclidean", True, "none", "float32", True, 13, torch.float32),
    "small cosine": ("cosine", True, "mean", "float32", True, 13, torch.float32),
    "small, float16": ("sqeuclidean", False, "sum", "float32", True, 13, torch.float16),
    "tiled": ("euclidean", True, "none", "float32", False, 70, torch.float32),
    "tiled, kept": ("sqeuclidean", True, "mean", "float32", False, 30, torch.float32),
    "tiled, tf32": ("euclidean", True, "mean", "tf32", False, 70, torch.float32),
    "tiled, tf32, kept": ("euclidean", False, "sum", "tf32", False, 30, torch.float32),
    "tiled, short": ("sqeuclidean", True, "mean", "float16", False, 70, torch.float32),
    "tiled cosine": ("cosine", False, "mean", "float32", False, 30, torch.float16),
}
# Name: distance, temperature by channel, classes, neighbours.
SEARCHES = {
    "all scores": ("euclidean", True, 50, 5),
    "groups": ("sqeuclidean", False, 200, 5),
    "cosine": ("cosine", True, 200, 3),
}


def compare_loss(distance, scaled, reduction, precision, small, n_classes, dtype):
    """Give the largest errors of the loss and of each gradient, relative to the largest number."""
    # Whole steps of channels are placed where their gradient will be.
    n_rows, n_channels = 20, 24 if precision == "float32" else 32
    x, prototypes = (torch.randn(n, n_channels) + 3 for n in (n_rows, n_classes))
    target = torch.randint(n_classes, (n_rows,))
    target[3] = target[7] = target[11]
    x[5] = prototypes[target[5]]
    leaves = [x.to(dtype), prototypes.to(dtype), *([torch.rand(1, n_channels) + 0.5] * scaled)]
    adjustment = torch.randn(n_classes)
    weight = torch.rand(n_rows) if reduction == "none" else torch.ones(())

    def run(loss, leaves, **options):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        temperature = leaves[2] if scaled else None
        options |= {"distance": distance, "temperature": temperature, "reduction": reduction}
        value = loss(*leaves[:2], target, adjustment=adjustment.to(weight.dtype), **options)
        total = (value * weight).sum()
        if options.get("precision") == "float16":
            torch.autograd.grad(total, leaves, retain_graph=True)  # the next places once more
        gradients = torch.autograd.grad(total, leaves)
        return [value.detach(), *gradients]

    found, again = (run(kernels.loss, leaves, precision=precision, small=small) for _ in range(2))
    true = run(reference.loss, [leaf.double() for leaf in leaves])
    return {
        "errors": [
            float((one - other).abs().max() / other.abs().max())
            for one, other in zip(found, true, strict=True)
        ],
        "same bits": all(map(torch.equal, found, again)),
    }


def compare_search(distance, scaled, n_classes, k):
    """Say whether classes and distances are those of torch's form, with equal prototypes too."""
    x, prototypes = torch.randn(20, 24) + 1, torch.randn(n_classes, 24) + 1
    prototypes[7] = prototypes[3]
    x[0] = prototypes[3]
    options = {"distance": distance, "temperature": torch.rand(1, 24) + 0.5 if scaled else None}
    budget = 1 if n_classes == 50 else None  # as few rows at a time as there can be
    found = top_k(x, prototypes, k, form="kernels", memory_budget=budget, **options)
    true = top_k(x.double(), prototypes.double(), k, **options)
    first = nearest(x, prototypes, form="kernels", **options)
    gap_bk = (found.distances_bk - true.distances_bk).abs()
    return {
        "classes": torch.equal(found.classes_bk, true.classes_bk),
        "nearest": torch.equal(first, true.classes_bk[:, 0]),
        "error": float((gap_bk / true.distances_bk.clamp_min(1)).max()),
    }


def together():
    """Say whether several heads get the bits of each alone, by way of stage 2."""
    counts, batch = [9, 5, 1], FeatureBatch(torch.randn(7, 8), torch.randint(3, (7,)))
    heads = {name: PrototypeHead(3, 8).set_prototypes(torch.randn(3, 8)) for name in "ab"}
    losses = {name: LogitAdjustedLoss(counts, tau) for name, tau in zip("ab", (0, 1), strict=True)}
    total = HeadGroup(heads, losses)(batch)
    assert type(total.grad_fn).__name__ == "_HeadsLossBackward"
    total.backward()
    same = []
    for head, loss in zip(heads.values(), losses.values(), strict=True):
        leaf = head.prototypes.detach().clone().requires_grad_()
        kernels.loss(batch.features, leaf, batch.labels, adjustment=loss.adjustment).backward()
        same.append(torch.equal(leaf.grad, head.prototypes.grad))
    return all(same)


def lies_on_prototypes():
    """Say whether gradients are finite where a row lies on classes that are not its own."""
    prototypes = torch.randn(20, 16) + 100
    prototypes[1] = prototypes[0]
    leaves = prototypes[:4].clone().requires_grad_(), prototypes.requires_grad_()
    value = kernels.loss(*leaves, torch.tensor([0, 0, 3, 2]), small=False, precision="tf32")
    return all(bool(each.isfinite().all()) for each in torch.autograd.grad(value, leaves))


def wrong_targets():
    """Say whether a target that is no class makes its own row's loss NaN, and no other's."""
    x, prototypes = torch.randn(4, 8), torch.randn(20, 8)
    target = torch.tensor([0, 20, -1, 3])
    losses = (
        kernels.loss(x, prototypes, target, reduction="none", small=small)
        for small in (True, False)
    )
    return [loss.isnan().tolist() for loss in losses]


if __name__ == "__main__":
    torch.manual_seed(0)
    found = {
        "losses": {name: compare_loss(*case) for name, case in LOSSES.items()},
        "searches": {name: compare_search(*case) for name, case in SEARCHES.items()},
        "wrong": wrong_targets(),
        "together": together(),
        "finite": lies_on_prototypes(),
    }
    json.dump(found, sys.stdout)
