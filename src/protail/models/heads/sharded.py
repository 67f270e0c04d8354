"""The prototype head whose classes are split over processes: each holds and learns only its own.

Parameters are DTensors, so what an optimiser keeps of them is split as they are, and
``torch.distributed.checkpoint`` saves and loads them for any number of processes. A process sees
its classes as one chunk of `protail.ops.chunked` and `protail.ops.top_k`; what chunks leave merges
by `Parts.merge` and `TopK.merge`, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from protail import ops
from protail._messages import unknown_name
from protail.models.heads.prototype import PrototypeHead
from protail.ops import Parts, TopK
from protail.options import Count, checked

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_REDUCTIONS = ("mean", "none", "sum")
_Part = TypeVar("_Part", Parts, TopK)


class ShardedPrototypeHead(PrototypeHead):
    """A `PrototypeHead` of so many classes that each process of a group holds some of them.

    Of R processes each holds an R-th of the prototypes, of class and dense temperatures, and of
    what an optimiser keeps for them. Every process gives its own rows, as many as the others do;
    loss, gradients and search results are those of one head with all classes on all rows.

    Every process calls the same methods in the same order, because each of them waits for all.

    Parameters
    ----------
    n_classes : int
        Number of classes; it need not be a multiple of the number of processes.
    n_features : int
        Length of a feature vector.
    mesh : DeviceMesh
        The processes, in one dimension, as ``torch.distributed.init_device_mesh`` gives them.
    **options
        What `PrototypeHead` takes: ``distance``, ``temperature``, ``normalize`` and so on. A
        distance with a matrix of its own ("mahalanobis") cannot be split.

    Attributes
    ----------
    prototypes : Parameter
        (classes, channels), a DTensor split by class; zero until they are set.
    mesh : DeviceMesh
        The processes.

    See Also
    --------
    PrototypeHead : The head of one process.

    Examples
    --------
    ``torchrun --nproc-per-node 4`` starts the processes of a group; here it has one:

    >>> import torch
    >>> from torch import distributed
    >>> from protail.models.heads import ShardedPrototypeHead
    >>> distributed.init_process_group(
    ...     "gloo", store=distributed.HashStore(), rank=0, world_size=1
    ... )  # under torchrun without arguments
    >>> mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
    >>> head = ShardedPrototypeHead(1000, 2, mesh, temperature="class")
    >>> head
    ShardedPrototypeHead(1000, 2, distance='euclidean', temperature='class', normalize=None,
        processes=1)
    >>> optimiser = torch.optim.SGD(head.parameter_groups())
    >>> loss = head.loss(
    ...     torch.ones(4, 2), torch.tensor([1, 2, 3, 999])
    ... )  # of all processes' rows
    >>> loss.item()
    6.907...
    >>> loss.backward()
    >>> optimiser.step()
    >>> head.nearest(torch.ones(1, 2))
    tensor([1])
    >>> head.prototypes.placements, head.prototypes.to_local().shape
    ((Shard(dim=0),), torch.Size([1000, 2]))
    >>> alone = head.full_head()  # a PrototypeHead, and back
    >>> ShardedPrototypeHead.from_head(alone, mesh).nearest(torch.ones(1, 2))
    tensor([1])
    >>> distributed.destroy_process_group()
    """

    @checked
    def __init__(
        self, n_classes: Count, n_features: Count, mesh: DeviceMesh, **options: Any
    ) -> None:
        # One class, to learn what a class has; then all classes, each process its own.
        super().__init__(1, n_features, **options)
        if self.metric.tensors():
            raise ValueError(
                f"distance={self.metric!r} has a matrix of its own; expected one without, "
                f"to be split over processes: {', '.join(ops.distance_names(ready=True))}."
            )
        if mesh.ndim != 1:
            raise ValueError(
                f"mesh has shape {tuple(mesh.shape)}; expected one dimension, over which the "
                "classes are split, such as mesh['classes']."
            )
        from torch.distributed import tensor as distributed

        self.mesh = mesh
        for name, parameter in list(self.named_parameters()):
            by_class = name == "prototypes" or self.temperature_scheme != "channel"
            rows = distributed.full(
                (n_classes if by_class else 1, parameter.shape[1]),
                float(parameter.detach()[0, 0]),
                dtype=parameter.dtype,
                device_mesh=mesh,
                placements=[distributed.Shard(0) if by_class else distributed.Replicate()],
            )
            self.register_parameter(name, nn.Parameter(rows))

    @classmethod
    def from_head(cls, head: PrototypeHead, mesh: DeviceMesh) -> Self:
        """Split a head over processes, each of which has the same one.

        Parameters
        ----------
        head : PrototypeHead
            With all classes.
        mesh : DeviceMesh
            The processes.

        Returns
        -------
        ShardedPrototypeHead
            With copies of this process's classes.
        """
        sharded = cls(head.n_classes, head.n_features, mesh, **_options(head))
        sharded.to(head.prototypes.dtype)
        with torch.no_grad():
            for name, parameter in sharded.named_parameters():
                parameter.copy_(sharded._split(head.get_parameter(name).detach(), parameter))
        return sharded

    def full_head(self) -> PrototypeHead:
        """Gather all classes into one head, which every process then holds.

        Returns
        -------
        PrototypeHead
            With copies of the parameters.
        """
        head = PrototypeHead(self.n_classes, self.n_features, **_options(self))
        head.to(self.prototypes.dtype)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                head.get_parameter(name).copy_(cast("DTensor", parameter).full_tensor())
        return head

    def set_prototypes(self, prototypes: Tensor) -> Self:
        """Copy prototypes into the head.

        Parameters
        ----------
        prototypes : Tensor
            (classes, channels): all of them, the same in every process, or a DTensor.

        Returns
        -------
        ShardedPrototypeHead
            This head.
        """
        return super().set_prototypes(self._split(prototypes, self.prototypes))

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        adjustment: Tensor | None = None,
        *,
        reduction: str = "mean",
        memory_budget: int | None = None,
    ) -> Tensor:
        """Give the cross-entropy of the logits over the rows of all processes.

        The gradients are those of the mean over all rows. ``DistributedDataParallel`` divides the
        gradients of what made the rows by the number of processes once more: multiply before, by
        ``x.register_hook(lambda gradient: gradient * mesh.size())``.

        Parameters
        ----------
        x : Tensor
            Feature vectors of this process (rows, channels), as many as the others have; or a
            DTensor, split by row or the same everywhere.
        target : Tensor
            Class index of each row of ``x``, among all classes.
        adjustment : Tensor, optional
            Added to every row of logits, one number a class: all of them, the same in every
            process, or a DTensor split as the prototypes are.
        reduction : str
            ``"mean"`` or ``"sum"`` over the rows of all processes, or ``"none"``.
        memory_budget : int, optional
            Bytes to use at most beside inputs and gradients; see `protail.ops.loss`.

        Returns
        -------
        Tensor
            A number, the same in every process, or for ``"none"`` one for each row of ``x``.
        """
        if reduction not in _REDUCTIONS:
            raise ValueError(unknown_name("reduction", reduction, _REDUCTIONS))
        rows = self._rows(x)
        if target.shape != x.shape[:1]:
            raise ValueError(
                f"target has shape {tuple(target.shape)}; expected ({x.shape[0]},), one class "
                "a row of x."
            )
        target_b = self._all(self._placed(target.long(), rows))
        if bool(((target_b < 0) | (target_b >= self.n_classes)).any()):
            raise ValueError(
                f"target has {int(target_b.min())} to {int(target_b.max())}; expected class "
                f"indices from 0 to {self.n_classes - 1}."
            )
        prototypes, temperature = self._own_classes()
        if adjustment is not None:
            adjustment = self._split(adjustment, self.prototypes).to_local()
        if self._n_own == 0:  # beside the class that fills the place of none
            adjustment = prototypes.new_full((1,), -torch.inf)
        loss_b = ops.chunked.loss(
            self.normalized(self._all(rows)),
            prototypes,
            target_b - self._first,
            distance=self.metric,
            temperature=temperature,
            adjustment=adjustment,
            reduction="none",
            memory_budget=memory_budget,
            merge=self._merge,
        )
        if reduction == "none":
            return self._of_own_rows(loss_b, rows)
        return loss_b.sum() if reduction == "sum" else loss_b.mean()

    def top_k(self, x: Tensor, k: int) -> TopK:
        """Find the k nearest prototypes of each row, nearest first.

        Parameters
        ----------
        x : Tensor
            Feature vectors of this process, as in `loss`.
        k : int
            How many.

        Returns
        -------
        TopK
            ``distances_bk`` and ``classes_bk`` of the rows of ``x``, among all classes.
        """
        if not 1 <= k <= self.n_classes:
            raise ValueError(f"k={k!r}; expected 1 to {self.n_classes}, the number of classes.")
        rows = self._rows(x)

        def merge(part: TopK) -> TopK:
            # In float64, as chunks merge; without the class that fills the place of none.
            n_found = min(k, self._n_own)
            place_bk = (0, k - n_found)
            distances_bk, classes_bk = (each[:, :n_found] for each in part)
            distances_bk = F.pad(distances_bk.double(), place_bk, value=torch.inf)
            classes_bk = F.pad(classes_bk + self._first, place_bk, value=self.n_classes)
            return self._merge(TopK(distances_bk, classes_bk))

        with torch.no_grad():
            prototypes, temperature = self._own_classes()
            found = ops.top_k(
                self.normalized(self._all(rows)),
                prototypes,
                min(k, len(prototypes)),
                distance=self.metric,
                temperature=temperature,
                merge=merge,
            )
        return TopK(*(self._of_own_rows(of_all, rows) for of_all in found))

    def nearest(self, x: Tensor) -> Tensor:
        """Find the nearest prototype of each row; of equally near ones the first.

        Parameters
        ----------
        x : Tensor
            Feature vectors of this process, as in `loss`.

        Returns
        -------
        Tensor
            Class index of each row of ``x``, among all classes.
        """
        return self.top_k(x, 1).classes_bk.squeeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits: minus half the distances.

        Parameters
        ----------
        x : Tensor
            Feature vectors of this process, as in `loss`.

        Returns
        -------
        DTensor
            (rows of all processes, classes), split by class. `loss` needs no such tensor.
        """
        return self._by_class(ops.logits, x)

    def distances(self, x: Tensor) -> Tensor:
        """Measure the distance of every row from every prototype.

        Parameters
        ----------
        x : Tensor
            Feature vectors of this process, as in `loss`.

        Returns
        -------
        DTensor
            (rows of all processes, classes), split by class.
        """
        return self._by_class(ops.distances, x)

    def add_classes(self, features: Any, labels: Any | None = None) -> NoReturn:
        """Refuse: classes are added to the head of one process."""
        raise NotImplementedError(
            "add_classes on a head that is split over processes; expected one with all classes: "
            "head = head.full_head(), add them, and ShardedPrototypeHead.from_head(head, mesh)."
        )

    @property
    def _n_own(self) -> int:
        """How many classes this process holds."""
        return cast("DTensor", self.prototypes).to_local().shape[0]

    @property
    def _first(self) -> int:
        """The first class of this process: DTensor cuts as ``torch.chunk`` does."""
        size = -(-self.n_classes // self.mesh.size())
        return min(self.mesh.get_local_rank() * size, self.n_classes)

    def _split(self, whole: Tensor, parameter: Tensor) -> DTensor:
        """Cut what all processes have as a parameter is cut; nothing is sent."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(whole, DTensor):
            return whole
        if whole.shape[0] != parameter.shape[0]:
            raise ValueError(
                f"got {whole.shape[0]} rows for {parameter.shape[0]} classes; expected one for "
                "each class, in every process, or a DTensor."
            )
        placements = cast(DTensor, parameter).placements
        return distribute_tensor(whole, self.mesh, placements, src_data_rank=None)

    def _rows(self, x: Tensor) -> DTensor:
        """See the rows of all processes as one tensor."""
        from torch.distributed.tensor import DTensor, Shard

        if isinstance(x, DTensor):
            return x
        sizes = DTensor.from_local(torch.tensor([len(x)], device=x.device), self.mesh, [Shard(0)])
        counts = sizes.full_tensor().tolist()
        if len(set(counts)) > 1:
            raise ValueError(
                f"x has {', '.join(map(str, counts))} rows in the processes; expected as many in "
                "each (a sampler with drop_last=True gives as many), or a DTensor."
            )
        return DTensor.from_local(x, self.mesh, [Shard(0)])

    def _placed(self, tensor: Tensor, rows: DTensor) -> DTensor:
        """See what each process has of its rows as one tensor, too."""
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor
        shape, stride = rows.shape[:1] + tensor.shape[1:], tensor.stride()
        return DTensor.from_local(tensor, self.mesh, rows.placements, shape=shape, stride=stride)

    def _all(self, rows: DTensor) -> Tensor:
        """Bring all rows here; their gradients add up over the processes on the way back."""
        from torch.distributed.tensor import Partial, Replicate

        whole = rows.redistribute(self.mesh, [Replicate()])
        return whole.to_local(grad_placements=[Partial()])

    def _of_own_rows(self, of_all: Tensor, rows: DTensor) -> Tensor:
        """Take what belongs to the rows that this process gave."""
        from torch.distributed.tensor import DTensor, Replicate

        whole = DTensor.from_local(of_all, self.mesh, [Replicate()])
        return whole.redistribute(self.mesh, rows.placements).to_local()

    def _own_classes(self) -> tuple[Tensor, Tensor | None]:
        """Give prototypes and temperature of this process's classes; of none, one that is far.

        A process without classes then computes, sends and receives what the others do.
        """
        prototypes, temperature = cast("DTensor", self.prototypes).to_local(), self.temperature
        by_class = self.temperature_scheme != "channel"
        if temperature is not None:
            split = cast("DTensor", temperature)
            temperature = split.to_local() if by_class else self._all(split)
        if self._n_own == 0:
            prototypes = F.pad(prototypes, (0, 0, 0, 1))
            if temperature is not None and by_class:
                temperature = F.pad(temperature, (0, 0, 0, 1), value=1.0)
        return prototypes, temperature

    def _merge(self, part: _Part) -> _Part:
        """Join what all processes found among their classes, in the same order everywhere."""
        from torch.distributed.tensor import DTensor, Shard

        stacked = (DTensor.from_local(each.unsqueeze(0), self.mesh, [Shard(0)]) for each in part)
        parts = map(type(part), *(each.full_tensor() for each in stacked))
        return reduce(lambda one, other: one.merge(other), parts)

    def _by_class(self, compute: Callable[..., Tensor], x: Tensor) -> DTensor:
        """Compute a column for each class, here for those of this process."""
        from torch.distributed.tensor import DTensor, Shard

        prototypes, temperature = self._own_classes()
        x_bd = self.normalized(self._all(self._rows(x)))
        own_bc = compute(x_bd, prototypes, self.metric, temperature)[:, : self._n_own]
        shape = torch.Size([len(x_bd), self.n_classes])
        return DTensor.from_local(
            own_bc, self.mesh, [Shard(1)], shape=shape, stride=(self.n_classes, 1)
        )

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, processes={self.mesh.size()}"


def _options(head: PrototypeHead) -> dict[str, Any]:
    """Give what a head was made with, beside its size."""
    return {
        "distance": head.metric,
        "temperature": head.temperature_scheme,
        "temperature_form": head.temperature_form,
        "normalize": head.normalize,
    }
