"""The head: its numbers are the ops', its state survives whatever modules go through."""

import copy
import io
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.neighbors import NearestCentroid

from protail import ops
from protail.models.heads import PrototypeHead
from protail.ops.distance import Mahalanobis
from reference import distances as naive
from reference.problems import DISTANCES, SCHEMES, make_problem

OPTIONS = [(distance, scheme) for distance in DISTANCES for scheme in SCHEMES]


def make_head(distance="euclidean", scheme=None, normalize=None, dtype=torch.float32, shape=(5, 6)):
    """A head with random prototypes and temperatures, as after some training."""
    problem = make_problem(1, (3, *shape), distance, scheme, dtype=dtype)
    head = PrototypeHead(*shape, distance=distance, temperature=scheme, normalize=normalize).to(
        dtype
    )
    with torch.no_grad():
        head.set_prototypes(problem.prototypes)
        if scheme is not None:
            head.log_temperature.copy_(problem.temperature.log())
    return head, problem


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize(("distance", "scheme"), OPTIONS)
@pytest.mark.parametrize("normalize", [None, 4.0])
def test_equals_the_loops(distance, scheme, normalize):
    head, problem = make_head(distance, scheme, normalize, torch.float64)
    x = problem.x.numpy().copy()
    if normalize is not None:
        x *= normalize / np.linalg.norm(x, axis=1, keepdims=True)
    prototypes = problem.prototypes.numpy()
    temperature = None if scheme is None else problem.temperature.numpy()
    expected = naive.distances(x, prototypes, distance, temperature)
    with torch.no_grad():
        np.testing.assert_allclose(head.distances(problem.x), expected, rtol=1e-9)
        np.testing.assert_allclose(head(problem.x), -expected / 2, rtol=1e-9)
    np.testing.assert_array_equal(head.nearest(problem.x), expected.argmin(1))
    np.testing.assert_array_equal(
        head.top_k(problem.x, 3).classes_bk, np.argsort(expected, axis=1)[:, :3]
    )
    target = problem.target.tolist()
    arguments = (x, prototypes, target, distance, temperature, problem.adjustment)
    loss = head.loss(problem.x, problem.target, problem.adjustment)
    assert loss.item() == pytest.approx(naive.losses(*arguments).mean())
    loss.backward()
    _, by_prototypes, by_temperature, _ = naive.gradients(*arguments)
    np.testing.assert_allclose(head.prototypes.grad, by_prototypes, rtol=1e-6, atol=1e-9)
    if scheme is not None:
        by_log = by_temperature * temperature  # T = exp(s)
        np.testing.assert_allclose(head.log_temperature.grad, by_log, rtol=1e-6, atol=1e-9)


@settings(max_examples=80)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 6)),
    st.sampled_from(DISTANCES),
    st.sampled_from(SCHEMES[1:]),
    st.sampled_from(["exp", "square"]),
)
def test_both_forms_equal_the_loops(seed, shape, distance, scheme, form):
    problem = make_problem(seed, shape, distance, scheme)
    options = {"distance": distance, "temperature": scheme, "temperature_form": form}
    head = PrototypeHead(*shape[1:], **options).double().set_prototypes(problem.prototypes)
    temperature = problem.temperature.numpy()
    signs = np.random.default_rng(seed).choice([-1, 1], temperature.shape)
    learned = np.log(temperature) if form == "exp" else signs * np.sqrt(temperature)
    with torch.no_grad():
        head.learned_temperature.copy_(torch.from_numpy(learned))
    loss = head.loss(problem.x, problem.target, problem.adjustment)
    loss.backward()
    with torch.no_grad():
        np.testing.assert_allclose(head.temperature, temperature, rtol=1e-12)
        found = head.distances(problem.x)
    np.testing.assert_allclose(found, problem.naive_distances(), rtol=1e-7, atol=1e-9)
    assert loss.item() == pytest.approx(problem.naive_losses().mean())
    _, by_prototypes, by_temperature, _ = problem.naive_gradients()
    np.testing.assert_allclose(head.prototypes.grad, by_prototypes, rtol=1e-6, atol=1e-9)
    by_learned = by_temperature * (temperature if form == "exp" else 2 * learned)
    np.testing.assert_allclose(head.learned_temperature.grad, by_learned, rtol=1e-6, atol=1e-9)


