"""One clear message for each mistake: where it is, what came, what was expected."""

import re

import pytest

from protail.recipes import Recipe, RecipeError, load_recipe

OVERRIDES = [
    # types
    ("classifier.lr=fast", 'classifier.lr = "fast"; expected a number'),
    ("classifier.lr=true", "classifier.lr = true; expected a number"),
    ("classifier.lr=inf", "classifier.lr = inf; expected a number"),
    ("classifier.lr=1979-05-27", "expected a number"),
    ("classifier.epochs=1.5", "classifier.epochs = 1.5; expected a whole number"),
    ("classifier.epochs=true", "classifier.epochs = true; expected a whole number"),
    ("classifier.nesterov=1", "classifier.nesterov = 1; expected true or false"),
    ("classifier.max_steps=many", 'max_steps = "many"; expected a whole number or "none"'),
    ("classifier.augment=crop", 'classifier.augment = "crop"; expected a list, each item text'),
    ("classifier.augment=[1]", "classifier.augment = [1]; expected a list"),
    ("classifier.head=1", "classifier.head = 1; expected text"),
    ("classifier.head=", 'classifier.head = ""; expected text'),
    ("representation.backbone=", "representation.backbone"),
    ("representation.drops=[[0.5]]", "expected a list, each item a list of a number and a number"),
    ("classifier.tau=strong", 'classifier.tau = "strong"; expected a number'),
    ("classifier.run=2.5", "classifier.run = 2.5; expected a whole number"),
    ("classifier.normalize=true", 'classifier.normalize = true; expected a number or "none"'),
    # ranges
    ("representation.epochs=-1", "representation.epochs = -1; expected a whole number >= 0"),
    ("representation.batch_size=0", "representation.batch_size = 0; expected a whole number >= 1"),
    ("classifier.lr=0", "classifier.lr = 0.0; expected a finite number > 0"),
    ("classifier.momentum=1", "classifier.momentum = 1.0; expected a number >= 0 and < 1"),
    ("classifier.weight_decay=-1e-4", "classifier.weight_decay = -0.0001"),
    ("classifier.max_steps=0", "classifier.max_steps = 0; expected a whole number >= 1"),
    ("representation.ema=1", "representation.ema = 1.0"),
    ("representation.sam=-1", "representation.sam = -1.0; expected a finite number >= 0"),
    ("representation.mixup=-1", "representation.mixup = -1.0"),
    ("representation.max_norm=-1", "representation.max_norm = -1.0; expected a finite number >= 0"),
    ("classifier.max_norm=1", "max_norm = 1.0; expected 0: head 'prototype' has no rows"),
    ("representation.reweight_from=200", "reweight_from = 200; expected fewer than epochs"),
    ("representation.reweight_from=-1", "reweight_from = -1; expected a whole number"),
    ("representation.beta=1", "representation.beta = 1.0; expected a number >= 0 and < 1"),
    ("classifier.tau=-1", "classifier.tau = -1.0; expected a finite number >= 0"),
    ("classifier.normalize=0", "classifier.normalize = 0.0; expected"),
    ("classifier.run=0", "classifier.run = 0; expected a whole number >= 1"),
    ("representation.label_smoothing=1", "representation.label_smoothing = 1.0; expected"),
    # names
    ("classifier.head=protoype", "classifier.head='protoype' is unknown.*Did you mean 'prototype'"),
    ("classifier.loss=logit_adjusted", "Did you mean 'logit-adjusted'"),
    ("classifier.sampler=balanced", "classifier.sampler='balanced' is unknown; .*'class-balanced'"),
    ("classifier.distance=euclidian", "classifier.distance='euclidian'.*Did you mean 'euclidean'"),
    ("classifier.temperature=chanel", "Did you mean 'channel'"),
    ("classifier.batch_norm=publish", "'publish' is unknown.*Did you mean 'published'"),
    ("classifier.temperature_form=square", "temperature_form='square' without temperatures"),
    ("classifier.initial_temperature=-1", "classifier.initial_temperature = -1.0; expected"),
    ("classifier.centroids=clear", "'clear' is unknown.*'none'. Did you mean 'clean'"),
    ("classifier.schedule=cosin", "Did you mean 'cosine'"),
    ("classifier.precision=float16", "Did you mean 'bfloat16'"),
    ('classifier.augment=["crop", "flop"]', "classifier.augment='flop'.*Did you mean 'flip'"),
    ('classifier.augment=["crop", "flip", "crop"]', "expected each name once"),
    # keys
    ("classifier.taus=1", "classifier key='taus' is unknown.*Did you mean 'tau'"),
    ("classifier.weight_dekay=1", "Did you mean 'weight_decay'"),
    ("classifier.ema=0.9", "classifier key='ema' is unknown"),
    ("classifier.loss_options.taus=1", "loss 'logit-adjusted' takes no option 'taus'"),
    ("lr=1", "'lr' is no key to set; expected a stage and a setting"),
    ("title=x", "'title' is no key to set"),
    ("classifier.=1", "is no key to set"),
    ("classifier.loss.tau=1", "is no key to set.*classifier.loss_options.tau"),
    ("classifier.loss_options={tau=1}", "is a table; set what is in it"),
    # what does not go together
    ("classifier.head=linear", """centroids = "augmented"; expected "none": head 'linear'"""),
    ("classifier.centroids=none", """expected "clean" or "augmented", where prototypes"""),
    ("representation.temperature=class", "temperature is an option of .*head 'prototype'"),
    ("representation.distance=cosine", "option of .*head 'prototype'; this .*head 'linear'"),
    ("representation.tau=1", "representation.tau is an option of .*loss 'logit-adjusted'"),
    ("classifier.sampler=progressive", "sampler 'progressive' needs the option 'epochs'"),
    ("representation.drops=[[0.5, 0.1]]", 'schedule = "cosine" has no drops, "steps" has'),
    ("representation.schedule=steps", 'expected drops for schedule = "steps"'),
    ("representation.warm_up_epochs=200", "expected fewer than epochs, which is 200"),
]  # fmt: skip


