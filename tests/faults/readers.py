"""Every reader of files, with real files of its format and what it may do with broken ones.

`attempt` lets a reader read bytes and checks what is promised: it gives something or raises an
error of protail's own that names the file, within 5 seconds, with no more memory than the header
declares plus 64 MiB, runs nothing and writes nothing elsewhere.

Formats with checksums are also broken inside them: `Form.place` writes the checksums again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from protail import Network, PrototypeClassifier
from protail._files import OutputError
from protail.data.images import (
    DataSet,
    DataSetError,
    FeatureData,
    FeatureSet,
    ImageSet,
    find_photos,
    load_dataset,
    load_subset,
    read_annotations,
    read_image,
    read_list,
    save_features,
    save_subset,
)
from protail.data.images.long_tail import subset_description
from protail.data.tables import FeatureFileError, open_features
from protail.experiments import Run, RunError, SearchedKey
from protail.experiments.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from protail.experiments.trials import Journal
from protail.models import ModelFileError
from protail.models.backbones import WeightsError, save_weights
from protail.models.backbones.weights import read_checkpoint
from protail.models.heads import make_head
from protail.recipes import RecipeError, load_recipe
from protail_paper.results import ResultError, Results, read_result
from protail_paper.wanted import Experiment, Subset

SECONDS = 5.0
ROOM = 64 * 2**20
# What is read of a table that may declare any number of rows.
_BLOCKS = 2


@dataclass(frozen=True)
class Form:
    """One kind of file, and one place in it that is broken.

    ``place`` writes bytes into a folder and gives the path to read. ``declared`` gives how many
    bytes the checked header of a file asks for.
    """

    name: str
    seeds: tuple[bytes, ...]
    place: Callable[[Path, bytes], Path]
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    declared: Callable[[Path], int] = lambda path: 0


class BrokenPromiseError(AssertionError):
    """A reader has done what no reader may."""


# What is watched.

_RUNS = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
    *("pty.spawn", "socket.connect", "socket.getaddrinfo", "pickle.find_class", "webbrowser.open"),
)
_CHANGES = (
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "shutil.rmtree", "shutil.move", "shutil.copyfile", "os.utime"),
)
_watched: list[str] = []  # the folder in which a reader may write, while one reads
_seen: list[str] = []
_hooked: list[bool] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event in _RUNS:
        # torch looks a few of its own names up, which its reader allows.
        if event != "pickle.find_class" or str(arguments[0]).partition(".")[0] not in (
            *("torch", "collections"),
        ):
            _seen.append(f"{event} {arguments[:2]}")
    elif event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and isinstance(path, (str, bytes)) and not _is_inside(os.fsdecode(path)):
            _seen.append(f"open {path!r} {mode}")
    elif event in _CHANGES and isinstance(arguments[0], (str, bytes)):
        changed = os.fsdecode(arguments[0])
        _seen.extend([] if _is_inside(changed) else [f"{event} {changed!r}"])


def _is_inside(path: str) -> bool:
    inside = os.path.realpath(path)
    # Compiled modules, of what is imported only now.
    return inside.startswith((_watched[0], "/dev/null")) or "__pycache__" in inside


@contextmanager
def _watching(folder: Path) -> Iterator[None]:
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_watch)
    _seen.clear()
    _watched.append(os.path.realpath(folder))
    try:
        yield
    finally:
        _watched.clear()


def reset_peak() -> int:
    """Forget the most memory that was ever held; give what is held now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Give the most memory that was held."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # another system
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def attempt(form: Form, data: bytes, folder: Path) -> str:
    """Let a form be read from bytes; give "read" or "refused", and raise for what may not be."""
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    try:
        path = form.place(folder, data)
    except (
        ValueError,
        KeyError,
        OSError,
        RecursionError,
        OverflowError,
        zipfile.error,
        IndexError,
    ):
        return "no file"  # no such file can be made of these bytes
    declared = 0
    with suppress(Exception):
        declared = max(form.declared(path), 0)
    begin, held, result = time.process_time(), reset_peak(), "read"
    with warnings.catch_warnings(), _watching(folder):
        warnings.simplefilter("ignore")
        try:
            form.read(path)
        except form.errors as error:
            result = "refused"
            told = str(error)
            is_named = folder.name in told or path.name in told
            if not is_named and not isinstance(error, (RecipeError, OutputError)):
                raise BrokenPromiseError(f"no file is named: {told[:300]}") from error
            if len(told) > 20_000:
                raise BrokenPromiseError(f"an error of {len(told)} signs") from error
        except Exception as error:
            steps = traceback.extract_tb(error.__traceback__)
            last = next(
                each
                for each in reversed(steps)
                if "faults" in each.filename or "protail" in each.filename
            )
            place = f"{Path(last.filename).name}:{last.name}"
            raise BrokenPromiseError(
                f"{type(error).__name__} at {place}: {str(error)[:200]}"
            ) from error
    # Of the processor: another program may hold the machine for a while.
    took, grown = time.process_time() - begin, peak() - held
    if _seen:
        raise BrokenPromiseError(f"it has done: {_seen[:3]}")
    if took > SECONDS:
        raise BrokenPromiseError(f"it took {took:.1f} s")
    if grown > ROOM + declared + 16 * len(data):
        raise BrokenPromiseError(f"it took {grown >> 20} MiB; declared are {declared >> 20}")
    return result


