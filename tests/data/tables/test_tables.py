"""Tables: which columns are features, and what csv and parquet files may hold."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protail.data.tables import FeatureFileError, open_features


@pytest.fixture
def csv(tmp_path):
    def write(text, encoding="utf-8"):
        (tmp_path / "a.csv").write_bytes(text.encode(encoding))
        return tmp_path / "a.csv"

    return write


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
        return tmp_path / "a.parquet"

    return write


def read_all(path, **options):
    file = open_features(path, **options)
    file.rows()
    if file.has_labels:
        file.labels()


def refused(path, match, **options):
    with pytest.raises(FeatureFileError, match=match) as caught:
        read_all(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_of_a_csv(csv):
    file = open_features(csv("id,b,label,a\nrow-1,1.5,x,2\nrow-2,3,y,4e0\n"))
    assert file.names == ["b", "a"]
    assert file.ignored == ["id"]
    assert file.rows().tolist() == [[1.5, 2], [3, 4]]
    assert file.labels().tolist() == ["x", "y"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_dialects(delimiter, end, encoding, csv):
    lines = [["y", "a, b", "c"], ['"ü, z"', "1", "2"], ["w", " 3 ", "4"]]
    lines[0][1] = '"a, b"'
    text = end.join(delimiter.join(line) for line in lines) + end + end
    file = open_features(csv(text, encoding))
    assert file.names == ["a, b", "c"]
    assert file.n_rows == 2
    assert file.rows().tolist() == [[1, 2], [3, 4]]
    assert file.labels().tolist() == ["ü, z", "w"]


@pytest.mark.parametrize("last", ["", "\n", "\r\n\r\n"])
@pytest.mark.parametrize("quoted", [False, True])
def test_rows_are_counted(last, quoted, csv):
    cell = '"one\ntwo ""three"""' if quoted else "one"
    text = "a,y\n" + "\n\n".join(f"{i},{cell}" for i in range(5000)) + last
    file = open_features(csv(text))
    assert file.n_rows == 5000 == len(file.labels()) == len(file.rows())


def test_blank_lines_are_no_rows(csv):
    for end in ("\r\n", "\n", "\r"):
        file = open_features(csv(f"a,b{end}1,2{end}{end}3,4{end}5,6"))
        assert file.n_rows == 3 == len(file.rows())


def test_missing_and_non_finite_cells(csv):
    file = open_features(csv("a,b,c\n1,,inf\nnan,-inf, \n"))
    assert np.array_equal(
        file.rows(), [[1, np.nan, np.inf], [np.nan, -np.inf, np.nan]], equal_nan=True
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3\n", "line 3 has 1 cells.*expected 2"),
        ('a,b\n"1",2\n3,4,5\n', "line 3 has 3 cells"),
        ('a,b\n"1\n",2\n3,4,5\n', "line 4 has 3 cells"),
        ("a,b\n1,2\n3,x\n", "line 3 has 'x' in column 'b'"),
        ("a,b\nx,2\n3,4\n1,1_0\n", "line 4 has '1_0' in column 'b'"),
        ("a,y\n1,2\n3,\n", "label on line 3 is empty"),
        ("1.5,2\n3,4\n", "first line holds numbers"),
        ("5,2\n3,4\n", "first line holds numbers"),
        ("x,-1.5\nx,4\n", "first line holds numbers"),
        ("a,b\n", "no rows"),
        ("\n\n", "no header"),
        ("a,b,a\n1,2,3\n", "share a name: 'a'"),
        ("a,b\nx,y\n", "no columns of numbers.*'a': 'x', 'b': 'y'.*point for decimals"),
        ('a,b\n1,"2\n3,4\n', "cannot be read"),
        ("y\n1\n", "no columns of numbers.*found: nothing"),
    ],
)
def test_csv_that_will_not_do(text, match, csv):
    refused(csv(text), match)


