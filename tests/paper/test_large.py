"""Tables 5 and 6: which experiments they are made of, and how they are shown."""

import hashlib
import json
from dataclasses import replace

import pytest

from protail.data.augment import LOADER_AUGMENTS
from protail.recipes import recipe_hash
from protail_paper.groups import bench_table
from protail_paper.large import LARGE, LARGE_SETS
from protail_paper.page import results_page
from protail_paper.paper import paper_table
from protail_paper.results import Results
from protail_paper.wanted import Experiment, Subset
from reference.real_data import shared

EACH = pytest.mark.parametrize("table", LARGE.values(), ids=lambda table: table.name)
# Nobody has published settings of DRO-LT for these data sets; experts are networks for CIFAR here.
NOT_RUN = {"DRO-LT", "RIDE"}
GROUPS = {"many": 0.6, "medium": 0.4, "few": 0.2, "all": 0.45}
BOTH = {"plain": GROUPS, "mirrored": GROUPS}


def first_experiments(table):
    return {entry.row: entry.experiment(0) for entry in table.entries}


@EACH
def test_every_row_can_be_run_on_images_in_files(table):
    [names] = table.backbones.values()
    for experiment in first_experiments(table).values():
        first, second = experiment.recipe.representation, experiment.recipe.classifier
        assert first.backbone in names
        assert set(first.augment) | set(first.second_view) <= set(LOADER_AUGMENTS)
        if second is not None and (second.epochs or second.centroids == "augmented"):
            assert set(second.augment) <= set(LOADER_AUGMENTS)
    assert bench_table(table.name) is table


@EACH
def test_every_number_of_the_paper_that_can_be_run_has_a_place(table):
    paper = paper_table(table.paper)
    ours = {(entry.paper, entry.column) for entry in table.entries if entry.paper is not None}
    rows = [row.name for row in paper.rows if row.name not in NOT_RUN]
    assert ours == {(row, column) for row in rows for column in paper.columns}
    assert table.columns == paper.columns
    assert {entry.subset for entry in table.entries} == {Subset(paper.dataset)}


@EACH
def test_rows_share_a_representation_as_in_table_4(table):
    experiments = first_experiments(table)
    by_key = {}
    for row, experiment in experiments.items():
        by_key.setdefault(experiment.representation_key, set()).add(row)
    heads = {"cRT", "LWS", "tau-norm", "LogitAdjust, post hoc", "DisAlign"}
    on_wd = {"WD", "WD + WD + Max", "NCM", "PC + LA", "PC", *(f"WD, {head}" for head in heads)}
    assert sorted(by_key.values(), key=len) == [{"Focal"}, {"PaCo"}, {"CE", *heads}, on_wd]
    # What each row computes is computed for one of them only.
    assert len({experiment.key for experiment in experiments.values()}) == len(experiments)


@pytest.mark.parametrize(
    ("table", "row", "stage", "settings"),
    [
        # Kang et al.; Prototype Classifiers; Zhang et al.; Cui et al.
        ("table5", "CE", "representation", (90, 512, 0.2, 5e-4, "cosine")),
        ("table6", "CE", "representation", (90, 512, 0.2, 1e-4, "cosine")),
        ("table5", "Focal", "representation", (90, 512, 0.2, 5e-4, "cosine")),
        ("table5", "WD", "representation", (200, 64, 0.01, 5e-3, "cosine")),
        ("table6", "WD", "representation", (200, 512, 0.01, 5e-3, "cosine")),
        ("table5", "PaCo", "representation", (400, 128, 0.02, 5e-4, "cosine")),
        ("table6", "PaCo", "representation", (400, 128, 0.02, 1e-4, "cosine")),
        ("table5", "cRT", "classifier", (1, 512, 0.2, 5e-4, "cosine")),
        ("table6", "LWS", "classifier", (1, 512, 0.2, 1e-4, "cosine")),
        ("table5", "DisAlign", "classifier", (10, 256, 0.1, 5e-4, "cosine")),
        ("table5", "WD + WD + Max", "classifier", (10, 64, 0.01, 0.1, "cosine")),
        ("table5", "PC", "classifier", (1, 64, 4.0, 0.0, "cosine")),
    ],
)
def test_settings_are_the_published_ones(table, row, stage, settings):
    found = getattr(first_experiments(LARGE[table])[row].recipe, stage)
    keys = ("epochs", "batch_size", "lr", "weight_decay", "schedule")
    assert tuple(getattr(found, key) for key in keys) == settings
    assert found.warm_up_epochs == (10 if row == "PaCo" else 0)