# Breaking bytes.

_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        7,
        255,
        2**31,
        2**53,
        2**63,
        -(2**63),
        2**64,
        10**30,
        10**400,
    ),
    *(0.5, -0.0, 1e-320, 1e308, "NaN", "", "0", "a" * 5000, "../../etc/passwd", "/etc/passwd"),
    *("\x00", "\ud800", "é", [], {}, [[]], [0], [0, 0], [1, -1], {"": 0}, ["a", 1], "train"),
    *([2**40, 2**40], [1] * 40, "float32", "object", "none", "inf", "5.5"),
)
_INTERESTING = (
    *(b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00" * 8, b"\xff" * 8),
    *(b"\x80\x00\x00\x00", b"\x01\x00\x00\x00", b"{", b"}", b"[", b'"', b"\n", b",", b"\r", b" "),
    *(b"-1", b"1e999", b"NaN", b"nan", b"9" * 30, b"null", b"PK\x03\x04", b"\xef\xbb\xbf", b"\t"),
    *(b"[" * 3000, b'{"a":' * 2000, b"(" * 3000, b"\xf0\x9f\x92\xa9", b"../", b"%s", b"'"),
)


def broken(data: bytes, draw: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Break bytes in one to five places; those of JSON mostly where values stand."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        if data[:1] == b"{" and draw.random() < 0.6:
            with suppress(ValueError, RecursionError):
                data = _broken_json(data, draw)
                continue
        data = _broken_bytes(data, draw, others)
    return data


def _broken_json(data: bytes, draw: random.Random) -> bytes:
    document = json.loads(data)
    where = document
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            break
        key = draw.choice(keys)
        if isinstance(where[key], (dict, list)) and where[key] and draw.random() < 0.8:
            where = where[key]
            continue
        act = draw.random()
        if act < 0.7:
            where[key] = draw.choice(_VALUES)
        elif act < 0.8:
            del where[key]
        elif act < 0.9 and isinstance(where, dict):
            where[draw.choice(("x", "", "a.b", "extends"))] = where[key]
        elif isinstance(where, list):
            where.extend(where[: draw.choice((1, 3))])
        break
    return json.dumps(document, indent=draw.choice((None, 1, 2))).encode()


def _broken_bytes(data: bytes, draw: random.Random, others: tuple[bytes, ...]) -> bytes:
    n = len(data)
    at = draw.randrange(n + 1)
    act = draw.randrange(9)
    if act == 0 and n:  # one bit
        at = min(at, n - 1)
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    if act == 1:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if act == 2:
        return data[:at]
    if act == 3:
        return data[:at] + draw.choice(_INTERESTING) + data[at:]
    if act == 4:
        piece = draw.choice(_INTERESTING)
        return data[:at] + piece + data[at + len(piece) :]
    if act == 5:
        return data[:at] + data[at + draw.choice((1, 2, 4, 8, 64, 1000)) :]
    if act == 6:
        size = draw.choice((1, 4, 16, 100))
        return (
            data[: at + size] + data[at : at + size] * draw.choice((1, 2, 50)) + data[at + size :]
        )
    if act == 7:  # a number of text
        numbers = list(re.finditer(rb"\d+", data[:100_000]))
        if numbers:
            found = draw.choice(numbers)
            value = str(draw.choice([v for v in _VALUES if isinstance(v, int)])).encode()
            return data[: found.start()] + value + data[found.end() :]
        return data
    other = draw.choice(others or (data,))
    return data[:at] + other[draw.randrange(len(other) + 1) :]


# Files as they should be, made once.


@cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="protail-readers-"))
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (8, 4, 2))
    return (rng.normal(size=(14, 5)) + 3 * np.eye(3, 5)[labels]).astype(np.float32), labels


