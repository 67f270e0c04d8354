"""Models on the Hugging Face Hub, without a network."""

import builtins
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

from protail import PrototypeClassifier
from protail.estimator import ModelFileError

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(60) % 3]
    return rng.normal(size=(60, 4)) + (y == "bee")[:, None], y


@pytest.fixture(scope="module")
def fitted(rows):
    return PrototypeClassifier(max_steps=8, random_state=0).fit(*rows)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub in a folder: what would go over the network is copied there."""

    def create_repo(api, repo_id, **options):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(api, *, repo_id, folder_path, **options):
        shutil.copytree(folder_path, tmp_path / "hub" / repo_id)
        return f"https://huggingface.co/{repo_id}/commit/1"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return tmp_path / "hub"


def assert_same_bits(one, other, X):
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.novelty_score(X), other.novelty_score(X))


def test_there_and_back(hub, fitted, rows):
    address = fitted.push_to_hub("user/bugs", evaluation={"all": 0.75}, about="by hand")
    assert address == "https://huggingface.co/user/bugs/commit/1"
    folder = hub / "user" / "bugs"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "model.json", "weights.safetensors"]
    assert_same_bits(PrototypeClassifier.from_pretrained(folder), fitted, rows[0])
    assert_same_bits(PrototypeClassifier.from_pretrained(str(folder)), fitted, rows[0])


def test_the_card_is_ours_and_the_hub_can_read_it(hub, fitted):
    fitted.push_to_hub("user/bugs", evaluation={"all": 0.75}, about="by hand")
    card = huggingface_hub.ModelCard.load(hub / "user" / "bugs" / "README.md")
    assert card.data.library_name == "protail"
    assert "long-tailed-recognition" in card.data.tags
    assert "from_pretrained('user/bugs')" in card.text
    assert "75.0 %" in card.text
    assert "by hand" in card.text
    assert "20" in card.text  # rows of each class


def test_out_of_the_cache(tmp_path, fitted, rows):
    """The layout in which huggingface_hub keeps what it has downloaded."""
    repository = tmp_path / "cache" / "models--user--bugs"
    fitted.save(repository / "blobs-of-the-model")
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in (repository / "blobs-of-the-model").iterdir():
        (snapshot / file.name).symlink_to(file)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    offline = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    loaded = PrototypeClassifier.from_pretrained("user/bugs", device="cpu", **offline)
    assert_same_bits(loaded, fitted, rows[0])
    assert loaded.device == "cpu"
    with pytest.raises(FileNotFoundError):
        PrototypeClassifier.from_pretrained("user/others", **offline)
    (snapshot / "model.json").unlink()
    with pytest.raises(ModelFileError, match=r"model\.json: is missing"):
        PrototypeClassifier.from_pretrained("user/bugs", **offline)


def test_a_damaged_download(hub, fitted):
    fitted.push_to_hub("user/bugs")
    path = hub / "user" / "bugs" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="bytes; expected"):
        PrototypeClassifier.from_pretrained(path.parent)


@pytest.mark.parametrize("name", ["./nothing", "/nothing/there", "a/b/c", "~/model"])
def test_a_path_is_never_looked_for_on_the_hub(name):
    with pytest.raises(ModelFileError, match="no such folder"):
        PrototypeClassifier.from_pretrained(name)


def test_strange_arguments(fitted):
    with pytest.raises(TypeError, match="'colour' is no argument"):
        PrototypeClassifier.from_pretrained("user/bugs", colour="red")
    with pytest.raises(huggingface_hub.errors.HFValidationError):
        PrototypeClassifier.from_pretrained("user/no spaces")


def test_nothing_is_sent_that_cannot_be_loaded(hub, fitted):
    with pytest.raises(ValueError, match="not fitted"):
        PrototypeClassifier().push_to_hub("user/bugs")
    broken = clone(fitted).fit([[1.0], [2.0]], [0, 1])
    broken.scale_ = np.nan
    with pytest.raises(ValueError, match="cannot be saved"):
        broken.push_to_hub("user/bugs")
    assert not hub.exists()


def test_without_the_extra(tmp_path, fitted, rows, monkeypatch):
    real = builtins.__import__

    def missing(name, *args):
        if name.startswith("huggingface_hub"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for fraction in (fitted.push_to_hub, PrototypeClassifier.from_pretrained):
        with pytest.raises(ImportError, match=r"pip install .*\[hub\]"):
            fraction("user/bugs")
    fitted.save(tmp_path / "model")  # a folder needs no hub
    assert_same_bits(PrototypeClassifier.from_pretrained(tmp_path / "model"), fitted, rows[0])


def test_nobody_pays_for_the_hub_who_does_not_use_it():
    code = "import sys, protail.estimator; print('huggingface_hub' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"
