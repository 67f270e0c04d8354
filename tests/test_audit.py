"""`make audit`: what a plain install brings, and what is known against the lock."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
specification = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
audit = importlib.util.module_from_spec(specification)
specification.loader.exec_module(audit)

ANSWER = {
    "dependencies": [
        {"name": "torch", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]},
        {"name": "numpy", "version": "2.0", "vulns": []},
        {"name": "rich", "skip_reason": "not found"},
    ]
}


def test_licences_are_those_of_a_plain_install():
    found = {name: licence for name, _, licence in audit.licences()}
    assert {"torch", "numpy", "scikit-learn", "scipy", "safetensors", "typer", "rich"} <= set(found)
    assert not {"optuna", "timm", "pytest", "matplotlib"} & set(found)  # of extras
    assert "BSD" in found["numpy"]
    assert found["typer"] == "MIT"
    copyleft = [name for name, licence in found.items() if re.search(r"\bA?GPL", licence)]
    assert copyleft == []


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (ANSWER, 1, ["KNOWN  torch 2.0: CVE-1, fixed in 2.1", "NOT CHECKED", "2 packages of"]),
        ("no network", 0, ["NOT CHECKED", "gave no answer (no network)"]),
        ({"dependencies": ANSWER["dependencies"][1:2]}, 0, ["1 packages", "0 known"]),
    ],
)
def test_says_what_is_known_and_what_was_not_looked_up(answer, code, words, monkeypatch, capsys):
    monkeypatch.setattr(audit, "look_up", lambda *_: answer)
    monkeypatch.setattr("sys.argv", ["audit.py"])
    assert audit.main() == code
    told = capsys.readouterr().out
    assert "torch" in told
    assert all(word in told for word in words), told


def test_every_requirement_of_the_lock_has_its_hash():
    lock = (ROOT / "requirements-dev.txt").read_text().replace("\\\n", "")
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 100
    for line in lines:
        assert "==" in line, line
        assert "--hash=sha256:" in line, line
