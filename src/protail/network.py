"""Network: photos or feature rows in, classes out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from protail._files import new_folder, read_folder
from protail._messages import OWN_PART, counted, why
from protail.data.augment import CIFAR_MEAN, CIFAR_STD, InputSpec, make_loader_transform
from protail.data.images import IMAGE_SUFFIXES, DataSetError, read_image
from protail.estimator import (
    CLASSIFIER_FORMAT,
    LogitsToProbabilities,
    PhotosToProbabilities,
    PrototypeClassifier,
    check_device,
    check_replaceable,
    classifier_parts,
    network_card,
    network_html,
    restore_classifier,
)
from protail.evaluation import Evaluation
from protail.experiments import CLASSIFIER_BACKBONE, Run, RunError, is_run
from protail.experiments.checkpoint import CheckpointError
from protail.models.backbones import make_backbone
from protail.models.heads import make_head
from protail.models.storage import (
    CARD,
    MODEL,
    Contents,
    Fields,
    FlawError,
    Tensors,
    download,
    flaws_told,
    labels_from_json,
    labels_to_json,
    model_format,
    read_files,
    upload,
    write_files,
)
from protail.recipes import Recipe
from protail.training import inferring

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

FORMAT, VERSION = "protail-network", 1
_KEYS = ("classes", "backbone", "inputs", "head", "classifier", "temperature", "about")
_INPUT_KEYS = ("size", "mean", "std", "crop", "interpolation", "squash")
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos", "box", "hamming")
_BATCH = 64
# What the files of a run raise where they are damaged or do not belong together.
_MISFITS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)
_NO_BACKBONE = (
    "this network has no backbone, so it takes feature rows and makes none; expected one with a "
    "backbone. Load a network that was trained on photos."
)
# What runs on CIFAR's images in memory were trained with, where a run does not say.
_CIFAR_INPUTS = InputSpec(size=32, mean=CIFAR_MEAN, std=CIFAR_STD, crop=1.0, squash=True)


class Network:
    """A classifier ready to use: preprocessing, backbone, head and class names.

    Whatever protail trains or fits can be loaded as one: the folder of a finished
    ``protail train``, a `PrototypeClassifier` that was saved, or a network saved by `save`. With a
    backbone it takes photos; without one it takes feature rows.

    Parameters
    ----------
    head : nn.Module or PrototypeClassifier
        Feature rows to logits, or a fitted classifier of feature rows.
    classes : array-like of shape (n_classes,), optional
        Class names, in the order of the logits. A fitted classifier knows its own.
    backbone : str or nn.Module, optional
        Photos to feature rows: a name that `protail.models.backbones.make_backbone` knows, or a
        module with ``n_features``. What `make_backbone` and `make_head` made can be saved.
    inputs : InputSpec, optional
        Size and normalisation of the photos; by default what the backbone wants.
    class_counts : array-like of int, optional
        Training examples of each class.
    temperature : float, default=1.0
        Logits are divided by it before the softmax.
    about : str, optional
        Where it came from.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is a GPU if there is one.

    Attributes
    ----------
    classes_, class_counts_ : ndarray
        As given.
    backbone, head, inputs, temperature, about
        As given.

    Examples
    --------
    >>> import numpy as np
    >>> from protail import Network, PrototypeClassifier
    >>> rows, labels = np.eye(4), ["ant", "ant", "bee", "bee"]
    >>> network = Network(PrototypeClassifier(random_state=0).fit(rows, labels))
    >>> network.predict(rows[:1])
    array(['ant'], dtype='<U3')
    """

    def __init__(
        self,
        head: nn.Module | PrototypeClassifier,
        classes: ArrayLike | None = None,
        *,
        backbone: str | nn.Module | None = None,
        inputs: InputSpec | None = None,
        class_counts: ArrayLike | None = None,
        temperature: float = 1.0,
        about: str | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        if isinstance(head, PrototypeClassifier):
            classes = head.classes_ if classes is None else classes
            class_counts = head.class_counts_ if class_counts is None else class_counts
        if classes is None:
            raise ValueError("classes is None; expected the name of each class.")
        if not temperature > 0:
            raise ValueError(f"temperature={temperature!r}; expected a number above 0.")
        self.classes_: Array = np.asarray(classes)
        self.class_counts_ = None if class_counts is None else np.asarray(class_counts)
        self.temperature = float(temperature)
        self.about = about
        self.device = _device(device)
        self.head = head.to(self.device).eval() if isinstance(head, nn.Module) else head
        if isinstance(backbone, str):
            backbone = make_backbone(backbone)
        self.backbone = None if backbone is None else backbone.to(self.device).eval()
        self.inputs = inputs
        if backbone is not None and inputs is None:
            self.inputs = getattr(backbone, "input_spec", None) or InputSpec()

    def predict(self, X: Any) -> Any:
        """Give the most likely class of each photo or row.

        Parameters
        ----------
        X : path, image, sequence of these, or array of rows
            As for `features`; without a backbone, feature rows (n_samples, n_features).

        Returns
        -------
        ndarray of shape (n_samples,)
            Class names; of a pandas frame or series a series with its index.

        Examples
        --------
        >>> import numpy as np, pandas as pd
        >>> from protail import Network, PrototypeClassifier
        >>> rows = pd.DataFrame(np.eye(4), index=list("wxyz"))
        >>> network = Network(PrototypeClassifier().fit(np.eye(4), ["ant", "ant", "bee", "bee"]))
        >>> network.predict(rows).to_dict()
        {'w': 'ant', 'x': 'ant', 'y': 'bee', 'z': 'bee'}
        """
        if isinstance(self.head, PrototypeClassifier):
            return _like(X, self.head.predict(self._rows(X)))
        return _like(X, self.classes_[self._logits(X).argmax(1).cpu().numpy()])

    def predict_proba(self, X: Any) -> Any:
        """Give the probability of each class.

        Parameters
        ----------
        X : path, image, sequence of these, or array of rows
            As for `predict`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows that sum to 1; of a pandas frame or series a frame with its index and a column
            for each class.
        """
        if isinstance(self.head, PrototypeClassifier):
            return _like(X, self.head.predict_proba(self._rows(X)), self.classes_)
        return _like(X, torch.softmax(self._logits(X), 1).cpu().numpy(), self.classes_)

    def top_k(self, X: Any, k: int = 5) -> tuple[Array, Array]:
        """Give the k most likely classes of each photo or row, likeliest first.

        Parameters
        ----------
        X : path, image, sequence of these, or array of rows
            As for `predict`.
        k : int, default=5
            How many; all of them where there are fewer classes.

        Returns
        -------
        labels, probabilities : ndarray of shape (n_samples, k)
            Class names and how likely they are.
        """
        if isinstance(self.head, PrototypeClassifier):
            return self.head.top_k(self._rows(X), k)
        if not (isinstance(k, (int, np.integer)) and k >= 1):
            raise ValueError(f"k={k!r} is not valid; expected a whole number of at least 1.")
        found = torch.softmax(self._logits(X), 1).topk(min(int(k), len(self.classes_)), dim=1)
        return self.classes_[found.indices.cpu().numpy()], found.values.cpu().numpy()

    def novelty_score(self, X: Any) -> Array:
        """Say how little each photo or row looks like any class.

        Parameters
        ----------
        X : path, image, sequence of these, or array of rows
            As for `predict`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Larger for what belongs to no class: the score of a `PrototypeClassifier`; under a head
            that was trained, the distance from the nearest prototype.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from protail import Network, PrototypeClassifier
        >>> rows, labels = load_iris(return_X_y=True)
        >>> network = Network(PrototypeClassifier().fit(rows[:100], labels[:100]))
        >>> known, strange = network.novelty_score(rows[:100]), network.novelty_score(rows[100:])
        >>> bool(known.mean() < strange.mean())
        True
        """
        if isinstance(self.head, PrototypeClassifier):
            return self.head.novelty_score(self._rows(X))
        head: Any = self.head
        if not hasattr(head, "distances"):
            raise ValueError(
                f"the head is a {type(head).__name__}, which knows no distances; expected one of "
                "prototypes. Doubt, one minus the highest probability, says something similar."
            )
        rows = torch.as_tensor(np.asarray(self._rows(X)), dtype=torch.float32)
        with inferring(head):
            found: Array = head.distances(rows.to(self.device)).amin(1).cpu().numpy()
        return found

    def features(self, X: Any) -> Array:
        """Compute the backbone's features of photos.

        Parameters
        ----------
        X : path, image, or sequence of these
            The path of a photo, or of a folder (its photos in the order of their names, those of
            folders in it too); a `PIL.Image.Image`; an array (height, width, 3) or a tensor
            (3, height, width) of bytes, or a batch of them.

        Returns
        -------
        ndarray of float32, shape (n_samples, n_features)
            Feature rows.
        """
        if self.backbone is None or self.inputs is None:
            raise ValueError(_NO_BACKBONE)
        transform = make_loader_transform([], self.inputs)

        def prepared(source: Any) -> Tensor:
            return transform.clean(_picture(source))

        sources = _sources(X)
        found = [torch.empty(0, _width(self.backbone))]
        # Pillow lets other threads run while it decodes.
        with ThreadPoolExecutor(os.cpu_count()) as pool, inferring(self.backbone):
            # Few photos at a time stay in the caches of a CPU.
            step = 16 if self.device.type == "cpu" else _BATCH
            for start in range(0, len(sources), step):
                images = torch.stack(list(pool.map(prepared, sources[start : start + step])))
                there = images.to(self.device, memory_format=torch.channels_last)
                found.append(self.backbone(there).float().cpu())
        rows: Array = torch.cat(found).numpy()
        return rows

    def to_module(self) -> nn.Module:
        """Give the network as one PyTorch module, for export.

        Returns
        -------
        torch.nn.Module
            In float32 on the CPU, in eval mode: to probabilities (batch, n_classes) in the order
            of ``classes_``. With a backbone it takes pixels, bytes (batch, height, width, 3) of
            photos that are resized and cut as ``inputs`` says (`pixels` does that); without one it
            takes feature rows. The weights are a copy.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from protail import Network, PrototypeClassifier
        >>> network = Network(PrototypeClassifier().fit(np.eye(4), ["a", "a", "b", "b"]))
        >>> network.to_module()(torch.eye(4)).argmax(1)
        tensor([0, 0, 1, 1])
        """
        if isinstance(self.head, PrototypeClassifier):
            classifier = self.head.to_module()
        else:
            classifier = LogitsToProbabilities(deepcopy(self.head).float(), self.temperature)
        if self.backbone is not None and self.inputs is not None:
            backbone = deepcopy(self.backbone).float()
            classifier = PhotosToProbabilities(
                backbone, classifier, self.inputs.mean, self.inputs.std
            )
        return classifier.cpu().eval().requires_grad_(False)

    def pixels(self, X: Any) -> NDArray[np.uint8]:
        """Resize photos and cut out the middle, as the backbone wants them.

        Parameters
        ----------
        X : path, image, or sequence of these
            As for `features`.

        Returns
        -------
        ndarray of uint8, shape (n_samples, size, size, 3)
            What `to_module` and exported models take.
        """
        if self.inputs is None:
            raise ValueError(_NO_BACKBONE)
        plain = replace(self.inputs, mean=(0.0,) * 3, std=(1 / 255,) * 3)
        transform = make_loader_transform([], plain)
        images = [transform.clean(_picture(source)) for source in _sources(X)]
        found: NDArray[np.uint8] = (
            torch.stack(images).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        )
        return found

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the network to a folder: ``model.json`` and ``weights.safetensors``.

        The folder appears when all is written. Nothing in it is ever unpickled.

        Parameters
        ----------
        folder : path-like
            Where to write it. Missing folders above it are made.
        overwrite : bool, default=False
            Whether a model that is already there may be replaced.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from protail import Network, PrototypeClassifier
        >>> folder = tempfile.mkdtemp()
        >>> Network(PrototypeClassifier().fit(np.eye(4), [0, 0, 1, 1])).save(folder)
        >>> Network.load(folder)
        Network(2 classes, feature rows of 4 numbers)
        """
        if isinstance(self.head, PrototypeClassifier) and self.backbone is None:
            self.head.save(folder, overwrite=overwrite, about=self.about)
            return
        contents, tensors = self._described()
        check_replaceable(Path(folder), overwrite=overwrite)
        with new_folder(folder, overwrite=overwrite) as temporary:
            write_files(temporary, FORMAT, VERSION, contents, tensors)
            check_replaceable(Path(folder), overwrite=overwrite)

    def push_to_hub(self, repo_id: str, *, evaluation: Any = None, **hub_arguments: Any) -> str:
        """Share the network on the Hugging Face Hub, with a card.

        Parameters
        ----------
        repo_id : str
            The repository, as in ``"user/model"``; it is made where it is missing.
        evaluation : Evaluation or dict, optional
            Scores for the card: a ``protail.Evaluation`` or what its ``to_dict()`` gives.
        **hub_arguments
            As for `PrototypeClassifier.push_to_hub`.

        Returns
        -------
        str
            Address of the commit.

        Examples
        --------
        >>> from protail import Network
        >>> Network.load("model").push_to_hub("user/model", private=True)  # doctest: +SKIP
        """
        head = self.head
        if isinstance(head, PrototypeClassifier) and self.backbone is None:
            given = {"evaluation": evaluation, "about": self.about}
            return head.push_to_hub(repo_id, **given, **hub_arguments)
        scores = evaluation.to_dict() if hasattr(evaluation, "to_dict") else evaluation or {}
        labels = [str(name) for name in self.classes_]
        title, facts = self._facts()
        card = network_card(title, facts, labels, self.class_counts_, scores, repo_id)

        def write(folder: Path) -> None:
            self.save(folder)
            (folder / CARD).write_bytes(card.encode("utf-8", "replace"))

        return upload(repo_id, write, **hub_arguments)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        **hub_arguments: Any,
    ) -> Self:
        """Load a network from the Hugging Face Hub, or from a folder; the same as `load`.

        Parameters
        ----------
        name_or_folder : str or path-like
            A repository, as in ``"user/model"``, or a folder that is there.
        device : str or torch.device, default="auto"
            Where to compute.
        **hub_arguments
            As for `PrototypeClassifier.from_pretrained`.

        Returns
        -------
        Network
            Ready to use.

        Examples
        --------
        >>> from protail import Network
        >>> Network.from_pretrained("user/model")  # doctest: +SKIP
        """
        return cls.load(name_or_folder, device=device, **hub_arguments)

    @classmethod
    def load(
        cls,
        folder_or_name: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        **hub_arguments: Any,
    ) -> Self:
        """Load a network, a saved classifier or a finished run.

        Parameters
        ----------
        folder_or_name : path-like or str
            A folder, or the name of a repository on the Hugging Face Hub, as in ``"user/model"``.
        device : str or torch.device, default="auto"
            Where to compute.
        **hub_arguments
            For a repository, as for `PrototypeClassifier.from_pretrained`.

        Returns
        -------
        Network
            Ready to use.
        """
        place = Path(folder_or_name)
        name = os.fspath(folder_or_name)
        if not place.exists() and isinstance(folder_or_name, str) and name.count("/") == 1:
            place = download(name, **hub_arguments)
        if is_run(place):
            return cls.from_run(place, device=device)
        if model_format(place) == CLASSIFIER_FORMAT:
            return cls(PrototypeClassifier.load(place), device=device)
        with flaws_told(place):
            _, contents, tensors = read_folder(
                place, lambda folder: read_files(folder, {FORMAT: (VERSION, _KEYS)})
            )
            return cls._restored(contents, tensors, device)

    @classmethod
    def from_run(
        cls, folder: str | os.PathLike[str], *, device: str | torch.device = "auto"
    ) -> Self:
        """Make a network of a finished ``protail train``.

        Parameters
        ----------
        folder : path-like
            The run's.
        device : str or torch.device, default="auto"
            Where to compute.

        Returns
        -------
        Network
            The classifier of its last stage, with its backbone where it was trained on images.

        Examples
        --------
        >>> from protail import Network
        >>> Network.from_run("runs/digits").predict("photo.jpg")  # doctest: +SKIP
        """
        run, device = Run.open(folder), _device(device)
        try:
            return cls._of_run(run, device)
        except (RunError, CheckpointError):
            raise
        except _MISFITS as error:
            told = str(error) if isinstance(error, ValueError) else why(error)
            remedy = " Expected what protail train wrote: get a whole copy, or train again."
            if OWN_PART in told:  # nothing is wrong with the files
                remedy = ""
            problem = f"its files do not make a network: {told}{remedy}"
            raise RunError(f"{run.folder}: {problem}") from error

    @classmethod
    def _of_run(cls, run: Run, device: torch.device) -> Self:
        weights, resolved = run.weights(), run.resolved
        recipe = Recipe.from_resolved(resolved["recipe"])
        stage = recipe.stages[-1]
        scores = Evaluation.from_dict(run.evaluation()[stage]["plain"])
        backbone = None
        if recipe.representation is not None:
            own = _part(weights, CLASSIFIER_BACKBONE) if stage == "classifier" else {}
            if not (found := own or _part(weights, "backbone")):  # before one takes memory
                raise ValueError("its weights have no backbone, and its recipe has one.")
            backbone = make_backbone(recipe.representation.backbone)
            backbone.load_state_dict(found)
        width = resolved["data"]["features"]["width"] if backbone is None else _width(backbone)
        settings = getattr(recipe, stage)
        head = make_head(settings.head, len(scores.counts), width, **settings.head_options)
        head.load_state_dict(_part(weights, stage))
        known = run.network_record()
        return cls(
            head,
            known.get("classes", scores.classes),
            backbone=backbone,
            inputs=_inputs_of_run(known.get("inputs"), resolved["data"]["name"]),
            class_counts=scores.counts,
            about=f"protail train {recipe.name}, seed {resolved['seed']}",
            device=device,
        )

    @property
    def n_features(self) -> int:
        """How many numbers a feature row has."""
        return int(getattr(self.head, "n_features_in_", None) or _width(self.head))

    def __repr__(self) -> str:
        takes = "photos"
        if self.backbone is None:
            takes = f"feature rows of {counted(self.n_features, 'number')}"
        return f"Network({counted(len(self.classes_), 'class', 'classes')}, {takes})"

    def _repr_html_(self) -> str:
        """Show the network in a notebook."""
        return network_html(*self._facts(), self.class_counts_)

    def _facts(self) -> tuple[str, dict[str, str]]:
        """Give a title, and what is known, in words."""
        facts = {"takes": f"feature rows of {counted(self.n_features, 'number')}"}
        if self.backbone is not None and self.inputs is not None:
            side = self.inputs.size
            facts["takes"] = f"photos, which become {side} x {side} pixels"
            made_by = getattr(self.backbone, "made_by", None)
            facts["backbone"] = made_by[0] if made_by else type(self.backbone).__name__
            facts["features"] = counted(self.n_features, "number")
        facts["head"] = type(self.head).__name__
        facts |= {} if self.about is None else {"about": self.about}
        return f"Network of {counted(len(self.classes_), 'class', 'classes')}", facts

    def _rows(self, X: Any) -> Any:
        if self.backbone is not None:
            return self.features(X)
        first = X[0] if isinstance(X, (list, tuple)) and X else X
        if isinstance(first, (str, os.PathLike)):
            raise ValueError(
                f"X names photos, such as {os.fspath(first)!r}, but this network has no backbone; "
                f"expected feature rows of {counted(self.n_features, 'number')}. Load a network "
                "that was fitted or trained on photos."
            )
        return X

    def _logits(self, X: Any) -> Tensor:
        head = cast(nn.Module, self.head)
        rows = self._rows(X)
        rows = rows if isinstance(rows, Tensor) else torch.as_tensor(np.asarray(rows))
        if rows.ndim != 2 or rows.shape[1] != _width(head):
            raise ValueError(
                f"X has shape {tuple(rows.shape)}; expected feature rows of {_width(head)} numbers."
            )
        with inferring(head):
            logits: Tensor = head(rows.to(self.device)).float()
        return logits / self.temperature

    def _described(self) -> tuple[Contents, Tensors]:
        """Give what `_restored` needs to make the network again."""
        contents: Contents = dict.fromkeys(_KEYS)
        tensors: Tensors = {}
        contents |= {"classes": labels_to_json(self.classes_), "about": self.about}
        contents["temperature"] = self.temperature
        if self.class_counts_ is not None and isinstance(self.head, nn.Module):
            tensors["class_counts"] = torch.tensor(self.class_counts_, dtype=torch.int64)
        if self.inputs is not None:
            contents["inputs"] = asdict(self.inputs)
        if self.backbone is not None:
            contents["backbone"] = _made_by(self.backbone, "backbone")
            tensors |= _named("backbone", self.backbone.state_dict())
        if isinstance(self.head, PrototypeClassifier):
            contents["classifier"], parts = classifier_parts(self.head)
            tensors |= _named("classifier", parts)
        else:
            contents["head"] = {**_made_by(self.head, "head"), "n_features": _width(self.head)}
            tensors |= _named("head", self.head.state_dict())
        return contents, tensors

    @classmethod
    def _restored(cls, contents: Contents, tensors: Tensors, device: str | torch.device) -> Self:
        fields = Fields(contents, _KEYS, MODEL)
        classes = labels_from_json(fields["classes"], MODEL, is_sorted=False)
        backbone = None
        if fields["backbone"] is not None:
            backbone = _built(make_backbone, fields["backbone"], _part(tensors, "backbone"))
        if fields["classifier"] is not None:
            head = restore_classifier(fields["classifier"], _part(tensors, "classifier"), device)
        else:
            head = _built(make_head, fields["head"], _part(tensors, "head"), len(classes))
        inputs = fields["inputs"]
        return cls(
            head,
            classes,
            backbone=backbone,
            inputs=None if inputs is None else _inputs(inputs),
            class_counts=tensors.get("class_counts"),
            temperature=fields.number("temperature", above=0),
            about=None if fields["about"] is None else fields.text("about"),
            device=device,
        )


