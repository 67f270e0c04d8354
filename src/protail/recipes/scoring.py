"""Judging what training came to, on the test images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protail.backbones.cost import gflops, gflops_with
from protail.data.sets import DataSet, FeatureData
from protail.evaluation import Evaluation
from protail.heads.routed_experts import RoutedExpertsHead
from protail.methods import Method
from protail.recipes.jobs import Job, Options
from protail.training.classifier import learn_heads
from protail.training.feature_cache import FeatureCache
from protail.training.frozen import FrozenFeatures
from protail.training.given import Features, GivenFeatures
from protail.training.inference import inferring
from protail.training.settings import Precision

# Weights of the backbone that stage 2 is judged by, where it is not the one of stage 1.
CLASSIFIER_BACKBONE = "classifier_backbone"


@dataclass(frozen=True)
class Scores:
    """What came out of a job.

    Attributes
    ----------
    record : dict
        Scores of each stage, plain and, where there are mirror images, averaged with them.
    weights : dict of str to Tensor
        Everything learned, by stage.
    """

    record: dict[str, Any]
    weights: dict[str, Tensor]


def evaluate_job(job: Job, method: Method | None, options: Options) -> Scores:
    """Evaluate stage 1, learn stage 2 on it where the recipe has one, and evaluate that.

    Parameters
    ----------
    job : Job
        What to do.
    method : Method or None
        What stage 1 came to; None on features.
    options : Options
        How to run.

    Returns
    -------
    Scores
        What came out.
    """
    features: Features
    record: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    if isinstance(job.data, FeatureData):
        features = GivenFeatures(job.data, options.device)
    else:
        assert method is not None
        cache = FeatureCache(options.cache)
        features = FrozenFeatures(method.backbone, job.data, options.device, cache)
        record |= evaluate_heads({"representation": method.head}, features)
        weights |= _named("backbone", method.backbone) | _named("representation", method.head)
    if job.recipe.classifier is not None:
        first_head = None if method is None else method.head
        wanted = {"": job.recipe.classifier}
        how: dict[str, Any] = {"driver": options.head_driver, "first_head": first_head}
        [head] = learn_heads(wanted, features, seed=job.seed, **how).values()
        judged_by = features.for_stage(job.recipe.classifier, job.seed)
        record |= evaluate_heads({"classifier": head}, judged_by)
        weights |= _named("classifier", head)
        if isinstance(judged_by, FrozenFeatures) and judged_by is not features:
            weights |= _named(CLASSIFIER_BACKBONE, judged_by.backbone)
    return Scores(record, weights)


def _named(part: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{part}.{name}": tensor for name, tensor in module.state_dict().items()}


def evaluate_heads(heads: Mapping[str, nn.Module], features: Features) -> dict[str, Any]:
    """Judge heads on the test images, as they are and averaged with their mirror images.

    Parameters
    ----------
    heads : mapping of str to nn.Module
        Features to logits, by stage.
    features : FrozenFeatures or GivenFeatures
        What they are judged by.

    Returns
    -------
    dict
        By stage, "plain" and, where there are mirror images, "mirrored"; where there is a backbone
        also "cost", what an image takes: ``gflops`` and, where a gate chooses among experts,
        ``experts_used``, the mean over the test images.
    """
    record: dict[str, Any] = {}
    for stage, head in heads.items():
        record[stage] = {
            view: judge(logits, features).to_dict()
            for view, logits in logits_of_test(head, features).items()
        }
        if isinstance(features, FrozenFeatures):
            record[stage]["cost"] = cost_of(head, features)
    return record


def cost_of(head: nn.Module, features: FrozenFeatures) -> dict[str, float]:
    """Say what an image takes.

    Parameters
    ----------
    head : nn.Module
        Features to logits.
    features : FrozenFeatures
        Knows the backbone and the test images.

    Returns
    -------
    dict of str to float
        "gflops" and, where a gate chooses among experts, "experts_used", the mean over the test
        images.
    """
    backbone, size = features.backbone, features.image_size
    if not isinstance(head, RoutedExpertsHead):
        return {"gflops": gflops(backbone, size)}
    with inferring(head):
        used = float(head.experts_used(features.test()).double().mean())
    return {"gflops": gflops_with(backbone, used, size), "experts_used": used}


def logits_of_test(head: nn.Module, features: Features) -> dict[str, Tensor]:
    """Give a head's logits of the test images.

    Parameters
    ----------
    head : nn.Module
        Features to logits.
    features : FrozenFeatures or GivenFeatures
        What it is judged by.

    Returns
    -------
    dict of str to Tensor
        "plain" and, where there are mirror images, "mirrored": averaged with those.
    """
    plain, mirrored = features.test(), features.test(mirrored=True)
    assert plain is not None
    logits = {"plain": _logits(head, plain)}
    if mirrored is not None:
        logits["mirrored"] = (logits["plain"] + _logits(head, mirrored)) / 2
    return logits


def look(
    head: nn.Module, frozen: FrozenFeatures, data: DataSet, precision: Precision
) -> Evaluation:
    """Judge a head quickly, while training; what it says decides nothing."""
    return judge(_logits(head, frozen.of(data.test, precision)), frozen)


def _logits(head: nn.Module, features: Tensor) -> Tensor:
    with inferring(head):
        logits: Tensor = head(features)
    return logits.float()


def judge(logits: Tensor, features: Features) -> Evaluation:
    """Judge logits of the test images.

    Parameters
    ----------
    logits : Tensor, shape (n_images, n_classes)
        The highest is what is predicted.
    features : FrozenFeatures or GivenFeatures
        Knows the labels, and the counts that classes are grouped by.

    Returns
    -------
    Evaluation
        What it came to.
    """
    confidence, predicted = torch.softmax(logits, 1).max(1)
    return Evaluation.from_predictions(
        features.test_labels,
        predicted.cpu(),
        classes=range(len(features.counts)),
        counts=features.group_counts,
        confidence=confidence.cpu(),
    )


def group_scores(evaluation: Evaluation) -> dict[str, float]:
    """Give the paper's four numbers, as far as there are such classes."""
    scores = {name: getattr(evaluation, name) for name in ("all", "many", "medium", "few")}
    return {name: value for name, value in scores.items() if value is not None}
