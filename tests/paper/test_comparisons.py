"""Tables 3, 4 and 9: other methods beside the paper's numbers."""

import pytest

from protail_paper.comparisons import COMPARISONS
from protail_paper.groups import bench_table, wanted_experiments
from protail_paper.page import results_page
from protail_paper.paper import paper_table
from protail_paper.results import Results
from protail_paper.tables import BACKBONES, TABLES

EACH = pytest.mark.parametrize("table", COMPARISONS.values(), ids=lambda table: table.name)
GROUPS = {"many": 0.7, "medium": 0.4, "few": 0.1}


def entry_of(table, row, column):
    [found] = [each for each in table.entries if (each.row, each.column) == (row, column)]
    return found


def keep(results, entry, fractions, **more):
    for seed, fraction in enumerate(fractions):
        scores = {"all": fraction, **GROUPS}
        both = {"plain": scores | {"all": 0.0}, "mirrored": scores}
        results.add(entry.experiment(seed), {"scores": both, **more})


def part_of(page, title):
    [part] = [part for part in page.split("\n### ") if part.startswith(title)]
    return part.partition("\n## ")[0]


@EACH
def test_every_experiment_is_a_recipe_that_can_be_run(table):
    experiments = [
        experiment for backbone in table.backbones for experiment in table.experiments(backbone)
    ]
    assert len(experiments) == len(table.entries) * len(table.seeds)
    assert all(experiment.recipe.representation is not None for experiment in experiments)
    assert set(table.backbones) == set(BACKBONES)
    assert bench_table(table.name) is table


@EACH
def test_every_number_of_the_paper_has_a_place(table):
    paper = paper_table(table.paper)
    ours = {(entry.paper, entry.column) for entry in table.entries if entry.paper is not None}
    assert ours == {(row.name, column) for row in paper.rows for column in paper.columns}
    assert set(table.columns) == set(paper.columns)
    for entry in table.entries:
        assert entry.subset.dataset == paper.dataset
        assert entry.subset.imbalance == (paper.imbalance or float(entry.column))


@EACH
def test_a_place_is_there_once(table):
    places = [(entry.row, entry.column) for entry in table.entries]
    assert len(set(places)) == len(places)


def test_one_seed_of_everything_comes_first():
    wanted = wanted_experiments(["table4", "table9"], BACKBONES)
    assert [experiment.seed for experiment in wanted] == sorted(
        experiment.seed for experiment in wanted
    )
    assert len({experiment.key for experiment in wanted}) == len(wanted)
    [alone] = {
        experiment.recipe.representation.backbone
        for experiment in wanted_experiments(["table4"], ["ResNet-34"])
    }
    assert alone == "resnet34-cifar"


def test_tables_of_which_nothing_is_there_are_not_shown(tmp_path):
    results = Results(tmp_path / "cells")
    before = results_page(results)
    assert "## Other methods" not in before
    keep(results, entry_of(COMPARISONS["table9"], "cRT", "all"), [0.7])
    page = results_page(results)
    assert page.count("## Other methods") == 1
    assert "Table 9 of the paper" in page
    assert "Table 4 of the paper" not in page
    assert "## ResNet-32" in page.split("## Other methods")[0]


def test_results_that_the_tables_above_have_do_not_count(tmp_path):
    results = Results(tmp_path / "cells")
    keep(results, entry_of(COMPARISONS["table4"], "PC", "100"), [0.5])
    assert any(experiment in results for experiment in wanted_experiments(TABLES, BACKBONES))
    assert "## Other methods" not in results_page(results)
    keep(results, entry_of(COMPARISONS["table4"], "PC", "50"), [0.5])
    assert "| PC | ResNet-34 | 50.00 (1 of 3 seeds) | 50.00 (1 of 3 seeds) | not run |" in (
        results_page(results)
    )


