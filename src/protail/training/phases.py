"""Stage 1 in phases: each begins with what the one before it has learned, or has it as teacher."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

from protail.methods import Method
from protail.training.loop import Steps
from protail.training.progress import Epoch
from protail.training.representation import RepresentationTraining
from protail.training.settings import RepresentationSettings

Make = Callable[[str, RepresentationSettings, Method | None], RepresentationTraining]
AfterEpoch = Callable[[RepresentationTraining, Epoch], None]


def representation_steps(
    phases: Mapping[str, RepresentationSettings],
    make: Make,
    *,
    done: int = 0,
    restore: Callable[[RepresentationTraining], None] | None = None,
    after_epoch: AfterEpoch | None = None,
) -> Steps[Method]:
    """Train one phase after the other, handing over after every step.

    Parameters
    ----------
    phases : mapping of str to RepresentationSettings
        By the name of the stage, in their order.
    make : callable
        Makes the training of a phase from its name, its settings and what the phase before it
        has learned.
    done : int
        Epochs of all phases that an earlier, interrupted run had finished.
    restore : callable, optional
        Brings a training to where it was then.
    after_epoch : callable, optional
        Told what each epoch came to, and shown the training; epochs and steps are counted over
        all phases.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    Method
        What the last phase came to.
    """
    method: Method | None = None
    epochs_before = steps_before = 0
    last = list(phases)[-1]
    for name, settings in phases.items():
        n_done = max(0, done - epochs_before)
        training, tell = make(name, settings, method), None
        # What an earlier phase has learned is part of a later one that was begun.
        if n_done <= settings.epochs or name == last:
            if n_done and restore is not None:
                restore(training)
            tell = _counted_on(training, epochs_before, steps_before, after_epoch)
            method = yield from training.steps(n_done, tell)
        epochs_before += settings.epochs
        steps_before += training.n_steps
        # A training and its driver know each other: only this frees what they hold on a GPU.
        del training, tell
        gc.collect()
    assert method is not None
    return method


def _counted_on(
    training: RepresentationTraining, epochs: int, steps: int, after_epoch: AfterEpoch | None
) -> Callable[[Epoch], None] | None:
    if after_epoch is None:
        return None
    return lambda epoch: after_epoch(
        training, Epoch(epoch.number + epochs, epoch.step + steps, epoch.loss)
    )
