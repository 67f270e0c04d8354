"""The leaderboard on frozen features: fair subsets, ranks by hand, a page that is its results."""

import json

import numpy as np
import pytest

from protail_paper import frozen
from protail_paper.frozen import FOLDER, SCORES, Board, Problem, problems, run_board, scores_of
from protail_paper.paper_page import fill, numbers_without_address
from protail_paper.results import Results
from reference.bench_command import run
from reference.documents import ROOT

EVERYWHERE = ("nearest class mean", "ridge, balanced")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Eight classes of 40 rows, of which the first is a little apart."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 40)
    x = rng.normal(size=(8, 5))[y] + 0.4 * rng.normal(size=(320, 5))
    np.savez(folder / "blobs.npz", x=x.astype(np.float16), y=y)
    parts = {"x_train": x[::2], "y_train": y[::2], "x_test": x[1::2], "y_test": y[1::2]}
    np.savez(folder / "split.npz", **parts)
    return folder


@pytest.fixture(scope="module")
def results(features, tmp_path_factory):
    """A folder of results with two heads on three sets, and one on the first."""
    folder = tmp_path_factory.mktemp("results")
    only = [word for name in EVERYWHERE for word in ("--only", f"*, {name}")]
    ended = run("frozen", features, *only, "--only", "blobs-10, pc-la", folder=folder)
    assert ended.exit_code == 0, ended.output
    assert "7 results were run" in ended.stderr
    return folder


def test_a_result_is_kept_as_a_file_that_says_all_of_it(results):
    record = json.loads((results / FOLDER / "blobs-10" / "pc-la.json").read_text())
    assert {key: len(record[key]) for key in SCORES} == dict.fromkeys(SCORES, 5)
    assert record["command"] == "protail bench frozen FEATURES --only 'blobs-10, pc-la'"
    assert (record["counts"], record["classes"], record["channels"]) == ([20, 2], 8, 5)
    assert 12.5 < np.mean(record["balanced"]) <= 100
    assert np.mean(record["likelihood"]) < 0
    ridge = json.loads((results / FOLDER / "blobs-10" / "ridge, balanced.json").read_text())
    assert ridge["likelihood"] == [None] * 5


def test_it_goes_on_with_what_is_missing(results, features):
    before = {file: file.stat().st_mtime_ns for file in results.rglob("*.json")}
    ended = run("frozen", features, "--only", "*, ridge, balanced", folder=results)
    assert "0 results were run" in ended.stderr
    ended = run("frozen", features, "--budget", "0.000001s", folder=results)
    assert "0 results were run" in ended.stderr
    assert before == {file: file.stat().st_mtime_ns for file in results.rglob("*.json")}


def test_status_names_what_is_missing(results):
    place = results / FOLDER / "kinds_use-10" / "crt.json"
    place.parent.mkdir()
    place.write_bytes((results / FOLDER / "blobs-10" / "pc-la.json").read_bytes())
    ended = run("status", "--json", folder=results)
    missing = json.loads(ended.stdout)["frozen"]
    assert missing == Board(results / FOLDER).missing
    assert "kinds_use-10, PrototypeClassifier" in missing
    assert "kinds_use-10, crt" not in missing
    assert not any("resnet34-10," in each for each in missing)
    assert Board(results / FOLDER).sets == []


def test_a_folder_that_is_not_there(tmp_path):
    ended = run("frozen", tmp_path / "nowhere", folder=tmp_path)
    assert ended.exit_code == 2
    assert "expected folders of features" in ended.stderr
    assert run("frozen", folder=tmp_path).exit_code == 2


@pytest.mark.parametrize("text", ["", "[]", '{"balanced": [1]}'])
def test_a_damaged_result_is_named(text, tmp_path):
    (tmp_path / "blobs-10").mkdir()
    (tmp_path / "blobs-10" / "pc.json").write_text(text)
    with pytest.raises(ValueError, match=r"pc\.json is no result: it cannot be read\. Remove it\."):
        Board(tmp_path)


@pytest.fixture
def no_heads(monkeypatch):
    """No head comes with protail."""
    monkeypatch.setitem(frozen.KNOWN, "classifiers", {})
    monkeypatch.setitem(frozen.KNOWN, "recipes", [])


