"""The paper's Table 7, statistics of its training data, beside what the counts say."""

from __future__ import annotations

from dataclasses import dataclass

from protail.profile import ClassProfile

GROUPS = ("many", "medium", "few", "all")
ATTRIBUTES = ("classes", "samples")


@dataclass(frozen=True)
class Row:
    """Hold one data set of Table 7, as printed.

    Attributes
    ----------
    dataset : str
        Its name in protail.
    imbalance : int or None
        For data sets that are cut to it.
    classes, samples : tuple of int
        For many, medium, few and all.
    """

    dataset: str
    imbalance: int | None
    classes: tuple[int, int, int, int]
    samples: tuple[int, int, int, int]


# As printed in the paper, errors included.
TABLE_7 = (
    Row("cifar10-lt", 100, (8, 2, 0, 10), (12273, 133, 0, 12406)),
    Row("cifar100-lt", 100, (35, 35, 30, 100), (8824, 1718, 305, 10847)),
    Row("cifar100-lt", 50, (41, 40, 19, 100), (10331, 2008, 269, 12608)),
    Row("cifar100-lt", 10, (70, 30, 0, 100), (17743, 2130, 0, 19573)),
    Row("imagenet-lt", None, (391, 473, 136, 1000), (89293, 24910, 1643, 115846)),
    Row("inaturalist18", None, (842, 4076, 3599, 8142), (433806, 258340, 133061, 437513)),
)


@dataclass(frozen=True)
class Entry:
    """Hold one number of Table 7 and what it should be.

    Attributes
    ----------
    attribute : {"classes", "samples"}
        What is counted.
    group : {"many", "medium", "few", "all"}
        The column.
    printed : int
        What the paper says.
    computed : int
        What the counts say.
    """

    attribute: str
    group: str
    printed: int
    computed: int

    @property
    def is_right(self) -> bool:
        """Whether the paper says what the counts say."""
        return self.printed == self.computed


def table7_row(dataset: str, imbalance: float | None = None) -> Row | None:
    """Find what Table 7 says about a data set.

    Parameters
    ----------
    dataset : str
        Its name in protail.
    imbalance : float, optional
        For data sets that are cut to it.

    Returns
    -------
    Row or None
        None where the table does not have it.

    Examples
    --------
    >>> from protail.analysis import table7_row
    >>> table7_row("cifar100-lt", 10).samples
    (17743, 2130, 0, 19573)
    """
    return next(
        (row for row in TABLE_7 if (row.dataset, row.imbalance) == (dataset, imbalance)), None
    )


def table7_entries(row: Row, profile: ClassProfile) -> list[Entry]:
    """Compute every number of a row from the class counts.

    Parameters
    ----------
    row : Row
        What the paper says.
    profile : ClassProfile
        The counts of that training set. Groups follow the paper's text: many from 100 images on,
        few below 20.

    Returns
    -------
    list of Entry
        Classes, then samples, of many, medium, few and all.

    Examples
    --------
    >>> from protail.analysis import table7_entries, table7_row
    >>> from protail.data.sets import long_tailed_counts
    >>> from protail.profile import ClassProfile
    >>> profile = ClassProfile(long_tailed_counts(500, 100, 10))
    >>> wrong = [
    ...     entry
    ...     for entry in table7_entries(table7_row("cifar100-lt", 10), profile)
    ...     if not entry.is_right
    ... ]
    >>> wrong
    [Entry(attribute='samples', group='many', printed=17743, computed=17443)]
    """
    members = list(profile.groups().values())
    classes = [len(group) for group in members] + [profile.n_classes]
    samples = [int(profile.counts[group].sum()) for group in members] + [profile.n_samples]
    computed = {"classes": classes, "samples": samples}
    return [
        Entry(attribute, group, printed, value)
        for attribute in ATTRIBUTES
        for group, printed, value in zip(
            GROUPS, getattr(row, attribute), computed[attribute], strict=True
        )
    ]


def table7_errata(row: Row, profile: ClassProfile | None = None) -> list[str]:
    """Say in sentences what is wrong with a row.

    Parameters
    ----------
    row : Row
        What the paper says.
    profile : ClassProfile, optional
        The counts of that training set. Without them only the sums can be checked.

    Returns
    -------
    list of str
        One sentence an error; empty where none was found.

    Examples
    --------
    >>> from protail.analysis import TABLE_7, table7_errata
    >>> for sentence in table7_errata(TABLE_7[-1]):
    ...     print(sentence)
    classes: many, medium and few add up to 8,517, not to the 8,142 of all
    samples: many, medium and few add up to 825,207, not to the 437,513 of all
    """
    found = []
    for attribute in ATTRIBUTES:
        *groups, everything = getattr(row, attribute)
        if sum(groups) != everything:
            found.append(
                f"{attribute}: many, medium and few add up to {sum(groups):,}, not to the "
                f"{everything:,} of all"
            )
    if profile is not None:
        found += [
            f"{entry.attribute}: {entry.group} should be {entry.computed:,}, not {entry.printed:,}"
            for entry in table7_entries(row, profile)
            if not entry.is_right
        ]
    return found
