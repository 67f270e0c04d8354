"""Distance logits, their loss, and the nearest classes.

``distances`` and ``logits`` are plain differentiable torch. ``loss`` takes the fastest form that
fits: kernels (on a GPU), fused, reference or chunked. ``nearest`` and ``top_k`` search; ``gaps``
tells how much farther the others are. ``Parts`` and ``TopK`` are what a form that sees only some
classes returns, with the one rule that merges them. What is measured, with its gradient, is one
class a distance in `protail.ops.distance`.
"""

from protail.ops import chunked, fused, reference
from protail.ops._arguments import MEMORY_BUDGET, TEMPERATURES, compute_dtype
from protail.ops._gaps import Gaps, gaps
from protail.ops._parts import Parts, TopK
from protail.ops._precision import add_rows_, full_precision, in_full, unit_rows
from protail.ops.distance import Distance, as_distance, distance_names, make_distance
from protail.ops.reference import distances, logits
from protail.ops.search import highest, nearest, top_k
from protail.ops.selected import loss

__all__ = [
    "MEMORY_BUDGET", "TEMPERATURES", "Distance", "Gaps", "Parts", "TopK", "add_rows_",
    "as_distance", "chunked", "compute_dtype", "distance_names", "distances", "full_precision",
    "fused", "gaps", "highest", "in_full", "logits", "loss", "make_distance", "nearest",
    "reference", "top_k", "unit_rows",
]  # fmt: skip
