"""The tables' command: what is there, what is missing, a slice that is really run."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from protail.cli import app
from protail.data.images import DataSet, ImageSet, long_tailed_counts, save_subset
from protail.data.images.long_tail import subset_description
from protail.training.loop import PlainDriver
from protail_paper.cli.bench import Images, _known, _tables, _wanted
from protail_paper.groups import wanted_experiments
from protail_paper.results import Results
from protail_paper.wanted import Experiment, Subset
from reference.bench_command import SCORES, run
from reference.miniature import write_imagenet_lt
from reference.stopping import at_call, in_a_finaliser

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--set", "representation.epochs=1", "--set", "representation.precision=float32"),
    *("--set", "classifier.precision=float32", "--set", "classifier.max_steps=2"),
    *("--set", "classifier.augment=['flip']", "--backbone", "ResNet-32"),
    *("--set", "representation.batch_size=512"),
]


def noise(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 8, 8), dtype=np.uint8)
    return ImageSet(labels, tuple(str(code) for code in range(len(counts))), pixels)


@pytest.fixture(scope="module")
def subset_file(tmp_path_factory):
    counts = long_tailed_counts(100, 100, 100)
    about = subset_description(imbalance=100, kind="exp", selection="shuffled", seed=0, n_max=100)
    data = DataSet("cifar100-lt", noise(counts, 0), noise([1] * 100, 1), description=about)
    file = tmp_path_factory.mktemp("subsets") / "small.zip"
    save_subset(data, file)
    return file


def test_all_is_every_table_that_shows_test_images_which_can_be_downloaded():
    every = ["table1", "table2", "table8", "questions", "table3", "table4", "table9"]
    assert _tables(["all"]) == every
    assert _tables(["table4", "all", "table5"]) == [
        "table4",
        *(name for name in every if name != "table4"),
        "table5",
    ]


def test_changes_are_made_where_a_recipe_has_such_a_stage():
    changes = ["representation.lr=0.5", "pretraining.lr=0.25", "classifier.batch_size=8"]
    for experiment in _wanted(["table9"], None, changes=changes):
        phases = experiment.recipe.phases
        assert phases["representation"].lr == 0.5
        assert ("pretraining" in phases) == (experiment.recipe_name == "dro-lt")
        assert "pretraining" not in phases or phases["pretraining"].lr == 0.25
        assert experiment.recipe.classifier is None or experiment.recipe.classifier.batch_size == 8


def test_changes_are_made_to_what_only_chooses():
    """Other recipes of the table do not take them."""
    only, changes = ["paco (*, seed 0"], ["representation.projection=16"]
    experiments = _wanted(["table4"], None, only, changes)
    assert {experiment.recipe_name for experiment in experiments} == {"paco", "paco-pc"}
    assert {
        experiment.recipe.representation.method_options["projection"] for experiment in experiments
    } == {16}


@pytest.fixture
def no_cifar10(tmp_path, monkeypatch):
    class NoNetwork:
        filename, url = "cifar-10-python.tar.gz", "https://somewhere"

        def __init__(self, root, download):
            raise OSError("no network")

    monkeypatch.setenv("PROTAIL_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr("torchvision.datasets.CIFAR10", NoNetwork)


def test_data_that_is_not_there_is_told_once_before_anything_runs(no_cifar10, tmp_path):
    ended = run("table9", "--device", "cpu", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert ended.stderr.count("cifar10-lt: data_batch_1, ") == 1
    assert ended.stderr.endswith(" Nothing was begun.\n")
    assert not (tmp_path / "results").exists()


def test_of_several_data_sets_it_says_how_to_do_without_one(no_cifar10, subset_file):
    subsets = [Subset("cifar100-lt", 100), Subset("cifar10-lt", 100)]
    with pytest.raises(ValueError, match=r"cifar10-lt: .* --only leaves its experiments out"):
        Images([subset_file], None).find_all(subsets)


def test_experiments_that_cannot_be_changed_like_that_are_not_known():
    known = {experiment.recipe_name for experiment in _known(["classifier.temperature=class"])}
    assert {"wd", "pc-la"} <= known
    assert "wd-max" not in known
    assert "wd-max" in {experiment.recipe_name for experiment in _known(None)}


def test_the_help_fits_a_screen_and_names_every_table():
    shown = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "80"}).output
    lines = shown.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for name in [*_tables(["all"]), "table5", "table6", "status", "write", "errata", "take"]:
        assert name in shown


def exported(name, n_classes, n_max, imbalance, file):
    counts = long_tailed_counts(n_max, n_classes, imbalance)
    about = subset_description(
        imbalance=imbalance, kind="exp", selection="shuffled", seed=0, n_max=n_max
    )
    data = DataSet(name, noise(counts, 0), noise([1] * n_classes, 1), description=about)
    save_subset(data, file)
    return file


def test_subsets_of_several_data_sets_serve_every_higher_ratio(tmp_path):
    sizes = {"cifar100-lt": (100, 200), "cifar10-lt": (10, 300)}
    files = [
        exported("cifar100-lt", *sizes["cifar100-lt"], 100, tmp_path / "first.zip"),
        *(exported(name, *size, 10, tmp_path / f"{name}.zip") for name, size in sizes.items()),
    ]
    find = Images(files, tmp_path / "nowhere")
    for name, (n_classes, n_max) in sizes.items():
        for imbalance in (100.0, 50.0, 10.0):
            found = find(Subset(name, imbalance))
            assert found.name == name
            expected = long_tailed_counts(n_max, n_classes, imbalance)
            assert found.train.profile.counts.tolist() == expected.tolist()


def test_subsets_are_evaluated_aside(tmp_path):
    file = exported("cifar100-lt", 100, 200, 10, tmp_path / "wide.zip")
    find = Images([file], tmp_path / "nowhere")
    found = find(Subset("cifar100-lt", 100, aside_from=10))
    # The rarest class has 2 images at imbalance 100 and 20 at 10.
    assert set(found.test.profile.counts) == {18}
    assert found.train.profile.counts[[0, -1]].tolist() == [182, 2]
    expected = long_tailed_counts(200, 100, 100)
    assert found.group_counts.tolist() == expected.tolist()
    assert find(Subset("cifar100-lt", 100)).train.profile.counts.tolist() == expected.tolist()
    assert find(Subset("cifar100-lt", 100, aside_from=10)) is found
    narrow = exported("cifar100-lt", 100, 200, 100, tmp_path / "narrow.zip")
    again = Images([narrow, file], tmp_path / "nowhere")
    with pytest.raises(ValueError, match="subsets that nest"):  # noise of its own, not the first
        again(Subset("cifar100-lt", 100, aside_from=10))


def test_a_slice_is_run_and_its_results_are_found(subset_file, tmp_path):
    given = ["table8", "--subset", subset_file, "--device", "cpu", *SMALL]
    ended = run(*given, "--only", "*, seed 1", folder=tmp_path)
    assert "4 experiments were run; 0 are missing." in ended.output
    both = ["--only", "*, seed 0", "--only", "*, seed 1"]
    ended = run(*given, *both, "--at-once", 1, folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert "4 experiments were run; 0 are missing." in ended.output
    again = run(*given, *both, folder=tmp_path)
    assert "8 experiments: 8 are there, 0 are missing." in again.output
    # What was tried out is not taken for the table.
    status = run("status", "table8", "--json", folder=tmp_path)
    assert len(json.loads(status.stdout)["missing"]) == 24


def test_sigterm_keeps_finished_results_and_it_goes_on(subset_file, tmp_path, monkeypatch):
    given = ["table8", "--subset", subset_file, "--device", "cpu", *SMALL, "--at-once", 1]
    two = [*given, "--only", "*, seed 0", "--only", "*, seed 1"]
    with monkeypatch.context() as patch:
        n_steps = 8  # of five an epoch: in the second training
        steps = at_call(patch, PlainDriver, "advance", n_steps, in_a_finaliser)
        ended = run(*two, folder=tmp_path)
    assert ended.exit_code == 130, ended.output
    assert ended.stderr.splitlines()[-1] == (
        "stopped. Finished results are kept; the same command goes on."
    )
    assert len(steps) == n_steps
    ended = run(*two, folder=tmp_path)
    assert "8 experiments: 4 are there, 4 are missing." in ended.output
    assert "4 experiments were run; 0 are missing." in ended.output


def test_the_page_is_written_from_the_results(tmp_path):
    results = Results(tmp_path / "cells")
    both = {"plain": SCORES["plain"], "mirrored": SCORES["plain"]}
    results.add(Experiment("wd", Subset("cifar100-lt", 100), 0), {"scores": both})
    ended = run("write", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| Softmax | 70.00 | 50.00 | 10.00 | 50.00 (1 of 3 seeds) |" in page


def test_results_are_taken(tmp_path):
    there = Results(tmp_path / "there")
    there.add(Experiment("wd", Subset("cifar100-lt", 100), 0), {"scores": SCORES})
    ended = run("take", tmp_path / "there", folder=tmp_path / "here")
    assert "1 result was taken" in ended.output
    assert len(Results(tmp_path / "here" / "cells")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "'table1'"),
        (["take"], "take needs a folder"),
        (["table1", "--backbone", "resnet"], "ResNet-34"),
        (
            ["table9", "--backbone", "ResNet-50"],
            "no experiment on ResNet-50; expected one of",
        ),
        (["status", "table9", "--backbone", "ResNet-50"], "no experiment on ResNet-50"),
        (["table1", "--subset", "nowhere.zip"], "no such file"),
        (["table1", "--budget", "long"], "no duration"),
        (["table1", "--set", "classifier.tua=1"], "tau"),
        (["table1", "--only", "wd"], "no training is called like that"),
        (["status", "--only", "wd"], "no training is called like that"),
        (["errata", "cifar-100"], "data set='cifar-100' is unknown"),
    ],
)
def test_bad_input(words, said, tmp_path):
    ended = run(*words, "--device", "cpu", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert not (tmp_path / "results").exists()


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "broken.json").write_text("{")
    ended = run("status", folder=tmp_path)
    assert ended.exit_code == 2
    assert "broken.json is no result" in ended.stderr


def test_status_of_nothing(tmp_path):
    ended = run("status", "table1", "--json", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    record = json.loads(ended.stdout)
    assert record["cells"] == len(record["missing"]) == 42
    assert len(record["trainings"]) == 6
    assert "Left to train: 6 representations; of 6 no result tells the time." in (
        run("status", "table1", folder=tmp_path).output
    )


def test_status_knows_the_tables_of_choices(tmp_path):
    ended = run("status", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    for line in ("| tuning-stage-1 | ResNet-34 | 120 ", "| tuning-stage-2 | ResNet-34 | 96 "):
        assert line in " ".join(ended.output.split())
    assert "| tuning-stage-1 | ResNet-32" not in ended.output
    assert "tuning" not in run("status", "all", folder=tmp_path).output
    alone = json.loads(run("status", "tuning-stage-2", "--json", folder=tmp_path).stdout)
    assert len(alone["missing"]) == 96


def test_status_knows_the_comparisons(tmp_path):
    for words in ((), ("all",)):
        ended = run("status", *words, folder=tmp_path)
        assert ended.exit_code == 0, ended.output
        for line in ("| table3 ", "| table4 ", "| table9 "):
            assert ended.output.count(line) == 2
    alone = json.loads(
        run("status", "table9", "--backbone", "ResNet-34", "--json", folder=tmp_path).stdout
    )
    assert alone["cells"] == len(alone["missing"]) == 48
    assert alone["trainings"] == [
        f"{first} (resnet34-cifar) on cifar10-lt-100, seed {seed}"
        for seed in range(3)
        for first in ("dro-lt", "wd")
    ]


def test_status_counts_apart_what_needs_images_of_your_own(tmp_path):
    ended = run("status", folder=tmp_path)
    for line in ("| table5 | ResNeXt-50 | 54 | 54 |", "| table6 | ResNet-50 | 54 | 54 |"):
        assert line in " ".join(ended.output.split())
    assert " missing, table5 and table6 aside, which need images that you bring." in ended.output
    counted = json.loads(run("status", "--json", folder=tmp_path).stdout)
    assert f"Of {counted['cells']:,} experiments {counted['cells']:,} are missing" in ended.output
    assert not any("imagenet-lt" in command for command in counted["missing"])
    assert "table5" not in run("status", "all", folder=tmp_path).output
    alone = json.loads(run("status", "table6", "--json", folder=tmp_path).stdout)
    assert (alone["cells"], len(alone["missing"]), len(alone["trainings"])) == (54, 54, 12)


def test_status_of_all_but_one(tmp_path):
    results = Results(tmp_path / "cells")
    *there, lacking = wanted_experiments(["table8"], ["ResNet-34"])
    for experiment in there:
        results.add(experiment, {"scores": SCORES, "seconds": {"representation": 120.0}})
    ended = run("status", "table8", "--backbone", "ResNet-34", folder=tmp_path)
    assert "Of 12 experiments 1 is missing." in ended.output
    assert "| table8 | ResNet-34 | 12          | 1       |" in ended.output
    assert "ResNet-32" not in ended.output
    assert "Left to train: 1 representation; 1 takes 2 min 0 s." in ended.output
    results.add(lacking, {"scores": SCORES})
    ended = run("status", "table8", "--backbone", "ResNet-34", folder=tmp_path)
    assert "Of 12 experiments 0 are missing." in ended.output
    assert "Left to train" not in ended.output


def test_status_of_some_trainings(tmp_path):
    ended = run("status", "table4", "--only", "wd (*lt-50, seed ?", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith("Of 36 experiments 36 are missing.\n")
    assert "Left to train: 3 representations; of 3 no result tells the time." in ended.output


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(0)
    labels = np.repeat(range(3), [110, 30, 5])
    rows = rng.normal(size=(len(labels), 4)) + 3 * np.eye(3, 4)[labels]
    file = tmp_path_factory.mktemp("features") / "small.npz"
    parts = {"x_train": rows, "y_train": labels, "x_test": rows, "y_test": labels}
    np.savez(file, **parts)
    return file


def test_figures_and_their_numbers_are_written(features, tmp_path):
    pytest.importorskip("matplotlib")
    ended = run("figures", "--features", features, "--json", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    folder = tmp_path / "figures"
    assert sorted(file.name for file in folder.iterdir()) == [
        *("figure1.png", "figure3-pc-la.png", "figure3-pc.png", "figures.json")
    ]
    numbers = json.loads((folder / "figures.json").read_text())
    assert set(numbers) == {"figure1", "figure3-pc", "figure3-pc-la"}
    assert numbers["figure3-pc"]["features"] == "small"
    written = json.loads(ended.stdout)["figures"]
    assert written == [str(folder / f"{name}.png") for name in numbers]
    again = run("figures", "--features", features, folder=tmp_path)
    assert "Figure 2 of ResNet-34 is left out" in again.output
    assert "The figure of costs is left out" in again.output
    assert "3 figures from 0 results" in again.output


def test_features_that_are_none(tmp_path):
    ended = run("figures", "--features", tmp_path / "nothing.npz", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert "nothing.npz" in ended.stderr
    assert not (tmp_path / "results").exists()


def errata(*words):
    ended = run("errata", *words, "--json", folder="nowhere")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)["table7"]


def test_errata_of_table_7():
    [right, medium, many] = errata("cifar100-lt")
    assert (right["imbalance"], right["errata"]) == (100, [])
    assert "samples: few should be 249, not 269" in medium["errata"]
    entries = {(each["attribute"], each["group"]): each for each in many["entries"]}
    assert len(entries) == 8
    assert entries["samples", "many"]["printed"] == 17_743
    assert entries["samples", "many"]["computed"] == 17_443
    assert entries["samples", "all"]["computed"] == sum(
        entries["samples", group]["computed"] for group in ("many", "medium", "few")
    )
    shown = run("errata", "cifar100-lt", folder="nowhere").stdout
    assert "17,743 (!)" in shown
    assert "8,824 (!)" not in shown
    assert "Table 7 of the paper, cifar100-lt 10: samples: many should be 17,443" in shown


def test_errata_of_what_is_not_counted_are_its_sums(tmp_path):
    every = errata()
    assert [each["dataset"] for each in every] == [
        *("cifar10-lt", "cifar100-lt", "cifar100-lt", "cifar100-lt"),
        *("imagenet-lt", "inaturalist18"),
    ]
    assert [bool(each["entries"]) for each in every] == [True] * 4 + [False] * 2
    assert [len(each["errata"]) for each in every[4:]] == [0, 2]
    write_imagenet_lt(tmp_path)
    [counted] = errata("imagenet-lt", "--data-root", tmp_path)
    assert len(counted["entries"]) == 8
    assert any("115,846" in erratum for erratum in counted["errata"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tar") is None or os.name == "nt", reason="needs tar and a shell")
def test_a_slice_on_another_machine(subset_file, tmp_path):
    """The script's both halves; the other machine is this one, reached by a shell."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "gpu_slice.sh", tree / "benchmarks")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "draws").mkdir()
    shutil.copy(subset_file, tree / "draws")
    other = tmp_path / "reach"
    other.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    other.chmod(0o755)
    quick = tmp_path / "quick"  # it packs every few seconds, and here more often
    quick.mkdir()
    (quick / "sleep").write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 0.2\n")
    (quick / "sleep").chmod(0o755)
    options = [*SMALL, "--device", "cpu", "--only", "*seed?0"]

    def slice_of_table8(*where):
        return subprocess.run(
            ["bash", "benchmarks/gpu_slice.sh", *where, "5m", "table8"],
            cwd=tree,
            env=os.environ
            | {"SSH": str(other), "PYTHON": sys.executable, "PYTHONPATH": ""}
            | {"PATH": f"{quick}{os.pathsep}{os.environ['PATH']}"}
            | {"PROTAIL_COMMIT": "unknown"}
            | {"BENCH_OPTIONS": " ".join(options).replace("'", '"')},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    ended = slice_of_table8("somewhere")
    assert ended.returncode == 0, ended.stderr
    assert "4 results were taken" in ended.stdout + ended.stderr
    assert len(Results(tree / "results" / "cells")) == 4
    assert not list(tmp_path.glob("*.tar"))
    assert not any(tarfile.is_tarfile(file) for file in tree.rglob("*") if file.is_file())
    # A slice that was killed goes on: what it had run comes back, what was there before does not.
    out = tmp_path / "out"
    shutil.copytree(tree / "results", out / "results")
    first, *others = sorted((out / "results").rglob("*.json"))
    for file, seconds in [(first, 2), *((other, 0) for other in others)]:
        os.utime(file, (seconds, seconds))
    (out / "began").touch()
    os.utime(out / "began", (1, 1))
    ended = slice_of_table8("--here", str(out))
    assert ended.returncode == 0, ended.stderr
    assert "4 experiments: 4 are there" in ended.stdout + ended.stderr
    [packed] = out.iterdir()
    with tarfile.open(packed) as archive:
        assert [Path(name).name for name in archive.getnames()] == [first.name]
