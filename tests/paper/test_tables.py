from dataclasses import replace

import pytest

from protail.recipes import load_recipe
from protail_paper.groups import bench_table, wanted_experiments
from protail_paper.page import results_page
from protail_paper.paper import paper_table
from protail_paper.results import Results, Summary, summarize
from protail_paper.tables import QUESTIONS, TABLES
from protail_paper.tuning import CHOICES, ranked_rows
from reference.made_up_results import entries_of

ALL = [(table, backbone) for table in (TABLES | CHOICES).values() for backbone in table.backbones]


@pytest.mark.parametrize(("table", "backbone"), ALL, ids=lambda x: getattr(x, "name", x))
def test_every_experiment_is_a_recipe_that_can_be_run(table, backbone):
    expected = {"ResNet-34": "resnet34-cifar", "ResNet-32": "resnet32"}[backbone]
    for row in table.rows:
        recipe = table.experiment(row, backbone, 0).recipe
        assert recipe.representation.backbone.startswith(expected)
        assert (recipe.classifier is None) == (row.classifier is None)
        stage1 = {key for key in row.overrides if key.startswith("representation.")}
        other = table.backbones[backbone] in ("ride", "paco")
        assert stage1 or other or recipe.representation.weight_decay in (5e-3, 5.5e-3)


def test_every_row_of_the_papers_tables_is_there():
    for table in TABLES.values():
        if table.paper is not None:
            ours = {row.paper for row in table.rows if row.paper}
            assert ours == {row.name for row in paper_table(table.paper).rows}


def test_labels_of_a_question_are_unique():
    for question in QUESTIONS:
        labels = [row.label for row in question.rows]
        assert len(set(labels)) == len(labels)
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)


def test_tables_share_experiments():
    apart = sum(
        len(wanted_experiments([name], ["ResNet-34"])) for name in ("table1", "table2", "table8")
    )
    together = wanted_experiments(["table1", "table2", "table8"], ["ResNet-34"])
    assert len(together) < apart
    assert len({experiment.representation_key for experiment in together}) == 3


def test_names_nobody_knows():
    with pytest.raises(ValueError, match="table1"):
        bench_table("tabel1")
    with pytest.raises(ValueError, match="ResNet-34"):
        wanted_experiments(["table1"], ["resnet34"])


def test_summaries_are_means_and_sample_deviations(tmp_path):
    results, table = Results(tmp_path), bench_table("table1")
    for seed, fraction in enumerate([0.45, 0.46, 0.50]):
        scores = {"all": fraction, "many": 0.7, "medium": 0.4, "few": 0.1}
        experiment = table.experiment(table.rows[0], "ResNet-34", seed)
        results.add(experiment, {"scores": {"plain": scores, "mirrored": scores}})
    summary = summarize(results.of(table.experiments("ResNet-34", [table.rows[0]])))
    assert summary["all"].mean == pytest.approx(47.0)
    assert summary["all"].deviation == pytest.approx(2.6457513)
    assert summarize(results.of(table.experiments("ResNet-34", [table.rows[1]]))) == {}
    assert str(Summary.of([0.2])) == "20.00"
    page = results_page(results)
    assert "| Softmax | 70.00 ± 0.00 | 40.00 ± 0.00 | 10.00 ± 0.00 | 47.00 ± 2.65 |" in page
    # 47 minus (35 * 76.12 + 35 * 46.13 + 30 * 11.34) / 100
    assert "| 46.12 [46.19] | +0.81 |" in page


def test_a_row_with_fewer_seeds_says_so(tmp_path):
    results, table = Results(tmp_path), bench_table("table8")
    scores = {"all": 0.5, "many": 0.7, "medium": 0.4, "few": 0.1}
    results.add(
        table.experiment(table.rows[0], "ResNet-34", 1),
        {"scores": {"plain": scores, "mirrored": scores}},
    )
    assert "50.00 (1 of 3 seeds)" in results_page(results)
    assert "| PC + class T | not run |" in results_page(results)


def keep_choice(results, table, row, seed, balanced):
    groups = {"all": 0.9 - balanced, "many": 0.9, "medium": 0.5, "few": 0.1}
    scores = {"plain": groups, "mirrored": {**groups, "balanced": balanced}}
    results.add(table.experiment(row, "ResNet-34", seed), {"scores": scores})


