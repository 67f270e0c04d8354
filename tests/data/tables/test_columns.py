"""Which columns of a table are features, which are only carried along, and labels elsewhere."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protail.data.tables import FeatureFileError, open_features

COLUMNS = {
    "id": [11, 12, 13],
    "f0": [0.5, 1.5, 2.5],
    "f1": [3.0, 4.0, 5.0],
    "f10": [6.0, 7.0, 8.0],
    "label": [1, 0, 1],
    "place": ["bay", "sea", ""],
    "g,h": [9.0, 9.5, 9.25],
}


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    """One table, written in both formats."""
    path = tmp_path / f"a.{request.param}"
    if path.suffix == ".csv":
        pd.DataFrame(COLUMNS).to_csv(path, index=False)
    else:
        pq.write_table(pa.table(COLUMNS), path, row_group_size=2)
    return path


def test_every_number_is_a_feature_unless_somebody_says_otherwise(table):
    file = open_features(table)
    assert file.names == ["id", "f0", "f1", "f10", "g,h"]
    assert file.columns == list(COLUMNS)
    assert file.ignored == ["place"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["f1", "f0"], ["f1", "f0"]),
        ("f10,f0", ["f10", "f0"]),
        ("f*", ["f0", "f1", "f10"]),
        ("f?", ["f0", "f1"]),
        ("f1:g,h", ["f1", "f10", "g,h"]),
        ("f0:f10", ["f0", "f1", "f10"]),
        ("g,h", ["g,h"]),
        (["g,h", "f*"], ["g,h", "f0", "f1", "f10"]),
        ("f1:label", ["f1", "f10"]),
        ("f0,f*,f0", ["f0", "f1", "f10"]),
        ("f1,label", ["f1", "label"]),
    ],
)
def test_columns_by_name_by_pattern_and_by_range(table, columns, names):
    file = open_features(table, columns=columns)
    assert file.names == names
    expected = np.column_stack([COLUMNS[name] for name in names])
    assert np.array_equal(file.rows(), expected)
    assert np.array_equal(np.concatenate(list(file.blocks(1))), expected[1:])
    assert file.has_labels == ("label" not in names)


def test_what_is_excluded_is_no_feature(table):
    file = open_features(table, exclude=["id", "g,h"])
    assert file.names == ["f0", "f1", "f10"]
    assert sorted(file.ignored) == ["g,h", "id", "place"]
    assert file.labels().tolist() == [1, 0, 1]
    assert open_features(table, columns="f*", exclude="f1*").names == ["f0"]
    assert open_features(table, exclude=["label,id", "g,h"]).names == ["f0", "f1", "f10"]


def test_what_is_kept_is_no_feature_and_comes_along(table):
    file = open_features(table, keep=["place", "id", "label"])
    assert file.names == ["f0", "f1", "f10", "g,h"]
    assert list(file.kept) == ["place", "id", "label"]
    assert file.ignored == []
    empty = None if table.suffix == ".csv" else ""
    rows = [("bay", 11, 1), ("sea", 12, 0), (empty, 13, 1)]
    if table.suffix == ".csv":  # which has no types: what is written there
        rows = [(place, str(number), str(label)) for place, number, label in rows]
    assert list(file.kept_rows()) == rows
    assert list(file.kept_rows(2)) == rows[2:]
    assert file.labels().tolist() == [1, 0, 1]
    kinds = ["string", "int64", "int64"] if table.suffix == ".parquet" else ["string"] * 3
    assert list(file.kept.values()) == kinds


def test_numbers_that_are_named_otherwise_are_kept_as_they_are(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("code,a\n007,1\n,2\n")
    assert list(open_features(path, keep="code").kept_rows()) == [("007",), (None,)]


def test_every_kind_of_parquet_column_can_be_kept(tmp_path):
    columns = {
        "day": pa.array([1, None], pa.date32()),
        "big": pa.array([2**63, 1], pa.uint64()),
        "flag": [True, False],
        "word": pa.array(["p", "q"]).dictionary_encode(),
        "real": pa.array([0.5, float("nan")], pa.float32()),
        "list": [[1.0], [2.0]],
        "a": [1.0, 2.0],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    file = open_features(tmp_path / "a.parquet", keep="day,big,flag,word,real", columns="a")
    assert list(file.kept.values()) == ["string", "uint64", "bool_", "string", "float64"]
    first, second = file.kept_rows()
    assert first == ("1970-01-02", 2**63, True, "p", 0.5)
    assert second[:4] == (None, 1, False, "q")
    with pytest.raises(FeatureFileError, match=r"'list'.*cannot be carried along"):
        open_features(tmp_path / "a.parquet", keep="list", columns="a")


def test_arrays_are_kept_too(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=np.eye(3), id=[7, 8, 9], name=["a", "b", "c"], short=[1, 2])
    file = open_features(path, keep=["name", "id"])
    assert file.kept == {"name": "string", "id": "int64"}
    assert list(file.kept_rows(1)) == [("b", 8), ("c", 9)]
    assert file.ignored == ["short"]
    for wrong in ("short", "X"):
        with pytest.raises(FeatureFileError, match=f"{wrong}.*one value for each"):
            open_features(path, keep=wrong)
    with pytest.raises(FeatureFileError, match="keep='ident' is unknown"):
        open_features(path, keep="ident")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"columns": "f7"}, "columns='f7' is unknown; expected one of 'id'"),
        ({"columns": "f0,f7"}, "columns='f7' is unknown"),
        ({"columns": "h*"}, "columns='h\\*' fits none of its columns"),
        ({"columns": "f0:f7"}, "columns='f7' is unknown"),
        ({"columns": "f1:f0"}, "'f1' comes after 'f0'"),
        ({"columns": "place"}, "no columns of numbers.*'place'"),
        (
            {"columns": "f0,label", "labels": "label"},
            "'label' is to be a feature.*named in labels",
        ),
        ({"columns": "f0,id", "exclude": "id"}, "'id' is to be a feature.*named in exclude"),
        ({"columns": "f0,id", "keep": "id"}, "'id' is to be a feature.*named in keep"),
        ({"columns": []}, "columns names nothing"),
        ({"columns": "p*"}, "no .*numbers"),
        ({"exclude": "nothing"}, "exclude='nothing' is unknown"),
        ({"exclude": "*"}, "no .*numbers"),
        ({"keep": "ids"}, "keep='ids' is unknown.*Did you mean 'id'"),
        ({"features": "f0", "columns": "f1"}, "features.*columns was given; expected one of them"),
        ({"features": "f0", "exclude": "f0"}, "features.*exclude was given; expected one of them"),
    ],
)
def test_what_cannot_be_chosen(table, options, match):
    with pytest.raises(FeatureFileError, match=match):
        open_features(table, **options)


def test_one_array_has_no_columns_to_choose(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3))
    pq.write_table(pa.table({"features": [[1.0], [2.0]], "id": [1, 2]}), tmp_path / "a.parquet")
    for name, option in (("a.npz", "columns"), ("a.npz", "exclude"), ("a.parquet", "exclude")):
        with pytest.raises(FeatureFileError, match=f"one array or column, and {option}"):
            open_features(tmp_path / name, **{option: "id"})
    assert open_features(tmp_path / "a.parquet", keep="id").kept == {"id": "int64"}
    assert open_features(tmp_path / "a.parquet", columns="id").names == ["id"]


@pytest.mark.parametrize("kind", ["npy", "txt", "csv", "tsv"])
@pytest.mark.parametrize("labels", [[3, 1, 3], ["ant", "b ee", "ant"], ["01", "1", "1"]])
def test_labels_of_another_file(kind, labels, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    path = tmp_path / f"labels.{kind}"
    if kind == "npy":
        np.save(path, labels)
    else:
        lines = ([] if kind == "txt" else ["kind"]) + list(map(str, labels))
        path.write_text("\n".join(lines) + "\n\n")
    file = open_features(tmp_path / "x.npy", labels_file=path, need_labels=True)
    assert file.has_labels
    assert file.labels().tolist() == labels


def test_the_labels_of_the_table_itself_stay_no_features(table, tmp_path):
    (tmp_path / "y.txt").write_text("p\nq\np\n")
    file = open_features(table, labels_file=tmp_path / "y.txt")
    assert file.labels().tolist() == ["p", "q", "p"]
    assert file.names == open_features(table).names
    assert file.ignored == ["place"]


def test_a_column_of_a_labels_file(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(2))
    (tmp_path / "y.csv").write_text("id,species,label\n1,ant,7\n2,bee,8\n")
    arguments = {"labels_file": tmp_path / "y.csv"}
    assert open_features(tmp_path / "x.npy", **arguments).labels().tolist() == [7, 8]
    file = open_features(tmp_path / "x.npy", **arguments, labels="species")
    assert file.labels().tolist() == ["ant", "bee"]


@pytest.mark.parametrize(
    ("name", "text", "options", "match"),
    [
        ("y.txt", "p\nq\n", {}, "y.txt.*2 labels.*3 rows"),
        ("y.csv", "p\nq\nr\n", {}, "y.csv.*2 labels.*3 rows.*first line"),
        ("y.txt", "p\n\nq\n", {}, "line 2 is empty"),
        ("y.txt", "", {}, "empty"),
        ("y.csv", "a,b\n1,2\n", {}, "no labels.*'a', 'b'"),
        ("y.csv", "a,b\n1,2\n", {"labels": "c"}, "labels='c' is unknown"),
        ("y.txt", "p\nq\nr\n", {"labels": "c"}, "labels='c'.*no names"),
        ("y.json", "[]", {}, "'.json' is unknown.*.npy, .csv, .tsv, .txt"),
        ("gone.txt", None, {}, "no such file"),
    ],
)
def test_a_labels_file_that_will_not_do(name, text, options, match, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(FeatureFileError, match=match):
        open_features(tmp_path / "x.npy", labels_file=tmp_path / name, **options).labels()


def test_a_labels_file_that_is_no_list(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    np.save(tmp_path / "y.npy", np.eye(3))
    with pytest.raises(FeatureFileError, match=r"\(3, 3\) do not go with 3 rows"):
        open_features(tmp_path / "x.npy", labels_file=tmp_path / "y.npy").labels()
