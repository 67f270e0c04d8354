"""What a model says about labelled files, beside what is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from protail.cli._progress import row_progress
from protail.cli._sources import (
    Array,
    Model,
    ask,
    labels_for,
    leave_out_non_finite,
)
from protail.cli.command import Voice

if TYPE_CHECKING:
    from protail import Evaluation
    from protail.data.tables import FeatureFile


@dataclass(frozen=True)
class Judged:
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
        What follows.
    """

    rows: Array
    truth: Array
    predicted: Array
    confidence: Array
    novelty: Array
    n_non_finite: int
    evaluation: Evaluation


def judge(model: Model, files: Sequence[FeatureFile], voice: Voice) -> Judged:
    """Predict the rows of labelled files and evaluate the predictions.

    Parameters
    ----------
    model : Model
        Whom to judge.
    files : sequence of FeatureFile
        They have labels.
    voice : Voice
        Who tells the progress.

    Returns
    -------
    Judged
        Predictions and evaluation.
    """
    from protail import Evaluation

    classifier = model.classifier
    parts: list[tuple[Array, ...]] = []
    n_rows = 0
    with row_progress(voice, sum(file.n_rows for file in files)) as progress:
        for file in files:
            labels = labels_for(classifier.classes_, file.labels(), file.path)
            start = 0
            for block in file.blocks():
                answers = ask(model, block)
                rows = start + np.flatnonzero(answers.answered)
                parts.append(
                    (
                        n_rows + rows,
                        labels[rows],
                        classifier.classes_[answers.codes[:, 0]],
                        answers.probabilities[:, 0],
                        answers.novelty,
                    )
                )
                start += len(block)
                progress(len(block))
            n_rows += start
    rows, truth, predicted, confidence, novelty = map(np.concatenate, zip(*parts, strict=True))
    leave_out_non_finite(n_rows, len(truth), voice)
    evaluation = Evaluation.from_predictions(
        truth,
        predicted,
        classes=classifier.classes_,
        counts=classifier.class_counts_,
        confidence=confidence,
        novelty=novelty,
    )
    return Judged(rows, truth, predicted, confidence, novelty, n_rows - len(truth), evaluation)
