"""Files that are either whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from protail import _files, _lock
from protail._files import (
    OutputError,
    check_free,
    explained,
    new_file,
    new_folder,
    one_writer,
    read_folder,
)
from protail._lock import FileLock, LockedError
from reference.killed import in_small_process, said_of_a_full_disk
from reference.killed_writers import (
    MINE,
    kill_writers_of_a_file,
    kill_writers_of_a_folder,
    mine,
    names,
    no_exchange,
    ours,
    write_mine,
    write_ours,
)


def write(place, text="new", *, folder=False, **options):
    with (new_folder if folder else new_file)(place, **options) as temporary:
        (temporary / "note.txt" if folder else temporary).write_text(text)


def read(place):
    return (place / "note.txt" if place.is_dir() else place).read_text()


@pytest.fixture(params=["exchange", "renames"])
def both_ways(request, monkeypatch):
    """Folders take each other's place in one step, or as where the system has none."""
    if request.param == "renames":
        monkeypatch.setattr(_files, "_swap", no_exchange)


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

    monkeypatch.setattr(_files, "_swap", no_exchange)
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


# Killed at any moment.


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_folder_is_there_at_any_moment(tmp_path, way):
    in_small_process(kill_writers_of_a_folder, tmp_path / "it", way)


def test_a_file_is_there_at_any_moment(tmp_path):
    in_small_process(kill_writers_of_a_file, tmp_path / "it")


@pytest.mark.usefixtures("both_ways")
def test_a_full_disk_at_any_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    place = tmp_path / "it"
    write_ours(place, "old")
    write_mine(place)

    n_failed = 0
    for number in range(1, 60):
        if said := said_of_a_full_disk(number, lambda: write_ours(place, "new")):
            n_failed += 1
            assert "the disk is full" in said
            assert ours(place) in (("old", "old"), ("new", "new"))
        assert mine(place) == MINE
        assert names(tmp_path) == ["it"]
    assert n_failed > 10


# Read and written at once.


@pytest.mark.usefixtures("both_ways")
def test_what_is_read_is_of_one_version(tmp_path):
    place = tmp_path / "it"
    write_ours(place, "old")
    replaced = []

    def read(folder):
        first = (folder / "a").read_text()
        if not replaced:
            write_ours(place, "new")
            replaced.append(place)
        return first, (folder / "b").read_text()

    assert read_folder(place, read) == ("new", "new")
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        read_folder(place, ours)


def test_what_is_set_aside_while_it_is_read_is_found_there(tmp_path):
    place = tmp_path / "it"
    write_ours(place, "old")
    folders = []

    def read(folder):
        folders.append(folder)
        if folder == place:
            place.rename(_files.beside(place, "old"))
        return ours(folder)

    assert read_folder(place, read) == ("old", "old")
    assert folders == [place, _files.beside(place, "old")]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", ["mine.txt", "deep/mine.txt", "new.txt", "link"])
def test_what_changes_in_the_last_moment_goes_along(tmp_path, monkeypatch, name):
    place = tmp_path / "it"
    write_ours(place, "old")
    write_mine(place)
    (place / "old").write_text("ours")
    real = _files.exchange

    def exchange(part, there):
        (place / name).unlink(missing_ok=True)
        (place / name).write_text("changed")
        monkeypatch.setattr(_files, "exchange", real)
        real(part, there)

    monkeypatch.setattr(_files, "exchange", exchange)
    write_ours(place, "new")
    assert (place / name).read_text() == "changed"
    assert ours(place) == ("new", "new")
    assert not (place / "old").exists()
    assert names(tmp_path) == ["it"]


def test_what_cannot_go_along_is_not_dropped(tmp_path, monkeypatch):
    place = tmp_path / "it"
    write_ours(place, "old")
    write_mine(place)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(place / "mine.txt"))

    monkeypatch.setattr(os, "link", refuse)
    write_ours(place, "new")  # copied instead
    assert mine(place) == MINE
    monkeypatch.setattr("shutil.copy2", refuse)
    with pytest.raises(OutputError, match="no permission"):
        write_ours(place, "newer")
    assert ours(place) == ("new", "new")
    assert mine(place) == MINE


def test_permissions_of_a_folder_stay(tmp_path):
    place = tmp_path / "it"
    write_ours(place, "old")
    place.chmod(0o700)
    write_ours(place, "new")
    assert place.stat().st_mode & 0o777 == 0o700


def test_one_writer_of_a_folder(tmp_path):
    place = tmp_path / "it"
    with new_folder(place) as temporary:
        (temporary / "a").write_text("first")
        with pytest.raises(OutputError, match=rf"it is being written by process {os.getpid()}, s"):
            write_ours(place, "second")
        write_ours(tmp_path / "other", "third")
    assert names(place) == ["a"]
    assert names(tmp_path) == ["it", "other"]


def test_writers_of_a_file_leave_each_other_alone(tmp_path):
    place = tmp_path / "it"
    with new_file(place, overwrite=True) as first:
        first.write_text("first")
        write(place, "second", overwrite=True)
        assert place.read_text() == "second"
    assert place.read_text() == "first"
    assert names(tmp_path) == ["it"]


# Locks.


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "lock"
    lock = FileLock(path)
    with pytest.raises(LockedError, match=f"process {os.getpid()}, since 20"):
        FileLock(path)
    lock.release()
    assert path.exists()
    held, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        FileLock(path)
        os.write(held[1], b"!")
        os.read(end[0], 1)
        os._exit(0)
    os.read(held[0], 1)
    with pytest.raises(LockedError, match=f"process {child}, since 20"):
        FileLock(path)
    os.kill(child, 9)
    os.waitpid(child, 0)
    FileLock(path).release(remove=True)
    assert not path.exists()


def test_a_lock_whose_file_was_removed_meanwhile_does_not_count(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    first, real = FileLock(path), _lock._try_lock

    def _try_lock(handle):
        first.release(remove=True)  # between opening and locking
        real(handle)

    monkeypatch.setattr(_lock, "_try_lock", _try_lock)
    second = FileLock(path)
    with pytest.raises(LockedError):
        FileLock(path)
    second.release()


@both_kinds
def test_without_locks_it_is_written_as_well(tmp_path, folder, monkeypatch):
    def unable(_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(_lock, "_try_lock", unable)
    write(tmp_path / "it", folder=folder)
    write(tmp_path / "it", "newer", folder=folder, overwrite=True)
    assert read(tmp_path / "it") == "newer"
    with one_writer(tmp_path / "it") as is_alone:
        assert not is_alone
