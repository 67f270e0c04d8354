"""``protail weights``: the backbone of a run, small enough to travel."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protail.cli.command import Voice, command, make_app
from protail.cli.options import Overwrite, chosen_from
from protail.cli.tables import make_table

if TYPE_CHECKING:
    from torch import Tensor

    from protail.experiments import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run.", show_default=False)]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write.", show_default=False)
]
MaxShardSize = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Of any file, as in 16MiB; by default one holds all."),
]
Dtype = Annotated[str, chosen_from("", "float16", "bfloat16", "float32", metavar="NAME")]

_PART = "backbone."
_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30},
}


@command
def weights(
    voice: Voice,
    run: RunFolder,
    output: Output,
    max_shard_size: MaxShardSize = None,
    dtype: Dtype = "float16",
    overwrite: Overwrite = False,
) -> None:
    """Store the backbone of a run in files small enough to travel.

    The folder is what representation.weights of a recipe takes.
    """
    from protail.experiments import Run
    from protail.models.backbones import save_weights

    limit = None if max_shard_size is None else read_bytes(max_shard_size)
    opened = Run.open(run)
    backbone = _backbone(opened)
    _check_place(output, overwrite=overwrite)
    files = save_weights(backbone, output, dtype=dtype, shard_bytes=limit, overwrite=overwrite)
    sizes = {file.name: file.stat().st_size for file in files}
    name = opened.resolved["recipe"]["representation"]["backbone"]
    n_numbers = sum(tensor.numel() for tensor in backbone.values())
    voice.say(f"{name} of {run}: {n_numbers:,} numbers, {dtype}, {in_bytes(sum(sizes.values()))}")
    shown = [(name, in_bytes(size)) for name, size in sizes.items()]
    voice.show(make_table(["file", "size"], shown, right=1, simple=False))
    voice.say(f'In a recipe: representation.weights = "{output}"')
    voice.finish(
        {
            "run": str(run),
            "backbone": name,
            "dtype": dtype,
            "output": str(output),
            "files": [{"name": name, "bytes": size} for name, size in sizes.items()],
        }
    )


def read_bytes(text: str) -> int:
    """Read a size.

    Parameters
    ----------
    text : str
        A number, with KB, MB, GB, KiB, MiB or GiB behind it; bytes without.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> from protail.cli.weights import read_bytes
    >>> read_bytes("16MiB"), read_bytes("1.5 GB"), read_bytes("700000")
    (16777216, 1500000000, 700000)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*([kmg]?i?b|)\s*", text.lower())
    size = int(float(found[1]) * _UNITS.get(found[2], 0)) if found else 0
    if not size:
        raise ValueError(
            f"--max-shard-size {text!r} is no size; expected one as in 16MiB, 500MB or 1GiB."
        )
    return size


def in_bytes(n_bytes: int) -> str:
    """Write a size as people read it.

    Parameters
    ----------
    n_bytes : int
        How large it is.

    Returns
    -------
    str
        In the largest unit it fills.

    Examples
    --------
    >>> from protail.cli.weights import in_bytes
    >>> in_bytes(700), in_bytes(70_000), in_bytes(70_000_000)
    ('700 B', '68.4 KiB', '66.8 MiB')
    """
    for unit in ("GiB", "MiB", "KiB"):
        if n_bytes >= _UNITS[unit.lower()]:
            return f"{n_bytes / _UNITS[unit.lower()]:.1f} {unit}"
    return f"{n_bytes} B"


def _backbone(run: Run) -> dict[str, Tensor]:
    from protail.experiments import RunError

    found = {
        name.removeprefix(_PART): tensor
        for name, tensor in sorted(run.weights().items())  # read in any order
        if name.startswith(_PART)
    }
    if not found and "features" in run.resolved.get("data", {}):
        raise RunError(
            f"{run.folder}: a run on features has no backbone, only a classifier; expected a run "
            "on images."
        )
    if not found:
        raise RunError(
            f"{run.folder}: its weights hold no backbone; expected one. It is damaged, or was "
            "made by another version of protail."
        )
    return found


def _check_place(output: Path, *, overwrite: bool) -> None:
    """Raise unless the folder is free, or holds nothing but weights that may be replaced."""
    from protail._files import OutputError, check_free
    from protail.models.backbones import is_of_weights

    if output.suffix == ".safetensors":
        raise ValueError(
            f"--output {output} is a name for a file; expected one for a folder. Leave "
            ".safetensors out."
        )
    check_free(output, overwrite=overwrite, folder=True)
    strange = [
        file.name
        for file in (output.iterdir() if output.is_dir() else ())
        if not is_of_weights(file.name)
    ]
    if strange:
        raise OutputError(
            errno.EEXIST,
            f"{output} holds something else than weights ({strange[0]}), so it is not replaced, "
            "not even with overwrite. Choose another name.",
        )


app = make_app(weights, "protail weights runs/pc-la-cifar100-lt-100-seed0 -o backbone")
