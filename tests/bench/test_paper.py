"""The paper's numbers as data: they are those of its source, every one of them."""

import dataclasses
import re

import pytest

from protail.bench import (
    PAPER_FIGURES,
    PAPER_TABLES,
    paper_figure,
    paper_table,
    paper_value,
)
from reference.real_data import shared

COLUMNS = {"Many": "many", "Med": "medium", "Few": "few", "All": "all"}


def paper_source():
    return shared("paper/prototype-classifiers-ltr.tex").read_text(encoding="utf-8")


def plain(cell):
    """Take the LaTeX off a cell."""
    text = re.sub(r"\\(?:textbf|underline)\{([^}]*)\}", r"\1", cell)
    return " ".join(text.replace(r"\midrule", "").replace(r"\toprule", "").split())


def printed_tables():
    """Read every table of the source: number to (columns, rows of cells), all of them text."""
    tables = {}
    for block in re.findall(r"\\begin\{table\}.*?\\end\{table\}", paper_source(), re.DOTALL):
        number = int(re.search(r"\\label\{tab:table (\d)\}", block).group(1))
        body = re.search(r"\\toprule(.*)\\bottomrule", block, re.DOTALL).group(1)
        lines = [[plain(cell) for cell in line.split("&")] for line in body.split(r"\\")]
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
    for row, (name, *cells) in zip(table.rows, rows, strict=True):
        expected = [None if cell == "-" else float(cell) for cell in cells]
        assert list(row.values) == expected, name
        assert paper_table(table.number).row(name) == dict(zip(columns, expected, strict=True))


def test_digits_after_the_point_are_the_usual_ones():
    more = {}
    for table in PAPER_TABLES:
        _, rows = printed_tables()[table.number]
        for name, *cells in rows:
            for cell in cells:
                digits = len(cell.partition(".")[2])
                if cell != "-" and digits != table.decimals:
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
    with pytest.raises(ValueError, match=r"protail\.analysis\.TABLE_7"):
        paper_table(7)
    with pytest.raises(ValueError, match=r"figure=5 is unknown"):
        paper_figure(5)