def test_encodings(csv):
    refused(csv("a,y\n1,é\n", "latin-1"), "0xe9.*UTF-8")
    refused(csv("a,y\n1,é\n", "utf-16"), "UTF-8")
    refused(csv("a,b\n1,2\n", "utf-16-le"), "UTF-8")


def test_columns_that_pandas_names(csv, tmp_path):
    frame = pd.DataFrame(np.arange(6.0).reshape(2, 3))
    frame.to_csv(tmp_path / "p.csv")
    file = open_features(tmp_path / "p.csv")
    assert file.names == ["0", "1", "2"]
    assert file.ignored == ["column 1, without a name"]
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert np.array_equal(open_features(tmp_path / "p.csv").rows(), frame)


def test_labels_of_a_csv(csv):
    path = csv("a,label,kind\n1,7,p\n2,-3,q\n")
    assert open_features(path).labels().tolist() == [7, -3]
    assert open_features(path, labels="kind").labels().tolist() == ["p", "q"]
    assert open_features(path, labels="kind").names == ["a", "label"]
    assert open_features(path, features="a", labels="kind").ignored == ["label"]
    refused(path, "labels='sort' is unknown", labels="sort")
    refused(path, "features='label' is unknown", features="label")
    refused(path, "no columns of numbers.*'kind': 'p'", features="kind")
    refused(csv("a,b\n1,2\n"), "no labels.*'a', 'b'", need_labels=True)
    # Numbers that are not written as Python writes them are names: 01 and 1 are two classes.
    for labels in (["01", "1", "2"], ["1.0", "2"], ["+1", "1"], ["-0", "0"]):
        lines = "".join(f"1,{label}\n" for label in labels)
        assert open_features(csv(f"a,y\n{lines}")).labels().tolist() == labels
    long = open_features(csv(f"a,y\n1,{'9' * 30}\n2,x\n")).labels()
    assert long.tolist() == ["9" * 30, "x"]


def test_columns_of_a_parquet_file(parquet):
    file = open_features(
        parquet(
            day=pa.array([1, 2, 3], pa.date32()),
            b=pa.array([1.5, None, 3.0], pa.float32()),
            label=pa.array(["p", "q", "p"]).dictionary_encode(),
            flag=[True, None, False],
            a=pa.array([1, None, 3], pa.int64()),
            text=["1", "2", "3"],
        )
    )
    assert file.names == ["b", "flag", "a"]
    assert file.ignored == ["day", "text"]
    assert file.dtype == np.float32
    nan = np.nan
    assert np.array_equal(file.rows(), [[1.5, 1, 1], [nan, nan, nan], [3, 0, 3]], equal_nan=True)
    assert file.labels().tolist() == ["p", "q", "p"]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["float16", "float16"], "float16"),
        (["float16", "int64"], "float32"),
        (["float32", "float64"], "float64"),
    ],
)
def test_types_meet(kinds, expected, parquet):
    columns = {f"c{i}": np.arange(3).astype(kind) for i, kind in enumerate(kinds)}
    file = open_features(parquet(**columns))
    assert file.dtype == expected
    assert file.rows().tolist() == [[0, 0], [1, 1], [2, 2]]


def test_names_with_points(parquet):
    nested = pa.array([{"c": 1.0}, {"c": 2.0}])
    file = open_features(parquet(**{"a.b": [1.0, 2.0], "d": nested, "a": [3.0, 4.0]}))
    assert file.names == ["a.b", "a"]
    assert file.ignored == ["d"]
    assert file.rows().tolist() == [[1, 3], [2, 4]]


def test_decimals(parquet):
    column = pa.array([1, 2, None], pa.int64()).cast(pa.decimal128(22, 2))
    file = open_features(parquet(a=column))
    assert np.array_equal(file.rows(), [[1.0], [2.0], [np.nan]], equal_nan=True)


