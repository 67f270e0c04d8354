"""Speed, memory and accuracy of PrototypeClassifier beside what people would pick instead.

    python benchmarks/estimator.py [--quick] [--only quality|speed|growth] [--data NAME ...]
        [--json FILE]

Memory is the rise of anonymous memory (RssAnon of /proc/self/status, the resident set elsewhere)
during a fit, sampled by a thread every 10 ms. Times are processor seconds of all threads (set
OMP_NUM_THREADS=1), medians of calls that take turns: 3 fits and 7 predictions at least; a fit of
over 60 s or a prediction of over 5 s is timed once. Limits are
what no whitened or linear classifier can do without, at the rate of large products in the same
run: one product of the training rows with themselves, and one of the test rows with all classes.
Accuracy is the mean over classes, by shot group of the training set.
"""

import argparse
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from _data import Split, data_sets
from _gpu import hardware, rates, write
from _growth import BATCH_SIZE, N_CHANNELS, STEP_CLASSES, fit_from_file, step_seconds
from _measure import MIB, PeakMemory, group_accuracies, interleaved_times, timed
from rich.console import Console
from rich.table import Table
from sklearn.base import ClassifierMixin
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from protail import PrototypeClassifier

OURS, CENTROID, LOGISTIC = "prototypes", "nearest centroid", "logistic regression"
GROUPS = ("many", "medium", "few", "all")
FIT_REPETITIONS, PREDICT_REPETITIONS = 3, 7
LONG_FIT_S, LONG_PREDICT_S = 60.0, 5.0
MEMORY_LIMIT_MIB = 1536
# Time by step and class may differ this much between the smallest head, which a CPU's cache holds,
# and the largest, which comes from memory at every step.
LINEAR_WITHIN = 3.0
_QUIET_LOAD = 0.5

Record = dict[str, Any]
console = Console()
if not console.is_terminal:
    console = Console(width=110)


def new_classifiers(n_classes: int) -> dict[str, Callable[[], ClassifierMixin]]:
    """Name what makes each classifier."""
    uniform = np.full(n_classes, 1 / n_classes)
    return {
        OURS: lambda: PrototypeClassifier(random_state=0),
        CENTROID: NearestCentroid,
        LOGISTIC: lambda: LogisticRegression(class_weight="balanced", max_iter=1000),
        "ridge": lambda: RidgeClassifier(class_weight="balanced"),
        "LDA": lambda: LinearDiscriminantAnalysis(priors=uniform),
        "10-NN": lambda: KNeighborsClassifier(10),
    }


def measure_split(name: str, split: Split, repeat: bool) -> list[Record]:
    """Fit and score every classifier on one split."""
    makers = new_classifiers(len(np.unique(split.y_train)))
    fitted, records = {}, {}
    for classifier, make in makers.items():
        model = make()
        with PeakMemory() as memory:
            seconds = timed(lambda model=model: model.fit(split.x_train, split.y_train))
        fitted[classifier] = model
        record = {"data": name, "classifier": classifier, "fit_s": seconds}
        record["memory_mib"] = memory.rise / MIB
        if classifier == LOGISTIC:
            record["iterations"] = int(np.max(model.n_iter_))
        if not repeat:
            predicted = model.predict(split.x_test)
            record |= group_accuracies(split.y_train, split.y_test, predicted)
        records[classifier] = record
    if repeat:
        _time_again(makers, fitted, records, split)
    return list(records.values())


def _time_again(
    makers: dict[str, Callable[[], ClassifierMixin]],
    fitted: dict[str, ClassifierMixin],
    records: dict[str, Record],
    split: Split,
) -> None:
    fits = {
        name: lambda make=make: make().fit(split.x_train, split.y_train)
        for name, make in makers.items()
        if records[name]["fit_s"] < LONG_FIT_S
    }
    for name, seconds in interleaved_times(fits, FIT_REPETITIONS, LONG_FIT_S).items():
        records[name]["fit_s"] = seconds
    answers: dict[str, np.ndarray] = {}
    predictions = {
        name: lambda name=name, model=model: answers.update({name: model.predict(split.x_test)})
        for name, model in fitted.items()
    }
    times = interleaved_times(predictions, PREDICT_REPETITIONS, LONG_PREDICT_S)
    for name, seconds in times.items():
        records[name]["predict_s"] = seconds
    for name, predicted in answers.items():
        records[name] |= group_accuracies(split.y_train, split.y_test, predicted)


