"""What a search tries: the settings it varies, and its trials in a journal that workers share."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import filelock
import numpy as np

from protail._files import explained
from protail._lock import FileLock, LockedError
from protail._messages import imported, not_installed, unknown_name
from protail.experiments.checkpoint import as_json, read_object
from protail.experiments.run import differing_keys, in_short
from protail.recipes import STAGES, Recipe, parse_value, stage_table, toml_text

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

PRUNERS = ("none", "median", "hyperband")

# What is tried where a key is named without a range, wider where the recipe's own value is not
# in it.
_USUAL = {
    "representation.weight_decay": "1e-4:1e-2:log",
    "representation.lr": "3e-3:0.3:log",
    "representation.tau": "0:1",
    "representation.mixup": "0:1",
    "classifier.weight_decay": "1e-6:1e-2:log",
    "classifier.lr": "0.1:10:log",
    "classifier.temperature_lr": "1e-4:1:log",
    "classifier.tau": "0:1",
    "classifier.normalize": "choice:none,10,20,40",
}
_CHOICE, _LOG = "choice:", ":log"
_FORMS = "LOW:HIGH, LOW:HIGH:log or choice:A,B,C"

_STUDY, _SEARCH = "protail-search", "search"
_BEGIN = b'{"op_code"'
# A trial that has been lost this often is likely what kills the workers.
_MOST_ATTEMPTS = 3


@dataclass(frozen=True)
class SearchedKey:
    """A setting that a search varies; made by `read_searched_keys`.

    Attributes
    ----------
    key : str
        With dots, as in ``classifier.tau``.
    low, high : float
        The ends of its range, both whole numbers where the setting is one.
    is_log : bool
        Whether equal factors, not equal differences, are equally likely.
    choices : tuple of str, int, float or bool
        What it may be, where it has no range; else empty.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    choices: tuple[str | int | float | bool, ...] = ()

    @property
    def stage(self) -> str:
        """The stage that it belongs to."""
        return self.key.partition(".")[0]

    @property
    def text(self) -> str:
        """What it may be, as users write it."""
        if self.choices:
            shown = (each if isinstance(each, str) else toml_text(each) for each in self.choices)
            return _CHOICE + ",".join(shown)
        return f"{self.low!r}:{self.high!r}" + (_LOG if self.is_log else "")

    def holds(self, value: Any) -> bool:
        """Say whether a value is one that the search may try."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


def read_searched_keys(texts: Iterable[str], recipe: Recipe) -> tuple[SearchedKey, ...]:
    """Read which settings a search varies.

    Parameters
    ----------
    texts : iterable of str
        Each ``KEY=LOW:HIGH``, ``KEY=LOW:HIGH:log``, ``KEY=choice:A,B,C``, or a ``KEY`` that has a
        usual range, which is widened where it does not hold the recipe's own value.
    recipe : Recipe
        Whose settings they are; each value is tried on it.

    Returns
    -------
    tuple of SearchedKey
        In the same order.

    Examples
    --------
    >>> from protail.experiments import read_searched_keys
    >>> from protail.recipes import load_recipe
    >>> texts = ["classifier.tau=0:1", "classifier.lr", "classifier.normalize=choice:none,10"]
    >>> for one in read_searched_keys(texts, load_recipe("pc-la")):
    ...     print(one.key, one.text)
    classifier.tau 0.0:1.0
    classifier.lr 0.1:10.0:log
    classifier.normalize choice:none,10
    """
    keys = tuple(_read_key(text, recipe) for text in texts)
    if not keys:
        raise ValueError(
            "--over is missing; expected at least one setting to vary, as in "
            "--over classifier.tau=0:1."
        )
    names = [one.key for one in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"--over names {twice!r} twice; expected it once.")
    return keys


def value_of(recipe: Recipe, key: str) -> Any:
    """Give a recipe's value under a key with dots; "none" for nothing, as recipes write it."""
    value = next(table[last] for table, last in _tables(recipe, key))
    return "none" if value is None else value


