"""CIFAR: the same images as torchvision, and files that are missing, damaged or hostile."""

import hashlib
import os
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torchvision.datasets

from protail.data.images import DataSetError, cifar, load_dataset
from reference.image_data import write_cifar
from reference.real_data import cifar_root, real_cifar

NAMES = ["cifar10-lt", "cifar100-lt"]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def root(name, tmp_path, monkeypatch):
    """A generated set in the layout of the real one, its MD5s known."""
    source = write_cifar(tmp_path, name)
    monkeypatch.setitem(cifar.SOURCES, name, source)
    reader = getattr(torchvision.datasets, source.torchvision_class)
    monkeypatch.setattr(reader, "train_list", [list(pair) for pair in source.train.items()])
    monkeypatch.setattr(reader, "test_list", [list(pair) for pair in source.test.items()])
    meta = {"filename": next(iter(source.meta)), "md5": next(iter(source.meta.values()))}
    monkeypatch.setattr(reader, "meta", {**meta, "key": source.names_key})
    return tmp_path


def check_against_torchvision(name, root):
    reader = getattr(torchvision.datasets, cifar.SOURCES[name].torchvision_class)
    data = load_dataset(name, root=root, imbalance=4, download=False)
    for part, theirs in ((data.train, reader(root, train=True)), (data.test, reader(root, False))):
        assert part.pixels.dtype == np.uint8
        assert (part.pixels.transpose(0, 2, 3, 1) == theirs.data[part.origin]).all()
        assert (part.labels == np.array(theirs.targets)[part.origin]).all()
        assert list(part.classes) == theirs.classes
        assert np.asarray(part.image(3)).tolist() == theirs.data[part.origin[3]].tolist()
    assert (data.test.origin == np.arange(len(theirs))).all()


def test_the_images_are_torchvisions(name, root):
    check_against_torchvision(name, root)


def test_the_real_images_are_torchvisions(name):
    check_against_torchvision(name, cifar_root(name))


def test_description_says_how_it_was_drawn(name, root):
    data = load_dataset(name, root=root, imbalance=2.5, kind="step", seed=3)
    assert data.description == {
        "imbalance": 2.5,
        "kind": "step",
        "selection": "shuffled",
        "seed": 3,
        "n_max": 20,
    }
    half = len(data.train.classes) // 2
    assert data.train.profile.counts.tolist() == [20] * half + [8] * half
    assert data.validation is None


def test_the_authors_two_subsets(name, root):
    data = load_dataset(name, root=root, imbalance=4, selection="author", seed=3)
    first = load_dataset(name, root=root, imbalance=4, selection="first")
    shuffled = load_dataset(name, root=root, imbalance=4, seed=3)
    assert data.train.fingerprint() == first.train.fingerprint()
    assert data.classifier_train.fingerprint() == shuffled.train.fingerprint()
    assert (data.classifier_train.origin == shuffled.train.origin).all()
    assert data.description == {**shuffled.description, "selection": "author"}
    n = len(data.train)
    assert f"{n} train, {n} classifier_train, " in repr(data)
    assert list(data.parts) == ["train", "classifier_train", "test"]
    assert first.classifier_train is None
    assert shuffled.classifier_train is None


def test_an_unknown_selection_is_told(name, root):
    with pytest.raises(ValueError, match=r"selection='auther' is unknown.*Did you mean 'author'"):
        load_dataset(name, root=root, selection="auther")


def test_what_the_real_subsets_of_the_author_share():
    data = real_cifar("cifar100-lt", selection="author")
    shared = np.isin(data.train.origin, data.classifier_train.origin)
    few = np.isin(data.train.labels, data.train.profile.groups()["few"])
    assert (shared.sum(), len(shared)) == (5_580, 10_847)
    assert (shared[few].sum(), few.sum()) == (3, 305)


def test_balanced_keeps_every_image(name, root):
    data = load_dataset(name, root=root, imbalance=1)
    assert sorted(data.train.origin) == list(range(20 * len(data.train.classes)))


def test_the_environment_names_the_root(name, root, monkeypatch):
    monkeypatch.setenv("PROTAIL_DATA", str(root))
    assert len(load_dataset(name, imbalance=1, download=False).train) > 0


def test_a_missing_file_is_named(name, root):
    source = cifar.SOURCES[name]
    lost = list(source.train)[-1]
    (root / source.folder / lost).unlink()
    with pytest.raises(DataSetError) as caught:
        load_dataset(name, root=root, download=False)
    assert lost in str(caught.value)
    assert str(root / source.folder) in str(caught.value)
    assert f"protail data prepare {name}" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut short", "one bit"])
def test_a_damaged_file_is_not_unpickled(name, root, damage, monkeypatch):
    source = cifar.SOURCES[name]
    file = root / source.folder / next(iter(source.test))
    content = bytearray(file.read_bytes())
    if damage == "cut short":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)
    read = []
    monkeypatch.setattr(cifar, "_ArrayUnpickler", _Recorder(cifar._ArrayUnpickler, read))
    with pytest.raises(DataSetError, match="MD5 differs"):
        load_dataset(name, root=root)
    assert hashlib.md5(content).hexdigest() not in read


class _Recorder:
    def __init__(self, unpickler, read):
        self.unpickler, self.read = unpickler, read

    def __call__(self, stream, **options):
        self.read.append(hashlib.md5(stream.getvalue()).hexdigest())
        return self.unpickler(stream, **options)


def test_a_pickle_that_runs_code_is_refused(name, root, monkeypatch):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(root / "hacked"),)

    source = cifar.SOURCES[name]
    file = next(iter(source.test))
    content = pickle.dumps(Hostile())
    (root / source.folder / file).write_bytes(content)
    known = replace(source, test={file: hashlib.md5(content).hexdigest()})
    monkeypatch.setitem(cifar.SOURCES, name, known)
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        load_dataset(name, root=root)
    assert not (root / "hacked").exists()


def test_what_is_missing_is_downloaded_through_torchvision(name, root, tmp_path, monkeypatch):
    source = cifar.SOURCES[name]
    asked = []

    class Reader:
        url = "https://example.org/cifar.tar.gz"

        def __init__(self, root, download):
            asked.append((root, download))
            (tmp_path / source.folder).rename(os.path.join(root, source.folder))

    monkeypatch.setattr(torchvision.datasets, source.torchvision_class, Reader)
    new = tmp_path / "deep" / "new"
    assert len(load_dataset(name, root=new, imbalance=1).test) > 0
    assert asked == [(str(new), True)]


def test_a_half_downloaded_archive_is_a_kind_error(name, root, tmp_path, monkeypatch):
    source = cifar.SOURCES[name]
    empty = tmp_path / "empty"
    empty.mkdir()
    reader = getattr(torchvision.datasets, source.torchvision_class)
    (empty / reader.filename).write_bytes(b"half an archive")

    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(DataSetError) as caught:
        load_dataset(name, root=empty)
    assert reader.url in str(caught.value)
    assert f"left ({empty / reader.filename})" in str(caught.value)


def test_a_folder_that_lacks_a_file_offline(name, root, monkeypatch):
    source = cifar.SOURCES[name]
    lost = list(source.train)[-1]
    (root / source.folder / lost).unlink()

    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(DataSetError) as caught:
        load_dataset(name, root=root)
    assert f"{name}: {lost} not found in {root / source.folder}" in str(caught.value)


def test_without_torchvision_the_extra_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(ImportError, match=r"pip install .*\[vision\]"):
        load_dataset(name, root=tmp_path)