def _images() -> DataSet:
    labels = np.array([0, 0, 0, 1])
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    images = ImageSet(labels, ("ant", "bee"), pixels)
    about = subset_description(imbalance=3, kind="exp", selection="first", seed=0, n_max=3)
    return DataSet("insects", images, images, description=about)


def _file(name: str) -> Callable[[Path, bytes], Path]:
    def place(folder: Path, data: bytes) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return place


def _in_folder(base: Path, name: str, seal: Callable[[Path], None] = lambda folder: None) -> Any:
    """Copy a folder, with other bytes in one of its files."""

    def place(folder: Path, data: bytes) -> Path:
        there = folder / "given"
        shutil.copytree(base, there)
        (there / name).write_bytes(data)
        seal(there)
        return there

    return place


def _member(whole: bytes, name: str) -> Callable[[Path, bytes], Path]:
    """Zip the members again, with other bytes in one of them."""

    def place(folder: Path, data: bytes) -> Path:
        path = folder / "given.npz"
        with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                content = data if info.filename == name else old.read(info)
                new.writestr(info.filename, content, zipfile.ZIP_DEFLATED)
        return path

    return place


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def _unpacked(path: Path) -> int:
    """Give how large the members of an archive say that they are."""
    with zipfile.ZipFile(path) as file:
        return sum(info.file_size for info in file.infolist())


# Reading.


def _table(path: Path) -> None:
    file = open_features(path)
    for number, block in enumerate(file.blocks()):
        assert block.shape[1] == file.width
        if number >= _BLOCKS:
            break
    if file.has_labels and file.n_rows < 10**6:
        assert len(file.labels()) == file.n_rows


def _journal(path: Path) -> None:
    with Journal(path, {"a": 1}, (SearchedKey("classifier.tau", 0.0, 1.0),)) as journal:
        journal.trials()
        journal.next_trial(40)


def _run(path: Path) -> None:
    run = Run.open(path)
    run.metrics()
    run.last_checkpoint()
    if run.finished:
        Network.load(path, device="cpu")


def _network(path: Path) -> None:
    network = Network.load(path, device="cpu")
    if network.backbone is None:
        network.predict(np.zeros((2, 5), np.float32))


def _resealed_model(folder: Path) -> None:
    """Write the checksums of a model again."""
    text = (folder / "model.json").read_bytes()
    weights = (folder / "weights.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest().encode()
    text = re.sub(rb'"sha256": "[0-9a-f]{64}"', b'"sha256": "%s"' % digest, text)
    text = re.sub(rb'"bytes": \d+', b'"bytes": %d' % len(weights), text)
    body = re.sub(rb',\s*"checksum": "[^"]*"\s*\}\s*\Z', b"", text)
    ending = b',\n  "checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    (folder / "model.json").write_bytes(body + ending)


def _resealed_checkpoint(folder: Path, data: bytes) -> Path:
    """Write the checksum of a checkpoint, and the length of its head, again."""
    path = folder / "given.safetensors"
    at = data.find(b'"sha256": "')
    if at >= 0:
        at += len(b'"sha256": "')
        blank = data[:at] + b"0" * 64 + data[at + 64 :]
        data = data[:at] + hashlib.sha256(blank).hexdigest().encode() + data[at + 64 :]
    path.write_bytes(data)
    return path


def _with_length(place: Callable[[Path, bytes], Path]) -> Callable[[Path, bytes], Path]:
    """Put the length of a head before it, so that breaking the head leaves one that is read."""

    def placed(folder: Path, data: bytes) -> Path:
        head, _, rest = data.partition(b"\x00HEAD ENDS\x00")
        return place(folder, len(head).to_bytes(8, "little") + head + rest)

    return placed


def _opened(data: bytes) -> bytes:
    """Part the head of a safetensors file from the rest, for `_with_length`."""
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length] + b"\x00HEAD ENDS\x00" + data[8 + length :]


