"""Tiny-ImageNet-LT, imbalance 100, with ResNet-18: softmax, prototypes and their rivals.

    python benchmarks/tiny_imagenet.py FOLDER [--results DIR] [--limit SECONDS] [--at-once 5]
    python benchmarks/tiny_imagenet.py --table [--results DIR]

FOLDER has ``train`` and ``test`` with a folder of JPEGs of 64 x 64 pixels for every class (LDAM's
subset: 500 down to 5 of 200 classes; the 10,000 validation images to test on). Every result is a
small JSON file as soon as it is there; stopped at any moment (``--limit`` does it), the same
command goes on. ``--table`` writes the page of results beside them.

The weight decay of stage 1 is chosen for this network on a fifth of the training images, which no
stage sees, by the balanced accuracy of `pc-la` there; then everything is trained on all of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

from protail._stopping import stoppable
from protail.data.images import DataSet, in_memory, load_dataset, require_images
from protail.experiments import Options, held_out_data
from protail.utils import new_file
from protail_paper.paired import paired_difference
from protail_paper.results import Result, Results, summarize
from protail_paper.running import run_missing
from protail_paper.tables import settings
from protail_paper.wanted import Experiment, Subset

TINY = Subset("tiny-imagenet-lt-100")
HELD_OUT = replace(TINY, held_out=0.2)
SEEDS = (0, 1, 2)
DECAYS = (1e-3, 2e-3, 5e-3)
# The network as published, whose first layers make 16 x 16 of 64 x 64.
NETWORK = settings("representation", backbone="resnet18")
# As many steps as 30 passes over the training images.
CRT = settings("classifier", max_steps=5051)
GROUPS = ("many", "medium", "few", "all")
# Label, recipe, what is set otherwise: stage 1 as most methods train it, then with weight decay.
ON_SOFTMAX: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("softmax", "ce-resnet32", {}),
    ("softmax, logit adjustment after training", "logit-adjusted-post-hoc", {}),
    ("softmax, cRT", "crt", CRT),
    ("logit adjustment in the loss", "logit-adjusted", {}),
    ("LDAM-DRW", "ldam-drw", {}),
)
ON_DECAY: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("WD", "wd", {}),
    ("WD, logit adjustment after training", "wd/logit-adjusted-post-hoc", {}),
    ("WD, cRT", "wd/crt", CRT),
    ("WD, NCM of clean images", "ncm", {}),
    ("WD, NCM of augmented images", "ncm-augmented", {}),
    ("WD, PC", "pc", {}),
    ("WD, PC + LA", "pc-la", {}),
)
COMPARED = ("WD, logit adjustment after training", "WD, cRT", "WD, NCM of augmented images")
ABOUT = """\
# Tiny-ImageNet-LT, imbalance 100, ResNet-18

Made by `python benchmarks/tiny_imagenet.py --table`; do not edit. Accuracy in per cent on the
10,000 validation images of Tiny ImageNet (50 of each of its 200 classes), which no choice has
seen, after the last epoch: mean ± standard deviation over three seeds.

## What was run

- 21,549 training images of 64 x 64 pixels, 500 of the largest class down to 5 of the smallest,
  flipped, and cropped after padding by 8 pixels. *Many* are classes of at least 100 training
  images, *few* those of fewer than 20.
- timm's ResNet-18 from scratch, 200 epochs. Its first layers, made for larger images, are
  unchanged: a convolution of 7 x 7 pixels with stride 2 and a max-pool, so that 64 pixels a side
  are 16 before the first block and 2 after the last.
- The first five rows: the recipes as they are for CIFAR (batch 128, learning rate 0.1 in steps,
  weight decay 0.0002). Nothing of them was tuned here.
- *WD* and the rows on it: batch 64, learning rate 0.01 along a cosine, and a weight decay that was
  chosen among three, by PC + LA with a fifth of the training images held out of both stages
  (below). The best is the largest that was tried, so a larger one may be better still.
- Whatever else a recipe holds (tau, the learning rates of classifiers) was chosen for CIFAR.