def load(
    folder_or_name: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    **hub_arguments: Any,
) -> Network:
    """Load whatever protail has saved: a network, a classifier or a finished run.

    Parameters
    ----------
    folder_or_name : path-like or str
        A folder, or the name of a repository on the Hugging Face Hub, as in ``"user/model"``.
    device : str or torch.device, default="auto"
        Where to compute.
    **hub_arguments
        As for `Network.load`.

    Returns
    -------
    Network
        Ready to use.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import protail
    >>> folder = tempfile.mkdtemp()
    >>> protail.PrototypeClassifier().fit(np.eye(4), ["ant", "ant", "bee", "bee"]).save(folder)
    >>> protail.load(folder).predict(np.eye(4)[:1])
    array(['ant'], dtype='<U3')
    """
    return Network.load(folder_or_name, device=device, **hub_arguments)


def _like(X: Any, found: Array, columns: Array | None = None) -> Any:
    """Give answers in pandas, with the index of the question, where that came in pandas."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, (pandas.DataFrame, pandas.Series)):
        return found
    if columns is None:
        return pandas.Series(found, index=X.index, name="label")
    return pandas.DataFrame(found, index=X.index, columns=columns)


def _device(device: str | torch.device) -> torch.device:
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(device, None)


def _width(module: Any) -> int:
    return int(module.n_features)


def _named(part: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{part}.{name}": tensor.contiguous() for name, tensor in tensors.items()}


def _part(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    start = f"{part}."
    return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}


def _made_by(module: nn.Module, what: str) -> dict[str, Any]:
    """Give the name and the options that a module was made with."""
    made_by = getattr(module, "made_by", None)
    if made_by is None:
        raise ValueError(
            f"the {what} is a {type(module).__name__} that was not made by name, so it could not "
            f"be loaded again; expected one of make_{what}. Register it with register_{what} and "
            "make it by its name."
        )
    return {"name": made_by[0], "options": dict(made_by[1])}


def _built(make: Any, found: object, tensors: Tensors, *sizes: int) -> Any:
    """Build a part by name and fill it."""
    names = ("name", "options", "n_features") if sizes else ("name", "options")
    fields = Fields(found, names, MODEL, make.__name__.removeprefix("make_"))
    options = fields["options"]
    if not isinstance(options, dict):
        raise fields.wrong("options", "a JSON object")
    width = [fields.whole("n_features", least=1)] if sizes else []
    try:
        part = make(fields.text("name"), *sizes, *width, **options)
        part.load_state_dict(tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FlawError(MODEL, f"has a part that cannot be built: {error}") from error
    return part


def _inputs(found: object) -> InputSpec:
    fields = Fields(found, _INPUT_KEYS, MODEL, "inputs")
    sides = {name: tuple(fields.list_of(name, float)) for name in ("mean", "std")}
    return InputSpec(
        size=fields.whole("size", least=1),
        crop=fields.number("crop", above=0, most=1),
        interpolation=fields.one_of("interpolation", _INTERPOLATIONS),
        squash=fields.truth("squash"),
        **sides,
    )


def _inputs_of_run(recorded: dict[str, Any] | None, data: str) -> InputSpec | None:
    if recorded is None:
        # Runs of older versions do not say; their images in memory were CIFAR's.
        return _CIFAR_INPUTS if data.startswith("cifar") else None
    return InputSpec(**{**recorded, "mean": tuple(recorded["mean"]), "std": tuple(recorded["std"])})


def photo_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the photos of a folder and of the folders in it, by their names; a file is one.

    Parameters
    ----------
    path : path-like
        A folder, or a photo.

    Returns
    -------
    list of Path
        At least one.

    Examples
    --------
    >>> from protail.network import photo_files
    >>> photo_files("bird.jpg")
    [PosixPath('bird.jpg')]
    """
    place = Path(path)
    if not place.is_dir():
        return [place]
    found = sorted(file for file in place.rglob("*") if file.name.lower().endswith(IMAGE_SUFFIXES))
    if not found:
        raise DataSetError(
            f"{place}: this folder holds no photo; expected files that end in "
            f"{', '.join(IMAGE_SUFFIXES)}. Check the path."
        )
    return found


