"""Every long command is stopped at random moments, and must end as if nothing had been.

    python tests/faults/kill_anywhere.py --kills 200 --seed 0

Each command runs in a process that is forked from this one, which has imported everything: so a
stop hits work, not imports. Ways to stop it: SIGKILL, SIGTERM, SIGINT, a disk that is full (of
another size each time; with --disk one that becomes full), a folder that becomes read-only, and the
same command in a second process while the first one halts. The same command then goes on. Checked:
its last line and its exit code, what it says is finished and must never be lost or written again,
files that nobody asked for, and at the end every byte of what an undisturbed run gives.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import hashlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open
from sklearn.datasets import load_digits

from protail.cli import main
from protail.data.images import DataSet, ImageSet, save_subset
from protail.data.images.long_tail import long_tailed_counts, subset_description
from protail.experiments import Run
from reference.small_images import TINY

SIGNALS = {name: getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT")}
WAYS = (*SIGNALS, "full disk", "read-only", "second")
# What the second of two processes on one place is told, or the first where the second was faster.
_TOLD = ("is being written by", "is already there", "is finished")
# Seconds after which a process is taken for hung.
_PATIENCE = 300
_RECIPE = f"""
title = "Digits in seconds"

[representation]
extends = "wd"
backbone = "{TINY}"
epochs = 4
batch_size = 16
lr = 0.05
precision = "float32"

