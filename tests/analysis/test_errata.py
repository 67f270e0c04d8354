"""Table 7 of the paper beside what the class counts say."""

import json

import numpy as np
import pytest

from protail.analysis import TABLE_7, table7_entries, table7_errata, table7_row
from protail.data.sets import long_tailed_counts
from protail.profile import ClassProfile
from reference.real_data import shared


def cifar_profile(row):
    n_max, n_classes = (5000, 10) if row.dataset == "cifar10-lt" else (500, 100)
    return ClassProfile(long_tailed_counts(n_max, n_classes, row.imbalance))


def wrong(row, profile):
    entries = table7_entries(row, profile)
    assert len(entries) == 8
    return {
        (entry.attribute, entry.group): (entry.printed, entry.computed)
        for entry in entries
        if not entry.is_right
    }


@pytest.mark.parametrize(("dataset", "imbalance"), [("cifar10-lt", 100), ("cifar100-lt", 100)])
def test_rows_that_are_right(dataset, imbalance):
    row = table7_row(dataset, imbalance)
    assert wrong(row, cifar_profile(row)) == {}
    assert table7_errata(row, cifar_profile(row)) == []


def test_imbalance_10_has_300_images_too_many():
    row = table7_row("cifar100-lt", 10)
    assert wrong(row, cifar_profile(row)) == {("samples", "many"): (17_743, 17_443)}


def test_imbalance_50_has_a_class_of_20_among_the_few():
    row = table7_row("cifar100-lt", 50)
    assert wrong(row, cifar_profile(row)) == {
        ("classes", "medium"): (40, 41),
        ("classes", "few"): (19, 18),
        ("samples", "medium"): (2008, 2028),
        ("samples", "few"): (269, 249),
    }
    # That class is why: 20 is not below 20.
    assert (cifar_profile(row).counts == 20).sum() == 1


def test_inaturalist_does_not_add_up():
    row = table7_row("inaturalist18")
    sentences = table7_errata(row)
    assert [sentence.split(":")[0] for sentence in sentences] == ["classes", "samples"]
    assert "8,517" in sentences[0]
    assert row.classes[3] - row.classes[0] - row.classes[1] == 3224


def test_only_two_rows_do_not_add_up():
    odd = [(row.dataset, row.imbalance) for row in TABLE_7 if table7_errata(row)]
    assert odd == [("cifar100-lt", 10), ("inaturalist18", None)]


def test_what_the_table_does_not_have():
    assert table7_row("places-lt") is None
    assert table7_row("cifar100-lt", 20) is None


def test_imagenet_lt_follows_the_text_not_the_code():
    file = shared("data/splits/imagenet_lt_class_counts.json")
    counts = json.loads(file.read_text())
    profile = ClassProfile(np.array([counts[str(code)] for code in range(1000)]))
    assert profile.n_samples == 115_846
    assert [len(group) for group in profile.groups().values()] == [391, 473, 136]
    assert wrong(table7_row("imagenet-lt"), profile) == {}
    published_code = profile.groups(many_inclusive=False)
    assert [len(group) for group in published_code.values()] == [385, 479, 136]