def test_the_square_form_divides_differences_before_they_are_squared():
    options = {"temperature": "channel", "temperature_form": "square"}
    head = PrototypeHead(1, 2, **options).set_prototypes(torch.tensor([[1.0, 1.0]]))
    with torch.no_grad():
        head.root_temperature.copy_(torch.tensor([[-2.0, 0.5]]))
    distance = ((7.0 - 1.0) / -2.0) ** 2 + ((3.0 - 1.0) / 0.5) ** 2
    torch.testing.assert_close(head(torch.tensor([[7.0, 3.0]])).item(), -0.5 * distance**0.5)


@settings(max_examples=40)
@given(st.floats(1e-3, 1e3), st.sampled_from(SCHEMES[1:]), st.sampled_from(["exp", "square"]))
def test_both_forms_start_at_the_same_temperature(initial, scheme, form):
    options = {"temperature": scheme, "temperature_form": form, "initial_temperature": initial}
    head = PrototypeHead(3, 2, **options)
    expected = torch.full_like(head.temperature, initial)
    torch.testing.assert_close(head.temperature, expected, rtol=1e-5, atol=0)
    assert [name for name, _ in head.named_parameters()][1:] == [
        {"exp": "log_temperature", "square": "root_temperature"}[form]
    ]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_root_of_zero_is_no_trap(distance, dtype):
    problem = make_problem(1, (3, 5, 6), distance, dtype=dtype)
    head = PrototypeHead(5, 6, distance=distance, temperature="channel", temperature_form="square")
    head.to(dtype).set_prototypes(problem.prototypes)
    with torch.no_grad():
        head.root_temperature[0, :2] = 0
    loss = head.loss(100 * problem.x, problem.target)
    assert loss.isfinite()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())
    assert head(problem.x).isfinite().all()


@pytest.mark.parametrize(("form", "limit"), [("exp", 1.0), ("square", 0.0)])
def test_decay_moves_the_temperature_towards(form, limit):
    options = {"temperature": "channel", "temperature_form": form, "initial_temperature": 0.5}
    head = PrototypeHead(3, 2, **options)
    optimiser = torch.optim.SGD([head.learned_temperature], lr=0.1, weight_decay=1.0)
    head.learned_temperature.grad = torch.zeros_like(head.learned_temperature)
    before = (head.temperature - limit).abs()
    for _ in range(100):
        optimiser.step()
    assert ((head.temperature - limit).abs() < 1e-3 * before).all()


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_the_square_form_takes_new_classes_and_keeps_its_state(scheme):
    options = {"temperature": scheme, "temperature_form": "square"}
    head = PrototypeHead(2, 2, **options).set_prototypes(torch.eye(2))
    with torch.no_grad():
        head.root_temperature.copy_(torch.tensor([[-2.0], [8.0]])[: len(head.root_temperature)])
    old = head.root_temperature.detach().clone()
    head.add_classes(torch.ones(1, 2))
    assert torch.equal(head.root_temperature[: len(old)], old)
    if scheme != "channel":
        torch.testing.assert_close(head.temperature[2], torch.full_like(head.temperature[2], 16.0))
    other = PrototypeHead(3, 2, **options)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(torch.eye(2)), head(torch.eye(2)))
    with pytest.raises(RuntimeError, match="root_temperature"):
        PrototypeHead(3, 2, temperature=scheme).load_state_dict(head.state_dict())


