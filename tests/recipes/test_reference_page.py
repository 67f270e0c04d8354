"""The page that lists every key of a recipe is what the code says."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from protail.recipes import PARTS, STAGES
from reference.documents import ROOT
from reference.recipe_page import PAGE, generated

PRINT_THE_PAGE = """
from reference.recipe_page import PAGE, rewritten
print(rewritten(PAGE.read_text(encoding="utf-8")), end="")
"""


def test_the_page_is_what_the_code_says():
    # In a Python of its own: what other tests have registered is not on the page.
    paths = [os.environ.get("PYTHONPATH"), str(ROOT / "tests")]
    printed = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", PRINT_THE_PAGE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    page = PAGE.read_text(encoding="utf-8")
    assert page == printed.stdout, "run python -m reference.recipe_page"


@pytest.mark.parametrize("stage", STAGES)
def test_every_key_is_there_and_described(stage):
    sections = generated().removeprefix("## ").split("\n## ")
    [section] = [each for each in sections if f"`[{stage}]`" in each.splitlines()[0]]
    rows = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    assert list(rows) == [field.name for field in fields(STAGES[stage])]
    assert [key for key, row in rows.items() if row.endswith("|  |")] == []


@pytest.mark.parametrize("part", PARTS)
def test_every_name_and_option_is_there(part):
    section = generated().split(f"## Names for `{part}`")[1].split("\n## ")[0]
    registry = PARTS[part]
    for name in registry.names():
        own = section.split(f"### `{name}`")[1].split("\n### ")[0]
        assert all(f"| `{option}` |" in own for option in registry.options(name))
