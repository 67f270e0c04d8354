"""--json: one object on standard output, whatever happens, and nothing else there."""

import json

import pytest

from reference.feature_data import feature_data, write_npz

pytestmark = pytest.mark.usefixtures("model")

GOOD = [
    ["fit", "birds.npz", "-o", "out", "--epochs", "0"],
    ["predict", "model", "birds.npz", "-o", "out.csv"],
    ["evaluate", "model", "birds.npz"],
    ["compare", "model", "model", "birds.npz"],
    ["add-class", "model", "puffin", "birds.npz", "-o", "out"],
    ["report", "model", "birds.npz"],
    ["doctor"],
    ["recipes"],
    ["recipes", "show", "pc"],
    ["data", "list"],
    ["data", "stats", "whole.npz"],
    ["train", "pc-la", "--dataset", "whole.npz"],
]


@pytest.mark.parametrize("arguments", GOOD, ids=lambda words: " ".join(words[:2]))
def test_every_object_names_the_version_of_its_form(arguments, protail, tmp_path):
    write_npz(tmp_path / "whole.npz", feature_data())
    ended = protail(*arguments, "--json")
    assert ended.code == 0, ended.err
    assert next(iter(ended.json.items())) == ("schema_version", 1)
    assert "error" not in ended.json


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (["fit", "gone.npz", "-o", "out"], 2, "bad_input", "protail fit: gone.npz: there is no"),
        (["recipes", "show", "pcc"], 2, "bad_input", "Did you mean"),
        (["fit", "birds.npz", "-o", "model"], 3, "not_written", "--overwrite"),
        (["fit", "birds.npz", "--no-such-option"], 2, "bad_input", "--no-such-option"),
        (["fit", "birds.npz"], 2, "bad_input", "--output"),
        (["fit", "birds.npz", "-o", "out", "--seed", "x"], 2, "bad_input", "protail fit: "),
        (["fitt"], 2, "bad_input", "fitt"),
        (["data", "stats"], 2, "bad_input", "NAME"),
    ],
)
def test_an_error_is_an_object(arguments, code, kind, words, protail):
    ended = protail(*arguments, "--json")
    assert ended.code == code
    assert ended.err == ""
    assert list(ended.json) == ["schema_version", "error"]
    assert ended.json["schema_version"] == 1
    error = ended.json["error"]
    assert list(error) == ["kind", "exit_code", "message"]
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert words in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("raised", "code", "kind", "words"),
    [
        (RuntimeError("broken"), 1, "unexpected", "fault of protail"),
        (MemoryError(), 1, "unexpected", "out of memory"),
        (KeyboardInterrupt(), 130, "stopped", "stopped"),
    ],
)
def test_whatever_ends_it(raised, code, kind, words, protail, monkeypatch):
    def evaluate(*_):
        raise raised

    monkeypatch.setattr("protail.cli.sources.evaluate_rows", evaluate)
    ended = protail("evaluate", "model", "birds.npz", "--json")
    assert ended.code == code
    assert ended.err == ""
    assert ended.json["error"]["kind"] == kind
    assert words in ended.json["error"]["message"]


def test_without_it_errors_are_for_people(protail):
    for arguments in (["fit", "gone.npz", "-o", "out"], ["fit", "--no-such-option"]):
        ended = protail(*arguments)
        assert ended.code == 2
        assert ended.out == ""
        assert not ended.last_line.startswith("{")


def test_in_a_process_of_its_own(process):
    for arguments, code in ((["fit"], 2), (["recipes", "show", "pc"], 0)):
        running = process(*arguments, "--json")
        out, err = running.communicate(timeout=60)
        assert running.returncode == code, (out, err)
        assert json.loads(out)["schema_version"] == 1
        assert err == ""
