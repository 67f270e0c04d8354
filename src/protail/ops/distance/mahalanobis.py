"""A shared metric, ``d = |A (x - c)|``: the Euclidean distance behind one linear map.

With ``A^T A`` the inverse of a covariance it is the Mahalanobis distance. The map is given (a
tensor) or learned (a parameter, which heads train beside the prototypes). All that is said here is
how differences are mapped; the rest is that of `Euclidean`, with a gradient by ``A`` from autograd.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from protail.ops._space import Inputs
from protail.ops.distance.base import Flat, register_distance
from protail.ops.distance.euclidean import Euclidean


@register_distance("mahalanobis")
class Mahalanobis(nn.Module, Euclidean):
    """The length of ``A (x - c)``, where the matrix A is the same for all classes.

    Temperatures divide the channels that the map makes.

    Parameters
    ----------
    matrix : Tensor
        The map, (channels it makes, channels); a ``torch.nn.Parameter`` is learned.

    References
    ----------
    On the generalized distance in statistics. Proceedings of the National Institute of Sciences
    of India, 1936.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Mahalanobis
    >>> x, prototypes = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    >>> distances(x, prototypes, Mahalanobis(torch.tensor([[1.0, 0.0], [0.0, 4.0]])))
    tensor([[5., 8.]])

    In a head it is saved and moved with the head:

    >>> from protail.models.heads import PrototypeHead
    >>> list(PrototypeHead(3, 2, distance="mahalanobis").state_dict())
    ['prototypes', 'metric.matrix']
    """

    vector_copies = 8
    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        if matrix.ndim != 2 or not matrix.is_floating_point():
            raise ValueError(
                f"matrix has shape {tuple(matrix.shape)} and dtype {matrix.dtype}; expected "
                "floating point of two dimensions, channels it makes by channels."
            )
        if isinstance(matrix, nn.Parameter):
            self.matrix = matrix
        else:
            self.register_buffer("matrix", matrix)

    @classmethod
    def for_features(cls, n_features: int) -> Self:
        """Begin with the Euclidean distance: the identity, to be learned."""
        return cls(nn.Parameter(torch.eye(n_features)))

    def tensors(self) -> tuple[Tensor, ...]:
        """Give the map."""
        return (self.matrix,)

    def width(self, n_features: int) -> int:
        """Count the rows of the map."""
        n_made, n_taken = self.matrix.shape
        if n_taken != n_features:
            raise ValueError(
                f"the distance's matrix has shape {(n_made, n_taken)}; expected "
                f"{n_features} columns, as many as the prototypes have channels."
            )
        return n_made

    def difference(self, x_pd: Tensor, other_pd: Tensor) -> Tensor:
        """Subtract and map in float64: a map that whitens magnifies what rounding leaves."""
        wide = torch.float32 if x_pd.device.type == "mps" else torch.float64
        moved_pd = (x_pd.to(wide) - other_pd.to(wide)) @ self.matrix.to(wide).mT
        return moved_pd.to(x_pd.dtype)

    def flat(self, inputs: Inputs, adjustment_c: Tensor | None) -> Flat:
        """Map both sides once: what is left is Euclidean."""
        return *super().flat(inputs, adjustment_c)[:2], Euclidean()

    def extra_repr(self) -> str:
        """Show the map's shape in ``repr``."""
        return f"{tuple(self.matrix.shape)}"

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take a map of any number of rows, as long as it has the same columns."""
        saved = state_dict.get(prefix + "matrix")
        if saved is not None and saved.ndim == 2 and saved.shape[1] == self.matrix.shape[1]:
            self.matrix.data = self.matrix.data.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