def test_choices_are_ranked_by_classes(tmp_path):
    results, table = Results(tmp_path), CHOICES["tuning-stage-2"]
    for number, row in enumerate(table.rows[:3]):
        for seed in table.seeds[: 1 if number == 2 else 2]:
            keep_choice(results, table, row, seed, 0.4 + 0.01 * number)
    ranked = ranked_rows(table, results)
    # The third lacks a seed.
    assert [row.label for row, _ in ranked] == [table.rows[1].label, table.rows[0].label]
    assert ranked[0][1].mean == pytest.approx(41.0)
    page = results_page(results)
    assert f"| {table.rows[1].label} | 41.00 | 41.00 | 41.00 |" in page
    assert f"*{table.rows[1].label}*, has not been run on the test images." in page


def test_of_each_stage_1_only_its_best_is_shown(tmp_path):
    results, table = Results(tmp_path), CHOICES["tuning-stage-1"]
    for number, row in enumerate(table.rows):
        keep_choice(results, table, row, 0, 0.3 + number / 1000)
    lines = [line for line in results_page(results).splitlines() if "/ cosine, rate 8 |" in line]
    assert lines == [
        "| cosine, decay 3e-3 / cosine, rate 8 | 41.90 |",
        "| cosine / cosine, rate 8 | 39.50 |",
        "| linear, smoothed labels / cosine, rate 8 | 37.10 |",
        "| linear, 320 epochs / cosine, rate 8 | 34.70 |",
        "| linear / cosine, rate 8 | 32.30 |",
    ]


def test_the_best_choice_is_named_as_the_row_it_is(tmp_path):
    results, table = Results(tmp_path), CHOICES["tuning-stage-2"]
    assert table.rows[0].label == "linear / raw, tau 0.25"
    for seed in table.seeds:
        keep_choice(results, table, table.rows[0], seed, 0.4)
    groups = {"all": 0.5, "many": 0.7, "medium": 0.4, "few": 0.1}
    evaluated = TABLES["table1"].experiment(table.rows[0], "ResNet-34", 0)
    results.add(evaluated, {"scores": {"plain": groups, "mirrored": groups}})
    page = results_page(results)
    assert "which is *PC + LA* of Table 1 as it stands, gives 50.00 on the test images" in page
    assert "the paper's is 53.4. The search does not close the gap." in page


@pytest.mark.parametrize(
    ("name", "title", "scores"),
    [
        ("tuning-tau", "## The tau of normalised weights", "| 30.50 | 30.00 | 31.00 |"),
        ("tuning-max", "## The decay of weights under a limit", "| 30.50 | 30.00 | 31.00 |"),
        ("tuning-tau-cifar10", "## The tau of normalised weights", "| 30.00 |"),
        ("tuning-max-cifar10", "## The decay of weights under a limit", "| 30.00 |"),
    ],
)
def test_everything_that_was_tried_is_shown(name, title, scores, tmp_path):
    results, table = Results(tmp_path), CHOICES[name]
    for row in table.rows:
        for seed in table.seeds:
            keep_choice(results, table, row, seed, 0.3 + seed / 100)
    page = results_page(results)
    assert title in page
    assert ("on CIFAR-10-LT" in page.partition(title)[2]) == name.endswith("-cifar10")
    assert page.count(scores) == len(table.rows)


@pytest.mark.parametrize("name", [name for name in CHOICES if name.endswith("-cifar10")])
def test_what_is_tried_on_cifar10_holds_the_recipe_as_it_is(name):
    rows = CHOICES[name].rows
    recipe = load_recipe(rows[0].classifier)
    assert [row for row in rows if recipe.with_overrides(row.overrides) == recipe]


def test_the_lengths_of_weight_balancing():
    [question] = [question for question in QUESTIONS if question.name == "lengths"]
    table = TABLES["questions"]
    assert {row.selection for row in question.rows} == {"shuffled", "author"}
    assert table.experiments("ResNet-32", question.rows) == []
    # What the tables call "as published" is one of them, and not run twice.
    published = entries_of("table4")["WD + WD + Max, as published", "100"].experiment(0)
    [same] = [
        row for row in question.rows if table.experiment(row, "ResNet-34", 0).key == published.key
    ]
    assert same.label == "one set, 10 epochs"


def test_a_question_that_nothing_answers_is_not_on_the_page(tmp_path):
    results, table = Results(tmp_path), TABLES["questions"]
    tau, lengths = (
        next(question for question in QUESTIONS if question.name == name)
        for name in ("tau", "lengths")
    )
    keep_choice(results, table, tau.rows[0], 0, 0.3)
    page = results_page(results)
    assert page.count(tau.text) == 1
    assert lengths.text not in page


