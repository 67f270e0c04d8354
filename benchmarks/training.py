"""How long training takes: captured, several at once, beside a plain PyTorch loop.

    python benchmarks/training.py [--quick] [--only NAME ...] [--json results/speed/training.json]

Steps are timed over whole epochs (the median of several) and laid out to the length of the paper's
trainings; compiling and recording a step are timed apart. Images are random: time does not hang on
what they show. The limit of a step is what its multiplications take at the rate of large bfloat16
products, measured in the same run. "options" compiles one step of ResNet-34 in several ways, in
processes that compile side by side and measure one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _gpu import by_kernel, hardware, rates, write
from torch import nn

from protail.data.augment import make_augment
from protail.data.images import DataSet, ImageSet, long_tailed_counts
from protail.training.features import FrozenFeatures, Stream
from protail.training.loop import interleave
from protail.training.settings import ClassifierSettings, RepresentationSettings
from protail.training.stage1 import RepresentationTraining, build_method
from protail.training.stage2 import learn_heads

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# What the house wants, in seconds for the paper's length on an H200.
GOALS = {
    "ResNet-34 alone": 110,
    "ResNet-34 in a group of four": 85,
    "ResNet-32 in a group of eight": 25,
    "stage 2 with augmentation": 5,
    "782 head steps": 0.1,
}


def random_data(n_classes: int = 100, imbalance: float = 100, most: int = 500) -> DataSet:
    """Make random images with the counts of CIFAR-100-LT."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), long_tailed_counts(most, n_classes, imbalance, "exp"))
    pixels = rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    classes = tuple(str(c) for c in range(n_classes))
    train = ImageSet(labels, classes, pixels)
    return DataSet("random", train, train.subset(np.arange(n_classes)), None, {})


RESNET34 = RepresentationSettings()
RESNET32 = RepresentationSettings(backbone="resnet32", batch_size=128, lr=0.1, weight_decay=2e-4)

TINY = replace(RESNET32, batch_size=16, precision="float32")


def seconds_of(work: Callable[[], Any]) -> float:
    """Time work that a GPU may still be at when the call returns."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def plain_loop(settings: RepresentationSettings, data: DataSet, n_steps: int) -> float:
    """Time a step of the loop most people write: kernel by kernel, images resident, float32."""
    method = build_method(settings, data.train.profile.counts, 0).to(DEVICE)
    optimizer = torch.optim.SGD(
        method.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay
    )
    augment = make_augment(settings.augment).to(DEVICE)
    pixels = torch.from_numpy(data.train.pixels).to(DEVICE)
    labels = torch.from_numpy(data.train.labels).to(DEVICE)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        rows = torch.randint(len(labels), (settings.batch_size,), device=DEVICE)
        logits = method.logits(augment(pixels[rows], rows, 0))
        loss = criterion(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(3):
        step()
    return median(seconds_of(lambda: [step() for _ in range(n_steps)]) for _ in range(3)) / n_steps


def group(
    settings: RepresentationSettings, data: DataSet, n: int, compiled: bool, epochs: int
) -> tuple[float, float, int]:
    """Time an epoch of n trainings at once; what is done only once is timed apart."""
    captured = DEVICE.type == "cuda"
    begin = time.perf_counter()
    trainings = [
        RepresentationTraining(
            replace(settings, epochs=epochs + 1),
            data,
            seed=seed,
            device=DEVICE,
            captured=captured,
            compiled=compiled and captured,
        )
        for seed in range(n)
    ]
    marks: list[float] = []

    def mark(_: Any) -> None:
        marks.append(time.perf_counter())

    streams = [torch.cuda.Stream() for _ in trainings] if captured else ()
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    interleave([t.steps(after_epoch=mark) for t in trainings], streams)
    ends = marks[n - 1 :: n]
    times = [after - before for before, after in pairwise(ends)]
    setup = ends[0] - begin - median(times)
    return median(times) / n, setup, trainings[0].steps_an_epoch


def operations(settings: RepresentationSettings) -> float:
    """Count those of a step's products: forward, and twice that for both gradients."""
    from torch.utils.flop_counter import FlopCounterMode

    backbone = build_method(settings, np.ones(2, np.int64), 0).backbone.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(torch.zeros(1, 3, 32, 32))
    return 3.0 * settings.batch_size * counter.get_total_flops()


