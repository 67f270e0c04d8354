"""quickstart, doctor, help and versions."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import protail as package
from protail import PrototypeClassifier
from protail._messages import install_command

COMMANDS = [
    *("fit", "predict", "evaluate", "compare", "add-class", "report", "doctor", "quickstart"),
    *("train", "search", "weights", "recipes", "data", "embed", "export", "serve", "demo", "bench"),
]
ROOT = Path(__file__).parents[2]


def test_quickstart_shows_the_tables_beside_the_paper(protail, tmp_path):
    ended = protail("quickstart", "--json")
    assert ended.code == 0, ended.err
    tables = {
        name: {row["row"]: row for row in rows} for name, rows in ended.json["tables"].items()
    }
    assert {name: len(rows) for name, rows in tables.items()} == (
        {"table1": 7, "table2": 6, "table8": 4}
    )
    few = {name: row["mirrored"]["few"] for name, row in tables["table1"].items()}
    assert few["Softmax, refitted"] < few["PC"] < few["PC + LA"]
    paper = tables["table1"]["PC + CDT + LA"]["paper"]
    assert (paper["all"], paper["mean_of_groups"]) == (53.41, 54.3)
    assert tables["table1"]["NCM, clean images"]["paper"] is None
    model = PrototypeClassifier.load(tmp_path / "protail-quickstart")
    assert model.classes_[[0, 99]].tolist() == ["apple", "worm"]
    assert (tmp_path / "protail-quickstart" / "accuracy.png").exists()
    assert ended.json["classifier"]["few"] > few["Softmax, refitted"] + 0.1
    again = protail("quickstart")
    assert again.code == 3
    assert "--overwrite" in again.last_line


def test_doctor_names_what_is_there(protail):
    result = protail("doctor", "--json").json
    assert result["healthy"]
    versions = {package["name"]: package["version"] for package in result["packages"]}
    assert versions["torch"]
    assert result["devices"][0].startswith("cpu")


def test_doctor_works_in_a_clone_that_is_not_installed(protail, monkeypatch):
    from importlib import metadata

    installed = protail("doctor", "--json").json["packages"]

    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    from_clone = protail("doctor", "--json").json["packages"]
    assert {(p["name"], p["extra"]) for p in from_clone} == (
        {(p["name"], p["extra"]) for p in installed}
    )


def test_doctor_finds_a_missing_and_a_broken_package(protail, monkeypatch):
    import importlib
    from importlib import metadata

    real_version, real_import = metadata.version, importlib.import_module

    def version(name):
        if name == "pyarrow":
            raise metadata.PackageNotFoundError(name)
        return real_version(name)

    def broken(name, *rest):
        if name == "safetensors":
            raise RuntimeError("operator does not exist")
        return real_import(name, *rest)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(importlib, "import_module", broken)
    ended = protail("doctor")
    assert ended.code == 1
    assert install_command("tables") in ended.out
    assert "operator does not exist" in ended.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_carries_an_example(command, protail):
    ended = protail(command, "--help")
    assert ended.code == 0
    lines = ended.out.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert re.search(rf"Example: protail {command}", ended.out)


def test_help_names_every_command(protail):
    ended = protail("--help")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", ended.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["fit", "nowhere.npz", "-o", "out"], "protail fit: "),
        (["add-class", "nowhere", "lynx", "lynx.npz"], "protail add-class: "),
        (["train", "pcc", "--dataset", "photos"], "protail train: "),
        (["recipes", "show", "pcc"], "protail recipes show: "),
        (["data", "stats", "nowhere"], "protail data stats: "),
    ],
)
def test_an_error_names_the_command_as_it_is_typed(protail, arguments, name):
    ended = protail(*arguments)
    assert ended.code == 2
    assert ended.last_line.startswith(name)


def test_version(protail):
    assert protail("--version").out == f"protail {package.__version__}\n"


def test_an_unknown_option_is_told_from_bad_input_by_words(protail):
    ended = protail("fit", "--no-such-option")
    assert ended.code == 2
    assert "no-such-option" in ended.err


# What comes along with a package that is asked for.
COMES_WITH = {"scipy": "scikit-learn", "starlette": "fastapi", "markupsafe": "jinja2"}
COMES_WITH |= {"anyio": "fastapi", "triton": "torch"}


def test_what_the_code_imports_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("all", "dev")}
    stated = {each for group in (project["dependencies"], *extras.values()) for each in group}
    names = {re.match(r"[\w-]+", each)[0] for each in stated}
    modules = {
        {"scikit-learn": "sklearn", "pillow": "PIL"}.get(n, n.replace("-", "_")) for n in names
    }
    imported = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    ours = {"protail", "protail_paper", *sys.stdlib_module_names}
    assert imported - ours - set(COMES_WITH) <= modules