def shown(words):
    """Match ``words`` as they are, but for ``.*``."""
    return ".*".join(map(re.escape, words.split(".*")))


@pytest.mark.parametrize(("change", "words"), OVERRIDES, ids=[change for change, _ in OVERRIDES])
def test_a_wrong_override_is_told(change, words):
    key, _, value = change.partition("=")
    with pytest.raises(RecipeError, match=shown(words)) as told:
        load_recipe("pc-la").with_overrides({key: value})
    assert str(told.value).startswith("recipe 'pc-la': ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "drops",
    ["[[0.5, 0.1], [0.4, 0.01]]", "[[0.5, 0.1], [0.5, 0.01]]", "[[0, 0.1]]", "[[1.5, 0.1]]"],
)
def test_drops_rise_within_the_training(drops):
    with pytest.raises(RecipeError, match="expected rising parts of the training"):
        load_recipe("wd").with_overrides(
            {"representation.schedule": "steps", "representation.drops": drops}
        )


def test_several_changes_that_do_not_go_together():
    recipe = load_recipe("pc")
    with pytest.raises(RecipeError, match="factors >= 0"):
        recipe.with_overrides({"classifier.schedule": "steps", "classifier.drops": "[[0.5, -1]]"})
    with pytest.raises(RecipeError, match="expected a momentum above 0"):
        recipe.with_overrides({"classifier.nesterov": True, "classifier.momentum": 0})
    with pytest.raises(RecipeError, match=r"expected it once; loss_options\.tau is there too"):
        recipe.with_overrides({"classifier.tau": 1, "classifier.loss_options.tau": 2})
    linear = {"classifier.head": "linear", "classifier.centroids": "none"}
    with pytest.raises(RecipeError, match=r"classifier\.temperature is an option of .*head 'proto"):
        recipe.with_overrides(linear | {"classifier.temperature": "class"})


