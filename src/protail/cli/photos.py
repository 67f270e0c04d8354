"""Photos for ``protail fit`` and ``protail embed``: found, told, embedded, fitted, reported."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted, first_few
from protail.cli.fitting import (
    Examples,
    Fitted,
    TrainingRows,
    compared,
    evaluate_examples,
    fit_and_hold_out,
    show_fitted,
    timed,
)
from protail.cli.options import PhotoOptions
from protail.cli.progress import row_progress
from protail.cli.sources import Model, check_there

if TYPE_CHECKING:
    import torch

    from protail import Network
    from protail.cli.command import Voice
    from protail.data.augment import InputSpec
    from protail.data.images import FoundPhotos
    from protail.training import Embedded

REPORT = "report.html"


def fit_photos(
    voice: Voice,
    place: Path,
    output: Path,
    settings: dict[str, Any],
    options: PhotoOptions,
    *,
    held_out: float,
    test: Path | None,
    compare: bool,
    overwrite: bool,
) -> None:
    """Embed photos, fit and evaluate prototypes, and save a network and its report."""
    from protail.data.images import find_photos, photo_parts

    begin = time.perf_counter()
    learned_from = place
    if test is None:
        learned_from, test = photo_parts(place)
    train = find_photos(learned_from)
    check_two_classes(train)
    tests = None if test is None else find_photos(test)
    if tests is not None:
        _check_same_classes(train, tests)
    cache = features_folder(options, output)
    tell_photos(voice, train, tests)
    embedder = open_backbone(options, settings["device"], voice)
    parts = [train.images.paths] + ([] if tests is None else [tests.images.paths])
    if not embedder.is_ours and settings["memorised"] == "auto":
        settings = {**settings, "memorised": False}
    with features_told(cache, voice):
        embedded = embed(voice, embedder, parts, [options.augment, 0], cache)
        data = _training_rows(train, embedded[0], voice)
        if tests is None:
            fitted = fit_and_hold_out(
                data, settings, voice, held_out=held_out, compare=compare, what="photo"
            )
        else:
            examples = _test_examples(tests, embedded[0], embedded[1], voice, data.found)
            fitted = _fit_and_test(data, examples, settings, voice, compare=compare)
        whole = network_of(fitted.classifier, embedder, fitted.evaluated_on)
        whole.save(output, overwrite=overwrite)
        report = write_report_if_possible(fitted, embedder, output, voice)
    shown = show_fitted(voice, fitted)
    told = {"Model": output, "report": report, "features": cache}
    voice.say("   ".join(f"{name}: {what}" for name, what in told.items() if what is not None))
    voice.finish(
        {
            "model": str(output),
            "report": None if report is None else str(report),
            "features": str(cache),
            "found": data.found,
            "judged_on": fitted.evaluated_on,
            "evaluation": None if fitted.evaluation is None else fitted.evaluation.to_dict(),
            **shown,
            **fitted.compared(),
            "choices": fitted.classifier.choices_,
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def kept_features(model: Path) -> Path | None:
    """Say where ``fit`` has kept features of a model's photos, if it has and more may be added."""
    folder = _beside(model.absolute())
    return folder if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.features")


@contextmanager
def features_told(cache: Path | None, voice: Voice) -> Iterator[None]:
    """Where something fails, say that features were kept."""
    try:
        yield
    except Exception:
        if cache is not None and cache.is_dir():
            voice.say(f"The features are kept in {cache}, for the next try; delete it if not.")
        raise


def features_folder(options: PhotoOptions, output: Path) -> Path:
    """Say where features are kept, and raise where nothing can be written there."""
    from protail._files import check_free

    folder = options.cache or _beside(output)
    check_free(folder, overwrite=True, folder=True)
    return folder


def check_two_classes(found: FoundPhotos) -> None:
    """Raise where there is nothing to tell apart."""
    if len(found.images.classes) < 2:
        raise ValueError(
            f"{found.place}: it holds photos of one class, {found.images.classes[0]!r}; expected "
            "two or more to tell apart, each in its own folder. Add photos of another class."
        )


