"""Results are really run: a small network on small images."""

import gc
import json
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest

from protail.experiments import Job, Options, Run, RunError, run_jobs
from protail.training.loop import PlainDriver
from protail.training.stage1 import RepresentationTraining
from protail_paper import _pool, running
from protail_paper._pool import Pool, _HostWatch
from protail_paper.forecasts import expected_seconds
from protail_paper.groups import missing_groups
from protail_paper.results import Results
from protail_paper.running import _Work, run_missing, take_run
from protail_paper.scores import unpack_bits
from protail_paper.wanted import Experiment, Subset
from reference.small_images import TINY
from reference.tiny_data import tiny_data

SUBSET = Subset("patterns", 10)
SMALL = {
    "representation.backbone": TINY,
    "representation.epochs": 1,
    "representation.batch_size": 16,
    "representation.lr": 0.02,
    "representation.precision": "float32",
}
HEAD = {"classifier.augment": ["crop", "flip"], "classifier.precision": "float32"}
CPU = Options.automatic("cpu")


def wanted(seeds=(0,)):
    experiments = []
    for seed in seeds:
        experiments.append(Experiment("wd", SUBSET, seed, SMALL))
        experiments.append(Experiment("pc-la", SUBSET, seed, SMALL | HEAD))
        experiments.append(
            Experiment("pc-cdt", SUBSET, seed, SMALL | HEAD | {"classifier.lr": 1.0})
        )
    return experiments


@pytest.fixture(scope="module")
def data():
    return tiny_data(n_max=20, test_per_class=4)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    results = Results(tmp_path_factory.mktemp("cells"))
    said = []
    n = run_missing(wanted(), results, lambda subset: data, CPU, say=said.append)
    return results, n, said


def test_a_representation_serves_all_its_classifiers(made):
    results, n, said = made
    assert n == 3
    assert all(experiment in results for experiment in wanted())
    assert sum("epoch 1" in line for line in said) == 1


def test_a_result_is_what_its_command_gives(made, data, tmp_path):
    results, _, _ = made
    for experiment in wanted()[:2]:
        job = Job(experiment.recipe, data, experiment.seed, tmp_path / experiment.recipe_name)
        [record] = run_jobs([job], CPU)
        stage = "classifier" if experiment.recipe.classifier else "representation"
        for view in ("plain", "mirrored"):
            for group in ("all", "medium", "few"):
                assert results.get(experiment).score(group, view) == record[stage][view][group]


def test_what_a_result_says(made, data):
    results, _, _ = made
    for experiment in wanted():
        result = results.get(experiment)
        right = unpack_bits(result.record["right"]["plain"], len(data.test))
        assert right.mean() == pytest.approx(result.score("all"))
        assert len(result.record["norms"]) == len(data.train.classes)
        assert result.record["about"]["torch"]
        assert result.record["seconds"]["representation"] > 0
        has_temperature = "temperature_quantiles" in result.record
        assert has_temperature == (experiment.recipe_name == "pc-cdt")


def test_what_is_there_is_not_run_again(made, data):
    results, _, _ = made

    def load(subset):
        raise AssertionError("nothing is left to run")

    assert run_missing(wanted(), results, load, CPU) == 0
    assert missing_groups(wanted([0, 1]), results) == missing_groups(wanted([1]), results)


def test_the_budget_ends_it_before_a_training_that_would_not_end(made, data):
    results, _, _ = made
    seconds = expected_seconds(missing_groups(wanted([1]), results)[0], results, [])
    assert seconds > 0
    assert expected_seconds(missing_groups(wanted([1]), results)[0], results, ["a GPU"]) is None
    said = []
    n = run_missing(
        wanted([1]), results, lambda subset: data, CPU, budget=seconds / 2, say=said.append
    )
    assert n == 0
    assert "not enough time" in said[-1]


def test_where_nothing_tells_the_time_one_training_is_to_tell(data, tmp_path):
    results = Results(tmp_path)
    assert run_missing(wanted([0, 1]), results, lambda subset: data, CPU, budget=0.01) == 3
    assert len(results) == 3


def test_killed_it_keeps_what_is_finished_and_goes_on(data, tmp_path):
    seen = []

    def stop(line):
        seen.append(line)
        if "seed 1: epoch 1" in line:
            raise KeyboardInterrupt

    folder, both = tmp_path / "cells", wanted([0, 1])
    with pytest.raises(KeyboardInterrupt):
        run_missing(both, Results(folder), lambda subset: data, CPU, at_once=1, say=stop)
    there = Results(folder)
    assert [experiment in there for experiment in both] == [True] * 3 + [False] * 3
    assert run_missing(both, there, lambda subset: data, CPU, at_once=2) == 3


