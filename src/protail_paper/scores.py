"""What a result says of a head: accuracies, which images are right, what an image takes, norms."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protail.experiments import cost_of, evaluate_logits, logits_of_test
from protail.training import Features, FrozenFeatures
from protail_paper.paper import GROUPS


def score_head(head: nn.Module, features: Features) -> dict[str, Any]:
    """Evaluate a head on the test images, plain and averaged with their mirror images.

    Parameters
    ----------
    head : nn.Module
        Features to logits.
    features : FrozenFeatures or GivenFeatures
        Where the features of the test images come from.

    Returns
    -------
    dict
        "scores" and "right"; "cost" where there is a backbone; "norms" where the head has one
        matrix of class vectors. In values that JSON can hold.
    """
    scores: dict[str, Any] = {}
    right: dict[str, str] = {}
    for view, logits in logits_of_test(head, features).items():
        evaluation = evaluate_logits(logits, features)
        scores[view] = {group: getattr(evaluation, group) for group in GROUPS}
        scores[view]["balanced"] = evaluation.balanced_accuracy
        scores[view]["calibration_error"] = evaluation.calibration_error
        predicted = torch.softmax(logits, 1).argmax(1).cpu().numpy()
        right[view] = pack_bits(predicted == features.test_labels)
    cost = {"cost": cost_of(head, features)} if isinstance(features, FrozenFeatures) else {}
    return {"scores": scores, "right": right, **cost, **_norms(head), **_temperatures(head)}


def class_vectors(head: nn.Module) -> Tensor:
    """Give the vector that a head has for each class: a prototype, or a row of weights."""
    vectors = _one_matrix(head)
    if vectors is None:
        raise TypeError(
            f"head is a {type(head).__name__}; expected one with a vector for each class "
            "(prototypes, or weight)."
        )
    return vectors.detach().float()


def _one_matrix(head: nn.Module) -> Tensor | None:
    """Find the class vectors; heads of experts, and those built on another one, have none."""
    found = getattr(head, "prototypes", getattr(head, "weight", None))
    return found if isinstance(found, Tensor) and found.ndim == 2 else None


def _norms(head: nn.Module) -> dict[str, Any]:
    if _one_matrix(head) is None:
        return {}
    return {"norms": [round(float(norm), 4) for norm in class_vectors(head).norm(dim=1)]}


def _temperatures(head: nn.Module) -> dict[str, Any]:
    temperature = getattr(head, "temperature", None)
    if temperature is None:
        return {}
    values = temperature.detach().float().flatten()
    quantiles = torch.quantile(values.cpu(), torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]))
    return {"temperature_quantiles": [round(float(value), 4) for value in quantiles]}


def pack_bits(right: NDArray[np.bool_]) -> str:
    """Write which images are right as short text.

    Parameters
    ----------
    right : ndarray of bool
        One entry an image.

    Returns
    -------
    str
        The bits in base 64, eight to a byte, the last byte filled with zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from protail_paper.scores import pack_bits, unpack_bits
    >>> text = pack_bits(np.array([True, False, True]))
    >>> text, unpack_bits(text, 3).tolist()
    ('oA==', [True, False, True])
    """
    return base64.b64encode(np.packbits(right).tobytes()).decode("ascii")


def unpack_bits(text: str, n: int | None = None) -> NDArray[np.bool_]:
    """Read what `pack_bits` wrote.

    Parameters
    ----------
    text : str
        The bits in base 64.
    n : int, optional
        Number of images; by default all bits, those that only fill the last byte too.

    Returns
    -------
    ndarray of bool
        One entry an image.

    Examples
    --------
    >>> from protail_paper.scores import unpack_bits
    >>> unpack_bits("gA==", 2).tolist()
    [True, False]
    """
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    return np.unpackbits(packed, count=n).astype(np.bool_)
