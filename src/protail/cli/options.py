"""Options that several commands take, what a shell offers for them, and what they parse to.

Nothing here imports torch: pressing the tab key must not take long. Where nothing fits, the shell
offers files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import protail

if TYPE_CHECKING:
    from protail.data.tables import FeatureFile

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
# Flags of protail 0.1, by what they are called now. They go with the release after the next.
OLD_FLAGS = {
    "--aside-from": "--validation-from",
    "--mirrored": "--flip",
    "--no-mirrored": "--no-flip",
    "--test-share": "--test-fraction",
    "--draw": "--subset",
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}

Offer = Callable[[str], list[str]]


def current_flags(words: Iterable[str]) -> list[str]:
    """Replace flags that were renamed, with a note for each on standard error.

    Parameters
    ----------
    words : iterable of str
        The command line.

    Returns
    -------
    list of str
        The same, in today's words.

    Examples
    --------
    >>> from protail.cli.options import current_flags
    >>> current_flags(["evaluate", "run", "--flip"])
    ['evaluate', 'run', '--flip']
    """
    found = []
    for word in words:
        flag, equals, value = word.partition("=")
        new = OLD_FLAGS.get(flag)
        if new is not None:
            print(f"Note: {flag} is called {new} now; the old name will go.", file=sys.stderr)
        found.append(f"{new or flag}{equals}{value}")
    return found


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
    >>> from protail.cli.options import one_of
    >>> one_of("cpu", "cuda", "auto")("c")
    ['cpu', 'cuda']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def recipe_names() -> list[str]:
    """List the recipes that come with protail, without reading them."""
    folder = Path(protail.__file__).parent / "recipes" / "library"
    return sorted(path.stem for path in folder.glob("*.toml"))


def offer_recipes(incomplete: str) -> list[str]:
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
    >>> from protail.cli.options import offer_recipes
    >>> offer_recipes("ce/pc-cosine-l")
    ['ce/pc-cosine-la']
    """
    first, slash, second = incomplete.rpartition("/")
    return [f"{first}{slash}{name}" for name in one_of(*recipe_names())(second)]


def chosen_from(what: str, *names: str, **others: Any) -> Any:
    """Make an option that takes one of some names; its help lists them after ``what``."""
    listed = f"{', '.join(names[:-1])} or {names[-1]}."
    return typer.Option(help=f"{what}{listed}", autocompletion=one_of(*names), **others)


# Of every command.
Device = Annotated[
    str,
    typer.Option(
        "--device", help="cpu, cuda or auto.", autocompletion=one_of("auto", "cpu", "cuda")
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is already there.")]
ModelFolder = Annotated[
    Path, typer.Argument(help="Folder of a model, network or run.", show_default=False)
]

# Of what reads feature files, or photos.
FeaturesKey = Annotated[
    str | None, typer.Option("--features", metavar="NAME", help="Array or column with the rows.")
]
LabelsKey = Annotated[
    str | None, typer.Option("--labels", metavar="NAME", help="Array or column with the labels.")
]
LabelsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--labels-file", metavar="FILE", help="Labels, if in another file (npy, csv, txt)."
    ),
]
LabelledFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Files with features and labels; for photos, folders of class folders.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="NAMES", help="Features of a table: a,b or 'f*' or f0:f63."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="NAMES", help="Columns that are no features."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="NAMES", help="Columns carried into predictions; no features."),
]

Engine = Annotated[str, chosen_from("Who reads files: ", "local", "ray", metavar="NAME")]

# Of what computes features of photos.
Backbone = Annotated[
    str,
    typer.Option(metavar="NAME", help="Photos: of timm, or a file."),
]
Weights = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Photos: weights of the backbone.")
]
Augment = Annotated[int, typer.Option(min=0, metavar="N", help="Photos: crops averaged.")]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Photos: keep features here, not beside OUTPUT."),
]

# Of what needs a data set.
DatasetName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A data set, a subset, a folder of class folders, or a file of features.",
        show_default=False,
        autocompletion=one_of(*DATA_SETS),
    ),
]


def _dataset(what: str) -> Any:
    return typer.Option(
        "--dataset",
        metavar="NAME",
        help=what,
        show_default=False,
        autocompletion=one_of(*DATA_SETS),
    )


