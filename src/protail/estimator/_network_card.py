"""What a network says of itself: in a notebook, and on the card of a repository."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.estimator._card import (
    TAGS,
    _fenced,
    _largest_and_smallest,
    _scores,
    _table,
    _training_rows,
    inert,
)
from protail.profile import ClassProfile

Facts = dict[str, str]


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
