import hashlib
import json
from dataclasses import replace

import pytest

from protail.recipes import load_recipe, recipe_hash
from protail_paper.comparisons import COMPARISONS
from protail_paper.groups import wanted_experiments
from protail_paper.results import ResultError, Results, read_result
from protail_paper.tables import BACKBONES, TABLES
from protail_paper.tuning import CHOICES
from protail_paper.wanted import Experiment, Subset
from reference.documents import ROOT

SUBSET = Subset("cifar100-lt", 100)
SCORES = {"plain": {"all": 0.5, "many": 0.7, "medium": 0.5, "few": None}}


def test_an_experiment_is_found_by_what_it_computes(tmp_path):
    results = Results(tmp_path)
    results.add(Experiment("pc", SUBSET, 0, {"classifier.tau": 0.25}), {"scores": SCORES})
    assert Experiment("pc-la", SUBSET, 0) in results
    assert Experiment("pc-la", SUBSET, 1) not in results
    assert Experiment("pc", SUBSET, 0) not in results
    assert Experiment("pc-la", Subset("cifar100-lt", 50), 0) not in results
    assert Experiment("pc-la", Subset("cifar100-lt", 100, "author"), 0) not in results


def test_results_are_there_the_next_time(tmp_path):
    experiment = Experiment("wd", SUBSET, 2)
    file = Results(tmp_path).add(experiment, {"scores": SCORES, "seconds": {"representation": 1.5}})
    again = Results(tmp_path)
    assert len(again) == 1
    assert again.get(experiment).score("all") == 0.5
    assert again.get(experiment).score("few") is None
    assert file.parent.name == "cifar100-lt-100"
    assert json.loads(file.read_text())["command"] == experiment.command


def test_results_of_before_a_setting_was_added_are_still_found(tmp_path):
    experiment = Experiment("pc-la", SUBSET, 0)
    file = Results(tmp_path).add(experiment, {"scores": SCORES})
    record = json.loads(file.read_text())
    del record["recipe"]["classifier"]["batch_norm"]
    file.write_text(json.dumps(record))
    assert experiment in Results(tmp_path)


def test_experiments_that_share_a_representation():
    softmax, prototypes = Experiment("wd", SUBSET, 0), Experiment("pc", SUBSET, 0)
    assert softmax.representation_key == prototypes.representation_key
    assert softmax.representation_key != Experiment("wd", SUBSET, 1).representation_key
    assert softmax.representation_key != Experiment("ce", SUBSET, 0).representation_key


def test_the_command_says_everything():
    experiment = Experiment(
        "wd-resnet32/pc-la",
        Subset("cifar100-lt", 50, "author"),
        1,
        {"classifier.tau": 0.5, "classifier.augment": ["crop", "flip"]},
    )
    assert experiment.command == (
        "protail train wd-resnet32/pc-la --dataset cifar100-lt --imbalance 50 --seed 1 "
        "--selection author --set classifier.tau=0.5 "
        """--set 'classifier.augment=["crop", "flip"]'"""
    )


def test_evaluated_aside_is_another_experiment(tmp_path):
    aside = Subset("cifar100-lt", 100, aside_from=10)
    experiment = Experiment("wd", aside, 1)
    assert experiment.command == (
        "protail train wd --dataset cifar100-lt --imbalance 100 --seed 1 --validation-from 10"
    )
    others = [
        Subset("cifar100-lt", 100, aside_from=50),
        SUBSET,
        Subset("cifar100-lt", 100, held_out=0.2),
    ]
    assert len({Experiment("wd", subset, 1).key for subset in (aside, *others)}) == 4
    assert Experiment("wd", Subset("cifar100-lt", 100, aside_from=10.0), 1).key == experiment.key
    file = Results(tmp_path).add(experiment, {"scores": SCORES})
    assert file.parent.name == "cifar100-lt-100-aside"
    there = Results(tmp_path)
    assert experiment in there
    assert not any(Experiment("wd", subset, 1) in there for subset in others)


