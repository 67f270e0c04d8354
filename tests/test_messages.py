"""Words that errors share."""

import json
import sys
from pathlib import Path

import pytest

import protail
from protail._messages import (
    OWN_PART,
    counted,
    install_command,
    not_installed,
    unknown_name,
    unknown_part,
    upgrade_advice,
)


@pytest.mark.parametrize(
    ("got", "valid", "meant"),
    [
        ("ncm", ["PC", "NCM"], "NCM"),
        ("NCM", ["pc", "ncm"], "ncm"),
        ("resnet-34", ["ResNet-34", "ResNet-32"], "ResNet-34"),
        ("euclidian", ["cosine", "euclidean"], "euclidean"),
        ("pcla", ["pc", "pc-la"], "pc-la"),
        ("PC_CDT", ["pc_cd", "pc-cdt"], "pc-cdt"),
        ("t a-u_2", ["tau", "t_a-u-2"], "t_a-u-2"),
    ],
)
def test_the_nearest_name_is_written_as_it_is_known(got, valid, meant):
    said = unknown_name("row", got, valid)
    assert said.startswith(f"row={got!r} is unknown; expected one of {valid[0]!r}, {valid[1]!r}.")
    assert said.endswith(f" Did you mean {meant!r}?")


@pytest.mark.parametrize("got", ["something else", "", None, 3])
def test_nothing_is_near(got):
    assert "Did you mean" not in unknown_name("row", got, ["PC", "NCM"])


def test_an_unknown_part_may_be_somebodys_own():
    arguments = ("head", "cosin", ["cosine", "linear"])
    assert unknown_part(*arguments) == f"{unknown_name(*arguments)} {OWN_PART}"


def test_numbers_of_things():
    numbers = [counted(n, "class is", "classes are") for n in (0, 1, 2, 1000)]
    assert numbers == ["0 classes are", "1 class is", "2 classes are", "1,000 classes are"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Give protail a way in which it was installed, as pip writes it down; None is an index."""

    def install(origin):
        place = tmp_path / "protail-0.1.0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text("Metadata-Version: 2.1\nName: protail\nVersion: 0.1.0\n")
        if origin is not None:
            (place / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))

    return install


def test_an_extra_is_installed_as_protail_was(installed, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    installed({"url": clone.as_uri(), "dir_info": {}})
    assert install_command("tables") == f"pip install '{clone}[tables]'"
    assert install_command("train", "vision") == f"pip install '{clone}[train,vision]'"
    assert install_command() == f"pip install '{clone}'"
    said = not_installed("a picture", "matplotlib", "report")
    assert said == (
        f"a picture needs matplotlib, which is not installed. Install it: pip install "
        f"'{clone}[report]'"
    )
    assert upgrade_advice() == f"Get the newest protail into {clone}, then pip install '{clone}'"


def test_an_editable_clone_stays_editable(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_command("tables") == f"pip install -e '{tmp_path}[tables]'"


def test_a_clone_that_has_gone_is_looked_for_by_its_owner(installed, tmp_path):
    installed({"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert install_command("hub") == "pip install '.[hub]' in a clone of protail"
    assert upgrade_advice() == "Get the newest protail into a clone, then pip install . there"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'protail[hub]'"),
        (
            {"url": "https://a.b/protail.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'protail[hub] @ git+https://a.b/protail.git'",
        ),
        (
            {"url": "https://a.b/protail.zip", "archive_info": {}},
            "pip install 'protail[hub] @ https://a.b/protail.zip'",
        ),
    ],
)
def test_what_came_from_elsewhere_comes_from_there_again(origin, command, installed):
    installed(origin)
    assert install_command("hub") == command


def test_a_clone_that_is_not_installed_names_itself(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    root = Path(protail.__file__).parents[2]
    assert install_command("hub") == f"pip install '{root}[hub]'"


def test_pip_is_that_of_the_python_that_runs(installed, monkeypatch):
    installed(None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_command("hub") == f"{sys.executable} -m pip install 'protail[hub]'"


def test_nobody_else_says_how_to_install():
    source = Path(protail.__file__).parent
    saying = [path for path in source.rglob("*.py") if "pip install" in path.read_text("utf-8")]
    assert saying == [source / "_messages.py"]
