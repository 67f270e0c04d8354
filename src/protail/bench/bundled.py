"""Tables 1, 2 and 8 on the features that come with the package: seconds on a CPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from protail.bench.rows import Row
from protail.bench.tables import TABLES, Table
from protail.bench.wanted import Cell
from protail.data.sets import FeatureData
from protail.evaluation import Evaluation
from protail.recipes.scoring import evaluate_heads
from protail.training.classifier import learn_heads
from protail.training.given import GivenFeatures
from protail.training.settings import ClassifierSettings, RepresentationSettings

BUNDLED_TABLES = tuple(TABLES[name] for name in ("table1", "table2", "table8"))
# What computed the features.
BACKBONE, SEED = "ResNet-32", 0
# Enough for the loss, which has one minimum, to be there.
_SOFTMAX_EPOCHS = 20


def bundled_cell(table: Table, row: Row) -> Cell:
    """Give the cell that a row of a table comes to on the bundled features.

    Parameters
    ----------
    table : Table
        One of ``BUNDLED_TABLES``.
    row : Row
        A row of it.

    Returns
    -------
    Cell
        The one that was run on the images these features were computed from.

    Examples
    --------
    >>> from protail.bench.bundled import BUNDLED_TABLES, bundled_cell
    >>> table = BUNDLED_TABLES[0]
    >>> bundled_cell(table, table.rows[1]).recipe_name
    'wd-resnet32/ncm'
    """
    return table.cell(row, BACKBONE, SEED)


def judge_bundled(data: FeatureData) -> dict[str, dict[str, Evaluation]]:
    """Learn and judge the classifiers of Tables 1, 2 and 8 on features.

    Parameters
    ----------
    data : FeatureData
        The data set "cifar100-lt-features".

    Returns
    -------
    dict of str to dict of str to Evaluation
        By the key of `bundled_cell`, then "plain" and "mirrored".
    """
    wanted = {}
    for table in BUNDLED_TABLES:
        for row in table.rows:
            cell = bundled_cell(table, row)
            wanted[cell.key] = cell.recipe
    cpu = torch.device("cpu")
    given = GivenFeatures(data, cpu)
    classifiers = {key: one.classifier for key, one in wanted.items() if one.classifier is not None}
    # The stream is that of stage 2; a softmax learns from the training images as they are.
    images = GivenFeatures(replace(data, stream=None), cpu)
    softmaxes = {
        key: refitted(one.representation)
        for key, one in wanted.items()
        if one.classifier is None and one.representation is not None
    }
    heads = learn_heads(softmaxes, images, seed=SEED) | learn_heads(classifiers, given, seed=SEED)
    return {
        key: {view: Evaluation.from_dict(one) for view, one in views.items()}
        for key, views in evaluate_heads(heads, given).items()
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
        The same loss, rate and decay, on frozen features of images as they are.

    Examples
    --------
    >>> from protail.bench.bundled import refitted
    >>> from protail.training.settings import RepresentationSettings
    >>> settings = refitted(RepresentationSettings(weight_decay=0.002))
    >>> settings.head, settings.sampler, settings.weight_decay
    ('linear', 'instance', 0.002)
    """
    return ClassifierSettings(
        head=stage.head,
        head_options=stage.head_options,
        loss=stage.loss,
        loss_options=stage.loss_options,
        centroids=None,
        epochs=_SOFTMAX_EPOCHS,
        batch_size=stage.batch_size,
        lr=stage.lr,
        momentum=stage.momentum,
        nesterov=stage.nesterov,
        weight_decay=stage.weight_decay,
        schedule=stage.schedule,
        drops=stage.drops,
        sampler=stage.sampler,
        sampler_options=stage.sampler_options,
        augment=(),
    )
