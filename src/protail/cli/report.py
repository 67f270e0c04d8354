"""``protail report``: what a model or a run is like, as one HTML file to show."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from protail._messages import counted
from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app

if TYPE_CHECKING:
    from protail.network import Network
    from protail.report import Examples, ReportData

ModelOrRun = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Folder of a model, network or run.", show_default=False),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DATA",
        help="Labelled examples it has not learned from: feature files; for photos, folders of "
        "class folders. A run can do without.",
        show_default=False,
    ),
]
Train = Annotated[
    list[Path] | None,
    typer.Option(
        "--train", metavar="DATA", help="What it has learned from: typical photos, duplicates."
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="The file to write.")]
Csv = Annotated[
    Path | None, typer.Option("--csv", metavar="DIR", help="Write every table there too.")
]
Title = Annotated[str | None, typer.Option(metavar="TEXT", help="What stands on top.")]
Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


@command
def report(
    voice: Voice,
    model: ModelOrRun,
    files: Files = None,
    output: Output = Path("report.html"),
    csv: Csv = None,
    train: Train = None,
    title: Title = None,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    labels: opt.LabelsKey = None,
    labels_file: opt.LabelsFiles = None,
    dataset: opt.RunDataset = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    device: opt.Device = "auto",
    open_it: Open = False,
    overwrite: opt.Overwrite = False,
) -> None:
    """Write a report of a model or a run: one HTML file that opens offline.

    It shows accuracy by class size, look-alike classes, calibration, a map of the prototypes,
    examples that may be labelled wrongly, and what was run. What DATA would be needed for is left
    out where there is none.
    """
    sources.check_there(model, expected="a model's folder")
    sources.check_there(*files or (), *train or ())
    from protail._files import check_free
    from protail.report import check_installed

    check_installed()

    check_free(output, overwrite=overwrite)
    if csv is not None:
        check_free(csv, overwrite=overwrite, folder=True)
    if (model / "run.json").is_file() and not files:
        given: dict[str, Any] = {
            "--features": features,
            "--columns": columns,
            "--exclude": exclude,
            "--labels": labels,
            "--labels-file": labels_file,
            "--train": train,
            "--title": title,
        }
        opt.refuse(given, f"{model} is a run, whose data set is known")
        data = _of_run(model, dataset, data_root, lists, device, output)
    else:
        given = {"--dataset": dataset, "--data-root": data_root, "--lists": lists}
        opt.refuse(given, "FILES are given" if files else f"{model} is no run (it has no run.json)")
        loaded = sources.Model.load(model, device)
        options = opt.FeatureOptions(features, labels, columns, exclude)
        data = _of_model(voice, loaded, files, train, options, labels_file, title, output)
    _write(voice, data, output, csv, overwrite=overwrite)
    if open_it:
        webbrowser.open(output.resolve().as_uri())


def _of_run(
    folder: Path,
    dataset: str | None,
    data_root: Path | None,
    lists: Path | None,
    device: str,
    output: Path,
) -> ReportData:
    from protail.report import ReportData

    words = ["protail", "report", str(folder)]
    for flag, value in (("--dataset", dataset), ("--data-root", data_root), ("--lists", lists)):
        words += [] if value is None else [flag, str(value)]
    return ReportData.from_run(
        folder,
        dataset=dataset,
        data_root=data_root,
        lists=lists,
        device=device,
        commands=[shlex.join([*words, "-o", str(output)])],
    )


def _of_model(
    voice: Voice,
    model: sources.Model,
    files: Sequence[Path] | None,
    train: Sequence[Path] | None,
    options: opt.FeatureOptions,
    labels_files: Sequence[Path] | None,
    title: str | None,
    output: Path,
) -> ReportData:
    from protail.report import ReportData

    model.counts  # noqa: B018 - said before anything is read
    held_out, notes = None, list[str]()
    if files:
        held_out, notes = _examples(voice, model, files, options, labels_files)
    training = None
    if train:
        training, _ = _examples(voice, model, train, options, None)
    words = ["protail", "report", model.folder, *(files or ())]
    words += [word for each in train or () for word in ("--train", each)]
    return ReportData.from_network(
        _network(model),
        held_out,
        training=training,
        title=title or f"Report of {model.folder.resolve().name}",
        facts={"Model": str(model.folder), **({"Made by": model.about} if model.about else {})},
        commands=[shlex.join(map(str, [*words, "-o", output]))],
        notes=notes,
    )


def _network(model: sources.Model) -> Network:
    from protail.network import Network

    if model.network is not None:
        return model.network
    head: Any = model.head
    return head if isinstance(head, Network) else Network(head)


def _examples(
    voice: Voice,
    model: sources.Model,
    files: Sequence[Path],
    options: opt.FeatureOptions,
    labels_files: Sequence[Path] | None,
) -> tuple[Examples, list[str]]:
    """Read labelled examples; those that are not finite or not readable are left out.

    Features of photos are taken from where ``fit`` has kept them, and kept there.
    """
    from protail.cli.photos import Embedder, embed, kept_features
    from protail.cli.progress import row_progress
    from protail.report import Examples

    opened = sources.open_sources(
        model, files, options, labels_files=labels_files, need_labels=True
    )
    labels = [sources.labels_for(model.classes, source.labels(), source.path) for source in opened]
    photos = [file for source in opened for file in getattr(source, "files", ())]
    if model.network is not None:
        embedder = Embedder.of(model.network)
        (embedded,) = embed(voice, embedder, [photos], [0], kept_features(model.folder))
        opened[0].unreadable = [str(photos[i]) for i in embedded.problems]
        rows = [embedded.rows]
    else:
        with row_progress(voice, sum(source.n_rows for source in opened)) as progress:
            rows = []
            for block in chain.from_iterable(source.blocks() for source in opened):
                rows.append(block)
                progress(len(block))
    found = Examples(
        labels=np.concatenate(labels), features=np.concatenate(rows), photos=photos or None
    )
    assert found.features is not None
    finite = np.isfinite(found.features).all(axis=1)
    sources.leave_out_non_finite(len(found), int(finite.sum()), voice, opened)
    if finite.all():
        return found, []
    what = "photo cannot be read" if photos else "row is not finite"
    many = "photos cannot be read" if photos else "rows are not finite"
    note = f"{counted(int((~finite).sum()), what, many)} and left out."
    return found.some(np.flatnonzero(finite)), [note]


def _write(
    voice: Voice, data: ReportData, output: Path, csv: Path | None, *, overwrite: bool
) -> None:
    from protail.report import write_report

    for note in data.notes:
        voice.say(note)
    write_report(data, output, csv=csv, overwrite=overwrite)
    voice.say(f"The report is in {output}" + (f", its tables in {csv}." if csv else "."))
    scores = {} if data.evaluation is None else {"evaluation": data.evaluation.to_dict()}
    tables = [] if csv is None else sorted(str(file) for file in csv.glob("*.csv"))
    voice.finish({"report": str(output), "tables": tables, **scores})


app = make_app(report, "protail report model test.npz --open")
