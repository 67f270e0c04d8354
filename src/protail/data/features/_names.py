"""Which array or column holds what, when nobody says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from protail._messages import unknown_name
from protail.data.features._errors import FeatureFileError, listed, problem

FEATURE_NAMES = ("features", "embeddings", "embedding", "X", "x")
LABEL_NAMES = ("labels", "label", "y", "targets", "target", "class")


def first_of(preferred: Collection[str], present: Collection[str]) -> str | None:
    """Give the first preferred name that is present."""
    return next((name for name in preferred if name in present), None)


def check_named(path: Path, argument: str, name: str, present: Collection[str]) -> None:
    """Raise unless the array or column somebody named is there."""
    if name not in present:
        raise FeatureFileError(f"{path}: {unknown_name(argument, name, present)}")


def check_distinct(path: Path, columns: Iterable[str]) -> None:
    """Raise where two columns share a name."""
    twice = [repr(name) for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise problem(path, f"columns share a name: {listed(twice)}", "one each", "Rename them.")


def no_labels_error(path: Path, present: Collection[str]) -> FeatureFileError:
    """Say that labels are needed and none were found."""
    return problem(
        path,
        f"it has no labels (found: {listed(present)})",
        f"one of {', '.join(LABEL_NAMES)}",
        "Name yours with labels= / --labels, or give a file of labels with labels_file= / "
        "--labels-file.",
    )
