"""The benchmarks run in their quick forms, and write what they found beside the limit."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a benchmark; give what it returns, and what is in its file."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name, *arguments):
        spec = importlib.util.spec_from_file_location(f"benchmark_of_{name}", FOLDER / f"{name}.py")
        benchmark = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, benchmark)  # dataclasses look there
        spec.loader.exec_module(benchmark)
        path = tmp_path / "speed" / "found.json"
        found = benchmark.main(["--quick", "--json", str(path), *arguments])
        return found, json.loads(path.read_text())

    return run


def test_training(run):
    found, written = run("training")
    assert written == found
    assert written["command"] == "python benchmarks/training.py"
    (row,) = found["representation"]
    assert row["limit, seconds"] > 0
    assert row["ratio"] > 0
    assert {"782 head steps", "record the steps"} < {row["case"] for row in found["classifier"]}


def test_predict(run, capsys):
    rows, written = run("predict")
    assert written["rows"] == rows
    assert written["rates"]["float32"] > 0
    for row in rows:
        assert row["limit ms"] > 0
        assert row["rows a second"] == pytest.approx(1000 * row["rows"] / row["ms"])
        assert row["changed"] == 0
    assert capsys.readouterr().out.count("| protail |") == 2


@pytest.mark.filterwarnings("ignore")
def test_estimator(run):
    found, written = run("estimator", "--only", "speed")
    assert written == found
    assert all(0 < row["fit_limit_s"] < row["fit_s"] for row in found["records"])
    assert [verdict["limit"] for verdict in found["verdicts"]] == [0.3, 0.5]


def test_sharded(run):
    found, written = run("sharded")
    assert written["processes"] == found
    (row,) = found
    n_rows, n_channels, n_ranks = written["rows"], written["channels"], row["processes"]
    others = (n_ranks - 1) / n_ranks
    counts, targets = 8 * (n_ranks - 1), 8 * n_rows * others
    rows, parts = 4 * n_rows * n_channels * others, 12 * n_rows * (n_ranks - 1)
    assert row["received KiB a step"] * 1024 == counts + targets + 2 * rows + parts
    nearest = 5 * 16 * n_rows * (n_ranks - 1)
    assert row["received KiB a search"] * 1024 == counts + rows + nearest
    assert row["prototypes MiB"] == row["gradient MiB"] == row["momentum MiB"]
    assert row["prototypes MiB"] * 2**20 == 4 * 501 * n_channels


def test_uses(run, tmp_path):
    found, written = run("uses")
    assert written == found
    added = {each["way"]: each for each in found["adding"]["digits"] if each["added"] == 4}
    assert all(0 <= each[part][0] <= 100 for each in added.values() for part in ("old", "new"))
    assert {each["unseen"] for each in found["novelty"]["digits"]} == {"near", "far"}
    exact, estimated = (
        next(
            each
            for each in found["mixes"]["digits"]
            if (each["mix"], each["head"], each["prior"]) == ("reversed", "default", prior)
        )
        for prior in ("exact", "plain EM")
    )
    assert exact["surprise"] < estimated["surprise"]
    by_finder = {
        each["finder"]: each
        for each in found["noise"]["digits"]
        if "finder" in each and each["wrong"] > 0
    }
    # A fifth of the labels are wrong: a finder that guesses has a precision of a fifth.
    assert all(each["average precision"][0] > 50 for each in by_finder.values())
    before = (tmp_path / "speed" / "found.json").stat().st_mtime_ns
    again, _ = run("uses")  # everything is there already
    assert again == found
    assert (tmp_path / "speed" / "found.json").stat().st_mtime_ns == before
