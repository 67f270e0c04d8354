"""Two rows of a table on the same test images: how far apart, and how sure is that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protail.data.images import BUNDLED_FEATURES, FeatureData, load_dataset, long_tailed_counts
from protail.profile import ClassProfile
from protail.utils import unknown_name
from protail_paper.paper import GROUPS
from protail_paper.results import VIEWS, Result
from protail_paper.scores import unpack_bits
from protail_paper.wanted import Subset

_LEVEL = 0.95
_WITH_LABELS = "cifar100-lt"
_SHOT_GROUPS = GROUPS[:3]


@dataclass(frozen=True)
class PairedDifference:
    """Hold an accuracy of two rows and how sure their difference is.

    Attributes
    ----------
    first, second : float
        The accuracy of each, from 0 to 1, mean over seeds.
    by_seed : tuple of float
        Second minus first, one a seed.
    low, high : float
        The interval, of 95 %, of the difference.

    Examples
    --------
    >>> from protail_paper.paired import PairedDifference
    >>> found = PairedDifference(0.50, 0.53, (0.02, 0.04), low=0.01, high=0.05)
    >>> round(found.difference, 2), found.verdict
    (0.03, 'ahead')
    """

    first: float
    second: float
    by_seed: tuple[float, ...]
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Second minus first, mean over seeds."""
        return float(np.mean(self.by_seed))

    @property
    def verdict(self) -> str:
        """Where the second is: "ahead" or "behind" if the interval excludes 0."""
        if self.low > 0:
            return "ahead"
        return "behind" if self.high < 0 else "cannot be told apart"


def paired_difference(
    first: Iterable[Result],
    second: Iterable[Result],
    *,
    view: str = "mirrored",
    images: NDArray[np.bool_] | None = None,
) -> PairedDifference:
    """Compare two rows image by image and seed by seed.

    The interval is over trainings and over test images. Each of both has a t interval of its
    own: of the differences of the seeds, and of the differences of the images, means over seeds.
    Its half-width is the root of the sum of the squares of theirs [1]_: rather too wide than too
    narrow, for what is chance of one image in one training is counted twice. It says nothing
    about other training images, nor about other classes. With one seed it is over test images
    alone, and about that one training.

    Parameters
    ----------
    first, second : iterable of Result
        Results of each row, one a seed: the same seeds, on the same images.
    view : {"plain", "mirrored"}
        Whether logits are averaged with those of the mirror image.
    images : ndarray of bool, shape (n_images,), optional
        Which test images count, as `group_images` gives them; by default all.

    Returns
    -------
    PairedDifference
        The difference is the second minus the first.

    References
    ----------
    .. [1] S. K. Banerjee, "Approximate confidence interval for linear functions of means of k
       populations when the population variances are not equal", Sankhya 22 (1960), 357-358.

    Examples
    --------
    >>> import numpy as np
    >>> from protail_paper.results import Result
    >>> from protail_paper.paired import paired_difference
    >>> from protail_paper.scores import pack_bits
    >>> def made_up(right):
    ...     scores = {"mirrored": {"all": float(np.mean(right))}}
    ...     bits = {"mirrored": pack_bits(np.array(right))}
    ...     data = {"dataset": "cifar100-lt", "imbalance": 100}
    ...     return Result({"seed": 0, "data": data, "scores": scores, "right": bits})
    >>> rows = [True] * 50 + [False] * 50, [True] * 70 + [False] * 30
    >>> difference = paired_difference(*([made_up(row)] for row in rows))
    >>> round(difference.difference, 2), difference.verdict
    (0.2, 'ahead')
    """
    _check_name("view", view, VIEWS)
    pairs = _paired(first, second)
    n = _n_images([result for pair in pairs for result in pair], view)
    counted = np.ones(n, np.bool_) if images is None else images
    if counted.shape != (n,) or counted.sum() < 2:
        raise ValueError(
            f"images has shape {counted.shape} and {counted.sum()} that count; expected ({n},), an "
            "entry for each test image, and at least 2 that count."
        )
    rights = [
        np.array([_rights(result, view, n)[counted] for result in row], np.float64)
        for row in zip(*pairs, strict=True)
    ]
    changes_si = rights[1] - rights[0]
    by_seed = changes_si.mean(axis=1)
    half = float(np.hypot(_half_width(by_seed), _half_width(changes_si.mean(axis=0))))
    middle = float(by_seed.mean())
    return PairedDifference(
        first=float(rights[0].mean()),
        second=float(rights[1].mean()),
        by_seed=tuple(by_seed.tolist()),
        low=middle - half,
        high=middle + half,
    )


