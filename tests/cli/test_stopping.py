"""SIGTERM and Ctrl-C at any moment: a command stops at its next step, and tells how to go on.

Moments are counted in steps and calls, so that they are the same on any machine.
"""

import gc
import multiprocessing
import os
import pkgutil
import signal
import subprocess
from functools import partial

import numpy as np
import pytest

from protail.cli import sources
from protail.data.augment import InputSpec
from protail.data.images import ImageSet
from protail.experiments import Run
from protail.experiments import search as search_module
from protail.models.backbones import backbone_names, register_backbone
from protail.training.loop import PlainDriver
from protail.training.stage2 import HeadGroup
from reference.image_data import write_class_folders
from reference.small_images import TINY, tiny
from reference.stopping import at_call, in_a_finaliser
from reference.tiny_data import write_tiny

TINY_PHOTOS = "tiny-for-photos"
GO_ON = "stopped. The same command with --resume goes on from the last checkpoint."
HOW = [
    *("--set", "representation.epochs=2", "--set", "representation.precision=float32"),
    *("--device", "cpu", "--checkpoint-every", 0),
]
BACKBONE = "representation.backbone"
DRAW = ["train", "tiny.toml", "--dataset", "draw.zip", "--set", f"{BACKBONE}={TINY}", *HOW]
PHOTOS = [
    *("train", "ce", "--dataset", "photos", "--set", f"{BACKBONE}={TINY_PHOTOS}", *HOW),
    *("--set", 'representation.augment=["resized-crop"]'),
    *("--set", "representation.batch_size=6", "--from-scratch"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path):
    if TINY_PHOTOS not in backbone_names():
        register_backbone(TINY_PHOTOS)(tiny_for_photos)
    write_tiny(tmp_path)
    write_class_folders(tmp_path / "photos", {"ant": 14, "bee": 8})
    return tmp_path


def tiny_for_photos(in_channels):
    backbone = tiny(in_channels)
    backbone.input_spec = InputSpec(size=16)
    return backbone


def resolved(path):
    """Give what a dotted path stands for, as whoever has it and its name there."""
    owner, _, name = path.rpartition(".")
    return pkgutil.resolve_name(owner), name


def stopped(ended, last_line=GO_ON):
    assert ended.code == 130, ended.err
    assert ended.last_line == last_line
    assert "fault" not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("given", "number", "n_steps"),
    [(DRAW, signal.SIGINT, 13), (PHOTOS, signal.SIGTERM, 4)],
    ids=["in memory", "loader workers"],
)
def test_a_signal_in_a_finaliser_stops_a_training_at_its_next_step(
    given, number, n_steps, protail, folder, monkeypatch
):
    """The step is in the second epoch: the checkpoint of the first one is whole."""
    assert protail(*given, "-o", "whole").code == 0
    with monkeypatch.context() as patch:
        happens = partial(in_a_finaliser, number)
        steps = at_call(patch, PlainDriver, "advance", n_steps, happens)
        stopped(protail(*given, "-o", "run"))
        assert len(steps) == n_steps
    assert len(Run.open(folder / "run").metrics()) == 1
    resumed = protail(*given, "-o", "run", "--resume")
    assert resumed.code == 0, resumed.err
    assert "epoch 1/2" not in resumed.err
    for file in ("weights.safetensors", "metrics.jsonl"):
        assert (folder / "run" / file).read_bytes() == (folder / "whole" / file).read_bytes()


