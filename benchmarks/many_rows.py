"""Fit, and predict, of more rows than memory should hold: seconds and peak memory.

    python benchmarks/many_rows.py                       # 10,000,000 x 512, a folder of 20 files
    python benchmarks/many_rows.py --rows 500000 --predict

Writes made rows (float16, 1,000 classes, the largest of 100 times the rows of the smallest) to a
folder that is removed at the end, runs the commands in processes of their own, and prints what the
operating system says of their memory: the largest resident set, mapped pages of files included.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from _data import long_tailed_labels

N_CHANNELS, N_CLASSES, N_FILES = 512, 1_000, 20
_SPREAD, _ROWS_AT_A_TIME = 0.25, 50_000


def write(folder, n_rows):
    """Write rows around the means of their classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(long_tailed_labels(n_rows, N_CLASSES))
    means = _SPREAD * rng.standard_normal((N_CLASSES, N_CHANNELS), dtype=np.float32)
    for number, labels in enumerate(np.array_split(y, N_FILES)):
        rows = np.empty((len(labels), N_CHANNELS), np.float16)
        for start in range(0, len(labels), _ROWS_AT_A_TIME):
            some = labels[start : start + _ROWS_AT_A_TIME]
            noise = rng.standard_normal((len(some), N_CHANNELS), dtype=np.float32)
            rows[start : start + len(some)] = means[some] + noise
        np.savez(folder / f"rows-{number:02}.npz", features=rows, labels=labels)


def run(*command):
    """Run a command of protail; give its seconds, its peak memory in MiB, and what it says."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "protail", *map(str, command), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said[-300:]
    return time.perf_counter() - begin, usage.ru_maxrss / 1024, json.loads(said)


def main():
    """Write, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--held-out", default="0.02")
    parser.add_argument("--predict", action="store_true", help="predict all rows too")
    parser.add_argument("--keep", type=Path, help="folder of the rows, kept for the next time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="protail-benchmark-") as temporary:
        folder = given.keep or Path(temporary, "rows")
        model = Path(temporary, "model")
        if not folder.exists():
            folder.mkdir()
            write(folder, given.rows)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(
            f"{given.rows:,} x {N_CHANNELS} float16, {N_CLASSES:,} classes, {size / 2**30:.2f} GiB "
            f"in {N_FILES} files; {psutil.cpu_count(logical=False)} cores, "
            f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
            flush=True,
        )
        seconds, memory, said = run(
            "fit", folder, "-o", model, "--engine", given.engine, "--held-out", given.held_out
        )
        balanced = said["evaluation"]["balanced_accuracy"]
        print(
            f"fit, evaluated on {said['judged_on']}, then on all: {seconds:.0f} s, peak "
            f"{memory:.0f} MiB, balanced accuracy {100 * balanced:.2f} %"
        )
        print(f"  {said['choices']['why']}", flush=True)
        if given.predict:
            output = Path(temporary, "predictions.parquet")
            seconds, memory, said = run("predict", model, folder, "-o", output)
            print(f"predict: {said['rows']:,} rows, {seconds:.0f} s, peak {memory:.0f} MiB")


if __name__ == "__main__":
    main()
