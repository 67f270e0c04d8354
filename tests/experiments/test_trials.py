import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from protail._files import OutputError
from protail.experiments.trials import Journal, SearchedKey, read_searched_keys
from protail.recipes import load_recipe
from reference.patience import PATIENCE, patiently

pytest.importorskip("optuna")

KEYS = (SearchedKey("classifier.tau", 0.0, 1.0), SearchedKey("classifier.lr", 0.1, 10.0, True))
ABOUT = {"data": {"name": "easy"}, "seed": 0}

# A worker with a score that is known: best at tau 0.3, lr 1. It may be slow.
WORKER = """
import math, sys, time
from protail.experiments.trials import Journal
from protail.experiments.trials import SearchedKey
keys = (SearchedKey("classifier.tau", 0.0, 1.0), SearchedKey("classifier.lr", 0.1, 10.0, True))
path, n_trials, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with Journal(path, {"data": {"name": "easy"}, "seed": 0}, keys) as journal:
    print("ready", flush=True)
    while (trial := journal.next_trial(n_trials)) is not None:
        print("began", trial.number, flush=True)
        time.sleep(pause)
        tau, lr = trial.params["classifier.tau"], trial.params["classifier.lr"]
        journal.end(trial, "done", 1 - abs(tau - 0.3) - abs(math.log10(lr)))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "search.journal"


def open_journal(path, **options):
    return Journal(path, options.pop("about", ABOUT), options.pop("keys", KEYS), **options)


def work(journal, n_trials, score=lambda params: -abs(params["classifier.tau"] - 0.3)):
    while (trial := journal.next_trial(n_trials)) is not None:
        journal.end(trial, "done", score(trial.params))


def start_worker(path, n_trials, pause):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(n_trials), str(pause)],
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(process, word):
    for line in process.stdout:
        if line.startswith(word):
            return
    raise AssertionError(f"the worker never said {word!r}")


def look(trial, place, score):
    trial.report(score, place)
    return trial.should_prune()


def params_of(journal):
    return [trial.params for trial in journal.trials()]


def test_finds_the_optimum(path):
    with open_journal(path) as journal:
        work(journal, 60)
        trials = journal.trials()
    assert len(trials) == 60
    best = max(trials, key=lambda trial: trial.score)
    assert abs(best.params["classifier.tau"] - 0.3) < 0.03
    # It learns: the later half is nearer than the first ones, which are drawn blindly.
    first, last = trials[:10], trials[40:]
    assert sum(t.score for t in last) / len(last) > 2 * sum(t.score for t in first) / len(first)


def test_values_stay_in_their_ranges(path):
    recipe = load_recipe("pc-la")
    texts = ["classifier.normalize=choice:none,10", "classifier.epochs=1:3", "classifier.lr"]
    keys = read_searched_keys(texts, recipe)
    with open_journal(path, keys=keys) as journal:
        work(journal, 25, lambda params: 0.5)
        for params in params_of(journal):
            assert all(key.holds(params[key.key]) for key in keys)
            assert isinstance(params["classifier.epochs"], int)
            recipe.with_overrides(params)


def test_goes_on_where_it_was_as_if_it_had_never_stopped(path, tmp_path):
    with open_journal(path) as journal:
        work(journal, 24)
        whole = params_of(journal)
    other = tmp_path / "other.journal"
    for n_trials in (5, 15, 24, 10):
        with open_journal(other) as journal:
            work(journal, n_trials)
    with open_journal(other) as journal:
        assert params_of(journal) == whole


def test_begins_with_what_the_recipe_says(path):
    first = {"classifier.tau": 0.25, "classifier.lr": 4.0}
    with open_journal(path, first=first) as journal:
        work(journal, 3)
        assert params_of(journal)[0] == first
        assert params_of(journal)[1] != first


def test_seeds_differ(path, tmp_path):
    with open_journal(path) as one, open_journal(tmp_path / "b", seed=1) as two:
        work(one, 2)
        work(two, 2)
        assert params_of(one) != params_of(two)


def test_several_open_trials_of_one_process_differ(path):
    with open_journal(path) as journal:
        opened = [journal.next_trial(4) for _ in range(5)]
        assert opened[4] is None
        assert len({trial.params["classifier.tau"] for trial in opened[:4]}) == 4
        for trial in reversed(opened[:4]):
            journal.end(trial, "done", 0.5, {"all": 0.25})
        assert [trial.scores for trial in journal.trials()] == [{"all": 0.25}] * 4


def test_diverged_ones_are_avoided(path):
    with open_journal(path) as journal:
        while (trial := journal.next_trial(50)) is not None:
            if trial.params["classifier.lr"] > 1:
                journal.end(trial, "diverged")
            else:
                journal.end(trial, "done", 0.5)
        trials = journal.trials()
    assert {trial.state for trial in trials} == {"done", "diverged"}
    assert sum(trial.state == "diverged" for trial in trials[25:]) < 10


def test_what_a_closed_worker_had_begun_is_tried_again(path):
    with open_journal(path) as journal:
        lost = journal.next_trial(5).params
    with open_journal(path) as journal:
        assert journal.trials()[0].state == "lost"
        assert journal.next_trial(5).params == lost


def test_a_trial_that_kills_its_workers_is_given_up(path):
    for _ in range(3):
        with open_journal(path) as journal:
            params = journal.next_trial(5).params
    with open_journal(path) as journal:
        assert journal.next_trial(5).params != params
        assert [trial.state for trial in journal.trials()] == ["lost"] * 3 + ["running"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a PostgreSQL server on this machine, where one is installed."""
    pytest.importorskip("psycopg", reason="psycopg, for PostgreSQL, is not installed")
    if not (shutil.which("initdb") and shutil.which("pg_ctl")):
        pytest.skip("PostgreSQL is not installed")
    # It refuses to run as root, and others may not look into pytest's own folders.
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="protail-postgres-") as folder, socket.socket() as free:
        if user:
            shutil.chown(folder, user)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        how = {"cwd": folder, "user": user, "check": True, "stdout": subprocess.DEVNULL}
        make = ["initdb", "-D", "data", "-U", "protail", "--auth=trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, **how)
        control = ["pg_ctl", "-D", "data", "-w", "-l", "log"]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        subprocess.run([*control, "-o", options, "start"], **how)
        try:
            yield f"postgresql://protail:secret@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **how)


@pytest.fixture(params=["file", "database"])
def shared(request, path):
    """Give a journal that processes may share."""
    if request.param == "file":
        return str(path)
    psycopg = pytest.importorskip("psycopg", reason="psycopg, for PostgreSQL, is not installed")

    address = request.getfixturevalue("server")
    name = f"search_{secrets.token_hex(4)}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{address.rpartition('/')[0]}/{name}"


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
def test_of_three_workers_one_is_killed_and_no_trial_is_lost_or_counted_twice(shared):
    victim = start_worker(shared, 12, PATIENCE)
    wait_for(victim, "began 0")
    others = [start_worker(shared, 12, 0.05) for _ in range(2)]
    for other in others:
        wait_for(other, "began")
    victim.kill()
    victim.communicate()
    for other in others:
        other.communicate(timeout=PATIENCE)
        assert other.returncode == 0
    with open_journal(shared) as journal:
        work(journal, 12)  # what the others could not know of, where they were faster than the kill
        trials = journal.trials()
    assert [trial.state for trial in trials].count("done") == 12
    lost, *rest = trials
    assert lost.state == "lost"
    assert [trial.state for trial in rest] == ["done"] * 12
    assert [trial.params for trial in rest].count(lost.params) == 1
    assert len({trial.params["classifier.tau"] for trial in rest}) == 12
    if "://" not in shared:
        assert list(Path(f"{shared}.files", "workers").iterdir()) == []


def test_each_search_is_a_study_of_its_own_in_a_database(server):
    for seed in (0, 1, 0):
        with open_journal(server, about={"seed": seed}) as journal:
            work(journal, 2 + 2 * len(journal.trials()))
            assert len(journal.trials()) in (2, 6)
    assert len(journal.trials()) == 6


def test_what_a_stopped_worker_had_begun_is_tried_again_from_a_database(server):
    journal = open_journal(server, about={"stopped": 1})
    begun = journal.next_trial(2)
    journal.close(stopped=True)
    with open_journal(server, about={"stopped": 1}) as journal:
        assert journal.next_trial(2).params == begun.params


def test_a_database_that_does_not_answer_is_told_without_its_password(server):
    address = server.rpartition("/")[0] + "/nowhere"
    with pytest.raises(ValueError, match=r"gave no answer .*nowhere.* does not exist") as told:
        open_journal(address)
    assert "secret" not in str(told.value)


def test_a_database_that_is_gone_is_told(server):
    import psycopg

    others = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"

    def score(params):
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"{others} and backend_type = 'client backend'")
        return 0.5

    def search():
        with open_journal(server) as journal:
            work(journal, 2, score)

    with pytest.raises(ValueError, match="gave no answer"):
        search()
    with open_journal(server) as journal:  # and the trial is tried again
        work(journal, 2)
        assert [trial.state for trial in journal.trials()] == ["lost", "done", "done"]


