"""Rows a second of predicting on a CPU, beside what people would write, and beside the limit.

    python benchmarks/predict.py [--quick] [--json results/speed/predict.json] [--only NUMBER ...]

The other ways are scikit-learn's NearestCentroid, the line that a linear classifier comes to
(``(x @ w + b).argmax(1)``, with the weights of ours) and a flat index of faiss where it is
installed. Calls take turns; times are medians. "CPU ms" counts the time of all threads. The limit
is one product of rows and classes at the rate of large float32 products in the same run (products
in bfloat16 are faster where a CPU has them). "changed" counts the rows that get another class when
they are given in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _data import rows_around
from _gpu import hardware, rates, show, write
from sklearn.neighbors import NearestCentroid

from protail import PrototypeClassifier

Rows = np.ndarray
Predict = Callable[[Rows], np.ndarray]
# Rows, classes, channels, training rows a class.
SIZES = [(10_000, 100, 512, 20), (10_000, 1_000, 512, 20), (2_000, 50_000, 512, 20)]
QUICK = [(50, 20, 8, 3), (140, 530, 500, 2)]
COLUMNS = ("rows", "classes", "channels", "training rows", "way", "fit s", "ms", "CPU ms",
           "rows a second", "limit ms", "changed")  # fmt: skip
# Each class of NearestCentroid takes a pass over all rows: it gets so many of each.
_ROWS_A_CENTROID = 2
_OFTEN = 7


def ways(x: Rows, y: Rows) -> tuple[dict[str, Predict], float]:
    """Fit the classifiers; give what each predicts with, and the seconds that fitting ours took."""
    begin = time.perf_counter()
    ours = PrototypeClassifier(random_state=0).fit(x, y)
    seconds = time.perf_counter() - begin
    few = slice(None, _ROWS_A_CENTROID * len(ours.classes_))  # every class in turn
    centroids = NearestCentroid().fit(x[few], y[few])
    weight, bias = ours.coef_.T.copy(), ours.intercept_
    found: dict[str, Predict] = {
        "protail": ours.predict,
        "nearest centroid": centroids.predict,
        "argmax of x @ w + b": lambda rows: (rows @ weight + bias).argmax(1),
    }
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        index = faiss.IndexFlatL2(x.shape[1])
        index.add(centroids.centroids_.astype(np.float32))
        found["faiss, flat"] = lambda rows: index.search(rows.astype(np.float32), 1)[1][:, 0]
    return found, seconds


def measure(size: tuple[int, int, int, int], rate: float) -> list[dict[str, Any]]:
    """Time all ways in turn."""
    n_rows, n_classes, n_channels, often = size
    rng = np.random.default_rng(0)
    means = 0.25 * rng.standard_normal((n_classes, n_channels), dtype=np.float32)
    y = np.tile(np.arange(n_classes), often)
    tested = rows_around(means, rng.integers(n_classes, size=n_rows), rng)
    calls, fitting = ways(rows_around(means, y, rng), y)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(_OFTEN + 1):
        for name, predict in calls.items():
            begin, cpu = time.perf_counter(), time.process_time()
            predict(tested)
            if turn > 0:  # libraries start
                times[name].append((time.perf_counter() - begin, time.process_time() - cpu))
    found = []
    for name, predict in calls.items():
        seconds, cpu = (median(each) for each in zip(*times[name], strict=True))
        row: dict[str, Any] = {"rows": n_rows, "classes": n_classes, "channels": n_channels}
        row |= {"training rows": len(y), "fit s": fitting if name == "protail" else None}
        row |= {"way": name, "ms": 1000 * seconds, "CPU ms": 1000 * cpu}
        row |= {"rows a second": n_rows / seconds}
        row |= {"limit ms": 2000 * n_rows * n_classes * n_channels / rate}
        row["changed"] = int((predict(tested) != predict(tested.astype(np.float64))).sum())
        found.append(row)
    return found


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the sizes, from 0")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    device = torch.device("cpu")
    at, rows = rates(device), []
    about = {"command": "python benchmarks/predict.py", **hardware(device), "rates": at}
    about |= {"threads": torch.get_num_threads()}
    for number, size in enumerate(QUICK if args.quick else SIZES):
        if args.only and number not in args.only:
            continue
        rows += measure(size, at["float32"])
        write(args.json, {**about, "rows": rows})
    show(rows, COLUMNS)
    return rows


if __name__ == "__main__":
    main()
