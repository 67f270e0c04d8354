"""Tables: which columns are features, labels elsewhere, and what comes along into predictions."""

import contextlib
import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protail import PrototypeClassifier
from protail.cli.options import FeatureOptions
from protail.cli.predict import PredictionJob
from protail.cli.sources import Model, open_sources
from reference.rows import long_tailed_rows

ROWS, CODES = long_tailed_rows(counts=(40, 20, 8), width=4)
NEW, _ = long_tailed_rows(counts=(5, 5, 5), width=4, seed=1)
NAMES = np.array(["ant", "bee", "cat"])
FEATURES = [f"f{i}" for i in range(4)]


def columns(rows, **others):
    return {**dict(zip(FEATURES, rows.T, strict=True)), **others}


def write_csv(path, table):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


@pytest.fixture
def tables(tmp_path):
    """train.csv and test.csv with an id and their labels in ``species``; new.csv without."""
    numbers = np.arange(900, 900 + len(ROWS))
    write_csv(tmp_path / "train.csv", {"id": numbers} | columns(ROWS, species=NAMES[CODES]))
    write_csv(tmp_path / "test.csv", {"id": numbers} | columns(ROWS, species=NAMES[CODES]))
    write_csv(tmp_path / "new.csv", columns(NEW, id=[f"n{i}" for i in range(len(NEW))]))
    return tmp_path


def names_of(folder):
    return list(PrototypeClassifier.load(folder).feature_names_in_)


FIT = ["fit", "train.csv", "--labels", "species", "--epochs", "0"]


