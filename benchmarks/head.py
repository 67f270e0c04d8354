"""Training steps of a head, beside the lines that people would write, and beside the limit.

    python benchmarks/head.py [--quick] [--json results/speed/head.json] [--only NUMBER ...]

A step takes the loss of a batch, the gradient by the prototypes, and a plain SGD update. The other
lines are the published formula, which subtracts every prototype from every row; ``torch.cdist``;
and the square expanded into a product, compiled. Batches are random and change from step to step.
"ms" is the median time of a step that Python starts, "ms captured" that of a CUDA graph which takes
its batch itself, as the steps of stage 2 do.
Memory is beside parameters, so the gradient is a part of it. The limit is what the operations that
no way can do without (two products; in float32 by plain units, or three each in TF32, whichever is
faster) or the bytes (prototypes read, gradient written, both read again and prototypes written by
the update) take at the rates that the device reaches in the same run. Errors are against float64 on
fresh inputs: of the loss, and of the gradient, in length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _gpu import GIB, by_kernel, captured, hardware, milliseconds, peak_gib, rates, show, write
from torch import Tensor
from torch.nn.functional import cross_entropy

from protail import ops

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
SIZES = [(64, 100, 512), (64, 8_142, 2_048), (512, 8_142, 2_048), (512, 1_000_000, 512)]
QUICK = [(8, 10, 16), (16, 300, 32)]
COLUMNS = ("rows", "classes", "channels", "way", "precision", "ms", "ms captured", "limit ms",
           "GiB", "loss error", "gradient error")  # fmt: skip
_CACHE = 128 * 2**20
# Ways that need more than this are left out.
_MOST_BYTES = 60 * GIB


def published(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Give the loss as the paper writes it: subtract, square, sum, root."""
    return cross_entropy(-0.5 * (x[:, None] - c[None]).square().sum(2).sqrt(), y)


