import contextlib
import csv
import importlib
import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from protail import PrototypeClassifier
from protail.cli import sources
from protail.data.tables import open_features
from reference.killed import in_small_process
from reference.killed_writers import fill_the_disk_of_predictions, kill_predictions
from reference.patience import PATIENCE, halts_at, wait_for_halt
from reference.rows import BIRDS, long_tailed_rows

pytestmark = pytest.mark.usefixtures("model")


@pytest.fixture
def new_rows(write):
    rows, _ = long_tailed_rows(counts=(9,) * 5, seed=2)
    write("new.npz", rows)
    return rows


def read(path):
    if path.suffix == ".csv":
        return list(csv.DictReader(path.open(newline="", encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.open(encoding="utf-8")]
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format_says_what_the_classifier_says(kind, new_rows, protail, tmp_path):
    ended = protail("predict", "model", "new.npz", "-o", f"out.{kind}", "--top-k", "3")
    assert ended.code == 0, ended.err
    classifier = PrototypeClassifier.load(tmp_path / "model")
    labels, probabilities, distances = classifier.top_k(new_rows, 3, return_distance=True)
    novelty = classifier.novelty_score(new_rows)
    records = read(tmp_path / f"out.{kind}")
    assert len(records) == len(new_rows)
    for i, record in enumerate(records):
        assert record["file"] == "new.npz"
        assert int(record["row"]) == i
        assert float(record["novelty"]) == pytest.approx(novelty[i], abs=1e-6)
        for place, suffix in enumerate(["", "_2", "_3"]):
            assert record[f"label{suffix}"] == labels[i, place]
            assert float(record[f"probability{suffix}"]) == pytest.approx(
                probabilities[i, place], abs=1e-6
            )
            assert float(record[f"distance{suffix}"]) == pytest.approx(
                distances[i, place], abs=1e-5
            )
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("out")) == [f"out.{kind}"]


def test_far_rows_are_written_as_the_classifier_answers_them(protail, tmp_path):
    rows, labels = long_tailed_rows(counts=(40, 20, 10, 5))
    model = PrototypeClassifier(normalize=None, max_steps=5, random_state=0).fit(rows, labels)
    model.save(tmp_path / "plain")
    far = np.concatenate([rows[:20] * np.float32(scale) for scale in (1e-25, 1, 1e10, 1e20)])
    np.save(tmp_path / "far.npy", far)
    ended = protail("predict", "plain", "far.npy", "-o", "far.csv", "--top-k", "2")
    assert ended.code == 0, ended.err
    records = read(tmp_path / "far.csv")
    assert [record["label"] for record in records] == [str(label) for label in model.predict(far)]
    expected = {
        "probability": model.predict_proba(far).max(1),
        "distance": model.distances(far).min(1),
        "novelty": model.novelty_score(far),
    }
    for name, values in expected.items():
        np.testing.assert_allclose([float(record[name]) for record in records], values, rtol=1e-5)


def test_several_files_follow_each_other(new_rows, write, protail, tmp_path):
    write("more.npz", new_rows[:4])
    assert protail("predict", "model", "new.npz", "more.npz", "-o", "out.csv").code == 0
    records = read(tmp_path / "out.csv")
    assert [r["file"] for r in records] == ["new.npz"] * 45 + ["more.npz"] * 4
    assert [int(r["row"]) for r in records] == [*range(45), *range(4)]
    assert [r["label"] for r in records[45:]] == [r["label"] for r in records[:4]]


def test_more_classes_than_there_are_names_them_all(new_rows, protail, tmp_path):
    assert protail("predict", "model", "new.npz", "-o", "out.csv", "-k", "50").code == 0
    assert "label_5" in read(tmp_path / "out.csv")[0]
    assert "label_6" not in read(tmp_path / "out.csv")[0]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_that_are_not_finite_have_no_prediction(kind, new_rows, write, protail, tmp_path):
    new_rows[7, 1] = np.nan
    write("holes.npz", new_rows)
    ended = protail("predict", "model", "holes.npz", "-o", f"out.{kind}")
    assert ended.code == 0
    assert "without a prediction: 1" in ended.err
    records = read(tmp_path / f"out.{kind}")
    assert not records[7]["label"]
    assert not records[7]["probability"]
    assert records[8]["label"]


@pytest.fixture
def careful(protail, tmp_path):
    """A model that rejects rows, and what the fit has said."""
    fitted = protail("fit", "birds.npz", "-o", "careful", "--reject", 0.1)
    return PrototypeClassifier.load(tmp_path / "careful"), fitted.out


def test_rejected_rows_have_no_label(careful, new_rows, write, protail, tmp_path):
    strange = np.concatenate([new_rows, 9 - new_rows])
    strange[0] = np.nan
    write("strange.npz", strange)
    answers = careful[0].predict(strange[1:])
    likeliest = careful[0].top_k(strange[1:], 2)[0]
    rejected = [answer is None for answer in answers]
    assert 0 < sum(rejected) < len(answers)
    for kind in ("csv", "jsonl", "parquet"):
        words = ["careful", "strange.npz", "-o", f"out.{kind}", "-k", 2, "--json"]
        assert protail("predict", *words).json["rows_rejected"] == sum(rejected)
        first, *records = read(tmp_path / f"out.{kind}")
        assert not any(first[name] for name in ("label", "rejected", "likeliest", "novelty"))
        for record, answer, named in zip(records, answers, likeliest, strict=True):
            assert (record["label"] or None) == answer
            assert str(record["rejected"]) == str(answer is None)
            assert [record["likeliest"], record["label_2"]] == named.tolist()
            assert float(record["probability"]) > 0


def test_rejected_rows_are_counted(careful, write, protail):
    rows, labels = long_tailed_rows(counts=(20,) * 5, seed=3, names=BIRDS)
    write("both.npz", np.concatenate([rows, 9 - rows]), [*labels, *["emu"] * len(rows)])
    assert " % of the rows of known classes; above they count by their likeliest" in careful[1]
    ended = protail("evaluate", "careful", "both.npz", "--json")
    assert ended.json["rejected"]["known"] < 0.3 < ended.json["rejected"]["unknown"]


def test_json_tells_what_was_done(new_rows, protail):
    result = protail("predict", "model", "new.npz", "-o", "out.csv", "--json").json
    assert result["rows"] == 45
    assert result["rows_without_prediction"] == 0


def stopped_once(protail, monkeypatch, call, *predicting):
    """Stop a prediction at this block and start it again."""
    calls, ask = [], sources.ask

    def stopped(*given):
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        return ask(*given)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "ask", stopped)
        assert protail(*predicting).code == 130
    return protail(*predicting)