def _check_same_classes(train: FoundPhotos, test: FoundPhotos) -> None:
    """Raise where no test photo is of a class that is learned; some of others show novelty."""
    if not set(train.images.classes) & set(test.images.classes):
        raise ValueError(
            f"{test.place}: no photo is of a class that is learned (first: "
            f"{test.images.classes[0]!r}); expected the same names. Rename the folders."
        )


def tell_photos(voice: Voice, train: FoundPhotos, test: FoundPhotos | None = None) -> None:
    """Say what was found, before a photo is opened."""
    profile = train.images.profile
    voice.say(
        f"{train.place}: {counted(len(train.images), 'photo')} of "
        f"{counted(profile.n_classes, 'class', 'classes')}, imbalance {profile.imbalance:.4g}"
    )
    groups = {name: len(group) for name, group in profile.groups().items()}
    voice.say(
        f"  classes by size: many (100 photos or more) {groups['many']:,}, medium "
        f"{groups['medium']:,}, few (under 20) {groups['few']:,}"
    )
    if alone := [train.images.classes[c] for c in np.flatnonzero(profile.counts == 1)]:
        voice.say(f"  classes of one photo, never evaluated: {len(alone):,} ({first_few(alone)})")
    for found in (train, test):
        if found is not None and found.empty:
            voice.say(f"  folders without a photo: {len(found.empty):,} ({first_few(found.empty)})")
        if found is not None and found.ignored:
            files = first_few([str(each) for each in found.ignored])
            voice.say(f"  files that are no photos: {len(found.ignored):,} ({files})")
    if test is not None:
        classes = counted(len(test.images.classes), "class", "classes")
        voice.say(f"{test.place}: {counted(len(test.images), 'photo')} of {classes} to evaluate on")


@dataclass(frozen=True)
class Embedder:
    """What makes features of photos.

    Attributes
    ----------
    backbone : torch.nn.Module
        Photos to features.
    inputs : InputSpec
        What it wants.
    device : torch.device
        Where it computes.
    is_ours : bool
        Whether protail trained it, which may have been on these very photos.
    """

    backbone: Any
    inputs: InputSpec
    device: torch.device
    is_ours: bool = False

    @classmethod
    def of(cls, network: Network) -> Embedder:
        """Take the backbone of a network that takes photos."""
        assert network.inputs is not None
        return cls(network.backbone, network.inputs, network.device, is_ours=True)


def open_backbone(options: PhotoOptions, device: str, voice: Voice) -> Embedder:
    """Make what features come from: a pretrained backbone, or that of a network of protail's."""
    import torch

    from protail import Network
    from protail.data.augment import InputSpec
    from protail.estimator import check_device
    from protail.experiments import is_run
    from protail.models.backbones import pretrained_backbone
    from protail.models.storage import model_format
    from protail.network import FORMAT

    place = Path(options.backbone)
    check_there(options.weights, expected="weights")
    where = "cuda" if device == "auto" and torch.cuda.is_available() else device
    chosen = torch.device("cpu") if where == "auto" else check_device(where, None)
    if options.weights is None and (is_run(place) or model_format(place) == FORMAT):
        loaded = Network.load(place, device=chosen)
        if loaded.backbone is None or loaded.inputs is None:
            raise ValueError(
                f"{place} takes feature rows and has no backbone; expected a network that takes "
                "photos. Name another one with --backbone."
            )
        found = Embedder.of(loaded)
    else:
        try:
            backbone: Any = pretrained_backbone(options.backbone, options.weights).to(chosen)
        except ValueError as error:
            raise type(error)(str(error).replace("name=", "--backbone ")) from error
        found = Embedder(backbone, getattr(backbone, "input_spec", None) or InputSpec(), chosen)
    name, size = found.backbone.made_by[0], found.inputs.size
    width = counted(found.backbone.n_features, "feature")
    voice.say(f"Backbone: {name}, {size} x {size} pixels, {width}, on {chosen}")
    return found