def test_another_kind_of_database_is_told(path):
    with pytest.raises(ValueError, match=r"begins with mysql://; expected .*postgresql://name"):
        open_journal("mysql://me@here/trials")


def test_the_driver_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install .*\[postgres\]"):
        open_journal("postgresql://me@here/trials")


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
def test_the_trial_of_a_killed_worker_is_tried_by_another(path):
    victim = start_worker(path, 8, PATIENCE)
    wait_for(victim, "began 0")
    with open_journal(path) as journal:
        mine = journal.next_trial(8)  # the other one is alive: this is another trial
        assert mine.number == 1
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        journal.end(mine, "done", 0.5)
        work(journal, 8)
        trials = journal.trials()
    victim.stdout.close()
    assert trials[0].state == "lost"
    assert trials[2].params == trials[0].params
    assert [trial.state for trial in trials].count("done") == 8


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
def test_killed_at_any_moment_the_journal_can_be_gone_on_with(path):
    def work_for_ever():
        with open_journal(path) as journal:
            work(journal, 10_000)

    with open_journal(path):
        pass
    for moment in range(12):
        size = path.stat().st_size
        worker = multiprocessing.get_context("fork").Process(target=work_for_ever)
        worker.start()
        patiently(lambda: path.stat().st_size >= size + 3000)  # noqa: B023
        time.sleep(0.0017 * moment)
        worker.kill()
        worker.join()
        worker.close()
    with open_journal(path) as journal:
        done = sum(trial.state == "done" for trial in journal.trials())
        work(journal, done + 5)
        states = [trial.state for trial in journal.trials()]
    assert done >= 12
    assert states.count("done") == done + 5
    assert "running" not in states


