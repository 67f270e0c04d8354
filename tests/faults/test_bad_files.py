"""Files that are broken, far too large once they are unpacked, or no files at all."""

import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file

from faults.readers import Form, attempt, broken, forms
from protail import PrototypeClassifier
from protail.data.images import DataSetError, load_dataset, read_image
from protail.data.tables import FeatureFileError, open_features
from protail.recipes import RecipeError, load_recipe

FUZZ = Path(__file__).parents[2] / "tools" / "fuzz.py"


@pytest.mark.filterwarnings("ignore")
def test_a_broken_file_is_read_or_refused_in_words_and_does_no_harm(tmp_path):
    """The same is done to a million files by tools/fuzz.py."""

    def hold(form: Form) -> None:
        @settings(max_examples=15)
        @given(st.randoms(use_true_random=False))
        def holds(draw):
            data = broken(draw.choice(form.seeds), draw, form.seeds)
            assert attempt(form, data, tmp_path) in ("read", "refused", "no file"), form.name

        holds()

    for form in forms().values():
        for seed in form.seeds:
            assert attempt(form, seed, tmp_path) == "read", form.name
        hold(form)


@pytest.mark.slow
def test_ten_minutes_of_broken_files():
    """Guided by the code that they reach where ``PROTAIL_ATHERIS`` names a folder with atheris."""
    guide = os.environ.get("PROTAIL_ATHERIS")
    words = ["--minutes", "10", *(["--atheris", guide] if guide else [])]
    ended = subprocess.run([sys.executable, FUZZ, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 kinds of broken promises" in ended.stdout


def header_that_unpacks_to(n_bytes):
    """Make an npy head of version 2, which says its own length."""
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", n_bytes) + b"{" + b" " * (n_bytes - 1)


def test_a_head_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path):
    for name, data in {"npz": "X", "feature data, npz": "x_train"}.items():
        form = forms()[name]
        path = tmp_path / "bomb.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(f"{data}.npy", header_that_unpacks_to(2**27))
        lies = Form(name, (), form.place, form.read, form.errors)  # nothing is declared
        assert attempt(lies, path.read_bytes(), tmp_path) == "refused"


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ("draw.json", b"{" + b" " * 2**27),
        ("train/labels.npy", header_that_unpacks_to(2**27)),
        ("draw.json", b'"shape": [4, 3, 8, 8]=>"shape": [400000000, 3, 8, 8]'),
        ("draw.json", b'"shape": [4, 3, 8, 8]=>"shape": [4, 3, 8, 800000]'),
    ],
    ids=["head", "labels", "many images", "wide images"],
)
def test_a_subset_that_asks_for_gigabytes_gets_none(entry, content, tmp_path):
    form = forms()["packed subset"]
    path = tmp_path / "whole.npz"
    path.write_bytes(form.seeds[0])
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    if b"=>" in content:
        whole = b" ".join(entries[entry].split()).replace(b"[ ", b"[").replace(b" ]", b"]")
        before, _, after = content.partition(b"=>")
        assert before in whole
        content = whole.replace(before, after)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, old_content in entries.items():
            new.writestr(name, content if name == entry else old_content)
    lies = Form("", (), form.place, form.read, form.errors)
    assert attempt(lies, path.read_bytes(), tmp_path) == "refused"


def test_a_picture_that_asks_for_gigabytes_gets_none(tmp_path):
    def chunk(name, data):
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0" * 99))
    form = forms()["image, png"]
    lies = Form("", (), form.place, form.read, form.errors)
    assert attempt(lies, data + chunk(b"IEND", b""), tmp_path) == "refused"


def test_recipes_that_extend_each_other_are_read_once_each(tmp_path):
    """Each of them asks twice for the one before."""
    for number in range(24):
        extended = f'"{number - 1}.toml"' if number else '"pc-la"'
        stages = "".join(
            f"[{stage}]\nextends = {extended}\n" for stage in ("representation", "classifier")
        )
        (tmp_path / f"{number}.toml").write_text(f'title = "T"\n{stages}')
    recipe = load_recipe(tmp_path / "23.toml")
    assert recipe.classifier == load_recipe("pc-la").classifier
    assert (recipe.name, load_recipe(tmp_path / "22.toml").name) == ("23", "22")


