"""``protail predict``: what a model says about each row of any number of files, or each photo.

A prediction can be stopped at any moment and goes on where it was: each block of rows becomes a
file of its own in ``OUTPUT.parts``, named by its first and last row, the rows without an answer,
those rejected and its size, and renamed into place when it is whole. At the end they are put
together.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice, pairwise, repeat
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
import typer
from numpy.typing import NDArray

from protail._files import OutputError, check_free, explained, new_file, one_writer
from protail._messages import counted, first_few, not_installed, unknown_name
from protail._stopping import check_stop, in_steps
from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app
from protail.cli.progress import in_words, row_progress
from protail.cli.sources import Answers, Array, Model, Photos, open_sources, tell_columns

if TYPE_CHECKING:
    from protail.data.tables.rows import Engine

Along = Sequence[tuple[Any, ...]]

# Classes named in one piece of the output, all rows together.
_NAMED_AT_A_TIME = 65_536
# What stands behind the label where rows may be rejected.
_REJECTED = ("rejected", "likeliest")
_JOB, _NEXT = "job.json", "next.part"
_FORMAT = "protail-predictions-2"
# All that is ever written in the place of the pieces; "lock" and shorter names by earlier versions.
_OURS = re.compile(
    r"lock|job\.json|next\.part|\d{15}-\d{15}(-\d+){2,3}\.part"
    r"|\.(job\.json|next\.part)\.[0-9a-f.]+\.part"
)

Files = Annotated[
    list[Path],
    typer.Argument(help="Files of features, photos, their folders or lists.", show_default=False),
]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", help="A .csv, .jsonl or .parquet file.", show_default=False),
]
TopK = Annotated[int, typer.Option("-k", "--top-k", min=1, help="Classes to name for each row.")]


@command
def predict(
    voice: Voice,
    model: opt.ModelFolder,
    files: Files,
    output: Output,
    top_k: TopK = 1,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    keep: opt.Keep = None,
    engine: opt.Engine = "local",
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
) -> None:
    """Predict the class of each row of any number of files, or of each photo.

    Writes label, probability, distance and novelty; of a model fitted with --reject also which
    rows are rejected, whose label is empty, and their likeliest class. When stopped, the same
    command goes on where it was.
    """
    sources.check_there(*files)
    from protail.data.tables.shards import find_engine

    loaded = Model.load(model, device)
    options = opt.FeatureOptions(features, None, columns, exclude, keep)
    if loaded.network:
        opt.refuse({"--engine": None if engine == "local" else engine}, f"{model} takes photos")
    by = find_engine(engine)
    given = open_sources(loaded, files, options)
    opened = [each for source in given for each in getattr(source, "shards", [source])]
    tell_columns(voice, opened)
    n_rows, thing = sum(source.n_rows for source in opened), "photo" if loaded.network else "row"
    begin = time.perf_counter()
    with in_steps():  # to its very end: what is finished must not be called stopped
        with PredictionJob(output, loaded, opened, options, top_k, overwrite) as job:
            done, without_before = job.n_done, job.n_without
            loaded = job.with_mix_of(loaded, sources.all_rows(loaded, opened, by))
            if done:
                rows = counted(n_rows, thing)
                voice.say(f"Going on after {done:,} of {rows} ({job.parts} holds them).")
            with row_progress(voice, n_rows, done, what=thing) as progress:
                _predict(loaded, opened, job, top_k, progress, by)
            n_without, n_rejected = job.n_without, job.n_rejected
            if n_rows and n_without == n_rows:
                job.n_done = 0  # nothing in its pieces is worth keeping
                sources.leave_out_non_finite(n_rows, 0, voice, opened)
            job.finish()
        seconds = time.perf_counter() - begin
        if n_without:
            what = "Photos that cannot be read" if loaded.network else "Rows with NaN or infinity"
            bad = sources.unreadable_photos(opened)
            listed = f" ({first_few(bad)})" if bad else ""
            voice.say(f"{what}, without a prediction: {n_without:,}{listed}")
        n_predicted = n_rows - done - (n_without - without_before)
        voice.say(f"{counted(n_predicted, thing)} predicted in {in_words(seconds)}: {output}")
        if loaded.rejects:
            voice.say(f"Rejected, as unknown or doubtful: {n_rejected:,} (their label is empty)")
        unreadable = {"unreadable": sources.unreadable_photos(opened)} if loaded.network else {}
        voice.finish(
            {
                "rows": n_rows,
                "rows_from_earlier_start": done,
                "rows_without_prediction": n_without,
                **({"rows_rejected": n_rejected} if loaded.rejects else {}),
                **unreadable,
                "seconds": round(seconds, 3),
                "output": str(output),
            }
        )


def _predict(
    model: Model,
    opened: Sequence[Any],
    job: PredictionJob,
    top_k: int,
    progress: Callable[[int], None],
    engine: Engine | None,
) -> None:
    """Predict what is not done yet."""
    first_of_file = 0
    for source in opened:
        start = max(job.n_done - first_of_file, 0)
        if start < source.n_rows:
            kept = source.kept_rows(start) if source.kept else repeat(())
            for answers in _answers(model, source, start, top_k, engine):
                n_answers = len(answers.answered)
                job.keep(source, start, answers, list(islice(kept, n_answers)))
                start += n_answers
                progress(n_answers)
                check_stop()
        first_of_file += source.n_rows


def _answers(
    model: Model, source: Any, start: int, top_k: int, engine: Engine | None
) -> Iterator[Answers]:
    """Ask about the rows of a file from one on: block by block here, part by part elsewhere."""
    if engine is None:
        # What is written for a row grows with the classes it names.
        rows_at_a_time = max(1, _NAMED_AT_A_TIME // min(top_k, len(model.classes)))
        return (sources.ask(model, block, top_k) for block in source.blocks(start, rows_at_a_time))
    from protail.data.tables import ShardedRows
    from protail.data.tables.rows import Part

    cuts = pairwise([start, *(row for row in source.cuts() if row > start)])
    parts = [Part(source, begin, end) for begin, end in cuts]
    rows = ShardedRows(parts, source.width, source.dtype, engine)
    return rows.map(partial(sources.ask_part, model=model, k=top_k))


class Format:
    """One way to write predictions: ``write_part`` writes columns, ``join`` puts files together.

    Parameters
    ----------
    k : int
        Classes named for each row.
    classes : ndarray
        The labels, by their place.
    kept : dict of str to str
        What comes along out of the files, with the name of its type in pyarrow.
    rejects : bool
        Whether rows may be rejected.
    """

    def __init__(self, k: int, classes: Array, kept: dict[str, str], rejects: bool) -> None:
        self.k, self.kept = k, kept
        self.label_dtype, self._labels = classes.dtype, classes.tolist()
        # What stands in a row: the likeliest class first, without a number.
        self.names = ["file", "row", *kept, "label", *(_REJECTED if rejects else ())]
        self.names += ["probability", "distance", "novelty"]
        for place in range(2, k + 1):
            self.names += [f"label_{place}", f"probability_{place}", f"distance_{place}"]

    def columns(
        self,
        files: Sequence[str],
        first_row: int,
        answers: Answers,
        along: Mapping[str, Sequence[Any]],
    ) -> list[list[Any]]:
        """Give the columns of one block; None where a row has no prediction."""
        answered = answers.answered
        rows = range(first_row, first_row + len(answered))
        columns: list[list[Any]] = [list(files), list(rows)]
        for name, kind in self.kept.items():
            columns.append([_plain(value, kind) for value in along[name]])
        for place in range(self.k):
            named = [self._labels[code] for code in answers.codes[:, place].tolist()]
            numbers = [answers.probabilities[:, place], answers.distances[:, place]]
            numbers += [answers.novelty] if place == 0 else []
            words = [named]
            if place == 0 and answers.rejected is not None:
                rejected = answers.rejected.tolist()
                pairs = zip(named, rejected, strict=True)
                words = [[None if no else name for name, no in pairs], rejected, named]
            columns += [_spread(each, answered) for each in (*words, *map(_numbers, numbers))]
        return columns

    def write_part(self, path: Path, columns: list[list[Any]]) -> None:
        """Write lines of JSON."""
        with path.open("w", encoding="utf-8") as piece:
            for row in zip(*columns, strict=True):
                record = dict(zip(self.names, row, strict=True))
                piece.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Write pieces of text one behind the other."""
        with path.open("wb") as whole:
            whole.write(self.header().encode())
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole, 2**20)

    def header(self) -> str:
        """Give what stands above the rows."""
        return ""