def by_cdist(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Give the loss by torch's own distances."""
    return cross_entropy(-0.5 * torch.cdist(x, c), y)


def expansion(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Give the loss by one product of matrices."""
    square = x.square().sum(1, keepdim=True) + c.square().sum(1) - 2 * x @ c.mT
    return cross_entropy(-0.5 * square.clamp_min(1e-12).sqrt(), y)


class Way(NamedTuple):
    """A way to compute the loss, and how it multiplies."""

    name: str
    precision: str
    loss: Loss


def ways(size: tuple[int, int, int], device: torch.device) -> Iterator[Way]:
    """Give those that fit."""
    n_rows, n_classes, n_channels = size
    on_gpu = device.type == "cuda"
    if 4 * 4 * n_rows * n_classes * n_channels < (_MOST_BYTES if on_gpu else GIB):
        yield Way("published formula", "float32", published)
    yield Way("torch.cdist", "float32", by_cdist)
    if on_gpu:
        compiled = torch.compile(expansion, dynamic=False)
        yield Way("expansion, compiled", "float32", compiled)
        yield Way("expansion, compiled", "tf32", compiled)
    yield Way("protail, torch", "float32", lambda x, c, y: ops.loss(x, c, y, form=_torch_form(c)))
    if on_gpu:
        yield Way("protail", "as it comes", ops.loss)
        for precision in ("float32", "tf32", "bfloat16"):
            yield Way(
                "protail, kernels",
                precision,
                lambda x, c, y, by=precision: ops.loss(x, c, y, form="kernels", precision=by),
            )


def _torch_form(c: Tensor) -> str:
    return "chunked" if c.numel() > 2**27 else "fused"


def exact(x: Tensor, c: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute loss and gradient in float64, by formula."""
    x, c = x.double(), c.double()
    middle = c.mean(0)
    u, v = x - middle, c - middle
    square = u.square().sum(1, keepdim=True) + v.square().sum(1)
    distance = torch.addmm(square, u, v.mT, alpha=-2).clamp_min_(0).sqrt_()
    own = (x - c[y]).norm(dim=1, keepdim=True)
    distance.scatter_(1, y[:, None], own)
    log_p = (-0.5 * distance).log_softmax(1)
    value = -log_p.gather(1, y[:, None]).mean()
    slope = log_p.exp_()
    slope.scatter_add_(1, y[:, None], torch.full_like(own, -1))
    slope.div_(distance).mul_(0.5 / len(x))
    return value, slope.mT @ u - slope.sum(0)[:, None] * v


def data(
    size: tuple[int, int, int], device: torch.device, n_sets: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw batches and prototypes that are close enough for a softmax that is not flat."""
    n_rows, n_classes, n_channels = size
    generator = torch.Generator(device).manual_seed(seed)
    c = torch.randn(n_classes, n_channels, generator=generator, device=device)
    y = torch.randint(n_classes, (n_sets, n_rows), generator=generator, device=device)
    x = torch.randn(n_sets, n_rows, n_channels, generator=generator, device=device)
    return x.add_(c[y], alpha=0.5), c, y


def measure(
    way: Way, size: tuple[int, int, int], device: torch.device, n_calls: int
) -> dict[str, Any]:
    """Time a way, and compare it with float64."""
    torch.set_float32_matmul_precision("high" if way.precision == "tf32" else "highest")
    row: dict[str, Any] = dict(zip(("rows", "classes", "channels"), size, strict=True))
    row |= {"way": way.name, "precision": way.precision, **timed(way, size, device, n_calls)}
    x, c, y = data(size, device, 1, seed=1)
    value = way.loss(x[0], c.requires_grad_(), y[0])
    (gradient,) = torch.autograd.grad(value, c)
    expected, true = exact(x[0], c.detach(), y[0])
    row["loss error"] = float((value.detach() - expected).abs())
    row["gradient error"] = float((gradient.double() - true).norm() / true.norm())
    torch.set_float32_matmul_precision("highest")
    return row


def timed(
    way: Way, size: tuple[int, int, int], device: torch.device, n_calls: int
) -> dict[str, Any]:
    """Give times and memory of a way."""
    n_sets = max(1, min(64, _CACHE // (4 * size[0] * size[2])))
    x, c, y = data(size, device, n_sets, seed=0)
    c.requires_grad_()
    optimizer = torch.optim.SGD([c], lr=1e-3)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        way.loss(x, c, y).backward()
        optimizer.step()

    def eager(i: int) -> None:
        step(x[i % n_sets], y[i % n_sets])

    found: dict[str, Any] = {"ms": milliseconds(eager, device, n_calls)}
    optimizer.zero_grad()
    found["GiB"] = peak_gib(eager, device)
    if way.name.startswith("protail"):
        found["kernels us"] = by_kernel(eager, device)
    place = torch.zeros(1, dtype=torch.int64, device=device)

    def counting() -> None:  # as stage 2 does: the step itself takes the next batch
        step(x.index_select(0, place)[0], y.index_select(0, place)[0])
        place.add_(1).remainder_(n_sets)

    replay = captured(counting, device)
    if replay is not None:
        found["ms captured"] = milliseconds(lambda i: replay(), device, n_calls)
    return found


def limit(size: tuple[int, int, int], precision: str, at: dict[str, float]) -> float:
    """Give the milliseconds that operations or bytes take at least."""
    n_rows, n_classes, n_channels = size
    operations = 4 * n_rows * n_classes * n_channels
    n_bytes = 4 * (5 * n_classes * n_channels + n_rows * n_channels)
    # Float32 by the matrix units is three products in TF32.
    by = "float32" if precision == "as it comes" else precision
    rate = max(at["float32"], at["tf32"] / 3) if by == "float32" else at[by]
    return 1000 * max(operations / rate, n_bytes / at["bytes"])


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the sizes, from 0")
    parser.add_argument("--ways", nargs="*", help="beginnings of the ways' names")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.quick else "cpu")
    sizes = QUICK if args.quick else SIZES
    at = rates(device)
    rows: list[dict[str, Any]] = []
    print({name: f"{rate:.3g}" for name, rate in at.items()}, flush=True)
    for number, size in enumerate(sizes):
        if args.only and number not in args.only:
            continue
        for way in ways(size, device):
            if args.ways and not way.name.startswith(tuple(args.ways)):
                continue
            n_calls = 5 if args.quick else 25 if size[1] > 100_000 else 100
            row = measure(way, size, device, n_calls)
            row["limit ms"] = limit(size, way.precision, at)
            rows.append(row)
            print({key: _short(value) for key, value in row.items()}, flush=True)
            found = {"command": "python benchmarks/head.py", **hardware(device), "rates": at}
            write(args.json, {**found, "rows": rows})
            if device.type == "cuda":
                torch.cuda.empty_cache()
    show(rows, COLUMNS)
    return rows


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