def embed(
    voice: Voice,
    embedder: Embedder,
    parts: Sequence[Sequence[Path]],
    views: Sequence[int],
    cache: Path | None,
) -> list[Embedded]:
    """Compute the features of lists of photos, and tell the progress."""
    from protail.training import embed_photos

    backbone, inputs = embedder.backbone, embedder.inputs
    begin, n = time.perf_counter(), sum(map(len, parts))
    found: list[Embedded] = []
    try:
        with row_progress(voice, n, what="photo") as progress:
            for paths, n_views in zip(parts, views, strict=False):
                found.append(
                    embed_photos(
                        backbone,
                        inputs,
                        paths,
                        cache=cache,
                        views=n_views,
                        device=embedder.device,
                        progress=progress,
                    )
                )
    except KeyboardInterrupt:
        words = "" if cache is None else f"What was computed is kept in {cache}: "
        raise KeyboardInterrupt(f"{words}the same command goes on from there.") from None
    computed = sum(each.n_computed for each in found)
    known = f" ({n - computed:,} known)" if computed < n else ""
    voice.say(f"Features of {counted(n, 'photo')}{known}: {time.perf_counter() - begin:.0f} s")
    if not any(each.readable.any() for each in found[:1]):
        whys = [why.partition("; expected")[0] for why in found[0].problems.values()]
        bad = first_few(whys, 1)
        raise ValueError(
            f"none of {counted(len(parts[0]), 'photo')} can be read ({bad}); expected whole image "
            "files. Replace them."
        )
    return found


def tell_unreadable(voice: Voice, paths: Sequence[Path], embedded: Embedded) -> list[str]:
    """Say which photos are left out, and why the first one is."""
    bad = [str(paths[i]) for i in embedded.problems]
    if bad:
        why = next(iter(embedded.problems.values())).partition("; expected")[0]
        voice.say(f"  photos that cannot be read, left out: {len(bad):,} ({why})")
    return bad


def _training_rows(found: FoundPhotos, embedded: Embedded, voice: Voice) -> TrainingRows:
    """Give the rows of the photos that could be read, and tell of the others and of copies."""
    paths = found.images.paths
    bad = tell_unreadable(voice, paths, embedded)
    kept = np.flatnonzero(embedded.readable)
    labels = found.names[kept]
    lost = np.setdiff1d(found.images.classes, labels).tolist()
    if lost:
        voice.say(f"  classes without a readable photo, lost: {len(lost):,} ({first_few(lost)})")
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"{found.place}: photos of one class can be read; expected two or more to tell apart. "
            f"Replace the others ({first_few(bad)})."
        )
    first = np.unique(embedded.duplicate_of[kept], return_index=True, return_inverse=True)
    duplicate_of = first[1][first[2]]
    copies = np.flatnonzero(duplicate_of != np.arange(len(kept)))
    other = copies[labels[copies] != labels[duplicate_of[copies]]]
    if len(copies):
        words = f"  copies of another photo: {len(copies):,} (with another label: {len(other):,}"
        if len(other):
            one = other[0]
            words += f", such as {paths[kept[one]]} and {paths[kept[duplicate_of[one]]]}"
        voice.say(f"{words}); kept, and never both learned from and evaluated on")
    counts = np.unique(labels, return_counts=True)[1]
    from protail import ClassProfile

    profile = ClassProfile(counts)
    told = {
        "photos": len(kept),
        "classes": profile.n_classes,
        "imbalance": profile.imbalance,
        "groups": {name: len(group) for name, group in profile.groups().items()},
        "classes_of_one_photo": int((counts == 1).sum()),
        "unreadable": bad,
        "classes_without_readable_photos": lost,
        "folders_without_photos": list(found.empty),
        "no_photos": [str(each) for each in found.ignored],
        "duplicates": len(copies),
        "duplicates_with_another_label": len(other),
    }
    from protail.data.tables import take

    photos = [paths[i] for i in kept]
    rows = take(embedded.rows, kept)
    return TrainingRows(found.place, rows, labels, duplicate_of, None, told, photos)


