"""Data sets by name: what is registered, what they take, and where data is looked for."""

from pathlib import Path

import pytest

from protail.data.images import (
    DataSet,
    DataSetError,
    data_root,
    dataset_names,
    load_dataset,
    register_dataset,
)
from protail.data.images.registry import DATA_SETS
from reference.image_data import resident


@pytest.fixture
def noise():
    @register_dataset("noise")
    def noise(root, size: int = 4, download: bool = True) -> DataSet:
        """Noise."""
        images = resident(size=(size, size))
        description = {"root": None if root is None else str(root), "download": download}
        return DataSet("noise", images, images, description=description)

    yield
    del DATA_SETS._factories["noise"]


def test_names():
    built_in = {"cifar10-lt", "cifar100-lt", "imagenet-lt", "places-lt", "inaturalist18"}
    assert {*built_in, "imagefolder", "features", "cifar100-lt-features"} <= set(dataset_names())


@pytest.mark.usefixtures("noise")
def test_a_new_data_set_is_one_function():
    assert "noise" in dataset_names()
    data = load_dataset("noise", size=6, root="here")
    assert data.train.pixels.shape[2:] == (6, 6)
    assert data.description == {"root": "here", "download": True}
    assert load_dataset("noise", download=False).description["download"] is False


@pytest.mark.usefixtures("noise")
def test_options_it_does_not_take():
    with pytest.raises(ValueError, match=r"'noise' takes no option 'imbalance'.*'size'"):
        load_dataset("noise", imbalance=10)
    with pytest.raises(ValueError, match=r"'cifar10-lt' takes no option 'lists'.*'imbalance'"):
        load_dataset("cifar10-lt", lists="x")


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'cifar100-lt'"):
        load_dataset("cifar100lt")


def test_a_name_is_free_once():
    with pytest.raises(ValueError, match="already"):
        register_dataset("cifar10-lt")(lambda root: None)


@pytest.mark.parametrize("name", sorted(set(dataset_names()) - {"imagefolder"}))
def test_every_data_set_says_kindly_that_it_is_not_there(name, tmp_path):
    with pytest.raises(DataSetError, match="--data-root") as caught:
        load_dataset(name, root=tmp_path, download=False)
    assert str(tmp_path) in str(caught.value)


def test_root(monkeypatch):
    monkeypatch.setenv("PROTAIL_DATA", "/somewhere")
    assert data_root() == Path("/somewhere")
    assert data_root("~/x") == Path("~/x").expanduser()
    monkeypatch.delenv("PROTAIL_DATA")
    assert data_root() == Path.home() / ".cache/protail"
