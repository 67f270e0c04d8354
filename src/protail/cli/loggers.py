"""``--log``: what a training says, in Weights & Biases or MLflow too, by Lightning's loggers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from protail._messages import imported, unknown_name, why

if TYPE_CHECKING:
    from protail.experiments import Job, Progress

Watcher = Callable[["Progress"], None]

SERVICES = ("wandb", "mlflow")
_PROJECT = "protail"


def check_service(name: str | None) -> None:
    """Raise where there is no such service, or what it needs is not installed.

    Parameters
    ----------
    name : str or None
        What was typed.

    Examples
    --------
    >>> from protail.cli.loggers import check_service
    >>> check_service(None)
    >>> check_service("wandbb")
    Traceback (most recent call last):
    ValueError: --log='wandbb' is unknown; expected one of 'wandb', 'mlflow'. Did you mean 'wandb'?
    """
    if name is None:
        return
    if name not in SERVICES:
        raise ValueError(unknown_name("--log", name, SERVICES))
    imported("lightning", f"--log {name}", "lightning", "train")
    try:
        __import__(name)
    except ImportError as error:
        raise ImportError(
            f"--log {name} needs the package {name}, which is not installed. Install it with pip."
        ) from error


@contextmanager
def logged(name: str | None, jobs: Sequence[Job], watch: Watcher) -> Iterator[Loggers]:
    """Log trainings until the block ends.

    Parameters
    ----------
    name : str or None
        One of ``SERVICES``, or nothing.
    jobs : sequence of Job
        What is trained; each is a run of its own there.
    watch : callable
        Who is told of each epoch as well.

    Yields
    ------
    Loggers
        Itself the ``watch`` argument of `protail.experiments.run_jobs`.
    """
    loggers = Loggers(name, jobs, watch)
    try:
        yield loggers
    except BaseException:
        loggers.close("failed")
        raise
    loggers.close("success")


class Loggers:
    """One logger of Lightning for each job.

    Parameters
    ----------
    name : str or None
        One of ``SERVICES``, or nothing.
    jobs : sequence of Job
        What is trained.
    watch : callable
        Who is told of each epoch as well.
    """

    def __init__(self, name: str | None, jobs: Sequence[Job], watch: Watcher) -> None:
        self._watch = watch
        # Of the processes that torchrun starts only the first one speaks.
        is_first = os.environ.get("RANK", "0") == "0"
        self._made: dict[int, Any] = {}
        try:
            for job in jobs if name and is_first else ():
                self._made[job.seed] = _made(name, job)
                self._made[job.seed].log_hyperparams(job.resolved)
        except Exception as error:  # each service fails in ways of its own
            raise ValueError(
                f"--log {name} could not be started: {why(error)} Correct that, or leave --log out."
            ) from error

    def __call__(self, progress: Progress) -> None:
        """Log the numbers of an epoch."""
        self._watch(progress)
        if (logger := self._made.get(progress.job.seed)) is not None:
            numbers = {"loss": progress.loss, **_under("training", progress.scores)}
            logger.log_metrics(numbers, step=progress.epoch)

    def finish(self, job: Job, record: Mapping[str, Any]) -> None:
        """Log the scores of a finished run.

        Parameters
        ----------
        job : Job
            What was run.
        record : mapping
            Its evaluation: a stage, flipped or not, and the scores.
        """
        if (logger := self._made.get(job.seed)) is None:
            return
        numbers: dict[str, float] = {}
        for stage, kinds in record.items():
            for kind, scores in kinds.items():
                if isinstance(scores, Mapping):
                    numbers |= _under(f"{stage}/{kind}", scores)
        logger.log_metrics(numbers, step=job.recipe.n_epochs)

    def close(self, status: str) -> None:
        """Tell the service that nothing more comes.

        Parameters
        ----------
        status : str
            "success" or "failed".
        """
        for logger in self._made.values():
            logger.finalize(status)
            if hasattr(logger, "_wandb_init"):  # or the next seed would go on with this run
                logger.experiment.finish(exit_code=int(status != "success"))


def _made(name: str | None, job: Job) -> Any:
    from lightning.pytorch import loggers

    run = job.folder.name
    if name == "wandb":
        return loggers.WandbLogger(name=run, project=_PROJECT, save_dir=job.folder.parent)
    place = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    return loggers.MLFlowLogger(_PROJECT, run_name=run, tracking_uri=place)


def _under(part: str, scores: Mapping[str, Any]) -> dict[str, float]:
    """Name the numbers among some scores after where they belong."""
    numbers = {name: value for name, value in scores.items() if type(value) in (int, float)}
    return {f"{part}/{name}": float(value) for name, value in numbers.items()}
