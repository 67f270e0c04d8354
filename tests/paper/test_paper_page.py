"""What docs/paper.md and README.md say we got is what the committed results say."""

import pytest

from protail_paper.comparisons import COMPARISONS
from protail_paper.paper_page import PLACE, Numbers, fill, numbers_without_address
from protail_paper.results import Results
from protail_paper.tables import TABLES
from reference.bench_command import run
from reference.documents import ROOT

# What README.md says of results.
IN_README = (
    "{{ table4; Mixture distillation, PC (pc-strong); all; at 100; mirrored; .1f }} % (mean of "
    "{{ table4; Mixture distillation, PC (pc-strong); seeds; at 100 }} seeds, with "
    "horizontal-flip averaging) where "
    "`pc-la` has {{ table4; PC + LA; all; at 100; mirrored; .1f }}, for two",
    "post-hoc logit adjustment of the same network has {{ table4; Mixture distillation, post-hoc "
    "LogitAdjust; all; at 100; mirrored; .1f }}, not a significant difference.",
)


@pytest.fixture(scope="module")
def results():
    return Results(ROOT / "results" / "cells")


@pytest.fixture(scope="module")
def numbers(results):
    return Numbers(results)


@pytest.fixture(scope="module")
def template():
    return (ROOT / "docs/paper.md.template").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def addresses(template):
    return {address for address, _ in PLACE.findall(template)}


def test_the_page_is_what_its_template_and_the_results_make(results, template):
    page = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    assert page == fill(template, results), "run: protail bench write"
    assert "{{" not in page


def test_the_command_writes_it(results, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/paper.md.template").write_text("NCM: {{ paper1; NCM; few }}\n")
    ended = run("write", "--json", folder=tmp_path / "results")
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "docs/paper.md").read_text() == "NCM: 14.13\n"


@pytest.mark.parametrize("sentence", IN_README)
def test_the_readme_says_what_the_results_say(sentence, results):
    assert fill(sentence, results) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_number_is_looked_up(template):
    assert numbers_without_address(template) == []


def test_every_difference_above_a_point_is_on_the_page(addresses, numbers):
    """Each row of a table that differs from the paper's by more than 1 point, mirrored."""
    above = []
    for table in TABLES.values():
        for row in table.rows:
            if table.paper is not None and row.paper is not None:
                ours = f"{table.name}; {row.label}; all; mirrored"
                address = f"{ours} minus paper{table.paper}; {row.paper}; mean"
                difference = numbers.at(address)
                if difference is not None and abs(difference) > 1:
                    above.append(address)
    assert above
    assert [address for address in above if address not in addresses] == []


def test_every_other_method_that_is_a_point_and_a_half_from_the_paper_is_on_the_page(
    addresses, numbers
):
    """Each entry of Tables 3, 4 and 9 that has a seed, mirrored."""
    above = []
    for table in COMPARISONS.values():
        for entry in table.entries:
            ours = f"{table.name}; {entry.row}; all; at {entry.column}; mirrored"
            seeds = f"{table.name}; {entry.row}; seeds; at {entry.column}"
            if entry.paper is None or not numbers.at(seeds):
                continue
            address = f"{ours} minus paper{table.paper}; {entry.paper}; {entry.column}"
            difference = numbers.at(address)
            if difference is None or abs(difference) > 1.5:
                above.append(address)
    assert above
    assert [address for address in above if address not in addresses] == []


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("paper1; NCM; few", "14.13"),
        ("paper1; NCM; few; .1f", "14.1"),
        ("paper3; WD; cRT", "50.1"),
        ("paper1; + CDT + LA; mean", "54.30"),
        ("paper1; PC; few minus paper1; NCM; few", "+10.37"),
        ("table1; PC; all above table1; Softmax; all", "3"),
        ("table1; PC; seeds; ResNet-32", "3"),
    ],
)
def test_numbers_are_written_as_their_kind_is(address, written, results):
    assert fill(f"about {{{{ {address} }}}} %", results) == f"about {written} %"


def test_what_was_not_run_is_said(tmp_path):
    nothing = Results(tmp_path / "cells")
    assert fill("{{ table1; PC; all }}", nothing) == "not run yet"
    assert fill("{{ table1; PC; all minus paper1; PC; all }}", nothing) == "not run yet"
    assert fill("{{ table1; PC; seeds }}", nothing) == "0"


@pytest.mark.parametrize("address", ["table1; PC; all; at 100", "table1; PC; all; ResNet-43"])
def test_an_address_that_is_not_understood(address, numbers):
    with pytest.raises(AssertionError, match="not all of it is known"):
        numbers.at(address)


def test_a_number_that_is_written_by_hand_is_found():
    text = "about 50.61 and `tau 0.25` and {{ paper1; NCM; few }}"
    assert numbers_without_address(text) == ["50.61"]
