"""Processes that torchrun starts: what each sees, and what becomes of them when one ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from faults import rank
from protail.data.images import load_subset
from protail.experiments import Options, Pipeline, Run
from protail.recipes import load_recipe
from reference.patience import PATIENCE, patiently
from reference.plain_loop import train_in_parts
from reference.small_images import TINY
from reference.tiny_data import write_tiny

pytest.importorskip("lightning")

TRAIN = [
    *("train", "tiny.toml", "--dataset", "draw.zip", "--device", "cpu", "--checkpoint-every", "0"),
    *("--set", f"representation.backbone={TINY}"),
]
# Of an epoch, of which there are three; the last of the batches of 16 has three images.
N_IMAGES, N_STEPS = 147, 10
STANDALONE = ["--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = write_tiny(tmp_path_factory.mktemp("ranks"), n_max=37)
    (place / "temporary").mkdir()
    return place


def start(folder, launcher, *words, sent=""):
    """Start torchrun; what its processes see lies in a folder that is named like their run."""
    seen = folder / f"seen-{words[-1]}"
    seen.mkdir(exist_ok=True)
    own = {"TMPDIR": str(folder / "temporary"), "SEEN": str(seen), "SENT": sent}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *launcher, rank.__file__, *TRAIN, *words],
        cwd=folder,
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(running):
    """Wait for torchrun; give when it ended, and what protail said last."""
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode != 0
    told = [line for line in err.splitlines() if line.startswith(("protail", "stopped"))]
    assert len(told) == 1, err
    return time.time(), told[0]


def rows_of_epochs(seen, n_ranks):
    """Give the rows that all processes have seen in each epoch that was whole."""
    parts = [(seen / str(each)).read_text().splitlines() for each in range(n_ranks)]
    n_epochs = min(map(len, parts)) // N_STEPS
    epochs = [slice(epoch * N_STEPS, (epoch + 1) * N_STEPS) for epoch in range(n_epochs)]
    return [[row for p in parts for step in p[each] for row in json.loads(step)] for each in epochs]


@pytest.fixture(scope="module")
def killed(folder):
    """A run of two processes of which one was killed in the second epoch; when all had ended."""
    when, told = ended(start(folder, STANDALONE, "-o", "run", sent=f"1:14:{signal.SIGKILL:d}"))
    seen = (folder / "seen-run").rename(folder / "seen-killed")
    return when - (seen / "sent").stat().st_mtime, told, Run.open(folder / "run").metrics()


@pytest.fixture(scope="module")
def resumed(folder, killed):
    """The same run, resumed by four processes that two launchers started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [
        *("--nnodes", "2", "--nproc-per-node", "2", "--local-addr", "127.0.0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"),
    ]
    both = [start(folder, launcher, "--resume", "-o", "run") for _ in range(2)]
    told = [running.communicate(timeout=PATIENCE)[1] for running in both]
    assert [running.returncode for running in both] == [0, 0], told
    return Run.open(folder / "run")


def test_a_rank_that_is_killed_ends_all_with_one_error(folder, killed):
    seconds, told, _ = killed
    assert seconds < 30
    # torchrun may stop the other one before it has missed its peer.
    words = "another process of this training has ended", "tells which process ended"
    assert any(each in told for each in words), told
    assert "--resume goes on" in told
    assert list((folder / "temporary").glob("protail-*")) == []


def test_another_number_of_processes_goes_on(killed, resumed):
    before, metrics = killed[2], resumed.metrics()
    assert [each["step"] for each in before] == [10]
    assert metrics[0] == before[0]
    assert [each["step"] for each in metrics] == [10, 20, 30]
    assert resumed.finished


def test_every_image_is_seen_once_an_epoch(folder, resumed):
    by_two = rows_of_epochs(folder / "seen-killed", 2)
    by_four = rows_of_epochs(folder / "seen-run", 4)
    assert (len(by_two), len(by_four)) == (1, 2)
    for rows in by_two + by_four:
        assert sorted(rows) == list(range(N_IMAGES))


