"""Judging what training came to, on the test images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protail.data.sets import DataSet
from protail.evaluation import Evaluation
from protail.training.frozen import FrozenFeatures
from protail.training.settings import Precision


def evaluate_heads(
    heads: Mapping[str, nn.Module], frozen: FrozenFeatures, data: DataSet
) -> dict[str, Any]:
    """Judge heads on the test images, as they are and averaged with their mirror images."""
    plain = frozen.of(data.test, "float32")
    mirrored = frozen.of(data.test, "float32", mirrored=True)
    record: dict[str, Any] = {}
    for stage, head in heads.items():
        with torch.no_grad():
            logits, others = head(plain).float(), head(mirrored).float()
        record[stage] = {
            "plain": _judged(logits, data).to_dict(),
            "mirrored": _judged((logits + others) / 2, data).to_dict(),
        }
    return record


def look(
    head: nn.Module, frozen: FrozenFeatures, data: DataSet, precision: Precision
) -> Evaluation:
    """Judge a head quickly, while training; what it says decides nothing."""
    with torch.no_grad():
        return _judged(head(frozen.of(data.test, precision)).float(), data)


def _judged(logits: Tensor, data: DataSet) -> Evaluation:
    confidence, predicted = torch.softmax(logits, 1).max(1)
    return Evaluation.from_predictions(
        data.test.labels,
        predicted.cpu(),
        classes=range(len(data.train.classes)),
        counts=data.train.profile.counts,
        confidence=confidence.cpu(),
    )


def group_scores(evaluation: Evaluation) -> dict[str, float]:
    """Give the paper's four numbers, as far as there are such classes."""
    scores = {name: getattr(evaluation, name) for name in ("all", "many", "medium", "few")}
    return {name: value for name, value in scores.items() if value is not None}
