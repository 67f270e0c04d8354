import pytest

from protail.experiments.trials import _USUAL, _tables, read_searched_keys, value_of
from protail.methods import METHODS
from protail.recipes import load_recipe, recipe_names

PC = load_recipe("pc-la")


def read(*texts, recipe=PC):
    return read_searched_keys(texts, recipe)


def test_reads_ranges():
    tau, lr, decay = read(
        "classifier.tau=0:1", "classifier.lr = 0.1:10:log", "representation.weight_decay=1e-4:1e-2"
    )
    assert (tau.key, tau.low, tau.high, tau.is_log, tau.choices) == (
        ("classifier.tau", 0.0, 1.0, False, ())
    )
    assert (lr.low, lr.high, lr.is_log, lr.stage) == (0.1, 10.0, True, "classifier")
    assert (decay.low, decay.high, decay.is_log) == (1e-4, 1e-2, False)


def test_whole_numbers_stay_whole_where_the_setting_is_one():
    (epochs,) = read("classifier.epochs=1:5")
    assert (epochs.low, epochs.high) == (1, 5)
    assert isinstance(epochs.low, int)
    (lr,) = read("classifier.lr=1:5")
    assert isinstance(lr.low, float)


def test_reads_choices():
    (radius,) = read("classifier.normalize=choice:none,10,20.5")
    assert radius.choices == ("none", 10, 20.5)
    assert radius.text == "choice:none,10,20.5"
    assert radius.holds("none")
    assert not radius.holds(11)
    (nesterov,) = read("representation.nesterov=choice:true,false")
    assert nesterov.choices == (True, False)


def test_what_is_written_can_be_read_again():
    texts = ["classifier.tau=0:1", "classifier.lr", "classifier.normalize", "classifier.epochs=1:3"]
    keys = read(*texts)
    assert read(*(f"{key.key}={key.text}" for key in keys)) == keys


@pytest.mark.parametrize(
    "key",
    [
        "representation.weight_decay",
        "representation.lr",
        "classifier.tau",
        "classifier.lr",
        "classifier.normalize",
        "classifier.temperature_lr",
    ],
)
def test_known_keys_have_a_usual_range(key):
    (found,) = read(key)
    assert found.choices or found.low < found.high


def usual_keys(recipe):
    """Name what of a recipe can be searched without a range."""
    keys = [key for key in _USUAL if any(_tables(recipe, key))]
    if recipe.representation and not METHODS.needs(recipe.representation.method)["mixes"]:
        keys.remove("representation.mixup")
    return keys


@pytest.mark.parametrize("name", recipe_names())
def test_the_usual_range_holds_what_the_recipe_says(name):
    recipe = load_recipe(name)
    keys = usual_keys(recipe)
    assert keys
    for found in read(*keys, recipe=recipe):
        assert found.holds(value_of(recipe, found.key)), found


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("classifier.lr", 5e-4, "5e-05:10.0:log"),
        ("classifier.lr", 40.0, "0.1:400.0:log"),
        ("classifier.weight_decay", 0.1, "1e-06:1.0:log"),
        ("classifier.weight_decay", 0, "choice:0.0,1e-06,1e-05,0.0001,0.001,0.01"),
        ("classifier.tau", 1.0, "0.0:1.0"),
        ("classifier.tau", 1.5, "0.0:3.0"),
        ("classifier.normalize", 16.0, "choice:16.0,none,10,20,40"),
        ("classifier.normalize", 10.0, "choice:none,10,20,40"),
    ],
)
def test_a_usual_range_is_widened_around_what_the_recipe_says(key, value, text):
    (found,) = read(key, recipe=PC.with_overrides({key: value}))
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clasifier.tau=0:1", "Did you mean 'classifier'"),
        ("classifier.taus=0:1", "Did you mean 'tau'"),
        ("classifier.taus", "Did you mean 'tau'"),
        ("classifier", "classifier"),
        ("classifier.=0:1", "is no key to set"),
        ("classifier.momentum", "has no usual one"),
        ("classifier.tau=0", "LOW:HIGH"),
        ("classifier.tau=0:1:2", "LOW:HIGH"),
        ("classifier.tau=0:1:lin", "LOW:HIGH"),
        ("classifier.tau=", "LOW:HIGH"),
        ("classifier.tau=a:b", "LOW:HIGH"),
        ("classifier.tau=0:inf", "LOW:HIGH"),
        ("classifier.tau=nan:1", "LOW:HIGH"),
        ("classifier.tau=1:0", "low end below"),
        ("classifier.tau=0:1:log", "above 0"),
        ("classifier.tau=-1:1", "tau = -1"),
        ("classifier.epochs=0.5:2", "a whole number"),
        ("classifier.distance=0:1", "distance"),
        ("classifier.distance=choice:euclidean,euclidian", "Did you mean 'euclidean'"),
        ("classifier.normalize=choice:10", "two or more"),
        ("classifier.normalize=choice:10,10", "two or more"),
        ("classifier.normalize=choice:10,", "two or more"),
    ],
)
def test_bad_texts_are_told_in_words(text, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        read(text)


def test_nothing_and_twice_the_same_are_told():
    with pytest.raises(ValueError, match="--over is missing"):
        read()
    with pytest.raises(ValueError, match="twice"):
        read("classifier.tau", "classifier.tau=0:2")


def test_a_stage_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="no classifier stage"):
        read("classifier.tau", recipe=load_recipe("wd"))


def test_values_of_a_recipe():
    assert value_of(PC, "classifier.tau") == 0.25
    assert value_of(PC, "classifier.loss_options.tau") == 0.25
    assert value_of(PC, "classifier.normalize") == "none"
    assert value_of(PC, "representation.weight_decay") == 5e-3
