"""Features that heads learn from: computed once by a frozen backbone, or given."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protail._files import OutputError, new_file
from protail.data import RowSampler, make_sampler
from protail.data.images import DataSet, FeatureData, FeatureSet, ImageSet
from protail.training.batches import CLEAN_BATCH, FileLoader, ResidentLoader, make_loader
from protail.training.settings import ClassifierSettings, Precision

# Given features that are a larger part of a GPU's free memory stay on the CPU.
_PART_OF_FREE = 0.25


@contextmanager
def inferring(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, without gradients, and back.

    Examples
    --------
    >>> import torch
    >>> from protail.training import inferring
    >>> module = torch.nn.Dropout()
    >>> with inferring(module):
    ...     module.training
    False
    >>> module.training
    True
    """
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


def logits_of(head: nn.Module, features: Tensor) -> Tensor:
    """Give the logits of a head, in eval mode and without gradients, in float32.

    Examples
    --------
    >>> import torch
    >>> from protail.training import logits_of
    >>> logits_of(torch.nn.Linear(3, 2), torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """
    with inferring(head):
        logits: Tensor = head(features)
    return logits.float()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Make the context in which a network computes in the given precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def for_network(images: Tensor) -> Tensor:
    """Lay images out in the memory format in which convolutions on their device are fastest."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def collect(
    compute: Callable[[Tensor], Tensor], batches: Iterable[Tensor], precision: Precision = "float32"
) -> Tensor:
    """Compute rows of numbers for batches of images; put them together, in float32.

    Examples
    --------
    >>> import torch
    >>> from protail.training.features import collect
    >>> collect(lambda images: images.mean((2, 3)), [torch.ones(2, 3, 4, 4)]).shape
    torch.Size([2, 3])
    """
    found = []
    for images in batches:
        with autocast(images.device, precision):
            found.append(compute(for_network(images)).float())
    return torch.cat(found)


@dataclass(frozen=True)
class Stream:
    """Which images come in which order, and what happens to them.

    Attributes
    ----------
    sampler : str
        Which image comes next.
    sampler_options : str
        What the sampler takes, as JSON.
    augment : tuple of str
        What happens to an image.
    precision : {"bfloat16", "float32"}
        What the backbone computes in.
    """

    sampler: str
    sampler_options: str
    augment: tuple[str, ...]
    precision: Precision

    @classmethod
    def of(cls, settings: ClassifierSettings) -> Stream:
        """Take out of settings what the stream depends on."""
        options = json.dumps(settings.sampler_options, sort_keys=True)
        return cls(settings.sampler, options, tuple(settings.augment), settings.precision)

    def make_sampler(self, labels: NDArray[np.int64], seed: int) -> RowSampler:
        """Make the sampler of the stream for rows with these labels."""
        return make_sampler(self.sampler, labels, seed=seed, **json.loads(self.sampler_options))


def stage_steps(settings: ClassifierSettings, n_draws: int) -> tuple[int, int]:
    """Count the steps of an epoch of ``n_draws`` images and those of the whole of stage 2.

    Examples
    --------
    >>> from protail.training import ClassifierSettings, stage_steps
    >>> stage_steps(ClassifierSettings(epochs=3, batch_size=64, max_steps=5), 100)
    (2, 5)
    """
    an_epoch = -(-n_draws // settings.batch_size)
    whole = settings.epochs * an_epoch
    return an_epoch, min(whole, settings.max_steps or whole)


def weights_hash(module: nn.Module) -> str:
    """Name the weights of a module: same values, same text."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class FeatureCache:
    """Compute features once; the next time they are read, memory-mapped, from a file.

    A file that does not agree with its checksum is reported, and its features are computed again.

    Parameters
    ----------
    folder : Path or None
        Where the files lie; None keeps features in memory, as long as the cache lives, and so are
        those kept that cannot be written.

    Examples
    --------
    >>> import torch
    >>> from protail.training import FeatureCache
    >>> cache, cpu = FeatureCache(None), torch.device("cpu")
    >>> key = {"weights": "a", "data": "b"}
    >>> cache.get(key, lambda: torch.ones(2, 3), cpu).shape
    torch.Size([2, 3])
    >>> cache.get(key, lambda: torch.zeros(0), cpu).sum()  # not computed again
    tensor(6.)
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._in_memory: dict[str, Tensor] = {}
        self._has_warned = False

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names.

        Parameters
        ----------
        key : mapping
            Everything the features depend on, in plain values.
        compute : callable
            Makes them, where they are not there yet.
        device : torch.device
            Where they are wanted.

        Returns
        -------
        Tensor, shape (n, n_features)
            The features.
        """
        name = _key_name(key)
        if name in self._in_memory:
            return self._in_memory[name].to(device)
        path = None if self._folder is None else self._folder / f"{name}.safetensors"
        found = None if path is None else _read_features(path, key)
        if found is None:
            found = compute()
            if path is None or not self._write(path, key, found):
                self._in_memory[name] = found
        return found.to(device)

    def _write(self, path: Path, key: Mapping[str, Any], features: Tensor) -> bool:
        """Write features; where that fails, say so once: they are no reason to lose a run."""
        stored = features.cpu().contiguous()
        try:
            with new_file(path, overwrite=True) as temporary:
                temporary.write_bytes(save({"features": stored}, _about(key, stored)))
        except OutputError as error:
            if not self._has_warned:
                warnings.warn(f"{error.strerror} It goes on without.", stacklevel=3)
            self._has_warned = True
            return False
        return True


