"""How long a training will take, by what results say that were run."""

import pytest

from protail.data.images import long_tailed_counts
from protail_paper.forecasts import expected_seconds
from protail_paper.groups import Group
from protail_paper.results import Results
from protail_paper.wanted import CIFAR10, CIFAR100, Experiment, Subset
from reference.bench_command import SCORES

IMAGES = int(long_tailed_counts(500, 100, 100).sum())
BALANCED = 500 * 100


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def keep(results, recipe, seconds, subset=CIFAR100, seed=0, overrides=(), gpus=(), **more):
    about = {"gpus": list(gpus)}
    took = {"representation": seconds, **more}
    experiment = Experiment(recipe, subset, seed, dict(overrides))
    results.add(experiment, {"scores": SCORES, "seconds": took, "about": about})


def forecast(results, *recipes, subset=CIFAR100, overrides=(), **options):
    group = Group(tuple(Experiment(recipe, subset, 7, dict(overrides)) for recipe in recipes))
    return expected_seconds(group, results, **options)


def test_nothing_is_known_of_what_was_never_run(results):
    assert forecast(results, "paco") is None
    keep(results, "wd", 100.0)
    assert forecast(results, "paco") is None  # another backbone


def test_longer_trainings_take_longer(results):
    keep(results, "wd", 100.0)
    assert forecast(results, "wd") == pytest.approx(100.0)
    assert forecast(results, "wd", overrides={"representation.epochs": 50}) == pytest.approx(25.0)


def test_more_images_take_longer(results):
    keep(results, "wd", 100.0)
    for subset, n_max, n_classes in ((Subset("cifar100-lt", 10), 500, 100), (CIFAR10, 5000, 10)):
        n = long_tailed_counts(n_max, n_classes, subset.imbalance).sum()
        assert forecast(results, "wd", subset=subset) == pytest.approx(100.0 * n / IMAGES)
    held_out = Subset("cifar100-lt", 100, held_out=0.2)
    assert forecast(results, "wd", subset=held_out) == pytest.approx(80.0)
    # Five large classes lose some; the largest, which a balanced epoch follows, 45 of 500.
    aside = Subset("cifar100-lt", 100, aside_from=10)
    assert forecast(results, "wd", subset=aside) == pytest.approx(100.0 * (1 - 120 / IMAGES))
    balanced = {"representation.sampler": "class-balanced"}
    keep(results, "wd", 100.0, overrides=balanced)
    assert forecast(results, "wd", subset=aside, overrides=balanced) == pytest.approx(
        100.0 * (500 - 45) / 500
    )


def test_other_data_sets_are_told_by_themselves_alone(results):
    keep(results, "wd", 100.0)
    other = Subset("patterns", 10)
    assert forecast(results, "wd", subset=other) is None
    keep(results, "wd", 3.0, subset=other)
    assert forecast(results, "wd", subset=other) == pytest.approx(3.0)
    assert forecast(results, "wd") == pytest.approx(100.0)


def test_large_sets_are_counted_as_they_are(results):
    subset = Subset("imagenet-lt")
    keep(results, "wd", 100.0, subset=subset)
    assert forecast(results, "wd", subset=subset) == pytest.approx(100.0)
    balanced = {"representation.sampler": "class-balanced"}
    assert forecast(results, "wd", subset=subset, overrides=balanced) == pytest.approx(
        100.0 * 1280 * 1000 / 115_846
    )
    # A miniature takes a moment, and says nothing about the real one.
    assert forecast(results, "wd", subset=Subset("imagenet-lt", miniature=1000)) is None


def test_only_such_hardware_tells(results):
    keep(results, "wd", 100.0, gpus=["fast"])
    keep(results, "wd", 900.0, gpus=["slow"], seed=1)
    assert forecast(results, "wd", gpus=["fast"]) == pytest.approx(100.0)
    assert forecast(results, "wd", gpus=[]) is None


def test_a_method_nobody_has_run_is_guessed_with_care(results):
    keep(results, "ce-resnet32", 50.0)
    # Three times the 400 epochs of plain training.
    assert forecast(results, "paco") == pytest.approx(3 * 100.0)


