"""Several feature files as one, files behind addresses, and who does the work on their parts."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted, first_few, imported, unknown_name
from protail.data.tables.feature_file import (
    ENDINGS,
    FaultError,
    FeatureFile,
    FeatureFileError,
    reading,
)
from protail.data.tables.rows import IN_MEMORY_BYTES, Engine, Part, ShardedRows

# A drive of Windows has one letter. pathlib makes one slash of two.
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")


class Address(PurePosixPath):
    """A place that is no local path, as far as reading it goes like a `Path`.

    pyarrow opens it, with credentials, region and endpoint out of the environment
    (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``
    and so on).

    Examples
    --------
    >>> from protail.data.tables import Address, as_place
    >>> place = as_place("s3://bucket/rows/a.parquet")
    >>> isinstance(place, Address), str(place), place.suffix
    (True, 's3://bucket/rows/a.parquet', '.parquet')
    """

    def __str__(self) -> str:
        slashes = ":///" if self.parts[0] == "file:" else "://"
        return super().__str__().replace(":/", slashes, 1)

    @property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        scheme, *inside = self.parts
        host = [] if scheme == "file:" else inside[:1]
        files, root = _file_system(f"{scheme}//{'/'.join(host) or '/'}")
        return files, "/".join([root.rstrip("/"), *inside[len(host) :]])

    def open(self) -> Any:
        """Open it for reading anywhere in it."""
        files, inside = self._opened
        return files.open_input_file(inside)

    def stat(self) -> Any:
        """Tell size and time of the last change."""
        found = self._found
        return SimpleNamespace(
            st_size=found.size, st_mtime_ns=found.mtime_ns, st_ino=str(self), st_dev=None
        )

    @property
    def _found(self) -> Any:
        files, inside = self._opened
        return files.get_file_info(inside)

    def exists(self) -> bool:
        """Whether there is something."""
        return bool(self._found.type.name != "NotFound")

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self._found.type.name == "Directory")

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._found.type.name == "File")

    def iterdir(self) -> Iterator[Path]:
        """List what is in the folder."""
        from pyarrow.fs import FileSelector

        files, inside = self._opened
        for found in files.get_file_info(FileSelector(inside)):
            yield cast(Path, self / found.base_name)


@cache
def _file_system(root: str) -> tuple[Any, str]:
    found: tuple[Any, str]
    found = imported("pyarrow.fs", f"reading {root}", "pyarrow", "tables").FileSystem.from_uri(root)
    return found


@cache
def _folder_of_copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="protail-")


@cache
def here(place: Path) -> Path:
    """Give a file that can be mapped: of an address a copy, which goes when the process ends."""
    if not isinstance(place, Address):
        return place
    files, inside = place._opened
    if files.type_name == "local":
        return Path(inside)
    folder = tempfile.mkdtemp(dir=_folder_of_copies().name)
    copy = Path(folder) / place.name
    with files.open_input_stream(inside) as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return copy


def as_place(path: str | os.PathLike[str]) -> Path:
    """Give the `Path`, or the `Address` in its place, of what was typed.

    Parameters
    ----------
    path : path-like
        A path, or an address as in ``"s3://bucket/rows"``.

    Returns
    -------
    Path
        What can be read; an `Address` has what reading needs of a path.

    Examples
    --------
    >>> from protail.data.tables import as_place
    >>> str(as_place("gs://bucket/rows.npz"))
    'gs://bucket/rows.npz'
    """
    text = os.fspath(path)
    return cast(Path, Address(text)) if _SCHEME.match(text) else Path(text)


def find_files(path: Any) -> tuple[list[Path], Path]:
    """List the files that a path, a folder, a pattern or a list means, and say where they are."""
    if not isinstance(path, str | os.PathLike):
        files = [file for each in path for file in find_files(each)[0]]
        if not files:
            raise FeatureFileError("no file was given; expected at least one. Name one.")
        return files, files[0] if len(files) == 1 else files[0].parent
    place = as_place(path)
    with reading(place):
        if has_magic(str(place)) and not place.exists():
            return _fitting(place), place
        return (_inside(place) if place.is_dir() else [place]), place


def _fitting(place: Path) -> list[Path]:
    """List the files that a pattern fits."""
    found: list[Path]
    if isinstance(place, Address):
        found = [file for file in place.parent.iterdir() if fnmatchcase(file.name, place.name)]
    else:
        found = [Path(file) for file in glob(str(place), recursive=True)]
    if not found:
        raise FaultError(
            "there is no file that this pattern fits; expected some feature files. Check the path."
        )
    return sorted(found)


def shards_in(folder: Path) -> list[Path]:
    """List the feature files in a folder, in the order of their names.

    Parameters
    ----------
    folder : Path
        The folder; those in it are not looked at.

    Returns
    -------
    list of Path
        The files; none where it holds something else.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.tables.shards import shards_in
    >>> shards_in(Path(tempfile.mkdtemp()))
    []
    """
    found = (file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)
    return sorted(file for file in found if not file.name.startswith((".", "_")))


def _inside(folder: Path) -> list[Path]:
    files = shards_in(folder)
    kinds = sorted({file.suffix.lower() for file in files})
    if not files:
        raise FaultError(
            f"it is a folder without feature files; expected files that end in "
            f"{', '.join(ENDINGS)}, or one of them. Name a file."
        )
    if len(kinds) > 1:
        raise FaultError(
            f"it holds files that end in {' and '.join(kinds)}; expected one kind, of which every "
            f"file has some of the rows. Name them by a pattern, as in '{folder}/*{kinds[0]}'."
        )
    return files


class ShardedFile(FeatureFile):
    """Feature files whose rows stand one below the other.

    Parameters
    ----------
    path : Path
        The folder they are in, or the pattern they fit.
    shards : sequence of FeatureFile
        The files in order; all of the same columns.
    engine : callable, optional
        Who does the work on parts of the rows, as `ShardedRows` has it. Without one few rows are
        read into memory.

    Attributes
    ----------
    shards : list of FeatureFile
        The files.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from protail.data.tables import ShardedFile, open_features
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in range(3):
    ...     np.savez(folder / f"{number}.npz", X=np.eye(4), y=[number] * 4)
    >>> file = open_features(folder)
    >>> isinstance(file, ShardedFile), file.n_rows, len(file.shards)
    (True, 12, 3)
    >>> file.labels()[3:6]
    array([0, 1, 1])
    """

    def __init__(
        self, path: Path, shards: Sequence[FeatureFile], engine: Engine | None = None
    ) -> None:
        super().__init__(path)
        self.shards, self._engine = list(shards), engine
        first = self.shards[0]
        for file in self.shards[1:]:
            _check_alike(file, first)
        self.width, self.names, self.columns = first.width, first.names, first.columns
        self.dtype = np.result_type(*(file.dtype for file in self.shards))
        self.ignored, self.kept = first.ignored, first.kept
        if all(file.has_labels for file in self.shards):
            self._read_labels = self._labels_of_all

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """How many rows there are in all files."""
        return sum(file.n_rows for file in self.shards)

    def _labels_of_all(self) -> NDArray[Any]:
        labels = [file.labels() for file in self.shards]
        paths = {each.dtype.kind: file.path for each, file in zip(labels, self.shards, strict=True)}
        if len(paths) > 1:
            raise FeatureFileError(
                f"{paths['i']}: its labels are numbers, and those of {paths['U']} are text; "
                "expected one kind in all files. Write them again, or name a file with the labels "
                "of all rows by labels_file= / --labels-file."
            )
        return np.concatenate(labels)

    def rows(self) -> NDArray[Any] | ShardedRows:
        """Give all rows: in memory where they are few and read here."""
        parts = [
            Part(file, begin, end) for file in self.shards for begin, end in pairwise(file.cuts())
        ]
        rows = ShardedRows(parts, self.width, self.dtype, self._engine or map)
        is_small = len(rows) * self.width * self.dtype.itemsize < IN_MEMORY_BYTES
        return np.asarray(rows) if is_small and self._engine is None else rows

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        for file, first in self._from(start):
            for block in file.blocks(first, size):
                yield block.astype(self.dtype, copy=False)

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        for file, first in self._from(start):
            yield from file.kept_rows(first)

    def _from(self, start: int) -> Iterator[tuple[FeatureFile, int]]:
        """Give the files from a row on, and the first row of each."""
        for file in self.shards:
            if start < file.n_rows:
                yield file, max(start, 0)
            start -= file.n_rows


def _check_alike(file: FeatureFile, first: FeatureFile) -> None:
    """Raise unless the rows of a file can stand below those of the first one."""
    if file.names != first.names or list(file.kept) != list(first.kept):
        names, others = file.names or [], first.names or []
        differing = [name for name in (*names, *others) if (name in names) != (name in others)]
        raise FeatureFileError(
            f"{file.path}: its columns are not those of {first.path}, in the same order (found: "
            f"{first_few(differing or names)}); expected the same ones. Name them by columns= / "
            "--columns."
        )
    if file.width != first.width:
        raise FeatureFileError(
            f"{file.path}: its rows have {counted(file.width, 'number')}, and those of "
            f"{first.path} {first.width:,}; expected as many in every file. Leave it out, or write "
            "it again."
        )


def find_engine(name: str | Engine) -> Engine | None:
    """Give what works as `map` does, by its name.

    Parameters
    ----------
    name : {"local", "ray"} or callable
        "local" is this process, "ray" the workers of Ray.

    Returns
    -------
    callable or None
        What works as the builtin `map` does; None for "local".

    Examples
    --------
    >>> from protail.data.tables.shards import find_engine
    >>> find_engine(map) is map
    True
    """
    if callable(name):
        return name
    if name not in ("local", "ray"):
        raise ValueError(unknown_name("engine", name, ("local", "ray")))
    return map_by_ray() if name == "ray" else None


def map_by_ray() -> Engine:
    """Give a `map` whose work is done by the workers of Ray, in the order of what is given.

    Ray is started here where none is running; ``RAY_ADDRESS`` names a cluster. It reports nothing
    to its makers, unless ``RAY_USAGE_STATS_ENABLED`` says so.

    Returns
    -------
    callable
        What works as the builtin `map` does.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = imported("ray", "the engine ray", "ray", "ray")
    data = imported("ray.data", "the engine ray", "ray[data]", "ray")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def engine(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        settings = data.DataContext.get_current()
        settings.enable_progress_bars = False
        settings.execution_options.preserve_order = True
        # Into the object store one by one: all at once would be one large message to each worker.
        given, folder = [ray.put(item) for item in items], os.getcwd()

        def worked(numbers: dict[str, Any]) -> dict[str, Any]:
            with suppress(OSError):  # paths mean what they mean here
                os.chdir(folder)
            found = np.empty(len(numbers["item"]), dtype=object)
            for place, number in enumerate(numbers["item"]):
                try:
                    found[place] = work(ray.get(given[number]))
                except Exception as error:
                    found[place] = error
            return {"found": found}

        numbers = [{"item": number} for number in range(len(given))]
        parts = data.from_items(numbers, override_num_blocks=len(given))
        for row in parts.map_batches(worked, batch_size=1).iter_rows():
            if isinstance(row["found"], Exception):
                raise row["found"]
            yield row["found"]

    return engine
