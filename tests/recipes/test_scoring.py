"""Classes are grouped by all their training images, those that are held out too."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from protail.backbones import make_backbone
from protail.bench.scores import score_head
from protail.evaluation import Evaluation
from protail.recipes.scoring import evaluate_heads
from protail.training.frozen import FrozenFeatures
from reference.small_images import TINY, small_images


def frozen(**changes):
    torch.manual_seed(0)
    data = dataclasses.replace(small_images(), **changes)
    return FrozenFeatures(make_backbone(TINY), data, torch.device("cpu"))


def test_groups_go_by_the_counts_that_a_data_set_names():
    torch.manual_seed(0)
    head = nn.Linear(16, 4)
    named = frozen(group_counts=np.array([160, 30, 20, 8]))
    assert named.counts.tolist() == [60, 30, 15, 8]  # what losses go by
    for features, groups in ((frozen(), [[], [0, 1], [2, 3]]), (named, [[0], [1, 2], [3]])):
        judged = Evaluation.from_dict(evaluate_heads({"": head}, features)[""]["plain"])
        assert [list(group) for group in judged.groups.values()] == groups
        scores = score_head(head, features)["scores"]["plain"]
        assert {name: scores[name] for name in ("many", "medium", "few")} == {
            name: getattr(judged, name) for name in ("many", "medium", "few")
        }


def test_counts_of_other_classes_are_refused():
    with pytest.raises(ValueError, match=r"group_counts has 3 entries; expected 4"):
        frozen(group_counts=np.array([1, 2, 3]))
