"""Rows in many files: fit and predict of a folder, a pattern, a list, and by Ray."""

import csv
import json
import sys

import numpy as np
import pytest

from protail import PrototypeClassifier
from protail.cli import sources
from reference.rows import long_tailed_rows

COUNTS = (3000, 900, 300, 90, 30)
CUTS = (1000, 1010, 4000)


@pytest.fixture
def shards(tmp_path):
    rows, labels = long_tailed_rows(COUNTS)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, labels = rows[order], labels[order]
    np.savez(tmp_path / "whole.npz", X=rows, y=labels)
    (tmp_path / "rows").mkdir()
    for number, part in enumerate(np.split(np.arange(len(rows)), CUTS)):
        np.savez(tmp_path / "rows" / f"{number}.npz", X=rows[part], y=labels[part])
    return rows


def same(first, second, tolerance=0.0):
    one, other = map(PrototypeClassifier.load, (first, second))
    assert one.choices_["ridge"] == other.choices_["ridge"]
    for name in ("class_means_", "covariance_", "coef_"):
        a, b = getattr(one, name), getattr(other, name)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), name


def test_files_are_fitted_as_one(shards, protail, tmp_path):
    assert protail("fit", "whole.npz", "-o", "whole", "--held-out", "0").code == 0
    files = [f"rows/{number}.npz" for number in range(4)]
    ways = {"a": ["rows"], "b": ["rows/*.npz"], "c": files, "d": [f"file://{tmp_path}/rows"]}
    for name, given in ways.items():
        ended = protail("fit", *given, "-o", name, "--held-out", "0")
        assert ended.code == 0, ended.err
        assert ", 4 files: 4,320 rows of 6 numbers" in ended.err + ended.out
        same(name, "whole")


def test_predictions_go_on_in_the_file_where_they_were(shards, protail, monkeypatch):
    protail("fit", "rows", "-o", "model", "--held-out", "0")
    assert protail("predict", "model", "rows", "-o", "all.csv").code == 0
    calls, ask = [], sources.ask

    def stopped(*given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ask(*given)

    monkeypatch.setattr(sources, "ask", stopped)
    assert protail("predict", "model", "rows", "-o", "again.csv").code == 130
    ended = protail("predict", "model", "rows", "-o", "again.csv", "--json")
    assert ended.json["rows_from_earlier_start"] == CUTS[1]
    with open("all.csv", newline="") as first, open("again.csv", newline="") as second:
        assert first.read() == second.read()
        first.seek(0)
        found = list(csv.DictReader(first))
    assert [row["file"] for row in found[999:1011]] == [
        *["rows/0.npz"],
        *["rows/1.npz"] * 10,
        "rows/2.npz",
    ]
    assert found[1010]["row"] == "0"


@pytest.fixture
def tables(tmp_path):
    """train.csv, and in ``new`` the same rows: columns in another order, one more, no labels."""
    rows, labels = long_tailed_rows(width=3)
    columns = dict(zip(("a", "b", "c"), rows.T, strict=True))
    (tmp_path / "new").mkdir()
    for name, table in {
        "train": columns | {"label": labels},
        "new/1": columns,
        "new/2": {"label": labels, "c": rows[:, 2], "b": rows[:, 1], "a": rows[:, 0]},
        "new/3": {"score": -labels} | columns,
    }.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])
    return len(rows)


def test_files_need_the_columns_of_the_model_only(tables, protail):
    assert protail("fit", "train.csv", "-o", "model").code == 0
    ended = protail("predict", "model", "new", "-o", "new.csv")
    assert ended.code == 0, ended.err
    with open("new.csv", newline="") as file:
        found = [row["label"] for row in csv.DictReader(file)]
    assert found[:tables] == found[tables : 2 * tables] == found[2 * tables :]
    ended = protail("evaluate", "model", "new")
    assert ended.code == 2
    assert "new/1.csv" in ended.last_line
    assert "labels" in ended.last_line


def test_a_folder_to_test_on_has_the_columns_of_the_training_file(tables, protail, tmp_path):
    (tmp_path / "new" / "1.csv").write_text((tmp_path / "train.csv").read_text())
    (tmp_path / "new" / "3.csv").unlink()
    ended = protail("fit", "train.csv", "-o", "model", "--test", "new")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_models_may_lie_beside_the_rows_of_a_folder(form, birds, protail, tmp_path):
    (tmp_path / "rows").mkdir()
    if form == "npz":
        (tmp_path / "birds.npz").rename(tmp_path / "rows" / "birds.npz")
    else:
        rows, labels = long_tailed_rows()
        table = [["a", "b", "c", "label"], *zip(*rows.T[:3], labels, strict=True)]
        with (tmp_path / "rows" / "birds.csv").open("w", newline="") as file:
            csv.writer(file).writerows(table)
    for name in ("rows/one", "rows/two"):
        ended = protail("fit", "rows", "-o", name)
        assert ended.code == 0, ended.err
        assert (tmp_path / name / "accuracy.png").exists()


def test_a_folder_of_photos_may_hold_a_table_about_them(tmp_path):
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "1.jpg").touch()
    (tmp_path / "about.csv").write_text("id,label\n1,ant\n")
    assert sources.is_of_photos(tmp_path)


def test_what_cannot_be(shards, protail, tmp_path, monkeypatch):
    (tmp_path / "photos" / "ant").mkdir(parents=True)
    ended = protail("fit", "photos", "rows", "-o", "model")
    assert ended.code == 2
    assert "photos holds photos, and 2 paths were given" in ended.last_line
    ended = protail("fit", "photos", "-o", "model", "--engine", "ray")
    assert "--engine cannot be used here: photos holds photos" in ended.last_line
    ended = protail("fit", "none/*.npz", "-o", "model")
    assert ended.code == 2
    assert "none/*.npz: there is no file that this pattern fits" in ended.last_line
    assert (
        "--engine dask is unknown"
        in protail("fit", "rows", "-o", "model", "--engine", "dask").last_line
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = protail("fit", "rows", "-o", "model", "--engine", "ray")
    assert ended.code == 2
    assert "the engine ray needs ray, which is not installed. Install it:" in ended.last_line
    assert "[ray]" in ended.last_line
    assert not (tmp_path / "model").exists()


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # nothing is kept in the home folder
    ray.init(
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_says_what_one_process_says(shards, cluster, protail, tmp_path):
    words = ["--held-out", "0", "--json"]
    plain = protail("fit", "whole.npz", "-o", "one", *words)
    spread = protail("fit", "rows", "-o", "many", "--engine", "ray", *words)
    assert spread.code == 0, spread.err
    same("many", "one", 1e-6)
    assert spread.json["found"] == plain.json["found"]
    for engine in ("ray", "local"):
        words = ["many", "rows/2.npz", "-o", f"{engine}.jsonl", "-k", "2", "--engine", engine]
        ended = protail("predict", *words, "--json")
        assert ended.json["rows"] == CUTS[2] - CUTS[1], ended.err
    texts = [(tmp_path / f"{name}.jsonl").read_text() for name in ("ray", "local")]
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for spread, plain in zip(*lines, strict=True):
        assert [spread[name] for name in ("file", "row", "label", "label_2")] == [
            plain[name] for name in ("file", "row", "label", "label_2")
        ]
        assert spread["probability"] == pytest.approx(plain["probability"], abs=1e-6)
