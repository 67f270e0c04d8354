"""The paper's numbers are those of its source, and where they contradict themselves is found."""

import dataclasses
import json
import re

import numpy as np
import pytest

from protail.data.images import long_tailed_counts
from protail.profile import ClassProfile
from protail_paper import (
    PAPER_FIGURES,
    PAPER_TABLES,
    PaperRow,
    PaperTable,
    paper_figure,
    paper_table,
    paper_value,
)
from protail_paper.analysis import TABLE_7, printed_means, table7_entries, table7_errata, table7_row
from reference.real_data import shared

COLUMNS = {"Many": "many", "Med": "medium", "Few": "few", "All": "all"}


def paper_source():
    return shared("paper/prototype-classifiers-ltr.tex").read_text(encoding="utf-8")


def plain(entry):
    """Take the LaTeX off an entry."""
    text = re.sub(r"\\(?:textbf|underline)\{([^}]*)\}", r"\1", entry)
    return " ".join(text.replace(r"\midrule", "").replace(r"\toprule", "").split())


def printed_tables():
    """Read every table of the source: number to (columns, rows of entries), all of them text."""
    tables = {}
    for block in re.findall(r"\\begin\{table\}.*?\\end\{table\}", paper_source(), re.DOTALL):
        number = int(re.search(r"\\label\{tab:table (\d)\}", block).group(1))
        body = re.search(r"\\toprule(.*)\\bottomrule", block, re.DOTALL).group(1)
        lines = [[plain(entry) for entry in line.split("&")] for line in body.split(r"\\")]
        lines = [line for line in lines if any(line) and "multicolumn" not in "".join(line)]
        header, *rows = lines
        tables[number] = ([COLUMNS.get(name, name) for name in header[1:]], rows)
    return tables


def test_every_table_of_results_is_here_and_no_other():
    ours = [table.number for table in PAPER_TABLES]
    assert ours == sorted(set(printed_tables()) - {7})


@pytest.mark.parametrize("table", PAPER_TABLES, ids=lambda table: f"table{table.number}")
def test_every_number_is_the_printed_one(table):
    columns, rows = printed_tables()[table.number]
    assert list(table.columns) == columns
    assert [row.name for row in table.rows] == [name for name, *_ in rows]
    for row, (name, *entries) in zip(table.rows, rows, strict=True):
        expected = [None if entry == "-" else float(entry) for entry in entries]
        assert list(row.values) == expected, name
        assert paper_table(table.number).row(name) == dict(zip(columns, expected, strict=True))


def test_digits_after_the_point_are_the_usual_ones():
    more = {}
    for table in PAPER_TABLES:
        _, rows = printed_tables()[table.number]
        for name, *entries in rows:
            for entry in entries:
                digits = len(entry.partition(".")[2])
                if entry != "-" and digits != table.decimals:
                    more[table.number, name] = digits
    assert more == {(5, "Focal Loss"): 2, (9, "LDAM"): 2}


def test_as_many_numbers_as_in_the_source():
    bodies = re.findall(r"\\toprule.*?\\bottomrule", paper_source(), re.DOTALL)
    # Every decimal number inside a table; those of Table 7 are whole.
    printed = [number for body in bodies for number in re.findall(r"\d+\.\d+", body)]
    ours = [value for table in PAPER_TABLES for row in table.rows for value in row.values]
    assert sorted(map(float, printed)) == sorted(value for value in ours if value is not None)
    assert len(printed) == 192


def test_settings_of_the_figures_are_in_the_text():
    text = paper_source()
    assert r"We choose $\tau=1/4$ as the optimal weight" in text
    assert "We train for 1 epoch" in text
    assert "set prototype learning rate 4," in text
    assert dict(paper_figure(4).chosen) == {"lr": 4, "epochs": 1, "tau": 1 / 4}
    assert len(PAPER_FIGURES) == len(re.findall(r"\\begin\{figure\*\}", text))


def test_backbones_are_those_of_the_text():
    sentence = "ResNet-32 for CIFAR100, ResNeXt50 for ImageNet-LT and ResNet-50 for iNaturalist18"
    assert sentence in paper_source()
    said = {table.dataset: table.backbone for table in PAPER_TABLES}
    assert said == {
        "cifar100-lt": "ResNet-32",
        "imagenet-lt": "ResNeXt50",
        "inaturalist18": "ResNet-50",
        "cifar10-lt": None,
    }


def test_rows_that_stand_in_several_tables_agree():
    assert paper_table(2).row("Softmax") == paper_table(1).row("Softmax")
    assert paper_table(2).row("PC + Euclidean") == paper_table(1).row("+ CDT + LA")
    assert paper_table(8).row("PC") == paper_table(1).row("PC")
    assert paper_table(8).row("+ Channel T") == paper_table(1).row("+ CDT")
    for row in ("NCM", "PC (Ours)"):
        one = {"NCM": "NCM", "PC (Ours)": "+ CDT + LA"}[row]
        assert paper_value(4, row, "100") == paper_value(1, one, "all")
    assert paper_value(3, "WD", "PC (Ours)") == round(paper_value(4, "PC (Ours)", "100"), 1)