def test_labels_are_those_of_the_test_file_too(tables, protail):
    ended = protail(*FIT, "-o", "model", "--test", "test.csv", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["judged_on"] == "test.csv"


def test_fit_says_which_columns_are_features_and_doubts_an_id(tables, protail):
    ended = protail(*FIT, "-o", "model")
    assert ended.code == 0, ended.err
    assert "features: 5 columns, id, f0 to f3" in ended.err
    doubt = next(line for line in ended.err.splitlines() if line.startswith("Note: "))
    assert "column 'id'" in doubt
    assert "--exclude id" in doubt
    found = protail(*FIT, "-o", "again", "--json").json["found"]
    assert found["columns"] == ["id", *FEATURES]
    assert found["columns_like_identifiers"] == ["id"]


@pytest.mark.parametrize(
    "options",
    [
        ["--exclude", "id"],
        ["--columns", "f*"],
        ["--columns", "f0:f3"],
        ["--columns", "f0,f1", "--columns", "f2,f3"],
        ["--keep", "id"],
    ],
)
def test_columns_that_are_no_features(options, tables, protail):
    ended = protail(*FIT, *options, "-o", "model", "--test", "test.csv")
    assert ended.code == 0, ended.err
    assert "features: 4 columns, f0 to f3" in ended.err
    assert "Note: column" not in ended.err
    assert names_of(tables / "model") == FEATURES
    # The same columns are found again, wherever they stand, and the others are passed over.
    ended = protail("predict", "model", "new.csv", "-o", "out.csv")
    assert ended.code == 0, ended.err
    assert "new.csv: features: 4 columns, f0 to f3; not used: id" in ended.err


@pytest.mark.parametrize(
    ("name", "values", "doubted"),
    [
        ("sample", np.arange(len(ROWS)) * 3 - 7, True),
        ("sample", np.arange(len(ROWS))[::-1], False),
        ("sample", np.arange(len(ROWS)) + 0.5, False),
        ("sample", np.arange(len(ROWS)) // 2, False),
        ("imageId", np.zeros(len(ROWS)), True),
        ("row", CODES, True),
        ("Unnamed: 0", CODES, True),
        ("humid", CODES, False),
    ],
)
def test_what_looks_like_an_identifier(name, values, doubted, tables, protail):
    write_csv(tables / "odd.csv", columns(ROWS, **{name: values}, label=CODES))
    ended = protail("fit", "odd.csv", "-o", "model", "--epochs", "0", "--held-out", "0", "--json")
    assert ended.json["found"]["columns_like_identifiers"] == ([name] if doubted else [])


def test_one_column_is_all_there_is(tables, protail):
    ended = protail(*FIT, "--features", "f0", "-o", "model", "--test", "test.csv")
    assert ended.code == 0, ended.err
    assert names_of(tables / "model") == ["f0"]
    evaluating = ["evaluate", "model", "test.csv", "--labels", "species"]
    assert protail(*evaluating, "--features", "f0").code == 0


def test_a_feature_that_is_called_as_labels_are(tables, protail):
    """The file to predict has no labels: its column ``class`` is a feature, as it was in fit."""
    write_csv(tables / "own.csv", columns(ROWS, species=NAMES[CODES], **{"class": ROWS[:, 0]}))
    write_csv(tables / "later.csv", columns(NEW, **{"class": NEW[:, 0]}))
    fitting = ["fit", "own.csv", "--labels", "species", "--epochs", "0", "-o", "model"]
    assert protail(*fitting).code == 0
    assert names_of(tables / "model") == [*FEATURES, "class"]
    ended = protail("predict", "model", "later.csv", "-o", "out.csv")
    assert ended.code == 0, ended.err


def test_what_a_model_with_columns_of_its_own_refuses(tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    write_csv(tables / "short.csv", {"f0": NEW[:, 0], "f3": NEW[:, 3]})
    predicting = ["predict", "model", "new.csv", "-o", "out.csv"]
    for arguments, words in (
        ([*predicting, "--columns", "f0"], "--columns cannot be used here: model takes the"),
        ([*predicting, "--exclude", "f0"], "'f0' is to be a feature, and is named in exclude"),
        ([*predicting, "--keep", "f0"], "'f0' is to be a feature, and is named in keep"),
        (["predict", "model", "short.csv", "-o", "out.csv"], "lacks 2 of the 4 columns"),
    ):
        ended = protail(*arguments)
        assert ended.code == 2
        assert words in ended.last_line
    assert protail(*predicting, "--exclude", "id").code == 0


def test_a_model_without_columns_reads_a_table(tables, write, protail):
    write("train.npz", ROWS, CODES)
    assert protail("fit", "train.npz", "-o", "model", "--epochs", "0").code == 0
    ended = protail("evaluate", "model", "train.csv", "--labels", "species")
    assert ended.code == 2
    assert "5 columns, id, f0 to f3" in ended.last_line
    assert "--exclude" in ended.last_line
    write_csv(tables / "codes.csv", columns(ROWS, id=np.arange(len(ROWS)), kind=CODES))
    evaluating = ["evaluate", "model", "codes.csv", "--labels", "kind"]
    assert protail(*evaluating, "--exclude", "id", "--json").json["all"] > 0.9
    assert protail(*evaluating, "--columns", "f*", "--json").json["all"] > 0.9
    comparing = ["compare", "model", "model", "codes.csv", "--labels", "kind"]
    assert protail(*comparing, "--exclude", "id").code == 0
    adding = ["add-class", "model", "7", "codes.csv", "--columns", "f*", "-o", "more"]
    assert protail(*adding, "--check", "codes.csv", "--labels", "kind").code == 0


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_predictions_carry_what_is_kept(kind, tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    pq.write_table(
        pa.table(columns(NEW, id=np.arange(15), place=["bay"] * 14 + [None])),
        tables / "new.parquet",
        row_group_size=4,
    )
    predicting = ["predict", "model", "new.parquet", "-o", f"out.{kind}", "--keep", "place,id"]
    ended = protail(*predicting)
    assert ended.code == 0, ended.err
    if kind == "parquet":
        written = pq.read_table(tables / "out.parquet")
        assert written.schema.field("id").type == pa.int64()
        records = written.to_pylist()
    else:
        with (tables / f"out.{kind}").open() as file:
            records = list(csv.DictReader(file) if kind == "csv" else map(json.loads, file))
    assert list(records[0])[:5] == ["file", "row", "place", "id", "label"]
    assert [int(record["id"]) for record in records] == list(range(15))
    assert [record["place"] for record in records] == ["bay"] * 14 + ["" if kind == "csv" else None]


def test_what_is_kept_of_files_that_differ_is_text(tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    pq.write_table(pa.table(columns(NEW, id=np.arange(15))), tables / "new.parquet")
    predicting = ["predict", "model", "new.parquet", "new.csv", "--keep", "id"]
    assert protail(*predicting, "-o", "out.parquet").code == 0
    kept = pq.read_table(tables / "out.parquet")["id"].to_pylist()
    assert kept == [*map(str, range(15)), *(f"n{i}" for i in range(15))]


def test_what_is_kept_stands_under_its_name(tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    kept = {"meta_a": [f"A{i}" for i in range(15)], "meta,b": [f"B{i}" for i in range(15)]}
    turned = dict(reversed(kept.items()))
    write_csv(tables / "one.csv", columns(NEW, **kept))
    write_csv(tables / "two.csv", columns(NEW, **turned))
    write_csv(tables / "less.csv", columns(NEW, meta_a=kept["meta_a"]))
    predicting = ["predict", "model", "one.csv", "two.csv", "--keep", "meta*", "-o", "out.csv"]
    assert protail(*predicting).code == 0
    with (tables / "out.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    assert list(records[0])[:5] == ["file", "row", "meta_a", "meta,b", "label"]
    assert [record["meta_a"] for record in records] == 2 * kept["meta_a"]
    assert [record["meta,b"] for record in records] == 2 * kept["meta,b"]
    for files in (["one.csv", "less.csv"], ["less.csv", "one.csv"]):
        ended = protail("predict", "model", *files, "--keep", "meta*", "-o", "other.csv")
        assert ended.code == 2
        assert f"only one of {files[1]} and {files[0]} has meta,b; expected" in ended.last_line
    assert not list(tables.glob("other.csv*"))


def test_what_cannot_be_carried_into_predictions(tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    write_csv(tables / "new.csv", columns(NEW, label=CODES[:15]))
    predicting = ["predict", "model", "new.csv", "-o", "out.csv", "--keep"]
    for name, words in (("label", "'label' has a meaning of its own"), ("id", "--keep id is unkn")):
        ended = protail(*predicting, name)
        assert ended.code == 2
        assert words in ended.last_line
    assert not (tables / "out.csv").exists()


def test_pieces_with_other_columns_are_not_taken(tables, protail):
    assert protail(*FIT, "--exclude", "id", "-o", "model").code == 0
    model = Model.load(tables / "model")
    output = tables / "out.csv"

    def job(keep):
        options = FeatureOptions(keep=keep)
        files = open_sources(model, [tables / "new.csv"], options)
        return PredictionJob(output, model, files, options, 1, overwrite=False)

    with contextlib.suppress(KeyboardInterrupt), job(["id"]) as stopped:
        stopped.n_done = 1  # as if a piece were kept
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="other settings"), job([]):
        pass
    with job(["id"]):
        pass


def test_a_column_of_labels_beside_a_table(tables, protail):
    write_csv(tables / "kinds.csv", {"at": CODES, "kind": NAMES[CODES]})
    labels = ["--labels-file", "kinds.csv", "--labels", "kind"]
    fitting = ["fit", "train.csv", *labels, "--exclude", "id", "--epochs", "0", "-o", "model"]
    ended = protail(*fitting, "--test", "test.csv", "--test-labels-file", "kinds.csv")
    assert ended.code == 0, ended.err
    assert protail("evaluate", "model", "test.csv", *labels, "--json").json["all"] > 0.9


def test_labels_of_files_of_their_own(tmp_path, protail):
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "y.npy", CODES)
    (tmp_path / "names.txt").write_text("\n".join(NAMES[CODES]) + "\n")
    write_csv(tmp_path / "names.csv", {"at": CODES, "species": NAMES[CODES]})
    fitting = ["fit", "x.npy", "--labels-file", "names.txt", "--epochs", "0"]
    ended = protail(*fitting, "-o", "model")
    assert ended.code == 0, ended.err
    classes = PrototypeClassifier.load(tmp_path / "model").classes_
    assert classes.tolist() == NAMES.tolist()
    other = ["-o", "other", "--epochs", "0", "--json"]
    test = ["--test", "x.npy", "--test-labels-file", "names.csv", "--labels", "species"]
    ended = protail("fit", "x.npy", "--labels-file", "names.csv", *test, *other)
    assert ended.code == 0, ended.err
    assert ended.json["judged_on"] == "x.npy"
    evaluating = ["--labels-file", "names.txt"]
    assert protail("evaluate", "model", "x.npy", *evaluating, "--json").json["all"] > 0.9
    twice = ["evaluate", "model", "x.npy", "x.npy", *evaluating]
    assert protail(*twice, *evaluating, "--json").json["n_rows"] == 2 * len(ROWS)
    ended = protail(*twice)
    assert ended.code == 2
    assert "1 file of labels was given for 2 files" in ended.last_line
    assert protail("compare", "model", "other", "x.npy", *evaluating).code == 0
    adding = ["add-class", "model", "dog", "x.npy", "-o", "more"]
    assert protail(*adding, "--check", "x.npy", *evaluating).code == 0
    for wrong, words in (
        ([*adding, *evaluating], "--labels-file"),
        ([*fitting, "--test-labels-file", "y.npy", "-o", "m"], "--test-labels-file"),
    ):
        ended = protail(*wrong, "--overwrite")
        assert ended.code == 2
        assert words in ended.last_line
