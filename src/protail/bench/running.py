"""Running the cells that are missing: a representation together with all its classifiers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from traceback import clear_frames
from typing import Any

from protail._files import OutputError
from protail._messages import counted
from protail.backbones import save_weights
from protail.bench._pool import Begun, Pool
from protail.bench._step_times import timed_steps
from protail.bench.cells import Cells
from protail.bench.forecasts import expected_seconds
from protail.bench.groups import Group, missing_groups
from protail.bench.large import miniature_size
from protail.bench.scores import score_head
from protail.bench.wanted import Cell, Draw
from protail.data.sets import DataSet
from protail.methods import Method
from protail.recipes.jobs import Options
from protail.recipes.stage_one import training_maker
from protail.training._run_surroundings import describe_surroundings
from protail.training.classifier import learn_stable_heads
from protail.training.feature_cache import LastStream
from protail.training.frozen import FrozenFeatures, weights_hash
from protail.training.loop import Steps, interleave, make_streams
from protail.training.phases import representation_steps
from protail.training.progress import DivergenceError, Epoch
from protail.training.representation import RepresentationTraining
from protail.training.settings import ClassifierSettings

Say = Callable[[str], None]
LoadData = Callable[[Draw], DataSet]
# How often a training says where it is.
_LOOKS = 5


def run_missing(
    wanted: Iterable[Cell],
    cells: Cells,
    load: LoadData,
    options: Options,
    *,
    known: Iterable[Cell] = (),
    budget: float | None = None,
    at_once: int = 4,
    weights: Path | None = None,
    say: Say = lambda text: None,
) -> int:
    """Run the cells that are missing, as far as the time allows.

    Every finished cell is kept at once, and the next training begins where one has ended. Nothing
    is begun that is not likely to end in time. An error in one training, or in what stands on it,
    is told, and raised when all others are done.

    Parameters
    ----------
    wanted : iterable of Cell
        The most wanted first.
    cells : Cells
        What is there, and where new ones go.
    load : callable
        Gives the images of a draw.
    options : Options
        How to run.
    known : iterable of Cell
        Cells beside those wanted, which are run again where their representation is.
    budget : float, optional
        Seconds.
    at_once : int, default=4
        Trainings at once; on a GPU each has a stream.
    weights : Path, optional
        A folder to keep the trained backbones in.
    say : callable, optional
        Told what happens, line by line.

    Returns
    -------
    int
        How many cells were run.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once!r}; expected at least 1 training.")
    work = _Work(cells, cache(load), options, weights, say)

    def expected(group: Group) -> float | None:
        return expected_seconds(group, cells, work.gpus)

    pool = Pool(missing_groups(wanted, cells, known), expected, budget)
    n_slots = min(at_once, len(pool.waiting))
    streams = make_streams(options.device, n_slots)
    n_run = sum(interleave([work.slot(pool) for _ in range(n_slots)], streams))
    if pool.waiting:
        left_over = counted(len(pool.waiting), "training is", "trainings are")
        unknown = any(expected(group) is None for group in pool.waiting)
        or_unknown = ", or nothing tells how long it takes" if unknown else ""
        say(f"{left_over} left: not enough time for another one{or_unknown}.")
    if work.errors:
        raise work.errors[0]
    return n_run


