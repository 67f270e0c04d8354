"""What PC gains on identical features, as the page of results says it."""

import numpy as np
import pytest

from protail_paper.page import results_page
from protail_paper.paired import paired_difference
from protail_paper.results import Results
from protail_paper.scores import pack_bits
from reference.made_up_results import entries_of, labels_of_test, outcome_of, right_images

TITLE = "### What PC gains over each classifier on identical features"
TABLE_4, TABLE_3, TABLE_9 = (entries_of(name) for name in ("table4", "table3", "table9"))


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "cells")


def keep(results, entry, rights, backbones=None, **changes):
    for seed, right in enumerate(rights):
        backbone = f"seed {seed}" if backbones is None else backbones[seed]
        outcome = outcome_of(right, entry.subset.imbalance, backbone=backbone)
        results.add(entry.experiment(seed), outcome | changes)


def rights_of(fraction, row, n_seeds=3):
    return [right_images(fraction, seed, row=row, own=0.05) for seed in range(n_seeds)]


def section_of(results):
    page = results_page(results)
    return page.partition(TITLE)[2].partition("\n## ")[0]


def line_of(results, other, minus="`pc-cdt-la`"):
    lines = section_of(results).partition(f"| {minus} minus |")[2].splitlines()
    return next(line for line in lines if line.startswith(f"| {other} |"))


def few_worse(rights, fraction):
    """Make the last classes, those with the fewest images, wrong more often."""
    few = labels_of_test() >= 70
    rng = np.random.default_rng(1)
    return [right & ~(few & (rng.random(len(few)) < fraction)) for right in rights]


def test_numbers_are_those_of_paired_differences(results):
    pc, los = rights_of(0.52, 1), rights_of(0.51, 2)
    keep(results, TABLE_4["PC", "100"], pc)
    keep(results, TABLE_4["WD, LOS", "100"], los)
    rows = [
        [results.get(TABLE_4[row, "100"].experiment(seed)) for seed in range(3)]
        for row in ("WD, LOS", "PC")
    ]
    found = paired_difference(*rows)
    number = f"{100 * found.difference:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
    few = paired_difference(*rows, images=labels_of_test() >= 70)
    on_few = f"{100 * few.difference:+.2f} ({100 * few.low:+.2f} to {100 * few.high:+.2f})"
    assert line_of(results, "`los`").startswith(f"| `los` | 3 | {number} | {on_few} | PC ")
    # What is printed are means over seeds of results, in points.
    fractions = [[r.score("all", "mirrored") for r in row] for row in rows]
    assert number.startswith(f"{100 * (np.mean(fractions[1]) - np.mean(fractions[0])):+.2f} ")


def test_each_comparison_is_said_in_words(results):
    pc = rights_of(0.52, 1)
    keep(results, TABLE_4["PC", "100"], pc)
    keep(results, TABLE_4["WD", "100"], rights_of(0.45, 2))
    keep(results, TABLE_4["WD, LOS", "100"], rights_of(0.58, 3))
    keep(results, TABLE_4["WD, cRT", "100"], few_worse(rights_of(0.6, 4), 0.25))
    keep(results, TABLE_4["WD, LWS", "100"], [right.copy() for right in pc])
    keep(results, TABLE_4["NCM", "100"], rights_of(0.45, 5, n_seeds=1))
    assert line_of(results, "`wd` alone").endswith("| PC is ahead, on *few* too. |")
    assert line_of(results, "`los`").endswith("| PC is behind, on *few* too. |")
    assert line_of(results, "`crt`").endswith("| PC is behind, on *few* it is ahead. |")
    assert line_of(results, "`lws`").endswith(
        "| 3 | +0.00 (+0.00 to +0.00) | +0.00 (+0.00 to +0.00) "
        "| PC cannot be told apart, on *few* too. |"
    )
    assert line_of(results, "`ncm-augmented`").startswith("| `ncm-augmented` | 1 | ")
    assert line_of(results, "`ncm-augmented`").endswith(
        "PC is ahead, on *few* too (one training). |"
    )
    assert (
        "Over all classes `pc-cdt-la` is ahead of `wd` alone and `ncm-augmented` (one seed); it is "
        "behind `crt` and `los`; it cannot be told apart from `lws`. On *few* `pc-cdt-la` is ahead "
        "of `wd` alone, `crt` and `ncm-augmented` (one seed); it is behind `los`; it cannot be "
        "told apart from `lws`.\n"
    ) in section_of(results)


def test_one_training_that_goes_the_other_way_is_enough_for_doubt(results):
    base = right_images(0.5, 0)
    more = base | (np.arange(len(base)) % 50 == 0)
    less = base & (np.arange(len(base)) % 50 != 0)
    keep(results, TABLE_4["WD, LOS", "100"], [base] * 3)
    keep(results, TABLE_4["PC", "100"], [more, more, less])
    assert line_of(results, "`los`").endswith("| PC cannot be told apart, on *few* too. |")
    keep(results, TABLE_4["PC", "100"], [more, more, more])
    assert line_of(results, "`los`").endswith("| PC is ahead, on *few* too. |")