def test_trainings_at_once_are_those_apart(made, data, tmp_path):
    results, _, _ = made
    together = Results(tmp_path)
    run_missing(wanted([0, 1]), together, lambda subset: data, CPU, at_once=2)
    for experiment in wanted([0]):
        assert together.get(experiment).record["right"] == results.get(experiment).record["right"]


def test_a_head_that_diverges_leaves_the_others_alone(made, data, tmp_path):
    results, _, _ = made
    some = wanted()[:2]
    wild = Experiment("pc-sqeuclidean", SUBSET, 0, SMALL | HEAD | {"classifier.lr": 1e30})
    said, new = [], Results(tmp_path)
    run_missing([*some, wild], new, lambda subset: data, CPU, say=said.append)
    assert new.get(wild).diverged
    assert not new.get(some[1]).diverged
    assert any(line.startswith("diverged") for line in said)
    assert Results(tmp_path).get(wild).diverged
    assert new.get(some[1]).record["right"] == results.get(some[1]).record["right"]


def test_a_training_that_diverges_leaves_the_others_alone(made, data, tmp_path):
    results, _, _ = made
    wild = Experiment("pc-la", SUBSET, 0, SMALL | HEAD | {"representation.lr": 1e30})
    new = Results(tmp_path)
    run_missing([wild, *wanted()], new, lambda subset: data, CPU, at_once=2)
    assert new.get(wild).diverged
    for experiment in wanted():
        assert new.get(experiment).record["right"] == results.get(experiment).record["right"]


def test_an_error_in_one_group_does_not_lose_the_others(made, data, tmp_path, monkeypatch):
    results, _, _ = made
    evaluate = _Work._evaluate

    def fail_on_seed_1(work, begun, method):
        if begun.group.first.seed == 1:
            raise ValueError("this one cannot be evaluated")
        return evaluate(work, begun, method)

    monkeypatch.setattr(_Work, "_evaluate", fail_on_seed_1)
    said, new = [], Results(tmp_path)
    with pytest.raises(ValueError, match="this one cannot be evaluated"):
        run_missing(wanted([1, 0, 2]), new, lambda subset: data, CPU, at_once=2, say=said.append)
    assert [experiment in new for experiment in wanted([1, 0, 2])] == [False] * 3 + [True] * 6
    assert any("seed 1: ValueError: this one cannot be evaluated" in line for line in said)
    for experiment in wanted([0]):
        assert new.get(experiment).record["right"] == results.get(experiment).record["right"]


def test_an_error_in_one_training_does_not_lose_the_others(made, data, tmp_path):
    results, _, _ = made

    def fail_on_seed_1(line):
        if "seed 1: epoch 1" in line:
            raise RuntimeError("this one cannot be trained")

    new = Results(tmp_path)
    with pytest.raises(RuntimeError, match="this one cannot be trained"):
        run_missing(wanted([1, 0]), new, lambda subset: data, CPU, at_once=2, say=fail_on_seed_1)
    assert [experiment in new for experiment in wanted([1, 0])] == [False] * 3 + [True] * 3
    for experiment in wanted([0]):
        assert new.get(experiment).record["right"] == results.get(experiment).record["right"]


@pytest.mark.parametrize("how", ["it diverges", "it fails"])
def test_a_first_one_that_tells_nothing_does_not_stop_the_others(how, data, tmp_path):
    said, results = [], Results(tmp_path)
    rate = 1e30 if how == "it diverges" else 0.02
    first = Experiment("wd", SUBSET, 7, SMALL | {"representation.lr": rate})

    def say(line):
        said.append(line)
        if how == "it fails" and "seed 7: epoch 1" in line:
            raise RuntimeError("this one cannot be trained")

    order = [first, *(wanted([seed])[0] for seed in (0, 1))]
    ends = pytest.raises(RuntimeError) if how == "it fails" else nullcontext()
    with ends:
        run_missing(order, results, lambda subset: data, CPU, budget=3600, say=say)
    assert [
        experiment in results and not results.get(experiment).diverged for experiment in order
    ] == [False, True, True]


def test_a_training_is_gone_when_it_is_judged(data, tmp_path, monkeypatch):
    """What captured steps hold of a GPU would stand beside the features of stage 2."""
    trainings, alive = [], []
    init, evaluate = RepresentationTraining.__init__, _Work._evaluate

    def remember(training, *arguments, **options):
        trainings.append(weakref.ref(training))
        init(training, *arguments, **options)

    def look(work, *arguments):
        alive.extend(training() is not None for training in trainings)
        return evaluate(work, *arguments)

    monkeypatch.setattr(RepresentationTraining, "__init__", remember)
    monkeypatch.setattr(_Work, "_evaluate", look)
    run_missing(wanted()[:1], Results(tmp_path), lambda subset: data, CPU)
    assert alive == [False]


