"""Words that are shared: by every error, and by all that counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

# The last that is said of a part nobody has registered.
OWN_PART = "One of your own is known once the module that registers it is imported."


def unknown_name(what: str, got: object, valid: Iterable[str]) -> str:
    """Say that ``got`` is no valid ``what`` and name the nearest one that is.

    Parameters
    ----------
    what : str
        The argument's name, as the user writes it.
    got : object
        What came.
    valid : iterable of str
        Every name that would do.

    Returns
    -------
    str
        One sentence for the exception.

    Examples
    --------
    >>> from protail._messages import unknown_name
    >>> unknown_name("distance", "euclidian", ["cosine", "euclidean"])
    "distance='euclidian' is unknown; expected one of 'cosine', 'euclidean'.
    Did you mean 'euclidean'?"
    """
    names = list(valid)
    message = f"{what}={got!r} is unknown; expected one of {', '.join(map(repr, names))}."
    near = nearest_names(got, names)
    return f"{message} Did you mean {near[0]!r}?" if near else message


def nearest_names(got: object, valid: Iterable[str], n: int = 1, cutoff: float = 0.65) -> list[str]:
    """Find the names most like what came; capitals, dashes, underscores and spaces do not count.

    Parameters
    ----------
    got : object
        What came.
    valid : iterable of str
        The names.
    n : int, default=1
        How many to find, at most.
    cutoff : float, default=0.65
        How like they must be, from 0 to 1.

    Returns
    -------
    list of str
        As they are written, the most alike first.

    Examples
    --------
    >>> from protail._messages import nearest_names
    >>> nearest_names("PCLA", ["pc", "pc-la"])
    ['pc-la']
    """
    written: dict[str, str] = {}
    for name in valid:
        written.setdefault(_plain(name), name)
    return [written[each] for each in get_close_matches(_plain(got), written, n, cutoff)]


def _plain(name: object) -> str:
    return re.sub(r"[-_\s]", "", str(name).lower())


def unknown_part(what: str, got: object, valid: Iterable[str]) -> str:
    """Say that there is no ``what`` of this name, and how one of somebody's own is known.

    Parameters
    ----------
    what, got, valid
        As in `unknown_name`, of things that a module of anybody's can register.

    Returns
    -------
    str
        Sentences for the exception.

    Examples
    --------
    >>> from protail._messages import unknown_part
    >>> unknown_part("loss", "mine", ["focal", "ldam"])
    "loss='mine' is unknown; expected one of 'focal', 'ldam'.
    One of your own is known once the module that registers it is imported."
    """
    return f"{unknown_name(what, got, valid)} {OWN_PART}"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Write a number of things: "1 row", "2 rows".

    Parameters
    ----------
    number : int
        How many there are.
    one : str
        What to call one of them.
    several : str, optional
        What to call any other number of them; by default with an "s".

    Returns
    -------
    str
        The number, its thousands set apart, and the word that goes with it.

    Examples
    --------
    >>> from protail._messages import counted
    >>> counted(1, "row"), counted(1200, "row"), counted(0, "class", "classes")
    ('1 row', '1,200 rows', '0 classes')
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
