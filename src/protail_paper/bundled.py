"""Tables 1, 2 and 8 on the features that come with the package: seconds on a CPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from protail.data.images import FeatureData
from protail.evaluation import Evaluation
from protail.experiments import Options, Pipeline, evaluate_logits, logits_of_test
from protail.training import ClassifierSettings, RepresentationSettings
from protail_paper.tables import TABLES, Row, Table
from protail_paper.wanted import Experiment

BUNDLED_TABLES = tuple(TABLES[name] for name in ("table1", "table2", "table8"))
# What computed the features.
BACKBONE, SEED = "ResNet-32", 0
# Enough for the loss, which has one minimum, to be there.
_SOFTMAX_EPOCHS = 20
# What a head of stage 1 that is learned again on frozen features is learned with.
_KEPT = (
    *("head", "head_options", "loss", "loss_options", "sampler", "sampler_options"),
    *("batch_size", "lr", "momentum", "nesterov", "weight_decay", "schedule", "drops"),
)


def bundled_experiment(table: Table, row: Row) -> Experiment:
    """Give the experiment that a row of a table comes to on the bundled features.

    Parameters
    ----------
    table : Table
        One of ``BUNDLED_TABLES``.
    row : Row
        A row of it.

    Returns
    -------
    Experiment
        The one that was run on the images these features were computed from.

    Examples
    --------
    >>> from protail_paper.bundled import BUNDLED_TABLES, bundled_experiment
    >>> table = BUNDLED_TABLES[0]
    >>> bundled_experiment(table, table.rows[1]).recipe_name
    'wd-resnet32/ncm'
    """
    return table.experiment(row, BACKBONE, SEED)


def evaluate_bundled(data: FeatureData) -> dict[str, dict[str, Evaluation]]:
    """Learn and evaluate the classifiers of Tables 1, 2 and 8 on features.

    Parameters
    ----------
    data : FeatureData
        The data set "cifar100-lt-features".

    Returns
    -------
    dict of str to dict of str to Evaluation
        By the key of `bundled_experiment`, then "plain" and "mirrored".
    """
    experiments = [bundled_experiment(table, row) for table in BUNDLED_TABLES for row in table.rows]
    wanted = {experiment.key: experiment.recipe for experiment in experiments}
    classifiers = {key: one.classifier for key, one in wanted.items() if one.classifier is not None}
    softmaxes = {
        key: refitted(one.representation)
        for key, one in wanted.items()
        if one.classifier is None and one.representation is not None
    }
    cpu = Options(torch.device("cpu"), "plain")
    # The stream is that of stage 2; a softmax learns from the training images as they are.
    learned = Pipeline(replace(data, stream=None), SEED, cpu).learn(softmaxes)
    learned |= Pipeline(data, SEED, cpu).learn(classifiers)
    return {
        key: {
            view: evaluate_logits(logits, one.features)
            for view, logits in logits_of_test(*one).items()
        }
        for key, one in learned.items()
    }


def refitted(stage: RepresentationSettings) -> ClassifierSettings:
    """Say how to learn the head of stage 1 again, where only its features are left.

    Parameters
    ----------
    stage : RepresentationSettings
        What the head was learned with.

    Returns
    -------
    ClassifierSettings
        The same loss, learning rate and decay, on frozen features of images as they are.

    Examples
    --------
    >>> from protail.training import RepresentationSettings
    >>> from protail_paper.bundled import refitted
    >>> settings = refitted(RepresentationSettings(weight_decay=0.002))
    >>> settings.head, settings.sampler, settings.weight_decay
    ('linear', 'instance', 0.002)
    """
    kept = {name: getattr(stage, name) for name in _KEPT}
    return ClassifierSettings(**kept, centroids=None, epochs=_SOFTMAX_EPOCHS, augment=())
