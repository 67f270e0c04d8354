"""Measure how much code there is and how it hangs together.

    python tools/measure_code.py            # every measure, one line each
    python tools/measure_code.py --by-package
    python tools/measure_code.py --check    # fail where a private module is imported from outside

Lines of code are those that hold a token other than a comment or a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_TRACER = """
import sys, threading
SRC = sys.argv[1]
seen, calls = set(), set()
def trace(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(SRC) and code.co_flags & 1:  # a function
        seen.add(code.co_filename)
        back = frame.f_back
        while back is not None and not back.f_code.co_filename.startswith(SRC):
            back = back.f_back
        if back is not None:
            pair = back.f_code.co_filename.rsplit("/", 1)[0], code.co_filename.rsplit("/", 1)[0]
            if pair[0] != pair[1]:
                calls.add(pair)
sys.setprofile(trace)
threading.setprofile(trace)
{body}
sys.setprofile(None)
packages = {name.rsplit("/", 1)[0] for name in seen}
print("MEASURED", len(seen), len(packages), len(calls))
"""
_FIT = """
from sklearn.datasets import load_digits
from protail import PrototypeClassifier
seen.clear(), calls.clear()
PrototypeClassifier(random_state=0).fit(*load_digits(return_X_y=True))
"""
_TRAIN = """
import os, tempfile
from protail.cli import main
seen.clear(), calls.clear()
os.chdir(tempfile.mkdtemp())
sys.argv = ["protail", "train", "pc-la", "--dataset", "cifar100-lt-features", "-o", "run"]
try:
    main()
except SystemExit:
    pass
"""


def docstrings(tree: ast.Module) -> set[int]:
    """Find the line numbers of all docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count(path: Path) -> tuple[int, int]:
    """Count lines of code, and lines of docstrings."""
    text = path.read_text()
    documented = docstrings(ast.parse(text))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented), len(documented)


def is_private(path: Path) -> bool:
    """Say whether a module is meant for its own package alone."""
    return any(
        part.startswith("_") and part not in ("__init__.py", "__main__.py")
        for part in path.relative_to(SRC).parts
    )


def private_imports(path: Path) -> list[str]:
    """List imports of another package's private modules."""
    own = ".".join(path.relative_to(SRC).with_suffix("").parts[:-1])
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            hidden = [i for i, part in enumerate(parts) if part[0] == "_" and part[:2] != "__"]
            if parts[0] not in ("protail", "protail_paper") or not hidden:
                continue
            home = ".".join(parts[: hidden[0]])
            # A private module at the top of a package is shared by all of that package.
            if own != home and not own.startswith(home + "."):
                found.append(f"{path.relative_to(SRC)}: {name}")
    return sorted({line.rsplit(".", 1)[0] for line in found})


def check_private_imports() -> None:
    """Fail where a module imports a private module of another package."""
    crossing = [line for path in sorted(SRC.rglob("*.py")) for line in private_imports(path)]
    if crossing:
        sys.exit("Imports of another package's private modules:\n" + "\n".join(crossing))
    print("No module imports a private module of another package.")


def passed_through(body: str) -> str:
    """Count files and packages whose functions run while ``body`` does."""
    program = _TRACER.replace("{body}", body)
    command = [sys.executable, "-c", program, str(SRC)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = [line for line in done.stdout.splitlines() if line.startswith("MEASURED")]
    if not line:
        return f"failed: {done.stderr[-300:]}"
    _, files, packages, changes = line[0].split()
    return f"{files} files in {packages} packages, {changes} calls from package to package"


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by-package", action="store_true")
    parser.add_argument("--private-imports", action="store_true", help="list them")
    parser.add_argument("--check", action="store_true", help="fail where there are any")
    parser.add_argument("--run", action="store_true", help="what fit and train pass through, too")
    chosen = parser.parse_args()
    if chosen.check:
        check_private_imports()
        return
    for distribution in ("protail", "protail_paper"):
        paths = sorted((SRC / distribution).rglob("*.py"))
        if not paths:
            continue
        counts = {path: count(path) for path in paths}
        code = sum(each[0] for each in counts.values())
        print(f"{distribution}: {len(paths)} files, {code:,} lines of code")
        print(f"  docstring lines: {sum(each[1] for each in counts.values()):,}")
        hidden = sum(each[1] for path, each in counts.items() if is_private(path))
        print(f"  docstring lines in private modules: {hidden:,}")
        print(f"  files under 50 lines of code: {sum(c < 50 for c, _ in counts.values())}")
        crossing = [line for path in paths for line in private_imports(path)]
        print(f"  cross-package imports of private modules: {len(crossing)}")
        if chosen.private_imports:
            print("\n".join(f"    {line}" for line in crossing))
        if chosen.by_package:
            sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
            for path, (lines, documented) in counts.items():
                parts = path.relative_to(SRC / distribution).parts[:-1]
                row = sums["/".join(parts) or "."]
                row[0] += 1
                row[1] += lines
                row[2] += documented
            for package, (files, lines, documented) in sorted(sums.items()):
                print(f"    {package:24}{files:4} files{lines:7,} code{documented:7,} docstrings")
    if chosen.run:
        print(f"PrototypeClassifier().fit: {passed_through(_FIT)}")
        print(f"protail train pc-la: {passed_through(_TRAIN)}")


if __name__ == "__main__":
    main()