def test_a_line_that_is_not_whole_is_cut_off(path):
    with open_journal(path) as journal:
        work(journal, 3)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"worker')
    with open_journal(path) as journal:
        work(journal, 5)
        assert len(journal.trials()) == 5
    assert path.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_another_search_is_refused_and_says_what_differs(path):
    with open_journal(path) as journal:
        work(journal, 2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"another search.*data\.name.*easy.*hard") as told:
        open_journal(path, about={"data": {"name": "hard"}, "seed": 0})
    assert str(path) in str(told.value)
    assert path.read_bytes() == before


def test_a_journal_of_something_else_is_left_as_it_is(path):
    import optuna

    path.parent.mkdir()
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="mine")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no journal of a search"):
        open_journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"title = 'mine'", b'{"a": 1}\n', b'{"op_code": 1}\n[]\n'])
def test_a_file_that_is_no_journal_is_left_as_it_is(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no journal of a search"):
        open_journal(path)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(OutputError, match="cannot be written"):
        open_journal(tmp_path / "file" / "search.journal")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="is no journal of a search"):
        open_journal(tmp_path / "folder")


def test_optuna_missing_is_told(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install .*\[train\]"):
        open_journal(path)
    assert not path.parent.exists()


def test_an_unknown_pruner_is_told(path):
    with pytest.raises(ValueError, match="Did you mean 'median'"):
        open_journal(path, pruner="medain")


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruners_give_up_what_looks_bad(path, pruner):
    """Good ones score 0.9 all the way, bad ones 0.1."""
    with open_journal(path, pruner=pruner, n_evaluations=9) as journal:
        ends = []
        while (trial := journal.next_trial(16)) is not None:
            score = 0.9 if trial.number % 2 else 0.1
            if any(look(trial, place, score) for place in range(1, 10)):
                ends.append((trial.number % 2, journal.end(trial, "pruned").state))
            else:
                journal.end(trial, "done", score)
        trials = journal.trials()
    assert (0, "pruned") in ends
    assert sum(good for good, _ in ends) <= len(ends) / 4
    pruned = next(trial for trial in trials if trial.state == "pruned")
    assert pruned.score is None
    assert set(pruned.looks) <= {0.1, 0.9}
    assert len(pruned.looks) >= 1


def test_without_a_pruner_nothing_is_given_up(path):
    with open_journal(path) as journal:
        for _ in range(8):
            trial = journal.next_trial(8)
            assert not any(look(trial, place, 0.0) for place in range(1, 10))
            journal.end(trial, "done", trial.number)


def test_needs_no_database(path):
    """Optuna's journal must work where SQLAlchemy is not installed."""
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'alembic', 'yaml', 'scipy', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['', sys.argv[1], '12', '0']\n" + WORKER
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, stdout=subprocess.DEVNULL)
    with open_journal(path) as journal:
        assert len(journal.trials()) == 12