def test_untrained_it_is_the_nearest_class_mean():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(300, 8)) + 5, np.arange(300) % 11
    head = PrototypeHead.from_means(torch.tensor(features), labels)
    oracle = NearestCentroid().fit(features, labels)
    np.testing.assert_allclose(head.prototypes.detach(), oracle.centroids_, rtol=1e-12)
    rows = rng.normal(size=(200, 8)) + 5
    np.testing.assert_array_equal(head.nearest(torch.tensor(rows)), oracle.predict(rows))
    assert (head(torch.tensor(rows)).argmax(1) == torch.tensor(oracle.predict(rows))).all()


@pytest.mark.parametrize(("distance", "scheme"), OPTIONS)
def test_temperatures_start_without_effect(distance, scheme):
    head = PrototypeHead(4, 3, distance=distance, temperature=scheme)
    head.set_prototypes(torch.randn(4, 3, generator=torch.manual_seed(0)))
    x = torch.randn(5, 3, generator=torch.manual_seed(1))
    torch.testing.assert_close(head(x), ops.logits(x, head.prototypes, distance))
    assert (head.temperature is None) == (scheme is None)
    if scheme is not None:
        assert (head.temperature == 1).all()


def test_means_are_those_of_normalised_features():
    features = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0], [8.0, 6.0]])
    head = PrototypeHead.from_means(features, torch.tensor([0, 0, 1, 1]), normalize=10.0)
    expected = torch.tensor([[3.0, 4.0], [4.0, 8.0]])
    torch.testing.assert_close(head.prototypes.data, expected)
    assert head.normalized(features)[1].tolist() == [0, 0]


def test_a_zero_row_has_a_finite_gradient_when_normalised():
    head, _ = make_head(normalize=3.0)
    x = torch.zeros(2, 6, requires_grad=True)
    head.loss(x, torch.tensor([0, 1])).backward()
    assert (x.grad == 0).all()
    assert head.prototypes.grad.isfinite().all()


def test_from_means_takes_arrays_and_keeps_dtype():
    features, labels = np.arange(12.0).reshape(6, 2), [0, 1, 2, 0, 1, 2]
    head = PrototypeHead.from_means(features, labels, distance="cosine", temperature="dense")
    assert head.prototypes.dtype == torch.float32
    assert head.log_temperature.shape == (3, 2)
    assert (
        PrototypeHead.from_means(torch.tensor(features), labels).prototypes.dtype == torch.float64
    )
    half = torch.tensor(features, dtype=torch.bfloat16)
    assert PrototypeHead.from_means(half, labels).prototypes.dtype == torch.float32


