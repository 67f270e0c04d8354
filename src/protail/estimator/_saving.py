"""Saving, loading and sharing a fitted classifier."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from sklearn.utils.validation import check_is_fitted

from protail._files import OutputError, check_free, explained, new_folder, read_folder
from protail._messages import not_installed
from protail.estimator._card import model_card
from protail.estimator._checks import check_device
from protail.estimator._fields import FlawError
from protail.estimator._model_file import (
    CARD,
    MODEL,
    WEIGHTS,
    Contents,
    ModelFileError,
    Tensors,
    is_model,
    read_files,
    write_files,
)
from protail.estimator._model_state import KEYS, describe, restore

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier


PICTURE = "accuracy.png"
_OURS = (MODEL, WEIGHTS, CARD, PICTURE)


class SavingMixin:
    """Model folders: two files that hold the classifier, and a card for people."""

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        evaluation: Any = None,
        about: str | None = None,
        picture: bytes | None = None,
    ) -> None:
        """Write the fitted classifier to a folder.

        The folder gets ``model.json`` (readable), ``weights.safetensors`` (the arrays) and
        ``README.md`` (a model card, yours to edit). It appears when all is written; nothing half
        written stays. Whoever loads it while it is replaced gets the old model or the new one.
        Loaded again, it gives the same answers, to the bit.

        Parameters
        ----------
        folder : path-like
            Where to write it. Missing folders above it are made.
        overwrite : bool, default=False
            Whether a model that is already there may be replaced, its card and picture included;
            other files in its folder stay. A folder without a model is never replaced.
        evaluation : Evaluation or dict, optional
            Scores to write down: a ``protail.Evaluation`` or what its ``to_dict()`` gives.
        about : str, optional
            How the model was made, in your words.
        picture : bytes, optional
            A PNG file, as `protail.report.accuracy_picture` draws it; the card shows it.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from protail import PrototypeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> folder = tempfile.mkdtemp()
        >>> PrototypeClassifier(random_state=0).fit(X, y).save(folder, about="iris")
        >>> PrototypeClassifier.load(folder).predict(X[:2])
        array([0, 0])
        """
        check_replaceable(Path(folder), overwrite=overwrite)
        name = Path(folder).absolute().name
        prepared = prepare(self, evaluation, about, name, picture)
        prepared.write(folder, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str | torch.device = "auto") -> Self:
        """Read a classifier that `save` has written.

        Nothing is unpickled and no path in the files is followed, so a model of somebody else
        can do no harm. A damaged, altered or unknown one raises ``ModelFileError``.

        Parameters
        ----------
        folder : path-like
            The model's folder.
        device : str or torch.device, default="auto"
            Where it is to compute, wherever it was fitted.

        Returns
        -------
        PrototypeClassifier
            The fitted classifier, with the settings it was made with. A ``random_state`` that
            was a generator is None.

        Examples
        --------
        See `save`.
        """
        check_device(device, None)
        place = Path(folder)
        try:
            contents, tensors = read_folder(place, lambda folder: read_files(folder, KEYS))
            return cast(
                Self, restore(cast("type[PrototypeClassifier]", cls), contents, tensors, device)
            )
        except FlawError as flaw:
            raise ModelFileError(f"{place / flaw.file}: {flaw.problem} {flaw.advice}") from flaw

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        **hub_arguments: Any,
    ) -> Self:
        """Load a classifier from the Hugging Face Hub, or from a folder.

        Parameters
        ----------
        name_or_folder : str or path-like
            A repository, as in ``"user/model"``, or a folder that is there.
        device : str or torch.device, default="auto"
            Where it is to compute.
        **hub_arguments
            For a repository: ``revision``, ``token``, ``cache_dir``, ``force_download`` and
            ``local_files_only``, as in ``huggingface_hub``.

        Returns
        -------
        PrototypeClassifier
            The fitted classifier.

        Examples
        --------
        >>> from protail import PrototypeClassifier
        >>> PrototypeClassifier.from_pretrained("user/model")  # doctest: +SKIP
        """
        name = os.fspath(name_or_folder)
        if os.path.isdir(name) or not isinstance(name_or_folder, str) or _is_a_path(name):
            return cls.load(name, device=device)
        shared = _hub().SharedClassifier.from_pretrained(name, **hub_arguments)
        return cls.load(shared.folder, device=device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluation: Any = None,
        about: str | None = None,
        **hub_arguments: Any,
    ) -> str:
        """Share the fitted classifier on the Hugging Face Hub, with its model card.

        Parameters
        ----------
        repo_id : str
            The repository, as in ``"user/model"``; it is made where it is missing.
        evaluation, about
            As for `save`.
        **hub_arguments
            ``private``, ``token``, ``branch``, ``commit_message``, ``create_pr`` and others of
            ``huggingface_hub.ModelHubMixin.push_to_hub``. With ``ignore_patterns="README.md"`` a
            card that was edited there stays.

        Returns
        -------
        str
            Address of the commit.

        Examples
        --------
        >>> from protail import PrototypeClassifier
        >>> classifier = PrototypeClassifier().fit([[1.0, 2.0], [2.0, 1.0]], ["a", "b"])
        >>> classifier.push_to_hub("user/model", private=True)  # doctest: +SKIP
        """
        shared = _hub().SharedClassifier(prepare(self, evaluation, about, repo_id))
        return str(shared.push_to_hub(repo_id, **hub_arguments))


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be written.

    Attributes
    ----------
    contents, tensors : dict
        What goes into its two files.
    card : str
        The model card.
    picture : bytes or None
        What it shows.
    """

    contents: Contents
    tensors: Tensors
    card: str
    picture: bytes | None

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the files."""
        with new_folder(folder, overwrite=overwrite, ours=_OURS.__contains__) as temporary:
            write_files(temporary, self.contents, self.tensors)
            # A label can hold half a character; a card cannot.
            (temporary / CARD).write_bytes(self.card.encode("utf-8", "replace"))
            if self.picture is not None:
                (temporary / PICTURE).write_bytes(self.picture)
            # Once more: something else may have come to stand there.
            check_replaceable(Path(folder), overwrite=overwrite)


def prepare(
    fitted: Any,
    evaluation: Any,
    about: str | None,
    place: str,
    picture: bytes | None = None,
) -> Prepared:
    """Describe a classifier, and make sure that it can be restored, before anything is written.

    Parameters
    ----------
    fitted : PrototypeClassifier
        What to write.
    evaluation, about, picture
        As for `SavingMixin.save`.
    place : str
        What the card says to load it from.

    Returns
    -------
    Prepared
        Ready to be written.
    """
    check_is_fitted(fitted)
    contents, tensors = describe(fitted, evaluation, about)
    try:
        restore(type(fitted), contents, tensors, "auto")
    except FlawError as flaw:
        raise ValueError(
            f"this classifier cannot be saved: {flaw.file} {flaw.problem} Correct that, or fit it "
            "again."
        ) from flaw
    shown = None if picture is None else PICTURE
    card = model_card(contents, tensors["class_counts"], place, picture=shown)
    return Prepared(contents, tensors, card, picture)


def check_replaceable(folder: Path, *, overwrite: bool) -> None:
    """Refuse to overwrite what is no model: it could be anything, a home folder included."""
    check_free(folder, overwrite=overwrite, folder=True)
    try:
        is_strange = folder.is_dir() and any(folder.iterdir()) and not is_model(folder)
    except OSError as error:
        raise explained(error, folder) from error
    if is_strange:
        raise OutputError(
            errno.EEXIST,
            f"{folder} is there and holds no protail model, so it is not replaced, not even with "
            "overwrite; expected a free name or a model's folder. Choose another name.",
        )


def _is_a_path(name: str) -> bool:
    """Whether a name can only be a folder's: repositories are called user/model, or model."""
    return os.path.isabs(name) or name.startswith((".", "~")) or len(Path(name).parts) > 2


def _hub() -> Any:
    try:
        from protail.estimator import _hub
    except ImportError as error:
        raise ImportError(not_installed("sharing models", "huggingface_hub", "hub")) from error
    return _hub
