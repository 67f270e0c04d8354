"""PrototypeClassifier on a GPU: the same answers, and the same bits every time."""

import numpy as np
import pytest
import torch

from protail import PrototypeClassifier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def rows_and_labels(n_classes=20, n_features=64):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(n_classes), [max(3, int(200 * 0.75**c)) for c in range(n_classes)])
    centres = rng.normal(size=(n_classes, n_features))
    return centres[y] + 1.5 * rng.normal(size=(len(y), n_features)), y


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("temperature", [None, "channel", "class", "dense"])
def test_gpu_agrees_with_cpu(distance, temperature):
    X, y = rows_and_labels()
    options = {"distance": distance, "temperature": temperature, "random_state": 0}
    on_cpu = PrototypeClassifier(max_steps=40, **options).fit(X, y)
    tensors = torch.from_numpy(X).cuda(), torch.from_numpy(y).cuda()
    on_gpu = PrototypeClassifier(max_steps=40, **options).fit(*tensors)
    np.testing.assert_allclose(on_gpu.prototypes_, on_cpu.prototypes_, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(on_gpu.predict(tensors[0]), on_cpu.predict(X))
    np.testing.assert_allclose(on_gpu.predict_proba(tensors[0]), on_cpu.predict_proba(X), atol=1e-4)
    again = PrototypeClassifier(max_steps=40, device="cuda", **options).fit(X, y)
    np.testing.assert_array_equal(again.prototypes_, on_gpu.prototypes_)


def test_what_was_fitted_on_a_gpu_goes_on_without_one():
    X, y = rows_and_labels()
    rows = torch.from_numpy(X).cuda().bfloat16()
    fitted = PrototypeClassifier(random_state=0).fit(rows, y)
    assert fitted.score(X, y) > 0.8
    fitted.partial_fit(X, y)
    fitted.add_classes(rows[:5] + 9, torch.full((5,), 77))
    assert 77 in fitted.predict(X[:5] + 9)


@pytest.mark.parametrize("temperature", [None, "dense"])
def test_what_was_saved_from_a_gpu_loads_without_one(tmp_path, temperature):
    X, y = rows_and_labels()
    options = {"device": "cuda", "temperature": temperature, "random_state": 0}
    fitted = PrototypeClassifier(max_steps=40, **options).fit(X, y)
    fitted.save(tmp_path / "model")
    loaded = PrototypeClassifier.load(tmp_path / "model", device="cpu")
    fitted.set_params(device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    on_gpu = PrototypeClassifier.load(tmp_path / "model", device="cuda")
    np.testing.assert_allclose(on_gpu.predict_proba(X), loaded.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("method", ["whitened", "closed-form"])
def test_a_whitened_space_is_the_same_on_a_gpu(method):
    X, y = rows_and_labels()
    on_cpu = PrototypeClassifier(method=method, reject=0.1).fit(X, y)
    tensors = torch.from_numpy(X).cuda(), torch.from_numpy(y).cuda()
    on_gpu = PrototypeClassifier(method=method, reject=0.1).fit(*tensors)
    np.testing.assert_allclose(on_gpu.predict_proba(tensors[0]), on_cpu.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(on_gpu.novelty_score(X), on_cpu.novelty_score(X), atol=1e-3)
    np.testing.assert_array_equal(
        on_gpu.suspicious_rows(*tensors).rows, on_cpu.suspicious_rows(X, y).rows
    )
    again = PrototypeClassifier(method=method, reject=0.1).fit(*tensors)
    np.testing.assert_array_equal(again.coef_, on_gpu.coef_)
    on_gpu.partial_fit(*tensors)
    on_gpu.add_classes(tensors[0][:5] + 9, torch.full((5,), 77))
