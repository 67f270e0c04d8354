"""Jobs: their runs, on features and of older versions, and what they tell."""

import dataclasses
import json
import shutil

import pytest
import torch

from protail.data.images import ImageSet
from protail.experiments import Job, Options, Progress, Run, RunError, data_record, run_jobs
from protail.recipes import load_recipe
from reference.feature_data import feature_data
from reference.small_images import TINY
from reference.tiny_data import RECIPE, tiny_data

OPTIONS = Options(torch.device("cpu"), "plain")


@pytest.fixture
def data():
    return feature_data()


def test_a_run_on_features(data, tmp_path):
    job = Job(load_recipe("pc-la"), data, 0, tmp_path / "run")
    [record] = run_jobs([job], OPTIONS)
    run = Run.open(tmp_path / "run")
    assert run.evaluation() == record
    assert {stage: list(modes) for stage, modes in record.items()} == {
        "classifier": ["plain", "mirrored"]
    }
    assert record["classifier"]["plain"]["all"] > 0.9
    assert set(run.weights()) == {"classifier.prototypes"}
    assert run.last_checkpoint() is None
    assert run.resolved["recipe"]["representation"] is None
    assert run.resolved["data"] == {
        "name": "clusters",
        "made": "for tests",
        "features": {"width": 8, "sha256": data.fingerprint()},
    }


def test_seeds_at_once_and_what_is_finished(tmp_path):
    data = feature_data(whole=False)
    jobs = [Job(load_recipe("pc"), data, seed, tmp_path / f"{seed}") for seed in (0, 1)]
    records = run_jobs(jobs, OPTIONS)
    assert not torch.equal(*(Run.open(job.folder).weights().popitem()[1] for job in jobs))
    again = dataclasses.replace(OPTIONS, resume=True)
    assert run_jobs(jobs, again) == records
    others = [Job(load_recipe("pc"), feature_data(), 0, jobs[0].folder)]
    with pytest.raises(RunError, match="data"):
        run_jobs(others, again)


def test_images_are_known_again(tmp_path, monkeypatch):
    asked = []
    fingerprint = ImageSet.fingerprint
    monkeypatch.setattr(
        ImageSet, "fingerprint", lambda images: asked.append(images) or fingerprint(images)
    )
    data = tiny_data()
    jobs = [Job(load_recipe("pc"), data, seed, tmp_path) for seed in (0, 1)]
    records = [job.resolved["data"] for job in jobs for _ in range(3)]
    expected = {"train": fingerprint(data.train), "test": fingerprint(data.test)}
    assert all(record["images"] == expected for record in records)
    assert len(asked) == 2  # once a part, however often and by however many jobs
    both = dataclasses.replace(data, classifier_train=data.train, validation=data.test)
    assert set(data_record(both)["images"]) == {"train", "classifier_train", "validation", "test"}
    other = data_record(tiny_data(seed=1))
    assert {**other, "images": None} == {**records[0], "images": None}
    assert other["images"]["train"] != expected["train"]
    assert other["images"]["test"] != expected["test"]


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_time_between_checkpoints(seconds):
    with pytest.raises(ValueError, match="--checkpoint-every"):
        Options(torch.device("cpu"), "plain", checkpoint_seconds=seconds)


def test_scores_are_told_in_the_epoch_they_belong_to(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    changes = {"representation.epochs": "2", "classifier.epochs": "0"}
    changes["representation.backbone"] = TINY
    recipe = load_recipe(tmp_path / "tiny.toml").with_overrides(changes)
    told = []
    run_jobs([Job(recipe, tiny_data(), 0, tmp_path / "run")], OPTIONS, told.append)
    logged = Run.open(tmp_path / "run").metrics()
    assert told[0].scores["all"] == logged[0]["all"]
    assert told[1].scores == {}
    assert "all" not in logged[1]


class StopError(Exception):
    """Stands for whatever ends a run before its time."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A job that was stopped after its first epoch, and what it would have come to."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "tiny.toml").write_text(RECIPE)
    changes = {"representation.epochs": "2", "classifier.epochs": "0"}
    changes["representation.backbone"] = TINY
    recipe = load_recipe(folder / "tiny.toml").with_overrides(changes)
    whole, job = (Job(recipe, tiny_data(), 0, folder / name) for name in ("whole", "stopped"))

    def stop(progress):
        raise StopError

    with pytest.raises(StopError):
        run_jobs([job], OPTIONS, stop)
    return job, run_jobs([whole], OPTIONS)


@pytest.fixture
def stopped(kept, tmp_path):
    job, expected = kept
    shutil.copytree(job.folder, tmp_path / "stopped")
    return dataclasses.replace(job, folder=tmp_path / "stopped"), expected


def rewrite(job, change):
    """Change what a run says that it is of."""
    file = job.folder / "run.json"
    document = json.loads(file.read_text())
    change(document["resolved"]["recipe"])
    file.write_text(json.dumps(document))


def test_a_run_of_an_older_version_goes_on(stopped):
    job, expected = stopped

    def as_an_older_version_wrote_it(recipe):
        for stage, later in (
            ("representation", ["second_view", "cutmix", "method_options"]),
            ("classifier", ["start", "max_norm_part", "max_norm_every", "warm_up_epochs"]),
        ):
            for setting in later:
                del recipe[stage][setting]
        del recipe["classifier"]["head_options"]["temperature_form"]
        del recipe["paper"]
        recipe["title"] = "What it was called then"

    rewrite(job, as_an_older_version_wrote_it)
    assert run_jobs([job], dataclasses.replace(OPTIONS, resume=True)) == expected
    assert Run.open(job.folder).resolved == json.loads(json.dumps(job.resolved))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("lr", 0.5, r"recipe\.representation\.lr \(0\.5 there"),
        ("second_view", None, r"recipe\.representation\.second_view \(null there"),
        ("of_tomorrow", 1, r"recipe\.representation\.of_tomorrow \(1 there, absent now\)"),
    ],
)
def test_a_run_of_something_else_does_not_go_on(stopped, key, value, told):
    job, _ = stopped
    rewrite(job, lambda recipe: recipe["representation"].update({key: value}))
    with pytest.raises(RunError, match=told):
        run_jobs([job], dataclasses.replace(OPTIONS, resume=True))


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("dro-lt", {1: "pretraining", 200: "pretraining", 201: "representation"}),
        ("wd", {1: "representation", 200: "representation"}),
    ],
)
def test_the_phase_of_an_epoch(name, phases, tmp_path):
    job = Job(load_recipe(name), tiny_data(), 0, tmp_path)
    assert {epoch: Progress(job, epoch, 1.0).phase for epoch in phases} == phases


def test_what_stage_1_says_does_not_matter(data, tmp_path):
    jobs = [Job(load_recipe(name), data, 0, tmp_path) for name in ("pc-la", "ce/pc-la")]
    alone = dataclasses.replace(load_recipe("pc-la"), representation=None)
    jobs.append(Job(alone, data, 0, tmp_path))
    assert [job.recipe.stages for job in jobs] == [("classifier",)] * 3
    resolved = [job.resolved["recipe"]["classifier"] for job in jobs]
    assert resolved[0] == resolved[1] == resolved[2]


def test_a_recipe_without_a_classifier(data, tmp_path):
    with pytest.raises(ValueError, match=r"'ce' has no classifier stage.*clusters.*'pc-la'"):
        Job(load_recipe("ce"), data, 0, tmp_path)