def test_too_many_recipes_in_a_row_are_refused(tmp_path):
    for number in range(300):
        text = f'title = "T"\n[classifier]\nextends = "{number + 1}.toml"\n'
        (tmp_path / f"{number}.toml").write_text(text)
    with pytest.raises(RecipeError, match="more than 64 files"):
        load_recipe(tmp_path / "0.toml")


# What lies in the place of a file that is read whole.
_NO_FILES = {
    "list": "given.txt",
    "list of photos": "given.csv",
    "annotations": "given.json",
    "recipe": "given.toml",
    "csv": "given.csv",
    "npz": "given.npz",
    "npy": "given.npy",
    "parquet": "given.parquet",
    "safetensors": "given.safetensors",
    "feature data": "given.safetensors",
    "image, png": "given.png",
    "packed subset": "given.npz",
    "checkpoint": "given.safetensors",
    "weights, pth": "given.pth",
    "weights": "given.safetensors",
    "result": "given.json",
    "search journal": "given.journal",
    "network, model.json": "given/model.json",
    "rows, weights.safetensors": "given/weights.safetensors",
    "weights, index": "given/weights.safetensors.index.json",
    "run, run.json": "given/run.json",
    "run, metrics.jsonl": "given/metrics.jsonl",
    "run, weights.safetensors": "given/weights.safetensors",
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are not everywhere")
@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize("name", _NO_FILES)
def test_a_pipe_does_not_hang_and_a_device_fills_no_memory(name, kind, tmp_path):
    form = forms()[name]

    def place(folder, data):
        given = form.place(folder, data)
        (folder / _NO_FILES[name]).unlink()
        if kind == "pipe":
            os.mkfifo(folder / _NO_FILES[name])
        else:
            (folder / _NO_FILES[name]).symlink_to("/dev/zero")
        return given

    replaced = Form(name, (), place, form.read, form.errors)
    assert attempt(replaced, form.seeds[0], tmp_path) == "refused"


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_a_file_that_is_cut_short_while_it_is_read(suffix, dtype, tmp_path):
    """Mapped bytes that are gone end a process by SIGBUS."""
    path = tmp_path / f"rows{suffix}"
    table = np.random.default_rng(0).integers(0, 99, (50_000, 20)).astype(dtype)
    writers = {".npy": np.save, ".npz": np.savez}
    writers.get(suffix, lambda path, rows: save_file({"X": rows}, path))(path, table)
    whole = path.read_bytes()
    file = open_features(path)
    np.testing.assert_array_equal(np.concatenate([*file.blocks(7)]), table[7:])
    mapped, rows = file.rows(), file.blocks(n_rows=10_000)
    next(rows)
    os.truncate(path, len(whole) // 2)
    with pytest.raises(FeatureFileError, match="cuts it short"):
        list(rows)
    if isinstance(mapped, np.memmap):
        with pytest.raises(ValueError, match=f"rows{suffix} has .* cuts it short"):
            PrototypeClassifier().fit(mapped, np.arange(50_000) % 2)


def test_rows_in_columns_that_are_cut_short_while_they_are_read(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5_000, 8), "float32", order="F"))
    rows = open_features(path).blocks(n_rows=10)
    next(rows)
    os.truncate(path, 5_000)
    with pytest.raises(FeatureFileError, match="cuts it short"):
        list(rows)


