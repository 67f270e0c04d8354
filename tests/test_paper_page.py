"""What docs/paper.md and README.md say we got is what the committed cells say."""

import pytest

from reference.quotes import QUOTE, ROOT, corrected, unquoted, value_at


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs/paper.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "at_least"), [("docs/paper.md", 50), ("README.md", 3)])
def test_every_quoted_number_is_the_one_of_the_cells(page, at_least):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(QUOTE.findall(text)) >= at_least
    _, wrong = corrected(text)
    assert wrong == [], f"run: python tests/reference/quotes.py {page}"


def test_every_number_is_quoted(text):
    assert unquoted(text) == []


def test_every_difference_above_a_point_is_on_the_page(text):
    """Each row of a table that is beside the paper's by more than 1 point, mirrored."""
    from protail.bench.tables import TABLES

    above = []
    for table in TABLES.values():
        for row in table.rows:
            if table.paper is not None and row.paper is not None:
                ours = f"{table.name}; {row.label}; all; mirrored"
                address = f"{ours} minus paper{table.paper}; {row.paper}; mean"
                difference = value_at(address)
                if difference is not None and abs(difference) > 1:
                    above.append(address)
    assert above
    quoted = {address for _, address in QUOTE.findall(text)}
    assert [address for address in above if address not in quoted] == []


def test_every_other_method_that_is_a_point_and_a_half_from_the_paper_is_on_the_page(text):
    """Each entry of Tables 3, 4 and 9 that has a seed, mirrored."""
    from protail.bench.comparisons import COMPARISONS

    quoted = {address for _, address in QUOTE.findall(text)}
    above = []
    for table in COMPARISONS.values():
        for entry in table.entries:
            ours = f"{table.name}; {entry.row}; all; at {entry.column}; mirrored"
            seeds = f"{table.name}; {entry.row}; seeds; at {entry.column}"
            if entry.paper is None or not value_at(seeds):
                continue
            address = f"{ours} minus paper{table.paper}; {entry.paper}; {entry.column}"
            difference = value_at(address)
            if difference is None or abs(difference) > 1.5:
                above.append(address)
    assert above
    assert [address for address in above if address not in quoted] == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("12.3<!-- paper1; NCM; few -->", "14.1<!-- paper1; NCM; few -->"),
        ("-1.00<!-- paper1; PC; few minus paper1; NCM; few -->", None),
        ("not run yet<!-- paper1; NCM; few -->", "14.13<!-- paper1; NCM; few -->"),
        ("9<!-- table1; PC; all above table1; Softmax; all -->", None),
    ],
)
def test_a_number_that_lies_is_found(wrong, right):
    fixed, complaints = corrected(wrong)
    assert len(complaints) == 1
    assert right in (None, fixed)
    assert corrected(fixed)[1] == []


def test_a_number_without_an_address_is_found():
    assert unquoted("about 50.61 and `tau 0.25` and 3.1<!-- paper1; NCM; few -->") == ["50.61"]
