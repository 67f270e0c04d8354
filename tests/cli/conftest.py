import json
import shutil
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

from protail.cli import app
from reference.rows import BIRDS, long_tailed_rows


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def last_line(self):
        return self.err.strip().splitlines()[-1]


@pytest.fixture
def protail(tmp_path, monkeypatch):
    """Run a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def process(tmp_path):
    """Start a command as a process of its own."""

    def start(*arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "protail", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    return start


@pytest.fixture
def write(tmp_path):
    """Write rows and labels to a file in the folder where commands run."""

    def save(name, rows, labels=None):
        arrays = {"X": rows} if labels is None else {"X": rows, "y": labels}
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return save


@pytest.fixture
def birds(write):
    """Five classes, the last of two rows: birds.npz to learn from, test.npz to evaluate on."""
    write("birds.npz", *long_tailed_rows(names=BIRDS))
    write("test.npz", *long_tailed_rows(counts=(20,) * 5, seed=1, names=BIRDS))


@pytest.fixture(scope="session")
def fitted_on_birds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("birds")
    rows, labels = long_tailed_rows(names=BIRDS)
    np.savez(folder / "birds.npz", X=rows, y=labels)
    arguments = ["fit", str(folder / "birds.npz"), "-o", str(folder / "model"), "--epochs", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return folder / "model"


@pytest.fixture
def model(birds, fitted_on_birds, tmp_path):
    """A model fitted on birds.npz, in the folder ``model``."""
    shutil.copytree(fitted_on_birds, tmp_path / "model")
    return tmp_path / "model"
