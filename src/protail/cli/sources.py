"""Where rows come from: models and networks, the feature files and photos they are given."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted, first_few
from protail.cli.options import FeatureOptions
from protail.cli.progress import row_progress

if TYPE_CHECKING:
    from protail import Evaluation, Network, PrototypeClassifier
    from protail.cli.command import Voice
    from protail.data.tables import FeatureFile
    from protail.data.tables.rows import Engine

Array = NDArray[Any]

# Files looked at to find an image among them.
_LOOKED_AT = 1000
# Columns named in one line.
_SHOWN = 12
# Photos whose features are computed together.
_PHOTOS_AT_A_TIME = 64
# Rows, and photos, that a mix of classes is estimated from; the probabilities held for it.
_ESTIMATED_FROM, _PHOTOS_ESTIMATED_FROM, _PROBABILITIES = 8192, 512, 1 << 25
# As `protail.data.tables.as_place` knows them; nothing large is imported for it.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def check_there(*places: Path | None, expected: str = "a feature file") -> None:
    """Raise where a file is missing, before anything large is imported to read it."""
    kind = "folder" if expected.endswith("folder") else "file"
    for place in places:
        if place is not None and not os.path.lexists(place) and not _is_pattern(place):
            raise ValueError(
                f"{place}: there is no such {kind}; expected {expected}. Check the path."
            )


def _is_pattern(place: Path) -> bool:
    """Whether this is a pattern or an address; what is there is told by whoever opens it."""
    return bool(_ADDRESS.match(str(place))) or has_magic(str(place))


def is_of_photos(place: Path) -> bool:
    """Whether what was given is a folder, a photo or a list, and not a file of features."""
    from protail.data.images import is_photo, is_photo_list
    from protail.data.tables.shards import shards_in

    if place.is_dir():
        files = shards_in(place)
        # A table beside folders of photos may be about the photos; other features decide.
        tables = all(file.suffix.lower() in (".csv", ".tsv") for file in files)
        return not files or (tables and _holds_images(place))
    if not place.exists() and _is_pattern(place):
        return False
    is_table = place.suffix.lower() in (".csv", ".tsv")
    return is_photo(place) or (is_table and is_photo_list(place))


@dataclass(frozen=True)
class Model:
    """What predicts: a loaded classifier or network, as the commands use it.

    Attributes
    ----------
    folder : Path
        Where it came from.
    head : PrototypeClassifier or Network
        What answers on feature rows, which are plain arrays.
    names : list of str or None
        Columns in the order the head takes them, where it knows them.
    checksum : str
        What tells it from every other model.
    about : str or None
        How it was made.
    network : Network or None
        Makes feature rows of photos; None where feature rows are given.
    """

    folder: Path
    head: PrototypeClassifier | Network
    names: list[str] | None
    checksum: str = ""
    about: str | None = None
    network: Network | None = None

    @classmethod
    def load(cls, folder: Path, device: str = "auto") -> Model:
        """Load the folder of a saved classifier, of a network or of a finished run."""
        check_there(folder, expected="a model's folder")
        from protail._files import read_folder

        return read_folder(folder, partial(cls._read, device=device))

    @classmethod
    def _read(cls, folder: Path, device: str) -> Model:
        from protail.estimator import PrototypeClassifier
        from protail.experiments import is_run
        from protail.models.storage import model_format
        from protail.network import FORMAT, Network

        check_model_folder(folder)
        if is_run(folder):
            network = Network.from_run(folder, device=device)
            with (folder / "weights.safetensors").open("rb") as weights:
                checksum = hashlib.file_digest(weights, "sha256").hexdigest()
            return cls._of_network(folder, network, checksum)
        is_network = model_format(folder) == FORMAT
        loaded: Any = (Network if is_network else PrototypeClassifier).load(folder, device=device)
        document = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if is_network:
            return cls._of_network(folder, loaded, document["checksum"])
        # Commands hand over arrays with the columns already in order, which carry no names.
        names = None
        if hasattr(loaded, "feature_names_in_"):
            names = [str(name) for name in loaded.feature_names_in_]
            del loaded.feature_names_in_
        return cls(folder, loaded, names, document["checksum"], document["about"])

    @classmethod
    def _of_network(cls, folder: Path, network: Network, checksum: str) -> Model:
        from protail.network import Network

        head: Any = network.head
        if not hasattr(head, "novelty_score"):
            head = Network(
                head,
                network.classes_,
                class_counts=network.class_counts_,
                temperature=network.temperature,
                device=network.device,
            )
        with_photos = None if network.backbone is None else network
        return cls(folder, head, None, checksum, network.about, with_photos)

    @property
    def classes(self) -> Array:
        """The class labels."""
        classes: Array = self.head.classes_
        return classes

    @property
    def counts(self) -> Array:
        """The training rows of each class."""
        counts = self.head.class_counts_
        if counts is None:
            raise ValueError(
                f"{self.folder} does not say how many training examples each class has; expected "
                "their counts, which groups are made by. Save it with class_counts."
            )
        return np.asarray(counts)

    @property
    def rejects(self) -> bool:
        """Whether rows may get no label: the model was fitted with ``reject``."""
        return getattr(self.head, "choices_", {}).get("novelty_limit") is not None

    @property
    def n_features(self) -> int:
        """How many numbers a feature row has."""
        head: Any = self.head
        return int(head.n_features_in_ if hasattr(head, "n_features_in_") else head.head.n_features)

    def save(self, folder: Path, *, overwrite: bool = False, **options: Any) -> None:
        """Save a classifier with the names of its columns and ``options``, or a network."""
        from protail import Network

        head: Any = self.head
        if self.network is None and not isinstance(head, Network):
            named = copy.copy(head)
            if self.names is not None:
                named.feature_names_in_ = np.array(self.names, dtype=object)
            named.save(folder, overwrite=overwrite, **options)
            return
        Network(
            head.head if isinstance(head, Network) else head,
            self.classes,
            backbone=getattr(self.network, "backbone", None),
            inputs=getattr(self.network, "inputs", None),
            class_counts=self.counts,
            temperature=head.temperature if isinstance(head, Network) else 1.0,
            about=options.get("about"),
        ).save(folder, overwrite=overwrite)


def check_model_folder(folder: Path) -> None:
    """Raise where a folder is known to be something else than a model or a run.

    Parameters
    ----------
    folder : Path
        What was given for a model. One with a flaw, or what is nothing known, is left to whoever
        reads it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.cli.sources import check_model_folder
    >>> check_model_folder(Path("no-such-folder"))
    """
    from protail.estimator import is_model
    from protail.experiments import is_run

    try:
        known = is_model(folder) or is_run(folder)
        found = None if known else _what_it_is(folder)
    except OSError:  # told by whoever reads it
        return
    if found is not None:
        what, advice = found
        raise ValueError(
            f"{folder} is {what}; expected a model, the folder that protail fit or train writes. "
            f"{advice}"
        )


def _what_it_is(folder: Path) -> tuple[str, str] | None:
    """Say what is there and what to do with it; None where it is nothing known."""
    from protail.estimator import is_model
    from protail.experiments import is_run
    from protail.models.backbones import INDEX

    if folder.is_file():
        return "a file", "The model comes first, and files behind it."
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    for kind, words in ((is_run, "runs of protail train"), (is_model, "models")):
        if found := [entry for entry in inside if kind(entry)]:
            return f"a folder with {words}", f"Name one of them, as in {found[0]}."
    if (folder / INDEX).is_file():
        return (
            "a backbone that protail weights has stored",
            f"Train from it: protail train RECIPE --set representation.weights={folder} ...",
        )
    if _holds_images(folder):
        return (
            "a folder of images",
            f"Make a model of it: protail fit {folder} -o MODEL.",
        )
    return None


def _holds_images(folder: Path) -> bool:
    from protail.data.images import IMAGE_SUFFIXES
    from protail.estimator import is_model

    # In folders of classes, also those in train and test.
    files = chain.from_iterable(folder.glob(each) for each in ("*/*", "*/*/*"))
    images = (f for f in islice(files, _LOOKED_AT) if f.suffix.lower() in IMAGE_SUFFIXES)
    return any(not is_model(image.parent) for image in images)  # fit writes a picture beside it


class Photos:
    """Photos as a source of rows: their features, and NaN for photos that cannot be read.

    Parameters
    ----------
    network : Network
        Makes the features.
    path : Path
        A photo; a folder: its photos in the order of their names, those of folders in it too; or a
        csv file of paths and labels.

    Attributes
    ----------
    unreadable : list of str
        Photos that could not be read so far.
    """

    names = columns = None
    ignored: tuple[str, ...] = ()

    def __init__(self, network: Network, path: Path) -> None:
        from protail.data.images import (
            IMAGE_SUFFIXES,
            DataSetError,
            find_photos,
            is_photo,
            is_photo_list,
        )

        self._network, self.path = network, path
        self.kept: dict[str, str] = {}
        self.unreadable: list[str] = []
        self._labels: Array | None = None
        if is_photo_list(path):
            listed = find_photos(path)
            self.files, self._labels = list(listed.images.paths), listed.names
            return
        found = path.rglob("[!.]*") if path.is_dir() else [path]  # what macOS leaves is hidden
        self.files = sorted(file for file in found if is_photo(file) and file.is_file())
        if not self.files:
            what = "holds no photo" if path.is_dir() else "is no photo"
            raise DataSetError(
                f"{path}: it {what}; expected files that end in {', '.join(IMAGE_SUFFIXES)}, for a "
                "network that takes photos. Check the path."
            )

    @property
    def n_rows(self) -> int:
        """How many photos there are."""
        return len(self.files)

    def labels(self) -> Array:
        """Give the name of the class folder that each photo is in, or what a list says."""
        if self._labels is not None:
            return self._labels
        parts = (file.relative_to(self.path).parts for file in self.files)
        names = [each[0] if len(each) > 1 else self.path.absolute().name for each in parts]
        if not self.path.is_dir():
            names = [self.path.absolute().parent.name]
        return np.array(names)

    def blocks(self, start: int = 0, rows_at_a_time: int = _PHOTOS_AT_A_TIME) -> Iterator[Array]:
        """Give features, some photos at a time."""
        from protail.training import photo_features

        network: Any = self._network
        files = self.files[start:]
        found = photo_features(network.backbone, network.inputs, files, device=network.device)
        step = min(rows_at_a_time, _PHOTOS_AT_A_TIME)
        waiting: list[Array] = []
        for _, rows, problems in found:
            self.unreadable += [str(files[i]) for i in problems]
            waiting.append(rows)
            if sum(map(len, waiting)) >= step:
                yield from _joined(waiting, step)
                waiting = []
        yield from _joined(waiting, step)


def _joined(blocks: list[Array], most: int) -> Iterator[Array]:
    """Put small blocks together, none longer than ``most``."""
    if blocks:
        rows = np.concatenate(blocks)
        for begin in range(0, len(rows), most):
            yield rows[begin : begin + most]


def open_sources(
    model: Model,
    paths: Sequence[Path],
    options: FeatureOptions,
    *,
    labels_files: Sequence[Path] | None = None,
    need_labels: bool = False,
) -> list[Any]:
    """Open what a model is given: photos for a network with a backbone, else feature files.

    Parameters
    ----------
    model : Model
        Who is to read them.
    paths : sequence of Path
        The files; photos may be in folders.
    options : FeatureOptions
        How feature files are to be read; each must have the columns the model takes.
    labels_files : sequence of Path, optional
        Where the labels are, a file for each of ``paths``. Photos have those of their folders.
    need_labels : bool
        Whether a file without labels is an error.

    Returns
    -------
    list of FeatureFile or Photos
        One a path, in the same order; columns in the order in which the model takes them.
    """
    if model.network is not None:
        given = {f"--{name}": value for name, value in vars(options).items() if value}
        given |= {"--labels-file": labels_files} if labels_files else {}
        if given:
            raise ValueError(
                f"{', '.join(given)} cannot be used here: {model.folder} takes photos. Leave it "
                "out."
            )
        return [Photos(model.network, path) for path in paths]
    if labels_files and len(labels_files) != len(paths):
        raise ValueError(
            f"{counted(len(labels_files), 'file')} of labels "
            f"{'was' if len(labels_files) == 1 else 'were'} given for "
            f"{counted(len(paths), 'file')} of features; expected one for each. Repeat "
            "--labels-file, in the same order."
        )
    labels: Sequence[Path | None] = labels_files or [None] * len(paths)
    return [
        _open_for(model, path, options, labels_file, need_labels)
        for path, labels_file in zip(paths, labels, strict=True)
    ]


def _open_for(
    model: Model, path: Path, options: FeatureOptions, labels_file: Path | None, need_labels: bool
) -> FeatureFile:
    from protail.data.tables.shards import find_files

    chosen = options
    if model.names is not None:
        # Its own columns, whatever they are called, and all others are none: a look comes first.
        look = replace(options, labels=None, columns=None, keep=None)
        for looked in map(look.open, find_files(path)[0]):
            if looked.columns is not None and looked.names is not None:
                _check_columns(model, looked.path, looked.columns, options)
                chosen = replace(options, features=None, columns=model.names)
    file = chosen.open(path, labels_file=labels_file, need_labels=need_labels)
    if file.width != model.n_features:
        advice = "Give features of the same backbone."
        if file.names is not None:
            found = columns_in_words(file.names)
            advice = f"It gives {found}: choose others with --columns or --exclude."
        raise ValueError(
            f"{path} has rows of {counted(file.width, 'number')}; {model.folder} was fitted "
            f"on rows of {model.n_features}. {advice}"
        )
    return file


def _check_columns(
    model: Model, path: Path, present: Sequence[str], options: FeatureOptions
) -> None:
    """Raise where a table lacks columns that a model takes, or is asked for others."""
    names = model.names or []
    if options.columns:
        raise ValueError(
            f"--columns cannot be used here: {model.folder} takes the columns it was fitted on, "
            "by their names. Leave it out."
        )
    known = set(present)
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"{path} lacks {len(missing)} of the {counted(len(names), 'column')} "
            f"that {model.folder} was fitted on (first: {missing[:3]}); expected all of them. "
            "Name them as in the training file."
        )


def columns_in_words(names: Sequence[str]) -> str:
    """Count columns and name them, neighbours that are numbered on by the first and the last.

    Parameters
    ----------
    names : sequence of str
        The columns in order.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> from protail.cli.sources import columns_in_words
    >>> columns_in_words(["id", *(f"f{i}" for i in range(64))])
    '65 columns, id, f0 to f63'
    """
    groups: list[list[str]] = []
    for name in names:
        if groups and _follows(groups[-1][-1], name):
            groups[-1].append(name)
        else:
            groups.append([name])
    parts: list[str] = []
    for group in groups:
        parts += [f"{group[0]} to {group[-1]}"] if len(group) > 2 else group
    if len(parts) > _SHOWN:
        parts = [*parts[: _SHOWN - 2], "...", parts[-1]]
    return ", ".join([counted(len(names), "column"), *parts])


def _follows(before: str, name: str) -> bool:
    first, second = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if first is None or second is None or first[1] != second[1]:
        return False
    return int(second[2]) == int(first[2]) + 1


def tell_columns(voice: Voice, files: Sequence[Any]) -> None:
    """Say which columns of tables are features; once where they are those of the table before."""
    before = None
    for file in files:
        if file.names is not None and before != (file.names, file.ignored):
            voice.say(f"{file.path}: features: {columns_in_words(file.names)}{not_used(file)}")
            before = (file.names, file.ignored)


def not_used(file: FeatureFile) -> str:
    """Name the columns or arrays of a file that are of no use here."""
    if not file.ignored:
        return ""
    some = ", ".join(file.ignored[:6]) + (", ..." if len(file.ignored) > 6 else "")
    return f"; not used: {some}"


def unreadable_photos(sources: Sequence[Any]) -> list[str]:
    """List the photos that could not be read."""
    return sorted(file for each in sources for file in getattr(each, "unreadable", ()))


@dataclass(frozen=True)
class Answers:
    """What a model says about a block of rows; rows that are not finite have no answer.

    Attributes
    ----------
    answered : ndarray of bool, shape (n_rows,)
        Which rows have an answer: the finite ones.
    codes, probabilities, distances : ndarray of shape (n_answered, k)
        The likeliest classes of each, likeliest first; by their place among the classes, because
        one long name would make an array of labels long. Heads without prototypes know no
        distance: NaN.
    novelty : ndarray of shape (n_answered,)
        How little each looks like any class.
    rejected : ndarray of bool, shape (n_answered,), or None
        Which ones the model does not name; None for a model that names every row.
    """

    answered: NDArray[np.bool_]
    codes: NDArray[np.int64]
    probabilities: Array
    distances: Array
    novelty: Array
    rejected: NDArray[np.bool_] | None = None


def ask(model: Model, rows: Array, k: int = 1) -> Answers:
    """Ask a model about a block of rows.

    Parameters
    ----------
    model : Model
        Whom to ask.
    rows : ndarray of shape (n_rows, n_features)
        What to ask about.
    k : int
        How many classes to name.

    Returns
    -------
    Answers
        What it says.
    """
    answered: NDArray[np.bool_] = np.isfinite(rows).all(axis=1)  # type: ignore[assignment]
    finite = rows if answered.all() else rows[answered]
    head: Any = model.head
    k = min(k, len(model.classes))
    if not len(finite):
        nothing = np.empty((0, k), getattr(head, "prototypes_", rows).dtype)
        rejected = np.empty(0, bool) if model.rejects else None
        codes = nothing.astype(np.int64)
        return Answers(answered, codes, nothing, nothing, nothing[:, 0], rejected)
    if not hasattr(head, "_inference"):
        return Answers(answered, *_ask_network(head, finite, k))
    inference = head._inference(finite)
    rejected = inference.collect(inference.rejects) if model.rejects else None
    codes, probabilities, distances = inference.top_k(k)
    novelty = head.novelty_score(finite)
    return Answers(answered, codes, probabilities, distances, novelty, rejected)


def ask_all(model: Model, rows: Any) -> Answers:
    """Ask a model about all rows: of `ShardedRows` part by part, where their engine reads them.

    Parameters
    ----------
    model : Model
        Whom to ask.
    rows : ndarray or ShardedRows of shape (n_rows, n_features)
        What to ask about.

    Returns
    -------
    Answers
        What it says.
    """
    from protail.data.tables import ShardedRows

    if not isinstance(rows, ShardedRows):
        return ask(model, rows)
    return _together(rows.map(partial(ask_part, model=with_mix_of(model, rows))))


@dataclass(frozen=True)
class _PhotoRows:
    """Photos as rows, whose features are computed when they are taken."""

    network: Network
    files: Sequence[Path]

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Array) -> Array:
        """Compute the features of some photos."""
        from protail.training import photo_features

        network: Any = self.network
        files = [self.files[i] for i in index]
        found = photo_features(network.backbone, network.inputs, files, device=network.device)
        return np.concatenate([rows for _, rows, _ in found])


def all_rows(model: Model, sources: Sequence[Any], engine: Engine | None = None) -> Any:
    """Give the rows of all files, or of all photos, as one; none is read yet."""
    from protail.data.tables import ShardedRows
    from protail.data.tables.rows import Part

    if model.network is not None:
        return _PhotoRows(model.network, [file for each in sources for file in each.files])
    parts = [Part(each, 0, each.n_rows) for each in sources]
    dtype = np.result_type(*(each.dtype for each in sources))
    return ShardedRows(parts, model.n_features, dtype, engine or map)


def with_mix_of(model: Model, rows: Any, prior: Any = None) -> Model:
    """Let a model that estimates the mix of classes do so once, not block by block.

    Parameters
    ----------
    model : Model
        Who is to answer.
    rows : ShardedRows, or what `all_rows` gives
        All that it is to be asked about. Of many, some are drawn.
    prior : list of float or str, optional
        What was estimated before.

    Returns
    -------
    Model
        A copy that expects this mix; the same one where its prior is not "estimate".
    """
    expected = getattr(model.head, "prior", None)
    if not isinstance(expected, str) or expected != "estimate":
        return model
    head: Any = copy.copy(model.head)
    if prior is None:
        most = min(_ESTIMATED_FROM, _PROBABILITIES // len(model.classes))
        most = most if model.network is None else _PHOTOS_ESTIMATED_FROM
        chosen = np.arange(len(rows))
        if len(rows) > most:  # drawn: classes may take turns
            chosen = np.random.default_rng(0).choice(len(rows), most, replace=False)
        some = rows.take(np.sort(chosen))
        some = some[np.isfinite(some).all(axis=1)]
        prior = head.estimate_prior(some).tolist() if len(some) else "uniform"
    head.prior = prior
    return replace(model, head=head)


def ask_part(blocks: Iterable[Array], model: Model, k: int = 1) -> Answers:
    """Ask a model about a part of the rows, block by block."""
    return _together(ask(model, block, k) for block in blocks)


def _together(answers: Iterable[Answers]) -> Answers:
    """Put answers one below the other."""
    columns = zip(*(vars(each).values() for each in answers), strict=True)
    joined: list[Any] = [None if part[0] is None else np.concatenate(part) for part in columns]
    return Answers(*joined)


def _ask_network(network: Network, rows: Array, k: int) -> tuple[Array, Array, Array, Array]:
    """Give codes, probabilities, distances and novelty under a head that was trained."""
    import torch

    rows = np.asarray(rows, np.float32)
    probabilities = network.predict_proba(rows)
    codes = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
    distances = np.full_like(probabilities, np.nan)
    head: Any = network.head
    if hasattr(head, "distances"):
        with torch.no_grad():
            distances = head.distances(torch.from_numpy(rows).to(network.device)).cpu().numpy()
    along = (np.take_along_axis(each, codes, axis=1) for each in (probabilities, distances))
    return codes, *along, distances.min(axis=1)


def check_some_finite(n_rows: int, n_finite: int, path: Path | None = None) -> None:
    """Raise where no row is finite.

    Parameters
    ----------
    n_rows, n_finite : int
        How many rows there are, and how many of them hold finite numbers only.
    path : Path, optional
        Where they all are from.
    """
    if not n_finite:
        where = "" if path is None else f"{path}: "
        raise ValueError(
            f"{where}{counted(n_rows, 'row holds', 'rows all hold')} NaN or infinity; expected "
            "finite numbers. Look at what made the features."
        )


def leave_out_non_finite(
    n_rows: int, n_finite: int, voice: Voice, sources: Sequence[Any] = ()
) -> None:
    """Say how many rows or photos are left out; raise where none is left."""
    if bad := unreadable_photos(sources):
        if not n_finite:
            raise ValueError(
                f"none of {counted(n_rows, 'photo')} can be read ({first_few(bad)}); expected "
                "whole image files. Replace them."
            )
        photos = counted(len(bad), "photo")
        voice.say(f"{photos} cannot be read: left out ({first_few(bad)}).")
        return
    check_some_finite(n_rows, n_finite)
    if n_finite < n_rows:
        left_out = counted(n_rows - n_finite, "row holds", "rows hold")
        voice.say(f"{left_out} NaN or infinity: left out.")


def labels_for(classes: Array, labels: Array, path: Path) -> Array:
    """Give labels in the kind of the model's, so that the two can be compared.

    Parameters
    ----------
    classes : ndarray
        The labels a model knows.
    labels : ndarray
        Labels out of a file.
    path : Path
        That file.

    Returns
    -------
    ndarray
        The same labels; numbers are written out where the model's classes are text.
    """
    text = classes.dtype.kind in "UO"
    if text and labels.dtype.kind != "U":
        return labels.astype(str)
    if not text and labels.dtype.kind == "U":
        raise ValueError(
            f"{path} has text labels (first: {labels.tolist()[:3]}); the model's classes are "
            f"numbers (first: {classes.tolist()[:3]}). Give the labels it was fitted with."
        )
    return labels


@dataclass(frozen=True)
class Evaluated:
    """Predictions of labelled rows; rows that are not finite are left out.

    Attributes
    ----------
    rows : ndarray of int, shape (n_rows,)
        Which rows of all the files these are.
    truth, predicted, confidence, novelty : ndarray of shape (n_rows,)
        What is true, what the model says, how sure it is, how strange the row looks.
    n_non_finite : int
        Rows left out.
    evaluation : Evaluation
        What follows; a rejected row counts by its likeliest class.
    rejected : ndarray of bool, shape (n_rows,), or None
        Which rows the model does not name; None where it names all.
    """

    rows: Array
    truth: Array
    predicted: Array
    confidence: Array
    novelty: Array
    n_non_finite: int
    evaluation: Evaluation
    rejected: Array | None = None


def evaluate_rows(model: Model, sources: Sequence[Any], voice: Voice) -> Evaluated:
    """Predict the rows of labelled files and evaluate the predictions.

    Parameters
    ----------
    model : Model
        Whom to evaluate.
    sources : sequence of FeatureFile or Photos
        They have labels.
    voice : Voice
        Who tells the progress.

    Returns
    -------
    Evaluated
        Predictions and evaluation.
    """
    from protail import Evaluation

    counts = model.counts
    model = with_mix_of(model, all_rows(model, sources))
    parts: list[tuple[Array, ...]] = []
    n_rows = 0
    with row_progress(voice, sum(source.n_rows for source in sources)) as progress:
        for source in sources:
            labels = labels_for(model.classes, source.labels(), source.path)
            start = 0
            for block in source.blocks():
                answers = ask(model, block)
                rows = start + np.flatnonzero(answers.answered)
                parts.append(
                    (
                        n_rows + rows,
                        labels[rows],
                        model.classes[answers.codes[:, 0]],
                        answers.probabilities[:, 0],
                        answers.novelty,
                        np.zeros(len(rows), bool) if answers.rejected is None else answers.rejected,
                    )
                )
                start += len(block)
                progress(len(block))
            n_rows += start
    columns = zip(*parts, strict=True)
    rows, truth, predicted, confidence, novelty, rejected = map(np.concatenate, columns)
    leave_out_non_finite(n_rows, len(truth), voice, sources)
    if not np.isin(truth, model.classes).any():
        raise ValueError(
            f"no label in {sources[0].path} is a class of {model.folder} (first: {truth[0]!s}; "
            f"the model's: {model.classes[0]!s}); expected the same names. Rename them in one."
        )
    evaluation = Evaluation.from_predictions(
        truth,
        predicted,
        classes=model.classes,
        counts=counts,
        confidence=confidence,
        novelty=None if np.isnan(novelty).any() else novelty,
    )
    n_non_finite = n_rows - len(truth)
    found = Evaluated(rows, truth, predicted, confidence, novelty, n_non_finite, evaluation)
    return replace(found, rejected=rejected) if model.rejects else found
