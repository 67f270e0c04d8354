"""Recipes hold what the committed searches chose."""

from pathlib import Path

import pytest

from protail.recipes import load_recipe
from protail_paper.comparisons import CHOSEN_ON_CIFAR10, COMPARISONS
from protail_paper.results import Results
from protail_paper.tables import VARIANTS
from protail_paper.tuning import CHOICES, ranked_rows

RESULTS = Path(__file__).parents[2] / "results/cells"


@pytest.mark.parametrize(
    ("name", "start"),
    [("tuning-tau", ""), ("tuning-max", "crop and flip"), ("tuning-ride", ""), ("tuning-paco", "")],
)
def test_a_recipe_is_the_best_of_what_was_tried_on_held_out_images(name, start):
    table = CHOICES[name]
    ranked = ranked_rows(table, Results(RESULTS))
    assert len(ranked) == len(table.rows)
    best = next(row for row, _ in ranked if row.label.startswith(start))
    recipe = load_recipe(best.classifier)
    assert recipe.with_overrides(best.overrides) == recipe


@pytest.mark.parametrize("name", ["tuning-tau-cifar10", "tuning-max-cifar10"])
def test_what_table_9_sets_is_the_best_of_what_was_tried_on_held_out_images(name):
    table = CHOICES[name]
    ranked = ranked_rows(table, Results(RESULTS))
    assert len(ranked) == len(table.rows)
    best = ranked[0][0]
    [entry] = [
        each
        for each in COMPARISONS["table9"].entries
        if each.variant == CHOSEN_ON_CIFAR10 and each.recipe == best.classifier
    ]
    recipe = load_recipe(best.classifier)
    assert recipe.with_overrides(entry.overrides) == recipe.with_overrides(best.overrides)


def test_the_strongest_prototypes_are_the_best_that_were_tried_aside():
    results = Results(RESULTS)
    tables = [table for name, table in CHOICES.items() if name.startswith("strong-")]
    for table in tables:
        assert len(ranked_rows(table, results)) == len(table.rows)
    prototypes = [
        (score.mean, table, row)
        for table in tables
        for row, score in ranked_rows(table, results)
        if row.classifier == "pc-la"
    ]
    _, table, best = max(prototypes, key=lambda entry: entry[0])
    tried = load_recipe(f"{table.backbones['ResNet-34']}/pc-la").with_overrides(best.overrides)
    chosen = load_recipe("pc-strong")
    assert chosen.phases == tried.phases
    assert chosen.classifier == tried.classifier


def test_as_on_wd_is_what_prototypes_have_there():
    recipe = load_recipe("pc-la")
    assert recipe.with_overrides(VARIANTS["as on WD"]) == recipe
