"""Saved and loaded models: the same bits, whole files, and nothing else replaced."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from protail import PrototypeClassifier
from protail._files import OutputError, one_writer
from protail.estimator import ModelFileError, _card
from protail.estimator._persistence import prepare

LABELS = {
    "text": np.array(["ant", "bee", "cat", "dog"]),
    "roomy text": np.array(["", "b", "cc", "Käfer \N{SNAIL}"], dtype="<U40"),
    "objects": np.array(["ant", "bee", "cat", "\udcff"], dtype=object),
    "int64": np.array([-(2**63), -1, 0, 2**63 - 1]),
    "uint64": np.array([0, 1, 2, 2**64 - 1], dtype=np.uint64),
    "int8": np.array([-128, 0, 5, 127], dtype=np.int8),
    "big-endian": np.array([1, 2, 300, 70000], dtype=">i4"),
    "bool": np.array([False, True]),
    "float64": np.array([-2.0, 0.0, 1.0, 2.0**52]),
    "float32": np.array([-2, 0, 1, 16777216], dtype=np.float32),
    "float16": np.array([-2, 0, 1, 2048], dtype=np.float16),
}


def problem(labels, dtype=np.float64, seed=0, n_rows=40, n_features=5):
    rng = np.random.default_rng(seed)
    codes = np.arange(n_rows) % len(labels)
    centres = np.random.default_rng(9).normal(size=(len(labels), n_features))
    return (centres[codes] + rng.normal(size=(n_rows, n_features))).astype(dtype), labels[codes]


def fitted(labels=LABELS["text"], dtype=np.float64, **options):
    options = {"max_steps": 8, "random_state": 0} | options
    return PrototypeClassifier(**options).fit(*problem(labels, dtype))


def again(classifier, **options):
    """Save, load, and leave no file behind: nothing may depend on it."""
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder) / "model", **options)
        return PrototypeClassifier.load(Path(folder) / "model")


def assert_same_array(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tolist() == other.tolist()
    assert one.flags.writeable


def assert_same(one, other):
    names = {name for name in vars(one) if name.endswith("_")}
    assert names == {name for name in vars(other) if name.endswith("_")}
    for name in names:
        value = getattr(one, name)
        if isinstance(value, np.ndarray):
            assert_same_array(value, getattr(other, name))
        elif name == "preparation_":
            assert value.keys() == getattr(other, name).keys()
            for key, array in value.items():
                assert_same_array(array, getattr(other, name)[key])
        else:
            assert value == getattr(other, name), name
            assert type(getattr(other, name)) is not np.float64


def assert_same_answers(one, other, X):
    for ask in ("predict", "predict_proba", "decision_function", "distances", "novelty_score"):
        np.testing.assert_array_equal(getattr(one, ask)(X), getattr(other, ask)(X), ask)
    for mine, yours in zip(one.top_k(X, 3), other.top_k(X, 3), strict=True):
        np.testing.assert_array_equal(mine, yours)


@pytest.mark.filterwarnings("ignore:of .* fewer training rows")
@pytest.mark.filterwarnings("ignore:learned prototypes leave no place")
@settings(max_examples=120)
@given(
    method=st.sampled_from(["whitened", "closed-form", "paper", "paper"]),
    kind=st.sampled_from(sorted(LABELS)),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    distance=st.sampled_from(["euclidean", "sqeuclidean", "cosine"]),
    temperature=st.sampled_from([None, "channel", "class", "dense"]),
    prior=st.sampled_from(["uniform", "train", "array"]),
    normalize=st.sampled_from(["auto", None, 3, np.float32(0.3)]),
    epochs=st.sampled_from([0, 1, "auto"]),
)
def test_same_bits(method, kind, dtype, distance, temperature, prior, normalize, epochs):
    labels = LABELS[kind]
    if prior == "array":
        prior = np.arange(1, len(labels) + 1) / np.arange(1, len(labels) + 1).sum()
    options = {"max_steps": 8, "distance": distance, "temperature": temperature}
    options |= {"normalize": normalize, "epochs": epochs}
    options = options if method == "paper" else {"max_steps": None}
    one = fitted(labels, dtype, method=method, prior=prior, **options)
    other = again(one)
    assert_same(one, other)
    for rows in (np.float32, np.float64):
        assert_same_answers(one, other, problem(labels, rows, seed=1)[0])
    more = problem(labels, dtype, seed=2)
    assert_same(one.partial_fit(*more), other.partial_fit(*more))
    if isinstance(prior, str) and kind == "objects":
        new = problem(np.array(["aaa", "zzz"], dtype=object), dtype, seed=3, n_rows=4)
        assert_same(one.add_classes(*new), other.add_classes(*new))
    assert_same(one, again(one))
    assert_same_answers(one, other, problem(labels, np.float64, seed=4)[0])


def test_wide_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 4200)), np.arange(30) % 3
    one = PrototypeClassifier().fit(X + 3 * y[:, None], y)
    assert one.preparation_["axes"].shape == (4200, 30)
    assert_same(one, again(one))
    assert_same_answers(one, again(one), X)


def test_weights_of_rows():
    X, y = problem(LABELS["text"])
    one = PrototypeClassifier().fit(X, y, sample_weight=np.arange(len(y)) / 3)
    assert one.class_counts_.dtype == np.float64
    assert_same(one, again(one))
    assert_same_answers(one, again(one), X)


@pytest.mark.parametrize("temperature", [None, "channel", "class", "dense"])
def test_classes_that_have_had_no_rows(temperature):
    X, y = problem(LABELS["text"])
    classes = [*LABELS["text"], "never"]
    one = PrototypeClassifier(max_steps=8, random_state=0, temperature=temperature)
    one.partial_fit(X, y, classes=classes)
    other = again(one)
    assert_same(one, other)
    assert_same_answers(one, other, X)
    late = X[:3] + 5, np.array(["never", "ant", "never"])
    assert_same(one.partial_fit(*late), other.partial_fit(*late))
    assert_same_answers(one, other, X)


@pytest.mark.filterwarnings("ignore:the first rows say nothing")
def test_rows_of_one_class_only():
    X, _ = problem(LABELS["text"])
    one = PrototypeClassifier(random_state=0).partial_fit(X[:3], ["ant"] * 3, classes=["ant", "b"])
    assert_same_answers(one, again(one), X)


@pytest.mark.parametrize("temperature", ["channel", "class", "dense"])
def test_added_classes(temperature):
    one = fitted(temperature=temperature)
    one.add_classes(*problem(np.array(["a rather long name", "bat"]), seed=3, n_rows=4))
    assert_same(one, again(one))


def test_settings_come_back():
    given_settings = {
        "method": "paper",
        "memorised": np.False_,
        "local": np.True_,
        "distance": "cosine",
        "temperature": "class",
        "logit_adjustment": np.float32(0.25),
        "normalize": None,
        "prior": "train",
        "epochs": np.int64(3),
        "max_steps": 4,
        "lr": 0.1,
        "temperature_lr": 0,
        "momentum": np.float64(0.5),
        "batch_size": np.int16(16),
        "sampling": "square-root",
        "reject": None,
        "device": "cpu",
        "random_state": np.int32(7),
        "verbose": 0,
    }
    one = fitted(**given_settings)
    found = again(one).get_params()
    assert found == given_settings | {"device": "auto", "verbose": False}
    assert {type(value) for value in found.values()} <= {str, int, float, bool, type(None)}
    clone(again(one)).fit(*problem(LABELS["text"]))


@pytest.mark.parametrize("prior", [[0.1, 0.2, 0.3, 0.4], torch.tensor([0.25] * 4)], ids=type)
def test_any_array_as_prior(prior):
    one = fitted(prior=prior)
    assert_same_answers(one, again(one), problem(LABELS["text"])[0])


def test_a_generator_becomes_none():
    assert again(fitted(random_state=np.random.RandomState(3))).random_state is None


def test_feature_names():
    X, y = problem(LABELS["text"])
    frame = pd.DataFrame(X, columns=["a", "b", "Länge", "d|e", ""])
    one = PrototypeClassifier(max_steps=3, random_state=0).fit(frame, y)
    other = again(one)
    assert_same(one, other)
    assert other.predict(frame).tolist() == one.predict(frame).tolist()
    with pytest.raises(ValueError, match="feature names"):
        other.predict(frame[frame.columns[::-1]])


def test_settings_changed_after_the_fit():
    one = fitted(distance="cosine").set_params(distance="euclidean", prior="train")
    assert_same_answers(one, again(one), problem(LABELS["text"])[0])


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda c: c.set_params(lr="fast"), "lr='fast'"),
        (lambda c: c.set_params(prior=[0.5, 0.5]), "prior has shape"),
        (lambda c: c.set_params(prior="equal"), "prior"),
        (lambda c: setattr(c, "scale_", np.nan), "scale"),
        (lambda c: setattr(c, "normalize_", np.inf), "normalize"),
        (lambda c: c.prototypes_.__setitem__(0, np.nan), "NaN"),
        (lambda c: setattr(c, "classes_", np.array([b"a", b"b", b"c", b"d"])), "classes_ has"),
        (lambda c: setattr(c, "classes_", np.array([1, 2, 3, 4], dtype=object)), "classes_ has"),
        (lambda c: setattr(c, "classes_", np.array([1, 2, 3, 4], dtype="M8[D]")), "classes_ has"),
        (lambda c: setattr(c, "classes_", c.classes_.astype(np.complex64)), "classes_ has"),
        (lambda c: setattr(c, "classes_", c.classes_.astype(np.longdouble)), "classes_ has"),
        (
            lambda c: setattr(c, "classes_", np.array(["\ud83d\ude00", "b", "c", "d"], object)),
            "halves of one character",
        ),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, break_it, words):
    one = fitted(LABELS["int64"])
    break_it(one)
    with pytest.raises(ValueError, match=words):
        one.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path):
    one = fitted()
    with pytest.raises(NotFittedError):
        PrototypeClassifier().save(tmp_path / "model")
    with pytest.raises(TypeError, match="about is a int"):
        one.save(tmp_path / "model", about=3)
    with pytest.raises(TypeError, match="evaluation is a list"):
        one.save(tmp_path / "model", evaluation=[1])
    with pytest.raises(TypeError, match="evaluation holds a set"):
        one.save(tmp_path / "model", evaluation={"all": {1}})
    assert not list(tmp_path.iterdir())
    one.save(tmp_path / "model")
    with pytest.raises(ValueError, match="device='gpu'"):
        PrototypeClassifier.load(tmp_path / "model", device="gpu")


def test_files_are_plain_and_complete(tmp_path):
    one = fitted(LABELS["roomy text"], temperature="dense")
    one.save(
        tmp_path / "model", about="by hand", evaluation={"all": np.float64(0.5), "few": np.nan}
    )
    assert sorted(os.listdir(tmp_path / "model")) == [
        "README.md",
        "model.json",
        "weights.safetensors",
    ]
    text = (tmp_path / "model" / "model.json").read_text("utf-8")
    assert "Käfer" in text
    document = json.loads(text)
    assert (document["format"], document["format_version"]) == ("protail-prototype-classifier", 2)
    assert document["evaluation"] == {"all": 0.5, "few": None}
    assert document["about"] == "by hand"
    # The weights are a file like any other of that format.
    arrays = load_file(tmp_path / "model" / "weights.safetensors")
    np.testing.assert_array_equal(arrays["prototypes"], one.prototypes_)
    assert set(arrays) == set(document["weights"]["tensors"])


def test_evaluation_object(tmp_path):
    from protail import Evaluation

    one = fitted()
    X, y = problem(LABELS["text"], seed=1)
    evaluation = Evaluation.from_predictions(
        y, one.predict(X), classes=one.classes_, counts=one.class_counts_
    )
    one.save(tmp_path / "model", evaluation=evaluation)
    document = json.loads((tmp_path / "model" / "model.json").read_text("utf-8"))
    assert Evaluation.from_dict(document["evaluation"]) == evaluation
    assert f"{100 * evaluation.all:.1f} %" in (tmp_path / "model" / "README.md").read_text("utf-8")


def test_the_card_is_never_read_and_line_ends_do_not_matter(tmp_path):
    one = fitted()
    one.save(tmp_path / "model")
    (tmp_path / "model" / "README.md").unlink()
    (tmp_path / "model" / "notes.txt").write_text("anything")
    path = tmp_path / "model" / "model.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert_same(one, PrototypeClassifier.load(tmp_path / "model"))


def test_overwriting(tmp_path):
    folder = tmp_path / "model"
    fitted().save(folder)
    (folder / "accuracy.png").write_text("a picture")
    with pytest.raises(OutputError, match="already there"):
        fitted().save(folder)
    other = fitted(LABELS["int8"])
    other.save(folder, overwrite=True)
    assert_same(other, PrototypeClassifier.load(folder))
    assert len(os.listdir(folder)) == 3
    (folder / "model.json").write_bytes((folder / "model.json").read_bytes()[:150])
    other.save(folder, overwrite=True)  # a damaged model is still a model
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("content", [{"thesis.tex": "x"}, {"model.json": '{"format": "other"}'}])
def test_what_is_no_model_is_never_replaced(tmp_path, content):
    home = tmp_path / "home"
    home.mkdir()
    for name, text in content.items():
        (home / name).write_text(text)
    (tmp_path / "link").symlink_to(home)
    for place in (home, tmp_path / "link"):
        with pytest.raises(OutputError, match="holds no protail model"):
            fitted().save(place, overwrite=True)
    with pytest.raises(OutputError, match="is a file"):
        fitted().save(home / next(iter(content)), overwrite=True)
    assert {path.name: path.read_text() for path in home.iterdir()} == content


def test_where_nobody_can_say_whether_it_is_a_model_nothing_is_replaced(tmp_path):
    folder = tmp_path / "model"
    fitted().save(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "model.json").unlink()
    (folder / "model.json").symlink_to("model.json")  # to open it is an OSError
    prepared = prepare(fitted(), None, None, "model")
    for save in (prepared.write, fitted().save):
        with pytest.raises(OutputError, match="it is not replaced"):
            save(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["model"]


def test_a_second_writer_is_told_who_writes(tmp_path):
    one = fitted()
    one.save(tmp_path / "model")
    with (
        one_writer(tmp_path / "model"),
        pytest.raises(
            OutputError, match=rf"model is being written by process {os.getpid()}, since"
        ),
    ):
        fitted(LABELS["int8"]).save(tmp_path / "model", overwrite=True)
    assert_same(one, PrototypeClassifier.load(tmp_path / "model"))


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_model_is_read_while_it_is_replaced(tmp_path, monkeypatch, has_exchange):
    def unable(one, other):
        raise OSError(errno.EINVAL, "Invalid argument")

    if not has_exchange:
        monkeypatch.setattr("protail._files._swap", unable)
    folder = tmp_path / "model"
    models = [prepare(fitted(LABELS[kind]), None, None, "model") for kind in ("text", "bool")]
    models[0].write(folder)
    (folder / "notes.txt").write_text("mine")
    writer = os.fork()
    if writer == 0:
        for number in range(60):
            models[number % 2].write(folder, overwrite=True)
        os._exit(0)
    n_classes = set()
    while os.waitpid(writer, os.WNOHANG) == (0, 0):
        n_classes.add(len(PrototypeClassifier.load(folder).classes_))
    assert n_classes <= {2, 4}
    assert (folder / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("after", [0, 10, 300, 1500, 3000])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, after):
    one = fitted()
    room = after
    real = Path.open

    def small_disk(path, mode="r", *args, **options):
        file = real(path, mode, *args, **options)
        if "w" in mode:

            def write(block):
                nonlocal room
                room -= len(block)
                if room < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")

            file = type("File", (), {"write": staticmethod(write)})
            file.__enter__, file.__exit__ = (lambda self: self), (lambda self, *_: None)
            return file()
        return file

    monkeypatch.setattr(Path, "open", small_disk)
    with pytest.raises(OutputError, match="the disk is full"):
        one.save(tmp_path / "missing" / "model")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from protail import PrototypeClassifier
from protail._files import OutputError
fitted = PrototypeClassifier(epochs=0).fit(np.eye(40, 400), np.arange(40) % 4)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file may grow larger
try:
    fitted.save(sys.argv[1])
except OutputError as error:
    print(error.strerror, list(Path(sys.argv[1]).parent.iterdir()))
"""


