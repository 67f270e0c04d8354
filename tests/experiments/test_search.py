import dataclasses
import json
from types import SimpleNamespace

import pytest

from protail.data.images import ImageSet
from protail.experiments import Options, Search, SearchResult, read_searched_keys, run_search
from protail.experiments import pipeline as pipeline_module
from protail.experiments import search as search_module
from protail.recipes import Recipe, load_recipe
from protail.training import stage1
from protail.training.loop import DivergenceError, Epoch
from reference.easy_images import easy_data
from reference.small_images import TINY

pytest.importorskip("optuna")

CPU = Options.automatic("cpu")
SMALL = {
    "representation.backbone": TINY,
    "representation.precision": "float32",
    "representation.epochs": 1,
    "representation.batch_size": 32,
    "representation.lr": 0.05,
    "classifier.precision": "float32",
    "classifier.max_steps": 10,
    "classifier.augment": ["flip"],
}


def make_search(*over, recipe="pc-la", data=None, changes=None, **options):
    """Make a search on images of which no test image can be read."""
    changed = {key: value for key, value in SMALL.items() if recipe != "wd" or "class" not in key}
    start = load_recipe(recipe).with_overrides({**changed, **(changes or {})})
    data = easy_data(size=16) if data is None else data
    unreadable = ImageSet(
        data.test.labels,
        data.test.classes,
        files=tuple(f"no-such-image-{i}.png" for i in range(len(data.test))),
    )
    data = dataclasses.replace(data, test=unreadable)
    return Search(start, data, read_searched_keys(over, start), **options)


