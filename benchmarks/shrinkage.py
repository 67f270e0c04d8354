"""Draw how much of a class mean its prototype keeps, beside what would have been best.

    python benchmarks/shrinkage.py FEATURES docs/images/shrinkage.png

FEATURES is what `frozen_features.py` wrote. A classifier is fitted on a long tail. What would have
been best is measured in its space with rows it has not seen: the factor on the mean of n rows of a
class that brings it nearest to the mean of the class's other rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from frozen import DEVELOP, Tail, rows_of

from protail import PrototypeClassifier
from protail.estimator._gaussian import ClosedForm
from protail.estimator._whitened import statistics_of

SHOWN = {
    "Tiny-ImageNet, EfficientNet-lite0": ("tiny lite0, 40..2", "#0072b2"),
    "CIFAR-100, EfficientNet-lite1": ("cifar lite1, 60..1", "#d55e00"),
    "Tiny-ImageNet, an early layer": ("tiny lite0 early, 40..2", "#009e73"),
}
SIZES = (1, 2, 3, 5, 8, 12, 20, 30)


def best_factors(tail: Tail, features: Path) -> tuple[list[float], float]:
    """Fit half of the classes; of the others, measure the best factor at each size."""
    x, y, _ = rows_of(tail, features)
    rng = np.random.default_rng(0)
    classes = rng.permutation(y.max() + 1)
    known, others = classes[::2], classes[1::2]
    sizes = np.round(60 * 0.03 ** (np.arange(len(known)) / (len(known) - 1))).astype(int)
    index = np.concatenate(
        [
            rng.permutation(np.flatnonzero(y == label))[:size]
            for label, size in zip(known, sizes, strict=True)
        ]
    )
    fitted = PrototypeClassifier(method="closed-form").fit(x[index], y[index])
    form = ClosedForm.of(statistics_of(fitted), fitted.choices_["ridge"])
    space = form.mapped(fitted._preparation(torch.from_numpy(x)).double()).numpy()
    factors = []
    for size in SIZES:
        product = square = 0.0
        for label in others:
            rows = rng.permutation(np.flatnonzero(y == label))
            few, rest = space[rows[:size]].mean(0), space[rows[size:]].mean(0)
            product, square = product + few @ rest, square + few @ few
        factors.append(product / square)
    return factors, form.kappa


def main() -> None:
    """Draw a line for the rule and points for what was best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("picture", type=Path)
    chosen = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4), dpi=110, layout="constrained")
    fine = np.geomspace(1, 30, 100)
    for label, (name, colour) in SHOWN.items():
        factors, kappa = best_factors(DEVELOP[name], chosen.features)
        axes.plot(fine, fine / (fine + kappa), color=colour, label=f"{label}: κ = {kappa:.1f}")
        axes.plot(SIZES, factors, "o", color=colour)
        print(f"{label}: kappa {kappa:.2f}; best factors", np.round(factors, 2).tolist())
    axes.set(
        xscale="log",
        xlabel="training rows of the class",
        ylabel="part of the class mean",
        ylim=(0, 1),
        title="What a prototype keeps, n / (n + κ), and (dots) what would have been best",
    )
    axes.set_xticks(SIZES, list(map(str, SIZES)))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(chosen.picture)


if __name__ == "__main__":
    main()