def test_a_later_start_counts_what_the_earlier_one_did(
    careful, new_rows, write, protail, monkeypatch
):
    strange = np.concatenate([new_rows, 9 - new_rows])
    strange[[0, 1, 70]] = np.nan
    write("strange.npz", strange)
    monkeypatch.setattr(importlib.import_module("protail.cli.predict"), "_NAMED_AT_A_TIME", 20)
    predicting = ["predict", "careful", "strange.npz", "-o"]
    whole = protail(*predicting, "whole.csv", "--json").json
    told, found = (
        stopped_once(protail, monkeypatch, 4, *predicting, f"out{len(words)}.csv", *words)
        for words in ([], ["--json"])
    )
    assert found.json["rows_from_earlier_start"] == 60
    for name in ("rows", "rows_without_prediction", "rows_rejected"):
        assert found.json[name] == whole[name] > 0
    assert "without a prediction: 3" in told.err
    assert "\n29 rows predicted" in told.err
    assert f"Rejected, as unknown or doubtful: {whole['rows_rejected']} " in told.err


@pytest.fixture
def mixed(protail, write, tmp_path):
    """A model that estimates the mix of classes, and rows of a mix: in one file and in many."""
    rows, labels = long_tailed_rows(counts=(40, 25, 15, 10, 10), width=2, names=BIRDS)
    write("train.npz", rows, labels)
    words = ["-o", "mixed", "--prior", "estimate", "--held-out", 0]
    assert protail("fit", "train.npz", *words).code == 0
    rows, labels = long_tailed_rows(counts=(300, 60, 20, 8, 4), width=2, seed=5, names=BIRDS)
    rows[0] = np.nan
    write("whole.npz", rows, labels)
    (tmp_path / "cut").mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(rows)), 30)):
        write(f"cut/{number:02d}.npz", rows[part], labels[part])
    return PrototypeClassifier.load(tmp_path / "mixed"), rows[1:], labels[1:]


