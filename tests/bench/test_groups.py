"""Trainings chosen by their names."""

import pytest

from protail.bench.groups import missing_groups, only_named
from protail.bench.tables import wanted_cells

WANTED = wanted_cells(["table1"], ["ResNet-34", "ResNet-32"])


def names(cells):
    return [group.name for group in missing_groups(cells, ())]


def test_all_cells_of_the_trainings_that_are_called_so_in_the_order_of_the_patterns():
    wd = "wd (resnet34-cifar) on cifar100-lt-100, seed"
    small = "wd-resnet32 (resnet32) on cifar100-lt-100, seed"
    chosen = only_named(WANTED, ["*, seed 2", "wd (*"])
    assert names(chosen) == [f"{wd} 2", f"{small} 2", f"{wd} 0", f"{wd} 1"]
    assert len(chosen) == len({cell.key for cell in chosen}) == 28
    assert only_named(WANTED, ["*"]) == [
        cell for group in missing_groups(WANTED, ()) for cell in group.cells
    ]


def test_a_pattern_that_names_nothing():
    with pytest.raises(ValueError, match=r"--only 'wd': no training is called like that; .*seed 0"):
        only_named(WANTED, ["*, seed 0", "wd"])
