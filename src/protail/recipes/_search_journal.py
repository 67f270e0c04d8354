"""The journal of a search: a file that workers share, and that outlives them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from protail._files import explained
from protail._messages import not_installed, unknown_name
from protail.recipes._search_keys import SearchedKey
from protail.recipes._search_locks import Mutex, is_alive, living
from protail.recipes._search_sampler import make_pruner, make_sampler
from protail.recipes._search_trials import OpenTrial, SearchTrial, record_of
from protail.training._run_json import as_json, differing_keys

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

PRUNERS = ("none", "median", "hyperband")
_STUDY, _SEARCH = "protail-search", "search"
_BEGIN = b'{"op_code"'
# A trial that has been lost this often is likely what kills the workers.
_MOST_ATTEMPTS = 3
_MOST_KEYS_TOLD = 6


class Journal:
    """Trials of one search, in a file.

    Parameters
    ----------
    path : Path
        The file. What belongs to it, such as locks, lies in a folder of the same name and
        ``.files``.
    about : mapping
        Everything that scores hang on, in plain values; a journal of anything else is refused.
    keys : sequence of SearchedKey
        What is varied.
    first : mapping of str to object
        Values to begin with, where the ranges hold them all; else empty.
    seed : int
        Same seed and same trials before, same trial.
    pruner : {"none", "median", "hyperband"}
        Which trials are given up early.
    n_looks : int
        How often a training is looked at.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        keys: Sequence[SearchedKey],
        *,
        first: Mapping[str, Any] | None = None,
        seed: int = 0,
        pruner: str = "none",
        n_looks: int = 10,
    ) -> None:
        if pruner not in PRUNERS:
            raise ValueError(unknown_name("pruner", pruner, PRUNERS))
        self.path, self.files = path, path.with_name(path.name + ".files")
        self._optuna = _import_optuna()
        self._distributions = {key.key: self._distribution(key) for key in keys}
        self._open_trials: dict[int, OpenTrial] = {}
        self._worker = secrets.token_hex(8)
        self._stack = ExitStack()
        try:
            self.files.mkdir(parents=True, exist_ok=True)
            self._mutex = Mutex(self.files)
            self._stack.enter_context(living(self._workers / self._worker))
            with self._mutex:
                self._study = self._open_study(seed, make_pruner(pruner, n_looks))
                self._begin(as_json(about, "about"), dict(first or {}))
        except OSError as error:
            self._stack.close()
            raise explained(error, path) from error
        except BaseException:
            self._stack.close()
            raise

    def next_trial(self, n_trials: int) -> OpenTrial | None:
        """Begin another trial, unless there are ``n_trials`` already, running ones included."""
        with self._mutex:
            self._give_up_on_the_dead()
            if len(self._counted()) >= n_trials:
                return None
            trial = OpenTrial(self._study.ask(self._distributions))
            trial.note(worker=self._worker)
        self._open_trials[trial.number] = trial
        return trial

    def done(self, trial: OpenTrial, score: float, scores: Mapping[str, float]) -> SearchTrial:
        """Write down what a trial came to."""
        return self._end(trial, "done", score, scores=dict(scores))

    def pruned(self, trial: OpenTrial) -> SearchTrial:
        """Write down that a trial was given up for its looks."""
        return self._end(trial, "pruned")

    def diverged(self, trial: OpenTrial) -> SearchTrial:
        """Write down that a trial's loss was no number any more; what is near it is avoided."""
        return self._end(trial, "diverged")

    def trials(self) -> list[SearchTrial]:
        """Read all trials that were begun, by every worker."""
        return [
            record_of(trial)
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.name != "WAITING"
        ]

    def close(self) -> None:
        """Hand trials that are not at their end to whoever goes on with the journal."""
        with self._mutex:
            for number in list(self._open_trials):
                self._lose(number)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _workers(self) -> Path:
        return self.files / "workers"

    def _open_study(self, seed: int, pruner: Any) -> Study:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        _check_or_repair(self.path)
        verbosity = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._stack.callback(self._optuna.logging.set_verbosity, verbosity)
        try:
            backend = JournalFileBackend(str(self.path), lock_obj=self._mutex)  # type: ignore[arg-type]
            storage = JournalStorage(backend)
        except (ValueError, KeyError, TypeError) as error:
            raise _no_journal(self.path) from error
        names = [study.study_name for study in storage.get_all_studies()]
        if names and names != [_STUDY]:
            raise _no_journal(self.path)
        if not names:
            self._optuna.create_study(storage=storage, study_name=_STUDY, direction="maximize")
        study: Study = self._optuna.load_study(
            storage=storage, study_name=_STUDY, sampler=make_sampler(seed), pruner=pruner
        )
        return study

    def _begin(self, about: dict[str, Any], first: dict[str, Any]) -> None:
        there = self._study.user_attrs.get(_SEARCH)
        if there is None:
            self._study.set_user_attr(_SEARCH, about)
            if first:
                self._study.enqueue_trial(first)
        elif different := differing_keys(there, about):
            more = len(different) - _MOST_KEYS_TOLD
            told = ", ".join(different[:_MOST_KEYS_TOLD]) + (
                f" and {more} more" if more > 0 else ""
            )
            raise ValueError(
                f"{self.path} is the journal of another search, which differs in {told}. Go on "
                "with the settings it was begun with, choose another journal (--journal, -o), or "
                "replace it (--overwrite)."
            )

    def _distribution(self, key: SearchedKey) -> Any:
        kinds = self._optuna.distributions
        if key.choices:
            return kinds.CategoricalDistribution(key.choices)
        whole = isinstance(key.low, int)
        kind = kinds.IntDistribution if whole else kinds.FloatDistribution
        return kind(key.low, key.high, log=key.is_log)

    def _counted(self) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if record_of(trial).state not in ("waiting", "lost")]

    def _end(
        self, trial: OpenTrial, how: str, score: float | None = None, **others: Any
    ) -> SearchTrial:
        seconds = time.monotonic() - trial.began
        trial.note(ended=how, seconds=seconds, **others)
        if score is None:
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial.number, score)
        del self._open_trials[trial.number]
        return next(one for one in self.trials() if one.number == trial.number)

    def _give_up_on_the_dead(self) -> None:
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state.name != "RUNNING" or trial.number in self._open_trials:
                continue
            # One without a worker died before it could sign: signing happens under the mutex.
            worker = trial.user_attrs.get("worker")
            if worker is None or not is_alive(self._workers / worker):
                self._lose(trial.number)

    def _lose(self, number: int) -> None:
        trial = self._study.get_trials(deepcopy=False)[number]
        attempts = int(trial.user_attrs.get("attempts", 1))
        self._open_trials.pop(number, None)
        self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        if attempts < _MOST_ATTEMPTS:
            self._study.enqueue_trial(trial.params, user_attrs={"attempts": attempts + 1})


def _check_or_repair(path: Path) -> None:
    """Raise when the file is no journal; cut off a last line that is not whole.

    A process that died, or a full disk, may leave one, and the next line would be added to it.
    Nobody writes meanwhile: every writer holds the mutex.
    """
    with suppress(FileNotFoundError), path.open("r+b") as file:
        begin = file.read(len(_BEGIN))
        if begin and not _BEGIN.startswith(begin):
            raise _no_journal(path)
        file.seek(0)
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        file.truncate(whole)


def _no_journal(path: Path) -> ValueError:
    return ValueError(
        f"{path} is no journal of a search, or a damaged one; expected one that protail search "
        "wrote, or a free name."
    )


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(not_installed("a search", "optuna", "train")) from error
    return optuna
