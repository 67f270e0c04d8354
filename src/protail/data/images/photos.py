"""Photos as people have them: a folder for each class, or a csv file of path and label.

Nothing here decodes a photo: whoever computes their features finds those that cannot be read.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protail._files import regular
from protail.data.images.files import IMAGE_SUFFIXES
from protail.data.images.image_set import DataSetError, ImageSet, reading

_PATHS = ("path", "file", "filename", "file_name", "photo", "image")
_LABELS = ("label", "class", "species", "category", "y")
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_LISTS = (".csv", ".tsv")
_DIGEST = 16
# Beside photos, files that systems leave and nobody misses.
_LEFT_BY_SYSTEMS = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True, eq=False)
class FoundPhotos:
    """Photos with their labels, and what else lay there.

    Attributes
    ----------
    place : Path
        The folder or csv file.
    images : ImageSet
        The photos; classes in alphabetical order, each with at least one.
    empty : tuple of str
        Class folders without a photo.
    ignored : tuple of Path
        Files that are no photos by their names, or that lie outside of the class folders.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.images import find_photos
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("ant/1.jpg", "ant/2.jpg", "bee/1.jpg", "bee/notes.txt"):
    ...     (root / name).parent.mkdir(exist_ok=True)
    ...     _ = (root / name).write_bytes(b"")
    >>> found = find_photos(root)
    >>> found.images, len(found.ignored)
    (ImageSet(3 images of 2 classes, in files), 1)
    """

    place: Path
    images: ImageSet
    empty: tuple[str, ...] = ()
    ignored: tuple[Path, ...] = ()

    @property
    def names(self) -> NDArray[np.str_]:
        """The class name of each photo."""
        return np.array(self.images.classes)[self.images.labels]


def find_photos(place: str | os.PathLike[str]) -> FoundPhotos:
    """Find photos and their labels.

    Parameters
    ----------
    place : path-like
        A folder with a folder of photos for each class (at any depth below it), or a csv file with
        the columns ``path`` and ``label``, in which paths start from the file's own folder.

    Returns
    -------
    FoundPhotos
        In the order of their classes and names; those of a list in its order.

    Examples
    --------
    >>> from protail.data.images import find_photos
    >>> try:
    ...     find_photos("no-such-folder")
    ... except ValueError as error:
    ...     print(error)
    no-such-folder: there is no such folder or file; expected photos. Check the path.
    """
    place = Path(place)
    if not place.exists():
        raise DataSetError(
            f"{place}: there is no such folder or file; expected photos. Check the path."
        )
    if not place.is_dir():
        return _listed(place)
    entries = sorted(entry for entry in place.iterdir() if not _is_hidden(entry))
    folders = {entry.name: list(_files_below(entry)) for entry in entries if entry.is_dir()}
    beside = [entry for entry in entries if not entry.is_dir()]
    photos = {name: [file for file in files if is_photo(file)] for name, files in folders.items()}
    ignored = [file for files in folders.values() for file in files if not is_photo(file)]
    if not any(photos.values()):
        what = "photos, but no folders of classes" if any(map(is_photo, beside)) else "no photo"
        raise DataSetError(
            f"{place}: it holds {what}; expected a folder of photos for each class, such as "
            f"{place / 'ant' / '1.jpg'} (files that end in {', '.join(IMAGE_SUFFIXES[:6])}, .tif). "
            "Check the path, or sort them."
        )
    names = [name for name, files in photos.items() if files]
    return FoundPhotos(
        place,
        ImageSet(
            np.repeat(np.arange(len(names)), [len(photos[name]) for name in names]),
            tuple(names),
            files=tuple(str(file.relative_to(place)) for name in names for file in photos[name]),
            folder=place,
        ),
        tuple(name for name, files in photos.items() if not files),
        (*ignored, *beside),
    )


def photo_parts(place: str | os.PathLike[str]) -> tuple[Path, Path | None]:
    """Give where photos to learn from are and, where such a folder lies beside them, to test on.

    Parameters
    ----------
    place : path-like
        What was given: with the folders ``train`` and ``test`` (or ``val``) in it, or without.

    Returns
    -------
    train, test : Path, Path or None
        Two folders; or what was given, and None.

    Examples
    --------
    >>> from protail.data.images import photo_parts
    >>> photo_parts("photos")[1] is None
    True
    """
    place = Path(place)
    if (place / "train").is_dir():
        for name in _TEST_FOLDERS:
            if (place / name).is_dir():
                return place / "train", place / name
    return place, None


def is_photo(path: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a photo.

    Examples
    --------
    >>> from protail.data.images import is_photo
    >>> is_photo("1.JPG"), is_photo("1.txt")
    (True, False)
    """
    return os.fspath(path).lower().endswith(IMAGE_SUFFIXES)