def _plain(value: Any, kind: str) -> Any:
    """Give what comes along as what it is in all files: text where it differs."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return None
    return str(value) if kind == "string" else value


def _numbers(values: Array) -> list[float | None]:
    """Give the shortest numbers that mean these; None where a class without rows is far away."""
    shortest = values.astype(str).tolist() if values.dtype == np.float32 else values.tolist()
    return [number if isfinite(number := float(text)) else None for text in shortest]


def _spread(values: list[Any], answered: NDArray[np.bool_]) -> list[Any]:
    if answered.all():
        return values
    following = iter(values)
    return [next(following) if has_answer else None for has_answer in answered.tolist()]


class _Csv(Format):
    def header(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(self.names)
        return text.getvalue()

    def write_part(self, path: Path, columns: list[list[Any]]) -> None:
        with path.open("w", newline="", encoding="utf-8") as piece:
            csv.writer(piece, lineterminator="\n").writerows(zip(*columns, strict=True))


class _Parquet(Format):
    def write_part(self, path: Path, columns: list[list[Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = zip(columns, self._schema, strict=True)
        arrays = [pa.array(column, type=field.type) for column, field in kinds]
        pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(path, self._schema) as whole:
            for part in parts:
                whole.write_table(pq.read_table(part))

    @property
    def _schema(self) -> Any:
        import pyarrow as pa

        kinds = {"file": pa.string(), "row": pa.int64()}
        kinds |= {name: getattr(pa, kind)() for name, kind in self.kept.items()}
        text = self.label_dtype.kind in "UO"
        label = pa.string() if text else pa.from_numpy_dtype(self.label_dtype)
        usual = dict.fromkeys(self.names, pa.float64())
        usual |= {name: label for name in self.names if name.startswith(("label", "likeliest"))}
        usual |= {"rejected": pa.bool_()} if "rejected" in usual else {}
        return pa.schema(list((usual | kinds).items()))


_FORMATS: dict[str, type[Format]] = {".csv": _Csv, ".jsonl": Format, ".parquet": _Parquet}


def find_format(
    output: Path, k: int, classes: Array, kept: Sequence[Mapping[str, str]], rejects: bool
) -> Format:
    """Choose how to write by the suffix of a file.

    Parameters
    ----------
    output : Path
        The file to write.
    k : int
        Classes named for each row.
    classes : ndarray
        The labels, by their place.
    kept : sequence of mapping of str to str
        What comes along out of each file, with the name of its type in pyarrow.
    rejects : bool
        Whether rows may be rejected.

    Returns
    -------
    Format
        Who writes it.
    """
    suffix = output.suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(unknown_name("suffix of --output", suffix, _FORMATS))
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{not_installed(str(output), 'pyarrow', 'tables')} or choose .csv or .jsonl."
            ) from error
    format = _FORMATS[suffix](k, classes, _common(kept), rejects)
    if taken := [name for name, n in Counter(format.names).items() if n > 1]:
        raise ValueError(
            f"--keep: {taken[0]!r} has a meaning of its own in predictions; expected another name. "
            "Rename it in the file, or do not keep it."
        )
    return format


def _common(kept: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Give the type of what comes along: text where files disagree."""
    found = dict(kept[0])
    for name, kind in (pair for each in kept[1:] for pair in each.items()):
        found[name] = kind if found[name] == kind else "string"
    return found


