"""Features of photos by a backbone: computed on all cores, kept on the disk, resumable.

What is computed is kept by the content of a photo, in files of a cache folder: the same photo in
another place or under another name is not computed again, and a computation that was stopped goes
on with the photos that are left.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from protail._files import new_file
from protail._stopping import check_stop
from protail.data.augment import InputSpec, LoaderTransform, make_loader_transform
from protail.data.images import DataSetError, content_digests, read_image
from protail.data.tables import scratch
from protail.training.batches import FileLoader, leave_ctrl_c_to_the_loader
from protail.training.features import inferring, weights_hash

Rows = NDArray[np.float32]
Progress = Callable[[int], None]

Read = tuple[Tensor, list[int], dict[int, str]]
Computed = Callable[[Read], tuple[Rows, dict[int, str]]]

_BATCH = 128
# On a CPU few photos at a time, with their channels side by side, stay in its caches: an
# EfficientNet has three times the speed that it has with 64.
_BATCH_OF_A_THREAD = 16
# Fewer photos are read before workers have started.
_FEW = 48
# What a kill may cost.
_SECONDS_UNSAVED = 5.0
_VERSION = 1
_PIECES = f"{'[0-9a-f]' * 16}-{'[0-9a-f]' * 16}.safetensors"
_AUGMENTS = ("resized-crop", "flip")


@dataclass(frozen=True, eq=False)
class Embedded:
    """Features of photos.

    Attributes
    ----------
    rows : ndarray of float32, shape (n_photos, n_features)
        NaN where a photo cannot be read. Above 256 MiB they are in a temporary file.
    problems : dict of int to str
        Why, by the number of the photo.
    digests : tuple of bytes or None
        The same for photos of the same content; None where there is no file to read.
    n_computed : int
        Photos that were computed; the others had been kept, or are copies.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.training import Embedded
    >>> Embedded(np.zeros((1, 2), np.float32), {}, (b"a",), 1).readable
    array([ True])
    """

    rows: Rows
    problems: dict[int, str]
    digests: tuple[bytes | None, ...]
    n_computed: int

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Whether each photo could be read."""
        readable = np.ones(len(self.rows), dtype=np.bool_)
        readable[list(self.problems)] = False
        return readable

    @property
    def duplicate_of(self) -> NDArray[np.int64]:
        """The first photo with the same content; itself where none came before."""
        return _first_of_each(self.digests)


def embed_photos(
    backbone: nn.Module,
    inputs: InputSpec,
    photos: Sequence[str | os.PathLike[str]],
    *,
    cache: str | os.PathLike[str] | None = None,
    views: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress = lambda done: None,
) -> Embedded:
    """Compute the features of photos, those that were not computed before.

    Parameters
    ----------
    backbone : torch.nn.Module
        Images to feature rows, with ``n_features``; it is used in eval mode.
    inputs : InputSpec
        What it wants.
    photos : sequence of path-like
        Files.
    cache : path-like, optional
        A folder in which features are kept as they come; made if it is missing.
    views : int, default=0
        How many random crops are averaged with the photo as it is.
    device : str or torch.device, default="cpu"
        Where to compute.
    progress : callable, optional
        Called with the number of photos done since the last call.

    Returns
    -------
    Embedded
        One row a photo, in order.

    Examples
    --------
    >>> from protail.data.augment import InputSpec
    >>> from protail.models.backbones import make_backbone
    >>> from protail.training import embed_photos
    >>> found = embed_photos(make_backbone("resnet32"), InputSpec(size=32), ["no-such.jpg"])
    >>> found.rows.shape, list(found.problems)
    ((1, 64), [0])
    """
    if isinstance(views, bool) or not isinstance(views, int) or not 0 <= views <= 100:
        raise ValueError(f"views={views!r}; expected a whole number from 0 to 100 (--augment).")
    paths = [Path(photo) for photo in photos]
    device = torch.device(device)
    backbone = backbone.to(device)
    digests = tuple(content_digests(paths))
    duplicate_of = _first_of_each(digests)
    kept = _Cache(cache, backbone, inputs, views)
    rows = scratch((len(paths), _width(backbone)), np.float32)  # every row is filled below
    todo = []
    for i, key in enumerate(digests):
        if key is not None and key in kept.found:
            rows[i] = kept.found[key]
        elif duplicate_of[i] == i:
            todo.append(i)
    progress(len(paths) - len(todo))
    problems: dict[int, str] = {}
    with kept:
        for done, found, bad in photo_features(
            backbone, inputs, [paths[i] for i in todo], views=views, device=device
        ):
            numbers = todo[done : done + len(found)]
            rows[numbers] = found
            problems |= {todo[i]: words for i, words in bad.items()}
            kept.add({key: rows[i] for i in numbers if i not in problems and (key := digests[i])})
            progress(len(numbers))
    copies = np.flatnonzero(duplicate_of != np.arange(len(paths)))
    rows[copies] = rows[duplicate_of[copies]]
    same = {int(i): int(duplicate_of[i]) for i in copies}
    problems |= {i: problems[other] for i, other in same.items() if other in problems}
    return Embedded(rows, dict(sorted(problems.items())), digests, len(todo))