def measure(name: str, splits: list[Split], repeat: bool) -> list[Record]:
    """Measure on every split: times are medians over them, all else means."""
    found = [measure_split(name, split, repeat) for split in splits]
    merged = []
    for same in zip(*found, strict=True):
        record = dict(same[0])
        for key, value in record.items():
            if isinstance(value, int | float):
                average = np.median if key.endswith("_s") else np.mean
                record[key] = float(average([one[key] for one in same]))
        merged.append(record)
    return merged


def add_limits(records: list[Record], split: Split, rate: float) -> None:
    """Say what the products take at the least."""
    n_rows, n_channels = split.x_train.shape
    n_classes = len(np.unique(split.y_train))
    for record in records:
        record["fit_limit_s"] = n_rows * n_channels * (n_channels + 1) / rate
        record["predict_limit_s"] = 2 * len(split.x_test) * n_channels * n_classes / rate


def show_data_set(records: list[Record], title: str) -> None:
    """Print one line a classifier."""
    limits = (1000 * records[0][key] for key in ("fit_limit_s", "predict_limit_s"))
    title += "; at least {:.2g} ms to fit, {:.2g} ms to predict".format(*limits)
    table = Table(title=title, title_justify="left")
    table.add_column("classifier")
    for column in ("fit ms", "predict ms", "memory MiB", *GROUPS):
        table.add_column(column, justify="right")
    best = max(record["all"] for record in records if record["classifier"] != OURS)
    for record in records:
        name, accuracies = record["classifier"], [_number(record[group]) for group in GROUPS]
        if "iterations" in record:
            name += f", {record['iterations']:.0f} iterations"
        if name == OURS:
            accuracies[-1] += f" ({record['all'] - best:+.1f})"
        predict = record.get("predict_s", np.nan)
        table.add_row(
            name,
            _number(1000 * record["fit_s"]),
            _number(1000 * predict, 2),
            _number(record["memory_mib"]),
            *accuracies,
        )
    console.print(table)


def _number(value: float, digits: int = 1) -> str:
    return "-" if np.isnan(value) else f"{value:,.{digits}f}"


def ratios(records: list[Record]) -> list[Record]:
    """Compare our fit with logistic regression's and our predict with nearest centroid's.

    Not on sets of a few hundred rows: there a fit of logistic regression takes milliseconds, and
    ours about a second, most of it spent on trying plans on held-out rows.
    """
    by_name = {(record["data"], record["classifier"]): record for record in records}
    found = []
    for data in dict.fromkeys(record["data"] for record in records if _is_large(record)):
        for key, rival, limit in (("fit_s", LOGISTIC, 0.3), ("predict_s", CENTROID, 0.5)):
            ratio = by_name[data, OURS][key] / by_name[data, rival][key]
            found.append(_verdict(data, f"{key[:-2]} / {rival} {key[:-2]}", ratio, limit))
    return found


def _is_large(record: Record) -> bool:
    return record["data"].startswith(("resnet", "synthetic"))


def _verdict(data: str, what: str, value: float, limit: float) -> Record:
    return {"data": data, "what": what, "value": value, "limit": limit, "passes": value <= limit}


def show_verdicts(verdicts: list[Record], title: str) -> None:
    """Print what was found beside what is allowed."""
    table = Table(title=title, title_justify="left")
    table.add_column("data")
    table.add_column("what")
    for column in ("found", "limit", ""):
        table.add_column(column, justify="right")
    for verdict in verdicts:
        mark = "[green]PASS[/]" if verdict["passes"] else "[bold red]FAIL[/]"
        found, limit = (f"{verdict[key]:,.3g}" for key in ("value", "limit"))
        table.add_row(verdict["data"], verdict["what"], found, limit, mark)
    console.print(table)