def test_a_disk_that_takes_no_more(tmp_path):
    pytest.importorskip("resource")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "large" in done.stdout, done
    assert done.stdout.endswith("[]\n"), done


def test_a_loaded_model_needs_its_file_no_more(tmp_path):
    one = fitted()
    one.save(tmp_path / "model")
    other = PrototypeClassifier.load(tmp_path / "model")
    with (tmp_path / "model" / "weights.safetensors").open("r+b") as file:
        file.truncate(0)
    assert_same(one, other)


def test_labels_with_monstrous_room():
    labels = np.array(["ant", "bee"], dtype=f"<U{2**24}")
    one = fitted()
    one.classes_ = np.array([*labels.tolist(), "cat", "dog"], dtype="<U5000000")
    assert again(one).classes_.dtype == np.dtype("<U3")


@pytest.mark.slow
def test_a_large_model_is_in_memory_once(tmp_path):
    code = """
import resource, sys, numpy as np
from protail import PrototypeClassifier
X = np.eye(4, 3)
fitted = PrototypeClassifier(epochs=0, normalize=None).fit(X + 1, [0, 1, 2, 3])
n, d = 200_000, 512
fitted.prototypes_ = np.ones((n, d)); fitted.class_means_ = np.zeros((n, d))
fitted.classes_ = np.arange(n); fitted.class_counts_ = np.ones(n, dtype=np.int64)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak(); fitted.save(sys.argv[1]); print(peak() - before)
"""
    run = [sys.executable, "-c", code, str(tmp_path / "model")]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert grown < 200  # MiB, beside arrays of 1,560
    code = """
import sys, threading
from protail import PrototypeClassifier
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) // 1024
before, most, done = anonymous(), 0, threading.Event()
def watch():
    global most
    while not done.wait(0.005):
        most = max(most, anonymous())
watcher = threading.Thread(target=watch); watcher.start()
PrototypeClassifier.load(sys.argv[1]); done.set(); watcher.join(); print(most - before)
"""
    run = [sys.executable, "-c", code, str(tmp_path / "model")]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert grown < 2 * 782 + 200


