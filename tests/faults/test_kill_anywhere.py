"""Long commands are stopped anywhere; searches try again what was lost."""

import os
import signal
import subprocess
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

from faults import kill_anywhere
from protail._files import OutputError
from protail._lock import FileLock
from protail.cli import app, main
from protail.cli.search import SearchPlaces
from protail.experiments import SearchedKey
from protail.experiments.trials import Journal
from reference.patience import PATIENCE

KEYS = (SearchedKey("classifier.tau", 0.0, 1.0),)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def kill(n_kills, folder, *words):
    """Run the harness in a process of its own: it forks, and other tests have threads."""
    asked = folder / "asked"
    ended = subprocess.run(
        [sys.executable, kill_anywhere.__file__, "--kills", str(n_kills), *words],
        env={
            **os.environ,
            **{"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            "PROTAIL_TEST_NETWORK": str(asked),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 faults" in ended.stdout
    assert not asked.exists(), asked.read_text()  # no command asks for the network


def test_commands_that_are_stopped_end_as_if_nothing_had_been(tmp_path):
    kill(20, tmp_path, "--seed", "3")


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def number(request):
    """A signal as a new process has it: Ray, in another test, may have put its own handler."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = signal.signal(request.param, usual[request.param])
    yield request.param
    signal.signal(request.param, before)


def test_a_stop_before_a_command_listens_is_told(number, monkeypatch, capsys):
    module = import_module("protail.cli.app")
    monkeypatch.setattr(
        module._Commands, "__getitem__", lambda *_: signal.raise_signal(number), raising=True
    )
    monkeypatch.setattr(sys, "argv", ["protail", "fit", "rows.npz"])
    before = signal.getsignal(number)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err == "stopped.\n"
    assert signal.getsignal(number) == before


def asked(journal, n_trials, *, lost=()):
    """Ask for trials, one session each; some are stopped, and one is killed."""
    found = {}
    while len(found) < n_trials:
        number = len(found)
        with Journal(journal, {"a": 1}, KEYS, seed=5) as opened:
            trial = opened.next_trial(n_trials)
            if (number, "stopped") in lost:
                lost = [each for each in lost if each != (number, "stopped")]
                continue  # close() hands it on
            if (number, "killed") in lost:
                lost = [each for each in lost if each != (number, "killed")]
                opened._began.clear()  # nothing is told of it
                continue
            found[number] = trial.params["classifier.tau"]
            opened.end(trial, "done", found[number], {})
    return list(found.values())


def test_a_search_that_was_stopped_tries_what_an_undisturbed_one_tries(tmp_path):
    pytest.importorskip("optuna")
    whole = asked(tmp_path / "whole.journal", 14)
    lost = [(2, "stopped"), (3, "killed"), (12, "stopped"), (12, "killed")]
    assert asked(tmp_path / "stopped.journal", 14, lost=lost) == whole
    assert len(set(whole)) == 14


def test_a_stop_is_no_attempt_that_failed(tmp_path):
    """A trial that has killed three workers is given up; one that people stopped is not."""
    pytest.importorskip("optuna")
    place = tmp_path / "study.journal"
    params = set()

    def begin(end):
        with Journal(place, {"a": 1}, KEYS) as opened:
            params.add(opened.next_trial(3).params["classifier.tau"])
            raise end

    for end, n_tried in [*5 * [(KeyboardInterrupt, 1)], *3 * [(MemoryError, 1)], (MemoryError, 2)]:
        with pytest.raises(end):
            begin(end)
        assert len(params) == n_tried


def test_dead_workers_leave_no_file(tmp_path):
    pytest.importorskip("optuna")
    place = tmp_path / "study.journal"
    workers = tmp_path / "study.journal.files" / "workers"
    workers.mkdir(parents=True)
    (workers / "0123456789abcdef").touch()
    alive = FileLock(workers / "fedcba9876543210")
    with Journal(place, {"a": 1}, KEYS):
        pass
    assert [each.name for each in workers.iterdir()] == ["fedcba9876543210"]
    alive.release()


def test_a_search_that_could_not_write_its_recipe_writes_it_the_next_time(tmp_path, monkeypatch):
    """It had written the recipe first, and took it for somebody else's the next time."""
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    kill_anywhere.write_inputs(tmp_path)
    [words] = [each.words for each in kill_anywhere.commands() if each.name == "search"]
    write = SearchPlaces._write

    def full(places, place, content):
        if (tmp_path / "best.search.json").exists() or (tmp_path / "best.toml").exists():
            raise OutputError(28, "the disk is full.")
        write(places, place, content)

    with monkeypatch.context() as patch:
        patch.setattr(SearchPlaces, "_write", full)
        assert CliRunner().invoke(app, words).exit_code == 3
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert {"best.toml", "best.search.json"} <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.slow
def test_two_hundred_stops(tmp_path):
    kill(200, tmp_path, "--minutes", "12")