def _sources(X: Any) -> list[Any]:
    """List the single photos of what `Network.features` takes."""
    if isinstance(X, (str, os.PathLike)):
        return list(photo_files(X))
    if hasattr(X, "columns"):  # a table
        if len(X.columns) != 1:
            raise ValueError(
                f"X is a table of {counted(len(X.columns), 'column')}; expected paths of photos. "
                "Choose their column, as in X['path']."
            )
        X = X.iloc[:, 0]
    if isinstance(X, (np.ndarray, Tensor)):
        return [X] if X.ndim == 3 else list(X)
    return list(X) if isinstance(X, Iterable) and not hasattr(X, "convert") else [X]


def _picture(source: Any) -> Image:
    """Open one photo."""
    from PIL.Image import fromarray

    if isinstance(source, (str, os.PathLike)):
        return read_image(source)
    if hasattr(source, "convert"):
        return cast("Image", source)
    pixels = source
    if isinstance(pixels, Tensor):
        pixels = (pixels.permute(1, 2, 0) if pixels.ndim == 3 else pixels).cpu().numpy()
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(
            f"X has an image of {pixels.dtype} and shape {np.shape(source)}; expected bytes "
            "(uint8): an array (height, width, 3) or a tensor (3, height, width)."
        )
    return fromarray(np.ascontiguousarray(pixels))