def test_a_training_that_failed_is_gone(data, tmp_path, monkeypatch):
    failed = []

    def fail(training, *arguments):
        failed.append(weakref.ref(training))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RepresentationTraining, "steps", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run_missing(wanted()[:1], Results(tmp_path), lambda subset: data, CPU)
    gc.collect()
    assert [training() for training in failed] == [None]


@pytest.fixture
def clock(monkeypatch):
    """A clock that nothing moves but a step, which takes a second, and what a test does."""
    now = [0.0]
    step = PlainDriver.advance

    def advance(driver, batch):
        now[0] += 1.0
        return step(driver, batch)

    monkeypatch.setattr(PlainDriver, "advance", advance)
    monkeypatch.setattr(running, "Pool", partial(Pool, clock=lambda: now[0]))
    monkeypatch.setattr(_pool, "_HostWatch", partial(_HostWatch, lambda: now[0]))
    return now


def test_set_up_is_shared(data, tmp_path, clock):
    """Of two equal trainings, the first is not charged with what comes before its first step."""
    results, seeds = Results(tmp_path), [0, 1]

    @cache
    def load(subset):
        clock[0] += 20.0
        return data

    run_missing([wanted([seed])[0] for seed in seeds], results, load, CPU, at_once=2)
    first, second = (
        results.get(wanted([seed])[0]).record["seconds"]["representation"] for seed in seeds
    )
    assert first == second > 10


def test_no_training_at_once_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="at_once=0; expected at least 1"):
        run_missing(wanted(), Results(tmp_path), lambda subset: data, CPU, at_once=0)


def test_the_next_begins_where_one_has_ended(data, tmp_path, clock):
    long = Experiment("wd", SUBSET, 0, SMALL | {"representation.epochs": 6})
    said, results = [], Results(tmp_path)
    order = [long, *(wanted([seed])[0] for seed in (1, 2))]
    assert run_missing(order, results, lambda subset: data, CPU, at_once=2, say=said.append) == 3
    kept = [line for line in said if "%  protail train" in line]
    assert "representation.epochs=6" in kept[-1]
    took = [results.get(experiment).record["seconds"]["representation"] for experiment in order]
    assert took[0] > 2 * max(took[1:])


def test_results_say_what_a_step_takes(data, tmp_path, clock):
    results, experiment = (
        Results(tmp_path),
        Experiment("wd", SUBSET, 0, SMALL | {"representation.epochs": 12}),
    )
    run_missing([experiment], results, lambda subset: data, CPU)
    took = results.get(experiment).record["seconds"]
    assert took["step"] == 1.0 < took["representation"]
    assert took["guessed"] == 0.0


def test_where_nothing_can_be_kept_nothing_more_is_trained(data, tmp_path, monkeypatch):
    def full(work, begun, method):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_Work, "_evaluate", full)
    said = []
    with pytest.raises(OSError, match="No space"):
        run_missing(
            wanted([0, 1]), Results(tmp_path), lambda subset: data, CPU, at_once=1, say=said.append
        )
    assert not any("seed 1" in line for line in said)


def test_one_that_nothing_tells_the_time_of_does_not_hold_up_the_others(data, tmp_path, clock):
    larger = SMALL | {"representation.backbone": "resnet34-cifar"}
    unknown = Experiment("wd", SUBSET, 0, larger)
    order, results = [*wanted([0])[:1], unknown, *wanted([1])[:1]], Results(tmp_path)
    said = []
    n = run_missing(order, results, lambda subset: data, CPU, budget=600, say=said.append)
    assert n == 2
    assert [experiment in results for experiment in order] == [True, False, True]
    assert "1 training is left" in said[-1]


def test_groups_are_called_by_what_trains_them(tmp_path):
    subset = Subset("cifar100-lt", 100)
    names = ("crt", "ce-resnet32", "focal", "wd-resnet32/pc", "dro-lt", "paco-pc", "paco")
    experiments = [Experiment(name, subset, 0) for name in names]
    groups = missing_groups([*experiments, Experiment("wd", subset, 0, SMALL)], Results(tmp_path))
    on = "(resnet32) on cifar100-lt-100, seed 0"
    first = ["ce-resnet32", "focal", "wd-resnet32", "dro-lt", "paco"]
    assert [group.name for group in groups[:-1]] == [f"{name} {on}" for name in first]
    assert "epochs=1, batch_size=16" in groups[-1].name
    assert len({group.file for group in groups}) == len(groups)
    assert not any(sign in group.file for group in groups for sign in " /(),=")


