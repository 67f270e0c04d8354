"""The tables of docs/uses.md are those that its benchmark measured."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEASURED = json.loads((ROOT / "results" / "frozen" / "uses.json").read_text())
PAGE = (ROOT / "docs" / "uses.md").read_text(encoding="utf-8")


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import uses_page

    return uses_page


def test_every_table_is_what_was_measured(page):
    for name, text in page.tables(MEASURED).items():
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- end -->" in PAGE, (
            f"{name}: python benchmarks/uses_page.py"
        )


def test_what_was_measured_is_whole(page):
    for question in ("adding", "novelty", "mixes", "noise"):
        assert MEASURED[question]
        assert set(MEASURED[question]) <= set(page.SETS)
        for cases in MEASURED[question].values():
            values = [v for case in cases for v in case.values() if isinstance(v, list)]
            assert {len(subsets) for subsets in values} == {3}
