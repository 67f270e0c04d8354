"""Features kept on disk come back as they were, or are computed again, and it is told."""

import math

import pytest
import torch
from safetensors.torch import save

from protail.training import FeatureCache

CPU = torch.device("cpu")


def without_half(raw, part):
    middle = len(raw) // 2
    return raw[:middle] + bytes(len(raw) - middle) if part else bytes(middle) + raw[middle:]


DAMAGE = {
    "cut": lambda raw: raw[:100],
    "empty": lambda raw: b"",
    "first half zero": lambda raw: without_half(raw, 0),
    "second half zero": lambda raw: without_half(raw, 1),
    "last bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "shape turned": lambda raw: raw.replace(b"[40,64]", b"[64,40]"),
    "other numbers": lambda raw: raw.replace(b'"F32"', b'"I32"'),
    "other key": lambda raw: save({"features": torch.ones(40, 64)}, {"sha256": "0" * 64}),
    "no checksum": lambda raw: save({"features": torch.ones(40, 64)}),
    "other name": lambda raw: raw.replace(b'"features"', b'"feature_"'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_told_and_computed_again(damage, tmp_path, recwarn):
    features = torch.randn(40, 64)
    cache, key = FeatureCache(tmp_path), {"weights": "a"}
    cache.get(key, lambda: features, CPU)
    [file] = tmp_path.iterdir()
    raw = file.read_bytes()
    assert damage(raw) != raw
    file.write_bytes(damage(raw))
    with pytest.warns(UserWarning, match=r"\.safetensors: it .*computed again") as warned:
        assert torch.equal(cache.get(key, lambda: features, CPU), features)
    assert len(warned) == 1
    assert file.read_bytes() == raw
    found = cache.get(key, lambda: pytest.fail("computed again"), CPU)
    assert torch.equal(found, features)
    assert not recwarn


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 2)])
def test_features_of_any_kind_come_back_from_the_cache(dtype, shape, tmp_path):
    features = torch.arange(10)[: math.prod(shape)].reshape(shape).to(dtype)
    FeatureCache(tmp_path).get({}, lambda: features, CPU)
    found = FeatureCache(tmp_path).get({}, lambda: pytest.fail("computed again"), CPU)
    assert found.dtype == dtype
    assert torch.equal(found, features)


def test_a_cache_that_cannot_be_written_costs_no_features(tmp_path):
    (tmp_path / "file").touch()
    cache = FeatureCache(tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be written") as warned:
        first = [cache.get({"n": n}, lambda: torch.full((2, 3), 7.0), CPU) for n in range(3)]
    assert len(warned) == 1
    assert all(features.eq(7).all() for features in first)
    again = cache.get({"n": 1}, lambda: pytest.fail("computed again"), CPU)
    assert torch.equal(again, first[1])
