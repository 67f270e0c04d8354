"""A head split over processes is the head of one: loss, gradients, a step of SGD, and search."""

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from protail.models.heads import PrototypeHead, ShardedPrototypeHead
from reference import sharded_head
from reference.problems import DISTANCES, SCHEMES
from reference.ranks import in_ranks
from reference.sharded_head import Case

SMALL = [Case((8, 37, 5), distance, scheme) for distance in DISTANCES for scheme in SCHEMES]
SMALL += [
    Case((8, 5, 4), "euclidean", "dense"),  # 2, 2, 1 and 0 classes
    Case((8, 1, 4), "sqeuclidean", "class"),
    Case((8, 16, 4), "sqeuclidean", "channel", form="square", adjusted=False),
    Case((7, 21, 4), "cosine", "channel", rows_on_all=True),
]
MANY = [
    Case((32, 4001, 16), "euclidean", "class", dtype=torch.float32),
    Case((32, 4001, 16), "euclidean", "channel", dtype=torch.float32, memory_budget=200_000),
    Case((32, 4000, 16), "cosine", dtype=torch.float32, normalize=4.0),
    Case((32, 3999, 16), "sqeuclidean", "dense", dtype=torch.float32, rows_on_all=True),
]
RANKS = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of four processes found."""
    return in_ranks(sharded_head.solve, RANKS, tmp_path_factory.mktemp("four"), SMALL + MANY)


def joined(ranks, i, case):
    """Put the parts of all processes together, after checking that each has only its part."""
    found = {}
    size = -(-case.shape[1] // RANKS)
    held = [max(0, min(case.shape[1] - size * rank, size)) for rank in range(RANKS)]
    for key in (key for key in ranks[0] if key.startswith(f"{i}.")):
        name, parts = key.partition(".")[2], [found[key] for found in ranks]
        by_row = name in ("by_row", "distances", "classes", "x") and not case.rows_on_all
        by_class = name.startswith("prototypes") or case.scheme in ("class", "dense")
        by_class &= name not in ("loss", "x", "by_row", "distances", "classes", "logits")
        if name == "logits":
            assert [part.shape[1] for part in parts] == held
            found[name] = torch.cat(parts, 1)
        elif by_class and not name.endswith(".full"):
            assert [len(part) for part in parts] == held
            found[name] = torch.cat(parts)
        elif by_row:
            found[name] = torch.cat(parts)
        else:
            assert all(torch.equal(part, parts[0]) for part in parts)
            found[name] = parts[0]
    return {name: tensor.numpy() for name, tensor in found.items()}


def assert_equal(found, expected, tolerance):
    """Compare each tensor by its largest entry."""
    assert expected.keys() <= found.keys()
    for name, value in expected.items():
        if name == "classes":
            np.testing.assert_array_equal(found[name], value)
            continue
        assert found[name].shape == np.shape(value), name
        slack = tolerance * np.abs(value).max() + 1e-15
        np.testing.assert_allclose(found[name], value, rtol=0, atol=slack, err_msg=name)


@pytest.mark.parametrize("i", range(len(SMALL)))
def test_equals_the_loops(ranks, i):
    assert_equal(joined(ranks, i, SMALL[i]), sharded_head.naive(SMALL[i]), 1e-9)


@pytest.mark.parametrize("i", range(len(SMALL)))
def test_steps_as_the_head_of_one_process(ranks, i):
    assert_equal(joined(ranks, i, SMALL[i]), sharded_head.single(SMALL[i]), 1e-9)


@pytest.mark.parametrize("i", range(len(MANY)))
def test_thousands_of_classes_in_float32(ranks, i):
    found = joined(ranks, len(SMALL) + i, MANY[i])
    assert found["loss"].dtype == np.float32
    assert_equal(found, sharded_head.single(MANY[i]), 1e-5)


def test_saves_and_loads_for_any_number_of_processes(ranks, tmp_path):
    saved = in_ranks(sharded_head.save, 3, tmp_path / "three", tmp_path / "saved")
    names = sorted(place.name for place in (tmp_path / "saved").iterdir())
    assert names == [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2, 3)]
    [whole] = in_ranks(sharded_head.load, 1, tmp_path / "one", tmp_path / "saved")
    assert torch.equal(torch.cat([found["prototypes"] for found in saved]), whole["prototypes"])
    assert torch.equal(saved[0]["log_temperature"], whole["log_temperature"])


@pytest.fixture
def mesh():
    """A group of this process alone."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_starts_as_the_head_of_one_process(mesh):
    options = {"temperature": "class", "initial_temperature": 2.0, "temperature_form": "square"}
    head = ShardedPrototypeHead(5, 3, mesh, **options).full_head()
    expected = PrototypeHead(5, 3, **options)
    for name, parameter in expected.named_parameters():
        assert torch.equal(head.get_parameter(name), parameter)
    features = torch.randn(6, 3)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    head = ShardedPrototypeHead.from_means(features, labels, mesh=mesh, normalize=2.0)
    means = PrototypeHead.from_means(features, labels, normalize=2.0)
    assert torch.equal(head.full_head().prototypes, means.prototypes)
    torch.testing.assert_close(head.distances(features).full_tensor(), means.distances(features))


