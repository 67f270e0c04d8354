"""What one process of several does with its part of a head, and the problems that all solve."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.distributed import checkpoint
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from protail.models.heads import PrototypeHead, ShardedPrototypeHead
from reference.problems import make_problem

K = 3


@dataclass(frozen=True)
class Case:
    """A head, rows for it, and how they are given."""

    shape: tuple[int, int, int]
    distance: str = "euclidean"
    scheme: str | None = None
    adjusted: bool = True
    dtype: torch.dtype = torch.float64
    form: str = "exp"
    normalize: float | None = None
    rows_on_all: bool = False
    memory_budget: int | None = None

    def problem(self):
        """The same in every process."""
        return make_problem(7, self.shape, self.distance, self.scheme, self.adjusted, 0, self.dtype)

    def head(self):
        """The head of one process, which has all classes."""
        problem, options = self.problem(), {}
        if self.scheme is not None:
            options = {"temperature": self.scheme, "temperature_form": self.form}
        head = PrototypeHead(
            *self.shape[1:], distance=self.distance, normalize=self.normalize, **options
        )
        head.to(self.dtype).set_prototypes(problem.prototypes)
        if self.scheme is not None:
            value = problem.temperature
            learned = value.log() if self.form == "exp" else value.sqrt()
            head.learned_temperature.data.copy_(learned)
        return head


def step(head, x, problem, target, case):
    """Take the loss, its gradients and a step of SGD with momentum."""
    optimiser = torch.optim.SGD(head.parameters(), lr=0.5, momentum=0.9)
    loss = head.loss(x, target, problem.adjustment, memory_budget=case.memory_budget)
    loss.backward()
    optimiser.step()
    return loss, optimiser


def solve(mesh, folder, cases):
    """Solve all cases with sharded heads; give what this process has of the results."""
    found = {}
    for i, case in enumerate(cases):
        problem = case.problem()
        head = ShardedPrototypeHead.from_head(case.head(), mesh)
        here = slice(None) if case.rows_on_all else own_rows(mesh, len(problem.x))
        target, x = problem.target[here], problem.x[here].clone().requires_grad_()
        given = DTensor.from_local(x, mesh, [Replicate()]) if case.rows_on_all else x
        nearest = head.top_k(given, min(K, case.shape[1]))
        logits = head(given)
        by_row = head.loss(given, target, problem.adjustment, reduction="none")
        loss, optimiser = step(head, given, problem, target, case)
        tensors = {"loss": loss, "by_row": by_row, "x": x.grad, "logits": logits.to_local()}
        tensors |= {"distances": nearest.distances_bk, "classes": nearest.classes_bk}
        for name, parameter in head.named_parameters():
            momentum = optimiser.state[parameter]["momentum_buffer"]
            assert momentum.placements == parameter.placements == parameter.grad.placements
            tensors[name] = parameter.to_local()
            tensors[f"{name}.grad"] = parameter.grad.to_local()
            tensors[f"{name}.momentum"] = momentum.to_local()
        full = head.full_head().state_dict()
        tensors |= {f"{name}.full": tensor for name, tensor in full.items()}
        found |= {f"{i}.{name}": tensor for name, tensor in tensors.items()}
    return found


def save(mesh, folder, place):
    """Save a head of 8 classes with torch.distributed.checkpoint."""
    head = ShardedPrototypeHead.from_head(Case((1, 8, 4), scheme="channel").head(), mesh)
    writer = checkpoint.HuggingFaceStorageWriter(str(place), save_distributed=True)
    checkpoint.save(head.state_dict(), storage_writer=writer)
    return {name: each.to_local() for name, each in head.named_parameters()}


def load(mesh, folder, place):
    """Load it, both into a part of this many processes and into the head of one."""
    reader = checkpoint.HuggingFaceStorageReader(str(place))
    head = ShardedPrototypeHead(8, 4, mesh, temperature="channel").double()
    checkpoint.load(head.state_dict(), storage_reader=reader)
    alone = PrototypeHead(8, 4, temperature="channel").double()
    checkpoint.load(alone.state_dict(), storage_reader=reader)
    for name, parameter in head.full_head().named_parameters():
        assert torch.equal(parameter, alone.get_parameter(name))
    return dict(alone.named_parameters())


def train_backbone(mesh, folder):
    """Take the gradient of a backbone in DistributedDataParallel, then give unequal rows."""
    problem, backbone = Case((8, 9, 3)).problem(), linear()
    here = own_rows(mesh, len(problem.x))
    head = ShardedPrototypeHead.from_head(Case((8, 9, 3)).head(), mesh)
    parallel = DistributedDataParallel(backbone)
    x = parallel(problem.x[here])
    x.register_hook(lambda gradient: gradient * mesh.size())
    head.loss(x, problem.target[here]).backward()
    try:
        head.loss(x[mesh.get_local_rank() :], problem.target[here][mesh.get_local_rank() :])
    except ValueError as error:
        said = "x has 4, 3 rows in the processes" in str(error)
        return {"gradient": backbone.weight.grad, "said": torch.tensor(said)}
    return {"said": torch.tensor(False)}


def linear():
    """A backbone, the same in every process."""
    backbone = torch.nn.Linear(3, 3, bias=False).double()
    backbone.weight.data.copy_(torch.arange(9).reshape(3, 3) / 9)
    return backbone


def own_rows(mesh, n_rows):
    """The rows of this process."""
    each = n_rows // mesh.size()
    return slice(mesh.get_local_rank() * each, (mesh.get_local_rank() + 1) * each)


def naive(case):
    """Loss, gradients by x, prototypes and what is learned of temperatures, and nearest, by loops.

    In float64, with all classes in one place.
    """
    problem = case.problem()
    by_x, by_c, by_t, _ = problem.naive_gradients()
    distances = problem.naive_distances()
    classes = np.argsort(distances, axis=1, kind="stable")[:, : min(K, case.shape[1])]
    found = {"loss": problem.naive_losses().mean(), "by_row": problem.naive_losses()}
    found |= {"x": by_x, "prototypes.grad": by_c, "logits": -distances / 2}
    found |= {"classes": classes, "distances": np.take_along_axis(distances, classes, 1)}
    if by_t is not None:
        value = problem.temperature.numpy()
        if case.form == "exp":
            found["log_temperature.grad"] = by_t * value
        else:
            found["root_temperature.grad"] = by_t * 2 * np.sqrt(value)
    return found


def single(case):
    """The same from the head of one process, in float64."""
    problem, head = case.problem(), case.head().double()
    x = problem.x.double().requires_grad_()
    nearest = head.top_k(x, min(K, case.shape[1]))
    found = {"logits": head(x), "distances": nearest.distances_bk, "classes": nearest.classes_bk}
    found["by_row"] = head.loss(x, problem.target, problem.adjustment, reduction="none")
    loss, optimiser = step(head, x, problem, problem.target, case)
    found |= {"loss": loss, "x": x.grad}
    for name, parameter in head.named_parameters():
        found |= {name: parameter, f"{name}.full": parameter, f"{name}.grad": parameter.grad}
        found[f"{name}.momentum"] = optimiser.state[parameter]["momentum_buffer"]
    return {name: tensor.detach().numpy() for name, tensor in found.items()}