def test_results_of_before_there_was_aside_keep_their_keys(tmp_path):
    recipe = recipe_hash(load_recipe("wd").resolved())
    for subset, data in (
        (SUBSET, ["cifar100-lt", 100.0, "shuffled"]),
        (
            replace(SUBSET, held_out=0.2, held_out_seed=1),
            ["cifar100-lt", 100.0, "shuffled", 0.2, 1],
        ),
        (Subset("imagenet-lt", miniature=9), ["imagenet-lt", 0.0, "shuffled", "miniature", 9]),
    ):
        said = json.dumps([recipe, data, 2]).encode()
        assert Experiment("wd", subset, 2).key == hashlib.sha256(said).hexdigest()
    file = Results(tmp_path).add(Experiment("wd", SUBSET, 2), {"scores": SCORES})
    record = json.loads(file.read_text())
    assert record["data"].pop("aside_from") == 0
    file.write_text(json.dumps(record))
    assert Experiment("wd", SUBSET, 2) in Results(tmp_path)


def test_an_experiment_is_not_evaluated_in_two_ways(tmp_path):
    with pytest.raises(ValueError, match=r"held_out=0.2 and aside_from=10; expected one"):
        Subset("cifar100-lt", 100, held_out=0.2, aside_from=10)
    file = Results(tmp_path).add(Experiment("wd", SUBSET, 2), {"scores": SCORES})
    record = json.loads(file.read_text())
    record["data"] |= {"held_out": 0.2, "aside_from": 10}
    file.write_text(json.dumps(record))
    with pytest.raises(ResultError, match="expected one"):
        Results(tmp_path)


def test_results_are_taken_from_another_folder_once(tmp_path):
    here, there = Results(tmp_path / "here"), Results(tmp_path / "there")
    for seed in range(3):
        there.add(Experiment("wd", SUBSET, seed), {"scores": SCORES})
    here.add(Experiment("wd", SUBSET, 0), {"scores": SCORES})
    assert here.take(there) == 2
    assert here.take(there) == 0
    assert len(Results(tmp_path / "here")) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "its format is 'list'"),
        ('{"format": "protail-model"}', "its format is 'protail-model'"),
        ('{"format": "protail-cell", "version": 9}', "its version is 9"),
        ('{"format": "protail-cell", "version": 1}', "'plain' scores"),
        (
            '{"format": "protail-cell", "version": 1, "scores": {"plain": {"all": 45.1}}}',
            "accuracies from 0 to 1",
        ),
    ],
)
def test_a_file_that_is_no_result(tmp_path, text, words):
    file = tmp_path / "cell.json"
    file.write_text(text)
    with pytest.raises(ResultError, match="is no result") as error:
        read_result(file)
    assert words in str(error.value)


def test_a_result_whose_recipe_nobody_knows(tmp_path):
    file = Results(tmp_path).add(Experiment("wd", SUBSET, 0), {"scores": SCORES})
    record = json.loads(file.read_text())
    record["recipe"]["representation"]["backbone"] = 7
    file.write_text(json.dumps(record))
    with pytest.raises(ResultError, match="recipe, data or seed"):
        Results(tmp_path)


@pytest.fixture(scope="module")
def committed():
    folder = ROOT / "results" / "cells"
    if not folder.is_dir():
        pytest.skip("needs the committed results (results/cells), which come with a clone only")
    return folder


def test_seconds_that_are_guessed_are_not_known(tmp_path):
    def seconds(gpus=("one",), recipe="pc", **took):
        results, experiment = (
            Results(tmp_path / recipe),
            Experiment(recipe, Subset("cifar100-lt", 100), 0),
        )
        results.add(experiment, {"scores": SCORES, "seconds": took, "about": {"gpus": list(gpus)}})
        return results.get(experiment).gpu_seconds

    assert seconds(representation=80.0, classifier=1.5, guessed=8.0) == 81.5
    assert seconds(representation=80.0, classifier=1.5, guessed=8.1) is None
    assert seconds(representation=80.0, classifier=1.5) is None
    assert seconds(representation=80.0, guessed=0.0) is None
    assert seconds(representation=80.0, guessed=0.0, recipe="wd") == 80.0
    assert seconds((), representation=80.0, classifier=1.5, guessed=0.0) is None


def test_every_committed_result_is_wanted_and_none_is_there_twice(committed):
    wanted = wanted_experiments([*TABLES, *COMPARISONS, *CHOICES], BACKBONES)
    results = Results(committed)
    assert sum(experiment in results for experiment in wanted) == len(results)
    assert len(results) == len(list(committed.rglob("*.json")))


def test_a_result_that_is_there_twice(tmp_path):
    file = Results(tmp_path).add(Experiment("wd", SUBSET, 0), {"scores": SCORES})
    (file.parent / "again.json").write_text(file.read_text())
    with pytest.raises(ResultError, match="is the same one"):
        Results(tmp_path)