def test_stage_1_is_a_plain_loop_with_a_batch_norm_for_each(folder, resumed):
    settings = load_recipe(folder / "tiny.toml").with_overrides({"representation.backbone": TINY})
    expected = train_in_parts(
        settings.representation, load_subset(folder / "draw.zip"), seed=0, n_parts=[2, 4, 4]
    )
    weights = resumed.weights()
    for name, tensor in expected.items():
        np.testing.assert_allclose(weights[name], tensor, rtol=0, atol=1e-5, err_msg=name)


def test_stage_2_is_that_of_one_process(folder, resumed):
    settings = load_recipe(folder / "tiny.toml")
    alone = Pipeline(load_subset(folder / "draw.zip"), 0, Options(torch.device("cpu"), "plain"))
    alone.load(resumed)
    learned = alone.learn({"classifier": settings.classifier})["classifier"].head.state_dict()
    weights = resumed.weights()
    for name, tensor in learned.items():
        np.testing.assert_allclose(weights[f"classifier.{name}"], tensor, atol=1e-5)


def test_a_rank_that_hangs_is_not_waited_for(folder):
    """torchrun gives a process that does not end half a minute: here it is woken, to end."""
    words = ["--timeout", "4", "-o", "stopped"]
    running = start(folder, STANDALONE, *words, sent=f"1:2:{signal.SIGSTOP:d}")
    place = folder / "seen-stopped" / "sent"
    patiently(lambda: running.poll() is not None or (place.exists() and place.read_text()))
    for line in running.stderr:
        if line.startswith(("protail", "stopped")):
            break
    seconds = time.time() - place.stat().st_mtime
    os.kill(int(place.read_text()), signal.SIGKILL)
    rest = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode != 0
    assert 4 <= seconds < 30
    assert f"process 1 on {socket.gethostname()} has been silent for" in line
    assert "--resume goes on" in line
    assert "\nprotail" not in rest


@pytest.mark.slow
def test_a_first_rank_that_hangs_alone_is_not_waited_for(folder):
    """The others wait while it learns stage 2, as long as it lives; torchrun ends it."""
    words = ["--timeout", "4", "-o", "alone"]
    launcher = ["--standalone", "--nproc-per-node", "4"]
    when, told = ended(start(folder, launcher, *words, sent=f"0:0:{signal.SIGSTOP:d}"))
    assert when - (folder / "seen-alone" / "sent").stat().st_mtime < 60
    assert f"process 0 on {socket.gethostname()} has been silent for" in told
    assert rows_of_epochs(folder / "seen-alone", 4)


@pytest.mark.slow
def test_torchrun_itself_goes_on_after_a_rank_was_killed(folder):
    launcher = ["--standalone", "--nproc-per-node", "4", "--max-restarts", "1"]
    words = ["--resume", "-o", "restarted"]
    running = start(folder, launcher, *words, sent=f"3:14:{signal.SIGKILL:d}")
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    metrics = Run.open(folder / "restarted").metrics()
    assert [each["step"] for each in metrics] == [10, 20, 30]


@pytest.mark.slow
def test_what_ends_four_ranks_is_told_once(folder):
    launcher, seen = ["--standalone", "--nproc-per-node", "4"], folder / "seen-ended"
    _, told = ended(
        start(folder, launcher, "--set", "representation.batch_size=18", "-o", "refused")
    )
    assert "batch_size=18 cannot be shared by 4 processes" in told
    running = start(folder, launcher, "--set", "representation.epochs=50", "-o", "ended")
    patiently(lambda: (seen / "0").exists() and len((seen / "0").read_text()) > 1000)
    running.send_signal(signal.SIGTERM)
    _, told = ended(running)
    assert told.startswith("stopped. The same command with --resume goes on")
