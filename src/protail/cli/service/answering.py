"""Answers to single requests: bytes of a photo, or numbers, in; classes out."""

from __future__ import annotations

import copy
import io
import json
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli.sources import Answers, Model, ask

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

# What browsers and cameras make. Other decoders of Pillow are less used, and less tried by fire.
PHOTO_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 50_000_000


class RefusedError(ValueError):
    """Say what is wrong with a request.

    Parameters
    ----------
    status : int
        The HTTP status, 4xx.
    message : str
        What came, what was expected.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Answerer:
    """Answer about photos or feature rows, computing once what all answers need.

    Parameters
    ----------
    model : Model
        Whom to ask.
    most_pixels : int
        Photos with more are refused before they are decoded.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from protail import PrototypeClassifier
    >>> from protail.cli.service import Answerer
    >>> from protail.cli.sources import Model
    >>> folder = Path(tempfile.mkdtemp())
    >>> PrototypeClassifier().fit(np.eye(4), ["ant", "ant", "bee", "bee"]).save(folder)
    >>> answerer = Answerer(Model.load(folder))
    >>> answerer.about_rows(answerer.rows_in(b'{"features": [1, 0, 0, 0]}'), k=1)[0]["label"]
    'ant'
    """

    def __init__(self, model: Model, most_pixels: int = MOST_PIXELS) -> None:
        self.model, self.most_pixels = model, most_pixels
        self._inference: Any = None
        head: Any = model.head
        if hasattr(head, "_inference"):
            some = np.ones((1, self.n_features), np.float32)
            self._inference = head._inference(some)
            self._asked(self._inference, 1)

    @property
    def n_features(self) -> int:
        """How many numbers a feature row has."""
        return self.model.n_features

    @property
    def takes_photos(self) -> bool:
        """Whether there is a backbone."""
        return self.model.network is not None

    def about_photo(self, data: bytes, k: int) -> dict[str, Any]:
        """Say what is on a photo.

        Parameters
        ----------
        data : bytes
            The file.
        k : int
            How many classes to name.

        Returns
        -------
        dict
            As in `about_rows`.
        """
        if self.model.network is None:
            raise RefusedError(
                415,
                "a photo came, and this model takes feature rows; expected JSON, as in "
                f'{{"features": [...]}} with {counted(self.n_features, "number")}.',
            )
        image = _decoded(data, self.most_pixels)
        return self.about_rows(self.model.network.features(image), k)[0]

    def rows_in(self, data: bytes) -> Array:
        """Read feature rows out of JSON.

        Parameters
        ----------
        data : bytes
            An object with ``features``: one row, or a list of rows.

        Returns
        -------
        ndarray of float32, shape (n_rows, n_features)
            Finite numbers.
        """
        wanted = f'{{"features": [...]}} with one row of {self.n_features} numbers, or several'
        try:
            found = json.loads(data)["features"]
            rows = np.atleast_2d(np.asarray(found))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise RefusedError(422, f"the body cannot be read; expected {wanted}.") from error
        if rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != self.n_features:
            shape = f"{rows.dtype} of shape {rows.shape}"
            raise RefusedError(422, f"features are {shape}; expected {wanted}.")
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise RefusedError(422, "features hold NaN or infinity; expected finite numbers.")
        return rows

    def about_rows(self, rows: Array, k: int) -> list[dict[str, Any]]:
        """Say what feature rows are.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_features)
            Finite numbers.
        k : int
            How many classes to name.

        Returns
        -------
        list of dict
            For each row ``label``, ``probability``, ``novelty`` and ``top``: the likeliest classes
            with their ``code``, ``label``, ``probability`` and ``distance``. Of a model that
            rejects also ``rejected``; then ``label`` is None.
        """
        answers = self._answers(rows, min(k, len(self.model.classes)))
        if not np.isfinite(answers.probabilities).all():
            raise RefusedError(422, "features are too large to compute with; expected usual ones.")
        labels = self.model.classes[answers.codes].tolist()
        found = []
        columns = (answers.codes, answers.probabilities, answers.distances)
        for row, names in enumerate(labels):
            codes, probabilities, distances = (column[row].tolist() for column in columns)
            top = [
                {"code": code, "label": label, "probability": p, "distance": _finite(distance)}
                for code, label, p, distance in zip(
                    codes, names, probabilities, distances, strict=True
                )
            ]
            first = {"label": names[0], "probability": probabilities[0]}
            if answers.rejected is not None:
                first["rejected"] = bool(answers.rejected[row])
                first["label"] = None if first["rejected"] else names[0]
            found.append({**first, "novelty": _finite(float(answers.novelty[row])), "top": top})
        return found

    def _answers(self, rows: Array, k: int) -> Answers:
        if self._inference is None:
            return ask(self.model, rows, k)
        head: Any = self.model.head
        # A copy keeps what was computed for all rows, such as the factor of the covariance.
        inference = copy.copy(self._inference)
        inference._features = head._placed(rows, inference._features.device, keep=False)
        return Answers(np.ones(len(rows), bool), *self._asked(inference, k))

    def _asked(self, inference: Any, k: int) -> tuple[Array, Array, Array, Array, Array | None]:
        rejected = inference.collect(inference.rejects) if self.model.rejects else None
        return (*inference.top_k(k), inference.collect(inference.novelty_of), rejected)


def _decoded(data: bytes, most_pixels: int) -> Image:
    """Open a photo that is not too large, whatever its bytes say."""
    from PIL import Image

    from protail.data.images import DataSetError, read_image

    expected = f"expected a whole photo: {', '.join(PHOTO_FORMATS)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=PHOTO_FORMATS) as image:
                width, height = image.size
            if width * height <= most_pixels:
                return read_image(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise RefusedError(413, f"the photo has too many pixels; {expected}.") from error
    except (OSError, ValueError, SyntaxError, MemoryError, DataSetError) as error:
        raise RefusedError(422, f"the photo cannot be read; {expected}.") from error
    raise RefusedError(
        413,
        f"the photo has {width} x {height} pixels; expected at most {most_pixels:,}. Make it "
        "smaller.",
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
