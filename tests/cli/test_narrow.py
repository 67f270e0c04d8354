"""Tables at a terminal: no number is cut and no word lost, however narrow it is."""

import contextlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.table import Table
from typer import Exit

from protail._messages import install_command
from protail.cli import app
from protail.cli.command import Voice
from reference.feature_data import feature_data, write_npz
from reference.rows import long_tailed_rows

WIDTHS = (40, 60, 80, 120)
COMMANDS = {
    "evaluate": ["evaluate", "model", "test.npz"],
    "compare": ["compare", "model", "model", "test.npz"],
    "add-class": ["add-class", "model", "puffin", "few.npz", "-o", "out", "--check", "test.npz"],
    "data list": ["data", "list"],
    "data stats": ["data", "stats", "whole.npz"],
    "recipes": ["recipes"],
    "bench status": ["bench", "status"],
}


@pytest.fixture
def at_terminal(tmp_path, monkeypatch):
    """Show something at a terminal so many signs wide; give the lines on it."""
    monkeypatch.chdir(tmp_path)

    def show(width, function):
        monkeypatch.setenv("COLUMNS", str(width))
        reader, writer = os.openpty()
        with ThreadPoolExecutor() as pool:
            read = pool.submit(_read_all, reader)
            with os.fdopen(writer, "w", encoding="utf-8") as terminal, monkeypatch.context() as own:
                own.setattr(sys, "stdout", terminal)
                function()
            text = read.result()
        os.close(reader)
        return re.sub(r"\x1b\[[\d;?]*\w", "", text.decode()).splitlines()

    return show


def _read_all(reader):
    text = b""
    with contextlib.suppress(OSError):  # nobody writes any more
        while piece := os.read(reader, 2**16):
            text += piece
    return text


def cells_of(markdown):
    """Give the cells of the tables in a text, but for their headings and rules."""
    tables = re.split(r"^\|[-:| ]+\|$", markdown, flags=re.MULTILINE)[1:]
    rows = [line for text in tables for line in text.splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in row.strip("|").split(" | ")]


def numbers(text):
    return re.findall(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?![\w.,]*\w)", text)


@pytest.fixture
def files(model, write, tmp_path):
    write("few.npz", long_tailed_rows(counts=(3,), seed=5)[0] + 9)
    write_npz(tmp_path / "whole.npz", feature_data())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_and_word_of_a_table_is_there(name, files, protail, at_terminal):
    wide = protail(*COMMANDS[name], *(["--overwrite"] if "-o" in COMMANDS[name] else []))
    assert wide.code == 0, wide.err
    cells = cells_of(wide.out)
    assert len(cells) > 5
    for width in WIDTHS:
        arguments = [*COMMANDS[name], *(["--overwrite"] if "-o" in COMMANDS[name] else [])]

        def run(arguments=arguments):
            app(arguments, standalone_mode=False)

        lines = at_terminal(width, run)
        text = "\n".join(lines)
        assert "…" not in text, text
        assert max(map(len, lines)) <= width, text
        found = set(numbers(text))
        assert {number for cell in cells for number in numbers(cell)} <= found, text
        letters = re.sub(r"[\s│┃]", "", text)
        for cell in cells:
            for word in cell.split():
                assert word[:20] in letters, (word, text)


def table(title=None):
    made = Table("in %", title=title)
    for heading in ("all", "balanced", "calibration error"):
        made.add_column(heading, justify="right")
    made.add_row("a/model/of/a/long/name-1", "100.0", "-12,345.6", "46.1 [46.2]")
    made.add_row("[bold]", "9.5", "1.0", "")
    return made


@pytest.mark.parametrize("width", range(14, 100, 3))
def test_at_any_width(width, at_terminal):
    lines = at_terminal(width, lambda: Voice(False).show(table("Table 1: one")))
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in ("100.0", "-12,345.6", "46.1", "[46.2]", "9.5", "1.0", "[bold]", "Table 1: one"):
        assert words in text, lines


def test_a_bar_is_a_line(files, at_terminal):
    for width in WIDTHS:
        lines = at_terminal(width, lambda: app(COMMANDS["data stats"], standalone_mode=False))
        barred = [line for line in lines if "#" in line]
        assert len(barred) == 5
        assert all(re.fullmatch(r"\d  #+  \d+", line.strip()) for line in barred)
        assert max(map(len, lines)) <= width


def test_a_command_to_copy_is_one_line(at_terminal, monkeypatch):
    found = {"version": None, "problem": "not installed"}
    monkeypatch.setattr(
        "protail.cli.doctor._examine", lambda name, extra: {"name": name, "extra": extra, **found}
    )

    def run():
        with contextlib.suppress(Exit):
            app(["doctor"], standalone_mode=False)

    lines = at_terminal(40, run)
    assert install_command() in lines
    assert f"For hub: {install_command('hub')}" in lines


def test_where_there_is_room_a_table_is_a_table(at_terminal):
    assert len(at_terminal(100, lambda: Voice(False).show(table()))) == 6
    headings = at_terminal(60, lambda: Voice(False).show(table()))
    assert re.search(r"│ +46\.1 \[46\.2\] │", "\n".join(headings))
    assert any("calibration" in line and "error" not in line for line in headings)


def test_rows_below_each_other_say_what_each_number_is(at_terminal):
    lines = at_terminal(34, lambda: Voice(False).show(table("Table 1: one")))
    assert [line.rstrip() for line in lines] == [
        "Table 1: one",
        "a/model/of/a/long/name-1",
        "  all: 100.0",
        "  balanced: -12,345.6",
        "  calibration error: 46.1 [46.2]",
        "[bold]",
        "  all: 9.5",
        "  balanced: 1.0",
    ]


def test_a_table_in_a_pipe_is_markdown_as_wide_as_it_must_be(capsys):
    made = Table("name", "what")
    made.add_row("x", "word " * 60 + "end")
    Voice(False).show(made)
    printed = capsys.readouterr().out
    assert "word end |" in printed
    assert printed.count("\n|") == 3
