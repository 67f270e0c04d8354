"""Writers that are killed before each change of files, and what must be there then."""

import errno
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from protail import _files
from protail._files import OutputError, check_free, new_file, new_folder, read_folder
from reference.killed import is_killed, said_of_a_full_disk

MINE = {"mine.txt": "mine", "deep/mine.txt": "deep", "fixed/mine.txt": "fixed"}


def write_mine(place):
    """Put files of the user's own beside those that `write_ours` writes."""
    for name, text in MINE.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "link").symlink_to("mine.txt")
    (place / "fixed").chmod(0o500)


def mine(folder):
    """Read what `write_mine` wrote."""
    assert (folder / "link").readlink() == Path("mine.txt")
    return {name: (folder / name).read_text() for name in MINE}


def write_ours(place, text):
    """Replace a folder of two files; a third one called old is to go."""
    with new_folder(place, overwrite=True, ours={"a", "b", "old"}.__contains__) as folder:
        (folder / "a").write_text(text)
        (folder / "b").write_text(text)


def ours(folder):
    """Read what `write_ours` wrote."""
    return (folder / "a").read_text(), (folder / "b").read_text()


def no_exchange(one, other):
    """Stand for `_swap` where the system has no such step."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def names(folder):
    """List a folder."""
    return sorted(os.listdir(folder))


def _do_not_wait_for_the_disk():
    # What a process has written outlives its death without this; only a machine's needs it.
    os.fsync = lambda handle: None


def kill_writers_of_a_folder(place, way):
    """Kill one before each change; the old or the new folder is there, and the next save tidies."""
    place = Path(place)
    _do_not_wait_for_the_disk()
    if way == "renames":
        _files._swap = no_exchange
    write_ours(place, "0")
    write_mine(place)
    for number in itertools.count(1):
        old, new = 2 * (str(number - 1),), 2 * (str(number),)
        was_killed = is_killed(number, lambda: write_ours(place, str(number)))  # noqa: B023
        assert read_folder(place, ours) in ([old, new] if was_killed else [new])
        assert read_folder(place, mine) == MINE
        with pytest.raises(OutputError, match="already there"):
            check_free(place, folder=True)
        write_ours(place, str(number))
        assert names(place.parent) == [place.name]
        assert ours(place) == new
        assert mine(place) == MINE
        if not was_killed:
            break
    assert number > 20


def kill_writers_of_a_file(place):
    """Kill one before each change; the old or the new file is there, and the next save tidies."""
    place = Path(place)
    _do_not_wait_for_the_disk()

    def write(text):
        with new_file(place, overwrite=True) as temporary:
            temporary.write_text(text)

    write("0")
    for number in itertools.count(1):
        was_killed = is_killed(number, lambda: write(str(number)))  # noqa: B023
        found = [str(number - 1), str(number)] if was_killed else [str(number)]
        assert place.read_text() in found
        write(str(number))
        assert names(place.parent) == [place.name]
        assert place.read_text() == str(number)
        if not was_killed:
            break
    assert number > 5


def _predict(output):
    """Predict two blocks of rows, as ``protail predict`` does."""
    from protail.cli.options import FeatureOptions
    from protail.cli.predict import PredictionJob
    from protail.cli.sources import Answers, Model

    classes = SimpleNamespace(classes_=np.array(["ant", "bee"]))
    source = SimpleNamespace(path=output.with_name("rows.npz"), kept=())
    job = PredictionJob(output, Model(output, classes, None), [source], FeatureOptions(), 1, False)
    with job:
        for first in (0, 2):
            codes, numbers = np.array([[0], [1]]), np.array([[0.25], [0.75]])
            answers = Answers(np.array([True, True]), codes, numbers, numbers, numbers[:, 0])
            if first >= job.n_done:
                job.keep(source, first, answers, [(), ()])
        job.finish()
    return output.read_bytes()


def kill_predictions(folder):
    """Kill one before each change of files; the next one goes on and ends as if nothing was."""
    _do_not_wait_for_the_disk()
    (Path(folder) / "rows.npz").touch()
    output = Path(folder) / "out.csv"
    whole = _predict(output)
    assert whole.count(b"\n") == 5
    for number in itertools.count(1):
        output.unlink()
        was_killed = is_killed(number, lambda: _predict(output))
        if output.exists():
            assert output.read_bytes() == whole
            output.unlink()
        assert _predict(output) == whole
        assert names(folder) == ["out.csv", "rows.npz"]
        if not was_killed:
            break
    assert number > 30


def fill_the_disk_of_predictions(folder):
    """Let the disk be full at each write; the next prediction goes on."""
    _do_not_wait_for_the_disk()
    (Path(folder) / "rows.npz").touch()
    output = Path(folder) / "out.csv"
    whole = _predict(output)
    n_failed = 0
    for number in range(1, 40):
        output.unlink()
        if said := said_of_a_full_disk(number, lambda: _predict(output)):
            n_failed += 1
            assert "the disk is full" in said
            assert _predict(output) == whole
        assert output.read_bytes() == whole
    assert n_failed > 10
