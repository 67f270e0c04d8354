"""Models on the Hugging Face Hub. Imported only where they are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, snapshot_download

from protail.estimator._card import TAGS
from protail.estimator._model_file import MODEL, WEIGHTS
from protail.estimator._saving import Prepared


class SharedClassifier(ModelHubMixin, library_name="protail", tags=list(TAGS)):
    """What the hub sees of a classifier.

    The classifier itself does not inherit from the mixin, which wants a say in how objects are
    made; scikit-learn's ``clone`` wants the same.

    Parameters
    ----------
    prepared : Prepared, optional
        A model to upload.
    folder : Path, optional
        A model that was downloaded.
    """

    def __init__(self, prepared: Prepared | None = None, folder: Path | None = None) -> None:
        self.prepared = prepared
        self.folder = folder
        # All that is to be known stands in model.json: no config.json is written.
        self._hub_mixin_config = None

    def _save_pretrained(self, save_directory: Path) -> None:
        assert self.prepared is not None
        self.prepared.write(save_directory)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        **model_kwargs: Any,
    ) -> Self:
        """Download a model; unlike the mixin's own, this looks for no config.json.

        Parameters
        ----------
        pretrained_model_name_or_path : str
            The repository.
        force_download, token, cache_dir, local_files_only, revision
            As in ``huggingface_hub``.
        **model_kwargs
            There are none.

        Returns
        -------
        SharedClassifier
            With the ``folder`` it lies in.
        """
        return cls._from_pretrained(
            model_id=str(pretrained_model_name_or_path),
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            **model_kwargs,
        )

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **model_kwargs: Any,
    ) -> Self:
        if model_kwargs:
            raise TypeError(
                f"{sorted(model_kwargs)[0]!r} is no argument of from_pretrained; expected "
                "revision, token, cache_dir, force_download or local_files_only."
            )
        # One snapshot: both files are of the same commit.
        folder = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            allow_patterns=[MODEL, WEIGHTS],
        )
        return cls(folder=Path(folder))