[classifier]
extends = "pc-la"
augment = ["crop"]
precision = "float32"
"""
_MINUTE = re.compile(rb"\d+ \w+ \d{4}, \d\d:\d\d UTC")
_CLOCKS = {
    *("seconds", "about", "started", "finished", "sessions", "took", "when", "duration"),
    *("created", "trained", "elapsed"),
}


@dataclass(frozen=True)
class Command:
    """A long command, what it leaves, and what must not be lost of it.

    ``finished`` gives, by name, what is done for good while it runs: the same later on.
    """

    name: str
    words: list[str]
    finished: Callable[[Path], dict[str, Any]]
    goes_on: tuple[str, ...] = ()
    is_shared: bool = False  # whether several processes may work on it together
    seconds: float = field(default=0.0, compare=False)


# The data: scikit-learn's handwritten digits, long-tailed.


def write_inputs(folder: Path) -> None:
    """Write digits as a subset, a table of rows, photos; and the models that commands take."""
    images, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")
    images, labels = images[order], labels[order]
    counts = long_tailed_counts(24, 10, 6)
    rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
    train, test = rank < counts[labels], (rank >= 100) & (rank < 105)
    about = subset_description(imbalance=6, kind="exp", selection="first", seed=0, n_max=24)
    sets = [_image_set(images[each], labels[each]) for each in (train, test)]
    save_subset(DataSet("digits", *sets, description=about), folder / "digits.zip")
    (folder / "digits.toml").write_text(_RECIPE)
    np.savez(folder / "rows.npz", X=images[train].astype(np.float32), y=labels[train])
    np.savez(folder / "new.npz", X=np.tile(images, (12, 1)).astype(np.float32))
    for number, (image, label) in enumerate(zip(images[train], labels[train], strict=True)):
        place = folder / "photos" / f"digit {label}" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_pixels(image[None])[0, 0]).save(place)
    _write_bench_subset(folder / "bench.zip", images, labels)


def _pixels(images: Any, times: int = 2) -> Any:
    square = (images.reshape(-1, 1, 8, 8) * 15.9375).astype(np.uint8)
    return np.repeat(np.repeat(np.repeat(square, 3, 1), times, 2), times, 3)


def _image_set(images: Any, labels: Any, times: int = 2) -> ImageSet:
    names = tuple(f"digit {code}" for code in range(10))
    return ImageSet(labels, names, _pixels(images, times))


def _write_bench_subset(file: Path, images: Any, labels: Any) -> None:
    """Write digits in the place of CIFAR-10-LT, so that a table can be run in seconds."""
    counts = long_tailed_counts(100, 10, 100)
    chosen = np.concatenate([np.flatnonzero(labels == y)[: counts[y]] for y in range(10)])
    tested = np.concatenate([np.flatnonzero(labels == y)[110:114] for y in range(10)])
    about = subset_description(imbalance=100, kind="exp", selection="shuffled", seed=0, n_max=100)
    sets = [_image_set(images[each], labels[each], 1) for each in (chosen, tested)]
    save_subset(DataSet("cifar10-lt", *sets, description=about), file)


# The commands.

_CPU = ("--device", "cpu")


def commands() -> list[Command]:
    """List the long commands, the cheapest first."""
    small = [
        *(
            "representation.epochs=2",
            "representation.precision=float32",
            "representation.warm_up_epochs=1",
        ),
        *("classifier.precision=float32", "classifier.max_steps=2"),
        *("classifier.augment=['flip']", "representation.batch_size=64"),
    ]
    tiny = [word for each in small for word in ("--set", each)]
    return [
        Command(
            "predict",
            ["predict", "model", "new.npz", "-o", "out.csv", "-k", "3", *_CPU],
            _pieces,
        ),
        Command("fit", ["fit", "rows.npz", "-o", "fitted", "--overwrite", *_CPU], _nothing),
        Command(
            "fit photos",
            [*("fit", "photos", "-o", "fitted", "--backbone", "run", "--overwrite"), *_CPU],
            _nothing,
        ),
        Command(
            "embed",
            ["embed", "photos", "-o", "photos.npz", "--backbone", "run", "--overwrite", *_CPU],
            _features,
        ),
        Command(
            "train",
            [
                *("train", "digits.toml", "--dataset", "digits.zip", "-o", "trained"),
                *("--checkpoint-every", "0", *_CPU),
            ],
            _epochs,
            goes_on=("--resume",),
        ),
        Command(
            "search",
            [
                *("search", "digits.toml", "--dataset", "digits.zip", "--trials", "6", *_CPU),
                *("--over", "representation.lr=0.01:0.1:log", "--set", "representation.epochs=1"),
            ],
            _trials,
            is_shared=True,
        ),
        Command(
            "bench",
            [
                *("bench", "table9", "--subset", "bench.zip", "--backbone", "ResNet-32"),
                *(
                    "--only",
                    "ce-resnet32 *, seed 0",
                    "--only",
                    "ce-resnet32 *, seed 1",
                    "--at-once",
                    "1",
                ),
                *(*tiny, *_CPU),
            ],
            _results,
        ),
    ]


def _nothing(folder: Path) -> dict[str, Any]:
    return {}


def _pieces(folder: Path) -> dict[str, Any]:
    """Give the whole pieces of a prediction: once their rows are in the output, that."""
    if (folder / "out.csv").exists():
        return {}
    pieces = sorted((folder / "out.csv.parts").glob("0*.part"))
    return {each.name: _identity(each) for each in pieces}


def _features(folder: Path) -> dict[str, Any]:
    if (folder / "photos.npz").exists():
        return {}
    found = sorted((folder / "photos.npz.features").glob("*.safetensors"))
    return {each.name: _identity(each) for each in found}


def _epochs(folder: Path) -> dict[str, Any]:
    """Give the lines of the epochs that the last checkpoint holds."""
    if not (folder / "trained" / "run.json").exists():
        return {}
    run = Run.open(folder / "trained")
    last = run.last_checkpoint()
    step = float("inf") if run.finished else -1 if last is None else last.record["step"]
    lines = [line for line in run.metrics() if line["step"] <= step]
    assert len({(line["step"], *line) for line in lines}) == len(lines), "an epoch is told twice"
    return {f"line {number}": line for number, line in enumerate(lines)}


def _trials(folder: Path) -> dict[str, Any]:
    """Give the trials of the journal that have their score."""
    journal = folder / "best.search.journal"
    if not journal.exists():
        return {}
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(journal)))
    found = {}
    for study in storage.get_all_studies():
        for trial in storage.get_all_trials(study._study_id):
            if trial.state == optuna.trial.TrialState.COMPLETE:
                found[f"trial {trial.number}"] = (trial.params, trial.values)
    return found


def _results(folder: Path) -> dict[str, Any]:
    cells = sorted((folder / "results" / "cells").rglob("*.json"))
    return {str(each.relative_to(folder)): _identity(each) for each in cells}


def _identity(file: Path) -> tuple[int, int, str]:
    """Tell a file from one that was written again with the same content."""
    status = file.stat()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return status.st_ino, status.st_mtime_ns, digest


def outcome(folder: Path, inputs: set[str]) -> dict[str, Any]:
    """Give all that a command has left, but for clocks; nothing else may be there."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if name.split("/")[0] in inputs or "tensorboard/" in name:
            continue
        if file.parent.name == "fitted.features" and file.suffix == ".safetensors":
            # As many files as it took; whoever reads them reads all.
            with safe_open(file, "numpy") as kept:
                pairs = zip(kept.get_tensor("digests"), kept.get_tensor("rows"), strict=True)
                found |= {f"features {key.tobytes()!r}": row.tobytes() for key, row in pairs}
            continue
        if file.is_dir():
            found[name] = "a folder"
        elif file.name == "best.search.json":
            found[name] = _trials_told(json.loads(file.read_bytes()))
        elif file.suffix == ".json" and file.name != "model.json":
            found[name] = _without_clocks(json.loads(file.read_bytes()))
        elif file.name in ("best.search.journal", "best.search.png", "lock"):
            found[name] = "there"
        else:
            content = file.read_bytes().replace(os.fsencode(folder), b"HERE")
            found[name] = hashlib.sha256(_MINUTE.sub(b"", content)).hexdigest()
    return found


