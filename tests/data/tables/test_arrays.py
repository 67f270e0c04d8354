"""Arrays in npy, npz and safetensors: which one is meant, and what is refused."""

import io
import struct
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from protail.data.tables import FeatureFileError, open_features

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def refused(path, match, **options):
    with pytest.raises(FeatureFileError, match=match) as caught:
        open_features(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    return write


@pytest.mark.parametrize("name", ["features", "embeddings", "X", "x"])
def test_usual_name_among_several(name, npz):
    file = open_features(npz(a=ROWS + 1, **{name: ROWS}, z=ROWS + 2))
    assert np.array_equal(file.rows(), ROWS)
    assert file.names is None
    assert sorted(file.ignored) == ["a", "z"]


def test_the_only_table_or_the_named_one(npz):
    assert open_features(npz(anything=ROWS, more=np.arange(3))).width == 2
    path = npz(a=ROWS, b=ROWS + 1)
    refused(path, r"2 of its arrays.*'a' float32 \(3, 2\), 'b' float32 \(3, 2\).*--features")
    assert np.array_equal(open_features(path, features="b").rows(), ROWS + 1)
    refused(path, "features='c' is unknown", features="c")
    refused(npz(one=np.arange(3), two=np.arange(4)), "none of its arrays")


@pytest.mark.parametrize("name", ["labels", "label", "y", "targets", "target", "class"])
def test_usual_labels(name, npz):
    file = open_features(npz(X=ROWS, **{name: [4, 5, 4]}))
    assert file.has_labels
    assert file.labels().tolist() == [4, 5, 4]


def test_named_labels(npz):
    path = npz(X=ROWS, y=[0, 0, 0], fine=["a", "b", "c"])
    assert open_features(path, labels="fine").labels().tolist() == ["a", "b", "c"]
    refused(path, "labels='coarse' is unknown", labels="coarse")
    refused(npz(X=ROWS), "no labels.*--labels", need_labels=True)
    with pytest.raises(FeatureFileError, match="no labels"):
        open_features(npz(X=ROWS)).labels()


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.arange(4), r"\(4,\).*do not go with"),
        (np.array([1.0, 2.5, 3.0]), "row 1 .*not a whole number: 2.5"),
        (np.array([1.0, 2.0, np.nan]), "row 2 .*not a whole number: nan"),
        (np.array(["a", "", "b"]), "row 1 .*empty"),
        (np.array([b"a", b"\xff", b"b"]), "0xff does not belong to UTF-8"),
        (np.array([1, 2, 2**64 - 1], dtype=np.uint64), "row 2 .*too large"),
        (np.array([1.0, 2.0, 1e300]), "row 2 "),
        (np.array(["a", "b", "c" * 1001]), "row 2 .*too long"),
        (np.array([1j, 2, 3]), "complex128"),
        (np.array(["a", "b", None]), "never unpickled"),
    ],
)
def test_labels_that_will_not_do(labels, match, npz):
    path = npz(X=ROWS, y=labels)
    file = open_features(path)
    assert np.array_equal(file.rows(), ROWS)  # who wants rows alone may have them
    with pytest.raises(FeatureFileError, match=match):
        file.labels()
    with pytest.raises(FeatureFileError, match=match):
        open_features(path, need_labels=True).labels()


@pytest.mark.parametrize("labels", [[1.0, 0.0, -3.0], [True, False, True], np.uint8([7, 8, 9])])
def test_whole_labels_become_ints(labels, npz):
    got = open_features(npz(X=ROWS, y=labels)).labels()
    assert got.dtype == np.int64
    assert got.tolist() == [int(label) for label in labels]


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.arange(3.0), r"\(3,\) has no rows of numbers; expected 2 dimensions"),
        (np.zeros((2, 2, 2)), r"\(2, 2, 2\) has no rows"),
        (np.array(1.0), r"\(\) has no rows"),
        (np.zeros((0, 3)), r"\(0, 3\) has no rows"),
        (np.zeros((3, 0)), r"\(3, 0\) has no rows"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.array([["a", "b"]]), "no plain numbers"),
        (np.array([[1, None]]), "never unpickled"),
        (np.zeros((2, 2), "f4,i4"), "no plain numbers"),
        (np.zeros((2, 2), "M8[s]"), "no plain numbers"),
    ],
)
def test_arrays_that_will_not_do(array, match, npz, tmp_path):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    refused(tmp_path / "a.npy", match)
    refused(npz(X=array), match)
    refused(npz(X=array, other=ROWS, y=np.arange(3)), match, features="X")


