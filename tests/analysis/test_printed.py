"""What the paper prints for all classes, beside the mean of what it prints for their groups."""

import json

import numpy as np
import pytest

from protail.analysis import printed_means
from protail.bench import PAPER_TABLES, PaperRow, PaperTable, paper_table, paper_value
from protail.data.sets import long_tailed_counts
from protail.profile import ClassProfile
from reference.real_data import shared

CIFAR = [len(group) for group in ClassProfile(long_tailed_counts(500, 100, 100)).groups().values()]
IMAGENET_TEXT, IMAGENET_CODE = [391, 473, 136], [385, 479, 136]  # many from 100 on, above 100
INATURALIST = [842, 4076, 3224]


def wrong(number, sizes):
    """Name rows that rounding does not explain: printed, and what the groups say."""
    digits = paper_table(number).decimals
    return {
        mean.row: (mean.printed, round(mean.computed, digits))
        for mean in printed_means(paper_table(number), sizes)
        if not mean.is_right
    }


def test_cifar_has_35_35_and_30_classes():
    assert CIFAR == [35, 35, 30]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {"Softmax": (46.12, 46.19), "+ CDT": (53.06, 52.71), "+ CDT + LA": (53.41, 54.30)}),
        (2, {"Softmax": (46.12, 46.19), "PC + Euclidean": (53.41, 54.30)}),
        (
            8,
            {
                "+ Channel T": (53.06, 52.71),
                "+ Class T": (52.47, 52.19),
                "+ Dense T": (52.17, 51.35),
            },
        ),
    ],
)
def test_cifar_tables(number, expected):
    assert wrong(number, CIFAR) == expected


def test_what_channel_temperatures_are_then_worth():
    means = {mean.row: mean.computed for mean in printed_means(paper_table(1), CIFAR)}
    assert round(means["+ CDT"] - means["PC"], 2) == 0.15
    printed = paper_value(1, "+ CDT", "all") - paper_value(1, "PC", "all")
    assert round(printed, 2) == 0.50


def test_imagenet_fits_the_groups_of_the_published_code():
    assert wrong(5, IMAGENET_CODE) == {
        "DRO-LT": (53.5, 53.0),
        "NCM": (50.1, 51.0),
        "PC (Ours)": (54.9, 54.6),
    }
    assert wrong(5, IMAGENET_TEXT) == {
        "CE": (44.4, 44.6),
        "cRT": (49.6, 49.7),
        "DRO-LT": (53.5, 53.1),
        "WD": (48.6, 48.8),
        "NCM": (50.1, 51.0),
        "PC (Ours)": (54.9, 54.7),
    }


def test_inaturalist_is_right_with_the_few_classes_that_there_are():
    assert sum(INATURALIST) == 8142
    assert wrong(6, INATURALIST) == {}
    # With the 3,599 that Table 7 has, two rows would be wrong.
    assert set(wrong(6, [842, 4076, 3599])) == {"CE", "WD"}


def test_group_sizes_are_those_of_the_lists():
    counts = json.loads(shared("data/splits/imagenet_lt_class_counts.json").read_text())
    profile = ClassProfile(np.array([counts[str(code)] for code in range(1000)]))
    assert [len(group) for group in profile.groups().values()] == IMAGENET_TEXT
    strict = profile.groups(many_inclusive=False)
    assert [len(group) for group in strict.values()] == IMAGENET_CODE


def test_rows_with_dashes_are_left_out():
    names = [mean.row for mean in printed_means(paper_table(6), INATURALIST)]
    assert len(names) == 9
    assert {"Focal Loss", "DRO-LT"}.isdisjoint(names)


@pytest.mark.parametrize(("printed", "is_right"), [(50.1, True), (50.2, True), (50.3, False)])
def test_one_unit_of_the_last_digit_is_allowed(printed, is_right):
    """Groups of 50.149 print as 50.1; an all of 50.151, one test row more, prints as 50.2."""
    row = PaperRow("x", (50.1, 50.1, 50.1, printed))
    table = PaperTable(0, "", "", None, None, 1, ("many", "medium", "few", "all"), (row,))
    [mean] = printed_means(table, [1, 1, 1])
    assert mean.computed == pytest.approx(50.1)
    assert mean.is_right is is_right


def test_tables_without_groups_and_wrong_sizes_are_refused():
    for table in PAPER_TABLES:
        if table.number in (3, 4, 9):
            with pytest.raises(ValueError, match=f"Table {table.number} with columns"):
                printed_means(table, CIFAR)
    for sizes in ([35, 35], [0, 0, 0], [-1, 2, 3]):
        with pytest.raises(ValueError, match="group_sizes"):
            printed_means(paper_table(1), sizes)
