"""A prediction that can be stopped at any moment and goes on where it was.

Each block of rows becomes a file of its own in ``OUTPUT.parts``, named by its first and last row
and renamed into place when it is whole. At the end they are put together.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from protail._files import OutputError, check_free, explained, new_file
from protail.cli._prediction_files import Format, find_format

if TYPE_CHECKING:
    from protail.cli._sources import Answers, Model
    from protail.data.features import FeatureFile


class PredictionJob:
    """Keep predictions as they come and put them together at the end.

    Parameters
    ----------
    output : Path
        The file that is to stand in the end; its suffix says how it is written.
    model : Model
        Whose predictions they are.
    files : sequence of FeatureFile
        What is predicted, in order.
    top_k : int
        Classes named for each row.
    overwrite : bool
        Whether ``output`` may be replaced, and the pieces of another job dropped.
    """

    def __init__(
        self,
        output: Path,
        model: Model,
        files: Sequence[FeatureFile],
        top_k: int,
        overwrite: bool,
    ) -> None:
        k = min(top_k, len(model.classifier.classes_))
        self._format: Format = find_format(output, k, model.classifier.classes_.dtype)
        check_free(output, overwrite=overwrite)
        self._output = output
        self._overwrite = overwrite
        self.parts = output.with_name(output.name + ".parts")
        self._description = _describe(model, files, top_k)
        if self.parts.exists() and overwrite:
            _drop(self.parts)
        self._check_same_job()
        self.n_done = self._count_done()

    def __enter__(self) -> Self:
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            with new_file(self._job_file, overwrite=True) as temporary:
                temporary.write_text(json.dumps(self._description, indent=2), encoding="utf-8")
        except OSError as error:
            self._forget_if_empty()
            raise explained(error, self._output) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            _drop(self.parts)
        else:
            self._forget_if_empty()
        if isinstance(error, OutputError) and self.n_done:
            raise OutputError(
                error.errno,
                f"{error.strerror} {self.n_done:,} rows are kept in {self.parts}: the same command "
                "goes on from there.",
            ) from error

    def keep(self, source: Path, first_row: int, answers: Answers) -> None:
        """Keep the predictions of the next block of rows.

        Parameters
        ----------
        source : Path
            The file the rows are from.
        first_row : int
            Their first row in that file.
        answers : Answers
            What the model says.
        """
        stop = self.n_done + len(answers.answered)
        name = f"{self.n_done:015d}-{stop:015d}-{(~answers.answered).sum()}"
        try:
            with new_file(self.parts / f"{name}.part", overwrite=True) as temporary:
                self._format.write_part(temporary, str(source), first_row, answers)
        except OSError as error:
            raise explained(error, self._output) from error
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
            self._format.join(parts, temporary)
        return sum(int(part.stem.split("-")[2]) for part in parts)

    @property
    def _job_file(self) -> Path:
        return self.parts / "job.json"

    def _check_same_job(self) -> None:
        if not self.parts.exists():
            return
        try:
            found = json.loads(self._job_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if found != self._description:
            raise ValueError(
                f"{self.parts} holds predictions of another model, other files or other settings; "
                "expected those of this command. Give --overwrite to begin anew, or another "
                "--output."
            )

    def _count_done(self) -> int:
        parts = self._whole_parts()
        return int(parts[-1].stem.split("-")[1]) if parts else 0

    def _whole_parts(self) -> list[Path]:
        """Give the pieces from row 0 on without a gap; names without a dot in front are whole."""
        whole: list[Path] = []
        stop = 0
        for part in sorted(self.parts.glob("[0-9]*.part")):
            first, last, _ = part.stem.split("-")
            if int(first) == stop:
                whole.append(part)
                stop = int(last)
        return whole

    def _forget_if_empty(self) -> None:
        if not self.n_done:
            _drop(self.parts)


def _describe(model: Model, files: Sequence[FeatureFile], top_k: int) -> dict[str, Any]:
    stats = [file.path.stat() for file in files]
    return {
        "model": json.loads((model.folder / "model.json").read_text(encoding="utf-8"))["checksum"],
        "files": [
            {"path": str(file.path), "bytes": stat.st_size, "changed": stat.st_mtime_ns}
            for file, stat in zip(files, stats, strict=True)
        ],
        "top_k": top_k,
    }


def _drop(parts: Path) -> None:
    shutil.rmtree(parts, ignore_errors=True)
