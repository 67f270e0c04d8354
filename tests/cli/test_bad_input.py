"""Whatever is wrong: one line says what and what to do, and nothing half-written stays."""

import json
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from reference.patience import PATIENCE, halts_at, wait_for_halt
from reference.rows import long_tailed_rows

pytestmark = pytest.mark.usefixtures("model")

# Each command with a place for a good model, a features file and, where it writes, an output.
COMMANDS = {
    "fit": ["fit", "{file}", "-o", "{output}"],
    "predict": ["predict", "{model}", "{file}", "-o", "{output}.csv"],
    "evaluate": ["evaluate", "{model}", "{file}"],
    "compare": ["compare", "{model}", "model", "{file}"],
    "add-class": ["add-class", "{model}", "puffin", "{file}", "-o", "{output}"],
    "report": ["report", "{model}", "{file}", "-o", "{output}.html"],
}
WRITING = ["fit", "predict", "add-class", "report"]
JUDGING = ["predict", "evaluate", "compare", "add-class", "report"]


def command_line(name, file="birds.npz", model="model", output="out"):
    return [part.format(file=file, model=model, output=output) for part in COMMANDS[name]]


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def refused(protail, tmp_path):
    """Run a command that must fail in one line and leave the folder as it was."""

    def run(arguments, *words, code=2):
        before = everything(tmp_path)
        ended = protail(*arguments)
        assert ended.code == code, (ended.out, ended.err)
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.last_line.startswith(f"protail {arguments[0]}: ")
        for word in words:
            assert word in ended.last_line
        assert everything(tmp_path) == before
        return ended

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_file(name, refused):
    refused(command_line(name, file="nowhere.npz"), "nowhere.npz")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_for_a_file(name, refused, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    refused(command_line(name, file="folder.npz"), "folder.npz")


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors", "parquet", "csv"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_file(name, kind, refused, tmp_path):
    (tmp_path / f"empty.{kind}").touch()
    refused(command_line(name, file=f"empty.{kind}"), f"empty.{kind}", "empty")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_no_known_kind(name, refused, tmp_path):
    (tmp_path / "notes.docx").write_text("hello")
    refused(command_line(name, file="notes.docx"), ".npz", ".csv")


@pytest.mark.parametrize("name", ["fit", "evaluate", "compare"])
def test_no_labels(name, refused, write):
    write("bare.npz", long_tailed_rows()[0])
    refused(command_line(name, file="bare.npz"), "bare.npz", "label")


def test_one_class(refused, write):
    rows, _ = long_tailed_rows()
    write("one.npz", rows, np.zeros(len(rows), int))
    refused(command_line("fit", file="one.npz"), "only one class", "at least two")


@pytest.mark.parametrize("name", JUDGING)
def test_wrong_width(name, refused, write):
    write("wide.npz", *long_tailed_rows(width=7, names=list("abcde")))
    refused(command_line(name, file="wide.npz"), "wide.npz", "7 numbers", "6")


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_but_nan(name, refused, write):
    rows, labels = long_tailed_rows(names=list("abcde"))
    write("nan.npz", np.full_like(rows, np.nan), labels)
    refused(command_line(name, file="nan.npz"), "NaN")


@pytest.mark.parametrize("name", JUDGING)
@pytest.mark.parametrize("wrong", ["nowhere", "birds.npz", "empty", "torn"])
def test_a_model_that_is_none(name, wrong, refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    for file in (tmp_path / "model").iterdir():
        (tmp_path / "torn" / file.name).write_bytes(file.read_bytes()[:-40])
    refused(command_line(name, model=wrong), wrong)


@pytest.mark.parametrize("name", WRITING)
def test_an_existing_output_asks_for_overwrite(name, refused, protail, tmp_path):
    arguments = command_line(name)
    assert protail(*arguments).code == 0
    refused(arguments, "already there", "--overwrite", code=3)
    assert protail(*arguments, "--overwrite").code == 0


@pytest.mark.parametrize("name", ["fit", "add-class"])
def test_overwrite_never_replaces_what_is_no_model(name, refused, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dear.txt").write_text("to me")
    arguments = [*command_line(name, output="photos"), "--overwrite"]
    ended = refused(arguments, "photos", code=3)
    assert "model" in ended.last_line


@pytest.mark.parametrize("name", WRITING)
def test_a_file_in_the_way(name, refused, tmp_path):
    (tmp_path / "file").touch()
    refused(command_line(name, output="file/out"), "not a folder", code=3)


@contextmanager
def without_privileges():
    """Be nobody for a while: the superuser may write anywhere."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("name", WRITING)
def test_no_permission_to_write(name, protail, tmp_path):
    assert protail(*command_line(name)).code == 0  # and imports whatever nobody cannot read
    with TemporaryDirectory() as public:
        folder = Path(public)
        for entry in ("model", "birds.npz"):
            copy = shutil.copytree if (tmp_path / entry).is_dir() else shutil.copy
            copy(tmp_path / entry, folder / entry)
        (folder / "locked").mkdir()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555)
        arguments = command_line(
            name, folder / "birds.npz", folder / "model", folder / "locked" / "out"
        )
        with without_privileges():
            ended = protail(*arguments)
        assert ended.code == 3, ended.err
        assert "no permission" in ended.last_line
        assert not list((folder / "locked").iterdir())
        folder.chmod(0o755)


@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk(name, process, tmp_path):
    """A limit on the size of files stands for the full disk: the system refuses to write."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    before = everything(tmp_path)
    # Python writes compiled modules too, and where the disk is full it cuts them off unseen.
    own = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    running = process(*command_line(name), preexec_fn=limit, env=own)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 3, err
    assert "cannot be written" in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert everything(tmp_path) == before


def test_ctrl_c_while_fitting_leaves_nothing(process, tmp_path):
    halting = halts_at(tmp_path, "protail.training.loop.PlainDriver.advance", 5)
    before = set(tmp_path.rglob("*"))
    running = process("fit", "birds.npz", "-o", "out", "--epochs", "50", env=halting)
    wait_for_halt(running)
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGCONT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert err.strip().splitlines()[-1] == "stopped."
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--distance", "euclidian", "Did you mean 'euclidean'"),
        ("--temperature", "chanel", "channel"),
        ("--logit-adjustment", "much", "expected a number, auto"),
        ("--normalize", "-1", "normalize"),
        ("--epochs", "1.5", "whole number"),
        ("--prior", "even", "uniform"),
        ("--device", "abacus", "abacus"),
        ("--features", "Z", "Z"),
        ("--labels", "z", "z"),
        ("--test", "nowhere.npz", "nowhere.npz"),
    ],
)
def test_a_wrong_setting(option, value, word, refused):
    refused([*command_line("fit"), option, value], word)


def test_an_unknown_kind_of_output(refused):
    refused(["predict", "model", "birds.npz", "-o", "out.xlsx"], ".csv", ".parquet")


def test_debug_shows_where_it_came_from(protail):
    ended = protail("fit", "nowhere.npz", "-o", "out", "--debug")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert "nowhere.npz" in ended.last_line


def test_a_reader_that_goes_away_loses_no_model(process, tmp_path):
    running = process("fit", "birds.npz", "-o", "out")
    running.stdout.close()
    running.wait(PATIENCE)
    assert running.returncode == 0
    assert (tmp_path / "out" / "model.json").exists()


def test_text_that_the_terminal_cannot_show(write, process):
    write("strange.npz", *long_tailed_rows(names=["猫", "é", "\x1b[31m", "a\nb", "c"]))
    running = process(
        "fit", "strange.npz", "-o", "out", "--json", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "猫" in [c["label"] for c in json.loads(out)["evaluation"]["classes"]]
    assert err == ""
