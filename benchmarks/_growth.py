"""Growth: memory of a fit on rows that lie in a file, and time of a step by number of classes."""

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from _data import long_tailed_labels, rows_around
from _measure import PeakMemory, timed

from protail import PrototypeClassifier, PrototypeHead
from protail.training import PlainDriver, train

N_CHANNELS = 512
_N_CLASSES = 1_000
_SPREAD = 0.25
_ROWS_AT_A_TIME = 50_000
BATCH_SIZE = 64
STEP_CLASSES = (1_000, 10_000, 100_000)
_REPETITIONS = 7


class FileFit(NamedTuple):
    """What a fit on rows in a file took."""

    n_rows: int
    memory: int
    seconds: float


def fit_from_file(n_rows: int, say: Callable[[str], None]) -> FileFit:
    """Fit rows of a memory-mapped file, in a process of its own that has no other memory."""
    with tempfile.TemporaryDirectory(prefix="protail-benchmark-") as folder:
        say(f"writing {n_rows:,} x {N_CHANNELS} float32 to {folder}")
        rows, labels = Path(folder, "rows.npy"), Path(folder, "labels.npy")
        _write(rows, labels, n_rows)
        say("fitting them in a child process")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
            return child.submit(_fit, rows, labels).result()


def _write(rows: Path, labels: Path, n_rows: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.permutation(long_tailed_labels(n_rows, _N_CLASSES))
    np.save(labels, y)
    means = _SPREAD * rng.standard_normal((_N_CLASSES, N_CHANNELS), dtype=np.float32)
    shape = (n_rows, N_CHANNELS)
    x = np.lib.format.open_memmap(rows, mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, n_rows, _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        x[part] = rows_around(means, y[part], rng)
    x.flush()


def _fit(rows: Path, labels: Path) -> FileFit:
    x, y = np.load(rows, mmap_mode="r"), np.load(labels)
    classifier = PrototypeClassifier(random_state=0)
    with PeakMemory() as memory:
        seconds = timed(lambda: classifier.fit(x, y))
    return FileFit(len(x), memory.rise, seconds)


def step_seconds(n_classes: int) -> float:
    """Give the median time of a training step: loss, gradient, optimiser."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(n_classes, N_CHANNELS, generator=generator)
    head = PrototypeHead(n_classes, N_CHANNELS).set_prototypes(means)
    target = torch.randint(n_classes, (BATCH_SIZE,), generator=generator)
    batch = (means[target] + torch.randn(BATCH_SIZE, N_CHANNELS, generator=generator), target)
    optimizer = torch.optim.SGD(head.parameter_groups(), fused=True)
    driver = PlainDriver(lambda given: head.loss(*given), optimizer)
    n_steps = max(3, 200_000 // n_classes)

    def steps() -> None:
        train(driver, repeat(batch), n_steps)

    steps()
    return median(timed(steps) for _ in range(_REPETITIONS)) / n_steps