def test_one_file_adds_a_row(features, tmp_path, no_heads):
    heads = tmp_path / "heads"
    heads.mkdir()
    (heads / "guess.py").write_text(
        "from sklearn.dummy import DummyClassifier\n\n\ndef make():\n    return DummyClassifier()\n"
    )
    (heads / "squares.toml").write_text(
        'title = "Squares"\n[representation]\nextends = "wd"\n'
        '[classifier]\nextends = "pc-sqeuclidean"\ntau = 0.5\n'
    )
    assert run_board([features / "split.npz"], tmp_path, only=["*, guess", "*, squares"]) == 2
    board = Board(tmp_path)
    assert board.average("guess", "*", "balanced") == pytest.approx(12.5)
    assert list(board.ranked()) == ["squares", "guess"]


def test_subsets_differ_and_no_row_is_learned_and_tested(features):
    found = list(problems(features / "blobs.npz", 100))
    assert len(found) == 5
    again = next(problems(features / "blobs.npz", 100))
    assert np.array_equal(found[0].x, again.x)
    assert not np.array_equal(found[0].x, found[1].x)
    for one in found:
        assert np.bincount(one.y).tolist() == [20, 13, 8, 6, 4, 2, 2, 1]
        assert np.bincount(one.y_test).tolist() == [20] * 8
        together = np.concatenate([one.x, one.x_test])
        assert len(np.unique(together, axis=0)) == len(together)


def test_rows_that_are_split_already_are_one_subset(features):
    [only] = problems(features / "split.npz", 100)
    assert (len(only.x), len(only.x_test)) == (160, 160)


def test_scores_by_hand():
    y, y_test = np.repeat([0, 1, 2], [4, 2, 1]), np.array([0, 0, 1, 1, 2])
    problem = Problem(np.zeros((7, 1)), y, np.zeros((5, 1)), y_test)
    chances = np.full((5, 3), 0.2)
    chances[np.arange(5), [0, 1, 1, 1, 2]] = 0.6
    scores = scores_of(problem, (np.array([0, 1, 1, 1, 2]), chances, 2.0))
    logs = [(np.log(0.6) + np.log(0.2)) / 2, np.log(0.6), np.log(0.6)]
    expected = [250 / 3, 50, 100, 100, np.mean(logs), 2.0]
    assert list(scores.values()) == pytest.approx(expected, abs=1e-3)


def test_one_that_diverges_gets_nothing_right(features, monkeypatch):
    def diverge(*arguments):
        raise frozen.DivergenceError("the loss is not finite")

    monkeypatch.setattr(frozen, "_learned", diverge)
    problem = next(problems(features / "blobs.npz", 10))
    scores = scores_of(problem, frozen.known_heads(features)["pc-la"](problem))
    assert scores["balanced"] == 0
    assert scores["likelihood"] is None


def written(folder, rows):
    """Write results of made-up heads, the balanced accuracy of each set."""
    for head, values in rows.items():
        for number, value in enumerate(values):
            place = folder / f"set{number // 2}-{10 ** (number % 2 + 1)}" / f"{head}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({key: [value, value + 2] for key in SCORES}))
    return Board(folder)


def test_ranks_by_hand(tmp_path, no_heads):
    rows = {"first": [60, 50, 70, 40], "second": [50, 50, 60, 45], "third": [10, 20, 30, 50]}
    board = written(tmp_path, {**rows, "not everywhere": [90]})
    assert board.ranked() == {"first": 1.625, "second": 1.875, "third": 2.5}
    assert board.of("first", "set0-*", "rank") == {"set0-10": 1, "set0-100": 1.5}
    assert board.average("third", "*-10", "few") == pytest.approx(21)
    assert board.picture()[1:4] == b"PNG"


def test_the_critical_difference_is_that_of_the_literature(tmp_path, no_heads):
    """Four classifiers on fourteen data sets: 1.25 (Demsar, JMLR 2006, section 3.2.2)."""
    board = written(tmp_path, {f"head {n}": [50.0 + n] * 27 for n in range(4)})
    assert board.difference() == pytest.approx(1.25, abs=0.005)


@pytest.fixture(scope="module")
def committed():
    return Board(ROOT / "results" / FOLDER)


@pytest.fixture(scope="module")
def template():
    return (ROOT / "docs/leaderboard.md.template").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["leaderboard", "summary"])
def test_a_page_is_what_its_template_and_the_results_make(name):
    template = (ROOT / f"docs/{name}.md.template").read_text(encoding="utf-8")
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    assert page == fill(template, Results(ROOT / "results" / "cells")), "run: protail bench write"
    assert "{{" not in page
    assert "not run yet" not in page
    assert numbers_without_address(template) == []


def test_the_page_names_the_best(committed, template):
    best = next(iter(committed.ranked()))
    assert f"The best average rank has **{best}**" in template