def test_rows_stand_above_those_of_the_paper(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table4"]
    keep(results, entry_of(table, "RIDE", "100"), [0.47, 0.48, 0.49])
    keep(results, entry_of(table, "RIDE", "50"), [0.52])
    lines = part_of(results_page(results), "Table 4").splitlines()
    ours = lines.index("| RIDE | ResNet-32 | 48.00 ± 1.00 | 52.00 (1 of 3 seeds) | not run |  |  |")
    assert lines[ours + 1] == "| *paper* |  | 49.10 | - | - |  |  |"
    assert lines[ours + 2] == "| *ours - paper* |  | -1.10 |  |  |  |  |"
    assert "| RIDE | 70.00 ± 0.00 | 40.00 ± 0.00 | 10.00 ± 0.00 | 48.00 ± 1.00 |" in lines
    # Rows that were not run say so, and lack nothing but numbers.
    focal = lines.index("| Focal | ResNet-32 | not run | not run | not run |  |  |")
    assert lines[focal + 1] == "| *paper* |  | 38.41 | 44.32 | 55.78 |  |  |"
    assert "ours - paper" not in lines[focal + 2]
    # Groups are shown of what was run, ratio by ratio.
    fifty = lines.index("| mirrored, imbalance 50 | many | medium | few | all |")
    assert lines[fifty + 2] == "| RIDE | 70.00 | 40.00 | 10.00 | 52.00 (1 of 3 seeds) |"
    assert not any(lines[fifty + 3 :])
    assert "mirrored, imbalance 10 |" not in "\n".join(lines)


def test_numbers_of_the_paper_stand_as_printed(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table9"]
    keep(results, entry_of(table, "LDAM-DRW", "all"), [0.78] * 3)
    part = part_of(results_page(results), "Table 9")
    assert "| *paper* |  | 77.03 |  |  |\n| *ours - paper* |  | +0.97 |  |  |" in part
    assert "| *paper* |  | 72.1 |  |  |" in part
    assert "| LDAM-DRW | 70.00 ± 0.00 | 40.00 ± 0.00 | 10.00 ± 0.00 | 78.00 ± 0.00 |" in part


def test_columns_of_table_3_are_classifiers(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table3"]
    keep(results, entry_of(table, "DRO-LT", "cRT"), [0.47] * 3)
    part = part_of(results_page(results), "Table 3")
    assert "| mirrored | backbone | CE | cRT | WD + MaxNorm | PC (Ours) | GFLOPs | GPU s |" in part
    assert "| DRO-LT | ResNet-32 | not run | 47.00 ± 0.00 | not run | not run |" in part
    assert "| DRO-LT / cRT | 70.00 ± 0.00 | 40.00 ± 0.00 | 10.00 ± 0.00 | 47.00 ± 0.00 |" in part
    assert "| *ours - paper* |  |  | -0.30 |  |  |  |  |" in part


def test_what_is_not_wanted_is_not_called_missing(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table3"]
    others = "CE, ResNet-34: Max as published, PC on crop and flip"
    keep(results, entry_of(table, others, "PC (Ours)"), [0.44] * 3)
    part = part_of(results_page(results), "Table 3")
    assert f"| {others} | ResNet-34 |  |  | not run | 44.00 ± 0.00 |" in part
    assert "| CE, ResNet-34 / PC (Ours), crop and flip | 70.00 ± 0.00 |" in part
    assert "| CE, ResNet-34 | ResNet-34 | not run | not run | not run | not run |" in part
    assert "crop and flip" in entry_of(table, others, "PC (Ours)").variant
    command = entry_of(table, others, "WD + MaxNorm").experiment(0).command
    assert "ce/wd-max" in command
    assert "classifier.lr=0.01 --set classifier.weight_decay=0.1" in command


def test_settings_of_others_are_tried_at_one_ratio():
    varied = [entry for entry in COMPARISONS["table4"].entries if entry.variant]
    assert {entry.column for entry in varied} == {"100"}
    assert len({entry.experiment(0).key for entry in varied}) == len(varied) == 9


def test_what_an_image_and_a_training_take(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table9"]
    took = {"seconds": {"representation": 100.0, "classifier": 2.4, "guessed": 0.0}}
    cost = {"cost": {"gflops": 0.13774}}
    on_gpu = {"about": {"gpus": ["Some GPU"]}}
    keep(results, entry_of(table, "cRT", "all"), [0.7] * 3, **took, **cost, **on_gpu)
    keep(results, entry_of(table, "NCM", "all"), [0.7] * 3, **took, about={"gpus": []})
    equal = {"seconds": {"representation": 100.0}}
    keep(results, entry_of(table, "LDAM", "all"), [0.7] * 3, **equal, **on_gpu)
    part = part_of(results_page(results), "Table 9")
    assert "| cRT | ResNet-32 | 70.00 ± 0.00 | 0.138 | 102 |" in part
    assert "| NCM | ResNet-34 | 70.00 ± 0.00 |  |  |" in part
    assert "| LDAM | ResNet-32 | 70.00 ± 0.00 |  |  |" in part


def test_a_training_that_diverged(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table9"]
    results.add(entry_of(table, "LDAM", "all").experiment(0), {"diverged": True})
    assert "| LDAM | ResNet-32 | diverged |  |  |" in results_page(results)


def test_rows_of_several_trainings_say_so(tmp_path):
    results, table = Results(tmp_path / "cells"), COMPARISONS["table9"]
    keep(results, entry_of(table, "CE", "all"), [0.7], backbone="one")
    keep(results, entry_of(table, "cRT", "all"), [0.7], backbone="one")
    assert "**Mixed:**" not in results_page(results)
    keep(results, entry_of(table, "cRT", "all"), [0.7], backbone="two")
    assert "**Mixed:**" in part_of(results_page(results), "Table 9")


def test_no_table_is_wide(tmp_path):
    results = Results(tmp_path / "cells")
    for table in COMPARISONS.values():
        keep(results, table.entries[0], [0.5])
    assert max(line.count("|") for line in results_page(results).splitlines()) == 9


def test_two_sets_of_images_are_those_of_the_published_code():
    rows = [entry for entry in COMPARISONS["table4"].entries if "two sets" in entry.row]
    assert {entry.subset.selection for entry in rows} == {"author"}
    assert {(entry.column, entry.subset.imbalance) for entry in rows} == {("100", 100), ("50", 50)}
    others = {(e.row, e.column): e for e in COMPARISONS["table4"].entries}
    for entry in rows:
        same = others[entry.row.removesuffix(", two sets of images"), entry.column]
        assert (entry.recipe, entry.paper) == (same.recipe, same.paper)
