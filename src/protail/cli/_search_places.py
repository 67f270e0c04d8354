"""Where ``protail search`` leaves what it found."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from protail._messages import counted

if TYPE_CHECKING:
    from protail.experiments import Search, SearchResult


class SearchPlaces:
    """What a search leaves: the recipe, and beside it all trials and a picture."""

    def __init__(self, recipe: Path, journal: Path | None = None) -> None:
        if recipe.suffix != ".toml":
            from protail._files import OutputError

            raise OutputError(22, f"{recipe} cannot be written: its name should end in .toml.")
        self.recipe = recipe
        self.trials = recipe.with_suffix(".search.json")
        self.picture = recipe.with_suffix(".search.png")
        self.journal = journal or recipe.with_suffix(".search.journal")

    def check(self, search: Search, *, overwrite: bool) -> None:
        """Raise unless the places are free, or hold what this very search found so far."""
        from protail._files import check_free

        replace = overwrite or self._is_of(search)
        for place in (self.recipe, self.trials, self.picture):
            check_free(place, overwrite=replace)

    def _is_of(self, search: Search) -> bool:
        try:
            there = json.loads(self.trials.read_bytes())
        except (OSError, ValueError):
            return False
        about = json.loads(json.dumps(search.about))
        return isinstance(there, dict) and all(there.get(key) == about[key] for key in about)

    def clear_journal(self, search: Search) -> None:
        """Remove the journal of another search, unless one is working on it."""
        from protail._files import OutputError
        from protail.experiments import is_alive

        if not _is_of_another(self.journal, search):
            return
        files = self.journal.with_name(f"{self.journal.name}.files")
        if any(is_alive(worker) for worker in files.glob("workers/*")):
            raise OutputError(
                errno.EBUSY, f"{self.journal} cannot be replaced: another search is working on it."
            )
        self.journal.unlink()
        shutil.rmtree(files, ignore_errors=True)

    def write(self, result: SearchResult, picture: bytes | None) -> None:
        """Write all of them, but no picture where there is none."""
        found = result.recipe
        best = None if result.best is None else result.best.score
        score = "" if best is None else f"{100 * best:.1f}"
        note = (
            f"# Found by protail search, best of {counted(len(result.trials), 'trial')}: scored "
            f"{score} % ({result.search.score}) on held out training images.\n"
        )
        self._write(self.recipe, (note + found.to_toml()).encode())
        record = json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        self._write(self.trials, record.encode())
        if picture is not None:
            self._write(self.picture, picture)

    def _write(self, place: Path, content: bytes) -> None:
        from protail._files import new_file

        # Another worker of the same search may have written it since we looked.
        with new_file(place, overwrite=True) as temporary:
            temporary.write_bytes(content)


def _is_of_another(journal: Path, search: Search) -> bool:
    """Say whether a file is the journal of a search, and of another one than this."""
    about = json.loads(json.dumps(search.about))
    try:
        with journal.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if line.endswith("\n")]
        noted = [each["user_attr"] for each in records if {"study_id", "user_attr"} <= set(each)]
    except (OSError, ValueError, TypeError):
        return False
    return any(attributes.get("search", about) != about for attributes in noted)