def _tables(recipe: Recipe, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Find the tables of a recipe that have a key, and what it is called there."""
    stage, *path = key.split(".")
    settings = getattr(recipe, stage)
    if settings is None or not path:
        return
    table = stage_table(settings)
    options = {name: part for name, part in table.items() if name.endswith("_options")}
    tables = [table, *options.values()] if len(path) == 1 else [options.get(path[0], {})]
    yield from ((one, path[-1]) for one in tables if path[-1] in one)


def _read_key(text: str, recipe: Recipe) -> SearchedKey:
    key, equals, wanted = (part.strip() for part in text.partition("="))
    stage = key.partition(".")[0]
    if stage not in STAGES:
        raise ValueError(f"--over {text!r}: {unknown_name('stage', stage, STAGES)}")
    if not equals:
        if not any(_tables(recipe, key)):
            recipe.with_overrides({key: 0})  # says what is wrong with the key
        if key not in _USUAL:
            raise ValueError(
                f"--over {text!r} has no range, and {key} has no usual one; expected {key}= and "
                f"{_FORMS}."
            )
        usual = _read_values(key, _USUAL[key], recipe)
        wanted = _around(usual, value_of(recipe, key)).text
    return _read_values(key, wanted, recipe)


def _around(usual: SearchedKey, own: Any) -> SearchedKey:
    """Widen a usual range until it holds the recipe's own value, with some more beyond it."""
    if usual.holds(own):
        return usual
    if usual.choices:
        return replace(usual, choices=(own, *usual.choices))
    if not isinstance(own, int | float):
        return usual
    if usual.is_log and own == 0:
        # No factor leads to 0: the powers of ten are tried beside it.
        first, last = math.ceil(math.log10(usual.low)), math.floor(math.log10(usual.high))
        return SearchedKey(usual.key, choices=(own, *(10.0**n for n in range(first, last + 1))))
    factor = 10 if usual.is_log else 2
    if own < usual.low:
        return replace(usual, low=own / factor)
    return replace(usual, high=own * factor)


def _read_values(key: str, wanted: str, recipe: Recipe) -> SearchedKey:
    """Read the range or the choices of a key, and try their values on the recipe."""

    def bad(expected: str) -> ValueError:
        return ValueError(f"--over {key}={wanted}: this is no range; expected {expected}.")

    if wanted.startswith(_CHOICE):
        words = wanted.removeprefix(_CHOICE).split(",")
        choices = tuple(parse_value(word.strip()) for word in words)
        plain = all(isinstance(choice, str | int | float) and choice != "" for choice in choices)
        if len(choices) < 2 or len(set(choices)) < len(choices) or not plain:
            raise bad("two or more different choices, as in choice:none,10,20")
        for choice in choices:
            recipe.with_overrides({key: choice})
        return SearchedKey(key, choices=choices)
    is_log = wanted.endswith(_LOG)
    ends = [_number(word) for word in wanted.removesuffix(_LOG).split(":")]
    if len(ends) != 2 or None in ends:
        raise bad(_FORMS)
    low, high = (value_of(recipe.with_overrides({key: end}), key) for end in ends)
    if not low < high:
        raise bad("a low end below the high one")
    if is_log and not low > 0:
        raise bad("a low end above 0 with log")
    return SearchedKey(key, low, high, is_log)


def _number(word: str) -> float | int | None:
    """Read a number; whole ones stay whole, because some settings take no other."""
    try:
        number = float(word)
    except ValueError:
        return None
    whole = word.strip().lstrip("+-").isdigit()
    return int(word) if whole else number if math.isfinite(number) else None


@dataclass(frozen=True)
class SearchTrial:
    """What a search tried.

    Attributes
    ----------
    number : int
        From 0, in the order of the beginnings.
    state : {"running", "done", "pruned", "diverged", "lost"}
        How it ended. A lost one was being tried when its worker died; it is tried again.
    params : dict of str to object
        Values of the searched keys.
    score : float or None
        What the search maximises; None unless it is done.
    scores : dict of str to float
        All scores on the held-out images.
    looks : tuple of float
        The score of the representation while it was trained.
    seconds : float or None
        How long it took.
    """

    number: int
    state: str
    params: dict[str, Any]
    score: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    looks: tuple[float, ...] = ()
    seconds: float | None = None


def _record(trial: FrozenTrial) -> SearchTrial:
    """Read what Optuna knows of a trial."""
    state = {"FAIL": "lost", "RUNNING": "running", "WAITING": "waiting"}.get(trial.state.name)
    attributes = trial.user_attrs
    ended = state or attributes.get("ended", "done")
    return SearchTrial(
        number=trial.number,
        state=ended,
        params=dict(trial.params),
        score=trial.value if ended == "done" else None,
        scores=dict(attributes.get("scores", {})),
        looks=tuple(trial.intermediate_values.values()),
        seconds=attributes.get("seconds"),
    )


class _JournalFile:
    """A journal of Optuna's in a file; its locks lie beside it, in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.name, self.study = str(path), _STUDY
        self.files = path.with_name(path.name + ".files")
        self._path, self._workers = path, self.files / "workers"
        try:
            self._workers.mkdir(parents=True, exist_ok=True)
            # Optuna's own lock outlives a worker that is killed; the system releases this one.
            self.mutex = filelock.FileLock(self.files / "lock")
            self.worker = secrets.token_hex(8)
            self._alive = FileLock(self._workers / self.worker)
        except OSError as error:
            raise explained(error, path) from error

    def open(self) -> Any:
        """Open the storage; the caller holds the mutex."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        for worker in self._workers.iterdir():
            is_alive(worker)  # else its file goes
        _check_or_repair(self._path)
        return JournalStorage(JournalFileBackend(self.name, lock_obj=self.mutex))  # type: ignore[arg-type]

    def is_alive(self, worker: str) -> bool:
        """Say whether a worker is at work."""
        return is_alive(self._workers / worker)

    def explained(self, error: Exception) -> Exception:
        """Say what it means that the study cannot be opened; Optuna raises anything at all."""
        if isinstance(error, OSError):
            return explained(error, self._path)
        return _no_journal(self._path)

    def release(self) -> None:
        """Let others know that this worker has ended."""
        self._alive.release(remove=True)


class _Database:
    """A PostgreSQL database, which any number of searches share: each is a study of its own.

    Locks are those of the server, which it releases when the connection of a worker that died
    ends.
    """

    def __init__(self, url: str, about: Mapping[str, Any], files: Path) -> None:
        if not url.startswith(("postgresql://", "postgresql+psycopg://")):
            raise ValueError(
                f"--journal begins with {url.partition('://')[0]}://; expected a file, or a "
                "PostgreSQL database, as in postgresql://name:password@host/database."
            )
        imported("psycopg", "a search in PostgreSQL", "psycopg", "postgres")
        from sqlalchemy import create_engine, make_url

        try:
            place = make_url(url).set(drivername="postgresql+psycopg")
        except ValueError:  # its words may hold the password
            raise ValueError(
                "--journal is no address of a database; expected "
                "postgresql://name:password@host:port/database. Check the port and the signs in it."
            ) from None
        self.name, self.files = place.render_as_string(hide_password=True), files
        self._url = place.render_as_string(hide_password=False)
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        self.study, self.worker = f"{_STUDY} {digest[:16]}", secrets.token_hex(7)
        self._mutex = int(digest[:15], 16)
        # A peer that is switched off is found dead within a minute or two.
        options = (
            "-c tcp_keepalives_idle=60 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
        )
        engine = create_engine(self._url, connect_args={"options": options})
        try:
            self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._ask("pg_try_advisory_lock", int(self.worker, 16))
        except Exception as error:
            raise self.explained(error) from error

    def _ask(self, function: str, key: int) -> Any:
        from sqlalchemy import text

        return self._connection.execute(text(f"select {function}(:key)"), {"key": key}).scalar()

    @property
    @contextmanager
    def mutex(self) -> Iterator[None]:
        """Let one worker at a time in."""
        self._ask("pg_advisory_lock", self._mutex)
        try:
            yield
        finally:
            self._ask("pg_advisory_unlock", self._mutex)

    def open(self) -> Any:
        """Open the storage; the caller holds the mutex."""
        from optuna.storages import RDBStorage

        return RDBStorage(self._url)

    def is_alive(self, worker: str) -> bool:
        """Say whether a worker is at work."""
        if not self._ask("pg_try_advisory_lock", int(worker, 16)):
            return True
        self._ask("pg_advisory_unlock", int(worker, 16))
        return False

    def explained(self, error: Exception) -> Exception:
        """Say what it means that the study cannot be opened."""
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return ValueError(
            f"--journal {self.name}: the database gave no answer ({said}); expected a PostgreSQL "
            "server that takes this name and password, and a database in which tables may be made."
        )

    def release(self) -> None:
        """Let others know that this worker has ended."""
        self._connection.invalidate()
        self._connection.close()


class Journal:
    """Trials of one search, in a journal of Optuna's that several processes share.

    It is a file, or the address of a PostgreSQL database (``postgresql://...``) beside ``files``,
    a folder of this machine. A file of another search (``about``) is refused. ``first`` holds the
    values to begin with, if any.
    """

    def __init__(
        self,
        path: Path | str,
        about: Mapping[str, Any],
        keys: Sequence[SearchedKey],
        *,
        first: Mapping[str, Any] | None = None,
        seed: int = 0,
        pruner: str = "none",
        n_evaluations: int = 10,
        files: Path | None = None,
    ) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ImportError(not_installed("a search", "optuna", "train")) from error
        self._optuna, self._seed = optuna, seed
        self._distributions = {key.key: self._distribution(key) for key in keys}
        chosen = self._pruner(pruner, n_evaluations)
        self._began: dict[int, float] = {}
        plain = as_json(about, "about")
        self._place: _JournalFile | _Database
        if isinstance(path, str) and "://" in path:
            self._place = _Database(path, plain, files or Path("search.files"))
        else:
            self._place = _JournalFile(Path(path))
        self.files = self._place.files
        self._verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with self._place.mutex:
                try:
                    self._study = self._open_study(chosen)
                except Exception as error:
                    raise self._place.explained(error) from error
                self._begin(plain, dict(first or {}))
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise self._place.explained(error) from error
            raise

    def next_trial(self, n_trials: int) -> Trial | None:
        """Begin another trial, unless there are ``n_trials`` already, running ones included."""
        with self._place.mutex:
            self._give_up_on_the_dead()
            trials = self._study.get_trials(deepcopy=False)
            states = [_record(trial).state for trial in trials]
            n_counted = sum(state not in ("waiting", "lost") for state in states)
            if n_counted >= n_trials:
                return None
            # A seed for each trial: workers that share one would all begin with the same values,
            # and so would a search that goes on. Lost trials, which are tried again, change
            # nothing: a search that was stopped finds what one finds that was not.
            n_given_up = sum(map(_is_given_up, trials, states))
            mixed = np.random.SeedSequence([self._seed, n_counted + n_given_up]).generate_state(1)
            with warnings.catch_warnings():
                # What some versions of Optuna call experimental has been there for years.
                warnings.simplefilter("ignore")
                # Over all keys together: some of them, such as radius and tau, are one choice.
                self._study.sampler = self._optuna.samplers.TPESampler(
                    seed=int(mixed[0]), multivariate=True, constant_liar=True
                )
            trial = self._study.ask(self._distributions)
            trial.set_user_attr("worker", self._place.worker)
        self._began[trial.number] = time.monotonic()
        return trial

    def end(
        self,
        trial: Trial,
        state: str,
        score: float | None = None,
        scores: Mapping[str, float] | None = None,
    ) -> SearchTrial:
        """Record that a trial is "done" with a score, or "pruned" or "diverged"."""
        seconds = time.monotonic() - self._began[trial.number]
        noted = {"ended": state, "seconds": seconds, "scores": dict(scores or {})}
        for name, value in noted.items():
            trial.set_user_attr(name, value)
        if score is None:
            # What is near it is avoided.
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial.number, score)
        del self._began[trial.number]
        return _record(self._study.get_trials(deepcopy=False)[trial.number])

    def trials(self) -> list[SearchTrial]:
        """Read all trials that were begun, by every worker."""
        found = map(_record, self._study.get_trials(deepcopy=False))
        return [trial for trial in found if trial.state != "waiting"]

    def close(self, *, stopped: bool = False) -> None:
        """Hand trials that are not at their end to whoever goes on with the journal."""
        try:
            with self._place.mutex:
                for number in list(self._began):
                    self._lose(number, counts=not stopped)
        finally:
            self._release()

    def _release(self) -> None:
        self._place.release()
        self._optuna.logging.set_verbosity(self._verbosity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *trace: object
    ) -> None:
        try:
            self.close(stopped=kind is KeyboardInterrupt)  # no trial's fault
        except Exception as fault:
            if not _is_of_a_database(error or fault):
                raise
            error = error or fault
        if isinstance(error, Exception) and _is_of_a_database(error):
            raise self._place.explained(error) from error

    def _open_study(self, pruner: Any) -> Study:
        storage, name = self._place.open(), self._place.study
        names = [study.study_name for study in storage.get_all_studies()]
        if isinstance(self._place, _JournalFile) and names not in ([], [name]):
            raise ValueError(f"its studies are {names}")
        if name not in names:
            self._optuna.create_study(storage=storage, study_name=name, direction="maximize")
        study: Study = self._optuna.load_study(storage=storage, study_name=name, pruner=pruner)
        list(map(_record, study.get_trials(deepcopy=False)))
        return study

    def _begin(self, about: dict[str, Any], first: dict[str, Any]) -> None:
        there = self._study.user_attrs.get(_SEARCH)
        if there is None:
            self._study.set_user_attr(_SEARCH, about)
            if first:
                self._study.enqueue_trial(first)
        elif keys := differing_keys(there, about):
            raise ValueError(
                f"{self._place.name} is the journal of another search, which differs in "
                f"{in_short(keys)}. Go on with the settings it was begun with, choose another "
                "journal (--journal, -o), or replace it (--overwrite)."
            )

    def _distribution(self, key: SearchedKey) -> Any:
        kinds = self._optuna.distributions
        if key.choices:
            return kinds.CategoricalDistribution(key.choices)
        whole = isinstance(key.low, int)
        kind = kinds.IntDistribution if whole else kinds.FloatDistribution
        return kind(key.low, key.high, log=key.is_log)

    def _pruner(self, name: str, n_evaluations: int) -> Any:
        pruners = self._optuna.pruners
        if name not in PRUNERS:
            raise ValueError(unknown_name("pruner", name, PRUNERS))
        if name == "median":
            # While the learning rate is high, scores say little about the end.
            return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=n_evaluations // 3)
        if name == "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=max(n_evaluations, 1))
        return pruners.NopPruner()

    def _give_up_on_the_dead(self) -> None:
        """Lose the trials of workers that died; Optuna does so for databases only."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state.name != "RUNNING" or trial.number in self._began:
                continue
            # One without a worker died before it could sign: signing happens under the mutex.
            worker = trial.user_attrs.get("worker")
            if worker is None or not self._place.is_alive(worker):
                self._lose(trial.number)

    def _lose(self, number: int, *, counts: bool = True) -> None:
        """End a trial as lost, and have it tried again; it ``counts`` as an attempt or not."""
        trial = self._study.get_trials(deepcopy=False)[number]
        attempts = int(trial.user_attrs.get("attempts", 1)) - (not counts)
        self._began.pop(number, None)
        self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        if attempts < _MOST_ATTEMPTS:
            self._study.enqueue_trial(trial.params, user_attrs={"attempts": attempts + 1})


def _is_of_a_database(error: BaseException) -> bool:
    """Say whether a database, or what asks it, has failed."""
    return type(error).__module__.startswith(("sqlalchemy.", "optuna.", "psycopg."))


def _is_given_up(trial: FrozenTrial, state: str) -> bool:
    """Say whether a trial was lost so often that it is not tried again."""
    return state == "lost" and int(trial.user_attrs.get("attempts", 1)) >= _MOST_ATTEMPTS


def is_alive(worker: Path) -> bool:
    """Say whether a worker still holds its lock file; remove the one of a dead worker."""
    if not worker.is_file():
        return False
    try:
        FileLock(worker).release(remove=True)
    except LockedError:
        return True
    return False


def _check_or_repair(path: Path) -> None:
    """Raise when the file is no journal; cut off a last line that is not whole.

    A process that died, or a full disk, may leave one, and the next line would be added to it.
    Nobody writes meanwhile: every writer holds the mutex.
    """
    if path.exists() and not path.is_file():
        raise _no_journal(path)
    with suppress(FileNotFoundError), path.open("r+b") as file:
        begin = file.read(len(_BEGIN))
        if begin and not _BEGIN.startswith(begin):
            raise _no_journal(path)
        file.seek(0)
        whole = 0
        for line in filter(lambda line: line.endswith(b"\n"), file):
            try:
                read_object(line)  # Optuna would not see it before more is written
            except ValueError:
                raise _no_journal(path) from None
            whole += len(line)
        file.truncate(whole)


def _no_journal(path: Path) -> ValueError:
    return ValueError(
        f"{path} is no journal of a search, or a damaged one; expected one that protail search "
        "wrote, or a free name."
    )
