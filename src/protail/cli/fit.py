"""``protail fit``: prototypes from a file of features and labels, or from photos."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.fitting import (
    Examples,
    Fitted,
    TrainingRows,
    compared,
    fit_and_hold_out,
    save_with_picture,
    show_fitted,
    timed,
)
from protail.cli.sources import (
    Array,
    Model,
    check_some_finite,
    check_there,
    columns_in_words,
    evaluate_rows,
    is_of_photos,
    labels_for,
    not_used,
    open_sources,
)

if TYPE_CHECKING:
    from protail.data.tables import FeatureFile, Scan

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        help="Features and labels (npz, safetensors, parquet, csv) in files or a folder of them; "
        "or photos, in a folder for each class or listed in a csv file (path,label).",
        show_default=False,
    ),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", help="Model folder to write.", show_default=False)
]
HeldOut = Annotated[
    float, typer.Option(min=0, max=0.9, help="Fraction of each class to evaluate on, or 0.")
]
Test = Annotated[Path | None, typer.Option(help="Labelled file or photos to evaluate on instead.")]
Compare = Annotated[bool, typer.Option("--compare", help="Show other classifiers beside it.")]
LabelsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Labels, if in another file (npy, csv, txt).")
]
TestLabelsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its labels, if in another file.")
]
Method = Annotated[
    str, opt.chosen_from("", "auto", "whitened", "closed-form", "paper", show_default=False)
]
Memorised = Annotated[
    bool | None,
    typer.Option("--memorised/--new", help="Whether the backbone has learned from these rows."),
]
Reject = Annotated[
    float | None,
    typer.Option(metavar="FRACTION", help="Leave about so many known rows without a label."),
]
Prior = Annotated[str, opt.chosen_from("", "uniform", "train", "estimate")]
# Settings of the paper's method; the page of commands has them.
Distance = Annotated[str, opt.chosen_from("", "euclidean", "sqeuclidean", "cosine", hidden=True)]
Temperature = Annotated[str, opt.chosen_from("", "none", "channel", "class", "dense", hidden=True)]
Adjustment = Annotated[str, typer.Option(hidden=True)]
Normalize = Annotated[str, typer.Option(hidden=True)]
Epochs = Annotated[str, typer.Option(hidden=True)]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same bits.")]

# Names as they are once capitals and other signs are gone: imageId, "Unnamed: 0".
_IDENTIFIER = re.compile(r"(.*_)?(id|uid|uuid|guid)|index|idx|row(_?(number|nr|no))?|unnamed_\d+")
# Below that whole numbers in ascending order are no wonder.
_LEAST_ROWS = 8
_BLOCK = 1024


@command
def fit(
    voice: Voice,
    files: Files,
    output: Output,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    keep: opt.Keep = None,
    labels: opt.LabelsKey = None,
    labels_file: LabelsFile = None,
    engine: opt.Engine = "local",
    held_out: HeldOut = 0.2,
    test: Test = None,
    test_labels_file: TestLabelsFile = None,
    compare: Compare = False,
    backbone: opt.Backbone = "auto",
    weights: opt.Weights = None,
    augment: opt.Augment = 0,
    cache: opt.Cache = None,
    method: Method = "auto",
    memorised: Memorised = None,
    reject: Reject = None,
    prior: Prior = "uniform",
    distance: Distance = "euclidean",
    temperature: Temperature = "none",
    logit_adjustment: Adjustment = "auto",
    normalize: Normalize = "auto",
    epochs: Epochs = "auto",
    seed: Seed = 0,
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
) -> None:
    """Learn prototypes, evaluate them on held-out rows, learn from all and save the model."""
    file = files[0]
    check_there(*files, test, expected="a feature file, or photos")
    check_there(labels_file, test_labels_file, expected="a file of labels")
    from protail.estimator import (
        PrototypeClassifier,
        check_device,
        check_replaceable,
        check_settings,
    )

    check_replaceable(output, overwrite=overwrite)
    settings = {
        "method": method,
        "memorised": "auto" if memorised is None else memorised,
        "distance": distance,
        "temperature": _text_or_none(temperature),
        "logit_adjustment": _number("logit-adjustment", logit_adjustment),
        "normalize": _number("normalize", normalize, none=True),
        "epochs": _number("epochs", epochs, whole=True),
        "reject": reject,
        "prior": prior,
        "random_state": seed,
        "device": device,
        "verbose": voice.is_watched,
    }
    check_settings(PrototypeClassifier(**settings))
    check_device(device, None)
    options = opt.FeatureOptions(features, labels, columns, exclude, keep)
    photos = opt.PhotoOptions(backbone, weights, augment, cache)
    if of_photos := [each for each in files if is_of_photos(each)]:
        if len(files) > 1:
            raise ValueError(
                f"{of_photos[0]} holds photos, and {counted(len(files), 'path')} were given; "
                "expected one folder of photos, or files of features only. Name one."
            )
        options.refuse(file)
        opt.refuse({"--engine": None if engine == "local" else engine}, f"{file} holds photos")
        opt.refuse(
            {"--labels-file": labels_file, "--test-labels-file": test_labels_file},
            f"{file} holds photos, whose labels are their folders or stand in the list",
        )
        from protail.cli.photos import fit_photos

        fit_photos(
            voice,
            file,
            output,
            settings,
            photos,
            held_out=held_out,
            test=test,
            compare=compare,
            overwrite=overwrite,
        )
        return
    photos.refuse(file)
    _check_test(test, test_labels_file, options)
    begin = time.perf_counter()
    rows = read_training_rows(files, options, labels_file, voice, engine)
    fitted = fit_and_evaluate(
        rows,
        settings,
        voice,
        held_out=held_out,
        test=test,
        test_labels_file=test_labels_file,
        options=options,
        compare=compare,
    )
    # Saved before anything is shown: whoever reads the output may have gone by now.
    picture = save_with_picture(fitted, output, voice, made_by="protail fit", overwrite=overwrite)
    told = show_fitted(voice, fitted)
    voice.say(f"Model: {output}" + ("" if picture is None else f"   picture: {picture}"))
    voice.finish(
        {
            "model": str(output),
            "picture": None if picture is None else str(picture),
            "found": rows.found,
            "judged_on": fitted.evaluated_on,
            "evaluation": None if fitted.evaluation is None else fitted.evaluation.to_dict(),
            **told,
            **fitted.compared(),
            "choices": fitted.classifier.choices_,
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def _check_test(test: Path | None, labels_file: Path | None, options: opt.FeatureOptions) -> None:
    """Raise for a test file that will not do before much is learned."""
    if test is not None:
        from protail.data.tables.shards import find_files

        plain = opt.FeatureOptions(options.features, options.labels)
        for file in find_files(test)[0]:  # one by one: together they need the model's columns
            plain.open(file, labels_file=labels_file, need_labels=True)
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


def read_training_rows(
    paths: Sequence[Path],
    options: opt.FeatureOptions,
    labels_file: Path | None,
    voice: Voice,
    engine: str = "local",
) -> TrainingRows:
    """Read files and tell what is in them."""
    from protail.data.tables import ShardedRows, scan, take

    given = paths[0] if len(paths) == 1 else paths
    file = options.open(given, labels_file=labels_file, need_labels=True, engine=engine)
    path = file.path
    truth, rows = file.labels(), file.rows()
    all_classes = np.unique(truth)
    looked = scan(rows, truth)
    n_non_finite = looked.n_non_finite
    if n_non_finite:
        kept = np.flatnonzero(looked.finite)
        check_some_finite(len(rows), len(kept), path)
        rows, truth = take(rows, kept), truth[kept]
        looked = scan(rows, truth)
    lost = np.setdiff1d(all_classes, truth).tolist()
    found = _found(rows, truth, looked, n_non_finite, lost)
    _tell(voice, file, found, rows)
    first: Any = next(rows.blocks()) if isinstance(rows, ShardedRows) else rows
    doubtful = {} if file.names is None else identifiers(file.names, first)
    _doubt(voice, doubtful)
    found |= {"columns": file.names, "columns_like_identifiers": list(doubtful)}
    return TrainingRows(path, rows, truth, looked.duplicate_of, file.names, found)


def _found(
    rows: Any, labels: Array, looked: Scan, n_non_finite: int, lost: list[Any]
) -> dict[str, Any]:
    from protail import ClassProfile

    profile = ClassProfile(np.unique(labels, return_counts=True)[1])
    return {
        "rows": len(rows),
        "width": rows.shape[1],
        "classes": profile.n_classes,
        "imbalance": profile.imbalance,
        "groups": {name: len(group) for name, group in profile.groups().items()},
        "classes_of_one_row": int((profile.counts == 1).sum()),
        "non_finite_rows": n_non_finite,
        "classes_without_finite_rows": lost,
        "zero_rows": looked.n_zero,
        "duplicate_rows": looked.n_duplicates,
        "duplicates_with_another_label": looked.n_conflicts,
    }


def _tell(voice: Voice, file: FeatureFile, found: dict[str, Any], rows: Any) -> None:
    groups = found["groups"]
    shards = getattr(file, "shards", ())
    among = f", {counted(len(shards), 'file')}" if len(shards) > 1 else ""
    voice.say(
        f"{file.path}{among}: {counted(found['rows'], 'row')} of "
        f"{counted(found['width'], 'number')} ({rows.dtype}), "
        f"{counted(found['classes'], 'class', 'classes')}, imbalance {found['imbalance']:.4g}"
    )
    voice.say(
        f"  classes by size: many (100 rows or more) {groups['many']:,}, medium "
        f"{groups['medium']:,}, few (under 20) {groups['few']:,}"
    )
    if file.names is not None:
        voice.say(f"  features: {columns_in_words(file.names)}{not_used(file)}")
    if found["non_finite_rows"]:
        voice.say(f"  rows with NaN or infinity, left out: {found['non_finite_rows']:,}")
    if lost := found["classes_without_finite_rows"]:
        some = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        voice.say(f"  classes of such rows only, lost with them: {len(lost):,} ({some})")
    if found["zero_rows"]:
        voice.say(f"  rows of zeros only: {found['zero_rows']:,}")
    if found["duplicate_rows"]:
        voice.say(
            f"  rows that repeat an earlier one: {found['duplicate_rows']:,} (with another label: "
            f"{found['duplicates_with_another_label']:,}); kept, and never both learned from and "
            "evaluated on"
        )


def _doubt(voice: Voice, doubtful: Mapping[str, str]) -> None:
    for name, reason in doubtful.items():
        voice.say(
            f"Note: column {name!r} looks like the number of a row ({reason}), and is used as a "
            f"feature. If it says nothing about the class: --exclude {shlex.quote(name)}"
        )


def fit_and_evaluate(
    data: TrainingRows,
    settings: dict[str, Any],
    voice: Voice,
    *,
    held_out: float,
    test: Path | None,
    test_labels_file: Path | None,
    options: opt.FeatureOptions,
    compare: bool = False,
) -> Fitted:
    """Evaluate settings on rows that had no part in learning, then learn from all rows."""
    if test is None:
        return fit_and_hold_out(data, settings, voice, held_out=held_out, compare=compare)
    from protail import PrototypeClassifier

    classifier = PrototypeClassifier(**settings)
    model = Model(data.path, classifier, data.names)
    voice.say(f"Plan: learn from all rows, evaluate on {test}.")
    seconds = timed(lambda: classifier.fit(data.rows, data.labels))
    files = open_sources(
        model,
        [test],
        replace(options, columns=None, exclude=None, keep=None),
        labels_files=[test_labels_file] if test_labels_file else None,
        need_labels=True,
    )
    evaluated = evaluate_rows(model, files, voice)
    rejected = None
    if evaluated.rejected is not None:
        rejected = evaluated.rejected, np.isin(evaluated.truth, model.classes)
    fitted = Fitted(model, evaluated.evaluation, test.name, classifier, rejected=rejected)
    if not compare:
        return fitted
    rows = np.concatenate(list(files[0].blocks()))
    finite = np.flatnonzero(np.isfinite(rows).all(axis=1))
    labels = labels_for(model.classes, files[0].labels(), test)
    examples = Examples(rows[finite], labels[finite])
    return compared(replace(fitted, train=data.examples, held_out=examples), seconds)


def identifiers(names: Sequence[str], rows: NDArray[Any]) -> dict[str, str]:
    """Find columns that tell rows apart instead of saying what they are like.

    Parameters
    ----------
    names : sequence of str
        The columns.
    rows : ndarray of shape (n_rows, n_columns)
        What is in them.

    Returns
    -------
    dict of str to str
        Why each of them looks like one.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.cli.fit import identifiers
    >>> rows = np.random.default_rng(0).normal(size=(9, 3))
    >>> rows[:, 0] = np.arange(9)
    >>> identifiers(["n", "imageId", "width"], rows)
    {'n': 'whole numbers that grow from row to row', 'imageId': 'called so'}
    """
    growing = _growing(rows)
    found = {}
    for name, grows in zip(names, growing.tolist(), strict=True):
        if grows:
            found[name] = "whole numbers that grow from row to row"
        elif _IDENTIFIER.fullmatch(_plain(name)):
            found[name] = "called so"
    return found


def _plain(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", words).lower().strip("_")


def _growing(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each column whether it holds whole numbers, each larger than the one before."""
    growing = np.full(rows.shape[1], len(rows) >= _LEAST_ROWS)
    for start in range(0, len(rows), _BLOCK):
        if not growing.any():
            break
        block = np.asarray(rows[max(0, start - 1) : start + _BLOCK, growing])
        grows = (block == np.floor(block)).all(axis=0) & (block[1:] > block[:-1]).all(axis=0)
        growing[growing] = grows
    return growing


app = make_app(fit, "protail fit features.npz -o model")
