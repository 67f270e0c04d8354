"""A draw evaluated on images that a wider one has: which they are, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protail.data.images import (
    DataSet,
    ImageSet,
    cifar,
    load_dataset,
    long_tailed_counts,
    long_tailed_index,
    save_subset,
)
from protail.data.images.long_tail import subset_description
from protail.experiments import validation_counts, validation_data
from reference.image_data import write_cifar
from reference.real_data import real_cifar


def contents(images):
    return [one.tobytes() for one in images.pixels]


def same(first, second):
    assert first.description == second.description
    np.testing.assert_array_equal(first.group_counts, second.group_counts)
    for part in ("train", "test"):
        assert getattr(first, part).fingerprint() == getattr(second, part).fingerprint()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """CIFAR's layout, with 50 images of noise a class."""
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path, "cifar10-lt", 50))
    return tmp_path


def draws(source, root=None, wide=4, narrow=25, **options):
    return [load_dataset(source, root=root, imbalance=ratio, **options) for ratio in (wide, narrow)]


def drawn(counts, ratio, kept=None, test=None):
    """Make a draw of noise, or keep the first images of one."""
    if kept is None:
        labels = np.repeat(np.arange(len(counts)), counts)
        noise = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 4, 4), dtype=np.uint8)
        kept = ImageSet(labels, tuple(map(str, range(len(counts)))), noise)
    images = kept.subset(long_tailed_index(kept.labels, counts, "first"))
    if test is None:
        pixels = np.random.default_rng(1).integers(0, 256, (len(counts), 3, 4, 4), dtype=np.uint8)
        test = ImageSet(np.arange(len(counts)), kept.classes, pixels)
    about = subset_description(imbalance=ratio, kind="exp", selection="first", seed=0, n_max=99)
    return DataSet("noise", images, test, description=about)


@pytest.mark.parametrize("selection", ["shuffled", "first"])
@pytest.mark.parametrize("kind", ["exp", "step"])
def test_the_last_of_each_class_are_judged_on(root, selection, kind):
    wide, narrow = draws("cifar10-lt", root, selection=selection, kind=kind)
    parts = validation_data(wide, narrow)
    n_evaluated = 12 - 2
    evaluated, learned = [], []
    for label in range(10):
        there = wide.train.origin[wide.train.labels == label].tolist()
        evaluated += there[-n_evaluated:]
        kept = narrow.train.origin[narrow.train.labels == label]
        learned += [i for i in kept if i not in there[-n_evaluated:]]
    assert parts.test.origin.tolist() == evaluated
    assert parts.train.origin.tolist() == learned
    assert set(parts.test.profile.counts) == {n_evaluated}
    assert parts.validation is None
    assert not set(contents(parts.train)) & set(contents(parts.test))
    assert not set(contents(wide.test)) & set(contents(parts.test))
    np.testing.assert_array_equal(parts.group_counts, narrow.train.profile.counts)
    assert parts.description == {**narrow.description, "aside_from": 4}


@pytest.mark.parametrize("selection", ["shuffled", "first"])
def test_an_exported_wide_draw_gives_the_same(root, selection):
    wide, narrow = draws("cifar10-lt", root, selection=selection)
    save_subset(wide, root / "wide.zip")
    save_subset(narrow, root / "narrow.zip")
    expected = validation_data(wide, narrow)
    same(validation_data(*draws(root / "wide.zip")), expected)
    same(validation_data(wide, load_dataset(root / "narrow.zip")), expected)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=5),
)
def test_as_few_as_can_be_are_taken_from_the_narrow_draw(sizes):
    narrow = np.array([n for n, _ in sizes])
    wide = narrow + [more for _, more in sizes]
    learned, n_evaluated = validation_counts(wide, narrow)
    assert n_evaluated == wide.min() - narrow.min()
    if n_evaluated < 1:
        return
    # As many of every class are evaluated on, so no fewer can be taken than it lacks.
    np.testing.assert_array_equal(
        narrow - learned, [max(0, n_evaluated - more) for _, more in sizes]
    )
    assert (learned > 0).all()
    data = drawn(wide, 2)
    parts = validation_data(data, drawn(narrow, 3, data.train, data.test))
    np.testing.assert_array_equal(parts.train.profile.counts, learned)
    assert set(parts.test.profile.counts) == {n_evaluated}


