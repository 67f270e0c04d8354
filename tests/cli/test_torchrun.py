"""protail train in the processes that torchrun starts."""

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from protail.cli import app
from protail.experiments import Run
from protail.models.backbones import make_backbone
from reference import left_threads
from reference.patience import PATIENCE
from reference.tiny_data import write_tiny

pytest.importorskip("lightning")
pytest.importorskip("timm")

# On a CPU each process normalises its own part of a batch, so batch norm would make the two
# trainings differ: a network without it. Batches without a rest, so that both parts are as large.
NETWORK = ["--set", "representation.backbone=timm/test_nfnet", "--set", "representation.lr=0.01"]
TRAIN = ["train", "tiny.toml", "--dataset", "draw.zip", "--device", "cpu", *NETWORK, "--json"]
N_MAX = 44  # 176 images, 11 batches of 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of two processes, and one of the same recipe by one process."""
    place = write_tiny(tmp_path_factory.mktemp("torchrun"), n_max=N_MAX)
    for name in ("temporary", "threads"):
        (place / name).mkdir()
    own = {"TMPDIR": str(place / "temporary"), "LEFT_THREADS": str(place / "threads")}
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", "2", left_threads.__file__, *TRAIN),
        ],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        alone = CliRunner().invoke(app, [*TRAIN, "--driver", "fabric", "-o", "alone"])
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert alone.exit_code == 0, alone.stderr
    (place / "out.json").write_text(out)
    return place


def test_only_the_first_process_speaks_and_keeps_a_run(folder):
    [run] = json.loads((folder / "out.json").read_text())["runs"]
    assert list((folder / "runs").iterdir()) == [folder / run["run"]]
    kept = Run.open(folder / run["run"])
    assert kept.finished
    assert kept.evaluation() == run["evaluation"]
    assert len(kept.sessions) == 1
    assert [record["step"] for record in kept.metrics()] == [11, 22, 33]


def test_the_second_process_leaves_nothing_behind(folder):
    made = {"draw.zip", "tiny.toml", "temporary", "threads", "runs", "alone", "out.json"}
    assert {place.name for place in folder.iterdir()} == made
    assert list((folder / "temporary").glob("protail-*")) == []


@pytest.mark.skipif(not left_threads.OWN.exists(), reason="threads have names on Linux alone")
def test_no_thread_of_the_group_outlives_the_work(folder):
    """One that did would abort now and then a process that has done its work."""
    left = {place.name: place.read_text() for place in (folder / "threads").iterdir()}
    assert left == {"0": "", "1": ""}


def test_two_processes_learn_what_one_does(folder):
    [place] = (folder / "runs").iterdir()
    together, alone = Run.open(place), Run.open(folder / "alone")
    for stage, modes in alone.evaluation().items():
        for mode in ("plain", "mirrored"):
            fraction = together.evaluation()[stage][mode]["all"]
            assert fraction == pytest.approx(modes[mode]["all"], abs=0.03)  # of 80 images
    assert together.evaluation()["classifier"]["plain"]["all"] > 0.5  # chance is 0.1
    # Gradients are averaged: the same steps but for rounding.
    weights, expected = together.weights(), alone.weights()
    assert weights.keys() == expected.keys()
    start = beginning()
    moved = distance({name: expected[name] for name in start}, start)
    assert distance(weights, expected) < 0.01 * moved
    # Each process knows the loss of its part of the batches; told is that of whole batches.
    losses = [[record["loss"] for record in run.metrics()] for run in (together, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def beginning():
    """Give the backbone as both trainings have begun with it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = make_backbone("timm/test_nfnet")
    return {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}


def distance(some, others):
    return sum((some[name] - others[name]).square().sum().item() for name in some) ** 0.5