def representation(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure stage 1."""
    data = random_data(5, 10, 20) if args.quick else random_data()
    cases = (
        [("ResNet-32, tiny", TINY, 1, False)]
        if args.quick
        else [
            ("ResNet-34 alone", RESNET34, 1, True),
            ("ResNet-34 alone, not compiled", RESNET34, 1, False),
            ("ResNet-34 in a group of four", RESNET34, 4, True),
            ("ResNet-32 in a group of eight", RESNET32, 8, True),
            ("ResNet-32 in a group of eight, not compiled", RESNET32, 8, False),
        ]
    )
    plain = {s.backbone: plain_loop(s, data, args.plain_steps) for _, s, *_ in cases}
    at, rows = rates(DEVICE)["bfloat16"], []
    for name, settings, n, compiled in cases:
        epoch, setup, steps = group(settings, data, n, compiled, args.epochs)
        total = 200 * epoch
        by_hand = 200 * steps * plain[settings.backbone]
        rows.append(
            {
                "case": name,
                "seconds a model": round(total, 1),
                "goal": GOALS.get(name),
                "ms a step": round(1000 * epoch / steps, 3),
                "limit, seconds": round(200 * steps * operations(settings) / at, 1),
                "plain loop, seconds": round(by_hand, 1),
                "ratio": round(total / by_hand, 3),
                "compile and capture, seconds": round(setup, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def classifier(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure stage 2: the augmented stream through the backbone, then the steps of the head."""
    data = random_data(5, 10, 20) if args.quick else random_data()
    stage1 = TINY if args.quick else RESNET34
    backbone = build_method(stage1, data.train.profile.counts, 0).backbone.to(DEVICE)
    if DEVICE.type == "cuda":
        backbone.to(memory_format=torch.channels_last)
    settings = ClassifierSettings(loss_options={"tau": 0.25}, max_steps=args.head_steps)
    driver = "captured" if DEVICE.type == "cuda" else "plain"
    begun = {"pc": replace(settings, max_steps=1)}
    many = {str(i): replace(settings, lr=4.0 / (i + 1)) for i in range(10)}
    rows = []
    for attempt in range(args.attempts + 1):
        frozen = FrozenFeatures(backbone, data, DEVICE)
        stream = seconds_of(partial(frozen.stream, Stream.of(settings), 0, 0))
        learn = partial(learn_heads, frozen=frozen, seed=0, driver=driver)
        # A training of one step costs what recording the steps costs.
        recorded = seconds_of(partial(learn, begun))
        one, ten = (seconds_of(partial(learn, heads)) for heads in ({"pc": settings}, many))
        if attempt == 0:  # libraries start
            continue
        rows.append(
            {
                "augmented stream": stream,
                "record the steps": recorded,
                "782 head steps": one - recorded,
                "stage 2 with augmentation": stream + one,
                "ten heads, recording included": ten,
            }
        )
    middle = {name: round(median(row[name] for row in rows), 4) for name in rows[0]}
    for name, seconds in middle.items():
        print(json.dumps({"case": name, "seconds": seconds, "goal": GOALS.get(name)}), flush=True)
    return [{"case": name, "seconds": seconds} for name, seconds in middle.items()]


# What inductor may do beside its defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "again, from the cache": {},
    "tuned blocks": {"coordinate_descent_tuning": True},
    "combined kernels": {"combo_kernels": True},
    "cooperative reductions": {"triton.cooperative_reductions": True},
    "max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
    "not compiled": {"none": True},
}