def test_parameter_groups_are_the_papers():
    head, problem = make_head(scheme="channel")
    prototypes, temperature = head.parameter_groups()
    assert prototypes == {"params": [head.prototypes], "lr": 4.0, "momentum": 0.9}
    assert temperature == {"params": [head.log_temperature], "lr": 0.005, "momentum": 0.9}
    assert len(PrototypeHead(2, 2).parameter_groups()) == 1
    optimiser = torch.optim.SGD(head.parameter_groups(lr=0.5))
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = head.loss(problem.x, problem.target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert (head.temperature > 0).all()


@pytest.mark.parametrize(("distance", "scheme"), OPTIONS)
def test_added_classes_leave_the_others_as_they_are(distance, scheme):
    head, problem = make_head(distance, scheme)
    old, old_scale = copy.deepcopy(head.prototypes), copy.deepcopy(head.log_temperature)
    before = head(problem.x).detach()
    means = torch.randn(2, 6, dtype=torch.float64, generator=torch.manual_seed(2))
    assert head.add_classes(means) is head
    assert head.n_classes == 7
    assert torch.equal(head.prototypes[:5], old)
    assert torch.equal(head.prototypes[5:], means.float())
    assert head.prototypes.dtype == torch.float32
    assert head.prototypes.requires_grad
    torch.testing.assert_close(head(problem.x)[:, :5], before, rtol=1e-4, atol=1e-6)
    if scheme == "channel":
        assert torch.equal(head.log_temperature, old_scale)
    elif scheme is not None:
        assert torch.equal(head.log_temperature[:5], old_scale)
        torch.testing.assert_close(head.log_temperature[5:], old_scale.mean(0).expand(2, -1))
    head.loss(problem.x, torch.tensor([5, 6, 0])).backward()
    assert head.prototypes.grad.shape == (7, 6)


def test_classes_added_from_features():
    head = PrototypeHead.from_means(torch.eye(2), torch.tensor([0, 1]), normalize=2.0)
    head.add_classes(np.array([[0.0, 5.0], [5.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1]))
    torch.testing.assert_close(head.prototypes[2:].data, torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
    head.prototypes.requires_grad_(False)
    assert not head.add_classes(torch.ones(1, 2)).prototypes.requires_grad
    with pytest.raises(ValueError, match=r"features has shape \(1, 3\); expected rows of 2"):
        head.add_classes(torch.ones(1, 3))
    assert head.n_classes == 5


@pytest.mark.parametrize(("distance", "scheme"), OPTIONS)
def test_state_survives(distance, scheme):
    head, problem = make_head(distance, scheme, normalize=2.0)
    expected = head(problem.x)
    other = PrototypeHead(5, 6, distance=distance, temperature=scheme, normalize=2.0)
    other.load_state_dict(head.state_dict())
    stream = io.BytesIO()
    torch.save(head.state_dict(), stream)
    stream.seek(0)
    third = PrototypeHead(5, 6, distance=distance, temperature=scheme, normalize=2.0)
    third.load_state_dict(torch.load(stream, weights_only=True))
    for same in (other, third, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(same(problem.x), expected)


def test_a_state_of_another_size_is_explained():
    grown = PrototypeHead(3, 2, temperature="class").add_classes(torch.ones(2, 2))
    fresh = PrototypeHead(3, 2, temperature="class")
    with pytest.raises(RuntimeError, match=r"head of 5 x 2 .* this head is 3 x 2.*add_classes"):
        fresh.load_state_dict(grown.state_dict())
    wrapped = torch.nn.Sequential(torch.nn.Identity(), fresh)
    with pytest.raises(RuntimeError, match="5 x 2"):
        wrapped.load_state_dict(torch.nn.Sequential(torch.nn.Identity(), grown).state_dict())
    assert (fresh.prototypes == 0).all()
    fresh.add_classes(torch.zeros(2, 2)).load_state_dict(grown.state_dict())
    assert torch.equal(fresh.prototypes, grown.prototypes)
    with pytest.raises(RuntimeError, match="log_temperature"):
        PrototypeHead(5, 2).load_state_dict(grown.state_dict())


def test_moves_between_dtypes_and_devices():
    head, problem = make_head(scheme="dense")
    double = copy.deepcopy(head).double()
    assert double(problem.x).dtype == torch.float64
    torch.testing.assert_close(double(problem.x).float(), head(problem.x))
    half = copy.deepcopy(head).to(torch.bfloat16)
    assert half(problem.x.bfloat16()).dtype == torch.float32
    half.loss(problem.x.bfloat16(), problem.target).backward()
    assert half.prototypes.grad.dtype == torch.bfloat16
    meta = head.to("meta")
    assert meta.prototypes.is_meta
    assert meta.add_classes(torch.ones(1, 6)).prototypes.is_meta
    assert meta(torch.empty(2, 6, device="meta")).shape == (2, 6)


def test_autocast_changes_nothing():
    head, problem = make_head("cosine", "channel", normalize=2.0)
    expected = head(problem.x), head.loss(problem.x, problem.target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head(problem.x), head.loss(problem.x, problem.target)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scheme", [None, "channel"])
def test_compiles_into_one_graph(scheme):
    head, problem = make_head("euclidean", scheme, normalize=2.0)
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(problem.x), head(problem.x))
    loss = torch.compile(head.loss, fullgraph=True, backend="aot_eager")
    loss(problem.x, problem.target, problem.adjustment).backward()
    found = head.prototypes.grad
    head.prototypes.grad = None
    head.loss(problem.x, problem.target, problem.adjustment).backward()
    torch.testing.assert_close(found, head.prototypes.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "cosin"}, "distance='cosin' is unknown.*Did you mean 'cosine'"),
        ({"temperature": "chanel"}, "temperature='chanel' is unknown.*Did you mean 'channel'"),
        ({"normalize": 0.0}, r"normalize=0.0; expected a finite number > 0"),
        ({"normalize": float("nan")}, "normalize=nan"),
        ({"n_classes": 0}, "n_classes=0; expected a whole number >= 1"),
        (
            {"temperature": "class", "temperature_form": "sqare"},
            "temperature_form='sqare' is unknown.*Did you mean 'square'",
        ),
        ({"temperature": "class", "initial_temperature": 0.0}, "initial_temperature=0.0; expected"),
        ({"temperature": "class", "initial_temperature": float("inf")}, "initial_temperature=inf"),
        ({"temperature_form": "square"}, "temperature_form='square' without temperatures"),
        ({"initial_temperature": 2.0}, "initial_temperature=2.0 without temperatures"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PrototypeHead(**({"n_classes": 3, "n_features": 2} | options))


def test_prototypes_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"prototypes has shape \(2, 2\); expected \(3, 2\)"):
        PrototypeHead(3, 2).set_prototypes(torch.ones(2, 2))


def test_repr_shows_the_options():
    assert "3, 2, distance='euclidean', temperature=None" in repr(PrototypeHead(3, 2))
    square = PrototypeHead(3, 2, temperature="class", temperature_form="square")
    assert "temperature='class', temperature_form='square', normalize=None" in repr(square)


def test_a_shared_metric_is_learned_with_the_head():
    problem = make_problem(1, (6, 5, 4), "mahalanobis", "channel")
    options = {"distance": "mahalanobis", "temperature": "channel"}
    head = PrototypeHead(5, 4, **options).double().set_prototypes(problem.prototypes)
    plain = PrototypeHead(5, 4, temperature="channel").double().set_prototypes(problem.prototypes)
    torch.testing.assert_close(head(problem.x), plain(problem.x))  # it begins as the identity
    with torch.no_grad():
        head.metric.matrix.copy_(problem.distance.matrix)
        head.log_temperature.copy_(problem.temperature.log())
    head.loss(problem.x, problem.target, problem.adjustment).backward()
    _, by_prototypes, _, _, by_matrix = problem.naive_gradients()
    np.testing.assert_allclose(head.prototypes.grad, by_prototypes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(head.metric.matrix.grad, by_matrix, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(head.distances(problem.x).detach(), problem.naive_distances())
    assert [len(group["params"]) for group in head.parameter_groups()] == [1, 2]
    other = PrototypeHead(5, 4, **options).double()
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(problem.x), head(problem.x))
    assert torch.equal(copy.deepcopy(head)(problem.x), head(problem.x))


@pytest.mark.parametrize("n_made", [2, 4])
def test_a_given_metric_stays_and_is_saved_with_a_network(n_made, tmp_path):
    from protail import Network
    from protail.models.heads import make_head

    torch.manual_seed(0)
    means, x = torch.randn(3, 4), torch.randn(20, 4)
    given = Mahalanobis(torch.randn(n_made, 4))
    head = make_head("prototype", 3, 4, distance=given).set_prototypes(means)
    assert [name for name, _ in head.named_parameters()] == ["prototypes"]
    torch.testing.assert_close(
        head(x), PrototypeHead(3, n_made).set_prototypes(means @ given.matrix.T)(x @ given.matrix.T)
    )
    Network(head, ["a", "b", "c"]).save(tmp_path / "model")
    restored = Network.load(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(restored.head(x), head(x))
    assert "distance='mahalanobis'" in repr(restored.head)