## What it says

- On the networks of WD, logit adjustment after training, cRT, class means of augmented images,
  PC and PC + LA cannot be told apart over all classes (last table). They differ in where they
  are right: PC + LA and logit adjustment have the most of *few*, WD itself and PC the most of
  *many*. Class means of clean images are behind.
- So learned prototypes are as good as the best of the others here, and not better; and they add
  little to class means of augmented images.
- How stage 1 is trained does more than any classifier on it. The first five rows and those of WD
  differ by weight decay, batch, learning rate and tuning together: compare within each of the two.
- The LDAM paper reports 33.8 for softmax and 37.5 for LDAM-DRW, with a network and schedule that
  we did not match. All rows here are below that, LDAM-DRW by 16 points and, unlike there, below
  softmax. The first layers, which leave little of 64 pixels, and settings made for CIFAR may be
  why; neither was tried. Read the table as a comparison of classifiers on one network, not as the
  level of the data set.

"""


def experiment(
    recipe: str, changes: dict[str, Any], seed: int, subset: Subset = TINY, **stage_1: Any
) -> Experiment:
    """Name one execution of a recipe with this network."""
    changed = {**NETWORK, **changes, **settings("representation", **stage_1)}
    return Experiment(recipe, subset, seed, changed)


def tried(decay: float) -> Experiment:
    """Name what tells how good a weight decay is; no test image is in it."""
    return experiment("pc-la", {}, 0, HELD_OUT, weight_decay=decay)


def chosen_decay(results: Results) -> float | None:
    """Give the weight decay that did best on images held out; None until all were tried."""
    found = {decay: results.get(tried(decay)) for decay in DECAYS}
    if None in found.values():
        return None
    scores = {
        decay: result.record["scores"]["plain"]["balanced"]
        for decay, result in found.items()
        if result is not None and not result.diverged
    }
    return max(scores, key=lambda decay: scores[decay], default=None)


def rows(decay: float | None) -> dict[str, list[Experiment]]:
    """List the experiments of every row, a seed each; those with weight decay once it is known."""
    found = {
        label: [experiment(recipe, changes, seed) for seed in SEEDS]
        for label, recipe, changes in ON_SOFTMAX
    }
    for label, recipe, changes in ON_DECAY if decay is not None else ():
        found[label] = [experiment(recipe, changes, seed, weight_decay=decay) for seed in SEEDS]
    return found


def loader(folder: Path) -> Callable[[Subset], DataSet]:
    """Give what finds the images of a subset in a folder, decoded once."""

    @cache
    def load(subset: Subset) -> DataSet:
        if subset.held_out:
            return held_out_data(load(replace(subset, held_out=0.0)), fraction=subset.held_out)
        found = in_memory(require_images(load_dataset(folder), "train on"))
        if found is None:
            raise ValueError(f"{folder} has images of several sizes; expected 64 x 64 pixels.")
        return replace(found, name=subset.dataset)

    return load


def run(args: argparse.Namespace, results: Results) -> None:
    """Run what is missing: decays and the rows that need none, then the others."""
    compiled = not args.no_compile and Options.automatic(args.device).device.type == "cuda"
    options = Options.automatic(args.device, compiled=compiled, checkpoint_seconds=30)
    load = loader(args.folder)

    def train(wanted: list[Experiment]) -> None:
        if args.epochs is not None:  # a trial: of one seed, without what counts on 200 epochs
            changes = settings("representation", epochs=args.epochs, warm_up_epochs=0.0)
            wanted = [
                replace(each, overrides={**each.overrides, **changes})
                for each in wanted
                if each.seed == 0 and each.recipe_name != "ldam-drw"
            ]
        n = args.at_once
        run_missing(wanted, results, load, options, at_once=n, say=lambda t: print(t, flush=True))

    def by_seed(decay: float | None) -> list[Experiment]:
        """List the rows seed by seed, LDAM's last: the published number is there already."""
        found = [each for seeds in zip(*rows(decay).values(), strict=True) for each in seeds]
        return sorted(found, key=lambda each: each.recipe_name == "ldam-drw")

    without = by_seed(None)
    train([*(tried(decay) for decay in DECAYS), *without[: len(ON_SOFTMAX) - 1]])
    decay = chosen_decay(results) if args.epochs is None else DECAYS[0]
    if decay is None:
        raise RuntimeError(f"every training diverged with the weight decays {DECAYS}.")
    print(f"weight decay {decay:g}", flush=True)
    train(by_seed(decay))


