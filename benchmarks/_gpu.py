"""Times, memory and limits of a device, for the benchmarks of single operations."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

GIB = 2**30
Call = Callable[[int], object]
"""Something to time; told which of several inputs to take."""


def milliseconds(call: Call, device: torch.device, n_calls: int, warm_up: int = 5) -> float:
    """Give the median time of a call: on a GPU in events around batches of calls in a row."""
    for i in range(warm_up):
        call(i)
    times = []
    if device.type != "cuda":
        for i in range(n_calls):
            begin = time.perf_counter()
            call(i)
            times.append(1000 * (time.perf_counter() - begin))
        return median(times)
    in_a_row = 5
    torch.cuda.synchronize(device)
    for start in range(0, n_calls, in_a_row):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        for i in range(start, start + in_a_row):
            call(i)
        marks[1].record()
        torch.cuda.synchronize(device)
        times.append(marks[0].elapsed_time(marks[1]) / in_a_row)
    return median(times)


def peak_gib(call: Call, device: torch.device) -> float | None:
    """Give the memory that a call takes at most beside what is there; unknown on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call(0)
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / GIB


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object] | None:
    """Capture a call as a CUDA graph; None on a CPU."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def by_kernel(call: Call, device: torch.device, n_calls: int = 5) -> dict[str, float] | None:
    """Give the microseconds that each kernel takes in a call, the longest first."""
    if device.type != "cuda":
        return None
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        for i in range(n_calls):
            call(i)
        torch.cuda.synchronize(device)
    found: Counter[str] = Counter()
    for each in profile.key_averages():  # long names that begin alike count as one
        found[each.key[:60]] += each.self_device_time_total / n_calls
    return {name: round(time, 1) for name, time in found.most_common() if time >= 0.5}


def rates(device: torch.device) -> dict[str, float]:
    """Measure bytes a second of a copy, and operations a second of products by precision."""
    big = device.type == "cuda"
    found = {"bytes": _copied(2**29 if big else 2**20, device)}
    n = 8192 if big else 128
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    for name, setting in (("float32", "highest"), ("tf32", "high"), ("bfloat16", "high")):
        one, other = (a.bfloat16(), b.bfloat16()) if name == "bfloat16" else (a, b)
        torch.set_float32_matmul_precision(setting)
        found[name] = 2 * n**3 / milliseconds(lambda i, x=one, y=other: x @ y, device, 10) * 1000
    torch.set_float32_matmul_precision(before)
    return found


def _copied(n: int, device: torch.device) -> float:
    numbers = torch.randn(n, device=device)
    there = torch.empty_like(numbers)
    return 2 * 4 * n / milliseconds(lambda i: there.copy_(numbers), device, 10) * 1000


def hardware(device: torch.device) -> dict[str, str]:
    """Say what measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"hardware": name, "torch": torch.__version__}


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print a table as Markdown."""
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(_cell(row.get(column)) for column in columns) + " |", flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write the results as JSON, where a file was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
