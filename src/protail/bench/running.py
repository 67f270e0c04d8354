"""Running the cells that are missing: a representation together with all its classifiers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from protail._messages import counted
from protail.backbones import save_weights
from protail.bench.cells import Cell, Cells, Draw
from protail.bench.scores import score_head
from protail.data.sets import DataSet
from protail.recipes.running import Options
from protail.training._run_surroundings import describe_surroundings
from protail.training.classifier import learn_stable_heads
from protail.training.frozen import FrozenFeatures
from protail.training.loop import Steps, interleave
from protail.training.representation import Epoch, RepresentationTraining
from protail.training.settings import ClassifierSettings

Say = Callable[[str], None]
LoadData = Callable[[Draw], DataSet]
# How often a training says where it is.
_LOOKS = 5


@dataclass(frozen=True)
class Group:
    """Cells that share a trained representation.

    Attributes
    ----------
    cells : tuple of Cell
        At least one; with the same stage 1, images and seed.
    """

    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """Any of them, for what they share."""
        return self.cells[0]

    @property
    def name(self) -> str:
        """What to call it in a log."""
        stage = self.first.recipe.representation
        assert stage is not None
        return f"{stage.backbone} on {self.first.draw.folder}, seed {self.first.seed}"


def missing_groups(wanted: Iterable[Cell], cells: Cells) -> list[Group]:
    """Sort missing cells by the representation they need, in the order they are wanted.

    Parameters
    ----------
    wanted : iterable of Cell
        The most wanted first.
    cells : Cells
        What is there.

    Returns
    -------
    list of Group
        What is left to run.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.bench.running import missing_groups
    >>> from protail.bench.tables import wanted_cells
    >>> groups = missing_groups(
    ...     wanted_cells(["table1"], ["ResNet-34"]), Cells(tempfile.mkdtemp())
    ... )
    >>> [(group.name, len(group.cells)) for group in groups[:1]]
    [('resnet34-cifar on cifar100-lt-100, seed 0', 7)]
    """
    groups: dict[str, list[Cell]] = {}
    for cell in wanted:
        if cell not in cells:
            groups.setdefault(cell.representation_key, []).append(cell)
    return [Group(tuple(members)) for members in groups.values()]


def expected_seconds(group: Group, cells: Cells) -> float | None:
    """Say how long stage 1 of a group takes, by the cells that were run on such hardware.

    Parameters
    ----------
    group : Group
        What is to be run.
    cells : Cells
        What has been run, anywhere.

    Returns
    -------
    float or None
        Seconds for one of several trained at once; None where no such cell is there.
    """
    stage = group.first.recipe.resolved()["representation"]
    alike = ("backbone", "epochs", "batch_size")
    known = [
        float(result.record["seconds"]["representation"])
        for result in cells
        if all(result.record["recipe"]["representation"][key] == stage[key] for key in alike)
        and result.record["data"]["imbalance"] == group.first.draw.imbalance
    ]
    return median(known) if known else None


def run_missing(
    wanted: Iterable[Cell],
    cells: Cells,
    load: LoadData,
    options: Options,
    *,
    budget: float | None = None,
    at_once: int = 4,
    weights: Path | None = None,
    say: Say = lambda text: None,
) -> int:
    """Run the cells that are missing, as far as the time allows.

    Every finished cell is kept at once. Nothing is begun that is not likely to end in time.

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
    began, n_before = time.monotonic(), len(cells)
    groups = missing_groups(wanted, cells)
    load = cache(load)
    while groups:
        left = None if budget is None else budget - (time.monotonic() - began)
        n = _how_many(groups[:at_once], cells, left)
        if n == 0:
            left_over = counted(len(groups), "training is", "trainings are")
            say(f"{left_over} left: not enough time for another one.")
            break
        work = _Work(cells, load, options, weights, say)
        work.run(groups[:n])
        groups = groups[n:]
        gc.collect()
    return len(cells) - n_before


def _how_many(groups: list[Group], cells: Cells, left: float | None) -> int:
    """Say how many of the next groups to train at once in the time that is left.

    Fewer at once take longer each, and the first steps take a while: one more than there are
    is counted.
    """
    if left is None:
        return len(groups)
    for n in range(len(groups), 0, -1):
        each = [expected_seconds(group, cells) or 0.0 for group in groups[:n]]
        if left > 0 and sum(each) + max(each) <= left:
            return n
    return 0


class _Work:
    """Train representations at once, then everything that stands on each."""

    def __init__(
        self, cells: Cells, load: LoadData, options: Options, weights: Path | None, say: Say
    ) -> None:
        self._cells, self._load, self._options = cells, load, options
        self._weights, self._say = weights, say
        self._n_at_once = 1
        self._about = describe_surroundings()

    def run(self, groups: list[Group]) -> None:
        """Run groups at once."""
        self._n_at_once = len(groups)
        streams = []
        if self._options.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            streams = [torch.cuda.Stream(self._options.device) for _ in groups]  # type: ignore[no-untyped-call]
        interleave([self._steps(group) for group in groups], streams)

    def _steps(self, group: Group) -> Steps[None]:
        stage, seed = group.first.recipe.representation, group.first.seed
        assert stage is not None
        data = self._load(group.first.draw)
        began = time.monotonic()
        training = RepresentationTraining(
            stage,
            data,
            seed=seed,
            device=self._options.device,
            captured=self._options.driver == "captured",
            compiled=self._options.compiled,
        )

        def tell(epoch: Epoch) -> None:
            every = max(1, stage.epochs // _LOOKS)
            if (epoch.number + 1) % every == 0:
                self._say(f"{group.name}: epoch {epoch.number + 1}, loss {epoch.loss:.3f}")

        method = yield from training.steps(0, tell)
        # Trainings at once share the time.
        seconds = {"representation": (time.monotonic() - began) / self._n_at_once}
        frozen = FrozenFeatures(method.backbone, data, self._options.device)
        if self._weights is not None:
            name = f"{stage.backbone}-{group.first.draw.folder}-seed{seed}-"
            name += f"{group.first.representation_key[:10]}.safetensors"
            save_weights(method.backbone.state_dict(), self._weights / name)
        self._judge(group, method.head, frozen, seconds)

    def _judge(
        self, group: Group, softmax: nn.Module, frozen: FrozenFeatures, seconds: Mapping[str, float]
    ) -> None:
        wanted: dict[str, ClassifierSettings] = {}
        for cell in group.cells:
            if cell.recipe.classifier is None:
                self._keep(cell, score_head(softmax, frozen), seconds)
            else:
                wanted[cell.key] = cell.recipe.classifier
        began = time.monotonic()
        driver = "captured" if self._options.driver == "captured" else "plain"
        heads = learn_stable_heads(wanted, frozen, seed=group.first.seed, driver=driver)
        took = {**seconds, "classifiers": time.monotonic() - began}
        for cell in group.cells:
            if cell.key in heads:
                judged_on = frozen.for_stage(wanted[cell.key], cell.seed)
                self._keep(cell, score_head(heads[cell.key], judged_on), took)
            elif cell.key in wanted:
                self._say(f"{cell.command}: the loss of stage 2 is no number; there is no cell.")

    def _keep(self, cell: Cell, judged: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        rounded = {stage: round(each, 2) for stage, each in seconds.items()}
        self._cells.add(cell, {**judged, "seconds": rounded, "about": self._about})
        every = judged["scores"]["plain"]["all"]
        self._say(f"{100 * every:5.2f} %  {cell.command}")
