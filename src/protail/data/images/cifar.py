"""CIFAR-10 and CIFAR-100, cut to a long tail.

Only a download needs torchvision: its own readers unpickle whatever a file holds.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from protail._messages import imported, unknown_name, why
from protail.data.images.image_set import DataSet, DataSetError, ImageSet, reading
from protail.data.images.long_tail import long_tailed_counts, long_tailed_index, subset_description
from protail.data.images.registry import data_root, register_dataset


@dataclass(frozen=True)
class Source:
    """Say which files hold a data set, with the MD5 of each, and what is in them."""

    folder: str
    torchvision_class: str
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    labels_key: str
    names_key: str

    @property
    def files(self) -> dict[str, str]:
        """Every file and its MD5."""
        return {**self.train, **self.test, **self.meta}


# Which images both stages see, or each of them. The published code has stage 1 see the first ones
# of each class and stage 2 others: few images of the small classes are in both.
_SELECTIONS = {"shuffled": ["shuffled"], "first": ["first"], "author": ["first", "shuffled"]}

# Files as published at https://www.cs.toronto.edu/~kriz/cifar.html and read by torchvision.
SOURCES = {
    "cifar10-lt": Source(
        folder="cifar-10-batches-py",
        torchvision_class="CIFAR10",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels_key="labels",
        names_key="label_names",
    ),
    "cifar100-lt": Source(
        folder="cifar-100-python",
        torchvision_class="CIFAR100",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels_key="fine_labels",
        names_key="fine_label_names",
    ),
}


def _register(name: str, title: str) -> None:
    """Register one of the two data sets."""

    @register_dataset(name)
    def load(
        root: str | os.PathLike[str] | None,
        imbalance: float = 100,
        kind: str = "exp",
        selection: str = "shuffled",
        seed: int = 0,
        download: bool = True,
    ) -> DataSet:
        if selection not in _SELECTIONS:
            raise ValueError(unknown_name("selection", selection, _SELECTIONS))
        train, test = _read_all(name, data_root(root), download)
        n_max = int(train.profile.counts.max())
        counts = long_tailed_counts(n_max, len(train.classes), imbalance, kind)
        subsets = [
            train.subset(long_tailed_index(train.labels, counts, each, seed))
            for each in _SELECTIONS[selection]
        ]
        return DataSet(
            name=name,
            train=subsets[0],
            test=test,
            description=subset_description(
                imbalance=imbalance, kind=kind, selection=selection, seed=seed, n_max=n_max
            ),
            classifier_train=subsets[1] if len(subsets) > 1 else None,
        )

    load.__doc__ = f"{title}, 32 x 32, cut to a long tail of any imbalance (1: balanced)."


_register("cifar10-lt", "CIFAR-10")
_register("cifar100-lt", "CIFAR-100")


def _read_all(name: str, root: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Read all images to train and to test on; download them where they are missing."""
    source = SOURCES[name]
    folder = root / source.folder
    missing = _missing(source, root)
    if missing and not download:
        raise DataSetError(
            f"{name}: {', '.join(missing)} not found in {folder}; expected CIFAR's files there. "
            f"Run 'protail data prepare {name}', or name the folder that holds {source.folder} "
            "(root=, --data-root, PROTAIL_DATA)."
        )
    if missing:
        _download(name, source, root)
    [(meta, md5)] = source.meta.items()
    classes = tuple(map(str, _read(folder, meta, md5)[source.names_key]))
    parts = []
    for files in (source.train, source.test):
        batches = [_read(folder, file, md5) for file, md5 in files.items()]
        pixels = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([batch[source.labels_key] for batch in batches])
        parts.append(ImageSet(labels, classes, pixels, origin=np.arange(len(labels))))
    return parts[0], parts[1]


def _download(name: str, source: Source, root: Path) -> None:
    """Download and unpack CIFAR with torchvision, or say what is in the way."""
    datasets = imported("torchvision.datasets", f"downloading {name}", "torchvision", "vision")
    reader: Any = getattr(datasets, source.torchvision_class)
    try:
        root.mkdir(parents=True, exist_ok=True)
        reader(root=str(root), download=True)
    except Exception as error:  # the network, the disk, a damaged archive: each has its own error
        raise DataSetError(
            f"{name}: {', '.join(_missing(source, root))} not found in {root / source.folder}, and "
            f"not to be downloaded ({why(error)}); expected CIFAR's files there. Delete what a "
            f"broken download left ({root / reader.filename}), download {reader.url}, and unpack "
            f"it in {root}."
        ) from error


def _missing(source: Source, root: Path) -> list[str]:
    return [file for file in source.files if not (root / source.folder / file).is_file()]


def _read(folder: Path, file: str, md5: str) -> dict[str, Any]:
    """Read one of CIFAR's pickles; nothing is unpickled unless its MD5 is right."""
    path = folder / file
    with reading(path, "one of CIFAR's files. Check the folder and its permissions."):
        content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataSetError(
            f"{path}: its MD5 differs from the published one; expected {md5}. It is damaged or "
            "half downloaded: delete it, and it will be downloaded again."
        )
    result: dict[str, Any] = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    return result


class _ArrayUnpickler(pickle.Unpickler):
    """Read arrays, text and numbers; refuse whatever else a pickle may name."""

    _ALLOWED: ClassVar[dict[str, Any]] = {
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Give what arrays are made of."""
        if module.partition(".")[0] == "numpy" and name in self._ALLOWED:
            return self._ALLOWED[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed; expected arrays only")