Dataset = Annotated[str, _dataset("Set, subset, folder or feature file.")]
ImageDataset = Annotated[str, _dataset("A data set, a subset or a folder.")]
RunDataset = Annotated[
    str | None, _dataset("For a run: the subset, folder or file it was trained on.")
]
Imbalance = Annotated[
    float | None, typer.Option(metavar="RATIO", help="Largest class over the smallest.")
]
Kind = Annotated[str | None, chosen_from("Form of the tail: ", "exp", "step")]
Selection = Annotated[str | None, chosen_from("Images kept: ", "shuffled", "first", "author")]
DataSeed = Annotated[
    int | None,
    typer.Option("--data-seed", min=0, metavar="NUMBER", help="Of the subset or the split."),
]
TestFraction = Annotated[
    float | None,
    typer.Option("--test-fraction", metavar="X", help="Of a folder that is split here; else 0.2."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the data is; else in PROTAIL_DATA."),
]
Lists = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where list or JSON files are, if elsewhere.")
]
OnBadImage = Annotated[
    str | None, chosen_from("Images that cannot be read: ", "error", "skip", metavar="WHAT")
]


# Of what takes a recipe.
def recipe_argument(metavar: str) -> Any:
    """Make an argument that takes a recipe."""
    return typer.Argument(
        metavar=metavar,
        help="A recipe, two as in ce/pc-la, or a .toml file.",
        show_default=False,
        autocompletion=offer_recipes,
    )


Recipe = Annotated[str, recipe_argument("RECIPE")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; can be repeated."),
]


def read_changes(changes: Sequence[str] | None) -> dict[str, str]:
    """Split what stands behind ``--set``.

    Parameters
    ----------
    changes : sequence of str or None
        Each ``key=value``.

    Returns
    -------
    dict of str to str
        For `Recipe.with_overrides`; of the same key the last.

    Examples
    --------
    >>> from protail.cli.options import read_changes
    >>> read_changes(["classifier.tau=0.5", "classifier.distance=cosine"])
    {'classifier.tau': '0.5', 'classifier.distance': 'cosine'}
    """
    pairs = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"--set {change!r} is not valid; expected KEY=VALUE, as in classifier.tau=0.5."
            )
        pairs[key.strip()] = value.strip()
    return pairs


def read_seconds(text: str | None) -> float | None:
    """Read a duration.

    Parameters
    ----------
    text : str or None
        A number, with s, m or h behind it; seconds without.

    Returns
    -------
    float or None
        Seconds; None where nothing was given.

    Examples
    --------
    >>> from protail.cli.options import read_seconds
    >>> read_seconds("9m"), read_seconds("1.5h"), read_seconds("90")
    (540.0, 5400.0, 90.0)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*([smh]?)\s*", text)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--budget {text!r} is no duration; expected one as in 90s, 9m or 1.5h.")
    return float(found[1]) * _SECONDS[found[2]]


def refuse(options: dict[str, Any], reason: str) -> None:
    """Raise where options were given that cannot be used."""
    given = [name for name, value in options.items() if value not in (None, [])]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used here: {reason}. Leave it out.")


@dataclass(frozen=True)
class FeatureOptions:
    """How feature files are to be read, as it was typed.

    Attributes
    ----------
    features, labels : str or None
        Names of arrays or columns.
    columns, exclude, keep : sequence of str or None
        Columns of tables: features, no features, and what comes along.
    """

    features: str | None = None
    labels: str | None = None
    columns: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    keep: Sequence[str] | None = None

    def open(
        self,
        path: Path | Sequence[Path],
        *,
        labels_file: Path | None = None,
        need_labels: bool = False,
        engine: str = "local",
    ) -> FeatureFile:
        """Open a file of features, or several as one."""
        from protail.data.tables import open_features

        return open_features(
            path,
            features=self.features,
            labels=self.labels,
            need_labels=need_labels,
            columns=self.columns or None,
            exclude=self.exclude or (),
            keep=self.keep or (),
            labels_file=labels_file,
            engine=engine,
        )

    def refuse(self, path: Path) -> None:
        """Raise where an option was given, for photos have no columns."""
        given = {f"--{name}": value or None for name, value in vars(self).items()}
        refuse(given, f"{path} holds photos")


@dataclass(frozen=True)
class PhotoOptions:
    """How features of photos are to be made, as it was typed.

    Attributes
    ----------
    backbone : str
        A name or a path.
    weights : Path or None
        Where its weights are.
    augment : int
        Cut-outs that are averaged with each photo.
    cache : Path or None
        Where features are kept.
    """

    backbone: str = "auto"
    weights: Path | None = None
    augment: int = 0
    cache: Path | None = None

    def refuse(self, path: Path) -> None:
        """Raise where an option was given, for features need no backbone."""
        given: dict[str, Any] = {"--backbone": None if self.backbone == "auto" else self.backbone}
        given |= {"--weights": self.weights, "--augment": self.augment or None}
        refuse({**given, "--cache": self.cache}, f"{path} holds features")