def run(search, folder, n_trials, **options):
    return run_search(
        search, folder / "search.journal", n_trials=n_trials, **{"options": CPU, **options}
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Search through the whole engine: both stages, two trainings at once."""
    folder = tmp_path_factory.mktemp("trained")
    over = ("representation.lr=1e-3:0.3:log", "classifier.tau=0:1")
    search = make_search(*over, changes={"representation.epochs": 3})
    told = []
    result = run(search, folder, 4, at_once=2, watch=told.append)
    return search, folder, result, told


def test_trains_both_stages_and_learns(trained):
    _, _, result, told = trained
    assert [trial.state for trial in result.trials] == ["done"] * 4
    assert sorted(told, key=lambda trial: trial.number) == list(result.trials)
    assert result.best.score > 0.3  # chance is 0.1
    for trial in result.trials:
        assert trial.score == trial.scores["balanced"]
        assert len(trial.looks) == 2  # three epochs, the last of which is the end
        assert trial.seconds > 0


def test_the_first_trial_is_the_recipe_itself(trained):
    search, _, result, _ = trained
    assert result.trials[0].params == {"representation.lr": 0.05, "classifier.tau": 0.25}
    assert search.first == result.trials[0].params


def test_training_together_or_alone_gives_the_same_scores(trained, tmp_path):
    search, _, together, _ = trained
    alone = run(search, tmp_path, 1)
    assert alone.trials[0].score == pytest.approx(together.trials[0].score)


def test_the_same_again_goes_on_and_does_nothing_twice(trained):
    search, folder, before, _ = trained
    told = []
    after = run(search, folder, 5, watch=told.append)
    assert len(told) == 1
    assert after.trials[:4] == before.trials
    assert len(run(search, folder, 5).trials) == 5


def test_the_best_recipe_is_complete(trained):
    search, _, result, _ = trained
    best = result.recipe
    assert best.representation.lr == result.best.params["representation.lr"]
    assert best.classifier.loss_options["tau"] == result.best.params["classifier.tau"]
    assert best.representation.epochs == search.recipe.representation.epochs
    assert Recipe.from_resolved(best.resolved()) == best


def test_the_record_is_strict_json(trained):
    _, _, result, _ = trained
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record["best"]["score"] == max(trial["score"] for trial in record["trials"])
    assert record["over"] == {
        "representation.lr": "0.001:0.3:log",
        "classifier.tau": "0.0:1.0",
    }
    assert record["recipe"]["classifier"]["head"] == "prototype"


def test_a_recipe_of_one_stage_is_scored_by_its_head(tmp_path):
    search = make_search("representation.weight_decay", recipe="wd", score="all")
    result = run(search, tmp_path, 2)
    for trial in result.trials:
        assert trial.score == trial.scores["all"]


def test_stage_two_alone_trains_one_representation(tmp_path, monkeypatch):
    """Heads learn together, and what came out is what the engine gives for each alone."""
    trainings = []
    run_jobs = search_module.run_jobs
    monkeypatch.setattr(
        search_module, "run_jobs", lambda jobs, options: trainings.append(run_jobs(jobs, options))
    )
    over = ("classifier.tau=0:1", "classifier.lr=0.1:10:log", "classifier.normalize")
    search = make_search(*over)
    groups = []
    learn = pipeline_module.learn_stable_heads
    monkeypatch.setattr(
        pipeline_module,
        "learn_stable_heads",
        lambda settings, *given, **how: groups.append(settings) or learn(settings, *given, **how),
    )
    result = run(search, tmp_path, 40)
    assert len(trainings) == 1
    assert [len(settings) for settings in groups] == [16, 16, 8]
    assert len({trial.params["classifier.tau"] for trial in result.trials}) >= 39
    run(search, tmp_path, 42)
    assert len(trainings) == 1

    tried = result.trials[17]
    changed = dataclasses.replace(search, recipe=search.recipe.with_overrides(tried.params))
    again = run(changed, tmp_path / "again", 1, at_once=1)
    assert again.trials[0].params == tried.params
    assert again.trials[0].scores == pytest.approx(tried.scores)


def test_heads_are_judged_by_the_batch_norms_they_learned_with(tmp_path):
    drifting = {"classifier.epochs": 2, "classifier.batch_norm": "published"}
    scores = {}
    for name, over, changes in (
        ("heads", ("classifier.tau",), drifting),
        ("trainings", ("classifier.tau", "representation.lr"), drifting),
        ("eval", ("classifier.tau",), {"classifier.epochs": 2}),
    ):
        search = make_search(*over, changes=changes)
        scores[name] = run(search, tmp_path / name, 1).trials[0].scores
    assert scores["heads"] == pytest.approx(scores["trainings"])
    assert scores["heads"] != pytest.approx(scores["eval"])


def test_the_engine_only_sees_the_held_out_data(tmp_path, monkeypatch):
    seen = []

    class Watched(stage1.RepresentationTraining):
        def __init__(self, settings, data, **options):
            seen.append(data)
            super().__init__(settings, data, **options)

    monkeypatch.setattr(stage1, "RepresentationTraining", Watched)
    data = easy_data(size=16)
    recipe = load_recipe("wd").with_overrides(
        {key: value for key, value in SMALL.items() if "class" not in key}
    )
    keys = read_searched_keys(["representation.lr"], recipe)
    run(Search(recipe, data, keys), tmp_path, 1)
    (given,) = seen
    real = {image.tobytes() for image in data.test.pixels}
    for part in given.parts.values():
        assert not real & {image.tobytes() for image in part.pixels}
    learned = {image.tobytes() for image in given.train.pixels}
    assert not learned & {image.tobytes() for image in given.test.pixels}


def test_groups_follow_all_training_images(tmp_path):
    """A class of 20 images is medium, though only 16 of them are learned from."""
    search = make_search("classifier.tau", data=easy_data((20, 30), size=16), score="balanced")
    trial = run(search, tmp_path, 1).trials[0]
    assert "medium" in trial.scores
    assert "few" not in trial.scores


class FakeTraining:
    """Take the place of a training whose scores are known: they are its rate."""

    opened, closed = [], []

    n_steps = 20

    def __init__(self, settings, data, **options):
        self.settings = settings
        self.evaluated = SimpleNamespace(backbone=None, head=SimpleNamespace(score=settings.lr))
        FakeTraining.opened.append(settings.lr)

    def steps(self, first_epoch, after_epoch):
        try:
            for epoch in range(self.settings.epochs):
                yield
                if self.settings.momentum == 0 and epoch == 1:
                    raise DivergenceError("the loss is nan")
                after_epoch(Epoch(epoch, epoch + 1, 0.0))
            return self.evaluated
        finally:
            FakeTraining.closed.append(self.settings.lr)


@pytest.fixture
def fakes(monkeypatch):
    groups = dict.fromkeys(("all", "many", "medium", "few"), 0.0)
    monkeypatch.setattr(stage1, "RepresentationTraining", FakeTraining)
    monkeypatch.setattr(pipeline_module, "FrozenFeatures", lambda *_: None)

    def evaluation(method):
        return SimpleNamespace(balanced_accuracy=method.head.score, **groups)

    monkeypatch.setattr(search_module, "evaluate", evaluation)
    look = staticmethod(lambda training: evaluation(training.evaluated))
    monkeypatch.setattr(pipeline_module.Pipeline, "evaluate_training", look)
    monkeypatch.setattr("gc.collect", lambda: 0)  # there is nothing to free, and it takes time
    FakeTraining.opened, FakeTraining.closed = [], []
    return FakeTraining


def fake_search(*over, **changes):
    changes = {"representation.epochs": 20, **changes}
    return make_search(*over, recipe="wd", changes=changes)


@pytest.mark.parametrize("at_once", [1, 3])
def test_pruned_trainings_end_cleanly_and_others_go_on(tmp_path, fakes, at_once):
    search = fake_search("representation.lr=0.1:0.9")
    result = run(search, tmp_path, 20, pruner="median", at_once=at_once)
    states = [trial.state for trial in result.trials]
    assert "pruned" in states
    assert states.count("pruned") + states.count("done") == 20
    assert sorted(fakes.opened) == sorted(fakes.closed)
    for trial in result.trials:
        assert set(trial.looks) == {trial.params["representation.lr"]}
        assert len(trial.looks) == 9 if trial.state == "done" else len(trial.looks) < 9
    assert result.best.score > 0.8


def test_diverged_trainings_are_written_down(tmp_path, fakes):
    search = fake_search("representation.momentum=choice:0.0,0.9")
    result = run(search, tmp_path, 8, at_once=2)
    for trial in result.trials:
        expected = "diverged" if trial.params["representation.momentum"] == 0 else "done"
        assert trial.state == expected
    assert {"diverged", "done"} == {trial.state for trial in result.trials}


def test_only_diverged_trials_give_no_recipe(tmp_path, fakes):
    search = fake_search("representation.lr=0.1:0.9", **{"representation.momentum": 0.0})
    result = run(search, tmp_path, 2)
    assert result.best is None
    assert result.to_dict()["best"] is None
    with pytest.raises(ValueError, match="no trial has come to its end"):
        _ = result.recipe


def test_an_error_in_one_training_hands_all_of_them_on(tmp_path, fakes, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    search = fake_search("representation.lr=0.1:0.9")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_module.Pipeline, "evaluate_training", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(search, tmp_path, 6, at_once=3)
    result = run(search, tmp_path, 6, at_once=3)
    assert [trial.state for trial in result.trials] == ["lost"] * 3 + ["done"] * 6
    lost, again = result.trials[:3], result.trials[3:6]
    assert [trial.params for trial in again] == [trial.params for trial in lost]


def test_begins_no_trial_that_would_not_end_in_time(tmp_path, fakes, monkeypatch):
    steps, now = fakes.steps, [0.0]
    took = iter([0.5, *[0.0] * 50])
    for module in ("search", "trials"):
        clock = SimpleNamespace(monotonic=lambda: now[0])
        monkeypatch.setattr(f"protail.experiments.{module}.time", clock)

    def slow_steps(self, first_epoch, after_epoch):
        now[0] += next(took)
        return (yield from steps(self, first_epoch, after_epoch))

    monkeypatch.setattr(fakes, "steps", slow_steps)
    search = fake_search("representation.lr=0.1:0.9")
    # Half a second has passed and the next trial may take as long again.
    result = run(search, tmp_path, 50, budget=0.9)
    assert [trial.state for trial in result.trials] == ["done"]
    # With more time the same search goes on.
    assert len(run(search, tmp_path, 12, budget=60).trials) == 12


def test_one_head_that_diverges_does_not_spoil_the_others(tmp_path):
    changes = {"representation.epochs": 0, "classifier.distance": "sqeuclidean"}
    search = make_search("classifier.lr=0.1:1e38:log", changes=changes)
    result = run(search, tmp_path, 10)
    for trial in result.trials:
        rate = trial.params["classifier.lr"]
        if rate > 1e25 or rate < 1e10:  # squares of more than about 1e19 are no float32
            assert trial.state == ("diverged" if rate > 1e25 else "done")
    assert {"diverged", "done"} == {trial.state for trial in result.trials}


def test_a_journal_of_other_data_is_refused(tmp_path):
    changes = {"representation.epochs": 0}
    run(make_search("classifier.tau", changes=changes), tmp_path, 1)
    other = make_search("classifier.tau", changes=changes, data=easy_data(seed=5, size=16))
    with pytest.raises(ValueError, match=r"another search.*data\.seed \(0 there, 5 now\)"):
        run(other, tmp_path, 2)
    for change, words in [
        ({"seed": 1}, "seed"),
        ({"fraction": 0.5}, "held_out"),
        ({"score": "all"}, "score"),
    ]:
        with pytest.raises(ValueError, match=f"another search.*{words}"):
            run(make_search("classifier.tau", changes=changes, **change), tmp_path, 2)
    with pytest.raises(ValueError, match=r"another search.*over\.classifier\.tau"):
        run(make_search("classifier.tau=0:2", changes=changes), tmp_path, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"n_trials": 0}, "trials=0"), ({"budget": 0}, "budget=0"), ({"at_once": 0}, "at_once=0")],
)
def test_numbers_out_of_range_are_told(tmp_path, options, words):
    search = make_search("classifier.tau")
    with pytest.raises(ValueError, match=words):
        run_search(search, tmp_path / "search.journal", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_result_without_trials_has_no_best():
    assert SearchResult(make_search("classifier.tau"), ()).best is None