NASTY = ["<script>alert(1)</script>", "a|b", "`x`", "two\nlines", "---", "[x](javascript:alert(1))"]


def test_labels_are_inert_in_the_card(tmp_path):
    labels = np.array(sorted([*NASTY, "![i](http://x/y.png)", "*b* _c_", "&lt;", "\u202eevil"]))
    fitted(labels).save(tmp_path / "<b>`model`", about="fine\n```\n</pre><script>\n````")
    (card,) = (tmp_path / "<b>`model`").glob("README.md")
    text = card.read_text("utf-8")
    table = text[text.index("## Classes") : text.index("## How it was made")]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(labels)
    for line in rows[2:]:
        assert not set(line) & set("<>`[]()*_\u202e")
        assert line.count("|") == 3
    about = text[text.index("## How it was made") :].splitlines()
    assert about[2] == "`````text"
    assert about[7] == "`````"
    assert text.startswith("---\nlibrary_name: protail\ntags:\n- ")


def test_the_card_shows_few_of_many_classes():
    labels = [f"name{code}" for code in range(30)]
    contents = {
        "classes": {"values": labels},
        "evaluation": {"many": 0.75, "few": 0.125, "many_from": 25, "few_below": 4, "all": 0.5},
        "about": None,
        "settings": {},
        "choices": {},
    }
    text = _card.model_card(contents, np.arange(1, 31), "user/name")
    assert [f"name{code} " in text for code in range(30)] == [True] * 10 + [False] * 10 + [
        True
    ] * 10
    assert "| many (25 rows or more) | 6 | 165 | 75.0 % |" in text
    assert "| few (fewer than 4 rows) | 3 | 6 | 12.5 % |" in text
    assert "465 rows of 30 classes; the largest class has 30 times" in text
    assert "from_pretrained('user/name')" in text


def test_the_error_can_be_pickled(tmp_path):
    import pickle

    with pytest.raises(ModelFileError) as caught:
        PrototypeClassifier.load(tmp_path / "nothing")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_whoever_may_read_one_file_may_read_both(tmp_path):
    fitted(max_steps=1).save(tmp_path / "model")
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}