def test_the_mix_of_classes_is_that_of_all_rows(mixed, protail, monkeypatch, tmp_path):
    model, rows, truth = mixed
    labels, probabilities = model.top_k(rows, 1)
    parts = [model.predict(part) for part in np.array_split(rows, 30)]
    assert (np.concatenate(parts) != labels[:, 0]).any()
    monkeypatch.setattr(importlib.import_module("protail.cli.predict"), "_NAMED_AT_A_TIME", 90)
    for given in ("whole.npz", "cut"):
        for k in (1, 3):
            words = ["mixed", given, "-o", "out.csv", "-k", k, "--overwrite"]
            assert protail("predict", *words).code == 0
            _, *records = read(tmp_path / "out.csv")
            assert [record["label"] for record in records] == labels[:, 0].tolist()
            found = [float(record["probability"]) for record in records]
            np.testing.assert_allclose(found, probabilities[:, 0], rtol=1e-4)
    for given in (["whole.npz"], ["cut"], sorted(tmp_path.glob("cut/*"))):
        scores = protail("evaluate", "mixed", *given, "--json").json
        assert scores["all"] == pytest.approx((labels[:, 0] == truth).mean())
    shards = open_features(tmp_path / "cut", engine=map).rows()
    answers = sources.ask_all(sources.Model.load(tmp_path / "mixed"), shards)
    assert (model.classes_[answers.codes[:, 0]] == labels[:, 0]).all()


def test_of_many_rows_some_of_every_file_are_estimated_from(mixed, protail, monkeypatch, tmp_path):
    looked, estimate = [], PrototypeClassifier.estimate_prior

    def estimated(model, rows):
        looked.append(rows)
        return estimate(model, rows)

    monkeypatch.setattr(PrototypeClassifier, "estimate_prior", estimated)
    monkeypatch.setattr(sources, "_ESTIMATED_FROM", 100)
    for given in ("whole.npz", "cut"):
        assert protail("predict", "mixed", given, "-o", f"{given}.csv").code == 0
    assert len(looked) == 2
    assert 98 < len(looked[0]) <= 100
    np.testing.assert_array_equal(*looked)
    one, other = (read(tmp_path / f"{given}.csv") for given in ("whole.npz", "cut"))
    assert [row["label"] for row in one] == [row["label"] for row in other]
    places = [np.flatnonzero((mixed[1] == row).all(axis=1))[0] for row in looked[0]]
    assert (np.diff(places) > 0).all()
    assert np.diff(places).max() < 40