def measure_growth(quick: bool) -> tuple[list[Record], list[Record]]:
    """Fit rows from a file and time steps of larger and larger heads."""
    fit = fit_from_file(5_000 if quick else 2_000_000, _say)
    rows = f"{fit.n_rows:,} x {N_CHANNELS} from a file"
    records = [{"data": rows, "fit_s": fit.seconds, "memory_mib": fit.memory / MIB}]
    verdicts = [_verdict(rows, "memory of the fit, MiB", fit.memory / MIB, MEMORY_LIMIT_MIB)]
    table = Table(title=f"one step, {N_CHANNELS} channels, batch {BATCH_SIZE}")
    for column in ("classes", "ms a step", "us a step and class"):
        table.add_column(column, justify="right")
    sizes = (100, 200) if quick else STEP_CLASSES
    times = {n: step_seconds(n) for n in sizes}
    for n, seconds in times.items():
        table.add_row(f"{n:,}", f"{1e3 * seconds:,.2f}", f"{1e6 * seconds / n:.3f}")
        records.append({"data": f"{n} classes", "step_s": seconds})
    console.print(f"{rows}: fitted in {fit.seconds:.1f} s")
    console.print(table)
    by_class = [seconds / n for n, seconds in times.items()]
    growth = by_class[-1] / by_class[0]
    what = f"time by step and class, {sizes[-1]:,} / {sizes[0]:,} classes"
    verdicts.append(_verdict("steps", what, growth, LINEAR_WITHIN))
    return records, verdicts


def _say(text: str) -> None:
    console.print(text, style="dim")


def _warm_up() -> None:
    """Let every library start its threads before anything is timed."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 8), dtype=np.float32), np.arange(200) % 4
    for make in new_classifiers(4).values():
        make().fit(x, y).predict(x)


def describe_machine() -> None:
    """Print what the numbers depend on, and whether they can be trusted."""
    n_cores = os.cpu_count() or 1
    console.print(
        f"{platform.machine()}, {n_cores} cores, {torch.get_num_threads()} torch threads, "
        f"torch {torch.__version__}, scikit-learn {sklearn.__version__}"
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _QUIET_LOAD * n_cores:
        console.print(f"[yellow]The machine is busy (load {load:.1f}): times will be too long.[/]")


def main(arguments: list[str] | None = None) -> Record:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few small sets, one split each")
    parser.add_argument("--only", choices=("quality", "speed", "growth"), help="one part")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="sets whose name begins so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    # Ridge and LDA warn of collinear columns, logistic regression of its iterations.
    warnings.simplefilter("ignore")
    describe_machine()
    at = rates(torch.device("cpu"))
    records: list[Record] = []
    verdicts: list[Record] = []
    about = {"command": "python benchmarks/estimator.py", **hardware(torch.device("cpu"))}
    about |= {"threads": torch.get_num_threads(), "rates": at}
    everything = {**about, "records": records, "verdicts": verdicts}
    if options.only != "growth":
        _warm_up()
        for name, load in data_sets(options.quick, _say):
            if options.data and not name.startswith(tuple(options.data)):
                continue
            splits = load()
            shape = splits[0].x_train.shape
            title = f"{name}: {shape[0]:,} x {shape[1]}, {len(splits)} split(s)"
            found = measure(name, splits, repeat=options.only != "quality")
            add_limits(found, splits[0], at["float32"])
            show_data_set(found, title)
            records += found
            write(options.json, everything)
    if options.only in (None, "speed"):
        verdicts += ratios(records)
        show_verdicts(verdicts, "speed: prototypes against a rival")
    if options.only in (None, "growth"):
        grown, growth_verdicts = measure_growth(options.quick)
        show_verdicts(growth_verdicts, "growth")
        records += grown
        verdicts += growth_verdicts
    write(options.json, everything)
    return everything


if __name__ == "__main__":
    main()