def _trials_told(record: Any) -> Any:
    """Give a search without the trials that were lost, and tried again under another number."""
    trials = [each for each in record.pop("trials") if each["state"] != "lost"]
    record["best"].pop("number")
    for trial in trials:
        trial.pop("number")
    return _without_clocks({**record, "trials": trials})


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clocks(each) for key, each in value.items() if key not in _CLOCKS}
    return [_without_clocks(each) for each in value] if isinstance(value, list) else value


# Processes.


@dataclass
class Ended:
    """How a command has ended."""

    code: int
    err: str

    @property
    def last_line(self) -> str:
        """The last line of standard error."""
        return (self.err.strip().splitlines() or [""])[-1]


class Process:
    """A forked process that runs a command in a folder.

    Parameters
    ----------
    words : list of str
        The command.
    folder : Path
        Where it runs.
    most_bytes : int, optional
        No file of it may be larger, as on a disk that is full.
    obeys : bool
        Whether a process of root, too, writes no more than permissions say.
    """

    def __init__(
        self, words: list[str], folder: Path, *, most_bytes: int | None = None, obeys: bool = False
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._err, err = os.pipe()  # nothing here says more than a pipe holds
        self.pid = os.fork()
        if self.pid:
            os.close(err)
            return
        code = 1
        try:
            atexit._clear()
            os.setsid()
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(err, 2)
            os.close(err)
            os.close(self._err)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - to the end of the process
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
            if obeys and os.geteuid() == 0:
                _obey_permissions()
            sys.argv = ["protail", *words]
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            with suppress(BaseException):
                traceback.print_exc()
                sys.stderr.flush()
        finally:
            os._exit(code)

    def end(self) -> Ended:
        """Wait for it, and for all that it has started."""
        end = time.monotonic() + _PATIENCE
        found = 0
        while not found:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            assert time.monotonic() < end, "it hangs"
            time.sleep(0.002)
        while _group_lives(self.pid):
            assert time.monotonic() < end, "what it has started outlives it"
            time.sleep(0.01)
        with open(self._err, "rb") as said:
            err = said.read().decode(errors="replace")
        return Ended(os.waitstatus_to_exitcode(status), err)


def _obey_permissions() -> None:
    """Let a process of root write no more than permissions say: it gives up its capabilities."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if library.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# Lives of a command.


class Harness:
    """Undisturbed runs of all commands, and folders in which they are disturbed."""

    def __init__(self, root: Path, chosen: list[Command]) -> None:
        self.root, self.commands = root, chosen
        self.base = root / "base"
        self.base.mkdir()
        write_inputs(self.base)
        self._make(["fit", "rows.npz", "-o", "model", *_CPU])
        self._make(["train", "digits.toml", "--dataset", "digits.zip", "-o", "run", *_CPU])
        self.inputs = {each.name for each in self.base.iterdir()}
        self.seconds: dict[str, float] = {}
        self.expected: dict[str, dict[str, Any]] = {}
        self.largest: dict[str, int] = {}
        self.tally: Counter[tuple[str, str]] = Counter()
        self.too_late = 0
        for command in chosen:
            self._run_undisturbed(command)

    def _make(self, words: list[str]) -> None:
        end = Process(words, self.base).end()
        assert end.code == 0, end.err

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Give a folder with the inputs."""
        place = Path(tempfile.mkdtemp(dir=self.root))
        try:
            for each in self.base.iterdir():
                (place / each.name).symlink_to(each)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run_undisturbed(self, command: Command) -> None:
        with self.folder() as place:
            begin = time.monotonic()
            end = Process(command.words, place).end()
            self.seconds[command.name] = time.monotonic() - begin
            assert end.code == 0, end.err
            self.expected[command.name] = outcome(place, self.inputs)
            files = (each for each in place.rglob("*") if each.is_file() and not each.is_symlink())
            self.largest[command.name] = max(each.stat().st_size for each in files)

    def stop(self, command: Command, ways: list[str], draw: random.Random) -> None:
        """Stop a command in some ways, one after the other; then let it come to its end."""
        with self.folder() as place:
            before: dict[str, Any] = {}
            history = []
            for way in ways:
                has_begun = len(os.listdir(place)) > len(self.inputs)
                words = [*command.words, *(command.goes_on if has_begun else ())]
                if way == "second" and command.is_shared:
                    way = "SIGTERM"
                end = self._disturbed(command, words, way, place, draw)
                history.append(f"{way}: {end.code} {end.last_line[:200]}")
                if self._is_whole(command, end, place):
                    self.too_late += 1
                    break
                # In a folder that has become read-only nothing can be removed either.
                left = {"SIGKILL", "read-only"} & {*ways[: len(history)]}
                self._check(command, way, end, place, bool(left))
                before = self._check_kept(command, before, place, history)
                if end.code != 0 or way == "second":
                    self.tally[command.name, way] += 1
                if end.code == 0:
                    self.too_late += way != "second"
                    break
            else:
                has_begun = len(os.listdir(place)) > len(self.inputs)
                words = [*command.words, *(command.goes_on if has_begun else ())]
                end = Process(words, place).end()
                is_whole = self._is_whole(command, end, place)
                assert end.code == 0 or is_whole, (
                    f"{command.name} does not go on after {history}: {end.err}"
                )
                self._check_kept(command, before, place, history)
            found, expected = outcome(place, self.inputs), self.expected[command.name]
            if (end.code == 0 and way in ("read-only", "second")) or end.code == 3:
                # Finished, but it could not clear away, or another one finished first.
                found = {name: each for name, each in found.items() if name in expected}
            differing = [
                name for name in {*found, *expected} if found.get(name) != expected.get(name)
            ]
            assert not differing, f"{command.name} after {history}: other or left: " + "; ".join(
                f"{name}: {expected.get(name)} became {found.get(name)}"[:600]
                for name in sorted(differing)[:4]
            )

    def _disturbed(
        self, command: Command, words: list[str], way: str, place: Path, draw: random.Random
    ) -> Ended:
        # No sooner than Python listens: before that any process ends by the signal itself.
        moment = 0.03 + draw.random() * self.seconds[command.name]
        if way == "full disk" and not os.path.ismount(self.root):
            room = int(draw.random() ** 2 * self.largest[command.name])
            return Process(words, place, most_bytes=room).end()
        process = Process(words, place, obeys=way == "read-only")
        time.sleep(moment)
        if way == "second":
            return self._two(command, process, place)
        if way == "full disk":
            with self._filled():
                return process.end()
        if way == "read-only":
            folders = [place, *(each for each in place.rglob("*") if _is_own_folder(each))]
            for each in folders:
                each.chmod(0o555)
            try:
                return process.end()
            finally:
                for each in folders:
                    with suppress(OSError):
                        each.chmod(0o755)
        with suppress(ProcessLookupError):
            # A terminal and batch systems send these to all of a job.
            (os.kill if draw.random() < 0.5 else os.killpg)(process.pid, SIGNALS[way])
        return process.end()

    @contextmanager
    def _filled(self) -> Iterator[None]:
        """Fill the disk to its last byte for a while."""
        filler = self.root / "filler"
        for size in (2**20, 2**12):
            with suppress(OSError), filler.open("ab", buffering=0) as file:
                while file.write(bytes(size)):
                    pass
        try:
            yield
        finally:
            filler.unlink()

    def _two(self, command: Command, first: Process, place: Path) -> Ended:
        """Halt the first process, let a second one try, and let the first one go on."""
        os.kill(first.pid, signal.SIGSTOP)
        has_begun = len(os.listdir(place)) > len(self.inputs)
        words = [*command.words, *(command.goes_on if has_begun else ())]
        second = Process(words, place).end()
        os.kill(first.pid, signal.SIGCONT)
        ends = [first.end(), second]
        for end in ends:
            self._check(command, "second", end, place, True)
        return min(ends, key=lambda end: end.code)

    def _check(self, command: Command, way: str, end: Ended, place: Path, was_killed: bool) -> None:
        """Check how a command ends, and that it leaves no file that nobody knows."""
        told = f"{command.name}, {way}: code {end.code}, said {end.err}"
        assert "fault of protail" not in end.err, told
        assert "Traceback" not in end.err, told
        if way == "SIGKILL":
            assert end.code in (0, -signal.SIGKILL), told
        elif way in SIGNALS:
            assert end.code in (0, 130), told
            assert end.code == 0 or end.last_line.startswith("stopped."), told
        elif way == "second":
            is_told = any(words in end.last_line for words in _TOLD)
            assert end.code == 0 or (end.code in (2, 3) and is_told), told
        else:
            assert end.code in (0, 3), told
            assert end.code == 0 or f"protail {command.words[0]}: " in end.last_line, told
        if way in ("SIGTERM", "SIGINT", "full disk") and not was_killed:
            parts = [each.name for each in place.rglob("*.part") if each.name.startswith(".")]
            assert not parts, f"{told}: {parts} stay"

    def _is_whole(self, command: Command, end: Ended, place: Path) -> bool:
        """Say whether a file is there as it should be, put there just before an earlier stop."""
        if command.name != "predict" or "out.csv is already there" not in end.last_line:
            return False
        return outcome(place, self.inputs).get("out.csv") == self.expected["predict"]["out.csv"]

    def _check_kept(
        self, command: Command, before: dict[str, Any], place: Path, history: list[str]
    ) -> dict[str, Any]:
        now = command.finished(place)
        is_ended = now == {} and command.name in ("predict", "embed")
        lost = [name for name, each in before.items() if now.get(name) != each and not is_ended]
        assert not lost, f"{command.name} after {history}: {lost} were lost or written twice"
        return now


def _is_own_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def lives(chosen: list[Command], draw: random.Random) -> Iterator[tuple[Command, list[str]]]:
    """Give commands without end, and ways to stop each one, two or three times in a row."""
    bag: list[str] = []
    for command in itertools.cycle(chosen):
        taken = []
        for _ in range(draw.choice((1, 2, 3))):
            if not bag:
                bag = list(WAYS)
                draw.shuffle(bag)
            taken.append(bag.pop())
        yield command, taken


def warm_up() -> None:
    """Import what commands would import as they begin."""
    for name in (
        *("torch.utils.data", "torchvision.transforms.v2", "sklearn.linear_model", "optuna"),
        *("optuna.samplers", "optuna.storages.journal", "matplotlib.pyplot", "scipy.optimize"),
        *("protail.report", "protail_paper.cli.bench", "protail_paper.running", "protail.network"),
        *("protail.cli.fit", "protail.cli.predict", "protail.cli.embed", "protail.cli.train"),
        *("protail.cli.search", "protail.training.embedding", "torch._dynamo", "protail.training"),
        *("torch.utils.tensorboard", "rich.table", "timm"),
    ):
        with suppress(ImportError):
            import_module(name)


@contextmanager
def _mounted(size: str | None, place: str) -> Iterator[None]:
    """Mount a disk of some size, in memory: root can."""
    if size is None:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def run(
    n_kills: int,
    seed: int,
    names: list[str],
    *,
    disk: str | None = None,
    minutes: float = float("inf"),
    say: Callable[[str], None],
) -> int:
    """Stop commands so many times, or until the time is up; give the number of faults found."""
    end = time.monotonic() + 60 * minutes
    warm_up()
    draw = random.Random(seed)
    chosen = [each for each in commands() if not names or each.name in names]
    n_faults = 0
    with (
        tempfile.TemporaryDirectory(prefix="protail-kills-") as temporary,
        _mounted(disk, temporary),
    ):
        harness = Harness(Path(temporary), chosen)
        say("undisturbed: " + ", ".join(f"{k} {v:.1f} s" for k, v in harness.seconds.items()))
        begin = time.monotonic()
        for command, ways in lives(chosen, draw):
            left = n_kills - sum(harness.tally.values())
            if left <= 0 or n_faults >= n_kills or time.monotonic() > end:
                break
            try:
                harness.stop(command, ways[:left], draw)
            except Exception as error:
                n_faults += 1
                say(f"FAULT {command.name} {ways}: {error}")
        for command in chosen:
            counts = {way: harness.tally[command.name, way] for way in WAYS}
            say(f"{command.name}: " + ", ".join(f"{way} {n}" for way, n in counts.items()))
        say(
            f"{sum(harness.tally.values())} stops, {harness.too_late} that came too late, "
            f"{n_faults} faults, {time.monotonic() - begin:.0f} s"
        )
    return n_faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more then")
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--disk", help="mount a disk of this size to fill, as in 200m (as root)")
    given = parser.parse_args()
    told = partial(print, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the disk is given back
    how = {"disk": given.disk, "minutes": given.minutes}
    sys.exit(run(given.kills, given.seed, given.commands, **how, say=told) > 0)