class LastStream(FeatureCache):
    """Keep clean and test features, but of the epochs of augmented images only the last one.

    For images in files, of which an epoch of features takes gigabytes. Heads that learn from the
    same stream one after the other still share it.

    Examples
    --------
    >>> import torch
    >>> from protail.training import LastStream
    >>> cache, cpu = LastStream(), torch.device("cpu")
    >>> first, second = ({"stream": "flip", "epoch": epoch} for epoch in (0, 1))
    >>> for key in (first, first, second, first):
    ...     _ = cache.get(key, lambda: print("computed") or torch.ones(2, 3), cpu)
    computed
    computed
    computed
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._last = ""

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names, as `FeatureCache.get` does."""
        if "epoch" in key and _key_name(key) != self._last:
            # Before others are computed: there is not room for both.
            self._in_memory.pop(self._last, None)
            self._last = _key_name(key)
        return super().get(key, compute, device)


def _key_name(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _read_features(path: Path, key: Mapping[str, Any]) -> Tensor | None:
    """Map features; a file that is damaged is as good as none, and is reported."""
    try:
        with safe_open(path, framework="pt") as file:
            features: Tensor = file.get_tensor("features")
            if file.metadata() == _about(key, features):
                return features
        reason = "it does not agree with its checksum"
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        reason = f"it cannot be read ({' '.join(str(error).split())})"
    warnings.warn(f"{path}: {reason}, so these features are computed again.", stacklevel=3)
    return None


def _about(key: Mapping[str, Any], features: Tensor) -> dict[str, str]:
    """Say what a file holds, with a checksum of every byte of the features."""
    numbers = features.reshape(-1).view(torch.uint8).numpy().data
    about = {
        "key": key,
        "dtype": str(features.dtype),
        "shape": list(features.shape),
        "sha256": hashlib.sha256(numbers).hexdigest(),
    }
    # One entry: the library writes several in an order that changes from run to run.
    return {"protail": json.dumps(about, sort_keys=True)}


class FrozenFeatures:
    """Compute features of images under a frozen backbone, in eval mode.

    Training images are those of stage 2, where a data set has others for it.

    Parameters
    ----------
    backbone : nn.Module
        Images to features; it is not changed.
    data : DataSet
        Images, resident or in files.
    device : torch.device
        Where to compute.
    cache : FeatureCache, optional
        Where features stay for the next time.

    Attributes
    ----------
    backbone : nn.Module
        What is evaluated.
    counts : ndarray of int
        Training images of each class.
    group_counts : ndarray of int
        Images of each class that say which group it is in.
    test_labels : ndarray of int
        Class codes of the test images.
    n_features : int
        Width of a feature vector.
    """

    def __init__(
        self,
        backbone: nn.Module,
        data: DataSet,
        device: torch.device,
        cache: FeatureCache | None = None,
    ) -> None:
        self.backbone = backbone
        self.device = device
        self.counts: NDArray[np.int64] = data.train.profile.counts
        self.group_counts = self.counts if data.group_counts is None else data.group_counts
        self.n_features = int(backbone.n_features)  # type: ignore[arg-type]
        self.test_labels: NDArray[np.int64] = data.test.labels
        self._data = data
        self._images = data.train if data.classifier_train is None else data.classifier_train
        self._cache = cache or FeatureCache(None)
        self._drifted: dict[tuple[Any, ...], FrozenFeatures] = {}

    @cached_property
    def _weights(self) -> str:
        inputs = getattr(self.backbone, "input_spec", None)
        return weights_hash(self.backbone) + ("" if inputs is None else f" {inputs}")

    @cached_property
    def _train_key(self) -> dict[str, Any]:
        return {"data": self._images.fingerprint(), "weights": self._weights}

    @cached_property
    def _test_key(self) -> dict[str, Any]:
        return {"data": self._data.test.fingerprint(), "weights": self._weights}

    def for_stage(self, settings: ClassifierSettings, seed: int) -> FrozenFeatures:
        """Give what a stage learns from, and what its heads are to be evaluated by."""
        if settings.batch_norm == "eval" or settings.epochs <= 1:
            return self
        key = (Stream.of(settings), settings.epochs, settings.max_steps, settings.batch_size, seed)
        if key not in self._drifted:
            self._drifted[key] = _DriftedFeatures(self, settings, seed)
        return self._drifted[key]

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image as the backbone gets it."""
        one = self._data.test.subset([0])
        height, width = next(self._loader(one).clean(one)).shape[2:]
        return height, width

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give features and labels of the training images as they are."""
        key = {**self._train_key, "stream": "clean", "precision": precision}
        features = self._cache.get(key, lambda: self.of(self._images, precision), self.device)
        return features, torch.from_numpy(self._images.labels).to(self.device)

    def test(self, *, flipped: bool = False) -> Tensor:
        """Give features of the test images as they are, or of their mirror images."""
        kind = "mirrored" if flipped else "clean"
        key = {**self._test_key, "stream": kind, "precision": "float32"}
        compute = partial(self.of, self._data.test, "float32", flipped=flipped)
        return self._cache.get(key, compute, self.device)

    def of(self, images: ImageSet, precision: Precision, *, flipped: bool = False) -> Tensor:
        """Give features of any images as they are, or of their mirror images."""
        clean = self._loader(images).clean(images)
        batches = (part.flip(3) if flipped else part for part in clean)
        return self._computed(batches, len(images), precision)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of the first ``n`` augmented images of an epoch, or of all."""
        sampler = stream.make_sampler(self._images.labels, seed)
        key = {**self._train_key, "stream": repr(stream), "seed": seed, "epoch": epoch}
        n_computed = len(sampler)
        # Whole batches: their features are then, to the bit, those of the whole epoch.
        if n is not None and (rounded := -(-n // CLEAN_BATCH) * CLEAN_BATCH) < n_computed:
            key["rows"] = n_computed = rounded

        def compute() -> Tensor:
            loader = self._loader(self._images, stream.augment, seed)
            batches = loader.batches(sampler, CLEAN_BATCH, epoch, n=n_computed)
            images = (loader(batch).images for batch in batches)
            return self._computed(images, n_computed, stream.precision)

        features = self._cache.get(key, compute, self.device)[:n]
        return features, self._labels(sampler, epoch, len(features))

    def n_draws(self, stream: Stream, seed: int) -> int:
        """Say how many images an epoch of a stream has."""
        return len(stream.make_sampler(self._images.labels, seed))

    def _loader(
        self, images: ImageSet, augment: tuple[str, ...] = (), seed: int = 0
    ) -> ResidentLoader | FileLoader:
        return make_loader(images, augment, seed=seed, device=self.device, backbone=self.backbone)

    def _labels(self, sampler: RowSampler, epoch: int, n: int) -> Tensor:
        rows = sampler.epoch_indices(epoch)[:n]
        return torch.from_numpy(self._images.labels[rows]).to(self.device)

    def _computed(self, batches: Iterable[Tensor], n: int, precision: Precision) -> Tensor:
        """Compute features into one place: putting parts together would need twice the memory."""
        features = torch.empty(n, self.n_features, device=self.device)
        begin = 0
        with inferring(self.backbone):
            for batch in batches:
                part = collect(self.backbone, [batch], precision)
                features[begin : begin + len(part)] = part
                begin += len(part)
        return features


class _DriftedFeatures(FrozenFeatures):
    """Features as the published code has them: after the first epoch, batch norms learn on.

    How they drift depends on the stream alone, so it is computed before any head learns.
    """

    def __init__(self, start: FrozenFeatures, settings: ClassifierSettings, seed: int) -> None:
        super().__init__(deepcopy(start.backbone), start._data, start.device, start._cache)
        self._start = start
        self._later: list[Tensor] = []  # of the second epoch, of the third ...
        stream = Stream.of(settings)
        sampler = stream.make_sampler(self._images.labels, seed)
        loader = self._loader(self._images, stream.augment, seed)
        an_epoch, n_steps = stage_steps(settings, len(sampler))
        with inferring(self.backbone):
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):  # not dropout: same seed, same features
                    module.train()
            for epoch, begin in enumerate(range(an_epoch, n_steps, an_epoch), start=1):
                n = (n_steps - begin) * settings.batch_size
                batches = loader.batches(sampler, settings.batch_size, epoch, n=n)
                images = (loader(batch).images for batch in batches)
                self._later.append(collect(self.backbone, images, stream.precision))

    def for_stage(self, settings: ClassifierSettings, seed: int) -> FrozenFeatures:
        """Give what another stage on the same backbone learns from."""
        return self._start.for_stage(settings, seed)

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give what is there before the drift: where prototypes start."""
        return self._start.clean(precision)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of an epoch, as far as there are steps in it."""
        if epoch == 0:
            return self._start.stream(stream, seed, epoch, n)
        features = self._later[epoch - 1][:n]
        sampler = stream.make_sampler(self._images.labels, seed)
        return features, self._labels(sampler, epoch, len(features))


class GivenFeatures:
    """Give features as they are stored; otherwise as `FrozenFeatures`.

    What they were computed in and how images were augmented was decided by whoever computed them.

    Parameters
    ----------
    data : FeatureData
        The features.
    device : torch.device
        Where they are wanted.

    Attributes
    ----------
    counts : ndarray of int
        Training images of each class.
    group_counts : ndarray of int
        Images of each class that say which group it is in.
    test_labels : ndarray of int
        Class codes of the test images.
    n_features : int
        Width of a feature vector.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from protail.data.images import FeatureData, FeatureSet
    >>> from protail.training import GivenFeatures
    >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
    >>> data = FeatureData("insects", ("ant", "bee"), rows, rows)
    >>> given = GivenFeatures(data, torch.device("cpu"))
    >>> given.n_features, given.test().shape, given.test(flipped=True)
    (3, torch.Size([3, 3]), None)
    """

    def __init__(self, data: FeatureData, device: torch.device) -> None:
        self.device = device
        self.counts = np.bincount(data.train.labels, minlength=len(data.classes))
        self.group_counts = self.counts
        self.n_features = data.train.rows.shape[1]
        self.test_labels: NDArray[np.int64] = data.test.labels
        self._data = data

    def for_stage(self, settings: ClassifierSettings, seed: int) -> Self:
        """Give what a stage learns from: the same for all that leave the backbone alone."""
        if settings.batch_norm != "eval" and settings.epochs > 1:
            raise ValueError(
                f"classifier.batch_norm={settings.batch_norm!r} changes the backbone, and "
                f"{self._data.name} holds its features only; expected 'eval'."
            )
        return self

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give features and labels of the training images as they are."""
        return self._labelled(self._data.train, self._home(self._data.train.rows.nbytes))

    def test(self, *, flipped: bool = False) -> Tensor | None:
        """Give features of the test images, or of their mirror images: None without those."""
        rows = self._data.flipped if flipped else self._data.test.rows
        return None if rows is None else torch.from_numpy(rows).to(self.device)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of an epoch, or its first ``n``, in their order.

        Those of the stored stream, the same each epoch; without one, training rows as the sampler
        draws them. They stay on the CPU where they would fill much of a GPU.
        """
        part = self._data.train if self._data.stream is None else self._data.stream
        features, labels = self._labelled(part, self._home(part.rows.nbytes))
        if self._data.stream is not None:
            return features[:n], labels[:n]
        sampler = stream.make_sampler(self._data.train.labels, seed)
        rows = torch.from_numpy(sampler.epoch_indices(epoch)[:n]).to(features.device)
        return features[rows], labels[rows]

    def _home(self, n_bytes: int) -> torch.device:
        """Say where so many bytes of features are to lie, of which a copy is made."""
        if self.device.type != "cuda":
            return self.device
        free, _ = torch.cuda.mem_get_info(self.device)
        return self.device if n_bytes < _PART_OF_FREE * free else torch.device("cpu")

    def n_draws(self, stream: Stream, seed: int) -> int:
        """Say how many rows an epoch of a stream has."""
        if self._data.stream is not None:
            return len(self._data.stream.labels)
        return len(stream.make_sampler(self._data.train.labels, seed))

    def _labelled(self, part: FeatureSet, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(part.rows).to(device), torch.tensor(part.labels, device=device)


Features = FrozenFeatures | GivenFeatures