def _test_examples(
    found: FoundPhotos, train: Embedded, test: Embedded, voice: Voice, told: dict[str, Any]
) -> Examples:
    """Give the test photos that can be read and are not among those learned from."""
    paths = found.images.paths
    told["test_unreadable"] = tell_unreadable(voice, paths, test)
    seen = {key for key in train.digests if key is not None}
    again = np.array([key in seen for key in test.digests]) & test.readable
    told["test_photos_learned_from"] = [str(paths[i]) for i in np.flatnonzero(again)]
    if again.any():
        some = first_few(told["test_photos_learned_from"])
        voice.say(f"  test photos that are learned from too, left out: {again.sum():,} ({some})")
    kept = np.flatnonzero(test.readable & ~again)
    if not len(kept):
        raise ValueError(
            f"{found.place}: no photo is left to evaluate on; expected some that can be read and "
            "are not learned from. Add photos, or leave --test out."
        )
    from protail.data.tables import take

    return Examples(take(test.rows, kept), found.names[kept], [paths[i] for i in kept])


def _fit_and_test(
    data: TrainingRows, test: Examples, settings: dict[str, Any], voice: Voice, *, compare: bool
) -> Fitted:
    """Learn from all training photos and evaluate on the test photos."""
    from protail import PrototypeClassifier

    classifier = PrototypeClassifier(**settings)
    model = Model(data.path, classifier, None)
    evaluated_on = f"{counted(len(test.labels), 'test photo')}"
    voice.say(f"Plan: learn from {counted(len(data.labels), 'photo')}, evaluate on {evaluated_on}.")
    seconds = timed(lambda: classifier.fit(data.rows, data.labels))
    evaluation = evaluate_examples(model, test, classifier.class_counts_)
    fitted = Fitted(model, evaluation, evaluated_on, classifier, data.examples, test)
    return compared(fitted, seconds) if compare else fitted


def network_of(classifier: Any, embedder: Embedder, evaluated_on: str) -> Network:
    """Put a classifier behind the backbone that made its rows."""
    from protail import Network

    return Network(
        classifier,
        backbone=embedder.backbone,
        inputs=embedder.inputs,
        about=f"Made by protail fit; evaluated on {evaluated_on}.",
        device=embedder.device,
    )


def write_report_if_possible(
    fitted: Fitted, embedder: Embedder, folder: Path, voice: Voice
) -> Path | None:
    """Write a report of what was evaluated into the model's folder.

    Parameters
    ----------
    fitted : Fitted
        Without held-out photos no report is written.
    embedder : Embedder
        What made the features.
    folder : Path
        Where.
    voice : Voice
        Who tells why there is none.

    Returns
    -------
    Path or None
        The report; None where it cannot be made. One of an earlier model is removed.
    """
    place = folder / REPORT
    place.unlink(missing_ok=True)
    report: Any = import_module("protail.report")
    if fitted.held_out is None or fitted.train is None or not hasattr(report, "write_report"):
        return None
    # What was evaluated had not learned from the held-out photos; what was saved has.
    evaluated = network_of(fitted.head, embedder, fitted.evaluated_on)
    try:
        data = report.ReportData.from_network(
            evaluated,
            _as_examples(report, fitted.held_out),
            training=_as_examples(report, fitted.train),
            title=f"Report of {folder.name}",
            facts={"Evaluated on": fitted.evaluated_on},
            commands=[shlex.join(["protail", *sys.argv[1:]])],
        )
        report.write_report(data, place)
    except ImportError as error:
        voice.say(f"No report: {error}")
        return None
    return place


def _as_examples(report: Any, examples: Examples) -> Any:
    return report.Examples(labels=examples.labels, features=examples.rows, photos=examples.photos)
