"""The model card: what a model is, how good it is, how it was made and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.profile import ClassProfile

TAGS = ["imbalanced-classification", "long-tailed-recognition", "prototype-classifier"]
_SHOWN = 10
_LONGEST = 60


def model_card(
    contents: dict[str, Any],
    counts: NDArray[np.int64],
    place: str,
    *,
    picture: str | None = None,
) -> str:
    """Write the card of a model."""
    evaluation = contents["evaluation"] or {}
    parts = [
        "\n".join(["---", "library_name: protail", "tags:", *(f"- {t}" for t in TAGS), "---"]),
        f"# Prototype classifier of {len(counts):,} classes",
        "A row of features belongs to the class whose learned prototype is nearest, so that rare "
        "classes are not outweighed by large ones. Made with protail.",
        *_load(place),
        *_training_rows(counts, evaluation),
        *_scores(evaluation),
        *([] if picture is None else [f"![Accuracy of every class against its size]({picture})"]),
        *_largest_and_smallest(contents["classes"]["values"], counts),
        *_making(contents),
        "## Reference",
        "S. Sharma, Y. Xian, N. Yu, A. Singh: *Learning Prototype Classifiers for Long-Tailed "
        "Recognition*. IJCAI 2023.",
    ]
    return "\n\n".join(parts) + "\n"


def inert(value: object) -> str:
    """Make text that Markdown and HTML show as it is, on one line."""
    text = str(value)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return "".join(map(_inert_sign, text)) or "&#32;"


def _inert_sign(sign: str) -> str:
    if not sign.isprintable():
        return "\N{REPLACEMENT CHARACTER}"
    if sign.isascii() and not (sign.isalnum() or sign == " "):
        return f"&#{ord(sign)};"
    return sign


def _load(place: str) -> Iterable[str]:
    code = f"""from protail import PrototypeClassifier

classifier = PrototypeClassifier.from_pretrained({place!r})
classifier.predict(X)  # rows of the same features it was fitted on"""
    return ["## How to load it", _fenced(code, "python")]


def _training_rows(counts: NDArray[np.int64], evaluation: dict[str, Any]) -> Iterable[str]:
    profile = ClassProfile(counts)
    limits = evaluation.get("many_from", 100), evaluation.get("few_below", 20)
    try:
        groups = profile.groups(*limits)
    except (TypeError, ValueError):  # an evaluation of somebody else's making
        limits = 100, 20
        groups = profile.groups()
    meaning = {
        "many": f"{limits[0]} rows or more",
        "medium": "in between",
        "few": f"fewer than {limits[1]} rows",
    }
    rows = [
        (f"{name} ({meaning[name]})", f"{len(codes):,}", f"{counts[codes].sum():,}")
        + ((_percent(evaluation.get(name)),) if evaluation else ())
        for name, codes in groups.items()
    ]
    heads = ("group", "classes", "training rows", *(("accuracy",) if evaluation else ()))
    return [
        "## What it was fitted on",
        f"{profile.n_samples:,} rows of {profile.n_classes:,} classes; the largest class has "
        f"{profile.imbalance:.4g} times the rows of the smallest.",
        _table(heads, rows),
    ]


def _scores(evaluation: dict[str, Any]) -> Iterable[str]:
    if not evaluation:
        return ["No evaluation was given when it was saved."]
    names = {
        "all": "accuracy of all rows",
        "balanced_accuracy": "mean accuracy of the classes",
        "macro_f1": "mean F1 of the classes",
        "calibration_error": "expected calibration error",
        "novelty_auroc": "AUROC of the novelty score",
    }
    rows = [
        (words, _percent(evaluation[name]))
        for name, words in names.items()
        if evaluation.get(name) is not None
    ]
    n_rows = evaluation.get("n_rows")
    on = f"On {counted(n_rows, 'test row')}:" if isinstance(n_rows, int) else "On test rows:"
    return ["## Scores", on, _table(("score", "value"), rows)]


def _largest_and_smallest(labels: list[Any], counts: NDArray[np.int64]) -> Iterable[str]:
    order = ClassProfile(counts).head_first()
    chosen = order
    title = "## Classes"
    if len(order) > 2 * _SHOWN:
        chosen = np.concatenate([order[:_SHOWN], order[-_SHOWN:]])
        title += f": the {_SHOWN} largest and the {_SHOWN} smallest"
    rows = [(inert(labels[code]), f"{counts[code]:,}") for code in chosen]
    return [title, _table(("label", "training rows"), rows)]


def _making(contents: dict[str, Any]) -> Iterable[str]:
    parts = ["## How it was made"]
    if contents["about"]:
        parts.append(_fenced(contents["about"], "text"))
    # These names and values are the library's own: they were checked before.
    settings = [
        (f"`{name}`", "an array" if isinstance(value, dict) else f"`{value}`")
        for name, value in contents["settings"].items()
    ]
    choices = [(f"`{name}`", f"`{value}`") for name, value in contents["choices"].items()]
    parts += ["Settings:", _table(("argument", "value"), settings)]
    return [*parts, "What was chosen from the training rows:", _table(("choice", "value"), choices)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str, language: str) -> str:
    """Put text where nothing is interpreted: behind a fence longer than any in it."""
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in text.splitlines()]
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence + language, *lines, fence])


def _percent(fraction: object) -> str:
    return f"{100 * fraction:.1f} %" if isinstance(fraction, (int, float)) else "–"
