"""Write the tables of docs/uses.md and draw its picture, from what `uses.py` measured.

python benchmarks/uses_page.py [--json results/frozen/uses.json] [--page docs/uses.md]
    [--picture docs/images/uses-adding.png]
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]
SETS = {
    "tiny lite2": "Tiny-ImageNet",
    "cifar lite2": "CIFAR-100",
    "cifar opennsfw": "CIFAR-100, thin ResNet-50",
    "birds lite2": "birds",
    "kinds": "kinds of nouns",
}
WAYS = {
    "add_classes": "`add_classes`",
    "closed form, add_classes": "closed form, `add_classes`",
    "fitted again": "default, fitted again",
    "regression, new weight": "regression, new weight vector",
    "regression, fitted again": "regression, fitted again",
    "nearest class mean": "nearest class mean",
}
PRIORS = {
    ("default", "uniform"): 'default, `prior="uniform"`',
    ("default", "exact"): "default, `prior=` exact",
    ("default", "estimate"): 'default, `prior="estimate"`',
    ("default", "train"): 'default, `prior="train"`',
    ("regression", "uniform"): "regression, adjusted",
    ("regression", "exact"): "regression, exact mix",
    ("regression", "estimate"): "regression, our estimate",
    ("regression", "plain EM"): "regression, plain EM",
    ("regression", "train"): "regression, as learned",
    ("regression, no temperature", "uniform"): "regression, adjusted, no temperature",
}
MIXES = ("uniform", "as in training", "reversed", "a tail in another order")
WRONG = (0.0, 0.1, 0.2, 0.4)
# Before anything is added they are the same.
FIRST = {"fitted again": "add_classes", "regression, fitted again": "regression, new weight"}
COLOURS = dict(
    zip(WAYS, ("#d55e00", "#e69f00", "#0072b2", "#999999", "#56b4e9", "#009e73"), strict=True)
)


def case(records: list[Record], **wanted: Any) -> Record:
    """Find the case that was measured."""
    (found,) = (each for each in records if all(each.get(k) == v for k, v in wanted.items()))
    return found


def over_sets(sets: dict[str, list[Record]], what: str, **wanted: Any) -> list[float]:
    """Average over the sets, for each subset."""
    every = [case(records, **wanted)[what] for records in sets.values()]
    subsets: list[float] = np.mean(every, 0).tolist()
    return subsets


def spread(subsets: list[float], digits: int = 1) -> str:
    """Write mean and standard deviation."""
    if len(subsets) == 1:
        return f"{subsets[0]:.{digits}f}"
    return f"{np.mean(subsets):.{digits}f} ± {np.std(subsets, ddof=1):.{digits}f}"


def table(heads: list[str], rows: list[list[str]], n_words: int = 1) -> str:
    """Write a table, numbers to the right."""
    rules = ["---"] * n_words + ["---:"] * (len(heads) - n_words)
    lines = ["| " + " | ".join(row) + " |" for row in [heads, *rows]]
    return "\n".join([lines[0], "|" + "|".join(rules) + "|", *lines[1:]])


def adding_table(sets: dict[str, list[Record]], photos: int) -> str:
    """Accuracy on all classes (old, new) after adding some, from so many photos each."""
    rows = []
    for name in SETS:
        records = sets.get(name, [])
        steps = sorted({each["added"] for each in records if each["added"] >= 10})
        for n_new in steps:
            row = [SETS[name], str(n_new)]
            for way in WAYS:
                found = case(records, way=way, photos=photos, added=n_new)
                parts = (np.mean(found[part]) for part in ("old", "new"))
                row.append(f"{spread(found['all'])} ({', '.join(f'{p:.0f}' for p in parts)})")
            rows.append(row)
    return table(["features", "added", *WAYS.values()], rows, 1)


def seconds_table(sets: dict[str, list[Record]]) -> str:
    """How long adding one class takes, and fitting again."""
    rows = []
    for name in SETS:
        records = [each for each in sets.get(name, []) if each["photos"] == 20]
        if records:
            last = max(each["added"] for each in records)
            seconds = [
                np.mean(case(records, way=way, added=last)["seconds"])
                for way in ("add_classes", "fitted again", "regression, fitted again")
            ]
            rows.append(
                [SETS[name], f"{1000 * seconds[0]:.0f}", *(f"{s:.2f}" for s in seconds[1:])]
            )
    return table(
        [
            "features",
            "`add_classes`, ms a class",
            "default, fitted again, s",
            "regression, fitted again, s",
        ],
        rows,
    )


def novelty_table(sets: dict[str, list[Record]]) -> str:
    """AUROC and how many unseen rows are found, by score."""
    far = {
        name: records
        for name, records in sets.items()
        if any(r["unseen"] == "far" for r in records)
    }
    shown = [name for name in SETS if name in sets]
    rows = []
    for score in dict.fromkeys(each["score"] for each in next(iter(sets.values()))):
        near = {"score": score, "unseen": "near"}
        row = [f"`{score}`" if score == "novelty_score" else score]
        row += [f"{np.mean(case(sets[name], **near)['auroc']):.1f}" for name in shown]
        for which, kind in (sets, "near"), (far, "far"):
            for what in "auroc", "found at 5 %":
                row.append(spread(over_sets(which, what, score=score, unseen=kind)))
        rows.append(row)
    heads = ["score", *(SETS[name] for name in shown)]
    return table([*heads, "mean", "found at 5 %", "other data: mean", "found at 5 %"], rows)


def mixes_table(sets: dict[str, list[Record]], what: str) -> str:
    """Accuracy, or likelihood and calibration, by mix and prior."""
    rows = []
    for (head, prior), words in PRIORS.items():
        row = [words]
        for mix in MIXES:
            wanted = {"mix": mix, "head": head, "prior": prior}
            if what == "accuracy":
                row.append(spread(over_sets(sets, what, **wanted)))
            else:
                error = np.mean(over_sets(sets, "calibration", **wanted))
                row.append(f"{spread(over_sets(sets, 'surprise', **wanted), 2)} ({error:.1f})")
        rows.append(row)
    return table(["test rows are mixed", *MIXES], rows)


def noise_table(sets: dict[str, list[Record]]) -> str:
    """Accuracy by head and part of wrong labels."""
    records = next(iter(sets.values()))
    rows = []
    for head in dict.fromkeys(each["head"] for each in records if "head" in each):
        values = [over_sets(sets, "accuracy", head=head, wrong=wrong) for wrong in WRONG]
        rows.append([head, *map(spread, values)])
    return table(["wrong labels", *(f"{100 * wrong:.0f} %" for wrong in WRONG)], rows)


def found_table(sets: dict[str, list[Record]]) -> str:
    """Who finds the wrong labels."""
    rows = []
    for wrong in WRONG:
        for finder in dict.fromkeys(
            r["finder"] for r in next(iter(sets.values())) if "finder" in r
        ):
            wanted = {"finder": finder, "wrong": wrong}
            row = [f"{100 * wrong:.0f} %", f"`{finder}`" if "_" in finder else finder]
            row.append(spread(over_sets(sets, "listed", **wanted)))
            for what in "precision", "recall", "average precision", "suggested":
                row.append(spread(over_sets(sets, what, **wanted)) if wrong else "-")
            rows.append(row)
    heads = ["listed, % of rows", "precision", "recall", "average precision", "right class named"]
    return table(["wrong labels", "finder", *heads], rows, 2)


def tables(found: Record) -> dict[str, str]:
    """Make all tables of the page."""
    return {
        **{f"adding {n}": adding_table(found["adding"], n) for n in (1, 5, 20)},
        "seconds": seconds_table(found["adding"]),
        "novelty": novelty_table(found["novelty"]),
        "accuracy": mixes_table(found["mixes"], "accuracy"),
        "calibration": mixes_table(found["mixes"], "calibration"),
        "noise": noise_table(found["noise"]),
        "found": found_table(found["noise"]),
    }


def draw(sets: dict[str, list[Record]], picture: Path) -> None:
    """Draw accuracy against the number of added classes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    name = next(name for name in SETS if name in sets)
    records = sets[name]
    figure, panels = plt.subplots(
        1, 3, figsize=(10, 3.8), dpi=110, sharey=True, layout="constrained"
    )
    for axes, photos in zip(panels, (1, 5, 20), strict=True):
        for way, words in WAYS.items():
            start = {"photos": 0, "way": FIRST.get(way, way)}
            cases = (start, {"photos": photos, "way": way})
            steps = [each for wanted in cases for each in records if wanted.items() <= each.items()]
            x = [each["added"] for each in steps]
            y = np.array([each["all"] for each in steps])
            axes.plot(x, y.mean(1), "o-", ms=3.5, color=COLOURS[way], label=words.replace("`", ""))
            axes.fill_between(x, y.min(1), y.max(1), color=COLOURS[way], alpha=0.1, lw=0)
        axes.set(title=f"{photos} row{'s' * (photos > 1)} each", xlabel="classes added")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, all classes, %")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.suptitle(SETS[name], fontsize="medium")
    figure.savefig(picture)


def main() -> None:
    """Write page and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("results/frozen/uses.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/uses.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/uses-adding.png"))
    chosen = parser.parse_args()
    found = json.loads(chosen.json.read_text())
    page = chosen.page.read_text(encoding="utf-8")
    for name, text in tables(found).items():
        place = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        page, n = place.subn(lambda m, text=text: m[1] + text + m[2], page)
        if n != 1:
            raise SystemExit(f"{chosen.page}: {n} places for the table {name!r}; expected one.")
    chosen.page.write_text(page, encoding="utf-8")
    draw(found["adding"], chosen.picture)


if __name__ == "__main__":
    main()