def test_where_the_paper_contradicts_itself():
    # The same classifier on the same data: softmax of Table 1 is WD of Table 4.
    assert paper_value(1, "Softmax", "all") == 46.12
    assert paper_value(4, "WD", "100") == 46.08
    # "more than 30 %" in the text.
    lost = paper_value(2, "PC + Euclidean", "all") - paper_value(2, "PC + Squared Euclidean", "all")
    assert round(lost, 2) == 29.40


def test_a_dash_is_none():
    assert paper_value(4, "RIDE", "50") is None
    assert paper_value(6, "Focal Loss", "many") is None
    dashes = [value for t in PAPER_TABLES for row in t.rows for value in row.values].count(None)
    assert dashes == 8


def test_names_are_unique_and_rows_as_wide_as_their_table():
    for table in PAPER_TABLES:
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
        assert {len(row.values) for row in table.rows} == {len(table.columns)}


def test_nothing_can_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        paper_table(1).rows[0].values = ()
    assert isinstance(PAPER_TABLES, tuple)
    assert all(isinstance(row.values, tuple) for table in PAPER_TABLES for row in table.rows)
    paper_table(1).row("NCM")["all"] = 0.0
    assert paper_value(1, "NCM", "all") == 48.67


def test_unknown_names_are_told_with_the_nearest():
    with pytest.raises(ValueError, match=r"row of Table 2='PC \+ Cosin'.*mean 'PC \+ Cosine'"):
        paper_value(2, "PC + Cosin", "all")
    with pytest.raises(ValueError, match=r"column of Table 1='meduim'.*mean 'medium'"):
        paper_value(1, "NCM", "meduim")
    with pytest.raises(ValueError, match=r"expected one of '100', '50', '10'"):
        paper_value(4, "NCM", "all")
    with pytest.raises(ValueError, match=r"table=10 is unknown; expected one of '1', '2'"):
        paper_table(10)
    with pytest.raises(ValueError, match=r"protail_paper\.analysis\.TABLE_7"):
        paper_table(7)
    with pytest.raises(ValueError, match=r"figure=5 is unknown"):
        paper_figure(5)


CIFAR = [len(group) for group in ClassProfile(long_tailed_counts(500, 100, 100)).groups().values()]
IMAGENET_TEXT, IMAGENET_CODE = [391, 473, 136], [385, 479, 136]  # many from 100 on, above 100
INATURALIST = [842, 4076, 3224]


def wrong_means(number, sizes):
    """Name rows that rounding does not explain: printed, and what the groups say."""
    digits = paper_table(number).decimals
    return {
        mean.row: (mean.printed, round(mean.computed, digits))
        for mean in printed_means(paper_table(number), sizes)
        if not mean.is_right
    }


def test_cifar_has_35_35_and_30_classes():
    assert CIFAR == [35, 35, 30]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {"Softmax": (46.12, 46.19), "+ CDT": (53.06, 52.71), "+ CDT + LA": (53.41, 54.30)}),
        (2, {"Softmax": (46.12, 46.19), "PC + Euclidean": (53.41, 54.30)}),
        (
            8,
            {
                "+ Channel T": (53.06, 52.71),
                "+ Class T": (52.47, 52.19),
                "+ Dense T": (52.17, 51.35),
            },
        ),
    ],
)
def test_cifar_tables(number, expected):
    assert wrong_means(number, CIFAR) == expected


def test_what_channel_temperatures_are_then_worth():
    means = {mean.row: mean.computed for mean in printed_means(paper_table(1), CIFAR)}
    assert round(means["+ CDT"] - means["PC"], 2) == 0.15
    printed = paper_value(1, "+ CDT", "all") - paper_value(1, "PC", "all")
    assert round(printed, 2) == 0.50


def test_imagenet_fits_the_groups_of_the_published_code():
    assert wrong_means(5, IMAGENET_CODE) == {
        "DRO-LT": (53.5, 53.0),
        "NCM": (50.1, 51.0),
        "PC (Ours)": (54.9, 54.6),
    }
    assert wrong_means(5, IMAGENET_TEXT) == {
        "CE": (44.4, 44.6),
        "cRT": (49.6, 49.7),
        "DRO-LT": (53.5, 53.1),
        "WD": (48.6, 48.8),
        "NCM": (50.1, 51.0),
        "PC (Ours)": (54.9, 54.7),
    }