def test_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}, index=pd.Index([7, 9], name="id"))
    frame.to_parquet(tmp_path / "a.parquet")
    file = open_features(tmp_path / "a.parquet")
    assert file.names == ["a"]
    assert file.ignored == ["id"]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_lists_that_will_not_do(kind, parquet):
    def table(rows):
        return parquet(features=pa.array(rows, kind))

    assert open_features(table([[1, 2], [3, 4], [5, 6]])).rows().tolist() == [
        [1, 2],
        [3, 4],
        [5, 6],
    ]
    refused(table([[1, 2], [3, 4], [5]]), r"row 2 .* is \[5.0\].*expected a list of 2")
    refused(table([[1, 2], [3, 4], [5, 6], None]), "row 3 .* is None")
    refused(table([[1, 2], [3, 4], [5, None]]), r"row 2 .* is \[5.0, None\]")
    refused(table([None, [3, 4]]), "first list")
    refused(table([[], [3, 4]]), "first list")


def test_fixed_lists_with_nulls(parquet):
    kind = pa.list_(pa.float32(), 2)
    refused(parquet(features=pa.array([[1, 2], None], kind)), "row 1 .* is None")
    refused(
        parquet(features=pa.array([[1, 2], [1, 2], [1, None]], kind)), r"row 2 .* is \[1.0, None\]"
    )


def test_named_columns(parquet):
    path = parquet(features=[[1.0], [2.0]], other=[[3.0], [4.0]], a=[5, 6], y=[0, 1], k=["p", "q"])
    assert open_features(path).rows().tolist() == [[1], [2]]
    assert open_features(path).names is None
    assert open_features(path, features="other").rows().tolist() == [[3], [4]]
    assert open_features(path, features="a").rows().tolist() == [[5], [6]]
    assert open_features(path, labels="k").labels().tolist() == ["p", "q"]
    refused(path, "features='b' is unknown", features="b")
    refused(path, "no columns of numbers", features="k")


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (pa.array([1, None, 2]), "row 1 .*missing"),
        (pa.array(["a", "b", ""]), "row 2 .*empty"),
        (pa.array([1.0, 2.0, 2.5]), "row 2 .*not a whole"),
        (pa.array([1.0, float("nan"), 2.5]), "row 1 .*not a whole number: nan"),
        (pa.array([[1], [2], [3]]), "labels are of type list"),
        (pa.array([1, 2, 3], pa.date32()), "labels are of type date32"),
    ],
)
def test_labels_of_a_parquet_file_that_will_not_do(labels, match, parquet):
    refused(parquet(a=[1.0, 2.0, 3.0], y=labels), match)


def test_parquet_files_that_will_not_do(parquet, tmp_path):
    refused(parquet(a=pa.array([], pa.float32())), "no rows")
    refused(parquet(a=["x"]), "no columns of numbers.*'a': string")
    refused(parquet(a=[1.0]), "no labels", need_labels=True)
    twice = pa.table([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "share a name")


def test_without_pyarrow(parquet, monkeypatch):
    path = parquet(a=[1.0])
    monkeypatch.delitem(sys.modules, "protail.data.tables._parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(path, r"pip install .*\[tables\]")


def test_reading_imports_no_torch_and_pyarrow_for_parquet_only(csv, parquet, tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2), y=[0, 1])
    code = f"""
import sys
from protail.data.tables import FeatureFileError, open_features, scan, split, take
for name in ("a.npz", "a.csv", "a.nothing", "a.parquet"):
    assert "pyarrow" not in sys.modules
    try:
        file = open_features({str(tmp_path)!r} + "/" + name)
        take(file.rows(), split(file.labels(), groups=scan(file.rows()).duplicate_of)[0])
    except FeatureFileError as error:
        print(error)
assert "torch" not in sys.modules
"""
    csv("f,y\n1,ant\n2,bee\n")
    parquet(f=[1.0, 2.0], y=["ant", "bee"])
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "a.nothing: there is no such file" in ran.stdout
