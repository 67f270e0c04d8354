"""``protail fit``: prototypes from a file of features and labels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from protail.cli._completion import DISTANCES, distances, one_of
from protail.cli._feature_options import (
    Columns,
    Exclude,
    FeatureOptions,
    FeaturesKey,
    Keep,
    LabelsKey,
)
from protail.cli.command import Debug, Device, Json, Overwrite, Voice
from protail.cli.command import command as _command

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Features and labels: npz, safetensors, parquet, csv.",
        show_default=False,
    ),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", help="Model folder to write.", show_default=False)
]
HeldOut = Annotated[
    float, typer.Option(min=0, max=0.9, help="Share of each class to judge on; 0 judges nothing.")
]
Test = Annotated[Path | None, typer.Option(help="Labelled file to judge on instead.")]
LabelsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Labels, if in another file (npy, csv, txt)."),
]
TestLabelsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its labels, if in another file.")
]
Distance = Annotated[
    str,
    typer.Option(help=f"{', '.join(DISTANCES[:-1])} or {DISTANCES[-1]}.", autocompletion=distances),
]
Temperature = Annotated[
    str,
    typer.Option(
        help="none, channel, class or dense.",
        autocompletion=one_of("none", "channel", "class", "dense"),
    ),
]
Adjustment = Annotated[
    str, typer.Option(metavar="NUMBER", help="Tau, the margin for rare classes.")
]
Normalize = Annotated[str, typer.Option(metavar="NUMBER", help="Length of all rows, or none.")]
Epochs = Annotated[str, typer.Option(metavar="NUMBER", help="0 is the nearest class mean.")]
Prior = Annotated[
    str,
    typer.Option(
        help="Mix of classes in use: uniform or train.", autocompletion=one_of("uniform", "train")
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same bits.")]


@_command
def fit(
    file: File,
    output: Output,
    features: FeaturesKey = None,
    columns: Columns = None,
    exclude: Exclude = None,
    keep: Keep = None,
    labels: LabelsKey = None,
    labels_file: LabelsFile = None,
    held_out: HeldOut = 0.2,
    test: Test = None,
    test_labels_file: TestLabelsFile = None,
    distance: Distance = "euclidean",
    temperature: Temperature = "none",
    logit_adjustment: Adjustment = "auto",
    normalize: Normalize = "auto",
    epochs: Epochs = "auto",
    prior: Prior = "uniform",
    seed: Seed = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Learn a prototype of each class and save the model.

    It is judged on a held-out part first; the saved one has then learned from all rows.
    """
    from protail import PrototypeClassifier
    from protail.cli._fitting import fit_and_judge, read_training_rows, save_with_picture
    from protail.cli.evaluate import show_evaluation
    from protail.estimator import check_device, check_replaceable, check_settings

    voice = Voice(as_json)
    check_replaceable(output, overwrite=overwrite)
    settings = {
        "distance": distance,
        "temperature": _text_or_none(temperature),
        "logit_adjustment": _number("logit-adjustment", logit_adjustment),
        "normalize": _number("normalize", normalize, none=True),
        "epochs": _number("epochs", epochs, whole=True),
        "prior": prior,
        "random_state": seed,
        "device": device,
        "verbose": voice.is_watched,
    }
    check_settings(PrototypeClassifier(**settings))
    check_device(device, None)
    options = FeatureOptions(features, labels, columns, exclude, keep)
    _check_test(test, test_labels_file, options)
    begin = time.perf_counter()
    rows = read_training_rows(file, options, labels_file, voice)
    fitted = fit_and_judge(
        rows,
        settings,
        voice,
        held_out=held_out,
        test=test,
        test_labels_file=test_labels_file,
        options=options,
    )
    # Saved before anything is shown: whoever reads the output may have gone by now.
    picture = save_with_picture(fitted, output, voice, made_by="protail fit", overwrite=overwrite)
    if fitted.evaluation is not None:
        show_evaluation(voice, fitted.evaluation, "prototypes")
    voice.say(f"Model: {output}" + ("" if picture is None else f"   picture: {picture}"))
    voice.finish(
        {
            "model": str(output),
            "picture": None if picture is None else str(picture),
            "found": rows.found,
            "judged_on": fitted.judged_on,
            "evaluation": None if fitted.evaluation is None else fitted.evaluation.to_dict(),
            "choices": fitted.model.classifier.choices_,
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def _check_test(test: Path | None, labels_file: Path | None, options: FeatureOptions) -> None:
    """Raise for a test file that will not do before much is learned."""
    if test is not None:
        plain = FeatureOptions(options.features, options.labels)
        plain.open(test, labels_file=labels_file, need_labels=True)
    elif labels_file is not None:
        raise ValueError(
            f"--test-labels-file {labels_file} was given without --test; expected the file of "
            "features that the labels belong to."
        )


def _text_or_none(text: str) -> str | None:
    return None if text.lower() == "none" else text


def _number(name: str, text: str, *, none: bool = False, whole: bool = False) -> Any:
    if text == "auto" or (none and text.lower() == "none"):
        return _text_or_none(text)
    try:
        return int(text) if whole else float(text)
    except ValueError:
        words = "auto or none" if none else "auto"
        kind = "whole number" if whole else "number"
        raise ValueError(f"--{name} {text!r} is not valid; expected a {kind}, {words}.") from None