def test_inaturalist_is_right_with_the_few_classes_that_there_are():
    assert sum(INATURALIST) == 8142
    assert wrong_means(6, INATURALIST) == {}
    # With the 3,599 that Table 7 has, two rows would be wrong_means.
    assert set(wrong_means(6, [842, 4076, 3599])) == {"CE", "WD"}


def test_group_sizes_are_those_of_the_lists():
    counts = json.loads(shared("data/splits/imagenet_lt_class_counts.json").read_text())
    profile = ClassProfile(np.array([counts[str(code)] for code in range(1000)]))
    assert [len(group) for group in profile.groups().values()] == IMAGENET_TEXT
    strict = profile.groups(many_inclusive=False)
    assert [len(group) for group in strict.values()] == IMAGENET_CODE


def test_rows_with_dashes_are_left_out():
    names = [mean.row for mean in printed_means(paper_table(6), INATURALIST)]
    assert len(names) == 9
    assert {"Focal Loss", "DRO-LT"}.isdisjoint(names)


@pytest.mark.parametrize(("printed", "is_right"), [(50.1, True), (50.2, True), (50.3, False)])
def test_one_unit_of_the_last_digit_is_allowed(printed, is_right):
    """Groups of 50.149 print as 50.1; an all of 50.151, one test row more, prints as 50.2."""
    row = PaperRow("x", (50.1, 50.1, 50.1, printed))
    table = PaperTable(0, "", "", None, None, 1, ("many", "medium", "few", "all"), (row,))
    [mean] = printed_means(table, [1, 1, 1])
    assert mean.computed == pytest.approx(50.1)
    assert mean.is_right is is_right


def test_tables_without_groups_and_wrong_sizes_are_refused():
    for table in PAPER_TABLES:
        if table.number in (3, 4, 9):
            with pytest.raises(ValueError, match=f"Table {table.number} with columns"):
                printed_means(table, CIFAR)
    for sizes in ([35, 35], [0, 0, 0], [-1, 2, 3]):
        with pytest.raises(ValueError, match="group_sizes"):
            printed_means(paper_table(1), sizes)


def profile_of(row):
    n_max, n_classes = (5000, 10) if row.dataset == "cifar10-lt" else (500, 100)
    return ClassProfile(long_tailed_counts(n_max, n_classes, row.imbalance))


def wrong_entries(row, profile):
    entries = table7_entries(row, profile)
    assert len(entries) == 8
    return {
        (entry.attribute, entry.group): (entry.printed, entry.computed)
        for entry in entries
        if not entry.is_right
    }


@pytest.mark.parametrize(("dataset", "imbalance"), [("cifar10-lt", 100), ("cifar100-lt", 100)])
def test_rows_that_are_right(dataset, imbalance):
    row = table7_row(dataset, imbalance)
    assert wrong_entries(row, profile_of(row)) == {}
    assert table7_errata(row, profile_of(row)) == []


def test_imbalance_10_has_300_images_too_many():
    row = table7_row("cifar100-lt", 10)
    assert wrong_entries(row, profile_of(row)) == {("samples", "many"): (17_743, 17_443)}


def test_imbalance_50_has_a_class_of_20_among_the_few():
    row = table7_row("cifar100-lt", 50)
    assert wrong_entries(row, profile_of(row)) == {
        ("classes", "medium"): (40, 41),
        ("classes", "few"): (19, 18),
        ("samples", "medium"): (2008, 2028),
        ("samples", "few"): (269, 249),
    }
    # That class is why: 20 is not below 20.
    assert (profile_of(row).counts == 20).sum() == 1


def test_inaturalist_does_not_add_up():
    row = table7_row("inaturalist18")
    sentences = table7_errata(row)
    assert [sentence.split(":")[0] for sentence in sentences] == ["classes", "samples"]
    assert "8,517" in sentences[0]
    assert row.classes[3] - row.classes[0] - row.classes[1] == 3224


def test_only_two_rows_do_not_add_up():
    odd = [(row.dataset, row.imbalance) for row in TABLE_7 if table7_errata(row)]
    assert odd == [("cifar100-lt", 10), ("inaturalist18", None)]


def test_what_the_table_does_not_have():
    assert table7_row("places-lt") is None
    assert table7_row("cifar100-lt", 20) is None


def test_imagenet_lt_follows_the_text_not_the_code():
    file = shared("data/splits/imagenet_lt_class_counts.json")
    counts = json.loads(file.read_text())
    profile = ClassProfile(np.array([counts[str(code)] for code in range(1000)]))
    assert profile.n_samples == 115_846
    assert [len(group) for group in profile.groups().values()] == [391, 473, 136]
    assert wrong_entries(table7_row("imagenet-lt"), profile) == {}
    published_code = profile.groups(many_inclusive=False)
    assert [len(group) for group in published_code.values()] == [385, 479, 136]