class Trap:
    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_nothing_is_unpickled(npz, tmp_path):
    trap = np.array([[Trap(), Trap()]], dtype=object)
    path = npz(X=trap, y=trap[0])
    refused(path, "never unpickled")
    np.save(tmp_path / "a.npy", trap, allow_pickle=True)
    refused(tmp_path / "a.npy", "never unpickled")
    with pytest.raises(FeatureFileError, match="never unpickled"):
        open_features(npz(X=ROWS[:1], y=trap[0, :1])).labels()


def header(shape, descr="<f4"):
    stream = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(10**15, 10**6), (4, 2), (-3, -2), (2**64, 2**64)])
@pytest.mark.parametrize("compression", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_shape_larger_than_the_file(shape, compression, tmp_path):
    data = header(shape) + ROWS.tobytes()
    path = tmp_path / ("a.npy" if compression is None else "a.npz")
    if compression is None:
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("X.npy", data)
    refused(path, "bytes")


def test_other_compressions_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("X.npy", header((3, 2)) + ROWS.tobytes())
    assert np.array_equal(open_features(tmp_path / "a.npz").rows(), ROWS)


def test_safetensors_that_will_not_do(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"X": np.arange(3.0)}, path)
    refused(path, "no rows of numbers")
    text = b'{"X":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    refused(path, "f8_e4m3")
    text = b'{"X":{"dtype":"F32","shape":[4000000000,4000000000],"data_offsets":[0,4]}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    refused(path, "cannot be read")
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    refused(path, "cannot be read")


def test_paths_that_will_not_do(tmp_path):
    refused(tmp_path / "none.npz", "no such file")
    refused(tmp_path, "is a folder")
    refused("/dev/null", "pipe or device")
    for name in ("a.npz", "a.npy", "a.safetensors", "a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(b"")
        refused(tmp_path / name, "0 bytes")
        (tmp_path / name).write_bytes(b"\x00\xffjunk\x00" * 9)
        refused(tmp_path / name, name)
    (tmp_path / "a.pkl").write_bytes(b"x")
    refused(tmp_path / "a.pkl", r"'\.pkl' is unknown.*\.npz, .*\.csv")


def test_ending_in_capitals(npz, tmp_path):
    npz(X=ROWS).rename(tmp_path / "A.NPZ")
    assert open_features(tmp_path / "A.NPZ").n_rows == 3


def damage_last_byte(path, array):
    """Change the last byte of an array that lies in the file as it is."""
    raw = bytearray(path.read_bytes())
    at = bytes(raw).index(array.tobytes("A")) + array.nbytes - 1
    raw[at] ^= 1
    path.write_bytes(raw)


READS = {
    "rows": lambda file: file.rows(),
    "blocks": lambda file: next(file.blocks(n_rows=1)),
    "later blocks": lambda file: next(file.blocks(start=2)),
    "labels": lambda file: file.labels(),
}


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8", "i2"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["X", "y", "other"])
def test_damage_in_an_array_is_told_before_it_is_used(name, dtype, order, npz):
    # Of small arrays the head cannot be read without the rest, and zipfile compares all of it.
    rows = np.asarray(np.arange(9000).reshape(3000, 3), dtype, order=order)
    arrays = {"X": rows, "y": np.arange(3000) + 10**6, "other": np.arange(3000) + 0.5}
    path = npz(**arrays)
    whole = [read(open_features(path)).tolist() for read in READS.values()]
    damage_last_byte(path, arrays[name])
    file = open_features(path)
    for (what, read), expected in zip(READS.items(), whole, strict=True):
        if (name == "y") == (what == "labels") and name != "other":
            for _ in range(2):
                with pytest.raises(FeatureFileError, match=f"CRC-32 for file '{name}.npy'"):
                    read(file)
        else:
            assert read(file).tolist() == expected
