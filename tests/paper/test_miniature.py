"""Tables 5 and 6, the whole way from folders to results, on miniatures of their data sets."""

import json
from dataclasses import replace

import pytest

from protail.data.images import load_dataset
from protail.experiments import Options
from protail_paper.cli.bench import Images
from protail_paper.groups import wanted_experiments
from protail_paper.large import LARGE, mark_miniatures
from protail_paper.page import results_page
from protail_paper.results import Results
from protail_paper.running import run_missing
from protail_paper.wanted import Experiment, Subset
from reference.bench_command import run
from reference.miniature import SMALL_TIMM, write_imagenet_lt, write_inaturalist18

EACH = pytest.mark.parametrize("table", LARGE.values(), ids=lambda table: table.name)
SMALL = [
    f"representation.backbone={SMALL_TIMM}",
    "representation.epochs=1",
    "representation.warm_up_epochs=0",
    "representation.batch_size=128",
    "representation.precision=float32",
    "classifier.precision=float32",
    "classifier.max_steps=2",
    "classifier.augment=['resized-crop']",
]


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "imagenet-lt"
    write_imagenet_lt(folder, n_max=2)
    return folder


def test_other_images_are_found_out(imagenet):
    data, said = load_dataset("imagenet-lt", root=imagenet), []
    experiments = [
        Experiment("wd", Subset("cifar100-lt", 100), 0),
        Experiment("wd", Subset("imagenet-lt"), 0),
    ]
    marked = mark_miniatures(experiments, lambda subset: data, said.append)
    assert [experiment.subset.miniature for experiment in marked] == [0, len(data.train)]
    assert marked[0] == experiments[0]
    [line] = said
    n = len(data.train)
    assert line == (
        f"Not the ImageNet-LT of the paper ({n:,} images instead of 115,846): results are marked "
        "'miniature'."
    )


def test_no_result_of_the_paper_comes_of_other_images(imagenet, tmp_path):
    data = load_dataset("imagenet-lt", root=imagenet)
    with pytest.raises(ValueError, match="training images here; expected those that"):
        run_missing(
            [Experiment("wd", Subset("imagenet-lt"), 0, {"representation.backbone": SMALL_TIMM})],
            Results(tmp_path),
            lambda subset: data,
            Options.automatic("cpu"),
        )
    assert not list(tmp_path.iterdir())


