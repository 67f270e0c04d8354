"""Whether reading keeps a GPU busy: ResNet-50 on photos in files, read and augmented by workers.

    python benchmarks/loader.py FOLDER [--backbone resnet50] [--batch 64] [--epochs 2] [--json FILE]

FOLDER has a folder of photos for every class. Three things are timed alone, then together: what one
worker takes for a photo, what all of them hand over in a second, and a training step on images that
are on the GPU already. *Busy* is the time of the kernels of a step over the time of a step of the
training, workers started anew for every epoch included.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu import hardware, write

from protail.data.augment import InputSpec, make_loader_transform
from protail.data.images import DataSet, load_dataset, require_images
from protail.training import RepresentationSettings, RepresentationTraining
from protail.training.batches import FileLoader

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAYS = {
    "plain": {},
    "captured": {"captured": True},
    "compiled and captured": {"captured": True, "compiled": True},
}


def wait() -> None:
    """Wait until the GPU has done what was asked."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[int], Any], n: int) -> float:
    """Time a call, after one that is not counted."""
    work(0)
    begin = time.perf_counter()
    for number in range(n):
        work(number)
    return 1000 * (time.perf_counter() - begin) / n


def one_worker(data: DataSet, augment: tuple[str, ...], n: int = 300) -> dict[str, float]:
    """Time what a worker does for a photo."""
    rows = np.random.default_rng(0).integers(0, len(data.train), n)
    transform = make_loader_transform(augment, InputSpec())
    images = [data.train.image(int(row)) for row in rows]
    levels = [transform.levels(image, 0, 0) for image in images[:64]]
    return {
        "read and decode, ms": milliseconds(lambda i: data.train.image(int(rows[i])), n),
        "augment, ms": milliseconds(lambda i: transform.levels(images[i], i, 0), n),
        "put into a batch, ms": milliseconds(lambda i: torch.stack(levels), 20) / len(levels),
    }


def reading(training: RepresentationTraining, n_steps: int) -> dict[str, float]:
    """Time workers alone: nothing takes what they read."""
    begin = time.perf_counter()
    batches = training.loader.batches(training._sampler, training._batch_size, 0)
    next(batches)
    first = time.perf_counter()
    n = sum(1 for _ in islice(batches, n_steps))
    rate = n * training._batch_size / (time.perf_counter() - first)
    return {"first batch after, s": first - begin, "images a second": rate}


def step_alone(training: RepresentationTraining, n_steps: int) -> dict[str, float]:
    """Time steps on one batch, and the kernels in them."""
    training.method.train()
    batch = training._images(next(iter(training._batches(0))))
    advance = training._driver.advance
    for _ in range(5):
        advance(batch)
    wait()
    begin = time.perf_counter()
    for _ in range(n_steps):
        advance(batch)
    wait()
    found = {"step alone, ms": 1000 * (time.perf_counter() - begin) / n_steps}
    if DEVICE.type == "cuda":
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
            for _ in range(10):
                advance(batch)
            wait()
        total = sum(each.self_device_time_total for each in profile.key_averages())
        found["kernels of a step, ms"] = total / 10 / 1000
    return found


def together(training: RepresentationTraining, n_epochs: int) -> dict[str, float]:
    """Time whole epochs of the training, what comes before their first batches included."""
    waited, steps = 0.0, 0
    begin = time.perf_counter()
    for epoch in range(n_epochs):
        batches: Iterator[Any] = iter(training._batches(epoch))
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            training._driver.advance(batch)
            steps += 1
    wait()
    seconds = time.perf_counter() - begin
    n_images = n_epochs * len(training._sampler)
    return {
        "images a second": n_images / seconds,
        "step, ms": 1000 * seconds / steps,
        "of it waiting for workers, ms": 1000 * waited / steps,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch", type=int, nargs="*", default=[64])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    data = require_images(load_dataset(args.folder), "train on")
    augment = ("resized-crop", "flip")
    found: dict[str, Any] = {
        **hardware(DEVICE),
        "cores": len(os.sched_getaffinity(0)),
        "workers": FileLoader.workers,
        "a worker, for a photo": one_worker(data, augment),
        "ways": [],
    }
    print(found, flush=True)
    for size in args.batch:
        settings = RepresentationSettings(
            backbone=args.backbone, augment=augment, batch_size=size, weight_decay=5e-4
        )
        for way in args.ways:
            how: Any = WAYS[way] if DEVICE.type == "cuda" else {}
            training = RepresentationTraining(settings, data, seed=0, device=DEVICE, **how)
            row: dict[str, Any] = {"batch": size, "way": way}
            if "workers alone" not in found:
                found["workers alone"] = reading(training, 4 * args.steps)
                print(found["workers alone"], flush=True)
            row |= step_alone(training, args.steps)
            row |= together(training, args.epochs)
            if "kernels of a step, ms" in row:
                row["busy"] = row["kernels of a step, ms"] / row["step, ms"]
            found["ways"].append(row)
            print(row, flush=True)
            write(args.json, found)
            del training
            gc.collect()


if __name__ == "__main__":
    main()