class _Work:
    """Train representations at once, then judge everything that stands on each."""

    def __init__(
        self, cells: Cells, load: LoadData, options: Options, weights: Path | None, say: Say
    ) -> None:
        self._cells, self._load, self._options = cells, load, options
        self._weights, self._say = weights, say
        self._about = describe_surroundings()
        self.gpus: list[str] = self._about["gpus"] if options.device.type == "cuda" else []
        self._about["gpus"] = self.gpus
        self.errors: list[Exception] = []

    def slot(self, pool: Pool) -> Steps[int]:
        """Train one group after the other, and judge each; say how many cells came of it."""
        n_run = 0
        while True:
            begun = pool.begin()
            if begun is None and pool.is_idle:
                return n_run
            yield  # to others, who begin theirs: what comes before the first step is shared too
            if begun is None:
                continue
            steps = self._try_to_train(begun.group)
            tell = partial(pool.tell_step, begun)
            method = yield from timed_steps(steps, tell, self._options.device)
            n_cells = 0
            if method is not None:
                gc.collect()  # recorded steps hold much of a GPU
                with pool.aside():
                    n_cells = self._try_to_judge(begun, method)
            # Only now: what was judged may tell how long others take.
            pool.end(begun, well=n_cells > 0)
            n_run += n_cells

    def _try_to_train(self, group: Group) -> Steps[Method | None]:
        """Train a group; hours of the others are not lost to an error in this one."""
        try:
            return (yield from self._train(group))
        except OutputError:
            raise  # nothing more can be kept
        except Exception as error:
            self._fail(group, error)
            return None

    def _train(self, group: Group) -> Steps[Method | None]:
        phases = group.first.recipe.phases
        every = max(1, group.first.recipe.n_epochs // _LOOKS)

        def tell(training: RepresentationTraining, epoch: Epoch) -> None:
            if (epoch.number + 1) % every == 0:
                self._say(f"{group.name}: epoch {epoch.number + 1}, loss {epoch.loss:.3f}")

        try:
            data = self._images(group.first.draw)
            options = self._options
            if not data.train.is_resident:
                # Only what is in memory can be part of a recorded step.
                options = replace(options, driver="plain")
            make = training_maker(data, group.first.seed, options)
            return (yield from representation_steps(phases, make, after_epoch=tell))
        except DivergenceError as error:
            self._say(f"{group.name}: {error}")
        for cell in group.cells:
            self._cells.add(cell, {"diverged": True, "about": self._about})
        return None

    def _images(self, draw: Draw) -> DataSet:
        data = self._load(draw)
        if miniature_size(draw, data) != draw.miniature:
            raise ValueError(
                f"{draw.folder} has {len(data.train):,} training images here; expected those that "
                "its cells are of. Mark cells on other images with mark_miniatures."
            )
        return data

    def _fail(self, group: Group, error: Exception) -> None:
        self._say(f"{group.name}: {type(error).__name__}: {error}")
        clear_frames(error.__traceback__)  # which hold a network and all it was trained with
        self.errors.append(error)

    def _try_to_judge(self, begun: Begun, method: Method) -> int:
        try:
            return self._judge(begun, method)
        except OSError:
            raise
        except Exception as error:
            self._fail(begun.group, error)
            return 0

    def _judge(self, begun: Begun, method: Method) -> int:
        group = begun.group
        data, seed = self._load(group.first.draw), group.first.seed
        cache = None if data.train.is_resident else LastStream()
        frozen = FrozenFeatures(method.backbone, data, self._options.device, cache)
        shared = {"backbone": weights_hash(method.backbone)[:16], "about": self._about}
        if self._weights is not None:
            save_weights(method.backbone.state_dict(), self._weights / group.file)
        wanted: dict[str, ClassifierSettings] = {}
        took = {"representation": round(begun.seconds, 2)}
        if begun.step is not None:
            took |= {"step": round(begun.step, 6), "guessed": round(begun.guessed, 2)}
        for cell in group.cells:
            if cell.recipe.classifier is None:
                self._keep(cell, {**score_head(method.head, frozen), "seconds": took, **shared})
            else:
                wanted[cell.key] = cell.recipe.classifier
        began = time.monotonic()
        heads = learn_stable_heads(
            wanted,
            frozen,
            seed=seed,
            driver=self._options.head_driver,
            first_head=method.head,
        )
        if wanted:
            took = {**took, "classifier": round((time.monotonic() - began) / len(wanted), 3)}
        for cell in group.cells:
            if cell.key in heads:
                judged_on = frozen.for_stage(wanted[cell.key], cell.seed)
                judged = score_head(heads[cell.key], judged_on)
                self._keep(cell, {**judged, "seconds": took, **shared})
            elif cell.key in wanted:
                self._say(f"diverged  {cell.command}")
                self._cells.add(cell, {"diverged": True, "seconds": took, **shared})
        return len(group.cells)

    def _keep(self, cell: Cell, outcome: Mapping[str, Any]) -> None:
        self._cells.add(cell, outcome)
        self._say(f"{100 * outcome['scores']['plain']['all']:5.2f} %  {cell.command}")
