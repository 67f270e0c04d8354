"""The one error that weights give."""

from __future__ import annotations

from pathlib import Path


class WeightsError(ValueError):
    """Say what is wrong with a file of weights, and what to do.

    Examples
    --------
    >>> from protail.backbones import WeightsError, make_backbone
    >>> try:
    ...     make_backbone("resnet32", weights="no-such-file.pth")
    ... except WeightsError as error:
    ...     print(error)
    no-such-file.pth: there is no such file. Check the path.
    """


def problem(path: Path, text: str) -> WeightsError:
    """Make the error about ``path``.

    Parameters
    ----------
    path : Path
        The file or folder.
    text : str
        What is wrong with it, and what to do.

    Returns
    -------
    WeightsError
        To be raised.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.backbones._errors import problem
    >>> print(problem(Path("weights.pth"), "it is empty. Get a whole copy."))
    weights.pth: it is empty. Get a whole copy.
    """
    return WeightsError(f"{path}: {text}")