def test_only_results_on_the_same_weights_are_compared(results):
    keep(results, TABLE_4["PC", "100"], rights_of(0.52, 1), ["a", "b", "c"])
    keep(results, TABLE_4["WD, LOS", "100"], rights_of(0.5, 2), ["a", "b", "another"])
    keep(results, TABLE_4["WD, cRT", "100"], rights_of(0.5, 3), ["x", "y", "z"])
    keep(results, TABLE_4["WD, LWS", "100"], rights_of(0.5, 4), [None] * 3)
    assert line_of(results, "`los`").startswith("| `los` | 2 | ")
    assert "`crt`" not in section_of(results)
    assert "`lws`" not in section_of(results)


def test_other_features_are_not_compared(results):
    """RIDE stands on another representation, WD at 50 on other images."""
    keep(results, TABLE_4["PC", "100"], rights_of(0.52, 1))
    keep(results, TABLE_4["RIDE", "100"], rights_of(0.5, 2))
    keep(results, TABLE_4["WD, LOS", "50"], rights_of(0.5, 3))
    assert TITLE not in results_page(results)
    keep(results, TABLE_4["RIDE, PC", "100"], rights_of(0.52, 4))
    section = section_of(results)
    assert "#### On `ride` (resnet32-3-experts), cifar100-lt, imbalance 100" in section
    assert section.count("####") == 1
    assert line_of(results, "`ride` alone", "`ride-pc`").endswith("PC is ahead, on *few* too. |")


def test_prototypes_are_not_compared_among_themselves(results):
    for place, row in enumerate(["PC", "PC + LA", "NCM"]):
        keep(results, TABLE_4[row, "50"], rights_of(0.52, place))
    section = section_of(results)
    assert section.count("minus |") == 2
    assert section.count("| `ncm-augmented` | 3 |") == 2
    assert section.count("\n| `pc") == 2  # the heads of both tables


def test_recipes_that_come_to_the_same_share_a_line(results):
    keep(results, TABLE_3["WD", "PC (Ours)"], rights_of(0.52, 1))
    keep(results, TABLE_3["WD", "cRT"], rights_of(0.5, 2))
    assert section_of(results).count("| `crt` |") == 1
    assert TABLE_4["WD, cRT", "100"].experiment(0) in results


def test_data_without_a_group_of_few(results):
    keep(results, TABLE_4["PC", "10"], rights_of(0.6, 1))
    keep(results, TABLE_4["WD, LOS", "10"], rights_of(0.5, 2))
    assert line_of(results, "`los`").endswith("| - | PC is ahead. |")
    assert "On *few* `pc" not in section_of(results)


def test_data_without_known_labels(results):
    """Of CIFAR-10 no labels come with the package; all images are compared all the same."""
    right, other = np.arange(100) < 80, np.arange(100) < 60
    for row, bits in (("PC", right), ("WD", other)):
        entry = TABLE_9[row, "all"]
        whole = outcome_of(right_images(0.5, 0))
        scores = {"many": None, "medium": None, "few": 0.5, "all": float(bits.mean())}
        both = dict.fromkeys(("plain", "mirrored"), scores)
        packed = dict.fromkeys(("plain", "mirrored"), pack_bits(bits))
        results.add(entry.experiment(0), whole | {"scores": both, "right": packed})
    assert "#### On `wd` (resnet34-cifar), cifar10-lt, imbalance 100" in section_of(results)
    assert line_of(results, "`wd` alone").startswith("| `wd` alone | 1 | +20.00 (")
    assert line_of(results, "`wd` alone").endswith("| - | PC is ahead (one training). |")


def test_a_classifier_that_diverged(results):
    keep(results, TABLE_4["PC", "50"], rights_of(0.52, 1))
    keep(results, TABLE_4["WD, LOS", "50"], rights_of(0.5, 2))
    results.add(TABLE_4["WD, LOS", "50"].experiment(1), {"diverged": True, "backbone": "seed 1"})
    assert line_of(results, "`los`") == "| `los` | 3 | diverged | diverged |  |"


def test_a_variant_is_named_beside_its_recipe(results):
    keep(results, TABLE_4["PC", "100"], rights_of(0.52, 1))
    keep(results, TABLE_4["WD, cRT, images as PC", "100"], rights_of(0.5, 2))
    assert "| `crt` (images as PC) | 3 |" in results_page(results)


def test_it_comes_after_the_tables(results):
    keep(results, TABLE_4["PC", "50"], rights_of(0.52, 1))
    keep(results, TABLE_4["WD, LOS", "50"], rights_of(0.5, 2))
    page = results_page(results)
    titles = [line for line in page.splitlines() if line.startswith(("## ", "### "))]
    place = titles.index(TITLE)
    assert titles[place - 1].startswith("### Table ")
    assert not any(title.startswith("### Table ") for title in titles[place:])
    assert "2 degrees of freedom" in " ".join(page.split())