def _resealed_png(folder: Path, data: bytes) -> Path:
    """Write the checksums of the chunks again."""
    whole, at = data[:8], 8
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = data[at + 4 : at + 8 + size]
        whole += data[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        at += 12 + size
    path = folder / "given.png"
    path.write_bytes(whole)
    return path


def _pixels(path: Path) -> int:
    """Give the bytes of a picture that is decoded, turned and made RGB."""
    with Image.open(path) as image:
        width, height = image.size
        # Of 16 bits: as decoded, shifted, made 8 bits, RGB, turned.
        return 16 * width * height if width * height <= 2 * Image.MAX_IMAGE_PIXELS else 0


def _sheets(path: Path) -> int:
    with zipfile.ZipFile(path) as file:
        head = json.loads(file.read("draw.json"))
        shapes = [part["shape"] for part in head["parts"].values()]
        return _unpacked(path) + 2 * sum(int(np.prod(shape)) for shape in shapes)


def _parquet_size(path: Path) -> int:
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    groups = [about.row_group(n) for n in range(about.num_row_groups)]
    return sum(group.total_byte_size for group in groups) + 64 * about.num_rows * about.num_columns


# The forms.


@cache
def forms() -> dict[str, Form]:
    """Make every form, by name."""
    found = [
        *_tables(),
        *_lists(),
        *_pictures(),
        *_models(),
        *_of_runs(),
        *_of_results(),
    ]
    return {form.name: form for form in found}


def _tables() -> Iterator[Form]:
    import pyarrow as pa
    from pyarrow import parquet

    folder, (rows, labels) = _made(), _rows()
    names = np.array(["ant", "bee", "cat"])[labels]
    own = (FeatureFileError,)
    np.savez(folder / "plain.npz", X=rows, y=labels)
    np.savez_compressed(folder / "small.npz", X=rows.astype(np.float64), y=names)
    plain, small = (folder / "plain.npz").read_bytes(), (folder / "small.npz").read_bytes()
    yield Form("npz", (plain, small), _file("given.npz"), _table, own, _unpacked)
    parts = _members(folder / "small.npz")
    for name in ("X", "y"):
        place = _member(small, f"{name}.npy")
        yield Form(f"npz, array {name}", (parts[f"{name}.npy"],), place, _table, own, _unpacked)
    np.save(folder / "rows.npy", rows)
    yield Form("npy", ((folder / "rows.npy").read_bytes(),), _file("given.npy"), _table, own)
    lines = [f"{a:.3f},{b:.3f},{name}" for (a, b, *_), name in zip(rows, names, strict=True)]
    text = "\n".join(["f0,f1,label", *lines]).encode()
    quoted = b'id,"f 0",label\r\n1,"0.5","a,b"\r\n2,1e3,"c\nd"\r\n'
    yield Form("csv", (text, quoted), _file("given.csv"), _table, own)
    yield Form("tsv", (text.replace(b",", b"\t"),), _file("given.tsv"), _table, own)
    seeds = []
    lists = pa.array(list(rows), pa.list_(pa.float32()))
    for columns in (
        {"f0": rows[:, 0], "f1": rows[:, 1].astype(np.float64), "label": names},
        {"features": lists, "y": labels},
        {"a": labels, "label": pa.array(names).dictionary_encode()},
    ):
        stream = io.BytesIO()
        parquet.write_table(pa.table(columns), stream)
        seeds.append(stream.getvalue())
    yield Form("parquet", tuple(seeds), _file("given.parquet"), _table, own, _parquet_size)
    from safetensors.numpy import save

    data = save({"X": rows, "y": labels.astype(np.int64)})
    yield Form("safetensors", (data,), _file("given.safetensors"), _table, own)
    place = _with_length(_file("given.safetensors"))
    yield Form("safetensors, header", (_opened(data),), place, _table, own)
    part = FeatureSet(rows, labels)
    given = FeatureData("insects", ("ant", "bee", "cat"), part, part)
    save_features(folder / "data.safetensors", given, "uint8")
    data = (folder / "data.safetensors").read_bytes()
    own = (DataSetError,)
    yield Form("feature data", (data,), _file("given.safetensors"), load_dataset, own)
    yield Form("feature data, header", (_opened(data),), place, load_dataset, own)
    arrays = {"x_train": rows, "y_train": labels, "x_test": rows, "y_test": labels}
    np.savez_compressed(folder / "data.npz", **arrays)
    data = (folder / "data.npz").read_bytes()
    yield Form("feature data, npz", (data,), _file("given.npz"), load_dataset, own, _unpacked)
    parts = _members(folder / "data.npz")
    for name in ("x_train", "y_train"):
        seed = parts[f"{name}.npy"]
        place = _member(data, f"{name}.npy")
        yield Form(f"feature data, array {name}", (seed,), place, load_dataset, own, _unpacked)


def _lists() -> Iterator[Form]:
    own = (DataSetError,)
    text = b"train/ant/a b.jpg 0\r\ntrain\\bee\\c.jpg 1\nval/x.jpg 11\n"
    yield Form("list", (text,), _file("given.txt"), lambda path: read_list(path, 12), own)
    photos = b'path,label\nants/1.jpg,ant\n"b,ees/2.jpg",bee\n'
    yield Form("list of photos", (photos,), _file("given.csv"), find_photos, own)
    images = [{"id": n, "file_name": f"val/{n}.jpg", "width": 4} for n in range(3)]
    notes = [{"id": n, "image_id": n, "category_id": n} for n in range(3)]
    text = json.dumps({"images": images, "annotations": notes}).encode()
    yield Form("annotations", (text,), _file("given.json"), read_annotations, own)
    recipe = b'title = "Mine"\n[representation]\nextends = "wd"\nlr = 0.1\nepochs = 3\n'
    recipe += b'[classifier]\nextends = "pc-la"\ntau = 0.5\naugment = ["crop", "flip"]\n'
    yield Form("recipe", (recipe,), _file("given.toml"), load_recipe, (RecipeError,))
    whole = load_recipe("dro-lt/pc-la").to_toml().encode()
    yield Form("recipe, whole", (whole,), _file("given.toml"), load_recipe, (RecipeError,))


def _pictures() -> Iterator[Form]:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = {
        "jpg": [{"exif": exif}, {"progressive": True}],
        "png": [{}, {"exif": exif}],
        "webp": [{"lossless": True}, {}],
        "gif": [{}],
        "tif": [{}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}],
        "bmp": [{}],
        "ppm": [{}],
    }
    formats = {"jpg": "jpeg", "tif": "tiff"}
    for ending, many in kinds.items():
        seeds = []
        for options in many:
            stream = io.BytesIO()
            picture.save(stream, formats.get(ending, ending), **options)
            seeds.append(stream.getvalue())
        for mode in ("L", "P", "1", "I;16", "RGBA", "CMYK"):
            stream = io.BytesIO()
            with suppress(OSError, ValueError, KeyError):
                picture.convert(mode).save(stream, formats.get(ending, ending))
                seeds.append(stream.getvalue())
        place = _resealed_png if ending == "png" else _file(f"given.{ending}")
        yield Form(f"image, {ending}", tuple(seeds), place, read_image, (DataSetError,), _pixels)
    file = _made() / "subset.zip"
    save_subset(_images(), file)
    own, whole = (DataSetError,), file.read_bytes()
    yield Form("packed subset", (whole,), _file("given.npz"), load_subset, own, _sheets)
    for name, seed in _members(file).items():
        if "test/" not in name:
            place = _member(whole, name)
            yield Form(f"packed subset, {name}", (seed,), place, load_subset, own, _sheets)


