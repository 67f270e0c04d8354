"""Pages of documentation: their code blocks, and whether what they show is what comes out.

``python -m reference.documents PAGE ...`` writes what comes out in the place of what a page shows
where the two differ; a block that holds a line ``...`` is mended by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import protail
from reference.apart import run_apart, type_protail
from reference.digits import long_tailed_digits

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# The package that is tested, wherever a command runs; output in the order it comes, as wide as in
# the pages, no network; for these small matrices threads only get in each other's way.
_ENVIRONMENT = {
    "PYTHONPATH": f"{Path(protail.__file__).parents[1]}{os.pathsep}{ROOT / 'tests' / 'offline'}",
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "80",
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
_FENCE = re.compile(r"^```(\S*)\s*$")
_TIMES = re.compile(r'\b\d+(\.\d+)? (h|min|s|ms)\b( \d+ (min|s)\b)?|(?<="seconds": )[\d.]+')
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_RULE = re.compile(r"[-─━]{2,}")
_VERSIONS = re.compile(r"output below is that of ([^.]*(?:\.\d[^.]*)*)\.", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines and the number of the first one in the page."""

    language: str
    lines: list[str]
    first_line: int
    follows_block: bool

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks(page: Path) -> list[Block]:
    """Find the fenced blocks of a page."""
    found: list[Block] = []
    inside: Block | None = None
    only_blanks = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None and fence:
            inside = Block(fence[1], [], number + 1, only_blanks)
        elif inside is not None and line == "```":
            found.append(inside)
            inside, only_blanks = None, True
        elif inside is not None:
            inside.lines.append(line)
        else:
            only_blanks = only_blanks and not line.strip()
            assert not line.lstrip().startswith("```"), f"{page.name}:{number}: an indented fence"
    assert inside is None, f"{page.name}: the block at line {inside.first_line} has no end"
    return found


def indented_code(page: Path) -> list[str]:
    """Find code that hides from the tests: indented by four, outside of any fence."""
    outside = re.sub(r"(?ms)^```.*?^```$|^:::.*?(?=^\S|\Z)", "", page.read_text(encoding="utf-8"))
    return [line for line in outside.splitlines() if line.startswith(("    ", "\t"))]


def compares_output(page: Path) -> bool:
    """Whether the libraries are those a page was written with; a page may name none."""
    named = _VERSIONS.search(page.read_text(encoding="utf-8"))
    if named is None:
        return True
    pairs = re.findall(r"([a-z-]+) (\d+\.\d+)", named[1])
    assert pairs, f"{page.name}: no library and version in {named[0]!r}"
    return all(version(library).startswith(f"{shown}.") for library, shown in pairs)


