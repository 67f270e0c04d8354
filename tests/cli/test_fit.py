import json

import numpy as np
import pytest

from protail import PrototypeClassifier
from reference.rows import long_tailed_rows


def test_fit_tells_what_it_found_and_writes_a_model_and_a_picture(birds, protail, tmp_path):
    ended = protail("fit", "birds.npz", "-o", "model")
    assert ended.code == 0
    assert "109 rows of 6 numbers (float32), 5 classes, imbalance 30" in ended.err
    assert "many (100 rows or more) 0, medium 2, few (under 20) 3" in ended.err
    assert "| prototypes |" in ended.out
    assert (tmp_path / "model" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert PrototypeClassifier.load(tmp_path / "model").classes_.tolist() == [
        "crow",
        "gull",
        "heron",
        "lynx",
        "otter",
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["birds.npz", "model", "test.npz"]


def test_the_saved_model_is_the_one_python_would_fit(birds, protail, tmp_path):
    protail("fit", "birds.npz", "-o", "model", "--json")
    data = np.load(tmp_path / "birds.npz")
    rows, truth = data["X"], data["y"]
    expected = PrototypeClassifier(random_state=0).fit(rows, truth)
    loaded = PrototypeClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.prototypes_, expected.prototypes_)
    assert np.array_equal(loaded.predict_proba(rows), expected.predict_proba(rows))


def test_settings_reach_the_classifier(birds, protail, tmp_path):
    options = {
        "--distance": "cosine",
        "--temperature": "channel",
        "--logit-adjustment": "0.5",
        "--normalize": "none",
        "--epochs": "2",
        "--prior": "train",
        "--seed": "7",
    }
    ended = protail(
        "fit", "birds.npz", "-o", "model", *[x for pair in options.items() for x in pair]
    )
    assert ended.code == 0
    loaded = PrototypeClassifier.load(tmp_path / "model")
    assert loaded.get_params() | {"device": None} == {
        **PrototypeClassifier().get_params(),
        "distance": "cosine",
        "temperature": "channel",
        "logit_adjustment": 0.5,
        "normalize": None,
        "epochs": 2,
        "prior": "train",
        "random_state": 7,
        "device": None,
    }


def test_json_is_one_object_and_nothing_else_is_said(birds, protail):
    ended = protail("fit", "birds.npz", "-o", "model", "--json")
    assert ended.err == ""
    result = ended.json
    assert result["found"]["classes"] == 5
    assert result["evaluation"]["all"] > 0.9
    assert result["choices"]["method"] == "whitened"


def test_the_held_out_part_has_every_class_that_can_spare_a_row(birds, protail):
    classes = protail("fit", "birds.npz", "-o", "m", "--json").json["evaluation"]["classes"]
    assert [c["test_rows"] for c in classes] == [12, 6, 2, 1, 1]


def test_rows_that_are_not_finite_are_left_out_and_duplicates_told(write, protail):
    rows, labels = long_tailed_rows()
    rows[3, 2] = np.nan
    rows[70, 0] = np.inf
    rows[11] = rows[10]
    rows[100] = rows[20]  # another class
    write("dirty.npz", rows, labels)
    ended = protail("fit", "dirty.npz", "-o", "model")
    assert ended.code == 0
    assert "107 rows" in ended.err
    assert "rows with NaN or infinity, left out: 2" in ended.err
    assert "rows that repeat an earlier one: 2 (with another label: 1)" in ended.err


def test_rows_that_look_memorised_are_not_praised(write, protail, tmp_path):
    """Held-out rows say nothing where the network has learned from them."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    rows = 9 * rng.normal(size=(20, 32))[labels] + 0.1 * rng.normal(size=(200, 32))
    write("memorised.npz", rows, labels)
    ended = protail("fit", "memorised.npz", "-o", "model")
    assert "far too good: evaluate on rows that it has never seen, with --test" in ended.err
    assert "may have learned from" in (tmp_path / "model" / "README.md").read_text()
    rows += 12 * rng.normal(size=rows.shape)
    write("noisy.npz", rows, labels)
    assert "far too good" not in protail("fit", "noisy.npz", "-o", "other").err


def test_a_class_of_nothing_but_nan_is_named(write, protail):
    rows, labels = long_tailed_rows()
    rows[labels == 3] = np.nan
    write("lost.npz", rows, labels)
    ended = protail("fit", "lost.npz", "-o", "model")
    assert "lost with them: 1 (3)" in ended.err
    assert "repeat" not in ended.err
    assert protail("fit", "lost.npz", "-o", "m", "--json").json["found"][
        "classes_without_finite_rows"
    ] == [3]


def test_rows_that_contradict_each_other_are_judged_too(write, protail):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(200, 4)) + 9 * c for c in range(2)]).astype(np.float32)
    labels = np.repeat([0, 1], 200)
    twice, other = np.concatenate([rows, rows[::2]]), np.concatenate([labels, 1 - labels[::2]])
    write("ambiguous.npz", twice, other)
    scores = protail("fit", "ambiguous.npz", "-o", "model", "--json").json["evaluation"]
    assert scores["all"] < 0.9  # two thirds of the rows are certain, one third half wrong


def test_names_like_01_and_1_are_two_classes(protail, tmp_path):
    rows, codes = long_tailed_rows()
    names = np.array(["01", "1", "02", "2", "x"])[codes]
    _write_csv(tmp_path / "all.csv", {f"f{i}": rows[:, i] for i in range(6)}, names)
    some = codes < 3
    _write_csv(tmp_path / "some.csv", {f"f{i}": rows[some, i] for i in range(6)}, names[some])
    assert protail("fit", "all.csv", "-o", "model").code == 0
    for file in ("all.csv", "some.csv"):
        result = protail("evaluate", "model", file, "--json").json
        assert result["all"] > 0.9
        assert result["n_unseen"] == 0


def test_a_test_file_is_judged_on_instead(birds, protail):
    ended = protail("fit", "birds.npz", "-o", "model", "--test", "test.npz", "--json")
    assert [c["test_rows"] for c in ended.json["evaluation"]["classes"]] == [20] * 5
    assert ended.json["judged_on"] == "test.npz"


def test_nothing_held_out_nothing_judged(birds, protail, tmp_path):
    ended = protail("fit", "birds.npz", "-o", "model", "--held-out", "0")
    assert ended.code == 0
    assert "nothing is evaluated" in ended.err
    assert not (tmp_path / "model" / "accuracy.png").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet", "safetensors"])
def test_every_kind_of_file_gives_the_same_model(kind, birds, protail, tmp_path):
    data = np.load(tmp_path / "birds.npz")
    rows, labels = data["X"], data["y"]
    path = tmp_path / f"birds.{kind}"
    if kind == "safetensors":
        from safetensors.numpy import save_file

        codes = np.unique(labels, return_inverse=True)[1]
        save_file({"features": rows, "labels": codes}, path)
    elif kind == "csv":
        pairs = zip(labels, rows, strict=True)
        lines = [",".join([label, *map(repr, row.tolist())]) for label, row in pairs]
        path.write_text("\n".join(["label,a,b,c,d,e,f", *lines]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: rows[:, i] for i, name in enumerate("abcdef")}
        pq.write_table(pa.table({**columns, "label": labels}), path)
    assert protail("fit", "birds.npz", "-o", "first").code == 0
    ended = protail("fit", path.name, "-o", "second")
    assert ended.code == 0, ended.err
    first, second = (PrototypeClassifier.load(tmp_path / name) for name in ("first", "second"))
    # Numbers written as text are read in double precision.
    rtol = 1e-5 if kind == "csv" else 0
    np.testing.assert_allclose(first.prototypes_, second.prototypes_, rtol=rtol, atol=rtol)


def test_named_columns_are_found_in_any_order(protail, tmp_path):
    rows, labels = long_tailed_rows(width=3)
    _write_csv(tmp_path / "train.csv", {"a": rows[:, 0], "b": rows[:, 1], "c": rows[:, 2]}, labels)
    mixed = {"id": np.arange(len(rows)), "c": rows[:, 2], "a": rows[:, 0], "b": rows[:, 1]}
    _write_csv(tmp_path / "new.csv", mixed, labels)
    assert protail("fit", "train.csv", "-o", "model").code == 0
    same = [protail("evaluate", "model", f, "--json").json["all"] for f in ("train.csv", "new.csv")]
    assert same[0] == same[1] > 0.7
    _write_csv(tmp_path / "short.csv", {"a": rows[:, 0], "b": rows[:, 1]}, labels)
    ended = protail("evaluate", "model", "short.csv")
    assert ended.code == 2
    assert "lacks 1 of the 3 columns" in ended.last_line


def _write_csv(path, columns, labels):
    lines = [",".join([*columns, "label"])]
    lines += [",".join(map(str, values)) for values in zip(*columns.values(), labels, strict=True)]
    path.write_text("\n".join(lines))


def test_class_names_are_data_nowhere_code(write, protail, tmp_path):
    names = ["<script>alert(1)</script>", "../../x", "[bold]", "$a_b$", "=1+1"]
    write("odd.npz", *long_tailed_rows(names=names))
    ended = protail("fit", "odd.npz", "-o", "model")
    assert ended.code == 0, ended.err
    assert "<script>" not in (tmp_path / "model" / "README.md").read_text()
    assert sorted(json.loads((tmp_path / "model/model.json").read_text())["classes"]["values"]) == (
        sorted(names)
    )
    ended = protail("predict", "model", "odd.npz", "-o", "out.jsonl")
    assert ended.code == 0
    labels = {json.loads(line)["label"] for line in (tmp_path / "out.jsonl").open()}
    assert labels == set(names)
    assert not list(tmp_path.parent.glob("x*"))