def test_a_later_start_expects_the_same_mix(mixed, protail, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.import_module("protail.cli.predict"), "_NAMED_AT_A_TIME", 90)
    predicting = ["predict", "mixed", "whole.npz", "-o"]
    assert protail(*predicting, "whole.csv").code == 0
    looked, estimate = [], PrototypeClassifier.estimate_prior

    def estimated(model, rows):
        looked.append(rows)
        return estimate(model, rows)

    monkeypatch.setattr(PrototypeClassifier, "estimate_prior", estimated)
    ended = stopped_once(protail, monkeypatch, 3, *predicting, "out.csv", "--json")
    assert ended.json["rows_from_earlier_start"] == 180
    assert len(looked) == 1
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.fixture
def long_file(tmp_path):
    """Rows enough for four blocks."""
    rows = np.random.default_rng(0).normal(size=(220_000, 6)).astype(np.float32)
    np.savez(tmp_path / "long.npz", X=rows)
    return rows


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_prediction_goes_on_where_it_was(stop, long_file, process, protail, tmp_path):
    arguments = ("predict", "model", "long.npz", "-o", "out.csv")
    running = process(*arguments, env=halts_at(tmp_path, "protail.cli.sources.ask", 3))
    wait_for_halt(running)
    parts = tmp_path / "out.csv.parts"
    running.send_signal(stop)
    running.send_signal(signal.SIGCONT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    if stop == signal.SIGINT:
        assert err.strip().splitlines()[-1] == "stopped."
    assert not (tmp_path / "out.csv").exists()
    kept = {part.name: part.stat().st_mtime_ns for part in parts.glob("[0-9]*.part")}

    # Another job does not take them for its own.
    other = protail(*arguments, "--top-k", "2")
    assert other.code == 2
    assert "--overwrite" in other.last_line

    ended = protail(*arguments, "--json")
    assert ended.code == 0
    assert ended.json["rows_from_earlier_start"] > 0
    assert not parts.exists()
    assert protail("predict", "model", "long.npz", "-o", "whole.csv").code == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert kept


def test_pieces_of_a_changed_file_are_not_taken(new_rows, protail, write, tmp_path):
    parts = tmp_path / "out.csv.parts"
    parts.mkdir()
    (parts / "job.json").write_text('{"format": "protail-predictions-1"}')
    ended = protail("predict", "model", "new.npz", "-o", "out.csv")
    assert ended.code == 2
    assert "start again" in ended.last_line
    assert (parts / "job.json").exists()
    assert protail("predict", "model", "new.npz", "-o", "out.csv", "--overwrite").code == 0
    assert not parts.exists()


@pytest.mark.parametrize("stop", [kill_predictions, fill_the_disk_of_predictions])
def test_stopped_at_any_moment_it_keeps_nobody_out(stop, tmp_path):
    (tmp_path / "alone").mkdir()
    in_small_process(stop, tmp_path / "alone")


@pytest.mark.parametrize("job", [None, "", '{"format": "protail-pre'])
@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_pieces_without_a_whole_description_are_nobodys(job, options, new_rows, protail, tmp_path):
    parts = tmp_path / "out.csv.parts"
    parts.mkdir()
    (parts / "lock").touch()
    (parts / ".job.json.0123abcd.part").touch()
    (parts / f"{0:015d}-{45:015d}-0-5.part").write_text("wrong")
    if job is not None:
        (parts / "job.json").write_text(job)
    ended = protail("predict", "model", "new.npz", "-o", "out.csv", *options)
    assert ended.code == 0, ended.err
    assert len(read(tmp_path / "out.csv")) == 45
    assert not parts.exists()


def test_the_place_of_the_pieces_is_not_taken_from_others(new_rows, protail, tmp_path):
    parts = tmp_path / "out.csv.parts"
    parts.mkdir()
    (parts / "dear.txt").write_text("to me")
    (parts / "job.json").write_text('{"format": "protail-predictions-1"}')
    for options in ((), ("--overwrite",)):
        ended = protail("predict", "model", "new.npz", "-o", "out.csv", *options)
        assert ended.code == 3
        assert "Move it away" in ended.last_line
    assert (parts / "dear.txt").read_text() == "to me"
    (parts / "dear.txt").unlink()
    (parts / "job.json").unlink()
    assert protail("predict", "model", "new.npz", "-o", "out.csv").code == 0


def test_the_input_is_never_the_output(new_rows, protail, tmp_path):
    lines = ["a,b,c,d,e,f", *(",".join(map(str, row)) for row in new_rows)]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    before = (tmp_path / "in.csv").read_bytes()
    ended = protail("predict", "model", "in.csv", "-o", "in.csv", "--overwrite")
    assert ended.code == 2
    assert (tmp_path / "in.csv").read_bytes() == before


def test_pieces_of_another_array_or_damaged_ones_are_not_taken(
    long_file, process, protail, tmp_path
):
    np.savez(tmp_path / "two.npz", A=long_file, B=long_file[::-1])
    halting = halts_at(tmp_path, "protail.cli.sources.ask", 3)
    running = process(
        "predict", "model", "two.npz", "--features", "A", "-o", "out.csv", env=halting
    )
    wait_for_halt(running)
    parts = tmp_path / "out.csv.parts"
    blocked = protail("predict", "model", "two.npz", "--features", "A", "-o", "out.csv")
    assert blocked.code == 3
    assert f"out.csv is being written by process {running.pid}, since" in blocked.last_line
    running.send_signal(signal.SIGTERM)
    running.send_signal(signal.SIGCONT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    other = protail("predict", "model", "two.npz", "--features", "B", "-o", "out.csv")
    assert other.code == 2
    assert "another model, other files or other settings" in other.last_line
    second = sorted(parts.glob("[0-9]*.part"))[1]
    second.write_bytes(second.read_bytes()[:100])
    ended = protail("predict", "model", "two.npz", "--features", "A", "-o", "out.csv", "--json")
    assert ended.json["rows_from_earlier_start"] == 65_536
    assert len(read(tmp_path / "out.csv")) == len(long_file)


def test_small_numbers_keep_their_digits(write, protail, tmp_path):
    rows, labels = long_tailed_rows()
    write("cosine.npz", rows, labels)
    assert (
        protail("fit", "cosine.npz", "-o", "c", "--distance", "cosine", "--epochs", "0").code == 0
    )
    assert protail("predict", "c", "cosine.npz", "-o", "out.csv").code == 0
    fitted = PrototypeClassifier.load(tmp_path / "c")
    expected = fitted.top_k(rows, 1, return_distance=True)[2][:, 0]
    written = np.array([float(record["distance"]) for record in read(tmp_path / "out.csv")])
    assert np.array_equal(written.astype(expected.dtype), expected)


def test_a_full_disk_keeps_what_is_done(long_file, process, protail, tmp_path):
    """A limit on the size of a file stands for the full disk: the system refuses to write."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    running = process("predict", "model", "long.npz", "-o", "out.csv", preexec_fn=limit)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 3, err
    assert "cannot be written" in err.strip().splitlines()[-1]
    assert not (tmp_path / "out.csv").exists()
    assert not list(tmp_path.rglob(".*.part"))
    assert os.path.exists(tmp_path / "model" / "model.json")


@pytest.mark.slow
def test_a_million_rows_stream_through_little_memory(process, protail, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "wide.npz", X=rng.normal(size=(3000, 512)), y=np.arange(3000) % 300)
    assert protail("fit", "wide.npz", "-o", "wide", "--epochs", "0", "--held-out", "0").code == 0
    rows = np.lib.format.open_memmap(
        tmp_path / "million.npy", "w+", dtype=np.float32, shape=(1_000_000, 512)
    )
    for start in range(0, len(rows), 50_000):
        rows[start : start + 50_000] = rng.standard_normal((50_000, 512), dtype=np.float32)
    rows.flush()
    peak, err = peak_memory(process("predict", "wide", "million.npy", "-o", "out.csv"))
    assert "rows to go: about" in err
    assert 0 < peak < 2**20


@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_many_classes_fit_into_little_memory(process, tmp_path):
    """All distances of these rows from 20,000 classes are 763 MiB, and each copy as much."""
    rows = np.random.default_rng(0).standard_normal((20_000, 64), dtype=np.float32)
    PrototypeClassifier(epochs=0).fit(rows, np.arange(20_000)).save(tmp_path / "many")
    np.savez(tmp_path / "rows.npz", X=rows[:10_000])
    peak, _ = peak_memory(process("predict", "many", "rows.npz", "-o", "out.csv"))
    assert 0 < peak < 2**20
    labels = [int(record["label"]) for record in read(tmp_path / "out.csv")]
    assert labels == list(range(10_000))  # a class of one row has its prototype there


def peak_memory(running):
    """Wait for a process; give the most memory of its own that it had, in KiB, and its words."""
    peak = 0
    while running.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{running.pid}/status").read_text()
            peak = max([peak, *map(int, re.findall(r"RssAnon:\s+(\d+)", status))])
        time.sleep(0.02)
    _, err = running.communicate()
    assert running.returncode == 0, err
    return peak, err


def test_a_stop_of_what_is_finished_is_none(protail, model, monkeypatch, tmp_path):
    def told(seconds):
        signal.raise_signal(signal.SIGTERM)
        return f"{seconds:.0f} s"

    monkeypatch.setattr(importlib.import_module("protail.cli.predict"), "in_words", told)
    ended = protail("predict", "model", "test.npz", "-o", "out.csv")
    assert (ended.code, (tmp_path / "out.csv").exists()) == (0, True)
    assert "100 rows predicted" in ended.err