def _check_kept(opened: Sequence[Any]) -> None:
    """Raise where a file does not keep the columns of the first one."""
    first = opened[0]
    for file in opened[1:]:
        if differing := sorted(set(file.kept) ^ set(first.kept)):
            raise ValueError(
                f"--keep: only one of {file.path} and {first.path} has {first_few(differing)}; "
                "expected the same kept columns in all files. Name columns that all of them have."
            )


class _Part(NamedTuple):
    path: Path
    start: int
    stop: int
    n_without: int
    n_rejected: int
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
    opened : sequence of FeatureFile or Photos
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
        opened: Sequence[Any],
        options: opt.FeatureOptions,
        top_k: int,
        overwrite: bool,
    ) -> None:
        k = min(top_k, len(model.classes))
        _check_kept(opened)
        self._format: Format = find_format(
            output, k, model.classes, [source.kept for source in opened], model.rejects
        )
        check_free(output, overwrite=overwrite)
        for source in opened:
            if output.exists() and output.samefile(source.path):
                raise ValueError(
                    f"--output {output} is also what is to be predicted; expected another file. "
                    "Choose another name."
                )
        self._output = output
        self._overwrite = overwrite
        self.parts = output.with_name(output.name + ".parts")
        self._description = _describe(model, opened, options, k)
        self._stack = ExitStack()
        self._has_begun = False
        self._prior: Any = None
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

    def keep(self, source: Any, first_row: int, answers: Answers, along: Along) -> None:
        """Keep the predictions of the next block of rows.

        Parameters
        ----------
        source : FeatureFile or Photos
            What the rows are from.
        first_row : int
            Their first row in that file.
        answers : Answers
            What the model says.
        along : sequence of tuple
            What the file has beside the features of each row, as `FeatureFile.kept_rows` gives it.
        """
        n_rows = len(answers.answered)
        stop = self.n_done + n_rows
        files = [str(source.path)] * n_rows
        if isinstance(source, Photos):
            files = [str(file) for file in source.files[first_row : first_row + n_rows]]
        try:
            written = self.parts / _NEXT
            with new_file(written, overwrite=True) as temporary:
                kept = dict(zip(source.kept, zip(*along, strict=True), strict=True))
                columns = self._format.columns(files, first_row, answers, kept)
                self._format.write_part(temporary, columns)
            n_without = int((~answers.answered).sum())
            n_rejected = 0 if answers.rejected is None else int(answers.rejected.sum())
            counts = f"{n_without}-{n_rejected}-{written.stat().st_size}"
            written.rename(self.parts / f"{self.n_done:015d}-{stop:015d}-{counts}.part")
        except OSError as error:
            reason = OSError(error.errno, os.strerror(error.errno or 0))
            raise explained(reason, self._output) from error
        self.n_done = stop

    @property
    def n_without(self) -> int:
        """How many rows have no prediction."""
        return sum(part.n_without for part in self._whole_parts())

    @property
    def n_rejected(self) -> int:
        """How many rows are rejected."""
        return sum(part.n_rejected for part in self._whole_parts())

    def with_mix_of(self, model: Model, rows: Any) -> Model:
        """Let a model estimate the mix of classes, and a later start of this job expect the same.

        Parameters
        ----------
        model, rows : Model, ShardedRows
            As for `sources.with_mix_of`.

        Returns
        -------
        Model
            What that gives.
        """
        found = sources.with_mix_of(model, rows, self._prior)
        if found is not model:
            self._prior = getattr(found.head, "prior", None)
            self._write_description()
        return found

    def finish(self) -> None:
        """Put the pieces together."""
        with new_file(self._output, overwrite=self._overwrite) as temporary:
            self._format.join([part.path for part in self._whole_parts()], temporary)

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
        prior = found.pop("prior", None) if found else None
        if found == self._description:
            self._prior = prior
        else:
            # Pieces without a whole description are of a job that never began.
            if found is not None and not self._overwrite:
                raise ValueError(
                    f"{self.parts} holds predictions of another model, other files or other "
                    "settings, or of an earlier version; expected those of this command. Give "
                    "--overwrite to start again, or another --output."
                )
            for piece in self.parts.glob("*.part"):
                piece.unlink()
        self._write_description()
        parts = self._whole_parts()
        self.n_done = parts[-1].stop if parts else 0
        self._has_begun = True

    def _write_description(self) -> None:
        described = {**self._description, "prior": self._prior}
        with new_file(self.parts / _JOB, overwrite=True) as temporary:
            temporary.write_text(json.dumps(described, indent=2), encoding="utf-8")

    def _found_job(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.parts / _JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "format" in found else None

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
    model: Model, opened: Sequence[Any], options: opt.FeatureOptions, k: int
) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "model": model.checksum,
        "read": {name: given for name, given in vars(options).items() if given},
        "files": [_known_by(source) for source in opened],
        "top_k": k,
        **({"rejects": True} if model.rejects else {}),
    }


def _known_by(source: Any) -> dict[str, Any]:
    """Give what a file, or a folder of photos, is recognised by."""
    if isinstance(source, Photos):
        known = []
        for file in source.files:
            # What a list names may not be there: it cannot be read, and is told.
            stat = file.stat() if file.exists() else None
            known.append((str(file), stat and stat.st_size, stat and stat.st_mtime_ns))
        digest = hashlib.sha256(json.dumps(known).encode("utf-8", "surrogatepass")).hexdigest()
        return {"path": str(source.path), "photos": len(known), "sha256": digest}
    stat = source.path.stat()
    return {"path": str(source.path), "bytes": stat.st_size, "changed": stat.st_mtime_ns}


app = make_app(predict, "protail predict model new.npz -o predictions.csv --top-k 3")