def test_a_new_row_runs_all_that_stands_on_its_representation_again(made, data, tmp_path):
    Results(tmp_path).take(made[0])
    for file in tmp_path.rglob("*.json"):  # as another machine's would be
        text = file.read_text()
        file.write_text(text.replace(json.loads(text)["backbone"], "0" * 16))
    new, old = Experiment("pc", SUBSET, 0, SMALL | HEAD), Results(tmp_path)
    assert run_missing([new], old, lambda subset: data, CPU, known=wanted([0, 1])) == 4
    backbones = {old.get(experiment).record["backbone"] for experiment in [new, *wanted()]}
    assert len(backbones) == 1
    assert len(Results(tmp_path)) == 4


def test_results_of_the_very_same_representation_stay(made, data, tmp_path):
    """Killed while it was evaluated, a training goes on with what is missing."""
    Results(tmp_path).take(made[0])
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.json")}
    last, *_ = before
    last.unlink()
    assert run_missing(wanted(), Results(tmp_path), lambda subset: data, CPU) == 1
    after = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.json")}
    assert {file for file in before if after[file] != before[file]} == {last}


def test_a_run_that_was_killed_when_its_results_were_there_is_removed(made, data, tmp_path):
    results = Results(tmp_path / "cells")
    results.take(made[0])
    done, other = missing_groups(wanted([0, 1]), ())
    runs = tmp_path / "runs" / "cells"
    for group in (done, other):
        (runs / f"{group.file.removesuffix('.safetensors')}-0123456789").mkdir(parents=True)
    assert run_missing(wanted(), results, lambda subset: data, CPU) == 0
    assert [run.name for run in runs.iterdir()] == [f"{other.file[:-12]}-0123456789"]


def test_backbones_are_kept(data, tmp_path):
    from protail.models.backbones import load_weights, make_backbone

    run_missing(
        wanted()[:1], Results(tmp_path / "c"), lambda subset: data, CPU, weights=tmp_path / "w"
    )
    [file] = (tmp_path / "w").iterdir()
    load_weights(make_backbone(TINY), file)
    assert file.name.startswith("wd-tiny-for-tests-patterns-10-seed0-")


def test_groups_come_in_the_order_they_are_wanted(tmp_path):
    groups = missing_groups(wanted([2, 0, 1]), Results(tmp_path))
    assert [group.first.seed for group in groups] == [2, 0, 1]
    assert all(a != b for a, b in pairwise(groups))
    assert np.all([len(group.experiments) == 3 for group in groups])


def test_killed_a_training_goes_on_from_its_last_checkpoint(made, data, tmp_path):
    slow = SMALL | {"representation.epochs": 3}
    both = [Experiment("wd", SUBSET, 0, slow), Experiment("pc-la", SUBSET, 0, slow | HEAD)]
    whole, killed, said = Results(tmp_path / "whole"), Results(tmp_path / "killed"), []
    often = replace(CPU, checkpoint_seconds=0.0)
    run_missing(both, whole, lambda subset: data, CPU)

    def stop(line):
        said.append(line)
        if "epoch 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_missing(both, killed, lambda subset: data, often, say=stop)
    [run] = (tmp_path / "runs" / "killed").iterdir()
    kept = Run.open(run).last_checkpoint().record
    assert kept["epoch"] == 0
    assert run_missing(
        both, Results(tmp_path / "killed"), lambda subset: data, CPU, say=said.append
    )
    assert [line.partition(": ")[2][:7] for line in said[:4]] == [
        *("epoch 1", "epoch 2"),
        *("epoch 2", "epoch 3"),
    ]
    for experiment in both:
        here, there = (
            Results(tmp_path / name).get(experiment).record for name in ("killed", "whole")
        )
        assert here["backbone"] == there["backbone"]
        assert here["right"] == there["right"]
        assert here["seconds"]["representation"] > kept["took"]["seconds"] > 0
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_is_taken_as_the_result_it_is(made, data, tmp_path):
    results, new = made[0], Results(tmp_path / "cells")
    for experiment in wanted()[:2]:
        folder = tmp_path / experiment.recipe_name
        run_jobs([Job(experiment.recipe, data, experiment.seed, folder)], CPU)
        taken = take_run(folder, wanted([1, 0]), new, lambda subset: data, CPU.device)
        assert taken == experiment
        for key in ("recipe", "scores", "right", "norms", "backbone", "cost"):
            assert new.get(experiment).record[key] == results.get(experiment).record[key]
        with pytest.raises(RunError, match="no experiment has the recipe, images and seed"):
            take_run(folder, wanted([1]), new, lambda subset: data, CPU.device)
        with pytest.raises(RunError, match="no experiment has the recipe, images and seed"):
            take_run(folder, wanted(), new, lambda subset: tiny_data(), CPU.device)
    assert len(Results(tmp_path / "cells")) == 2
