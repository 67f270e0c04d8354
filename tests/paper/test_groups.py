"""Trainings and their names."""

import pytest

from protail_paper.comparisons import COMPARISONS
from protail_paper.groups import missing_groups, only_named, wanted_experiments
from protail_paper.tables import BACKBONES, TABLES
from protail_paper.tuning import CHOICES

WANTED = wanted_experiments(["table1"], BACKBONES)
EVERY_TABLE = [*TABLES, *COMPARISONS, *CHOICES]


def names(experiments):
    return [group.name for group in missing_groups(experiments, ())]


def test_all_experiments_of_the_trainings_called_so_in_the_order_of_the_patterns():
    wd = "wd (resnet34-cifar) on cifar100-lt-100, seed"
    small = "wd-resnet32 (resnet32) on cifar100-lt-100, seed"
    chosen = only_named(WANTED, ["*, seed 2", "wd (*"])
    assert names(chosen) == [f"{wd} 2", f"{small} 2", f"{wd} 0", f"{wd} 1"]
    assert len(chosen) == len({experiment.key for experiment in chosen}) == 28


def test_a_training_is_called_the_same_whatever_is_wanted_of_it():
    every = wanted_experiments(EVERY_TABLE, BACKBONES)
    called = {group.first.representation_key: group.name for group in missing_groups(every, ())}
    assert len(set(called.values())) == len(called)
    for table in EVERY_TABLE:
        for group in missing_groups(wanted_experiments([table], BACKBONES), ()):
            assert group.name == called[group.first.representation_key]


def test_a_name_is_a_pattern_of_itself():
    every = wanted_experiments(EVERY_TABLE, BACKBONES)
    groups = missing_groups(every, ())
    assert any("[" in group.name for group in groups)
    for group in groups:
        assert only_named(every, [group.name]) == list(group.experiments)


def test_a_pattern_that_names_nothing():
    with pytest.raises(ValueError, match=r"^'wd': no training is called like that; .*seed 0"):
        only_named(WANTED, ["*, seed 0", "wd"])
    assert only_named([], ["wd"]) == []
