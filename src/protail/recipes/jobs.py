"""Jobs: a recipe, its data and a seed; how to run them, and what they tell meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from protail.data.sets import DataSet, FeatureData, ImageSet
from protail.recipes._places import RecipeError
from protail.recipes._recipe import WORDS, Recipe
from protail.training.settings import RepresentationSettings


@dataclass(frozen=True)
class Job:
    """One execution of a recipe.

    Attributes
    ----------
    recipe : Recipe
        What to do. On features only stage 2 is left of it.
    data : DataSet or FeatureData
        With what.
    seed : int
        Same seed, same result.
    folder : Path
        Where its run is kept.
    """

    recipe: Recipe
    data: DataSet | FeatureData
    seed: int
    folder: Path

    def __post_init__(self) -> None:
        if not isinstance(self.data, FeatureData):
            return
        if self.recipe.classifier is None:
            raise ValueError(
                f"recipe {self.recipe.name!r} has no classifier stage, and {self.data.name} holds "
                "features and no images; expected a recipe that learns a classifier, such as "
                "'pc-la'. To learn a representation, train on images."
            )
        if self.recipe.classifier.start == "representation":
            raise ValueError(
                f"recipe {self.recipe.name!r} begins stage 2 with the classifier of stage 1, and "
                f"{self.data.name} holds features only; expected a recipe that begins anew, such "
                "as 'pc-la', or images."
            )
        if "experts" in self.recipe.classifier.head_options:
            raise ValueError(
                f"recipe {self.recipe.name!r} has a head for features of several experts, and "
                f"{self.data.name} holds those of one network; expected a recipe such as 'pc-la'."
            )
        # Whatever the recipe says of stage 1, these features come from elsewhere.
        object.__setattr__(
            self, "recipe", replace(self.recipe, pretraining=None, representation=None)
        )

    @property
    def phases(self) -> dict[str, RepresentationSettings]:
        """Stage 1, which a job on images cannot do without, in its phases."""
        if self.recipe.representation is None:
            raise ValueError(
                f"recipe {self.recipe.name!r} has no representation stage; expected one. Combine "
                f"it with one that has, as in 'wd/{self.recipe.name}'."
            )
        return self.recipe.phases

    @property
    def resolved(self) -> dict[str, Any]:
        """Everything the result hangs on."""
        return {
            "recipe": self.recipe.resolved(),
            "data": data_record(self.data),
            "seed": self.seed,
        }

    def read(self, resolved: dict[str, Any]) -> dict[str, Any]:
        """Give what a run says that it is of as this version would have written it.

        A setting that was added later has its default in older runs, and the words that are said
        about a recipe are those of this job's.

        Parameters
        ----------
        resolved : dict
            The ``resolved`` of some version's job.

        Returns
        -------
        dict
            To be compared with `resolved`; as it was where this version knows no such recipe.
        """
        try:
            recipe = Recipe.from_resolved(resolved["recipe"]).resolved()
        except (KeyError, TypeError, AttributeError, RecipeError):
            return resolved
        words = {key: getattr(self.recipe, key) for key in WORDS}
        return {**resolved, "recipe": {**recipe, **words}}


def data_record(data: DataSet | FeatureData) -> dict[str, Any]:
    """Say what a run was done with.

    Parameters
    ----------
    data : DataSet or FeatureData
        Its data.

    Returns
    -------
    dict
        Name and description, and digests by which images or features are known again.
    """
    record = {"name": data.name, **data.description}
    if isinstance(data, FeatureData):
        record["features"] = {"width": data.n_features, "sha256": _fingerprint(data)}
    else:
        record["images"] = {part: _fingerprint(images) for part, images in data.parts.items()}
    return record


# Jobs share their data, and each is asked several times what it is of.
_FINGERPRINTS: WeakKeyDictionary[ImageSet | FeatureData, str] = WeakKeyDictionary()


def _fingerprint(data: ImageSet | FeatureData) -> str:
    if data not in _FINGERPRINTS:
        _FINGERPRINTS[data] = data.fingerprint()
    return _FINGERPRINTS[data]


@dataclass(frozen=True)
class Progress:
    """What a job tells while it runs.

    Attributes
    ----------
    job : Job
        Which job.
    epoch : int
        Epochs done, of all phases.
    loss : float
        Mean loss of the last one.
    scores : dict of str to float
        What a look at the test set after this epoch gave, by group; empty where nobody looked.
    """

    job: Job
    epoch: int
    loss: float
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The phase of stage 1 that the last epoch was of."""
        phases = self.job.phases
        ends = accumulate(settings.epochs for settings in phases.values())
        return next(name for name, end in zip(phases, ends, strict=True) if self.epoch <= end)


Watcher = Callable[[Progress], None]
"""Told how far a job is."""


@dataclass(frozen=True)
class Options:
    """How to run, none of which the result hangs on but for rounding.

    Attributes
    ----------
    device : torch.device
        Where to train.
    driver : {"plain", "captured", "fabric"}
        How a step is taken.
    compiled : bool
        Whether networks are compiled first.
    resume, overwrite : bool
        What to do with a run that is there already.
    checkpoint_seconds : float
        Time between two checkpoints, at least; they are made at the end of an epoch.
    cache : Path or None
        Where features stay for the next time.
    """

    device: torch.device
    driver: str
    compiled: bool = False
    resume: bool = False
    overwrite: bool = False
    checkpoint_seconds: float = 60.0
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.checkpoint_seconds >= 0:
            raise ValueError(
                f"{self.checkpoint_seconds:g} seconds between checkpoints (--checkpoint-every); "
                "expected 0 or more."
            )

    @property
    def head_driver(self) -> str:
        """How the steps of stage 2 are taken."""
        captured = self.device.type == "cuda" and self.driver != "plain"
        return "captured" if captured else "plain"

    @classmethod
    def automatic(cls, device: str = "auto", **others: Any) -> Options:
        """Choose device and driver: a GPU where there is one, with recorded steps."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        chosen = torch.device(device)
        return cls(chosen, "captured" if chosen.type == "cuda" else "plain", **others)
