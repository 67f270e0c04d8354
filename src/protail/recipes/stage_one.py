"""Making the trainings of stage 1 the way the options of a run say."""

from __future__ import annotations

from typing import Any

from protail.data.sets import DataSet
from protail.methods import Method
from protail.recipes.jobs import Options
from protail.training.phases import Make
from protail.training.representation import RepresentationTraining
from protail.training.settings import RepresentationSettings


def training_maker(data: DataSet, seed: int, options: Options, fabric: Any = None) -> Make:
    """Make what makes the training of each phase of stage 1.

    Parameters
    ----------
    data : DataSet
        What to train on.
    seed : int
        Same seed, same trainings.
    options : Options
        How to run.
    fabric : lightning.fabric.Fabric, optional
        Where several processes train together.

    Returns
    -------
    callable
        For `protail.training.phases.representation_steps`.
    """

    def make(
        stage: str, settings: RepresentationSettings, start: Method | None
    ) -> RepresentationTraining:
        return RepresentationTraining(
            settings,
            data,
            seed=seed,
            device=options.device,
            captured=options.driver == "captured",
            fabric=fabric,
            compiled=options.compiled,
            start=start,
            stage=stage,
        )

    return make
