"""What is to be run: experiments, each a recipe, images and a seed."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from protail.recipes import Recipe, load_recipe, recipe_hash, recipe_names

# What every table has an experiment of.
SEEDS = (0, 1, 2)
# What subsets are cut from: images of the largest class, and classes.
SIZES = {"cifar100-lt": (500, 100), "cifar10-lt": (5000, 10)}


@dataclass(frozen=True)
class Subset:
    """Which images an experiment uses.

    Attributes
    ----------
    dataset : str
        A name `protail.data.images.load_dataset` knows.
    imbalance : float
        The largest class over the smallest; 0 where a data set is not cut to a ratio.
    selection : str
        Which images of a class are kept.
    held_out : float
        The fraction of each class's training images that is evaluated on in place of the test
        images; 0 for the test images.
    held_out_seed : int
        Of the images that are held out.
    miniature : int
        Training images of a set that only goes by the data set's name; 0 where it is the real one.
    aside_from : float
        The smaller ratio whose images, as far as this subset leaves them, are evaluated on in
        place of the test images; 0 where it is not these.

    Examples
    --------
    >>> from protail_paper.wanted import Subset
    >>> Subset("cifar100-lt", 100).folder, Subset("cifar100-lt", 100, held_out=0.2).folder
    ('cifar100-lt-100', 'cifar100-lt-100-held-out')
    >>> Subset("cifar100-lt", 100, aside_from=10).folder
    'cifar100-lt-100-aside'
    >>> Subset("imagenet-lt").folder, Subset("imagenet-lt", miniature=2000).folder
    ('imagenet-lt', 'imagenet-lt-miniature-2000')
    """

    dataset: str
    imbalance: float = 0.0
    selection: str = "shuffled"
    held_out: float = 0.0
    held_out_seed: int = 0
    miniature: int = 0
    aside_from: float = 0.0

    def __post_init__(self) -> None:
        if self.held_out and self.aside_from:
            raise ValueError(
                f"held_out={self.held_out!r} and aside_from={self.aside_from!r}; expected one of "
                "them, and 0 for the other."
            )

    @property
    def folder(self) -> str:
        """The folder its results are kept in."""
        ratio = f"-{self.imbalance:g}" if self.imbalance else ""
        kind = "" if self.selection == "shuffled" else f"-{self.selection}"
        suffix = "-held-out" if self.held_out else "-aside" if self.aside_from else ""
        small = f"-miniature-{self.miniature}" if self.miniature else ""
        return f"{self.dataset}{ratio}{kind}{suffix}{small}"


# What most tables are about.
CIFAR100, CIFAR10 = Subset("cifar100-lt", 100), Subset("cifar10-lt", 100)


@dataclass(frozen=True)
class Experiment:
    """One execution of a recipe on a data set: what is wanted, before it is known.

    Attributes
    ----------
    recipe_name : str
        As `protail.recipes.load_recipe` takes it.
    subset : Subset
        Which images.
    seed : int
        Same seed, same result.
    overrides : mapping of str to object
        What is set otherwise than in the recipe.

    Examples
    --------
    >>> from protail_paper.wanted import Experiment, Subset
    >>> experiment = Experiment("pc-la", Subset("cifar100-lt", 100), 0, {"classifier.tau": 0.5})
    >>> print(experiment.command)
    protail train pc-la --dataset cifar100-lt --imbalance 100 --seed 0 --set classifier.tau=0.5
    """

    recipe_name: str
    subset: Subset
    seed: int
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with its overrides."""
        return _changed_once(self.recipe_name, json.dumps(dict(self.overrides)))

    @cached_property
    def key(self) -> str:
        """Name what is computed, whatever it is called."""
        name, changes = self.recipe_name, json.dumps(dict(self.overrides))
        return _digest(_hash_once(name, changes), self.subset, self.seed)

    @cached_property
    def representation_key(self) -> str:
        """Name what stage 1 computes: experiments with the same one share it."""
        name, changes = self.recipe_name, json.dumps(dict(self.overrides))
        return _digest(_hash_once(name, changes, alone=True), self.subset, self.seed)

    @property
    def stage_1(self) -> str:
        """What to call its stage 1: the recipe of nothing else where there is one, else its own."""
        return _alone(self.recipe_name)

    @property
    def command(self) -> str:
        """The command that runs the experiment alone."""
        words = ["protail", "train", self.recipe_name, "--dataset", self.subset.dataset]
        if self.subset.imbalance:
            words += ["--imbalance", f"{self.subset.imbalance:g}"]
        words += ["--seed", str(self.seed)]
        if self.subset.selection != "shuffled":
            words += ["--selection", self.subset.selection]
        if self.subset.held_out:
            words += ["--held-out", f"{self.subset.held_out:g}"]
            words += ["--held-out-seed", str(self.subset.held_out_seed)]
        if self.subset.aside_from:
            words += ["--validation-from", f"{self.subset.aside_from:g}"]
        for key, value in self.overrides.items():
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", f"{key}={text}"]
        return shlex.join(words)


# Hundreds of experiments share a few recipes, and are asked for again and again.
_read_once = cache(load_recipe)


@cache
def _alone(name: str) -> str:
    """Find the recipe of nothing but a recipe's stage 1."""
    phases = _read_once(name).phases
    for other in recipe_names():
        recipe = _read_once(other)
        if recipe.classifier is None and recipe.phases == phases:
            return other
    return name.partition("/")[0]


@cache
def _changed_once(name: str, overrides: str) -> Recipe:
    return _read_once(name).with_overrides(json.loads(overrides))


@cache
def _hash_once(name: str, overrides: str, *, alone: bool = False) -> str:
    """Name a recipe with its overrides; `alone` without its classifier."""
    resolved = _changed_once(name, overrides).resolved()
    return recipe_hash({**resolved, "classifier": None} if alone else resolved)


def experiment_key(recipe: Recipe, subset: Subset, seed: int) -> str:
    """Name an experiment by all that its numbers depend on: one text for one computation.

    Examples
    --------
    >>> from protail_paper.wanted import Subset, experiment_key
    >>> from protail.recipes import load_recipe
    >>> subset = Subset("cifar100-lt", 100)
    >>> changed = load_recipe("pc").with_overrides({"classifier.tau": 0.25})
    >>> experiment_key(changed, subset, 0) == experiment_key(load_recipe("pc-la"), subset, 0)
    True
    """
    return _digest(recipe_hash(recipe.resolved()), subset, seed)


def _digest(recipe: str, subset: Subset, seed: int) -> str:
    data: list[Any] = [subset.dataset, float(subset.imbalance), subset.selection]
    if subset.held_out:
        data += [subset.held_out, subset.held_out_seed]
    if subset.aside_from:
        data += ["aside", float(subset.aside_from)]
    if subset.miniature:
        data += ["miniature", subset.miniature]
    return hashlib.sha256(json.dumps([recipe, data, seed]).encode()).hexdigest()