def _models() -> Iterator[Form]:
    folder, (rows, labels) = _made(), _rows()
    own = (ModelFileError,)
    PrototypeClassifier(random_state=0).fit(rows, labels).save(folder / "whitened")
    paper = PrototypeClassifier(method="paper", epochs=1, random_state=0)
    paper.fit(rows, np.array(["ant", "bee", "cat"])[labels]).save(folder / "paper")
    torch.manual_seed(0)
    head = make_head("prototype", 3, 64)
    network = Network(head, ["a", "b", "c"], backbone="resnet32", device="cpu")
    network.save(folder / "network")
    Network(PrototypeClassifier(random_state=0).fit(rows, labels), device="cpu").save(
        folder / "rows"
    )
    for name in ("whitened", "paper", "network", "rows"):
        place, base = _in_folder, folder / name
        for file in ("model.json", "weights.safetensors"):
            seed = (base / file).read_bytes()
            if name == "network" and file != "model.json":
                continue  # 2 MB, and checked as the others are
            yield Form(
                f"{name}, {file}, checksums wrong", (seed,), place(base, file), _network, own
            )
            sealed = place(base, file, _resealed_model)
            if file == "model.json":
                yield Form(f"{name}, {file}", (seed,), sealed, _network, own)
            else:
                yield Form(f"{name}, {file}", (_opened(seed),), _with_length(sealed), _network, own)
    layer = torch.nn.Linear(3, 2).state_dict()
    torch.save({"epoch": 3, "state_dict": layer}, folder / "layer.pth")
    save_weights(layer, folder / "layer.safetensors")
    save_weights(layer, folder / "shards", shard_bytes=250)
    own = (WeightsError,)
    seed = (folder / "layer.pth").read_bytes()
    yield Form("weights, pth", (seed,), _file("given.pth"), read_checkpoint, own)
    parts = _members(folder / "layer.pth")
    pickled = next(name for name in parts if name.endswith("data.pkl"))
    place = _renamed(_member(seed, pickled), "given.pth")
    yield Form("weights, pth, pickle", (parts[pickled],), place, read_checkpoint, own)
    seed = (folder / "layer.safetensors").read_bytes()
    yield Form("weights", (seed,), _file("given.safetensors"), read_checkpoint, own)
    index = next((folder / "shards").glob("*.index.json"))
    place = _in_folder(folder / "shards", index.name)
    yield Form("weights, index", (index.read_bytes(),), place, read_checkpoint, own)


