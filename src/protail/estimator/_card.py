"""Cards: what a model is, how good it is, how it was made and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.profile import ClassProfile

TAGS = ["imbalanced-classification", "long-tailed-recognition", "prototype-classifier"]
_SHOWN = 10
_LONGEST = 60

Facts = dict[str, str]


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


def network_card(
    title: str,
    facts: Facts,
    labels: list[Any],
    counts: NDArray[np.int64] | None,
    evaluation: dict[str, Any],
    place: str,
) -> str:
    """Write the card of a network.

    Parameters
    ----------
    title : str
        What it is.
    facts : dict of str to str
        What is known of it, by name.
    labels, counts : list, ndarray or None
        Its classes, and the training examples of each.
    evaluation : dict
        What `Evaluation.to_dict` gives, or nothing.
    place : str
        The repository, or the folder.

    Returns
    -------
    str
        Markdown.

    Examples
    --------
    >>> from protail.estimator import network_card
    >>> card = network_card(
    ...     "Network of birds", {"takes": "photos"}, ["a", "b"], None, {}, "me/it"
    ... )
    >>> "Network.from_pretrained('me/it')" in card
    True
    """
    code = f"""from protail import Network

network = Network.from_pretrained({place!r})
network.predict("photo.jpg" if network.backbone else rows)"""
    rows = [(inert(name), inert(value)) for name, value in facts.items() if name != "about"]
    known: Iterable[str] = []
    if counts is not None:
        known = [*_training_rows(counts, evaluation), *_largest_and_smallest(labels, counts)]
    about = [_fenced(facts["about"], "text")] if "about" in facts else []
    parts = [
        "\n".join(["---", "library_name: protail", "tags:", *(f"- {t}" for t in TAGS), "---"]),
        f"# {inert(title)}",
        "What is on a photo, or in a row of features, is told by learned prototypes, so that rare "
        "classes are not outweighed by large ones. Made with protail.",
        "## How to load it",
        _fenced(code, "python"),
        "## What it is",
        _table(("part", "value"), rows),
        *about,
        *_scores(evaluation),
        *known,
        "## Reference",
        "S. Sharma, Y. Xian, N. Yu, A. Singh: *Learning Prototype Classifiers for Long-Tailed "
        "Recognition*. IJCAI 2023.",
    ]
    return "\n\n".join(parts) + "\n"


def network_html(title: str, facts: Facts, counts: NDArray[np.int64] | None) -> str:
    """Write what a notebook shows of a network.

    Parameters
    ----------
    title : str
        What it is.
    facts : dict of str to str
        What is known of it, by name.
    counts : ndarray or None
        Training examples of each class.

    Returns
    -------
    str
        HTML that needs nothing else and takes the colours of the page it stands in.

    Examples
    --------
    >>> from protail.estimator import network_html
    >>> "&lt;b&gt;" in network_html("<b>", {}, None)
    True
    """
    if counts is not None:
        profile = ClassProfile(counts)
        groups = ", ".join(f"{name} {len(codes)}" for name, codes in profile.groups().items())
        examples = counted(profile.n_samples, "training example")
        facts = facts | {
            "learned from": f"{examples}, imbalance {profile.imbalance:.4g} ({groups})"
        }
    left = "text-align:left;vertical-align:top;padding:.1em 1em .1em 0"
    rows = "".join(
        f'<tr><th scope="row" style="{left};font-weight:600">{escape(name)}</th>'
        f'<td style="{left}">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        f'<div style="font-family:system-ui,sans-serif"><strong>{escape(title)}</strong>'
        f'<table style="border:none;margin:.3em 0">{rows}</table></div>'
    )