def test_balanced_classifiers_take_as_many_steps_as_passes_over_the_images():
    def steps(table, row):
        return first_experiments(LARGE[table])[row].recipe.classifier.max_steps

    imagenet, inaturalist = (LARGE_SETS[name] for name in ("imagenet-lt", "inaturalist18"))
    assert steps("table5", "cRT") == 10 * (imagenet.n_images // 512)
    assert steps("table5", "LWS") == 5 * (imagenet.n_images // 512)
    assert steps("table6", "LWS") == 5 * (inaturalist.n_images // 512)
    # 30 passes would be more than an epoch of balanced classes.
    epoch = -(-inaturalist.n_max * inaturalist.n_classes // 512)
    assert steps("table6", "WD, cRT") == epoch < 30 * (inaturalist.n_images // 512)


def test_the_size_of_imagenet_lt_is_the_real_one():
    place = shared("data/splits/imagenet_lt_class_counts.json")
    counts = list(json.loads(place.read_text()).values())
    known = LARGE_SETS["imagenet-lt"]
    assert (sum(counts), max(counts), len(counts)) == (
        *(known.n_images, known.n_max, known.n_classes),
    )


def test_keys_of_other_experiments_stay_as_they_were():
    recipe = recipe_hash(Experiment("wd", Subset("cifar100-lt", 100), 0).recipe.resolved())
    for subset, data in (
        (Subset("cifar100-lt", 100), ["cifar100-lt", 100.0, "shuffled"]),
        (Subset("cifar10-lt", 50, "author"), ["cifar10-lt", 50.0, "author"]),
        (
            Subset("cifar100-lt", 100, "shuffled", 0.2, 3),
            ["cifar100-lt", 100.0, "shuffled", 0.2, 3],
        ),
    ):
        text = json.dumps([recipe, data, 2])
        assert Experiment("wd", subset, 2).key == hashlib.sha256(text.encode()).hexdigest()


def test_a_subset_that_is_not_cut_to_a_ratio():
    experiment = Experiment("wd", Subset("imagenet-lt"), 1)
    assert experiment.command == "protail train wd --dataset imagenet-lt --seed 1"
    keys = {
        Experiment("wd", subset, 1).key
        for subset in (Subset("imagenet-lt"), Subset("imagenet-lt", 100))
    }
    assert len({*keys, Experiment("wd", Subset("imagenet-lt", miniature=9), 1).key}) == 3


def test_groups_of_classes_stand_beside_the_papers(tmp_path):
    results = Results(tmp_path / "cells")
    for seed in range(3):
        results.add(
            Experiment(**vars(first_experiments(LARGE["table5"])["PC"]) | {"seed": seed}),
            {"scores": BOTH},
        )
    page = results_page(results)
    part = page.partition("### Table 5 of the paper: Other methods on ImageNet-LT")[2]
    lines = part.splitlines()
    assert lines[2] == "| mirrored | backbone | many | medium | few | all | GFLOPs | GPU s |"
    ours = lines.index(
        "| PC | ResNeXt-50 | 60.00 ± 0.00 | 40.00 ± 0.00 | 20.00 ± 0.00 | 45.00 ± 0.00 |  |  |"
    )
    assert lines[ours + 1] == "| *paper* |  | 63.5 | 50.8 | 42.7 | 54.9 |  |  |"
    assert lines[ours + 2] == "| *ours - paper* |  | -3.50 | -10.80 | -22.70 | -9.90 |  |  |"
    assert "Table 6 of the paper" not in page


def test_results_of_a_miniature_are_never_shown(tmp_path):
    results = Results(tmp_path / "cells")
    empty = results_page(results)
    for table in LARGE.values():
        for experiment in first_experiments(table).values():
            small = replace(experiment, subset=replace(experiment.subset, miniature=1234))
            results.add(small, {"scores": BOTH})
            assert experiment not in results
    assert len(results) == 36
    assert results_page(results) == empty
    taken = Results(tmp_path / "taken")
    assert taken.take(results) == 36
    assert results_page(taken) == empty
    assert {file.parent.name for file in (tmp_path / "taken").rglob("*.json")} == {
        *("imagenet-lt-miniature-1234", "inaturalist18-miniature-1234"),
    }