def forget(cache: Path) -> None:
    """Remove what `embed_photos` has kept, and the folder where nothing else is in it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.training import forget
    >>> forget(Path("no-such-folder"))
    """
    for file in cache.glob(_PIECES):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        cache.rmdir()


def photo_features(
    backbone: nn.Module,
    inputs: InputSpec,
    photos: Sequence[Path],
    *,
    views: int = 0,
    device: str | torch.device = "cpu",
) -> Iterator[tuple[int, Rows, dict[int, str]]]:
    """Compute features batch by batch.

    Parameters
    ----------
    backbone, inputs, photos, views, device
        As for `embed_photos`.

    Yields
    ------
    start, rows, problems : int, ndarray of float32, dict of int to str
        The number of the first photo, the rows of some, and what is wrong with those that are NaN.

    Examples
    --------
    >>> from protail.data.augment import InputSpec
    >>> from protail.models.backbones import make_backbone
    >>> from protail.training import photo_features
    >>> list(photo_features(make_backbone("resnet32"), InputSpec(size=32), []))
    []
    """
    device = torch.device(device)
    transform = make_loader_transform(_AUGMENTS if views else (), inputs)
    reader = _Photos(photos, transform, views, threaded=device.type == "cpu")

    def computed(read: Read) -> tuple[Rows, dict[int, str]]:
        images, readable, problems = read
        rows = np.full((len(readable) + len(problems), _width(backbone)), np.nan, np.float32)
        if readable:
            there = images.flatten(0, 1).to(device, non_blocking=True)
            with torch.no_grad():  # each thread has its own say on gradients
                found = backbone(there.contiguous(memory_format=torch.channels_last))
            rows[readable] = found.float().view(len(readable), views + 1, -1).mean(1).cpu().numpy()
        return rows, problems

    start = 0
    with inferring(backbone):
        parts = _in_threads if device.type == "cpu" else _from_workers
        for rows, problems in parts(reader, computed):
            check_stop()
            yield start, rows, {start + i: words for i, words in problems.items()}
            start += len(rows)


def _in_threads(reader: _Photos, computed: Computed) -> Iterator[tuple[Rows, dict[int, str]]]:
    """Read and compute a batch in each thread of torch's: none waits for another one.

    For small networks that is faster than all of them at one batch, all the more where other
    programs run.
    """
    n_photos = max(1, _BATCH_OF_A_THREAD // reader.n_views)

    def work(start: int) -> tuple[Rows, dict[int, str]]:
        stop = min(start + n_photos, len(reader))
        return computed(_together([reader[i] for i in range(start, stop)]))

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(n_threads)
    try:
        yield from pool.map(work, range(0, len(reader), n_photos))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)


