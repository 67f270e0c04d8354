"""Running the cells that are missing: a representation together with all its classifiers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from protail._messages import counted
from protail.backbones import save_weights
from protail.bench._last_stream import LastStream
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
from protail.training.frozen import FrozenFeatures, weights_hash
from protail.training.loop import Steps, interleave, make_streams
from protail.training.phases import representation_steps
from protail.training.representation import DivergenceError, Epoch, RepresentationTraining
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

    Every finished cell is kept at once. Nothing is begun that is not likely to end in time. An
    error in what stands on one representation is told, and raised when all others are done.

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
    groups = missing_groups(wanted, cells, known)
    work = _Work(cells, cache(load), options, weights, say)
    began, n_run = time.monotonic(), 0
    while groups:
        left = None if budget is None else budget - (time.monotonic() - began)
        if left is not None and n_run:
            # One that nothing tells the time of keeps the others from their turn no longer.
            groups.sort(key=lambda group: expected_seconds(group, cells, work.gpus) is None)
        n = _how_many(groups[:at_once], cells, work.gpus, left, is_first=n_run == 0)
        if n == 0:
            left_over = counted(len(groups), "training is", "trainings are")
            say(f"{left_over} left: not enough time for another one.")
            break
        n_run += work.run(groups[:n])
        groups = groups[n:]
        gc.collect()
    if work.errors:
        raise work.errors[0]
    return n_run


def _how_many(
    groups: list[Group], cells: Cells, gpus: Sequence[str], left: float | None, *, is_first: bool
) -> int:
    """Say how many of the next groups to train at once in the time that is left.

    Fewer at once take longer each, and the first steps take a while: one more than there are
    is counted. Where nothing tells how long one takes, the first one is to tell.
    """
    if left is None:
        return len(groups)
    if left <= 0:
        return 0
    expected = [expected_seconds(group, cells, gpus) for group in groups]
    if expected[0] is None:
        return int(is_first)
    for n in range(len(groups), 0, -1):
        each = [seconds for seconds in expected[:n] if seconds is not None]
        if len(each) == n and sum(each) + max(each) <= left:
            return n
    return 0


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

    def run(self, groups: list[Group]) -> int:
        """Run groups at once; say how many cells came of it."""
        streams = make_streams(self._options.device, len(groups))
        began = time.monotonic()
        trained = interleave([self._train(group) for group in groups], streams)
        # Trainings at once share the time.
        seconds = (time.monotonic() - began) / len(groups)
        return sum(
            self._try_to_judge(group, method, seconds)
            for group, method in zip(groups, trained, strict=True)
            if method is not None
        )

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

    def _try_to_judge(self, group: Group, method: Method, seconds: float) -> int:
        """Judge a group; hours of the others are not lost to an error in this one."""
        try:
            return self._judge(group, method, seconds)
        except OSError:
            raise  # nothing more can be kept
        except Exception as error:
            self._say(f"{group.name}: {type(error).__name__}: {error}")
            self.errors.append(error)
            return 0

    def _judge(self, group: Group, method: Method, seconds: float) -> int:
        data, seed = self._load(group.first.draw), group.first.seed
        cache = None if data.train.is_resident else LastStream()
        frozen = FrozenFeatures(method.backbone, data, self._options.device, cache)
        shared = {"backbone": weights_hash(method.backbone)[:16], "about": self._about}
        if self._weights is not None:
            save_weights(method.backbone.state_dict(), self._weights / group.file)
        wanted: dict[str, ClassifierSettings] = {}
        took = {"representation": round(seconds, 2)}
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
