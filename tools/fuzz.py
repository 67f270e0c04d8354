"""Let a fuzzer break files for every reader of protail, guided by the code that they reach.

    python -m pip install --target FOLDER atheris
    python tools/fuzz.py --atheris FOLDER --minutes 10

Each form of ``tests/faults/readers.py`` is fuzzed by atheris (libFuzzer) in a process of its own,
which learns from the lines of protail that each input reaches; half of the inputs are broken by
our own `broken`, which knows JSON. Without atheris all of them are, unguided. Printed are the
inputs that each reader saw, and each kind of broken promise once, with a file that shows it in
``--output``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_COUNTED = ("read", "refused", "no file", "broken")
_SLOT = 8


class Tally:
    """Count what became of inputs, in a file that outlives a process that crashes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SLOT * len(_COUNTED)))
        with path.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), 0)

    def add(self, what: str) -> None:
        """Count one."""
        place = _SLOT * _COUNTED.index(what)
        number = int.from_bytes(self._numbers[place : place + _SLOT], "little") + 1
        self._numbers[place : place + _SLOT] = number.to_bytes(_SLOT, "little")

    def read(self) -> Counter[str]:
        """Give all counts."""
        numbers = memoryview(self._numbers).cast("Q").tolist()
        return Counter(dict(zip(_COUNTED, numbers, strict=True)))


def fuzz_one(name: str, seconds: float, folder: Path, seed: int, atheris: Any) -> None:
    """Fuzz one form in this process."""
    readers = importlib.import_module("faults.readers")
    form, tally = readers.forms()[name], Tally(folder / "tally")
    place, known = folder / "given", set()
    place.mkdir(exist_ok=True)
    draw = random.Random(seed)

    def once(data: bytes) -> None:
        (folder / "last").write_bytes(data)  # what is left where the process dies
        try:
            tally.add(readers.attempt(form, data, place))
        except readers.BrokenPromiseError as error:
            tally.add("broken")
            kind = str(error).partition(": ")[0]
            if kind not in known and len(known) < 20:
                known.add(kind)
                file = folder / f"broken-{seed}-{len(known)}"
                file.write_bytes(data)
                file.with_suffix(".txt").write_text(str(error))

    if atheris is None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            once(readers.broken(draw.choice(form.seeds), draw, form.seeds))
        return
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, content in enumerate(form.seeds):
        (corpus / f"seed-{number}").write_bytes(content)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        own = random.Random(seed)
        if own.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return bytes(readers.broken(data or form.seeds[0], own, form.seeds)[:most])

    longest = 4 * max(map(len, form.seeds)) + 4096
    options = [
        *(f"-max_total_time={seconds:.0f}", f"-max_len={longest}", f"-seed={seed}"),
        *("-timeout=20", "-rss_limit_mb=16384", "-verbosity=0", f"-artifact_prefix={folder}/"),
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], once, custom_mutator=mutate)
    atheris.Fuzz()


def fuzz_all(given: argparse.Namespace) -> int:
    """Fuzz every form in a process of its own; give how many promises were broken."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    names = list(importlib.import_module("faults.readers").forms())
    names = [name for name in names if not given.only or any(o in name for o in given.only)]
    seconds = max(1.0, 60 * given.minutes / len(names))
    total: Counter[str] = Counter()
    n_kinds = 0
    with tempfile.TemporaryDirectory(prefix="protail-fuzz-") as temporary:
        for number, name in enumerate(names):
            folder = given.output or Path(temporary)
            folder = folder / f"{number:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            crashes = _fuzz_in_turns(name, seconds, folder, given)
            counts = Tally(folder / "tally").read()
            total += counts
            kinds = {file.read_text() for file in folder.glob("broken-*.txt")} | set(crashes)
            n_kinds += len(kinds)
            n_reached = len(list((folder / "corpus").glob("*"))) if given.atheris else 0
            print(f"{name}: {_in_words(counts)}; {n_reached} kept as new", flush=True)
            for kind in sorted(kinds):
                print(f"    BROKEN {kind[:400]}", flush=True)
    print(f"{len(names)} forms, {_in_words(total)}; {n_kinds} kinds of broken promises")
    return n_kinds


def _fuzz_in_turns(name: str, seconds: float, folder: Path, given: argparse.Namespace) -> list[str]:
    """Run a form's process until its time is up, again where it dies; tell of what it died."""
    end, crashes, seed = time.monotonic() + seconds, [], given.seed
    # libFuzzer ends without tidying up.
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    while (left := end - time.monotonic()) > 1 or seed == given.seed:
        words = ["--one", name, "--seconds", f"{max(left, 1):.0f}", "--folder", str(folder)]
        words += ["--seed", str(seed)]
        words += ["--atheris", str(given.atheris)] if given.atheris else []
        ended = subprocess.run(
            [sys.executable, __file__, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
            check=False,
        )
        seed += 1
        if ended.returncode == 0:
            break
        told = ended.stdout.decode(errors="replace").strip().splitlines()[-6:]
        if (folder / "last").exists():
            (folder / "last").rename(folder / f"crash-{seed}")
        crashes.append(f"process died ({ended.returncode}): {json.dumps(told)}")
        if len(crashes) >= 20:
            break
    shutil.rmtree(temporary, ignore_errors=True)
    return crashes


def _in_words(counts: Counter[str]) -> str:
    n = sum(counts.values())
    return f"{n:,} inputs ({', '.join(f'{what} {counts[what]:,}' for what in _COUNTED)})"


def _atheris(folder: Path | None) -> Any:
    """Import the fuzzer, and protail so that it sees which lines are reached."""
    if folder is None:
        return None
    sys.path.append(str(folder))
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["protail", "protail_paper"]):
        importlib.import_module("faults.readers")
    return atheris


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="over all readers")
    parser.add_argument("--only", nargs="*", help="readers whose names hold one of these")
    parser.add_argument("--atheris", type=Path, help="the folder where atheris is installed")
    parser.add_argument("--output", type=Path, help="keep inputs here")
    parser.add_argument("--seed", type=int, default=1)
    for hidden, kind in (("--one", str), ("--seconds", float), ("--folder", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is None:
        return int(fuzz_all(given) > 0)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    fuzz_one(given.one, given.seconds, given.folder, given.seed, _atheris(given.atheris))
    return 0


if __name__ == "__main__":
    sys.exit(main())