def test_identical_images_are_judged_on_only_where_nobody_has_seen_them():
    data = drawn([9, 9], 1)
    data.train.pixels[8] = data.train.pixels[0]  # learned from
    data.train.pixels[17] = data.train.pixels[1]  # learned from, in the other class
    data.train.pixels[7] = data.train.pixels[6]  # both are evaluated on
    data.train.pixels[16] = data.test.pixels[0]
    parts = validation_data(data, drawn([6, 3], 3, data.train, data.test))
    assert parts.train.profile.counts.tolist() == [3, 3]
    assert parts.test.profile.counts.tolist() == [5, 4]
    assert contents(parts.test) == contents(data.train.subset([3, 4, 5, 6, 7, 12, 13, 14, 15]))


def test_wrong_use_is_told(root):
    wide, narrow = draws("cifar10-lt", root)
    for ratio in (4, 25):
        with pytest.raises(ValueError, match=r"at imbalance 25 than at .* a smaller ratio"):
            validation_data(narrow, load_dataset("cifar10-lt", root=root, imbalance=ratio))
    author = load_dataset("cifar10-lt", root=root, imbalance=25, selection="author")
    with pytest.raises(ValueError, match="two stages learn from different images"):
        validation_data(wide, author)
    others = {"selection": "first", "kind": "step", "seed": 1}
    for key, value in others.items():
        other = load_dataset("cifar10-lt", root=root, imbalance=25, **{key: value})
        with pytest.raises(ValueError, match=f"imbalance 4 and 25 differ in .*{key}"):
            validation_data(wide, other)
    with pytest.raises(ValueError, match="differ in name"):
        validation_data(wide, replace(narrow, name="cifar100-lt"))
    with pytest.raises(ValueError, match="not cut to a long tail"):
        validation_data(wide, replace(narrow, description={}))
    moved = replace(narrow, train=narrow.train.subset(np.arange(len(narrow.train))[::-1]))
    with pytest.raises(ValueError, match=r"at imbalance 25 is not what the one at 4 begins with"):
        validation_data(wide, moved)


def test_of_the_real_one_45_of_every_class_are_judged_on():
    wide, narrow = (real_cifar("cifar100-lt", ratio) for ratio in (10, 100))
    parts = validation_data(wide, narrow)
    evaluated, learned = parts.test.profile.counts, parts.train.profile.counts
    # One of them is, pixel by pixel, a test image.
    assert sorted(evaluated) == [44] + [45] * 99
    taken = narrow.train.profile.counts - learned
    assert taken[taken > 0].tolist() == [45, 34, 23, 13, 5]
    assert learned.min() == 5
    assert parts.group_counts.tolist() == long_tailed_counts(500, 100, 100).tolist()
    assert set(parts.train.origin) <= set(narrow.train.origin)
    assert set(parts.test.origin) <= set(wide.train.origin) - set(parts.train.origin)
    assert not set(contents(parts.test)) & set(contents(parts.train))
    assert not set(contents(parts.test)) & set(contents(wide.test))


@pytest.mark.slow
def test_an_exported_draw_of_the_real_one_gives_the_same(tmp_path):
    wide, narrow = (real_cifar("cifar100-lt", ratio) for ratio in (10, 100))
    save_subset(wide, tmp_path / "wide.zip")
    same(
        validation_data(*draws(tmp_path / "wide.zip", wide=10, narrow=100)),
        validation_data(wide, narrow),
    )
