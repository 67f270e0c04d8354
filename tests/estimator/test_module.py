"""A fitted classifier as a module answers as the classifier does, and can be exported."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from protail import Network, PrototypeClassifier
from protail.models.heads import head_names, make_head

X, Y = (each[:400] for each in load_digits(return_X_y=True))
X = X.astype(np.float32)
KINDS = [
    {},
    {"method": "closed-form", "prior": "train"},
    {"method": "paper", "max_steps": 5, "prior": [0.0, *[1 / 9] * 9]},
    {"method": "paper", "max_steps": 5, "normalize": None, "distance": "sqeuclidean"},
    {"max_steps": 5, "distance": "cosine", "temperature": "dense"},
    {"max_steps": 5, "temperature": "channel"},
    {"max_steps": 5, "temperature": "class"},
]


def exported(module, rows):
    dynamic = ({0: torch.export.Dim("batch")},)
    return torch.export.export(module, (rows[:2],), dynamic_shapes=dynamic).module()


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_the_module_gives_the_classifiers_probabilities(settings):
    classifier = PrototypeClassifier(random_state=0, **settings).fit(X[:200], Y[:200])
    rows = torch.from_numpy(X)
    module = classifier.to_module()
    assert not any(each.requires_grad for each in module.parameters())
    given, expected = module(rows), classifier.predict_proba(X)
    assert given.dtype == torch.float32
    np.testing.assert_allclose(given, expected, atol=1e-5)
    np.testing.assert_array_equal(given.argmax(1), expected.argmax(1))
    torch.testing.assert_close(exported(module, rows)(rows[:7]), given[:7], atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:1 row of X is all zeros")
@pytest.mark.parametrize("settings", [{}, {"max_steps": 5}], ids=str)
def test_rows_of_any_length(settings):
    classifier = PrototypeClassifier(random_state=0, **settings).fit(X[:200], Y[:200])
    rows = np.stack([0 * X[0], X[0] * np.float32(1e34), X[0] * np.float32(1e-34)])
    given = classifier.to_module()(torch.from_numpy(rows))
    np.testing.assert_allclose(given, classifier.predict_proba(rows), atol=1e-5)


def test_channels_of_different_size_and_wide_rows():
    scaled = X * np.logspace(-3, 3, X.shape[1], dtype=np.float32)
    classifier = PrototypeClassifier(random_state=0).fit(scaled[:200], Y[:200])
    given = classifier.to_module()(torch.from_numpy(scaled))
    np.testing.assert_allclose(given, classifier.predict_proba(scaled), atol=1e-5)
    huge = torch.from_numpy(scaled[:3] * np.float32(1e32))
    assert bool(classifier.to_module()(huge).isfinite().all())
    wide = np.random.default_rng(0).normal(size=(20, 4200)).astype(np.float32)
    wide[::2] += 0.3
    classifier = PrototypeClassifier(random_state=0).fit(wide, np.arange(20) % 2)
    given = classifier.to_module()(torch.from_numpy(wide))
    np.testing.assert_allclose(given, classifier.predict_proba(wide), atol=1e-5)


def test_a_class_without_rows_has_no_probability():
    classifier = PrototypeClassifier(random_state=0)
    some = Y[:200] != 4
    classifier.partial_fit(X[:200][some], Y[:200][some], classes=np.arange(10))
    given = classifier.to_module()(torch.from_numpy(X[:5]))
    np.testing.assert_allclose(given, classifier.predict_proba(X[:5]), atol=1e-5)
    assert not given[:, 4].any()


@pytest.mark.parametrize("name", head_names())
def test_every_head_can_be_exported(name):
    torch.manual_seed(0)
    head = make_head(name, 5, 12)
    for each in (*head.parameters(), *head.buffers()):
        torch.nn.init.normal_(each)
    head.load_state_dict(head.state_dict())  # some ask whether anything has come
    network = Network(head, list("abcde"), temperature=2.0, device="cpu")
    rows = torch.randn(9, 12)
    module = network.to_module()
    np.testing.assert_allclose(module(rows), network.predict_proba(rows), atol=1e-6)
    torch.testing.assert_close(exported(module, rows)(rows), module(rows), atol=1e-5, rtol=0)
