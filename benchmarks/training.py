"""How long training takes: captured, several at once, beside a plain PyTorch loop.

    python benchmarks/training.py [--only NAME ...] [--epochs 4] [--json FILE]

Steps are timed over whole epochs (GPU events around them, the median of several) and laid out to
the length of the paper's trainings; compiling and recording a step are timed apart. Images are
random: time does not hang on what they show.
"""

from __future__ import annotations

import argparse
import json
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


def random_data(n_classes: int = 100, imbalance: float = 100) -> DataSet:
    """Make random images with the counts of CIFAR-100-LT."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), long_tailed_counts(500, n_classes, imbalance, "exp"))
    pixels = rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    classes = tuple(str(c) for c in range(n_classes))
    train = ImageSet(labels, classes, pixels)
    return DataSet("random", train, train.subset(np.arange(n_classes)), None, {})


RESNET34 = RepresentationSettings()
RESNET32 = RepresentationSettings(backbone="resnet32", batch_size=128, lr=0.1, weight_decay=2e-4)


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


def representation(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure stage 1."""
    data = random_data()
    cases = [
        ("ResNet-34 alone", RESNET34, 1, True),
        ("ResNet-34 alone, not compiled", RESNET34, 1, False),
        ("ResNet-34 in a group of four", RESNET34, 4, True),
        ("ResNet-32 in a group of eight", RESNET32, 8, True),
        ("ResNet-32 in a group of eight, not compiled", RESNET32, 8, False),
    ]
    plain = {s.backbone: plain_loop(s, data, args.plain_steps) for s in (RESNET34, RESNET32)}
    rows = []
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
                "plain loop, seconds": round(by_hand, 1),
                "ratio": round(total / by_hand, 3),
                "compile and capture, seconds": round(setup, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def classifier(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure stage 2: the augmented stream through the backbone, then the steps of the head."""
    data = random_data()
    backbone = build_method(RESNET34, data.train.profile.counts, 0).backbone.to(DEVICE)
    if DEVICE.type == "cuda":
        backbone.to(memory_format=torch.channels_last)
    settings = ClassifierSettings(loss_options={"tau": 0.25}, max_steps=args.head_steps)
    driver = "captured" if DEVICE.type == "cuda" else "plain"
    begun = {"pc": replace(settings, max_steps=1)}
    many = {str(i): replace(settings, lr=4.0 / (i + 1)) for i in range(10)}
    rows = []
    for _ in range(args.attempts):
        frozen = FrozenFeatures(backbone, data, DEVICE)
        stream = seconds_of(partial(frozen.stream, Stream.of(settings), 0, 0))
        learn = partial(learn_heads, frozen=frozen, seed=0, driver=driver)
        # A training of one step costs what recording the steps costs.
        recorded = seconds_of(partial(learn, begun))
        one, ten = (seconds_of(partial(learn, heads)) for heads in ({"pc": settings}, many))
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=["representation", "classifier"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--plain-steps", type=int, default=60)
    parser.add_argument("--head-steps", type=int)
    parser.add_argument("--attempts", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    parts = {"classifier": classifier, "representation": representation}
    results = {name: run(args) for name, run in parts.items() if name in (args.only or parts)}
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