def test_what_is_chosen_on_cifar10_sees_no_other_images():
    subsets = {
        experiment.subset
        for name in ("tuning-tau-cifar10", "tuning-max-cifar10")
        for experiment in CHOICES[name].experiments("ResNet-34")
    }
    assert [(subset.dataset, subset.imbalance, subset.held_out) for subset in subsets] == [
        ("cifar10-lt", 100, 0.2)
    ]


def test_the_best_prototypes_on_other_methods_are_shown(tmp_path):
    results, table = Results(tmp_path), CHOICES["tuning-ride"]
    for number, row in enumerate(table.rows):
        experiment = table.experiment(row, "ResNet-32", 0)
        assert experiment.recipe_name == "ride-pc"
        fractions = {"all": 0.3, "many": 0.5, "medium": 0.3, "few": 0.1}
        scores = {"plain": fractions, "mirrored": fractions | {"balanced": 0.3 + number / 1000}}
        results.add(experiment, {"scores": scores})
    page = results_page(results)
    assert "## Prototypes on other methods" in page
    assert "the features of PaCo" not in page
    assert page.count("| crop and flip / ") == 10
    assert "| images as PC / " not in page


def test_prototypes_stand_beside_their_rivals_on_every_stage_1(tmp_path):
    results, table = Results(tmp_path), CHOICES["strong-stage-1"]
    scores = {
        "base / softmax": 0.3,
        "base / post hoc, tau 0.5": 0.4,
        "base / post hoc, tau 1": 0.35,
        "base / PC, radius 8, tau 0.5": 0.41,
        "base / PC, cosine, rate 4": 0.42,
        "scale 32 / softmax": 0.5,
    }
    for row in table.rows:
        if row.label in scores:
            keep_choice(results, table, row, 0, scores[row.label])
    page = results_page(results)
    assert "| base | 30.00 | 40.00 | 42.00 | cosine, rate 4 |" in page
    assert "| scale 32 | 50.00 | not run | not run |  |" in page
    assert "6 of 180 settings have been run" in page
    assert "there are 5 of post hoc and 14 of PC" in page


def test_no_choice_is_made_on_test_images():
    for table in CHOICES.values():
        [backbone] = table.backbones
        experiments = table.experiments(backbone)
        assert len({experiment.key for experiment in experiments}) == len(experiments)
        if table.aside_from:
            assert all("--validation-from 10" in experiment.command for experiment in experiments)
            continue
        assert all(experiment.subset.held_out == 0.2 for experiment in experiments)
        assert {
            (experiment.seed, experiment.subset.held_out_seed) for experiment in experiments
        } == {(seed, seed) for seed in table.seeds}
        assert all(
            "--held-out 0.2 --held-out-seed" in experiment.command for experiment in experiments
        )


def test_a_table_judged_aside_says_so(tmp_path, monkeypatch):
    results, held_out = Results(tmp_path), CHOICES["tuning-tau"]
    table = replace(held_out, held_out=0.0, aside_from=10.0)
    monkeypatch.setitem(CHOICES, "tuning-tau", table)
    for seed in table.seeds:
        keep_choice(results, held_out, table.rows[0], seed, 0.2)
        keep_choice(results, table, table.rows[1], seed, 0.3 + seed / 100)
    assert len(results) == 4
    page = results_page(results)
    assert "on training images that imbalance 10 keeps and 100 leaves, 45 of every class" in page
    assert "a standard error of about 0.7 points" in page
    assert "| setting | mean | seed 0 | seed 1 |" in page
    assert f"| {table.rows[1].label} | 30.50 | 30.00 | 31.00 |" in page
    # What was evaluated on other images is not of this table.
    assert "| 20.00 |" not in page
    assert "0 % of each class's training images" not in page
    monkeypatch.setitem(CHOICES, "tuning-tau", held_out)
    page = results_page(results)
    assert "on 20 % of each class's training images, which neither stage has seen" in page
    assert "| setting | mean | split 0 | split 1 |" in page
    assert f"| {table.rows[0].label} | 20.00 | 20.00 | 20.00 |" in page


def test_both_tables_of_choices_share_experiments():
    first, second = (
        {experiment.key for experiment in wanted_experiments([name], ["ResNet-34"])}
        for name in ("tuning-stage-1", "tuning-stage-2")
    )
    assert (len(first), len(second), len(first & second)) == (120, 96, 48)