def test_a_table_that_has_fewer_rows_than_it_says(tmp_path):
    """The number of rows is that of the head; the columns of another file follow."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "given.parquet"
    labels = pa.array(["ant", "bee"] * 50)
    parquet.write_table(pa.table({"f": np.arange(100.0), "label": labels}), path)
    data = path.read_bytes()
    for at in range(len(data) - 400, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        try:
            file = open_features(path)
            found = file.labels() if file.has_labels else None
            assert found is None or len(found) == file.n_rows
        except FeatureFileError:
            continue


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_long_names_of_many_rows_fill_no_memory(kind, tmp_path):
    """Text lies in tables of one width: a name of 1,000 signs makes each row 4,000 bytes long."""
    path, n = tmp_path / f"given.{kind}", 300_000
    if kind == "csv":
        path.write_text("f,label\n0,ant\n" + f"0,{'b' * 1000}\n" + "0,c\n" * n)
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), ["b" * 1000])
        parquet.write_table(pa.table({"f": np.zeros(n), "label": names}), path)
    assert path.stat().st_size < 2**21
    form = forms()[kind]
    lies = Form(kind, (), form.place, lambda given: open_features(given).labels(), form.errors)
    assert attempt(lies, path.read_bytes(), tmp_path) == "refused"


_SCORES = "run, evaluation.json"
# What was once answered by an error of somebody else's, or none that names the file.
ONCE = {
    "a run's scores that are text": (_SCORES, b'"evaluation": {', b'"evaluation": "x", "was": {'),
    "a run's scores without rows": (_SCORES, b'"predicted_rows"', b'"rows"'),
    "classes that are lists": (_SCORES, b'"classes": [\n      "0"', b'"classes": [["0"]'),
    "a run's recipe with a key more": ("run, run.json", b'"title"', b'"x": 1, "title"'),
    "a width that is a list": ("run, run.json", b'"width": 5', b'"width": [5]'),
    "a record that is no text": ("checkpoint, header", b'"record": "', b'"record": 0, "was": "'),
    "a shard with an endless name": ("weights, index", b"weights-00001-of", b"w" * 300),
    "one limit of two": ("rows, model.json", b'"novelty_limit": null', b'"novelty_limit": 0.5'),
    "a journal's last line": ("search journal", b'"values":[0.25]', b'"values":[0.25'),
    "scores that are text": ("result", b'"scores": {', b'"scores": "x", "was": {'),
    "a number beyond floats": ("results", b'"imbalance": 100', b'"imbalance": 1' + b"0" * 400),
    "lists without end": ("result", b'"seed": 0,', b'"seed": ' + b"[" * 100_000),
}


@pytest.mark.parametrize(("name", "there", "instead"), ONCE.values(), ids=ONCE)
def test_damage_that_was_not_told_in_words_is(name, there, instead, tmp_path):
    form = forms()[name]
    data = form.seeds[0]
    assert there in data
    assert attempt(form, data.replace(there, instead), tmp_path) == "refused"


def _foreign_pictures():
    """Make pictures of formats that are not read; Pillow once began Ghostscript for the first."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))
    script = b"(ran) (w) file closefile showpage\n"
    found = {
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n" + script,
        "BLP": b"BLP2" + bytes(200),
        "PSD": b"8BPS\0\1" + bytes(100),
        "FLI": b"\0\0\0\0\x11\xaf" + bytes(200),
    }
    for name in ("AVIF", "DDS", "ICNS", "JPEG2000", "PCX", "SGI", "TGA"):
        with suppress(KeyError, OSError):  # Pillow may be built without it
            held = io.BytesIO()
            picture.save(held, name)
            found[name] = held.getvalue()
    return found


def test_pictures_of_other_formats_are_refused_and_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label in ("ant", "bee"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), number).save(tmp_path / "photos" / label / f"{number}.png")
    foreign = _foreign_pictures()
    assert len(foreign) >= 9
    for name, data in foreign.items():
        path = tmp_path / "photos" / "ant" / f"{name}.jpg"
        path.write_bytes(data)
        with pytest.raises(DataSetError, match=f"{name}.jpg: it cannot be read"):
            read_image(path)
    assert not (tmp_path / "ran").exists()
    kept = load_dataset("imagefolder", root=tmp_path / "photos", on_bad_image="skip")
    assert len(kept.train) + len(kept.test) == 6
