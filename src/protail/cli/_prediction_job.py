"""A prediction that can be stopped at any moment and goes on where it was.

Each block of rows becomes a file of its own in ``OUTPUT.parts``, named by its first and last row,
the rows without an answer and its size, and renamed into place when it is whole. At the end they
are put together.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from protail._files import OutputError, check_free, explained, new_file, one_writer
from protail._messages import counted
from protail.cli._prediction_files import Format, find_format

if TYPE_CHECKING:
    from protail.cli._feature_options import FeatureOptions
    from protail.cli._sources import Answers, Model
    from protail.data.tables import FeatureFile

_JOB, _NEXT = "job.json", "next.part"
_FORMAT = "protail-predictions-1"
# All that is ever written in the place of the pieces; "lock" by earlier versions.
_OURS = re.compile(
    r"lock|job\.json|next\.part|\d{15}-\d{15}-\d+-\d+\.part"
    r"|\.(job\.json|next\.part)\.[0-9a-f.]+\.part"
)


class _Part(NamedTuple):
    path: Path
    start: int
    stop: int
    n_without: int
    n_bytes: int

    @classmethod
    def read(cls, path: Path) -> _Part:
        return cls(path, *map(int, path.stem.split("-")))


class PredictionJob:
    """Keep predictions as they come and put them together at the end.

    Parameters
    ----------
    output : Path
        The file that is to stand in the end; its suffix says how it is written.
    model : Model
        Whose predictions they are.
    sources : sequence of FeatureFile
        What is predicted, in order.
    options : FeatureOptions
        How the files are read.
    top_k : int
        Classes named for each row.
    overwrite : bool
        Whether ``output`` may be replaced, and the pieces of another job dropped.
    """

    def __init__(
        self,
        output: Path,
        model: Model,
        sources: Sequence[FeatureFile],
        options: FeatureOptions,
        top_k: int,
        overwrite: bool,
    ) -> None:
        k = min(top_k, len(model.classifier.classes_))
        self._format: Format = find_format(
            output, k, model.classifier.classes_, [source.kept for source in sources]
        )
        check_free(output, overwrite=overwrite)
        for source in sources:
            if output.exists() and output.samefile(source.path):
                raise ValueError(
                    f"--output {output} is also what is to be predicted; expected another file. "
                    "Choose another name."
                )
        self._output = output
        self._overwrite = overwrite
        self.parts = output.with_name(output.name + ".parts")
        self._description = _describe(model, sources, options, k)
        self._stack = ExitStack()
        self._has_begun = False
        self.n_done = 0

    def __enter__(self) -> Self:
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(one_writer(self._output))
            self._check_ours()
            self.parts.mkdir(exist_ok=True)
            self._stack.callback(self._clear_away)
            self._begin()
        except OSError as error:
            self._stack.close()
            raise explained(error, self._output) from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.n_done = 0
        self._stack.close()
        if isinstance(error, OutputError) and self.n_done:
            raise OutputError(
                error.errno,
                f"{error.strerror} {counted(self.n_done, 'row is', 'rows are')} kept in "
                f"{self.parts}: the same command goes on from there.",
            ) from error

    def keep(
        self,
        source: Path,
        first_row: int,
        answers: Answers,
        along: Sequence[tuple[Any, ...]],
    ) -> None:
        """Keep the predictions of the next block of rows.

        Parameters
        ----------
        source : Path
            The file the rows are from.
        first_row : int
            Their first row in that file.
        answers : Answers
            What the model says.
        along : sequence of tuple
            What the file has beside the features of each row, as `FeatureFile.kept_rows` gives it.
        """
        stop = self.n_done + len(answers.answered)
        try:
            written = self.parts / _NEXT
            with new_file(written, overwrite=True) as temporary:
                self._format.write_part(temporary, str(source), first_row, answers, along)
            n_without = int((~answers.answered).sum())
            size = written.stat().st_size
            written.rename(self.parts / f"{self.n_done:015d}-{stop:015d}-{n_without}-{size}.part")
        except OSError as error:
            reason = OSError(error.errno, os.strerror(error.errno or 0))
            raise explained(reason, self._output) from error
        self.n_done = stop

    def finish(self) -> int:
        """Put the pieces together.

        Returns
        -------
        int
            How many rows have no prediction.
        """
        parts = self._whole_parts()
        with new_file(self._output, overwrite=self._overwrite) as temporary:
            self._format.join([part.path for part in parts], temporary)
        return sum(part.n_without for part in parts)

    def _check_ours(self) -> None:
        """Raise where the place of the pieces holds something that is not ours."""
        if not os.path.lexists(self.parts):
            return
        is_folder = self.parts.is_dir() and not self.parts.is_symlink()
        if not is_folder or not all(map(_OURS.fullmatch, os.listdir(self.parts))):
            raise OutputError(
                errno.EEXIST,
                f"{self.parts} is needed for the pieces and holds something else. Move it away, "
                "or choose another --output.",
            )

    def _begin(self) -> None:
        found = self._found_job()
        if found != self._description:
            # Pieces without a whole description are of a job that never began.
            if found is not None and not self._overwrite:
                raise ValueError(
                    f"{self.parts} holds predictions of another model, other files or other "
                    "settings; expected those of this command. Give --overwrite to begin anew, or "
                    "another --output."
                )
            for piece in self.parts.glob("*.part"):
                piece.unlink()
        with new_file(self.parts / _JOB, overwrite=True) as temporary:
            temporary.write_text(json.dumps(self._description, indent=2), encoding="utf-8")
        parts = self._whole_parts()
        self.n_done = parts[-1].stop if parts else 0
        self._has_begun = True

    def _found_job(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.parts / _JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("format") == _FORMAT else None

    def _whole_parts(self) -> list[_Part]:
        """Give the pieces from row 0 on without a gap, as long as they have their size."""
        whole: list[_Part] = []
        stop = 0
        for part in map(_Part.read, sorted(self.parts.glob("[0-9]*.part"))):
            if part.start == stop and part.path.stat().st_size == part.n_bytes:
                whole.append(part)
                stop = part.stop
        return whole

    def _clear_away(self) -> None:
        """Remove the pieces where nothing is worth keeping."""
        if self._has_begun and not self.n_done:
            shutil.rmtree(self.parts, ignore_errors=True)
        with suppress(OSError):
            self.parts.rmdir()  # empty, where it could not begin


def _describe(
    model: Model, sources: Sequence[FeatureFile], options: FeatureOptions, k: int
) -> dict[str, Any]:
    stats = [source.path.stat() for source in sources]
    return {
        "format": _FORMAT,
        "model": model.checksum,
        "read": {name: given for name, given in asdict(options).items() if given},
        "files": [
            {"path": str(source.path), "bytes": stat.st_size, "changed": stat.st_mtime_ns}
            for source, stat in zip(sources, stats, strict=True)
        ],
        "top_k": k,
    }
