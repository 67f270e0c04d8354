"""The report: what it says is what came out, and nothing of it can be mistaken for markup."""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from protail import Evaluation, Network, PrototypeClassifier, PrototypeHead
from protail.models.heads import make_head
from protail.report import Examples, ReportData, report_tables, write_report
from reference.reported import COPIED, COUNTS, MISLABELLED, NAMES, STRANGE, reported_data

pytest.importorskip("plotly")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def data():
    return reported_data()


@pytest.fixture(scope="module")
def written(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report(data, folder / "report.html", csv=folder / "tables")
    return folder


@pytest.fixture(scope="module")
def tables(data):
    return {table.name: table for table in report_tables(data)}


def test_the_page_is_one_file_that_asks_for_nothing(written):
    page = (written / "report.html").read_text(encoding="utf-8")
    # What is ours, without plotly and what the browser must not read as markup.
    ours = re.sub(r"(?s)<script>.*?</script>", "", page)
    assert set(re.findall(r"""(?:src|href)=["']?([^"'> ]{1,5})""", ours)) <= {
        "data:",
        *(f"#{name[:4]}" for name in re.findall(r'id="([\w-]+)"', ours)),
    }
    assert "default-src 'none'" in ours
    assert "http" not in re.sub(r"data:[^\"]*", "", ours).replace("http-equiv", "")


def test_names_are_text_wherever_they_stand(written):
    page = (written / "report.html").read_text(encoding="utf-8")
    for name in ("alert(1)", "Birds & <b>", "49"):
        assert f"<script>{name}" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Birds &amp; &lt;b&gt;beasts" in page
    assert "{{ 7 * 7 }}" in page
    assert page.count("<script") == 4  # figures, what the map knows, plotly, ours
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page)[1])
    assert [figure["name"] for figure in figures] == [
        *("accuracy-by-group", "accuracy-by-class", "confusion-matrix", "reliability"),
        *("prototype-map", "norms-by-size"),
    ]
    # plotly reads tags in names, so they are escaped for it too.
    said = json.dumps(figures[1]["traces"][0]["text"])
    assert "&lt;script&gt;" in said
    assert "<script>" not in said
    explored = json.loads(re.search(r'id="explored">(.*?)</script>', page)[1])
    assert explored["classes"] == sorted(NAMES)
    assert len(explored["examples"]) == 72


def test_accuracy_is_that_of_plain_loops(data, tables):
    right, rows = Counter(), Counter()
    for label, said in zip(data.held_out.labels.tolist(), data.predicted.tolist(), strict=True):
        rows[label] += 1
        right[label] += label == said
    found = {row[0]: row for row in tables["classes"].rows}
    assert {name: (row[3], row[4]) for name, row in found.items()} == {
        name: (rows[name], right[name]) for name in NAMES
    }
    assert [row[2] for row in tables["classes"].rows] == sorted(COUNTS, reverse=True)
    for name, _, _, _, _, accuracy, low, high, _ in tables["classes"].rows:
        assert accuracy == pytest.approx(right[name] / rows[name])
        assert 0 <= low <= accuracy <= high <= 1
    groups = {row[0]: row for row in tables["groups"].rows}
    few = [right[name] / rows[name] for name, n in zip(NAMES, COUNTS, strict=True) if n < 20]
    assert groups["few"][3] == pytest.approx(np.mean(few))
    for row in tables["groups"].rows:
        assert row[4] <= row[3] <= row[5]


def test_look_alikes_are_counted_both_ways(data, tables):
    ways = Counter(
        (label, said)
        for label, said in zip(data.held_out.labels, data.predicted, strict=True)
        if label != said
    )
    for one, other, n, _, there, back, *_ in tables["look-alikes"].rows:
        assert (there, back) == (ways[one, other], ways[other, one])
        assert n == there + back
    assert sum(row[2] for row in tables["look-alikes"].rows) == ways.total()