@dataclass
class Reader:
    """Somebody who types everything that a page shows, in one folder."""

    page: Path
    folder: Path
    rewrites: bool = False
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    new_lines: list[tuple[int, int, list[str]]] = field(default_factory=list)

    def read(self) -> None:
        """Run the page from top to bottom."""
        printed: str | None = None
        compared = compares_output(self.page)
        for block in blocks(self.page):
            where = f"{self.page.relative_to(ROOT)}:{block.first_line}"
            if printed:
                shown = block.language == "text" and block.follows_block
                assert shown, (
                    f"{where}: the block before prints, so a text block must follow:\n" + (printed)
                )
                if compared:
                    self.compare(block.lines, printed, block.first_line, where)
                printed = None
                continue
            if block.language == "python":
                printed = self.run_python(block)
            elif block.language == "console":
                for typed in _typed(block, where):
                    self.run_command(*typed, where, compared=compared)
            else:
                _check_parses(block, where)
        assert not printed, f"{self.page.name}: its last python block prints what is not shown"

    def run_python(self, block: Block) -> str:
        """Run a block in the namespace of the page; give what it prints."""
        # Line numbers of a traceback are those of the page.
        code = compile("\n" * (block.first_line - 1) + block.text, str(self.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.namespace)
        return printed.getvalue()

    def run_command(
        self,
        command: str,
        expected: list[str],
        first_line: int,
        next_command: str,
        where: str,
        *,
        compared: bool,
    ) -> None:
        """Type one line; compare what comes out with the lines shown below it."""
        if command == "echo $?":
            assert expected == [str(self.namespace.pop("$?"))] or not compared, where
            return
        words = runnable(command)
        if words is None:
            assert not expected, f"{where}: nothing runs {command!r}, so it can show no output"
            return
        settings, words = _variables(words)
        code, printed = self.type_words(words, os.environ | _ENVIRONMENT | settings)
        self.namespace["$?"] = code
        failed = code != 0 and next_command != "echo $?"
        assert not failed, f"{where}: {command!r} ends with {code}:\n{printed}"
        if compared:
            exact = words[-1] == "--help"
            self.compare(expected, printed, first_line, f"{where}: {command}", exact=exact)

    def compare(
        self, shown: list[str], real: str, first_line: int, where: str, *, exact: bool = False
    ) -> None:
        """Raise where a page shows something else than what came out, or keep that for the page."""
        try:
            same_output(shown, real, where, exact=exact)
        except AssertionError:
            if not self.rewrites or "..." in shown:
                raise
            lines = [line.rstrip() for line in real.splitlines() if line.strip()]
            self.new_lines.append((first_line, len(shown), lines))

    def type_words(self, words: list[str], environment: dict[str, str]) -> tuple[int, str]:
        """Run a command; give its exit code and what it prints."""
        if words[0] == "protail":
            return run_apart(type_protail, words[1:], self.folder, environment)
        result = subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        return result.returncode, result.stdout


def _typed(block: Block, where: str) -> Iterator[tuple[str, list[str], int, str]]:
    """Give each command of a console block, the output shown for it, its line, the next command."""
    assert block.text.startswith("$ "), f"{where}: begins with no command"
    begins = [n for n, line in enumerate(block.lines) if line.startswith("$ ")]
    commands = [block.lines[n][2:] for n in begins] + [""]
    for (begin, end), (command, following) in zip(
        pairwise([*begins, len(block.lines)]), pairwise(commands), strict=True
    ):
        yield command, block.lines[begin + 1 : end], block.first_line + begin + 1, following


def runnable(command: str) -> list[str] | None:
    """Give the words to run; None for a line that sets things up, once it is checked."""
    words = shlex.split(command)
    match words:
        case ["protail", *_]:
            return words
        case [setting, "protail", *_] if "=" in setting:
            return words
        case ["python", "-c", _]:
            return [sys.executable, *words[1:]]
        case ["ls" | "cat" | "head", *_]:
            return words
    for part in command.split(" && "):
        _check_set_up(shlex.split(part))
    return None


def _variables(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Part what a line sets for its command from the command."""
    name, is_setting, value = words[0].partition("=")
    return ({name: value}, words[1:]) if is_setting else ({}, words)


def _check_set_up(words: list[str]) -> None:
    match words:
        case ["git", "clone", _] | ["git", "clone", _, _] | ["cd", _]:
            return
        case ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"]:
            return
        case ["make", *targets]:
            rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            unknown = set(targets) - set(rules)
            assert not unknown, f"the Makefile has no {unknown}"
        case ["pip", "install", what]:
            form = re.fullmatch(r"(?:\.|protail)(?:\[([\w,]+)\])?", what)
            assert form, f"pip installs {what!r}, which is not this project"
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            extras = set(filter(None, (form[1] or "").split(",")))
            unknown = extras - set(project["project"]["optional-dependencies"])
            assert not unknown, f"pyproject.toml has no extra {unknown}"
        case _:
            raise AssertionError(f"no test knows how to run or check {shlex.join(words)!r}")


def _check_parses(block: Block, where: str) -> None:
    match block.language:
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            import yaml

            yaml.safe_load(block.text)
        case "text" | "bibtex":
            return
        case other:
            raise AssertionError(f"{where}: blocks of {other or 'no language'} are not for pages")


def same_output(expected: list[str], real: str, where: str, *, exact: bool = False) -> None:
    """Raise unless words agree and numbers nearly do; a line ``...`` stands for any lines."""
    wanted, got = _visible(expected), _visible(real.splitlines())
    problem = _first_difference(wanted, got)
    if exact and wanted != got:
        problem = problem or "numbers differ, which here must agree exactly"
    assert problem is None, f"{where}: {problem}\n--- real output:\n{real}"


def _visible(lines: list[str]) -> list[str]:
    masked = (_RULE.sub("--", _TIMES.sub("TIME", line)) for line in lines)
    return [" ".join(line.split()) for line in masked if line.strip()]


def _first_difference(wanted: list[str], got: list[str]) -> str | None:
    if "..." in wanted:
        cut = wanted.index("...")
        head, rest = wanted[:cut], wanted[cut + 1 :]
        problem = _first_difference(head, got[:cut])
        if problem is not None or not rest:
            return problem
        ends = (_first_difference(rest, got[n:]) for n in range(cut, len(got)))
        return None if None in ends else f"the lines after '...' are not there: {rest}"
    if len(wanted) != len(got):
        return f"{len(wanted)} lines are shown, {len(got)} came out"
    return next(
        (
            f"{w!r} is shown, {g!r} came out"
            for w, g in zip(wanted, got, strict=True)
            if not _same(w, g)
        ),
        None,
    )


def _same(wanted: str, got: str) -> bool:
    if " ".join(_NUMBER.sub("#", wanted).split()) != " ".join(_NUMBER.sub("#", got).split()):
        return False
    pairs = zip(_NUMBER.findall(wanted), _NUMBER.findall(got), strict=True)
    return all(_near(shown, came) for shown, came in pairs)


def _near(shown: str, came: str) -> bool:
    """Compare numbers as another processor may give them: a row or two may change sides."""
    a, b = (float(text.replace(",", "")) for text in (shown, came))
    if "." not in shown and "e" not in shown:
        slack = 0.0 if abs(a) < 10 else max(1.0, 0.03 * abs(a))
    elif re.fullmatch(r"[-+]?\d+\.\d", shown):
        slack = max(0.6, 0.03 * abs(a))  # per cent
    else:
        slack = max(0.02, 0.03 * abs(a))
    return abs(a - b) <= slack


def write_own_files(folder: Path) -> None:
    """Write the files that README takes for the reader's own."""
    X, y, X_new, _ = long_tailed_digits()
    np.savez(folder / "features.npz", features=X, labels=y)
    np.savez(folder / "new.npz", features=X_new)


def rewrite(page: Path) -> int:
    """Write what comes out into a page; give the number of blocks that have changed."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_own_files(Path(folder))
        reader = Reader(page, Path(folder), rewrites=True)
        reader.read()
    lines = page.read_text(encoding="utf-8").splitlines()
    for first_line, n_lines, new in reversed(reader.new_lines):
        lines[first_line - 1 : first_line - 1 + n_lines] = new
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(reader.new_lines)


if __name__ == "__main__":
    os.environ |= {"COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    for name in sys.argv[1:]:
        try:
            print(f"{name}: {rewrite(Path(name).resolve())} blocks written")
        except Exception as error:  # the other pages can still be written
            print(f"{name}: {error}")