def test_other_batches_tell_by_the_number_of_images(results):
    larger = {"representation.batch_size": 256}
    keep(results, "ce-resnet32", 50.0)
    assert forecast(results, "ce-resnet32", overrides=larger) == pytest.approx(50.0)
    assert forecast(results, "paco", overrides=larger) == pytest.approx(3 * 100.0)
    keep(results, "ce-resnet32", 30.0, seed=1, overrides=larger)
    assert forecast(results, "ce-resnet32", overrides=larger) == pytest.approx(30.0)


def test_two_passes_take_twice_as_long(results):
    keep(results, "ce-resnet32", 50.0)
    twice = {"representation.sam": 0.1}
    assert forecast(results, "ce-resnet32", overrides=twice) == pytest.approx(100.0)
    keep(results, "ce-resnet32", 90.0, seed=1, overrides=twice)
    assert forecast(results, "ce-resnet32", overrides=twice) == pytest.approx(90.0)
    assert forecast(results, "ce-resnet32") == pytest.approx(50.0)


def test_partners_that_are_drawn_take_time_of_their_own(results):
    keep(results, "mixup", 50.0)
    drawn = {"representation.partners": "square-root"}
    keep(results, "mixup", 70.0, seed=1, overrides=drawn)
    assert forecast(results, "mixup", overrides=drawn) == pytest.approx(70.0)
    assert forecast(results, "mixup") == pytest.approx(50.0)


def test_a_method_that_was_run_tells_of_itself(results):
    keep(results, "ce-resnet32", 50.0)
    keep(results, "paco", 170.0)
    assert forecast(results, "paco-pc") == pytest.approx(170.0)
    assert forecast(results, "ce-resnet32") == pytest.approx(50.0)
    assert forecast(results, "focal") == pytest.approx(50.0)  # the same but for the loss


def test_epochs_of_balanced_classes_are_longer(results):
    keep(results, "ce-resnet32", 50.0)
    balanced = {"representation.sampler": "class-balanced"}
    assert forecast(results, "ce-resnet32", overrides=balanced) == pytest.approx(
        50.0 * BALANCED / IMAGES
    )


def test_all_that_is_before_stage_2_counts(results):
    keep(results, "ce-resnet32", 50.0)
    # 200 plain epochs, then 80 balanced ones of a method that is guessed.
    guessed = 50.0 + 3 * 50.0 * 80 / 200 * BALANCED / IMAGES
    assert forecast(results, "dro-lt") == pytest.approx(guessed)
    keep(results, "dro-lt", 140.0)
    assert forecast(results, "dro-lt/pc-la") == pytest.approx(140.0)
    # A result of both phases says nothing about one of them.
    assert forecast(results, "ce-resnet32") == pytest.approx(50.0)


def test_a_phase_of_which_nothing_is_known(results):
    keep(results, "paco", 170.0)
    assert forecast(results, "dro-lt") is None


def test_results_of_several_lengths_agree_on_a_median(results):
    for seed, seconds in enumerate([90.0, 100.0, 500.0]):
        keep(results, "wd", seconds, seed=seed)
    assert forecast(results, "wd") == pytest.approx(100.0)


def test_classifiers_take_time_too(results):
    keep(results, "wd", 100.0)
    keep(results, "pc-la", 100.0, classifier=2.0)
    assert forecast(results, "wd") == pytest.approx(100.0)
    assert forecast(results, "wd", "pc", "pc-la") == pytest.approx(104.0)
    # Means take a pass as well; twenty passes over all images take their time.
    assert forecast(results, "wd", "ncm-augmented") == pytest.approx(102.0)
    assert forecast(results, "los") == pytest.approx(100.0 + 2.0 * 20 * IMAGES / BALANCED)
    # No more steps than the recipe allows.
    assert forecast(results, "wd/crt") == pytest.approx(100.0 + 2.0 * 2550 * 128 / BALANCED)


def test_results_of_before_there_were_such_settings_tell_too(results):
    keep(results, "wd", 100.0)
    [result] = results
    for key in ("second_view", "max_norm"):
        del result.record["recipe"]["representation"][key]
    assert forecast(results, "wd") == pytest.approx(100.0)
