"""``protail train --log``: other places that a training is logged to."""

from importlib.util import find_spec

import pytest

from protail.cli.loggers import SERVICES

WORDS = ("train", "pc-la", "--dataset", "cifar100-lt-features", "-o", "run")
QUICK = ("--set", "classifier.max_steps=2", "--device", "cpu")


@pytest.mark.parametrize("name", [name for name in SERVICES if find_spec(name) is None])
def test_a_service_that_is_not_installed(protail, name, tmp_path):
    ended = protail(*WORDS, "--log", name)
    assert (ended.code, list(tmp_path.iterdir())) == (2, [])
    assert f"needs the package {name}, which is not installed." in ended.last_line


def test_no_such_service(protail):
    ended = protail(*WORDS, "--log", "mlfow")
    assert (ended.code, ended.last_line.endswith("Did you mean 'mlflow'?")) == (2, True)


def test_scores_in_mlflow(protail, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    ended = protail(*WORDS, *QUICK, "--log", "mlflow", "--json")
    assert ended.code == 0, ended.err
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = mlflow.search_runs(experiment_names=["protail"], output_format="list")
    scores = ended.json["runs"][0]["evaluation"]["classifier"]["plain"]
    assert run.data.metrics["classifier/plain/all"] == pytest.approx(scores["all"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
