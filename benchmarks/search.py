"""The five nearest prototypes, beside the lines that people would write, and beside the limit.

    python benchmarks/search.py [--quick] [--json results/speed/search.json] [--only NUMBER ...]

The other lines are ``torch.cdist(x, c).topk(5)``, the square expanded into a product and then
``topk``, compiled, and a flat index of faiss where it is installed. "ms" is the median time of a
call that Python starts, "ms on the device" the sum of its kernels; rows are random and change from
call to call. The limit is what one product
takes, or reading the prototypes once, at the rates that the device reaches in the same run. Wrong
rows are those whose five classes differ from those of float64, on fresh inputs; the error is the
largest of a distance found, as a part of it.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _gpu import by_kernel, hardware, milliseconds, peak_gib, rates, show, write
from torch import Tensor

from protail import ops

K = 5
SIZES = [(512, 8_142, 2_048), (512, 1_000_000, 512)]
QUICK = [(16, 300, 32)]
COLUMNS = ("rows", "classes", "channels", "way", "precision", "ms", "ms on the device",
           "limit ms", "GiB",
           "wrong rows", "distance error")  # fmt: skip
_CACHE = 128 * 2**20

Search = Callable[[Tensor], tuple[Tensor, Tensor]]


class Way(NamedTuple):
    """A way to search, how it multiplies, and what makes it for given prototypes."""

    name: str
    precision: str
    make: Callable[[Tensor], Search]


def by_cdist(c: Tensor) -> Search:
    """Search by torch's own distances."""

    def search(x: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.cdist(x, c).topk(K, largest=False)
        return found.values, found.indices

    return search


def by_expansion(c: Tensor) -> Search:
    """Search by one product of matrices, compiled."""

    @torch.compile(dynamic=False)
    def search(x: Tensor) -> tuple[Tensor, Tensor]:
        square = x.square().sum(1, keepdim=True) + c.square().sum(1) - 2 * x @ c.mT
        found = square.clamp_min(0).sqrt().topk(K, largest=False)
        return found.values, found.indices

    return search


def by_faiss(c: Tensor) -> Search:
    """Search with faiss, prototypes in its index already."""
    import faiss

    index = faiss.IndexFlatL2(c.shape[1])
    if c.is_cuda:
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    index.add(c.cpu().numpy())

    def search(x: Tensor) -> tuple[Tensor, Tensor]:
        squares, found = index.search(x.cpu().numpy(), K)
        return torch.from_numpy(squares).sqrt().to(x.device), torch.from_numpy(found).to(x.device)

    return search


def by_protail(form: str) -> Callable[[Tensor], Search]:
    """Search with protail, in a form."""
    return lambda c: lambda x: tuple(ops.top_k(x, c, K, form=form))  # type: ignore[return-value]


def ways(device: torch.device) -> Iterator[Way]:
    """Give those that there are."""
    yield Way("topk(cdist)", "float32", by_cdist)
    if device.type == "cuda":
        yield Way("expansion, compiled", "tf32", by_expansion)
    if importlib.util.find_spec("faiss") is not None:
        yield Way("faiss, flat", "float32", by_faiss)
    yield Way("protail, torch", "exact", by_protail("torch"))
    if device.type == "cuda":
        yield Way("protail", "exact", by_protail("auto"))


def data(
    size: tuple[int, int, int], device: torch.device, n_sets: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw rows and prototypes."""
    n_rows, n_classes, n_channels = size
    generator = torch.Generator(device).manual_seed(seed)
    c = torch.randn(n_classes, n_channels, generator=generator, device=device)
    return torch.randn(n_sets, n_rows, n_channels, generator=generator, device=device), c


def exact(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Search in float64."""
    x, c = x.double(), c.double()
    square = torch.addmm(x.square().sum(1, keepdim=True) + c.square().sum(1), x, c.mT, alpha=-2)
    found = square.topk(K, largest=False).indices
    distance = (x[:, None] - c[found]).norm(dim=2)
    distance, order = distance.sort(dim=1)
    return distance, found.gather(1, order)


def measure(
    way: Way, size: tuple[int, int, int], device: torch.device, n_calls: int
) -> dict[str, Any]:
    """Time a way, and compare it with float64."""
    torch.set_float32_matmul_precision("high" if way.precision == "tf32" else "highest")
    n_sets = max(1, min(64, _CACHE // (4 * size[0] * size[2])))
    x, c = data(size, device, n_sets, seed=0)
    search = way.make(c)
    row: dict[str, Any] = dict(zip(("rows", "classes", "channels"), size, strict=True))
    row |= {"way": way.name, "precision": way.precision}
    row["ms"] = milliseconds(lambda i: search(x[i % n_sets]), device, n_calls)
    row["GiB"] = peak_gib(lambda i: search(x[i]), device)
    kernels = by_kernel(lambda i: search(x[i % n_sets]), device)
    if kernels is not None:
        row["ms on the device"] = sum(kernels.values()) / 1000
        row["kernels us"] = kernels
    x, c = data(size, device, 1, seed=1)
    distance, found = way.make(c)(x[0])
    true, classes = exact(x[0], c)
    row["wrong rows"] = int((found != classes).any(1).sum())
    row["distance error"] = float(((distance - true) / true).abs().max())
    torch.set_float32_matmul_precision("highest")
    return row


def limit(size: tuple[int, int, int], at: dict[str, float]) -> float:
    """Give the milliseconds that one product in TF32, or the bytes, take at least."""
    n_rows, n_classes, n_channels = size
    n_bytes = 4 * n_channels * (n_classes + n_rows)
    return 1000 * max(2 * n_rows * n_classes * n_channels / at["tf32"], n_bytes / at["bytes"])


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small size on the CPU")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the sizes, from 0")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.quick else "cpu")
    at = rates(device)
    rows: list[dict[str, Any]] = []
    for number, size in enumerate(QUICK if args.quick else SIZES):
        if args.only and number not in args.only:
            continue
        for way in ways(device):
            row = measure(way, size, device, 5 if args.quick else 25)
            row["limit ms"] = limit(size, at)
            rows.append(row)
            found = {"command": "python benchmarks/search.py", **hardware(device), "rates": at}
            write(args.json, {**found, "rows": rows})
            print(row, flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    show(rows, COLUMNS)
    return rows


if __name__ == "__main__":
    main()
