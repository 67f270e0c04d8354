"""Training steps and searches over prototypes, beside the lines that most people would write.

    python benchmarks/ops.py [--scale 1.0] [--calls 51] [--json FILE]

The naive lines are ``cross_entropy(-cdist(x, c) / 2, y)`` and ``cdist(x, c).topk(5)``. Each of the
five cases prints a line of JSON: the median time of a call of each, in turns and after a warm-up
(events of the GPU around every call; the clock on a CPU), what ours takes as a part of the naive,
and how much memory each needed at most beside its inputs (on a GPU). Naive steps and ours take
gradients and change the prototypes alike. ``--scale`` shrinks the numbers of rows, classes and
channels, for a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protail import ops

MIB = 2**20


class Case(NamedTuple):
    """What is computed, how large it is, and the most it may take as a part of the naive line."""

    kind: str
    rows: int
    classes: int
    channels: int
    limit: float


# The first is so small that only the number of kernels counts.
CASES = [
    Case("step", 64, 100, 512, 1.2),
    Case("step", 512, 8_142, 2_048, 1.0),
    Case("step", 512, 1_000_000, 512, 1.0),
    Case("top-5", 512, 8_142, 2_048, 1.0),
    Case("top-5", 512, 1_000_000, 512, 1.0),
]


def shrunk(case: Case, scale: float) -> Case:
    """Make a case smaller: six classes are left at least, for five are asked for."""
    sizes = (max(6, round(size * scale)) for size in case[1:4])
    return Case(case.kind, *sizes, case.limit)


def calls_of(case: Case, device: torch.device) -> dict[str, Callable[[], object]]:
    """Give the two calls to compare, on the same inputs."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(case.rows, case.channels, generator=generator, device=device)
    c = torch.randn(case.classes, case.channels, generator=generator, device=device)
    if case.kind == "top-5":
        return {
            "naive": lambda: torch.cdist(x, c).topk(5, largest=False),
            "protail": lambda: ops.top_k(x, c, 5),
        }
    y = torch.randint(case.classes, (case.rows,), generator=generator, device=device)

    def step(loss: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        optimizer = torch.optim.SGD([c.requires_grad_()], lr=1e-3)

        def call() -> None:
            optimizer.zero_grad()
            loss(c).backward()
            optimizer.step()

        return call

    return {
        "naive": step(lambda c: cross_entropy(-0.5 * torch.cdist(x, c), y)),
        "protail": step(lambda c: ops.loss(x, c, y)),
    }


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Time a call."""
    if device.type != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize(device)
    marks[0].record()
    call()
    marks[1].record()
    torch.cuda.synchronize(device)
    return marks[0].elapsed_time(marks[1]) / 1000


def peak_mib(call: Callable[[], object], device: torch.device) -> float | None:
    """Give the memory that a call takes at most beside what is there; unknown on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return round((torch.cuda.max_memory_allocated(device) - before) / MIB, 1)


def measure(case: Case, device: torch.device, n_calls: int) -> dict[str, Any]:
    """Compare the two lines of a case."""
    calls = calls_of(case, device)
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n_calls):
        for name, call in calls.items():
            times[name].append(seconds(call, device))
    middle = {name: 1000 * median(found) for name, found in times.items()}
    return {
        "case": case.kind,
        "rows": case.rows,
        "classes": case.classes,
        "channels": case.channels,
        "naive ms": round(middle["naive"], 4),
        "protail ms": round(middle["protail"], 4),
        "ratio": round(middle["protail"] / middle["naive"], 3),
        "limit": case.limit,
        "naive peak MiB": peak_mib(calls["naive"], device),
        "protail peak MiB": peak_mib(calls["protail"], device),
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=51)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    rows = []
    for case in CASES:
        rows.append(measure(shrunk(case, args.scale), device, args.calls))
        print(json.dumps(rows[-1]), flush=True)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    if args.json:
        record = {"device": where, "torch": torch.__version__, "cases": rows}
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return rows


if __name__ == "__main__":
    main()
