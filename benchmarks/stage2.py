"""Stage 2 on features that are there: steps of a head, of ten heads at once, and of a large one.

    python benchmarks/stage2.py [--quick] [--json results/speed/stage2.json]

50,000 rows of 512 channels and 100 classes, as an epoch of CIFAR-100-LT has; batches of 64; the
recipe's logit-adjusted loss and SGD with momentum. "capture" is what a training of one step takes;
"steps" is the rest. Every number is the median of several attempts. Heads learned in a captured
graph are compared with those learned kernel by kernel (the difference). The large head is that of
iNaturalist18: 437,513 rows of 2,048 channels and 8,142 classes, which lie on the GPU, or stream
from the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _gpu import hardware, show, write
from torch import Tensor

from protail.training.settings import ClassifierSettings
from protail.training.stage2 import learn_heads

Settings = Mapping[str, ClassifierSettings]


class Rows:
    """Features as stage 2 asks for them: random rows around random means."""

    def __init__(self, n_rows: int, n_classes: int, n_features: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self.device, self.n_features = device, n_features
        profile = 500 * 0.01 ** (np.arange(n_classes) / (n_classes - 1))
        self.counts = np.maximum(5, profile).astype(np.int64)
        size = (n_rows,)
        self.labels = torch.randint(n_classes, size, generator=generator, device=device)
        means = torch.randn(n_classes, n_features, generator=generator, device=device)
        noise = torch.randn(n_rows, n_features, generator=generator, device=device)
        for rows in torch.arange(n_rows, device=device).split(2**16):
            noise[rows] += 0.5 * means[self.labels[rows]]
        self.features = noise

    def for_stage(self, settings: ClassifierSettings, seed: int) -> Rows:
        """Give the same rows to every head."""
        return self

    def clean(self, precision: str) -> tuple[Tensor, Tensor]:
        """Give all rows."""
        return self.features, self.labels

    def stream(
        self, stream: object, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give the first rows."""
        return self.features[:n], self.labels[:n]

    def n_draws(self, stream: object, seed: int) -> int:
        """Count the rows."""
        return len(self.labels)


def seconds(settings: Settings, rows: Rows, driver: str) -> float:
    """Time a training."""
    synchronize(rows.device)
    begin = time.perf_counter()
    learn_heads(settings, rows, seed=0, driver=driver)  # type: ignore[arg-type]
    synchronize(rows.device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def learned(settings: Settings, rows: Rows, driver: str) -> Tensor:
    """Give the prototypes that a training comes to."""
    heads: Any = learn_heads(settings, rows, seed=0, driver=driver)  # type: ignore[arg-type]
    return next(iter(heads.values())).prototypes.detach()  # type: ignore[no-any-return]


def row_of(name: str, settings: Settings, rows: Rows, driver: str, attempts: int) -> dict[str, Any]:
    """Measure a case: what a training of one step takes, and what the other steps take."""
    begun = {key: replace(each, max_steps=1) for key, each in settings.items()}
    seconds(begun, rows, driver)
    capture = median(seconds(begun, rows, driver) for _ in range(attempts))
    whole = median(seconds(settings, rows, driver) for _ in range(attempts))
    size = next(iter(settings.values())).batch_size
    n_steps = -(-len(rows.labels) // size)
    return {"case": name, "n steps": n_steps, "capture": capture, "steps": whole - capture}


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small size on the CPU")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.quick else "cpu")
    driver = "captured" if device.type == "cuda" else "plain"
    sizes = (500, 10, 16) if args.quick else (50_000, 100, 512)
    rows = Rows(*sizes, device)
    one = ClassifierSettings(precision="float32", lr=0.5, loss_options={"tau": 0.25})
    n_heads = 3 if args.quick else 10
    cases = {
        "one head": {"0": one},
        f"{n_heads} heads": {str(i): replace(one, lr=1.0 / (i + 1)) for i in range(n_heads)},
    }
    found: list[dict[str, Any]] = []

    def measured(name: str, settings: Settings, rows: Rows, against: Tensor) -> None:
        row = row_of(name, settings, rows, driver, args.attempts)
        row["ms a step"] = 1000 * row["steps"] / row["n steps"]
        row["difference"] = float((learned(settings, rows, driver) - against).abs().max())
        found.append(row)
        print(row, flush=True)
        about = {"command": "python benchmarks/stage2.py", **hardware(device)}
        write(args.json, {**about, "rows": found})

    for name, settings in cases.items():
        measured(name, settings, rows, learned(settings, rows, "plain"))
    del rows
    sizes = (500, 30, 16) if args.quick else (437_513, 8_142, 2_048)
    big = {"0": replace(one, lr=0.1)}
    on_device = Rows(*sizes, device)
    there = learned(big, on_device, driver)
    measured("iNaturalist18, on the device", big, on_device, there)
    on_device.features, on_device.labels = on_device.features.cpu(), on_device.labels.cpu()
    measured("iNaturalist18, from the CPU", big, on_device, there)
    show(found, ("case", "n steps", "capture", "steps", "ms a step", "difference"))
    return found


if __name__ == "__main__":
    main()