def is_photo_list(place: str | os.PathLike[str]) -> bool:
    r"""Whether a file is a csv of paths of photos and not of feature rows.

    Parameters
    ----------
    place : path-like
        A file. Looked at are its ending and its first lines: photos are named in a column ``path``
        beside a column ``label``, and no other column holds numbers.

    Returns
    -------
    bool
        Whether `find_photos` takes it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.images import is_photo_list
    >>> file = Path(tempfile.mkdtemp()) / "photos.csv"
    >>> _ = file.write_text("path,label\nants/1.jpg,ant\n")
    >>> is_photo_list(file)
    True
    """
    place = Path(place)
    if place.suffix.lower() not in _LISTS or not place.is_file():
        return False
    try:
        first, *rest = islice(_rows(place), 2)
    except (ValueError, OSError, csv.Error):
        return False
    paths, labels = _columns(first)
    if paths is None:
        return len(first) == 2 and is_photo(first[0])  # without a heading
    others = (cell for row in rest for at, cell in enumerate(row) if at not in (paths, labels))
    named = not rest or is_photo(rest[0][paths] if paths < len(rest[0]) else "")
    return labels is not None and named and not any(map(_is_number, others))


def content_digests(paths: Sequence[Path]) -> list[bytes | None]:
    """Digest the bytes of files, several at once; None for those that cannot be read.

    Parameters
    ----------
    paths : sequence of Path
        Files.

    Returns
    -------
    list of bytes or None
        16 bytes each: files with the same content have the same.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.data.images import content_digests
    >>> content_digests([Path("no-such-file")])
    [None]
    """

    def digest(path: Path) -> bytes | None:
        if not path.is_file():  # a pipe would never end
            return None
        try:
            with path.open("rb") as file:
                found = blake2b(digest_size=_DIGEST)
                while block := file.read(2**20):
                    found.update(block)
                return found.digest()
        except OSError:
            return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(digest, paths))


def _listed(place: Path) -> FoundPhotos:
    """Read a csv file of paths and labels."""
    if place.suffix.lower() not in _LISTS:
        raise DataSetError(
            f"{place}: it is a file; expected a folder with a folder of photos for each class, or "
            "a csv file with the columns path and label. Check the path."
        )
    with reading(place, "a csv file with the columns path and label, in UTF-8. Save it again."):
        lines = [(number, row) for number, row in enumerate(_rows(place), 1) if any(row)]
    paths, labels = _columns(lines[0][1]) if lines else (None, None)
    if paths is not None and labels is not None:
        lines = lines[1:]
    elif lines and len(lines[0][1]) == 2 and is_photo(lines[0][1][0]):
        paths, labels = 0, 1
    if not lines or paths is None or labels is None:
        raise DataSetError(
            f"{place}: it lists no photos; expected a csv file whose first line is path,label. "
            "Name its columns so."
        )
    files, names = [], []
    for number, row in lines:
        if len(row) <= max(paths, labels) or not (row[paths].strip() and row[labels].strip()):
            raise DataSetError(
                f"{place}, line {number}: the path or the label is missing; expected both. Correct "
                "that line."
            )
        files.append(row[paths].strip())
        names.append(row[labels].strip())
    classes, codes = np.unique(names, return_inverse=True)
    images = ImageSet(codes, tuple(classes.tolist()), files=tuple(files), folder=place.parent)
    return FoundPhotos(place, images)


def _rows(place: Path) -> Iterator[list[str]]:
    with regular(place).open(newline="", encoding="utf-8-sig") as file:
        yield from csv.reader(file, delimiter="\t" if place.suffix.lower() == ".tsv" else ",")


def _columns(heading: Iterable[str]) -> tuple[int | None, int | None]:
    """Give the places of the columns of paths and of labels, where a heading names them."""
    names = [name.strip().lower() for name in heading]
    found = [
        next((names.index(n) for n in known if n in names), None) for known in (_PATHS, _LABELS)
    ]
    return found[0], found[1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _files_below(folder: Path) -> Iterator[Path]:
    """List the files at any depth below a folder, in the order of their names."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(Path(name))]
        found += [Path(place, name) for name in names if not _is_hidden(Path(name))]
    return iter(sorted(file for file in found if file.is_file()))


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "__MACOSX")) or path.name.lower() in _LEFT_BY_SYSTEMS
