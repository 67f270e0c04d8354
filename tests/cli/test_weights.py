"""protail weights: the backbone of a run travels and trains on."""

import json
import shutil
import signal

import pytest
import torch
from typer.testing import CliRunner

from protail.cli import app
from protail.experiments import Run
from protail.models.backbones import load_weights, make_backbone
from protail.models.backbones.weights import INDEX
from reference.patience import PATIENCE
from reference.tiny_data import write_tiny

TRAIN = ["train", "tiny.toml", "--dataset", "draw.zip", "--device", "cpu"]
QUICK = ["--set", "representation.epochs=1", "--set", "classifier.epochs=0"]
NOT_TRAINED = ["--set", "representation.epochs=0", "--set", "classifier.epochs=0"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with the data, the recipe and a run."""
    folder = write_tiny(tmp_path_factory.mktemp("weights"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = CliRunner().invoke(app, [*TRAIN, *QUICK, "-o", "run"])
    assert ended.exit_code == 0, ended.stderr
    return folder


@pytest.fixture(autouse=True)
def folder(source, tmp_path):
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def learned(folder):
    """The backbone of the run, as it was trained."""
    found = Run.open(folder / "run").weights()
    return {name[9:]: value for name, value in found.items() if name.startswith("backbone.")}


def rounded(state, dtype):
    return {
        name: value.to(dtype).float() if value.is_floating_point() else value
        for name, value in state.items()
    }


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_float16_shards_of_a_run(protail, folder, learned):
    ended = protail("weights", "run", "-o", "half", "--max-shard-size", "300KiB", "--json")
    assert ended.code == 0, ended.err
    assert ended.err == ""
    sizes = {file["name"]: file["bytes"] for file in ended.json["files"]}
    assert sizes == {file.name: file.stat().st_size for file in (folder / "half").iterdir()}
    assert len(sizes) == 5  # 0.93 MB of numbers, and the index
    assert all(size <= 300 * 1024 for size in sizes.values())
    assert protail("weights", "run", "-o", "again", "--max-shard-size", "300KiB").code == 0
    for name in sizes:
        assert (folder / "again" / name).read_bytes() == (folder / "half" / name).read_bytes()
    backbone = make_backbone("resnet32")
    load_weights(backbone, folder / "half")
    assert same(backbone.state_dict(), rounded(learned, torch.float16))


def test_it_says_what_it_wrote(protail):
    ended = protail("weights", "run", "-o", "half")
    assert ended.code == 0, ended.err
    assert "resnet32 of run: " in ended.err
    assert ended.err.strip().endswith('representation.weights = "half"')
    lines = [line.split("|") for line in ended.out.splitlines() if "weights" in line]
    assert [line[1].strip() for line in lines] == ["weights-00001-of-00001.safetensors", INDEX]
    assert all(line[2].strip().endswith("KiB") for line in lines)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types(protail, folder, learned, dtype):
    assert protail("weights", "run", "-o", "other", "--dtype", dtype).code == 0
    backbone = make_backbone("resnet32", weights=folder / "other")
    assert same(backbone.state_dict(), rounded(learned, getattr(torch, dtype)))


def test_a_recipe_starts_from_it(protail, folder, learned):
    assert protail("weights", "run", "-o", "half").code == 0
    start = ["--set", "representation.weights=half", *NOT_TRAINED]
    ended = protail(*TRAIN, *start, "-o", "next", "--json")
    assert ended.code == 0, ended.err
    begun = Run.open(folder / "next").weights()
    backbone = {name: begun[f"backbone.{name}"] for name in learned}
    assert same(backbone, rounded(learned, torch.float16))
    # Class means in the same feature space say the same.
    [run] = ended.json["runs"]
    before = Run.open(folder / "run").evaluation()["classifier"]["plain"]["all"]
    assert run["evaluation"]["classifier"]["plain"]["all"] == pytest.approx(before, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["lost", "-o", "out"], "lost: there is no such folder; expected a run", 2),
        (["half", "-o", "out"], "half: there is no run.json in it", 2),
        (["run", "-o", "half"], "half is already there", 3),
        (["run", "-o", "run"], "run is already there", 3),
        (["run", "-o", "run", "--overwrite"], "run holds something else than weights", 3),
        (["run", "-o", "tiny.toml"], "tiny.toml is already there", 3),
        (["run", "-o", "tiny.toml/out"], "a part of its path is a file", 3),
        (["run", "-o", "out.safetensors"], "a name for a file", 2),
        (["run", "-o", "out", "--max-shard-size", "much"], "--max-shard-size 'much'", 2),
        (["run", "-o", "out", "--max-shard-size", "0"], "--max-shard-size '0'", 2),
        (["run", "-o", "out", "--max-shard-size", "3ib"], "--max-shard-size '3ib'", 2),
        (["run", "-o", "out", "--max-shard-size", "9KB"], "is too small for", 2),
        (["run", "-o", "out", "--dtype", "float61"], "Did you mean 'float16'", 2),
    ],
)
def test_bad_input_is_one_line(protail, folder, arguments, words, code):
    assert protail("weights", "run", "-o", "half").code == 0
    before = sorted(folder.rglob("*"))
    ended = protail("weights", *arguments)
    assert ended.code == code
    assert ended.out == ""
    assert ended.err.startswith("protail weights: ")
    assert ended.err.count("\n") == 1
    assert words in ended.err
    assert sorted(folder.rglob("*")) == before


def test_a_run_that_is_not_finished_or_holds_no_backbone(protail, folder):
    scores = (folder / "run/evaluation.json").read_text()
    (folder / "run/evaluation.json").unlink()
    assert "this run is not finished" in protail("weights", "run", "-o", "out").last_line
    with Run.create(folder / "empty", {"seed": 0}) as run:
        run.finish(json.loads(scores), {"head.weight": torch.ones(2)})
    ended = protail("weights", "empty", "-o", "out")
    assert ended.code == 2
    assert "its weights hold no backbone" in ended.last_line
    assert not (folder / "out").exists()


def test_only_weights_are_replaced(protail, folder):
    assert protail("weights", "run", "-o", "out", "--max-shard-size", "300KiB").code == 0
    assert protail("weights", "run", "-o", "out", "--overwrite").code == 0
    assert len(list((folder / "out").iterdir())) == 2
    (folder / "out/letter.txt").write_text("dear")
    ended = protail("weights", "run", "-o", "out", "--overwrite")
    assert ended.code == 3
    assert "letter.txt" in ended.last_line
    assert (folder / "out/letter.txt").read_text() == "dear"


def full_disk():
    """A limit on the size of files stands for the full disk: the system refuses to write."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_full_disk_leaves_nothing(process, folder):
    before = sorted(folder.rglob("*"))
    running = process("weights", "run", "-o", "out", preexec_fn=full_disk)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 3
    assert out == ""
    assert err.startswith("protail weights: out cannot be written: ")
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