def page(results: Results) -> str:
    """Write what was run and the tables in Markdown."""
    decay = chosen_decay(results)
    found = {label: results.of(wanted) for label, wanted in rows(decay).items()}
    lines = ["## Accuracy", ""]
    for view, title in (("mirrored", "with horizontal-flip averaging"), ("plain", "plain")):
        lines += [f"| in %, {title} | " + " | ".join(GROUPS) + " | seeds |"]
        lines += ["|---" + "|---:" * (len(GROUPS) + 1) + "|"]
        for label, of_seeds in found.items():
            scores = summarize(of_seeds, view)
            numbers = [str(scores[group]) if scores else "not run" for group in GROUPS]
            lines.append(f"| {label} | {' | '.join(numbers)} | {len(of_seeds)} |")
        lines.append("")
    lines += [
        "## The weight decay",
        "",
        "| weight decay of WD | balanced accuracy on held-out images, % |",
        "|---:|---:|",
    ]
    for each in DECAYS:
        result = results.get(tried(each))
        score = "not run" if result is None else "diverged"
        if result is not None and not result.diverged:
            score = f"{100 * result.record['scores']['plain']['balanced']:.2f}"
        lines.append(f"| {each:g}{' (chosen)' if each == decay else ''} | {score} |")
    lines += ["", "## Learned prototypes minus other classifiers on the same networks", ""]
    lines += [
        "Over all classes, with horizontal-flip averaging; in brackets the interval of 95 % over"
    ]
    lines += ["trainings and test images.", ""]
    lines += ["| points | WD, PC | WD, PC + LA |", "|---|---:|---:|"]
    for other in COMPARED:
        pairs = [
            (found.get(other, ()), found.get(label, ())) for label in ("WD, PC", "WD, PC + LA")
        ]
        lines.append(f"| minus {other} | {' | '.join(starmap(difference, pairs))} |")
    made = [each.record["about"] for of_seeds in found.values() for each in of_seeds]
    keys = {"Hardware": "gpus", "torch": "torch", "code": "commit"}
    how = [f"{name}: {', '.join(_seen(made, key))}" for name, key in keys.items()]
    lines += ["", f"{len(made)} results. {'; '.join(how)}."]
    return ABOUT + "\n".join(lines) + "\n"


def _seen(made: Sequence[dict[str, Any]], key: str) -> list[str]:
    """List the values that results have of what they say about themselves."""
    return sorted({" and ".join(v) if isinstance(v := each[key], list) else v for each in made})


def difference(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Say by how much the second row is better, with an interval."""
    if not first or not second:
        return "not run"
    found = paired_difference(first, second)
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.difference:+.2f} ({low:+.2f} to {high:+.2f})"


def main() -> None:
    """Run, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--results", type=Path, default=Path("results/tiny-imagenet"))
    parser.add_argument("--limit", type=float, help="seconds after which it stops")
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--epochs", type=int, help="of stage 1, to try things out")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    results = Results(args.results)
    if args.table:
        with new_file(args.results / "README.md", overwrite=True) as temporary:
            temporary.write_text(page(results), encoding="utf-8")
        return
    if args.limit:
        stop = threading.Timer(args.limit, os.kill, (os.getpid(), signal.SIGINT))
        stop.daemon = True
        stop.start()
    try:
        with stoppable():
            run(args, results)
    except KeyboardInterrupt:
        print("Stopped; what is finished is kept, and the same command goes on.")


if __name__ == "__main__":
    main()
