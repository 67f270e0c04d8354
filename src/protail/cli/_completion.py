"""What a shell is to offer for a name: written down here, for pressing a key must not take long.

Nothing is imported that needs torch. Where nothing fits, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import protail

DATA_SETS = (
    "cifar10-lt",
    "cifar100-lt",
    "cifar100-lt-features",
    "features",
    "imagefolder",
    "imagenet-lt",
    "inaturalist18",
    "places-lt",
)
DISTANCES = ("euclidean", "sqeuclidean", "cosine")
BACKBONES = ("ResNet-34", "ResNet-32", "ResNeXt-50", "ResNet-50")
TABLES = (
    *("table1", "table2", "table8", "questions", "table3", "table4", "table9"),
    *("table5", "table6"),
)
_BENCH_WORDS = (*TABLES, "status", "write", "figures", "take")

Offer = Callable[[str], list[str]]


def one_of(*names: str) -> Offer:
    """Make a function that offers those of some names that begin as was typed.

    Parameters
    ----------
    *names : str
        What may stand there.

    Returns
    -------
    callable
        For typer's ``autocompletion``.

    Examples
    --------
    >>> from protail.cli._completion import one_of
    >>> one_of("cpu", "cuda", "auto")("c")
    ['cpu', 'cuda']
    """

    def offer(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return offer


data_sets = one_of(*DATA_SETS)
backbones = one_of(*BACKBONES)
distances = one_of(*DISTANCES)
bench_words = one_of(*_BENCH_WORDS)
devices = one_of("auto", "cpu", "cuda")


def recipe_names() -> list[str]:
    """List the recipes that come with protail, without reading them."""
    folder = Path(protail.__file__).parent / "recipes" / "library"
    return sorted(path.stem for path in folder.glob("*.toml"))


def recipes(incomplete: str) -> list[str]:
    """Offer recipes, and for the second one of a pair the pair.

    Parameters
    ----------
    incomplete : str
        What was typed.

    Returns
    -------
    list of str
        Names that begin with it.

    Examples
    --------
    >>> from protail.cli._completion import recipes
    >>> recipes("ce/pc-cosine-l")
    ['ce/pc-cosine-la']
    """
    first, slash, second = incomplete.rpartition("/")
    return [f"{first}{slash}{name}" for name in _beginning(recipe_names(), second)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