def test_steps_on_files_are_captured(imagenet, tmp_path, monkeypatch):
    seen = []

    def stop(*given, captured, **how):
        seen.append(captured)
        raise KeyboardInterrupt

    monkeypatch.setattr("protail.training.stage1.RepresentationTraining", stop)
    data = load_dataset("imagenet-lt", root=imagenet)
    options = replace(Options.automatic("cpu"), driver="captured")
    subset = Subset("imagenet-lt", miniature=len(data.train))
    results = Results(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_missing([Experiment("wd", subset, 0)], results, lambda subset: data, options)
    assert seen == [True]


def test_data_is_found_by_the_folder_of_one_or_of_all(imagenet, monkeypatch):
    subset = Subset("imagenet-lt")
    for root in (imagenet, imagenet.parent):
        assert Images([], root)(subset).train.folder == imagenet
    monkeypatch.setenv("PROTAIL_DATA", str(imagenet.parent))
    assert Images([], None)(subset).train.folder == imagenet
    found = Images([], None)
    assert found(subset) is found(replace(subset, miniature=7))


def test_lists_may_lie_elsewhere(tmp_path):
    write_imagenet_lt(tmp_path / "images")
    (tmp_path / "lists").mkdir()
    for file in (tmp_path / "images").glob("*.txt"):
        file.rename(tmp_path / "lists" / file.name)
    ended = run("table5", "--data-root", tmp_path / "images", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert "--lists" in ended.stderr
    data = Images([], tmp_path / "images", tmp_path / "lists")(Subset("imagenet-lt"))
    assert len(data.test) == 250


@EACH
def test_missing_data_is_told_before_anything_is_trained(table, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTAIL_DATA", str(tmp_path / "nowhere"))
    ended = run("table9", table.name, folder=tmp_path / "results")
    assert ended.exit_code == 2
    [dataset] = {entry.subset.dataset for entry in table.entries}
    assert f"found in {tmp_path / 'nowhere' / dataset};" in ended.stderr
    assert "--data-root" in ended.stderr
    assert not (tmp_path / "results").exists()


def test_a_broken_test_image_is_told_before_anything_is_trained(tmp_path):
    write_imagenet_lt(tmp_path / "images")
    broken = sorted((tmp_path / "images" / "val").rglob("*.JPEG"))[3]
    broken.unlink()
    broken.write_bytes(b"no picture")
    ended = run("table5", "--data-root", tmp_path / "images", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert broken.name in ended.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("words", "at_once"), [(["table5"], 1), (["table5", "--at-once", 3], 3)])
def test_files_are_trained_on_one_at_a_time(imagenet, tmp_path, monkeypatch, words, at_once):
    seen = []
    monkeypatch.setattr(
        "protail_paper.running.run_missing", lambda *given, **how: seen.append(how) or 0
    )
    ended = run(*words, "--data-root", imagenet, folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert [how["at_once"] for how in seen] == [at_once]


def test_the_published_files_of_inaturalist_are_read(tmp_path):
    counts = write_inaturalist18(tmp_path, official=True)
    data = load_dataset("inaturalist18", root=tmp_path)
    assert data.train.profile.counts.tolist() == counts.tolist()
    assert data.test.profile.counts.tolist() == [1, 0, 0, 0] * 2035 + [1, 0]


def small_table(table, folder, results, monkeypatch):
    """Run a table on a miniature, one seed and one epoch of everything; give what was said."""
    monkeypatch.setitem(LARGE, table, replace(LARGE[table], seeds=(0,)))
    [backbone] = LARGE[table].backbones
    changes = [word for change in SMALL for word in ("--set", change)]
    words = [table, "--backbone", backbone, "--data-root", folder, "--device", "cpu", *changes]
    return run(*words, folder=results)


def check_small_table(table, n_images, folder):
    results = Results(folder / "cells")
    assert len(results) == 18
    trained = {}
    for result in results:
        record = result.record
        assert record["data"]["miniature"] == n_images
        assert not result.diverged
        assert result.score("many") is None
        assert 0 <= result.score("few", "mirrored") <= 1
        first = json.dumps(record["recipe"]["representation"], sort_keys=True)
        trained.setdefault(first, set()).add(record["backbone"])
    # Rows that share a representation share its training.
    assert len(trained) == 4
    assert all(len(backbones) == 1 for backbones in trained.values())
    assert not any(
        experiment in results for experiment in wanted_experiments([table], LARGE[table].backbones)
    )
    assert results_page(results) == results_page(Results(folder / "nothing"))


@pytest.mark.slow
def test_table_5_from_folders_to_results_on_a_miniature(imagenet, tmp_path, monkeypatch):
    ended = small_table("table5", imagenet, tmp_path, monkeypatch)
    assert ended.exit_code == 0, ended.output
    n_images = len(load_dataset("imagenet-lt", root=imagenet).train)
    assert f"({n_images:,} images instead of 115,846)" in ended.output
    assert "18 experiments were run; 0 are missing." in ended.output
    check_small_table("table5", n_images, tmp_path)
    status = run("status", "table5", "--json", folder=tmp_path)
    assert len(json.loads(status.stdout)["missing"]) == 18


@pytest.mark.slow
def test_table_6_from_folders_to_results_on_a_miniature(tmp_path, monkeypatch):
    counts = write_inaturalist18(tmp_path / "images")
    ended = small_table("table6", tmp_path / "images", tmp_path, monkeypatch)
    assert ended.exit_code == 0, ended.output
    assert f"({counts.sum():,} images instead of 437,513)" in ended.output
    check_small_table("table6", int(counts.sum()), tmp_path)
