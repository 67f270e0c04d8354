"""What somebody took for a model: what it is, and what can be done with it."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

# Files looked at to find an image among them.
_LOOKED_AT = 1000


def check_model_folder(folder: Path) -> None:
    """Raise where a folder is known to be something else than a model.

    Parameters
    ----------
    folder : Path
        What was given for a model. One with a flaw, or what is nothing known, is left to whoever
        reads it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail.cli._folders import check_model_folder
    >>> check_model_folder(Path("no-such-folder"))
    """
    from protail.estimator import is_model

    try:
        found = None if is_model(folder) else _what_it_is(folder)
    except OSError:  # told by whoever reads it
        return
    if found is not None:
        what, advice = found
        raise ValueError(
            f"{folder} is {what}; expected a model, the folder that protail fit writes. {advice}"
        )


def _what_it_is(folder: Path) -> tuple[str, str] | None:
    """Say what is there and what to do with it; None where it is nothing known."""
    from protail.estimator import is_model
    from protail.experiments import is_run
    from protail.models.backbones import INDEX

    if folder.is_file():
        return "a file", "The model comes first, and files behind it."
    if is_run(folder):
        return "a run of protail train, a network with its scores", _of_run(folder)
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    if runs := [entry for entry in inside if is_run(entry)]:
        return "a folder with runs of protail train", _of_run(runs[0])
    if models := [entry for entry in inside if is_model(entry)]:
        return "a folder with models", f"Name one of them, as in {models[0]}."
    if (folder / INDEX).is_file():
        return (
            "a backbone that protail weights has stored",
            f"Train from it: protail train RECIPE --set representation.weights={folder} ...",
        )
    if _holds_images(folder):
        return (
            "a folder of images",
            f"Train on it: protail train RECIPE --dataset {folder} ... Or compute features of the "
            "images with a backbone of yours, for protail fit.",
        )
    return None


def _of_run(folder: Path) -> str:
    from protail.data.images import dataset_names
    from protail.experiments import Run

    run = Run.open(folder)
    if not run.finished:
        return f"{folder} is not finished: the command that began it goes on with --resume."
    data = run.resolved.get("data", {})
    name, on_features = data.get("name"), "features" in data
    if name not in dataset_names() or name == "imagefolder":
        where = " --dataset DATA, which it was trained on"
    else:
        where = f" --dataset {name}" if on_features else ""
    evaluate = f"protail evaluate {folder}{where}"
    if on_features:
        return f"Judge it: {evaluate}."
    return f"Judge it: {evaluate}. Take its backbone along: protail weights {folder} -o BACKBONE."


def _holds_images(folder: Path) -> bool:
    from protail.data.images import ENDINGS

    # In folders of classes, also those in train and test.
    files = chain.from_iterable(folder.glob(each) for each in ("*/*", "*/*/*"))
    return any(file.suffix.lower() in ENDINGS for file in islice(files, _LOOKED_AT))
