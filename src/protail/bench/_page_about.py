"""What the page of results says about its cells, and the files that lie beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protail._messages import counted
from protail.bench.cells import Cells

_FIGURES = {
    "cost": "Accuracy against the GPU seconds of training: Table 4, imbalance 100",
    "figure1": "Figure 1: boundaries of softmax and of prototypes, four classes in two channels",
    "figure2": "Figure 2: norms of softmax weights, centroids and prototypes",
    "figure3": "Figure 3: separation of prototypes while they learn",
    "figure4": "Figure 4: accuracy against rate, epochs and tau",
}

_DIRTY = "-dirty"


def _short_commit(commit: str) -> str:
    """Shorten a commit; that the code had been changed after it stays to be seen."""
    return commit[:7] + (_DIRTY if commit.endswith(_DIRTY) else "")


def about_cells(cells: Cells) -> str:
    """Say how many cells there are, and what ran them when; those of miniatures do not count."""
    records = [result.record for result in cells if not result.record["data"].get("miniature")]
    abouts = [record.get("about", {}) for record in records]
    parts = {
        "hardware": _tally(abouts, lambda about: " and ".join(about["gpus"]) or about["cpu"]),
        "code": _tally(
            abouts, lambda about: f"protail {about['protail']} ({_short_commit(about['commit'])})"
        ),
        "software": _tally(
            abouts, lambda about: f"torch {about['torch']}, Python {about['python']}"
        ),
        "days": _tally(abouts, lambda about: str(about["started"])[:10]),
    }
    lines = [f"**{counted(len(abouts), 'cell')}.**"]
    lines += [f"{part.capitalize()}: {said}." for part, said in parts.items() if said]
    dirty = sum(str(about.get("commit", "")).endswith(_DIRTY) for about in abouts)
    if dirty:
        lines.append(
            f"{counted(dirty, 'cell was', 'cells were')} run by code with changes that had not "
            f"been committed ({_DIRTY})."
        )
    return " ".join(lines)


def _tally(abouts: Iterable[Mapping[str, Any]], what: Callable[[Any], str]) -> str:
    """Count what cells say, the most frequent first; cells that say nothing are left out."""
    found: Counter[str] = Counter()
    for about in abouts:
        try:
            found[what(about)] += 1
        except (KeyError, TypeError):
            continue
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{name} × {n}" for name, n in found.most_common())


def figure_lines(folder: Path) -> Iterator[str]:
    """Show the figures of a folder of results."""
    for file in sorted((folder / "figures").glob("*.png")):
        number, _, of = file.stem.partition("-")
        title = _FIGURES.get(number, number) + (f" ({of})" if of else "")
        yield f"**{title}**\n\n![{title}](figures/{file.name})\n"


def search_lines(folder: Path) -> Iterator[str]:
    """List the searches of a folder of results, with what each of them chose."""
    for file in sorted((folder / "search").glob("*.json")):
        said = _search_in_words(json.loads(file.read_text(encoding="utf-8")))
        picture = file.with_suffix(".png")
        drawn = f" ([picture](search/{picture.name}))" if picture.exists() else ""
        yield f"- [{file.stem}](search/{file.name}){drawn}: {said}"


def _search_in_words(search: Mapping[str, Any]) -> str:
    best = search["best"]
    tried = ", ".join(f"{key} in {values}" for key, values in search["over"].items())
    chosen = ", ".join(f"{key} = {_short(value)}" for key, value in best["params"].items())
    return (
        f"{tried}; {counted(len(search['trials']), 'trial')}; chosen {chosen} "
        f"({search['score']} accuracy {100 * best['score']:.2f} on "
        f"{100 * search['held_out']:g} % of the training images, held out)."
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
