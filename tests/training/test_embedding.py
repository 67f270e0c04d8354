"""Features of photos: computed once, by content, and gone on with after a stop."""

import os
import shutil

import numpy as np
import pytest

from protail import Network, PrototypeClassifier
from protail.data.augment import InputSpec
from protail.models.backbones import make_backbone
from protail.training import embed_photos, embedding, photo_features
from reference.made_photos import write_photos
from reference.small_images import TINY

INPUTS = InputSpec(size=32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = write_photos(tmp_path_factory.mktemp("embedding"), (30, 30, 10))
    (root / "ant/text.jpg").write_text("no picture")
    shutil.copy(root / "ant/0.jpg", root / "cat/again.jpg")
    shutil.copy(root / "ant/text.jpg", root / "cat/text.jpg")
    return [*sorted(root.rglob("*.jpg")), root / "lost.jpg"]


@pytest.fixture(scope="module")
def backbone():
    return make_backbone(TINY).eval()


def test_rows_are_those_of_a_network(photos, backbone):
    found = embed_photos(backbone, INPUTS, photos)
    assert sorted(photos[i].name for i in found.problems) == ["lost.jpg", "text.jpg", "text.jpg"]
    assert np.isnan(found.rows[~found.readable]).all()
    head = PrototypeClassifier().fit(np.eye(backbone.n_features)[:2], ["a", "b"])
    network = Network(head, backbone=backbone, inputs=INPUTS, device="cpu")
    readable = [photos[i] for i in np.flatnonzero(found.readable)]
    np.testing.assert_allclose(found.rows[found.readable], network.features(readable), atol=1e-5)
    names = {photos[i].name: photos[j].name for i, j in enumerate(found.duplicate_of) if i != j}
    assert names == {"again.jpg": "0.jpg", "text.jpg": "text.jpg"}
    assert found.n_computed == len(photos) - 2


def test_batches_come_in_order_from_workers(photos, backbone):
    parts = list(photo_features(backbone, INPUTS, photos))
    assert [start for start, _, _ in parts] == list(range(0, len(photos), 16))
    rows = np.concatenate([rows for _, rows, _ in parts])
    np.testing.assert_array_equal(rows, embed_photos(backbone, INPUTS, photos).rows)


def test_workers_give_what_threads_give(photos, backbone, monkeypatch):
    """Worker processes read for a GPU; here they do for the CPU."""
    expected = embed_photos(backbone, INPUTS, photos).rows
    monkeypatch.setattr(embedding, "_in_threads", embedding._from_workers)
    monkeypatch.setattr(embedding.FileLoader, "workers", 2)
    np.testing.assert_allclose(embed_photos(backbone, INPUTS, photos).rows, expected, atol=1e-5)


def test_what_was_computed_is_not_computed_again(photos, backbone, tmp_path):
    done = []

    def stop_after_a_batch(n):
        done.append(n)
        if sum(done) >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_photos(backbone, INPUTS, photos, cache=tmp_path, progress=stop_after_a_batch)
    whole = embed_photos(backbone, INPUTS, photos)
    rest = embed_photos(backbone, INPUTS, photos, cache=tmp_path)
    # Computed are the last batch, and again what cannot be read.
    assert rest.n_computed == len(photos) - 2 - 64 + 1
    np.testing.assert_array_equal(rest.rows, whole.rows)
    moved = shutil.copy(photos[0], tmp_path / "moved.jpg")
    again = embed_photos(backbone, INPUTS, [moved, photos[1]], cache=tmp_path)
    assert again.n_computed == 0
    np.testing.assert_array_equal(again.rows, whole.rows[:2])


def test_other_settings_are_computed_apart(photos, backbone, tmp_path):
    some = photos[:4]
    plain = embed_photos(backbone, INPUTS, some, cache=tmp_path)
    views = embed_photos(backbone, INPUTS, some, cache=tmp_path, views=2)
    other = embed_photos(backbone, InputSpec(size=24), some, cache=tmp_path)
    assert plain.n_computed == views.n_computed == other.n_computed == 4
    assert not np.allclose(plain.rows, views.rows)
    same = embed_photos(backbone, INPUTS, some[::-1], views=2)
    np.testing.assert_allclose(same.rows[::-1], views.rows, atol=1e-5)


def test_a_pipe_is_no_photo(backbone, tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    found = embed_photos(backbone, INPUTS, [tmp_path / "pipe.jpg"])
    assert "there is no such file" in found.problems[0]


def test_damaged_files_are_computed_again(photos, backbone, tmp_path):
    whole = embed_photos(backbone, INPUTS, photos[:4], cache=tmp_path)
    (piece,) = tmp_path.iterdir()
    piece.write_bytes(piece.read_bytes()[:-100])
    again = embed_photos(backbone, INPUTS, photos[:4], cache=tmp_path)
    assert again.n_computed == 4
    np.testing.assert_array_equal(again.rows, whole.rows)
