"""A head of many classes over several processes: what each holds, sends and receives.

    python benchmarks/sharded.py [--quick] [--json results/speed/sharded.json] [--ranks 1 2 4]
        [--classes N] [--channels N] [--rows N] [--device cuda]

A step takes the loss of a batch, its gradients and an update of SGD with momentum; the batch is
the same for every number of processes, each of which gives its part. Memory is counted from the
tensors that a process holds, and its peak is measured, beside what is there when torch is loaded.
Traffic is counted from the tensors that collectives were called with: of a gather a process
receives what the others have, of a reduce-scatter what the others add to its part. On a CPU the
processes share its cores (here a thread each) and talk through the loopback, so seconds say little
about machines of their own.

With ``--device cuda --ranks 1`` a GPU takes the step of one shard: what the largest head, split
over many GPUs, asks of each of them but for the traffic.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _gpu import hardware, show, write
from _measure import PeakMemory
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from protail.models.heads import ShardedPrototypeHead
from protail.training import leave_group_at_end

MIB = 2**20
# Classes that are drawn with one seed, so that every process can draw any of them.
_DRAWN_AT_ONCE = 1000
_SENDS_NOTHING = ("wait_tensor", "_wrap_tensor_autograd")
_K = 5
_STEPS = 3
COLUMNS = ("processes", "classes here", "prototypes MiB", "gradient MiB", "momentum MiB",
           "peak MiB", "received KiB a step", "received KiB a search", "s a step")  # fmt: skip


class Traffic(TorchDispatchMode):
    """Count what this process receives, by collective and size of the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str, int]] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it will come back with what is sent
        result = function(*given, **(options or {}))
        space, _, name = function.name().partition("::")
        if space in ("_c10d_functional", "c10d") and name not in _SENDS_NOTHING:
            before, after = _bytes(given[0]), _bytes(result)
            # A collective of another kind is an error here: it would have to be counted.
            received = {
                "all_gather_into_tensor": after - before,
                "reduce_scatter_tensor": before - after,
            }[name]
            self.calls[name, str(list(result.shape)), received] += 1
        return result

    @property
    def received(self) -> int:
        """Bytes that came from others."""
        return sum(size * n for (_, _, size), n in self.calls.items())

    def rows(self) -> list[dict[str, Any]]:
        """Say what was called, as often as it was."""
        keys = ("collective", "shape", "bytes received", "calls")
        return [dict(zip(keys, (*key, n), strict=True)) for key, n in self.calls.items()]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def prototypes(first: int, stop: int, n_channels: int) -> Tensor:
    """Draw some classes of all: the same, whoever draws them."""
    drawn = []
    for seed in range(first // _DRAWN_AT_ONCE, -(-stop // _DRAWN_AT_ONCE)):
        generator = torch.Generator().manual_seed(seed)
        block = torch.randn(_DRAWN_AT_ONCE, n_channels, generator=generator)
        start = seed * _DRAWN_AT_ONCE
        drawn.append(block[max(0, first - start) : stop - start])
    return torch.cat(drawn)


def batch(args: argparse.Namespace, rank: int, n_ranks: int) -> tuple[Tensor, Tensor]:
    """Draw this process's rows, each near the prototype of its class."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(args.classes, (args.rows,), generator=generator)
    noise = torch.randn(args.rows, args.channels, generator=generator)
    each = args.rows // n_ranks
    here = slice(rank * each, (rank + 1) * each)
    own = [prototypes(int(c), int(c) + 1, args.channels) for c in target[here]]
    return (torch.cat(own) + 0.5 * noise[here]).to(args.device), target[here].to(args.device)


def measure(args: argparse.Namespace, rank: int, n_ranks: int) -> dict[str, Any]:
    """Take the steps of one process, and a search."""
    mesh = distributed.init_device_mesh(args.device, (n_ranks,))
    x, target = batch(args, rank, n_ranks)
    on_gpu = args.device == "cuda"
    with nullcontext() if on_gpu else PeakMemory() as peak:
        head = ShardedPrototypeHead(args.classes, args.channels, mesh)
        own_cd = head.prototypes.detach().to_local()
        first = rank * -(-args.classes // n_ranks)
        for start in range(0, len(own_cd), _DRAWN_AT_ONCE):
            stop = min(start + _DRAWN_AT_ONCE, len(own_cd))
            own_cd[start:stop] = prototypes(first + start, first + stop, args.channels)
        optimiser = torch.optim.SGD(head.parameter_groups())
        seconds, losses = [], []
        with Traffic() as search:
            found = head.top_k(x, _K)
        for _ in range(_STEPS):
            begin = time.perf_counter()
            with Traffic() as traffic:
                x.requires_grad_().grad = None  # a backbone wants it
                optimiser.zero_grad()
                loss = head.loss(x, target)
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
            seconds.append(time.perf_counter() - begin)
    gradient, momentum = (
        _bytes(each.to_local())
        for each in (head.prototypes.grad, optimiser.state[head.prototypes]["momentum_buffer"])
    )
    rise = torch.cuda.max_memory_allocated() if on_gpu else peak.rise
    row = {"processes": n_ranks, "classes here": len(own_cd)}
    row |= {"prototypes MiB": _bytes(own_cd) / MIB, "gradient MiB": gradient / MIB}
    row |= {"momentum MiB": momentum / MIB, "peak MiB": rise / MIB}
    row |= {"received KiB a step": traffic.received / 1024}
    row |= {"received KiB a search": search.received / 1024, "s a step": median(seconds)}
    row |= {"losses": losses, "step": traffic.rows(), "search": search.rows()}
    return row | {"nearest": found.classes_bk.tolist()}


def work(args: argparse.Namespace) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    rank, n_ranks = args.as_rank
    if args.device == "cuda":
        torch.cuda.set_device(rank)
    with leave_group_at_end():
        distributed.init_process_group(
            "nccl" if args.device == "cuda" else "gloo",
            init_method=f"file://{args.json / 'store'}",
            rank=rank,
            world_size=n_ranks,
            timeout=timedelta(hours=1),
        )
        write(args.json / f"{rank}.json", measure(args, rank, n_ranks))
    os._exit(0)  # DTensor never lets go of the group, whose threads may abort what ends as usual


def run(args: argparse.Namespace, n_ranks: int) -> list[dict[str, Any]]:
    """Start processes; give what each measured."""
    sizes = ("classes", "channels", "rows", "device")
    words = [word for key in sizes for word in (f"--{key}", str(getattr(args, key)))]
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *words, "--json", folder, "--as-rank"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen([*command, str(rank), str(n_ranks)], env=environment)
            for rank in range(n_ranks)
        ]
        codes = [process.wait() for process in started]
        if any(codes):
            sys.exit(f"processes ended with {codes}; expected 0 of each: see what they printed.")
        return [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(n_ranks)]


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--rows", type=int, default=64, help="in the batch, of all processes")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.as_rank:
        work(args)
        return []
    if args.quick:
        args.classes, args.channels, args.rows, args.ranks = 1001, 16, 8, [2]
    about = {"command": "python benchmarks/sharded.py", **hardware(torch.device(args.device))}
    about |= {"rows": args.rows, "classes": args.classes, "channels": args.channels}
    found: list[dict[str, Any]] = []
    first: dict[str, Tensor] = {}
    for n_ranks in args.ranks:
        each = run(args, n_ranks)
        answers = {
            "losses": torch.tensor(each[0]["losses"]),
            "nearest classes": torch.tensor([row for one in each for row in one.pop("nearest")]),
        }
        for name, answer in answers.items():
            if not torch.allclose(answer, first.setdefault(name, answer), rtol=1e-5):
                sys.exit(f"{name} of {n_ranks} processes are not those of {args.ranks[0]}.")
        # The first has the most classes; of what is measured, the largest of all is told.
        most = {key: max(one[key] for one in each) for key in ("peak MiB", "s a step")}
        found.append(each[0] | most)
        write(args.json, {**about, "processes": found})
    show(found, COLUMNS)
    return found


if __name__ == "__main__":
    main()