def _from_workers(reader: _Photos, computed: Computed) -> Iterator[tuple[Rows, dict[int, str]]]:
    """Compute on a device what worker processes read."""
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=_BATCH,
        num_workers=0 if len(reader) < _FEW else FileLoader.workers,
        collate_fn=_together,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=leave_ctrl_c_to_the_loader,
    )
    return map(computed, loader)


def _width(backbone: Any) -> int:
    return int(backbone.n_features)


class _Photos(Dataset[Tensor | str]):
    """Give photos as a backbone wants them, or what is wrong with them."""

    def __init__(
        self, paths: Sequence[Path], transform: LoaderTransform, views: int, threaded: bool
    ) -> None:
        self._paths, self._transform, self._views = paths, transform, views
        self.n_views = 1 + views
        self._one_at_a_time: Any = Lock() if threaded else nullcontext()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Tensor | str:
        path = self._paths[number]
        if not path.is_file():  # a pipe would never end
            return f"{path}: there is no such file; expected a photo. Check the path."
        try:
            image = read_image(path)
        except DataSetError as error:
            return str(error)
        seen = [self._transform.clean(image)]
        # The same photo gives the same views, wherever it stands in a list.
        with self._one_at_a_time:  # torchvision draws from a generator that all threads share
            seen += [self._transform(image, view, epoch=0) for view in range(self._views)]
        return torch.stack(seen)


def _together(read: list[Tensor | str]) -> Read:
    whole = {i: each for i, each in enumerate(read) if isinstance(each, Tensor)}
    images = torch.stack(list(whole.values())) if whole else torch.empty(0)
    return images, list(whole), {i: each for i, each in enumerate(read) if isinstance(each, str)}


@dataclass
class _Cache:
    """Features in files of a folder, by the content of photos; nowhere without a folder."""

    folder: Any
    backbone: nn.Module
    inputs: InputSpec
    views: int
    found: dict[bytes, Rows] = field(default_factory=dict)
    unsaved: dict[bytes, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        self.folder = Path(self.folder)
        about = {
            "version": _VERSION,
            "weights": weights_hash(self.backbone),
            "inputs": asdict(self.inputs),
            "views": self.views,
        }
        text = json.dumps(about, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        for file in sorted(self.folder.glob(f"{self.key}-*.safetensors")):
            self._read(file)
        self.last = time.monotonic()

    def __enter__(self) -> _Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def add(self, rows: dict[bytes, Rows]) -> None:
        """Keep rows, now and then on the disk."""
        if self.folder is None:
            return
        self.unsaved |= rows
        if time.monotonic() - self.last > _SECONDS_UNSAVED:
            self._save()

    def _save(self) -> None:
        if self.folder is None or not self.unsaved:
            return
        keys = b"".join(self.unsaved)
        tensors = {
            "digests": torch.frombuffer(bytearray(keys), dtype=torch.uint8).view(-1, 16),
            "rows": torch.from_numpy(np.stack(list(self.unsaved.values()))),
        }
        name = f"{self.key}-{hashlib.sha256(keys).hexdigest()[:16]}.safetensors"
        with new_file(self.folder / name, overwrite=True) as temporary:
            temporary.write_bytes(save(tensors))
        self.unsaved, self.last = {}, time.monotonic()

    def _read(self, file: Path) -> None:
        """Take what is whole; the rest is computed again."""
        try:
            with safe_open(file, "pt") as stored:
                rows = stored.get_tensor("rows").numpy()
                digests = stored.get_tensor("digests").numpy()
        except (OSError, SafetensorError):
            return
        if rows.ndim == 2 and rows.shape == (len(digests), _width(self.backbone)):
            self.found |= {digest.tobytes(): row for digest, row in zip(digests, rows, strict=True)}


def _first_of_each(digests: Sequence[bytes | None]) -> NDArray[np.int64]:
    first: dict[bytes, int] = {}
    found = [i if key is None else first.setdefault(key, i) for i, key in enumerate(digests)]
    return np.array(found, dtype=np.int64)
