"""Files that are either whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from protail import _files
from protail._files import OutputError, check_free, explained, new_file, new_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(place, text="new", *, folder=False, **options):
    with (new_folder if folder else new_file)(place, **options) as temporary:
        (temporary / "note.txt" if folder else temporary).write_text(text)


def read(place):
    return (place / "note.txt" if place.is_dir() else place).read_text()


both_kinds = pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])


@both_kinds
def test_whole_and_nothing_beside_it(tmp_path, folder):
    place = tmp_path / "missing" / "above" / "it"
    write(place, folder=folder)
    assert read(place) == "new"
    assert names(place.parent) == ["it"]


@both_kinds
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_nothing_stays_of_a_failure(tmp_path, folder, error):
    place = tmp_path / "missing" / "it"

    def fail():
        with (new_folder if folder else new_file)(place) as temporary:
            (temporary / "note.txt" if folder else temporary).write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []


@both_kinds
def test_a_failure_leaves_what_was_there(tmp_path, folder, monkeypatch):
    place = tmp_path / "it"
    write(place, "old", folder=folder)

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    real = Path.rename
    monkeypatch.setattr(Path, "replace", refuse)
    # The old folder goes aside and comes back; only the new one cannot be moved.
    monkeypatch.setattr(
        Path, "rename", lambda old, new: (refuse if old.suffix == ".part" else real)(old, new)
    )
    with pytest.raises(OutputError, match="Input/output error"):
        write(place, "new", folder=folder, overwrite=True)
    monkeypatch.undo()
    assert read(place) == "old"
    assert names(tmp_path) == ["it"]


@both_kinds
def test_overwrite(tmp_path, folder):
    place = tmp_path / "it"
    write(place, "old", folder=folder)
    with pytest.raises(OutputError, match="already there"):
        write(place, folder=folder)
    assert read(place) == "old"
    write(place, folder=folder, overwrite=True)
    assert read(place) == "new"
    assert names(tmp_path) == ["it"]


@both_kinds
@pytest.mark.parametrize("content", [[], ["precious.txt"]], ids=["empty", "full"])
def test_a_file_never_replaces_a_folder_nor_the_other_way_round(tmp_path, folder, content):
    place = tmp_path / "it"
    if folder:
        place.write_text("precious")
    else:
        place.mkdir()
        for name in content:
            (place / name).write_text("precious")
    with pytest.raises(OutputError, match=r"is a \w+; expected a name for a"):
        write(place, folder=folder, overwrite=True)
    assert place.is_file() if folder else names(place) == content
    assert names(tmp_path) == ["it"]


def test_what_came_meanwhile_is_not_replaced(tmp_path):
    place = tmp_path / "it"

    def write_slowly():
        with new_file(place) as temporary:
            temporary.write_text("ours")
            place.write_text("theirs")

    with pytest.raises(OutputError, match="already there"):
        write_slowly()
    assert read(place) == "theirs"
    assert names(tmp_path) == ["it"]


@both_kinds
def test_an_empty_folder_is_free_for_a_folder(tmp_path, folder):
    place = tmp_path / "it"
    place.mkdir()
    if folder:
        check_free(place, folder=True)
        write(place, folder=True)
        assert read(place) == "new"
    else:
        with pytest.raises(OutputError, match="expected a name for a file"):
            check_free(place)


@both_kinds
def test_a_link_stays_and_its_target_is_replaced(tmp_path, folder):
    target, link = tmp_path / "target", tmp_path / "link"
    write(target, "old", folder=folder)
    link.symlink_to(target)
    write(link, folder=folder, overwrite=True)
    assert link.is_symlink()
    assert read(target) == "new"


@both_kinds
@pytest.mark.parametrize("name", ["x" * 255, "\N{SNAIL}" * 63], ids=["ascii", "snails"])
def test_the_longest_names(tmp_path, folder, name):
    write(tmp_path / name, folder=folder)
    assert names(tmp_path) == [name]


@both_kinds
@pytest.mark.parametrize("name", ["x" * 300, "file/inside", "nul\0byte", "/"])
def test_impossible_names(tmp_path, folder, name):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError) as caught:
        write(tmp_path / name, folder=folder, overwrite=True)
    assert caught.value.strerror
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("path", [".", ".."])
def test_the_folder_one_is_in_is_not_replaced(tmp_path, monkeypatch, path):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(OutputError, match="the folder you are in"):
        write(path, folder=True, overwrite=True)
    assert names(tmp_path) == ["inner"]


@both_kinds
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path, folder):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="no permission"):
            write(tmp_path / "it", folder=folder)
    finally:
        tmp_path.chmod(0o700)


def test_an_error_of_the_input_stays_what_it_is(tmp_path):
    def copy(source):
        with new_file(tmp_path / "out.txt") as temporary:
            temporary.write_text(source.read_text())

    with pytest.raises(FileNotFoundError, match=r"in\.txt"):
        copy(tmp_path / "in.txt")
    assert names(tmp_path) == []


def test_a_full_disk_in_words(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files, "_flush", full)
    with pytest.raises(OutputError, match="the disk is full"):
        write(tmp_path / "it")
    assert names(tmp_path) == []


def test_explaining_twice_changes_nothing():
    once = explained(OSError(errno.EROFS, "Read-only file system"), Path("model"))
    assert explained(once, Path("other")) is once
    assert "read-only" in once.strerror