def option(name: str, args: argparse.Namespace) -> None:
    """Compile in one way, say so, wait for a line, and measure."""
    settings = RESNET34 if DEVICE.type == "cuda" else TINY
    inductor = dict(OPTIONS[name])
    compiled = not inductor.pop("none", False) and DEVICE.type == "cuda"
    if inductor:
        from torch._inductor import config

        for key, value in inductor.items():
            setattr(config.triton if "." in key else config, key.split(".")[-1], value)
    begin = time.perf_counter()
    training = RepresentationTraining(
        replace(settings, epochs=10**6 if DEVICE.type == "cuda" else 3),
        random_data() if DEVICE.type == "cuda" else random_data(5, 10, 20),
        seed=0,
        device=DEVICE,
        captured=DEVICE.type == "cuda",
        compiled=compiled,
    )
    steps = training.steps()
    first = seconds_of(lambda: [next(steps) for _ in range(2)])
    print("ready", flush=True)
    sys.stdin.readline()
    n_steps = 2 * training.steps_an_epoch
    if DEVICE.type == "cuda":
        seconds_of(lambda: [next(steps) for _ in range(n_steps)])
    else:
        n_steps = 2
    step = seconds_of(lambda: [next(steps) for _ in range(n_steps)]) / n_steps
    kernels = by_kernel(lambda _: next(steps), DEVICE, 20)
    row = {"case": name, "ms a step": 1000 * step, "first steps, seconds": first}
    row |= {"seconds for 200 epochs": 200 * training.steps_an_epoch * step}
    print(json.dumps({**row, "begin": time.perf_counter() - begin, "kernels us": kernels}))


def options(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all options of a step."""
    names = ["as it is", "not compiled"] if args.quick else list(OPTIONS)
    last = "again, from the cache"
    command = [sys.executable, __file__, *(["--quick"] if args.quick else []), "--option"]
    begin, rows = time.perf_counter(), []

    def start(name: str) -> Any:
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        pipes["env"] = environment
        return subprocess.Popen([*command, name], **pipes)

    started = {name: start(name) for name in names if name != last}
    for name in names:
        process = started.get(name) or start(name)
        if name != last:
            # All have compiled before the first is measured; what takes too long is left out.
            for other in [process] if rows else started.values():
                waited = time.perf_counter() - begin
                _ready(other, max(1.0, args.seconds - waited))
        else:
            _ready(process, 60)
        if process.poll() is not None:
            continue
        found = process.communicate("go\n")[0].strip().splitlines()
        if found:
            rows.append(json.loads(found[-1]))
            print({k: v for k, v in rows[-1].items() if k != "kernels us"}, flush=True)
    return rows


def _ready(process: Any, seconds: float) -> None:
    """Wait until a process has compiled, or end it."""
    if process.poll() is not None or getattr(process, "said", False):
        return
    import select

    readable, _, _ = select.select([process.stdout], [], [], seconds)
    process.said = bool(readable) and process.stdout.readline() == "ready\n"
    if not process.said:
        process.kill()
        process.wait()


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"classifier": classifier, "representation": representation, "options": options}
    parser.add_argument("--quick", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--only", nargs="*", choices=list(parts))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--plain-steps", type=int, default=60)
    parser.add_argument("--head-steps", type=int)
    parser.add_argument("--attempts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=150, help="for compiling all options")
    parser.add_argument("--option", choices=list(OPTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    if args.option:
        option(args.option, args)
        return {}
    if args.quick:
        args.epochs, args.plain_steps, args.head_steps, args.attempts = 1, 1, 2, 1
    found: dict[str, Any] = {"command": "python benchmarks/training.py", **hardware(DEVICE)}
    for name in args.only or [each for each in parts if each != "options"]:
        found[name] = parts[name](args)
        write(args.json, found)
    return found


if __name__ == "__main__":
    main()