def test_calibration_counts_every_example(data, tables):
    assert sum(row[1] for row in tables["calibration"].rows) == len(data.held_out)
    for _, n, sure, right, low, high in tables["calibration"].rows:
        assert (sure is None) == (n == 0)
        if n:
            assert low <= right <= high


def test_what_is_hidden_is_found(tables):
    assert tables["wrong-labels"].rows[0][:2] == (f"#{MISLABELLED + 1}", NAMES[3])
    assert tables["near-duplicates"].rows[0][0] == f"#{COPIED + 1}"
    assert tables["near-duplicates"].rows[0][2:5:2] == ("#171", "training")
    assert tables["novelties"].rows[0][0] == f"#{STRANGE + 1}"


def test_tables_are_files_too(written, tables):
    assert {file.stem for file in (written / "tables").iterdir()} == set(tables)
    for name, table in tables.items():
        with (written / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == list(table.columns)
        assert rows[1:] == [["" if c is None else str(c) for c in row] for row in table.rows]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "whitened"},
        {"method": "closed-form"},
        {"epochs": 0, "normalize": 2.0, "logit_adjustment": 0.0},
    ],
)
def test_distances_on_the_map_are_those_of_the_head(options):
    """In the space of the map an example is as much nearer to one prototype as the head says."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), (30, 12, 6, 3))
    rows = (3 * np.eye(4, 9)[labels] + rng.normal(size=(51, 9))).astype(np.float32)
    classifier = PrototypeClassifier(random_state=0, **options).fit(rows, labels)
    data = ReportData.from_network(Network(classifier), Examples(labels=labels, features=rows))
    space = data.space
    apart = ((space.positions[:, None] - space.prototypes) ** 2).sum(-1)
    said = classifier.distances(rows).astype(float) ** 2
    np.testing.assert_allclose(
        apart - apart[:, :1], said - said[:, :1], atol=1e-3 * said.max(), rtol=1e-3
    )
    nearest, far = space.nearest()
    gaps = np.linalg.norm(space.prototypes[:, None] - space.prototypes, axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert nearest.tolist() == gaps.argmin(1).tolist()
    np.testing.assert_allclose(far, gaps.min(1), rtol=1e-5)


@pytest.mark.parametrize("name", ["prototype", "linear", "cosine"])
def test_trained_heads_are_reported_too(name, tmp_path):
    rows, labels = np.eye(6, dtype=np.float32), np.array(["a", "b", "c"] * 2)
    head = make_head(name, 3, 6)
    if isinstance(head, PrototypeHead):
        head.prototypes.data.fill_(0.5)
    network = Network(head, ["a", "b", "c"], class_counts=[9, 4, 1])
    data = ReportData.from_network(network, Examples(labels=labels, features=rows))
    np.testing.assert_array_equal(data.predicted, network.predict(rows))
    assert (data.novelty is None) == (name != "prototype")
    assert write_report(data, tmp_path / "report.html").stat().st_size > 1e6
    assert f"Head</dt><dd>{name}" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_there_is_no_data_for_is_left_out_with_a_word(data, tmp_path):
    alone = ReportData(classes=data.classes, counts=data.counts)
    scores = ReportData(classes=data.classes, counts=data.counts, evaluation=data.evaluation)
    for given, missing in ((alone, 5), (scores, 6)):
        place = tmp_path / f"{missing}.html"
        write_report(given, place)
        page = place.read_text(encoding="utf-8")
        assert page.count("Not shown: ") == missing
        assert "no labelled examples" in page or given is scores


def test_unknown_classes_and_rows_of_nan_are_told(tmp_path):
    rows, labels = np.eye(6, dtype=np.float32), np.array(["a", "b"] * 3)
    network = Network(PrototypeClassifier(random_state=0).fit(rows, labels))
    given = np.vstack([rows, np.full((2, 6), np.nan), -rows[:1]]).astype(np.float32)
    truth = [*labels, "a", "b", "never seen"]
    data = ReportData.from_network(network, Examples(labels=truth, features=given))
    assert data.evaluation.n_unseen == 1
    assert data.notes == ["2 rows hold NaN: left out."]
    write_report(data, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 example is of classes that it does not know" in page


def test_a_photo_that_cannot_be_read_is_told_as_missing(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    data = ReportData(
        classes=["a", "b"],
        counts=[3, 2],
        held_out=Examples(labels=["a", "b"], photos=[tmp_path / "broken.jpg"] * 2),
        predicted=["b", "b"],
    )
    write_report(data, tmp_path / "report.html")
    assert "no photo of a" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="photos has 1 entry and labels has 2"):
        Examples(labels=["a", "b"], photos=["1.jpg"])
    with pytest.raises(ValueError, match=r"counts has shape \(1,\) and classes \(2,\)"):
        ReportData(classes=["a", "b"], counts=[1])
    network = Network(make_head("linear", 2, 3), ["a", "b"])
    with pytest.raises(ValueError, match="Make it with class_counts"):
        ReportData.from_network(network)
    known = Network(make_head("linear", 2, 3), ["a", "b"], class_counts=[2, 1])
    with pytest.raises(ValueError, match="held_out has no features"):
        ReportData.from_network(known, Examples(labels=["a"], photos=["1.jpg"]))
    with pytest.raises(ValueError, match="is finite; expected finite numbers"):
        ReportData.from_network(known, Examples(labels=["a"], features=[[np.nan] * 3]))
    data = ReportData(classes=["a", "b"], counts=[2, 1])
    write_report(data, tmp_path / "report.html")
    with pytest.raises(OSError, match="already there"):
        write_report(data, tmp_path / "report.html")
    write_report(data, tmp_path / "report.html", overwrite=True)


def test_without_plotly_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"a report needs plotly.*pip install .*\[report\]"):
        write_report(ReportData(classes=["a", "b"], counts=[2, 1]), tmp_path / "report.html")


@pytest.mark.filterwarnings("ignore:.*all zeros")
@pytest.mark.parametrize("rows", [np.zeros((4, 4)), np.eye(4), 1e30 * np.eye(4)])
def test_the_smallest_and_oddest_data_can_be_shown(rows, tmp_path):
    rows = rows.astype(np.float32)
    classifier = PrototypeClassifier(random_state=0, method="whitened")
    classifier.fit(np.eye(4), [7, 7, 9, 9])
    for n in (1, 4):
        examples = Examples(labels=[7, 9, 7, 9][:n], features=rows[:n])
        data = ReportData.from_network(Network(classifier), examples, training=examples)
        write_report(data, tmp_path / "report.html", overwrite=True)


def test_intervals_cover_as_often_as_they_say():
    """Of samples of a known accuracy, about 95 % have it in their interval."""
    from protail.report._sections import intervals

    rng = np.random.default_rng(0)
    covered = []
    for _ in range(60):
        truth = np.repeat([0, 1], 100)
        said = np.where(rng.random(200) < 0.7, truth, 1 - truth)
        scores = Evaluation.from_predictions(truth, said, classes=[0, 1], counts=[200, 5])
        low, high = intervals(scores)["few"]
        covered.append(low <= 0.7 <= high)
    assert np.mean(covered) >= 0.85


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, protail.report; print([m for m in sys.argv[1:] if m in sys.modules])"
    words = [sys.executable, "-c", code, "plotly", "jinja2", "torch", "matplotlib", "sklearn"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_training_labels_that_may_be_wrong_are_shown(data, tmp_path):
    found = np.array([7, 3]), np.array(["lynx", NAMES[0]]), np.array([4.25, 0.5])
    write_report(replace(data, suspected=found), tmp_path / "report.html", csv=tmp_path / "csv")
    lines = (tmp_path / "csv/wrong-training-labels.csv").read_text().splitlines()
    assert lines[1:] == [
        f"#8,{data.training.labels[7]},lynx,4.25",
        f"#4,{data.training.labels[3]},{NAMES[0]},0.5",
    ]
    assert "Judged by the others, 2 of" in (tmp_path / "report.html").read_text()