def test_its_logits_are_those_that_losses_of_torch_take_in_parallel(mesh):
    head = ShardedPrototypeHead(4, 3, mesh).set_prototypes(torch.randn(4, 3))
    logits = head(torch.randn(6, 3))
    assert logits.placements == (Shard(1),)
    target = torch.randint(4, (6,))
    with loss_parallel():
        loss = cross_entropy(logits, target)
        loss.backward()
    expected = cross_entropy(logits.full_tensor(), target)
    torch.testing.assert_close(loss.full_tensor(), expected)
    assert head.prototypes.grad.placements == (Shard(0),)


def test_says_what_does_not_fit(mesh):
    head = ShardedPrototypeHead(4, 3, mesh)
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"target has 0 to 4; expected class indices from 0 to 3"):
        head.loss(x, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"target has shape \(3,\); expected \(2,\)"):
        head.loss(x, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="got 3 rows for 4 classes"):
        head.loss(x, torch.tensor([0, 1]), torch.zeros(3))
    with pytest.raises(ValueError, match="reduction='max' is unknown"):
        head.loss(x, torch.tensor([0, 1]), reduction="max")
    with pytest.raises(ValueError, match=r"k=5; expected 1 to 4"):
        head.top_k(x, 5)
    with pytest.raises(ValueError, match="prototypes has shape"):
        head.set_prototypes(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="has a matrix of its own"):
        ShardedPrototypeHead(4, 3, mesh, distance="mahalanobis")
    with pytest.raises(ValueError, match="n_classes=0"):
        ShardedPrototypeHead(0, 3, mesh)
    two = distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "classes"))
    with pytest.raises(ValueError, match=r"mesh has shape \(1, 1\); expected one dimension"):
        ShardedPrototypeHead(4, 3, two)
    assert ShardedPrototypeHead(4, 3, two["classes"]).n_classes == 4
    with pytest.raises(NotImplementedError, match="full_head"):
        head.add_classes(x)


def test_trains_a_backbone_and_says_everywhere_that_one_gave_fewer_rows(tmp_path):
    case = Case((8, 9, 3))
    problem, backbone = case.problem(), sharded_head.linear()
    case.head().loss(backbone(problem.x), problem.target).backward()
    for found in in_ranks(sharded_head.train_backbone, 2, tmp_path / "two"):
        assert found["said"]
        torch.testing.assert_close(found["gradient"], backbone.weight.grad)


@pytest.mark.slow
def test_a_million_classes(tmp_path):
    case = Case((64, 1_000_000, 32), "euclidean", "class", dtype=torch.float32)
    found = joined(in_ranks(sharded_head.solve, RANKS, tmp_path / "four", [case]), 0, case)
    assert_equal(found, sharded_head.single(case), 1e-5)
