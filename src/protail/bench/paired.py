"""Two rows of a table on the same test images: how far apart, and how sure is that."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from protail.bench.cells import Result
from protail.bench.scores import unpack_bits
from protail.bench.wanted import Draw
from protail.evaluation import Difference

_TAIL = 0.025


def paired_difference(
    first: Iterable[Result],
    second: Iterable[Result],
    *,
    view: str = "mirrored",
    n_resamples: int = 2000,
    random_state: int = 0,
) -> Difference:
    """Compare *all* of two rows, image by image and seed by seed.

    The interval, of 95 %, is over test images, drawn anew with replacement and with each image
    all seeds of both rows. It does not hold the spread over trainings.

    Parameters
    ----------
    first, second : iterable of Result
        Cells of each row, one a seed: the same seeds, on the same draws.
    view : {"plain", "mirrored"}
        Whether logits are averaged with those of the mirror image.
    n_resamples : int, default=2000
        How many times the test images are drawn anew.
    random_state : int, default=0
        Of these draws.

    Returns
    -------
    Difference
        Means over seeds, from 0 to 1; the difference is the second minus the first.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.bench.cells import Result
    >>> from protail.bench.paired import paired_difference
    >>> from protail.bench.scores import pack_bits
    >>> def cell(right):
    ...     scores = {"mirrored": {"all": float(np.mean(right))}}
    ...     bits = {"mirrored": pack_bits(np.array(right))}
    ...     data = {"dataset": "cifar100-lt", "imbalance": 100}
    ...     return Result({"seed": 0, "data": data, "scores": scores, "right": bits})
    >>> rows = [True] * 50 + [False] * 50, [True] * 70 + [False] * 30
    >>> difference = paired_difference(*([cell(row)] for row in rows))
    >>> round(difference.difference, 2), difference.verdict
    (0.2, 'better')
    """
    one, other = _by_seed(first, "first"), _by_seed(second, "second")
    _check_pairs(one, other)
    n = _n_images([*one.values(), *other.values()], view)
    rights = [
        np.array([unpack_bits(row[seed].record["right"][view], n) for seed in one], np.float64)
        for row in (one, other)
    ]
    scores = (float(rights[0].mean()), float(rights[1].mean()))
    # Images alike in all seeds are drawn as one kind: the same distribution, thousands of times
    # as fast.
    changes, n_images = np.unique((rights[1] - rights[0]).sum(axis=0), return_counts=True)
    drawn = np.random.default_rng(random_state).multinomial(n, n_images / n, size=n_resamples)
    low, high = np.quantile(drawn @ changes / (n * len(one)), [_TAIL, 1 - _TAIL]).tolist()
    return Difference(*scores, float(n_images @ changes) / (n * len(one)), low, high)


def _by_seed(row: Iterable[Result], name: str) -> dict[int, Result]:
    found: dict[int, Result] = {}
    for result in row:
        seed = result.record["seed"]
        if seed in found:
            raise ValueError(f"{name} has two cells of seed {seed}; expected one a seed.")
        if result.diverged:
            raise ValueError(f"{name} has diverged with seed {seed}; expected cells with scores.")
        found[seed] = result
    return found


def _check_pairs(one: dict[int, Result], other: dict[int, Result]) -> None:
    if not one or set(one) != set(other):
        raise ValueError(
            f"first has cells of seeds {sorted(one)}, second of {sorted(other)}; expected the same "
            "seeds of both, at least one."
        )
    for seed in one:
        draws = [Draw(**row[seed].record["data"]) for row in (one, other)]
        if draws[0] != draws[1]:
            raise ValueError(
                f"cells of seed {seed} are about {draws[0]} and {draws[1]}; expected the same "
                "images."
            )


def _n_images(results: Iterable[Result], view: str) -> int:
    """Say how many images there are; cells keep whole bytes of them, and their accuracy."""
    found = set()
    for result in results:
        bits, accuracy = unpack_bits(result.record["right"][view]), result.score("all", view)
        if accuracy:
            found.add(round(int(bits.sum()) / accuracy))
    if len(found) > 1:
        raise ValueError(f"cells have {sorted(found)} images; expected the same ones in all.")
    # Where nothing is right anywhere, it does not matter.
    return found.pop() if found else len(bits)
