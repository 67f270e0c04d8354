"""Nothing reaches the network in these tests, and the commands that people use do not even try."""

import socket
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from protail.cli import app

ABROAD = ("198.51.100.1", 443)  # an address that is kept free for examples


def test_tests_reach_this_machine_and_no_other():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    for ask in (
        lambda: socket.create_connection(ABROAD, timeout=1),
        lambda: socket.getaddrinfo("example.org", 443),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ABROAD),
    ):
        with pytest.raises(OSError, match="tests reach no network"):
            ask()
    code = f"import socket; socket.create_connection({ABROAD}, timeout=1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "tests reach no network" in ended.stderr


def test_no_command_asks_for_the_network(tmp_path, monkeypatch):
    """`tests/faults/test_kill_anywhere.py` says the same of the long ones."""
    asked = tmp_path / "asked"
    monkeypatch.setenv("PROTAIL_TEST_NETWORK", str(asked))
    monkeypatch.chdir(tmp_path)
    rows, labels = load_digits(return_X_y=True)
    np.savez("rows.npz", X=rows.astype("float32")[:400], y=labels[:400])
    for line in (
        *("recipes", "data list"),
        *("fit rows.npz -o model", "evaluate model rows.npz", "compare model model rows.npz"),
        "report model rows.npz -o report.html",
    ):
        ended = CliRunner().invoke(app, line.split())
        assert ended.exit_code == 0, (line, ended.output)
    assert not asked.exists(), asked.read_text()