def group_images(
    results: Iterable[Result], group: str, view: str = "mirrored"
) -> NDArray[np.bool_] | None:
    """Say which test images are of a group of classes.

    Results do not keep labels. Those of CIFAR-100 come with the package; they are taken where they
    give the accuracy of the group that every result says.

    Parameters
    ----------
    results : iterable of Result
        Results of one subset that have not diverged.
    group : {"many", "medium", "few"}
        Which classes.
    view : {"plain", "mirrored"}
        By which scores it is checked.

    Returns
    -------
    ndarray of bool, shape (n_images,), or None
        None where there is no such group, or labels are not known.

    Examples
    --------
    >>> from protail_paper.results import Result
    >>> from protail_paper.paired import group_images
    >>> result = Result({"data": {"dataset": "cifar10-lt", "imbalance": 100}})
    >>> group_images([result], "few") is None
    True
    """
    _check_name("group", group, _SHOT_GROUPS)
    _check_name("view", view, VIEWS)
    found = list(results)
    subsets = {Subset(**result.record["data"]) for result in found}
    if len(subsets) != 1:
        raise ValueError(f"results are of {len(subsets)} subsets; expected one.")
    [subset] = subsets
    if subset.dataset != _WITH_LABELS or subset.held_out or subset.aside_from:
        return None
    images = _images_of(group, subset.imbalance)
    return images if all(_fits(result, images, group, view) for result in found) else None


def _check_name(what: str, name: str, valid: Iterable[str]) -> None:
    if name not in valid:
        raise ValueError(unknown_name(what, name, valid))


def _fits(result: Result, images: NDArray[np.bool_], group: str, view: str) -> bool:
    score = result.score(group, view)
    if score is None or _n_images([result], view) != len(images):
        return False
    return bool(np.isclose(_rights(result, view, len(images))[images].mean(), score))


@cache
def _images_of(group: str, imbalance: float) -> NDArray[np.bool_]:
    bundled = load_dataset(BUNDLED_FEATURES)
    assert isinstance(bundled, FeatureData)
    largest = int(np.bincount(bundled.train.labels).max())
    counts = long_tailed_counts(largest, len(bundled.classes), imbalance)
    return np.isin(bundled.test.labels, ClassProfile(counts).groups()[group])


def _half_width(values: NDArray[np.float64]) -> float:
    """Give half of the t interval of a mean; none is known of a single value."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    n = len(values)
    if n == 1:
        return 0.0
    return float(stdtrit(n - 1, (1 + _LEVEL) / 2) * values.std(ddof=1) / np.sqrt(n))


def _rights(result: Result, view: str, n: int) -> NDArray[np.bool_]:
    return unpack_bits(result.record["right"][view], n)


def _paired(first: Iterable[Result], second: Iterable[Result]) -> list[tuple[Result, Result]]:
    """Pair the results of two rows by their seeds."""
    rows: dict[str, dict[int, Result]] = {"first": {}, "second": {}}
    for (name, found), row in zip(rows.items(), (first, second), strict=True):
        for result in row:
            seed = result.record["seed"]
            if seed in found:
                raise ValueError(f"{name} has two results of seed {seed}; expected one a seed.")
            if result.diverged:
                raise ValueError(
                    f"{name} has diverged with seed {seed}; expected results with scores."
                )
            found[seed] = result
    one, other = rows.values()
    if not one or set(one) != set(other):
        raise ValueError(
            f"first has results of seeds {sorted(one)}, second of {sorted(other)}; expected the "
            "same seeds of both, at least one."
        )
    for seed in one:
        subsets = [Subset(**row[seed].record["data"]) for row in (one, other)]
        if subsets[0] != subsets[1]:
            raise ValueError(
                f"results of seed {seed} are of {subsets[0]} and {subsets[1]}; expected the same "
                "images."
            )
    return [(one[seed], other[seed]) for seed in one]


def _n_images(results: Iterable[Result], view: str) -> int:
    """Say how many images there are; results keep whole bytes of them, and their accuracy."""
    found, n_bits = set(), 0
    for result in results:
        bits, accuracy = unpack_bits(result.record["right"][view]), result.score("all", view)
        n_bits = len(bits)
        if accuracy:
            found.add(round(int(bits.sum()) / accuracy))
    if len(found) > 1:
        raise ValueError(f"results have {sorted(found)} images; expected the same ones in all.")
    # Where nothing is right anywhere, it does not matter.
    return found.pop() if found else n_bits
