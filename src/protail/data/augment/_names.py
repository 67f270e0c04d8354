"""Names of steps, checked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from protail._messages import unknown_name


def check_names(names: Sequence[str], valid: Sequence[str]) -> None:
    """Refuse a name that is unknown or comes twice.

    Parameters
    ----------
    names : sequence of str
        What the user asks for.
    valid : sequence of str
        Every name that would do.

    Examples
    --------
    >>> check_names(["crop", "flp"], ["crop", "flip"])
    Traceback (most recent call last):
    ValueError: augment='flp' is unknown; expected one of 'crop', 'flip'. Did you mean 'flip'?
    """
    if isinstance(names, str):
        raise TypeError(f"names={names!r} is one string; expected a list of names: [{names!r}].")
    for place, name in enumerate(names):
        if name not in valid:
            raise ValueError(unknown_name("augment", name, valid))
        if name in names[:place]:
            raise ValueError(f"augment={name!r} is named twice; each step can be there once.")