PLANNING = {
    "reading the data": "protail.experiments.load_data",
    "making a network": "protail.training.stage1.make_backbone",
}
TRAINING = {
    "an epoch's end": "protail.experiments.run.Run.log",
    "looking at scores": "protail.experiments.pipeline.Pipeline.evaluate_training",
    "a checkpoint": "protail.experiments.run.save_checkpoint",
    "evaluating": "protail.experiments.pipeline.evaluate_heads",
    "stage 2": "protail.training.stage2.HeadGroup.forward",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("moment", PLANNING.values(), ids=PLANNING)
def test_before_it_begins_a_signal_is_not_lost_either(moment, protail, folder, monkeypatch):
    at_call(monkeypatch, *resolved(moment), 1, in_a_finaliser)
    stopped(protail(*DRAW, "-o", "run"), "stopped.")
    assert not (folder / "run").exists()


@pytest.mark.parametrize("moment", TRAINING.values(), ids=TRAINING)
def test_a_training_is_stopped_wherever_the_signal_is_lost(moment, protail, monkeypatch):
    with monkeypatch.context() as patch:
        at_call(patch, *resolved(moment), 1, in_a_finaliser)
        stopped(protail(*DRAW, "-o", "run"))
    resumed = protail(*DRAW, "-o", "run", "--resume")
    assert resumed.code == 0, resumed.err


def test_what_is_finished_when_the_signal_comes_is_done(protail, folder, monkeypatch):
    at_call(monkeypatch, Run, "finish", 1, in_a_finaliser)
    ended = protail(*DRAW, "-o", "run")
    assert ended.code == 0, ended.err
    assert Run.open(folder / "run").finished


def test_outside_of_steps_it_stops_at_once(protail, monkeypatch):
    calls = at_call(monkeypatch, *resolved(PLANNING["making a network"]), 1, lambda: None)
    happens = partial(signal.raise_signal, signal.SIGTERM)
    at_call(monkeypatch, *resolved(PLANNING["reading the data"]), 1, happens)
    stopped(protail(*DRAW, "-o", "run"), "stopped.")
    assert calls == []


def test_a_second_ctrl_c_does_not_wait_for_the_step(protail, monkeypatch):
    reached = []

    def twice():
        signal.raise_signal(signal.SIGINT)
        reached.append("the first is heard")
        signal.raise_signal(signal.SIGINT)
        reached.append("the second is waited for")

    at_call(monkeypatch, PlainDriver, "advance", 1, twice)
    stopped(protail(*DRAW, "-o", "run"))
    assert reached == ["the first is heard"]


@pytest.mark.parametrize("reaches", ["both", "the workers"])
def test_workers_that_the_same_signal_ends_are_no_fault(reaches, protail, monkeypatch):
    """Batch systems send SIGTERM to every process of a job, in any order."""
    gc.collect()  # loaders that other tests left behind have workers too
    others = multiprocessing.active_children()

    def everywhere():
        try:
            if reaches == "both":
                signal.raise_signal(signal.SIGTERM)
        finally:
            workers = [each for each in multiprocessing.active_children() if each not in others]
            assert workers
            # From a process of its own: torch takes it otherwise where the loader sends it.
            subprocess.run(["kill", "-TERM", *(str(worker.pid) for worker in workers)], check=True)
            for worker in workers:  # gone, and left for torch to find
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

    at_call(monkeypatch, PlainDriver, "advance", 1, everywhere)
    stopped(protail(*PHOTOS, "-o", "run"))
    gc.collect()  # torch would tell whoever comes next of the workers of a loader that still lives


def test_ctrl_c_reaches_workers_and_does_not_end_them(protail, monkeypatch):
    """A terminal sends it to every process. Nothing but workers hears it here."""
    command, read = os.getpid(), ImageSet.image

    def image(images, row):
        if os.getpid() != command:
            signal.raise_signal(signal.SIGINT)
        return read(images, row)

    monkeypatch.setattr(ImageSet, "image", image)
    ended = protail(*PHOTOS, "-o", "run")
    assert ended.code == 0, ended.err


@pytest.mark.usefixtures("model")
def test_a_prediction_keeps_the_pieces_before_the_signal(write, protail, folder, monkeypatch):
    write("new.npz", np.random.default_rng(0).normal(size=(450, 6)))
    predicting = ["predict", "model", "new.npz", "-o", "out.csv"]
    monkeypatch.setattr(*resolved("protail.cli.predict._NAMED_AT_A_TIME"), 100)
    with monkeypatch.context() as patch:
        at_call(patch, sources, "ask", 2, in_a_finaliser)
        stopped(protail(*predicting), "stopped.")
    assert len(list((folder / "out.csv.parts").glob("0*.part"))) == 2
    ended = protail(*predicting, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["rows_from_earlier_start"] == 200


@pytest.mark.parametrize("varied", ["classifier.tau", "representation.lr"])
def test_a_search_goes_on_with_its_trials(varied, protail, monkeypatch):
    pytest.importorskip("optuna")
    searching = ["search", *DRAW[1:-2], "--over", varied, "--trials", 2, "--at-once", 1]
    finished = {
        "classifier.tau": (HeadGroup, "forward"),
        "representation.lr": (search_module, "evaluate"),
    }
    with monkeypatch.context() as patch:
        at_call(patch, *finished[varied], 1, in_a_finaliser)
        stopped(protail(*searching), "stopped. The same command goes on with the trials so far.")
    ended = protail(*searching, "--json")
    assert ended.code == 0, ended.err
    assert len(ended.json["trials"]) >= 2


def test_the_exit_code_of_ctrl_c_is_130_whatever_python_was_doing(process, folder):
    """CPython would end by the signal where it came in code that is given as text."""
    (folder / "slow.py").write_text('exec("import signal; signal.raise_signal(signal.SIGINT)")')
    running = process("recipes", env={**os.environ, "PROTAIL_PLUGINS": "slow.py"})
    _, err = running.communicate()
    assert (running.returncode, err) == (130, "stopped.\n")
