"""Which columns of a table are features, which is the label, and which only come along."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from protail.data.features._errors import FeatureFileError, listed, problem
from protail.data.features._names import LABEL_NAMES, check_named, first_of, no_labels_error


@dataclass(frozen=True)
class Wanted:
    """What somebody asks of a file; `open_features` explains each."""

    features: str | None = None
    labels: str | None = None
    need_labels: bool = False
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    def check_no_columns(self, path: Path) -> None:
        """Raise where columns are chosen although one array holds all features."""
        option = "exclude" if self.columns is None else "columns"
        if self.columns is not None or self.exclude:
            raise problem(
                path,
                f"its features are one array without names, and {option} was given",
                "a table, whose columns have names",
                f"Leave {option}= / --{option} out.",
            )


@dataclass(frozen=True)
class Chosen:
    """Names of columns: the features in order, the label, and what comes along."""

    features: list[str]
    label: str | None
    kept: list[str]


def as_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Give what somebody wrote, one text or several, as several."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def choose(
    path: Path, numeric: Mapping[str, bool], wanted: Wanted, index: Collection[str] = ()
) -> Chosen:
    """Choose among the columns of a table.

    Parameters
    ----------
    path : Path
        The table, for errors.
    numeric : mapping of str to bool
        Its columns in order, and whether each holds numbers.
    wanted : Wanted
        What somebody asks for.
    index : collection of str
        Columns that are features only where they are named.

    Returns
    -------
    Chosen
        Without any feature where no column of those to choose from holds numbers.
    """
    kept = listed_columns(path, "keep", wanted.keep, numeric)
    _check_one_choice(path, wanted)
    named = _named(wanted.columns or (), numeric)
    label = _label(path, numeric, wanted, set(named))
    if wanted.features is not None:
        others = [name for name in numeric if name != label]
        check_named(path, "features", wanted.features, others)
        features = [wanted.features] if numeric[wanted.features] else []
        return Chosen(features, label, kept)
    excluded = listed_columns(path, "exclude", wanted.exclude, numeric)
    for argument, taken in (("labels", [label]), ("exclude", excluded), ("keep", kept)):
        if both := [name for name in named if name in taken]:
            raise _in_both(path, both[0], argument)
    if text := [name for name in named if not numeric[name]]:
        raise problem(
            path,
            f"columns names {text[0]!r}, which holds no numbers",
            "columns of numbers",
            "Leave it out of columns= / --columns; one column of lists is for features= / "
            "--features.",
        )
    if wanted.columns is None:
        candidates = [name for name in numeric if name not in index]
    else:
        candidates = listed_columns(path, "columns", wanted.columns, numeric)
    out = {label, *excluded, *kept}
    return Chosen([n for n in candidates if numeric[n] and n not in out], label, kept)


def listed_columns(
    path: Path, argument: str, entries: Sequence[str], names: Mapping[str, object]
) -> list[str]:
    """Find the columns that entries name: by name, by pattern, or by the first and the last."""
    found: dict[str, None] = {}
    for entry in entries:
        found.update(dict.fromkeys(_matches(path, argument, entry, names)))
    return list(found)


def _matches(path: Path, argument: str, entry: str, names: Mapping[str, object]) -> Sequence[str]:
    if entry in names:  # whatever signs it is made of
        return [entry]
    first, colon, last = (part.strip() for part in entry.partition(":"))
    if first in names and last in names:
        in_order = list(names)
        begin, end = in_order.index(first), in_order.index(last)
        if end < begin:
            raise problem(
                path,
                f"{argument}={entry!r}, and {first!r} stands after {last!r}",
                "the first column before the last one",
                "Turn them round.",
            )
        return in_order[begin : end + 1]
    if "," in entry:
        return listed_columns(path, argument, _parts(entry), names)
    if any(sign in entry for sign in "*?["):
        fitting = [name for name in names if fnmatchcase(name, entry)]
        if not fitting:
            raise problem(
                path,
                f"{argument}={entry!r} fits none of its columns",
                "a pattern that fits some",
                f"They are called {listed(map(repr, names))}.",
            )
        return fitting
    for name in (first, last) if colon else (entry,):
        check_named(path, argument, name, names)
    return []


def _parts(entry: str) -> list[str]:
    return [part.strip() for part in entry.split(",") if part.strip()]


def _named(entries: Sequence[str], names: Mapping[str, object]) -> list[str]:
    """Give the entries that are the name of one column, not a pattern or a range."""
    parts = [part for entry in entries for part in ([entry] if entry in names else _parts(entry))]
    return [part for part in parts if part in names]


def _check_one_choice(path: Path, wanted: Wanted) -> None:
    if wanted.columns == ():
        raise problem(path, "columns names nothing", "at least one", "Name some, or leave it out.")
    for option, given in (("columns", wanted.columns), ("exclude", wanted.exclude)):
        if wanted.features is not None and given:
            raise problem(
                path,
                f"features= / --features and {option}= / --{option} were both given",
                "one of them",
                "features names one column that holds everything.",
            )


def _label(
    path: Path, names: Mapping[str, object], wanted: Wanted, named: Collection[str]
) -> str | None:
    if wanted.labels is not None:
        check_named(path, "labels", wanted.labels, names)
        return wanted.labels
    label = first_of(LABEL_NAMES, [name for name in names if name not in named])
    if label is None and wanted.need_labels:
        raise no_labels_error(path, [repr(name) for name in names])
    return label


def _in_both(path: Path, name: str, argument: str) -> FeatureFileError:
    return problem(
        path,
        f"column {name!r} is to be a feature, and is named in {argument}",
        "one of them",
        f"Leave it out of {argument}= / --{argument}, or choose other features.",
    )
