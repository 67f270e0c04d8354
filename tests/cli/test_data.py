"""protail data: list, stats, prepare, export."""

import json

import pytest
import typer
from typer.testing import CliRunner

from protail.cli.data import app as data_app
from protail.cli.data import bars
from protail.data.images import cifar, dataset_names, load_dataset
from protail.profile import ClassProfile
from reference.image_data import write_cifar, write_class_folders


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTAIL_DATA", raising=False)
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.add_typer(data_app, name="data")
    app.callback()(lambda: None)

    def run(*arguments):
        result = CliRunner().invoke(app, ["data", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path / "c", "cifar10-lt"))
    return tmp_path / "c"


def refused(ended, *words, code=2):
    assert ended.exit_code == code, (ended.stdout, ended.stderr)
    assert ended.stdout == ""
    last_line = ended.stderr.strip().splitlines()[-1]
    assert last_line.startswith("protail data")
    for word in words:
        assert word in last_line


def test_list(data):
    ended = data("list")
    for name in dataset_names():
        assert f"| {name} " in ended.stdout
    listed = json.loads(data("list", "--json").stdout)["datasets"]
    assert [entry["name"] for entry in listed] == dataset_names()
    assert all(entry["what"] for entry in listed)
    assert [entry["name"] for entry in listed if not entry["options"]] == (
        ["cifar100-lt-features", "features"]
    )


def test_stats(data, root, tmp_path):
    ended = data("stats", "cifar10-lt", "--data-root", root, "--imbalance", 4)
    assert ended.exit_code == 0, ended.stderr
    assert "10 classes" in ended.stdout
    assert "##" in ended.stdout
    found = json.loads(
        data("stats", "cifar10-lt", "--data-root", root, "--imbalance", 4, "--json").stdout
    )
    profile = load_dataset("cifar10-lt", root=root, imbalance=4).train.profile
    assert found["counts"] == profile.counts.tolist()
    assert found["groups"]["medium"]["samples"] == 20


def test_stats_of_photos_and_a_picture(data, tmp_path):
    write_class_folders(tmp_path / "photos", {"ant": 8, "bee": 3})
    ended = data("stats", tmp_path / "photos", "--plot", "counts.png")
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "counts.png").read_bytes()[1:4] == b"PNG"
    refused(data("stats", "photos", "--plot", "counts.png"), "--overwrite", code=3)


def test_stats_counts_lists_without_images(data, tmp_path):
    for part in ("train", "val", "test"):
        (tmp_path / f"Places_LT_{part}.txt").write_text(f"{part}/a/1.jpg 0\n{part}/b/2.jpg 1\n")
    ended = data("stats", "places-lt", "--lists", tmp_path, "--json")
    assert json.loads(ended.stdout)["images"] == {"train": 2, "validation": 2, "test": 2}
    refused(data("prepare", "places-lt", "--lists", tmp_path), "2 of 2 image files")


def test_stats_downloads_nothing(data, tmp_path):
    refused(
        data("stats", "cifar10-lt", "--data-root", tmp_path),
        "protail data prepare cifar10-lt",
        str(tmp_path),
    )


def test_prepare(data, root, tmp_path):
    found = json.loads(data("prepare", "cifar10-lt", "--data-root", root, "--json").stdout)
    assert found["images"] == {"train": 200, "test": 20}
    assert found["place"] == str(root)
    write_class_folders(tmp_path / "photos", {"ant": 8, "bee": 3})
    found = json.loads(data("prepare", "photos", "--json").stdout)
    assert found["images"] == {"train": 8, "test": 3}
    (tmp_path / "photos/bee/0.jpg").write_bytes(b"x")
    refused(data("prepare", "photos"), "1 of 11 images cannot be read", "0.jpg")


def test_export_and_back(data, root, tmp_path):
    arguments = ["export", "cifar10-lt", "--data-root", root, "--imbalance", 4]
    ended = data(*arguments, "-o", "small.protail-draw.zip", "--json")
    assert ended.exit_code == 0, ended.stderr
    made = json.loads(ended.stdout)
    original = load_dataset("cifar10-lt", root=root, imbalance=4)
    assert made["description"] == original.description
    assert made["sha256"]["train"] == original.train.fingerprint()
    assert made["bytes"] == (tmp_path / "small.protail-draw.zip").stat().st_size
    found = json.loads(data("stats", made["draw"], "--imbalance", 10, "--json").stdout)
    again = load_dataset("cifar10-lt", root=root, imbalance=10)
    assert found["counts"] == again.train.profile.counts.tolist()
    assert data("prepare", made["draw"]).exit_code == 0
    refused(data(*arguments, "-o", "small.protail-draw.zip"), "--overwrite", code=3)
    refused(data(*arguments, "-o", "small.npz"), ".protail-draw.zip", code=3)
    assert not (tmp_path / "small.npz").exists()


def test_bad_names_and_options(data, tmp_path):
    refused(data("stats", "cifar10lt"), "Did you mean 'cifar10-lt'")
    refused(data("stats", "places-lt", "--imbalance", 10), "takes no option 'imbalance'")
    refused(data("stats", "lost.zip"), "lost.zip: there is no such file")


def test_debug_shows_where_it_came_from(data):
    ended = data("stats", "lost.zip", "--debug")
    assert ended.exit_code == 2
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize("command", [[], ["list"], ["stats"], ["prepare"], ["export"]])
def test_help_fits_a_screen_and_carries_an_example(data, command):
    ended = data(*command, "--help")
    lines = ended.stdout.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert " ".join(["Example: protail data", *command]) in ended.stdout


def test_bars_are_few_and_in_proportion():
    lines = bars(ClassProfile(list(range(1, 101))))
    assert len(lines) == 20
    lengths = [line.count("#") for line in lines]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 49  # the five largest have 98 of 100 on average
    assert lines[-1].startswith("96-100  #")
    assert bars(ClassProfile([3, 0]))[1] == "2  0"


def test_the_split_of_a_folder_can_be_chosen(data, tmp_path):
    write_class_folders(tmp_path / "photos", {"ant": 10, "bee": 5})
    ended = data("stats", "photos", "--test-fraction", 0.4, "--data-seed", 3, "--json")
    assert json.loads(ended.stdout)["description"]["split"] == {"test_share": 0.4, "seed": 3}
