"""Trials of a search: one that is being tried, and what is known of any."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial


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


class OpenTrial:
    """A trial that a worker of this process is trying.

    Parameters
    ----------
    trial : optuna.trial.Trial
        Optuna's own.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.number = trial.number
        self.params: dict[str, Any] = dict(trial.params)
        self.began = time.monotonic()

    def note(self, **values: Any) -> None:
        """Write something down about the trial."""
        for name, value in values.items():
            self._trial.set_user_attr(name, value)

    def look(self, place: int, score: float) -> bool:
        """Write down the score after a part of the training; say whether to give the trial up."""
        self._trial.report(score, place)
        return self._trial.should_prune()


def record_of(trial: FrozenTrial) -> SearchTrial:
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
