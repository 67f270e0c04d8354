"""What version 0.1.0 saved still loads, and what it computed still comes out.

``tests/recorded`` holds a model, a run and their answers, written before the packages were
rearranged. Numbers may differ by what another processor rounds otherwise.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from protail import PrototypeClassifier
from protail.cli import app

RECORDED = Path(__file__).parent / "recorded"


def test_a_model_of_0_1_0_answers_as_it_did() -> None:
    model = PrototypeClassifier.load(RECORDED / "model-0.1.0")
    with np.load(RECORDED / "model-0.1.0-answers.npz") as then:
        rows = then["rows"]
        np.testing.assert_array_equal(model.predict(rows), then["labels"])
        for name, answer in {
            "probabilities": model.predict_proba(rows),
            "decision": model.decision_function(rows),
            "distances": model.distances(rows),
            "novelty": model.novelty_score(rows),
        }.items():
            np.testing.assert_allclose(answer, then[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_the_same_rows_give_the_model_of_0_1_0() -> None:
    rows, labels = load_digits(return_X_y=True)
    kept = np.random.default_rng(0).random(len(labels)) < 0.7**labels
    then = PrototypeClassifier.load(RECORDED / "model-0.1.0")
    now = PrototypeClassifier(random_state=0, temperature="channel").fit(rows[kept], labels[kept])
    np.testing.assert_allclose(now.prototypes_, then.prototypes_, rtol=1e-4)
    np.testing.assert_allclose(now.temperature_, then.temperature_, rtol=1e-4)
    # The factor on the logits weighs classes alike since: labels are the same, certainty is not.
    np.testing.assert_array_equal(now.predict(rows), then.predict(rows))


def test_a_training_of_pc_la_ends_where_it_did(tmp_path: Path) -> None:
    run = tmp_path / "run"
    data = ["--dataset", "cifar100-lt-features", "--device", "cpu"]
    ended = CliRunner().invoke(app, ["train", "pc-la", *data, "-o", str(run)])
    assert ended.exit_code == 0, ended.output
    then = load_file(RECORDED / "run-0.1.0" / "weights.safetensors")
    now = load_file(run / "weights.safetensors")
    np.testing.assert_allclose(
        now["classifier.prototypes"], then["classifier.prototypes"], rtol=1e-3, atol=1e-3
    )
    scores_then, scores_now = (
        json.loads((folder / "evaluation.json").read_text())["evaluation"]["classifier"]
        for folder in (RECORDED / "run-0.1.0", run)
    )
    for view, scores in scores_then.items():
        for group in ("all", "many", "medium", "few"):
            assert abs(scores_now[view][group] - scores[group]) < 0.002, (view, group)
