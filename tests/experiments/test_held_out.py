import dataclasses

import numpy as np
import pytest

from protail.data.images import DataSet, ImageSet
from protail.experiments import Search, held_out_data, read_searched_keys
from protail.recipes import load_recipe
from reference.easy_images import COUNTS, easy_data

RECIPE = load_recipe("pc")
KEYS = read_searched_keys(["classifier.tau"], RECIPE)


def contents(images):
    return {one.tobytes() for one in images.pixels}


@pytest.mark.parametrize("seed", [0, 7])
def test_parts_are_of_the_training_images_only(seed):
    data = easy_data()
    parts = held_out_data(data, fraction=0.2, seed=seed)
    train, held = contents(parts.train), contents(parts.test)
    assert train | held == contents(data.train)
    assert not train & held
    assert not held & contents(data.test)
    assert not train & contents(data.test)
    assert parts.validation is None
    assert len(parts.train) + len(parts.test) == len(data.train)


def test_every_class_with_two_images_is_judged_and_learned():
    parts = held_out_data(easy_data((*COUNTS, 1)), fraction=0.2)
    counts = np.array([*COUNTS, 1])
    held = parts.test.profile.counts
    np.testing.assert_array_equal(held[:-1], np.maximum(np.rint(0.2 * counts[:-1]), 1))
    assert held[-1] == 0
    np.testing.assert_array_equal(parts.train.profile.counts, counts - held)


def test_seed_and_share_decide_and_are_written_down():
    data = easy_data()
    again = held_out_data(data, seed=3)
    assert again.test.fingerprint() == held_out_data(data, seed=3).test.fingerprint()
    assert again.test.fingerprint() != held_out_data(data, seed=4).test.fingerprint()
    assert again.description == {"seed": 0, "held_out": 0.2, "held_out_seed": 3}


def test_identical_images_stay_together():
    pixels = np.repeat(np.arange(10, dtype=np.uint8), 2)[:, None, None, None]
    images = ImageSet([0] * 20, ("ant",), np.broadcast_to(pixels, (20, 3, 2, 2)).copy())
    for seed in range(5):
        parts = held_out_data(DataSet("twins", images, images), fraction=0.3, seed=seed)
        assert len(parts.test) == 6
        assert not contents(parts.train) & contents(parts.test)


def test_copies_of_one_file_stay_together(tmp_path):
    files = tuple(f"{i}.jpg" for i in range(20))
    for i, file in enumerate(files):
        (tmp_path / file).write_bytes(b"photo %02d" % (i // 2))
    images = ImageSet([0] * 20, ("ant",), files=files, folder=tmp_path)
    for seed in range(5):
        parts = held_out_data(DataSet("twins", images, images), fraction=0.3, seed=seed)
        assert len(parts.test) == 6
        train, held = ({p.read_bytes() for p in part.paths} for part in (parts.train, parts.test))
        assert not train & held


def test_classes_are_grouped_by_all_their_training_images():
    data = easy_data()
    np.testing.assert_array_equal(held_out_data(data).group_counts, data.train.profile.counts)


def test_images_in_files_are_parted(tmp_path):
    files = tuple(f"{i}.jpg" for i in range(10))
    for i, file in enumerate(files):
        (tmp_path / file).write_bytes(bytes(i))
    images = ImageSet([0] * 5 + [1] * 5, ("ant", "bee"), files=files, folder=tmp_path)
    parts = held_out_data(DataSet("files", images, images))
    assert sorted(parts.train.files + parts.test.files) == sorted(files)


def test_nothing_to_hold_out_is_told():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3, 1, 1)
    images = ImageSet([0, 1], ("ant", "bee"), pixels)
    with pytest.raises(ValueError, match="no class has two"):
        held_out_data(DataSet("single", images, images))


def test_stages_with_images_of_their_own_cannot_be_searched():
    data = easy_data()
    data = dataclasses.replace(data, classifier_train=data.train)
    with pytest.raises(ValueError, match="easy: its two stages learn from different images"):
        Search(RECIPE, data, KEYS)


def test_a_search_counts_all_training_images():
    search = Search(RECIPE, easy_data(), KEYS)
    np.testing.assert_array_equal(search.counts, COUNTS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": "balance"}, "Did you mean 'balanced'"),
        ({"fraction": 1.5}, "fraction=1.5"),
        ({"keys": ()}, "keys is empty"),
        ({"data": easy_data((30, 25))}, "fewer than 20"),
        ({"recipe": dataclasses.replace(RECIPE, representation=None)}, "as in 'wd/pc'"),
    ],
)
def test_a_search_that_cannot_be_is_told(change, words):
    given = {"recipe": RECIPE, "data": easy_data(), "keys": KEYS, "score": "few", **change}
    with pytest.raises(ValueError, match=words):
        Search(**given)
