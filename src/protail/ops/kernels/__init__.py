"""Triton kernels of the head and of the search, for NVIDIA GPUs.

`loss` and `find` compute what `protail.ops.loss` and `protail.ops.top_k` promise, without a
table of rows by classes. Plain torch remains what they must equal, and what runs where they do not.
Triton is imported by the first call.
"""

from protail.ops.kernels._device import PRECISIONS, precision_of, unsupported
from protail.ops.kernels.head import MOST_BYTES, loss, losses, not_together
from protail.ops.kernels.search import MOST, cannot_find, find

__all__ = [
    "MOST",
    "MOST_BYTES",
    "PRECISIONS",
    "cannot_find",
    "find",
    "loss",
    "losses",
    "not_together",
    "precision_of",
    "unsupported",
]
