"""evaluate, compare and add-class."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from protail import PrototypeClassifier
from reference.rows import BIRDS, long_tailed_rows

pytestmark = pytest.mark.usefixtures("model")


def test_evaluate_agrees_with_scikit_learn(protail, tmp_path):
    data = np.load(tmp_path / "test.npz")
    rows, truth = data["X"], data["y"]
    classifier = PrototypeClassifier.load(tmp_path / "model")
    predicted = classifier.predict(rows)
    result = protail("evaluate", "model", "test.npz", "--json").json
    assert result["all"] == pytest.approx(accuracy_score(truth, predicted))
    assert result["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    ended = protail("evaluate", "model", "test.npz")
    assert f"{100 * result['all']:.1f}" in ended.out
    assert "errors of few" in ended.out


def test_evaluate_judges_the_novelty_score_on_unknown_classes(protail, write, tmp_path):
    rows, labels = long_tailed_rows(counts=(10,) * 6, seed=3, names=[*BIRDS, "puffin"])
    write("strange.npz", rows, labels)
    classifier = PrototypeClassifier.load(tmp_path / "model")
    expected = roc_auc_score(labels == "puffin", classifier.novelty_score(rows))
    ended = protail("evaluate", "model", "strange.npz", "--json")
    assert ended.json["novelty_auroc"] == pytest.approx(expected)
    assert "10 rows are of classes the model does not know" in (
        protail("evaluate", "model", "strange.npz").out
    )


def test_numbers_match_classes_that_are_text(protail, write):
    rows, codes = long_tailed_rows()
    write("codes.npz", rows, codes)
    write("text.npz", rows, codes.astype(str))
    assert protail("fit", "text.npz", "-o", "text").code == 0
    assert protail("evaluate", "text", "codes.npz", "--json").json["all"] > 0.9
    assert protail("fit", "codes.npz", "-o", "codes").code == 0
    ended = protail("evaluate", "codes", "text.npz")
    assert ended.code == 2
    assert "text labels" in ended.last_line


def test_a_model_compared_with_itself_is_no_better(protail):
    ended = protail("compare", "model", "model", "test.npz")
    assert ended.code == 0
    assert ended.out.count("no clear difference") >= 3


def test_compare_finds_the_better_model(protail, write):
    rows, labels = long_tailed_rows(names=BIRDS)
    shuffled = np.random.default_rng(0).permutation(labels)
    write("wrong.npz", rows, shuffled)
    assert protail("fit", "wrong.npz", "-o", "worse", "--epochs", "0").code == 0
    result = protail("compare", "worse", "model", "test.npz", "--json").json
    assert result["all"]["low"] > 0
    assert "better" in protail("compare", "worse", "model", "test.npz").out


def test_compare_pairs_the_same_rows_where_models_read_other_columns(protail, tmp_path):
    rows, codes = long_tailed_rows(counts=(30, 30, 30), width=4)
    columns = dict(zip("pqrs", rows.T, strict=True))

    def save(name, chosen, **changed):
        parts = {**{c: columns[c] for c in chosen}, **changed, "label": codes}
        lines = [
            ",".join(parts),
            *(",".join(map(str, v)) for v in zip(*parts.values(), strict=True)),
        ]
        (tmp_path / name).write_text("\n".join(lines))

    save("pq.csv", "pq")
    save("rs.csv", "rs")
    p, r = columns["p"].copy(), columns["r"].copy()
    p[:7], r[-1] = np.nan, np.nan
    save("test.csv", "pqrs", p=p, r=r)
    for name in ("pq", "rs"):
        assert protail("fit", f"{name}.csv", "-o", name).code == 0
    result = protail("compare", "pq", "rs", "test.csv", "--json").json
    both = np.isfinite(p) & np.isfinite(r)
    for key, name, chosen in (("first", "pq", "pq"), ("second", "rs", "rs")):
        model = PrototypeClassifier.load(tmp_path / name)
        del model.feature_names_in_
        X = np.stack([columns[c] for c in chosen], axis=1).astype(np.float64)
        expected = (model.predict(X) == codes)[both].mean()
        assert result["all"][key] == pytest.approx(expected)
    assert "left out" in protail("compare", "pq", "rs", "test.csv").err


def test_add_class_keeps_other_files_and_answers_in_json(protail, write, tmp_path):
    rows, codes = long_tailed_rows()
    write("codes.npz", rows, codes)
    write("some.npz", rows[:3] + 50)
    assert protail("fit", "codes.npz", "-o", "codes").code == 0
    (tmp_path / "codes" / "notes.txt").write_text("dear")
    (tmp_path / "codes" / "more").mkdir()
    (tmp_path / "codes" / "more" / "deep.txt").write_text("deep")
    ended = protail("add-class", "codes", "17", "some.npz", "--json")
    assert ended.json["class"] == 17
    assert (tmp_path / "codes" / "notes.txt").read_text() == "dear"
    assert (tmp_path / "codes" / "more" / "deep.txt").read_text() == "deep"
    assert not (tmp_path / "codes" / "accuracy.png").exists()
    for name in ("", "  ", "1_0"):
        assert protail("add-class", "codes", name, "some.npz").code == 2


def test_add_class_moves_no_other_and_tells_what_it_took(protail, write, tmp_path):
    rows, labels = long_tailed_rows(counts=(10,) * 6, seed=3, names=[*BIRDS, "puffin"])
    write("puffin.npz", rows[-5:])
    write("check.npz", rows, labels)
    before = PrototypeClassifier.load(tmp_path / "model")
    ended = protail("add-class", "model", "puffin", "puffin.npz", "--check", "check.npz")
    assert ended.code == 0, ended.err
    assert "'puffin' added from 5 rows" in ended.err
    assert "Of its own 10 rows it finds" in ended.err
    after = PrototypeClassifier.load(tmp_path / "model")
    old = after.classes_ != "puffin"
    assert np.array_equal(after.prototypes_[old], before.prototypes_)
    assert after.class_counts_[~old].tolist() == [5]
    assert "puffin" in (tmp_path / "model" / "README.md").read_text()


def test_add_class_counts_the_rows_that_change_hands(protail, write, tmp_path):
    data = np.load(tmp_path / "test.npz")
    rows, truth = data["X"], data["y"]
    write("twin.npz", rows[truth == "gull"])
    write("own.npz", rows[:3], ["puffin"] * 3)
    before = PrototypeClassifier.load(tmp_path / "model").predict(rows)
    result = protail(
        "add-class", "model", "twin", "twin.npz", "--check", "test.npz", "-o", "grown", "--json"
    ).json
    after = PrototypeClassifier.load(tmp_path / "grown").predict(rows)
    assert result["check"]["rows_taken"] == (after == "twin").sum() > 0
    assert result["check"]["rows_spoilt"] == ((after == "twin") & (before == truth)).sum()
    assert result["nearest"][0]["label"] == "gull"
    assert result["check"]["most_from"][0]["label"] == "gull"
    ended = protail("add-class", "model", "puffin", "twin.npz", "--check", "own.npz", "-o", "more")
    assert "--check own.npz has rows of 'puffin' only; expected some of" in ended.last_line
    # The model it came from stays as it was.
    assert "twin" not in PrototypeClassifier.load(tmp_path / "model").classes_


@pytest.mark.filterwarnings("ignore:learned prototypes leave no place")
def test_add_class_refuses_a_known_name_and_a_wrong_kind(protail, write):
    rows, codes = long_tailed_rows()
    write("some.npz", rows[:3])
    write("codes.npz", rows, codes)
    ended = protail("add-class", "model", "gull", "some.npz")
    assert ended.code == 2
    assert "is a class of model already; expected a new one" in ended.last_line
    assert protail("fit", "codes.npz", "-o", "codes").code == 0
    ended = protail("add-class", "codes", "gull", "some.npz")
    assert ended.code == 2
    assert "Give a number" in ended.last_line
    assert protail("add-class", "codes", "17", "some.npz").code == 0


def test_a_folder_that_looks_like_a_setting_stays_a_path(protail):
    ended = protail("fit", "seed=3/none.npz", "-o", "other")
    assert ended.last_line.startswith("protail fit: seed=3/none.npz: there is no such file")


def test_fit_tells_what_it_rejects_of_test_rows(protail, model):
    words = ["fit", "birds.npz", "--test", "test.npz", "--reject", 0.1]
    assert "of the rows of known classes; above" in protail(*words, "-o", "told").out
    assert 0 < protail(*words, "-o", "told as json", "--json").json["rejected"]["known"] < 1


def test_add_class_keeps_the_names_of_columns(protail, tmp_path):
    rows, codes = long_tailed_rows(counts=(30, 30), width=2)
    lines = [f"{x},{y},{code}" for (x, y), code in zip(rows, codes, strict=True)]
    (tmp_path / "named.csv").write_text("\n".join(["p,q,label", *lines]))
    (tmp_path / "new.csv").write_text("q,p\n50,-50\n51,-50\n")
    assert protail("fit", "named.csv", "-o", "named", "--method", "paper").code == 0
    assert protail("add-class", "named", "7", "new.csv").code == 0
    loaded = PrototypeClassifier.load(tmp_path / "named")
    assert loaded.feature_names_in_.tolist() == ["p", "q"]
    x, y = loaded.class_means_[2]  # normalised
    assert y / x == pytest.approx(-1, abs=0.02)
    assert x < 0


@pytest.mark.filterwarnings("ignore:learned prototypes leave no place")
def test_one_row_is_one_row(protail, write):
    rows, labels = long_tailed_rows(counts=(4,) * 5, seed=3, names=BIRDS)
    write("one.npz", rows[:1], labels[:1])
    assert protail("predict", "model", "one.npz", "-o", "o.csv").err.startswith("1 row predicted")
    added = protail("add-class", "model", "emu", "one.npz", "-o", "emu", "--check", "one.npz")
    assert "'emu' added from 1 row;" in added.err
    assert "Of 1 row of other classes it takes 1" in added.err
    labels = labels.astype(object)
    labels[0] = "unheard of"
    rows[1, 1] = np.nan
    write("holes.npz", rows, labels.astype(str))
    evaluated = protail("evaluate", "model", "holes.npz")
    assert "1 row holds NaN or infinity: left out." in evaluated.err
    assert "1 row is of classes the model does not know" in evaluated.out
    write("nothing.npz", rows[1:2], labels[1:2].astype(str))
    refused = protail("evaluate", "model", "nothing.npz")
    assert refused.code == 2
    assert "1 row holds NaN or infinity; expected finite numbers" in refused.last_line
