import json

import pytest
import typer
from typer.testing import CliRunner

from protail.cli.recipes import app as recipes_app
from protail.recipes import Recipe, load_recipe, recipe_hash, recipe_names


@pytest.fixture
def recipes():
    app = typer.Typer()
    app.add_typer(recipes_app, name="recipes")
    app.callback()(lambda: None)

    def run(*arguments):
        return CliRunner().invoke(app, ["recipes", *map(str, arguments)])

    return run


def test_lists_every_recipe(recipes):
    ended = recipes()
    assert ended.exit_code == 0
    for name in recipe_names():
        assert f"| {name} " in ended.stdout
    listed = json.loads(recipes("--json").stdout)["recipes"]
    assert [recipe["name"] for recipe in listed] == recipe_names()
    assert next(r for r in listed if r["name"] == "pc-la") == {
        "name": "pc-la",
        "title": "Learned prototypes with logit adjustment",
        "reference": "Prototype Classifiers (IJCAI 2023), equation 5",
        "stages": ["representation", "classifier"],
        "paper": "Table 1 row + LA",
    }


def test_shows_a_file_that_can_be_read(recipes, tmp_path):
    ended = recipes("show", "ce/pc-la", "--set", "classifier.tau=0.5")
    assert ended.exit_code == 0
    (tmp_path / "mine.toml").write_text(ended.stdout, encoding="utf-8")
    mine = load_recipe(tmp_path / "mine.toml")
    assert mine.classifier.loss_options == {"tau": 0.5}
    assert mine.representation == load_recipe("ce").representation


def test_shows_json_with_the_hash(recipes):
    shown = json.loads(recipes("show", "pc", "--json").stdout)
    assert Recipe.from_resolved(shown["recipe"]) == load_recipe("pc")
    assert shown["hash"] == recipe_hash(shown["recipe"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pcc"], "Did you mean 'pc'"),
        (["pc", "--set", "classifier.tau"], "expected KEY=VALUE"),
        (["pc", "--set", "=1"], "expected KEY=VALUE"),
        (["pc", "--set", "classifier.tau=-1"], "classifier.tau = -1.0"),
        (["pc", "--set", "classifier.taus=1"], "Did you mean 'tau'"),
    ],
)
def test_bad_input_is_one_line(recipes, arguments, words):
    ended = recipes("show", *arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert ended.stdout == ""


@pytest.mark.parametrize("part", ["method", "loss", "head", "backbone", "sampler"])
def test_a_part_that_nobody_knows_may_be_ones_own(recipes, monkeypatch, part):
    monkeypatch.delenv("PROTAIL_PLUGINS", raising=False)
    said = recipes("show", "wd", "--set", f"representation.{part}=own").stderr
    assert "'own' is unknown" in said
    assert said.endswith(": name it in PROTAIL_PLUGINS.\n")


def test_of_the_same_key_the_last_counts(recipes):
    ended = recipes("show", "pc", "--set", "classifier.lr=1", "--set", "classifier.lr=2", "--json")
    assert json.loads(ended.stdout)["recipe"]["classifier"]["lr"] == 2.0


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]])
def test_help_fits_a_screen_and_carries_an_example(recipes, arguments):
    lines = recipes(*arguments).stdout.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert any("Example: protail recipes" in line for line in lines)
