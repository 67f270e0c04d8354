"""Words shared by every error: what came, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
    close = get_close_matches(str(got).lower(), names, n=1, cutoff=0.65)
    return f"{message} Did you mean {close[0]!r}?" if close else message