def _renamed(place: Callable[[Path, bytes], Path], name: str) -> Callable[[Path, bytes], Path]:
    return lambda folder, data: place(folder, data).rename(folder / name)


def _of_runs() -> Iterator[Form]:
    folder = _made()
    file = folder / "checkpoint.safetensors"
    save_checkpoint(file, {"w": torch.ones(3, 2), "n": torch.tensor([4])}, {"step": 3, "epoch": 1})
    seed, own = file.read_bytes(), (CheckpointError,)
    yield Form("checkpoint", (seed,), _file("given.safetensors"), load_checkpoint, own)
    yield Form("checkpoint, sealed", (seed,), _resealed_checkpoint, load_checkpoint, own)
    place = _with_length(_resealed_checkpoint)
    yield Form("checkpoint, header", (_opened(seed),), place, load_checkpoint, own)
    base = _trained_run(folder / "run")
    own = (RunError, CheckpointError, ModelFileError)
    for name in ("run.json", "evaluation.json", "metrics.jsonl"):
        seed = (base / name).read_bytes()
        yield Form(f"run, {name}", (seed,), _in_folder(base, name), _run, own)

    def sealed(there: Path, data: bytes) -> Path:
        given = _in_folder(base, "metrics.jsonl")(there, (base / "metrics.jsonl").read_bytes())
        _resealed_checkpoint(there, data).replace(given / "weights.safetensors")
        return given

    seed = _opened((base / "weights.safetensors").read_bytes())
    yield Form("run, weights.safetensors", (seed,), _with_length(sealed), _run, own)


def _trained_run(folder: Path) -> Path:
    """Train on the features of digits, as a command would."""
    from typer.testing import CliRunner

    from protail.cli import app

    rows, labels = _rows()
    arrays = {"x_train": rows, "y_train": labels, "x_test": rows, "y_test": labels}
    np.savez(folder.with_suffix(".npz"), **arrays)
    words = ["train", "pc-la", "--dataset", str(folder.with_suffix(".npz")), "-o", str(folder)]
    ended = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert ended.exit_code == 0, ended.output
    return folder


def _of_results() -> Iterator[Form]:
    folder = _made()
    results = Results(folder / "cells")
    scores = {"plain": {"all": 0.5, "many": 0.7, "medium": 0.5, "few": 0.1}}
    place = results.add(Experiment("wd", Subset("cifar100-lt", 100), 0), {"scores": scores})
    yield Form("result", (place.read_bytes(),), _file("given.json"), read_result, (ResultError,))

    def of_folder(path: Path) -> None:
        list(Results(path.parent))

    seed = place.read_bytes()
    yield Form("results", (seed,), _file("given.json"), of_folder, (ResultError,))
    with suppress(ImportError):
        place = folder / "study.journal"
        with Journal(place, {"a": 1}, (SearchedKey("classifier.tau", 0.0, 1.0),)) as journal:
            for score in (0.5, 0.25):
                trial = journal.next_trial(9)
                assert trial is not None
                journal.end(trial, "done", score, {"all": score})
        seed = place.read_bytes()
        own = (ValueError, OutputError)
        yield Form("search journal", (seed,), _file("given.journal"), _journal, own)