def test_a_stage_that_is_not_there():
    with pytest.raises(RecipeError, match=r"'classifier\.tau' cannot be set: .* no classifier"):
        load_recipe("wd").with_overrides({"classifier.tau": "1"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pc-cdtla", "recipe='pc-cdtla' is unknown.*Did you mean 'pc-cdt-la'"),
        ("pc/wd", "'wd' has no classifier stage. Write representation/classifier, as in wd/pc"),
        ("wd/pcc", "recipe='pcc' is unknown"),
        ("", "recipe='' is unknown.*that ends in .toml"),
        ("nowhere/mine.toml", "nowhere/mine.toml: there is no such file"),
    ],
)
def test_an_unknown_recipe_is_told(name, words):
    with pytest.raises(RecipeError, match=shown(words)):
        load_recipe(name)


FILES = [
    (b"title = \n", "this is not valid TOML: .*line 1"),
    (b"\xff\xfe", "this is not valid TOML"),
    (b"a = " + b"[" * 5000, "this is not valid TOML"),
    (b"", "title is missing; expected text of one line"),
    (b'title = ""\n[classifier]', 'title = ""; expected text of one line'),
    (b"title = 3\n[classifier]", "title = 3; expected text of one line"),
    (b'title = """a\nb"""\n[classifier]', "expected text of one line"),
    (b'title = "x"\npaper = 3\n[classifier]', "paper = 3; expected text"),
    (b'title = "x"', "it has no stage; expected representation or classifier"),
    (b'name = "x"\ntitle = "x"\n[classifier]', 'name = "x"; expected no name'),
    (b'title = "x"\nclassifier = 3', "classifier = 3; expected a table"),
    (b'title = "x"\n[clasifier]\nlr = 1', "key='clasifier' is unknown.*Did you mean 'classifier'"),
    (b'title = "x"\n[classifier]\nlr = "1"', 'classifier.lr = "1"; expected a number'),
    (b'title = "x"\n[classifier]\nhead_options = 1', "head_options = 1; expected a table"),
    (b'title = "x"\n[classifier]\nextends = "pcc"', "classifier.extends = 'pcc': recipe='pcc' is"),
    (b'title = "x"\n[classifier]\nextends = "wd"', "expected a recipe that has a classifier stage"),
    (b'title = "x"\n[classifier]\nextends = 1', "classifier.extends = 1; expected the name"),
    (b'title = "x"\n[classifier]\nextends = "mine.toml"', "it extends itself"),
    (b'title = "x"\n[classifier]\nextends = "gone.toml"', "gone.toml: there is no such file"),
    (b'title = "x"\n[representation]\nmethod_options = {a = 1979-05-27}', "method_options"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), FILES, ids=[words for _, words in FILES])
def test_a_wrong_file_is_told(content, words, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(RecipeError, match=shown(words)) as told:
        load_recipe(file)
    source = "recipe 'mine'" if "no stage" in words else str(file)
    assert str(told.value).startswith(source)


def test_a_folder_is_no_recipe(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(RecipeError, match="it cannot be read"):
        load_recipe(tmp_path / "folder.toml")


def test_a_circle_of_two_files_is_told(tmp_path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.toml").write_text(
            f'title = "x"\n[classifier]\nextends = "{other}.toml"\n'
        )
    with pytest.raises(RecipeError, match="it extends itself"):
        load_recipe(tmp_path / "a.toml")


def test_a_stored_recipe_that_was_changed_by_hand_is_told():
    resolved = load_recipe("pc").resolved()
    resolved["classifier"]["lr"] = None
    with pytest.raises(RecipeError, match=r'classifier\.lr = "none"; expected a number'):
        Recipe.from_resolved(resolved)
    with pytest.raises(RecipeError, match="name is missing"):
        Recipe.from_resolved({})
