"""``protail quickstart``: the paper's tables on features that come with the install."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail.cli.command import Voice, command, make_app
from protail.cli.options import Overwrite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table as RichTable

    from protail import Evaluation
    from protail.data.images import FeatureData
    from protail_paper.tables import Row, Table

    Evaluated = Mapping[str, Mapping[str, Evaluation]]

Output = Annotated[Path, typer.Option("-o", "--output", help="Model folder to write.")]

_SOFTMAX, _PROTOTYPES = "softmax", "prototypes"
_NOTES = (
    "Logits are averaged over an image and its mirror image, as the published code does. The "
    "paper's numbers are of a larger network (its code has a ResNet-34): compare shapes, not "
    "levels. In brackets: what the paper's many, medium and few give, where its All differs.",
    "Softmax, refitted: the linear layer of stage 1 was not kept; this one is learned again on "
    "the training features, with the loss, learning rate and weight decay of stage 1.",
)


@command
def quickstart(
    voice: Voice, output: Output = Path("protail-quickstart"), overwrite: Overwrite = False
) -> None:
    """Show what prototypes do for rare classes.

    Learns every classifier of the paper's Tables 1, 2 and 8 on features of CIFAR-100-LT that come
    with protail, prints them beside the paper's numbers, and saves a model with a picture. No
    download, no GPU.
    """
    from protail.data.images import BUNDLED_FEATURES, FeatureData, load_dataset
    from protail.estimator import check_replaceable
    from protail_paper.bundled import BUNDLED_TABLES, bundled_experiment, evaluate_bundled

    check_replaceable(output, overwrite=overwrite)
    begin = time.perf_counter()
    data = load_dataset(BUNDLED_FEATURES)
    assert isinstance(data, FeatureData)
    _introduce(data, voice)
    evaluated = evaluate_bundled(data)
    for table in BUNDLED_TABLES:
        voice.show(_shown(table, evaluated))
    for note in _NOTES:
        voice.say(note)
    first = BUNDLED_TABLES[0]
    softmax = evaluated[bundled_experiment(first, first.rows[0]).key]["plain"]
    model, picture = _save_model(data, softmax, output, voice, overwrite=overwrite)
    voice.say(f"Model: {output}" + ("" if picture is None else f"   picture: {picture}"))
    voice.say("Next, on your own features: protail fit features.npz -o model")
    voice.finish(
        {
            "tables": {table.name: _record(table, evaluated) for table in BUNDLED_TABLES},
            "classifier": _scores(model),
            "model": str(output),
            "picture": None if picture is None else str(picture),
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def _introduce(data: FeatureData, voice: Voice) -> None:
    profile = data.train.profile
    counts = profile.counts
    sizes = ", ".join(f"{name} {len(codes)}" for name, codes in profile.groups().items())
    voice.say(
        f"CIFAR-100-LT, {counts.max()} to {counts.min()} images a class ({sizes}), as features of "
        f"a ResNet-32. Learning every classifier of Tables 1, 2 and 8 ..."
    )


def _shown(table: Table, evaluated: Evaluated) -> RichTable:
    from rich.table import Table as RichTable

    from protail_paper.bundled import bundled_experiment
    from protail_paper.paper import GROUPS

    shown = RichTable("in %", title=f"Table {table.paper}: {table.title}")
    for header in (*GROUPS, "paper: all"):
        shown.add_column(header, justify="right")
    for row in table.rows:
        scores = _scores(evaluated[bundled_experiment(table, row).key]["mirrored"])
        ours = [f"{100 * scores[group]:.1f}" for group in GROUPS]
        shown.add_row(_label(row), *ours, _paper_all(table, row))
    return shown


def _label(row: Row) -> str:
    return row.label if row.classifier is not None else f"{row.label}, refitted"


def _paper_all(table: Table, row: Row) -> str:
    from protail_paper.paper import shown_all

    if table.paper is None or row.paper is None:
        return ""
    return shown_all(table.paper, row.paper, digits=1)


def _paper_row(table: Table, row: Row) -> dict[str, float | None] | None:
    from protail_paper.paper import mean_of_groups, paper_table

    if table.paper is None or row.paper is None:
        return None
    true = mean_of_groups(table.paper, row.paper)
    return {**paper_table(table.paper).row(row.paper), "mean_of_groups": round(true, 2)}


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    from protail_paper.paper import GROUPS

    return {group: getattr(evaluation, group) for group in GROUPS}


def _record(table: Table, evaluated: Evaluated) -> list[dict[str, Any]]:
    from protail_paper.bundled import bundled_experiment

    records = []
    for row in table.rows:
        experiment = bundled_experiment(table, row)
        views = {view: _scores(one) for view, one in evaluated[experiment.key].items()}
        names = {"row": _label(row), "recipe": experiment.recipe_name}
        records.append({**names, **views, "paper": _paper_row(table, row)})
    return records


def _save_model(
    data: FeatureData, softmax: Evaluation, output: Path, voice: Voice, *, overwrite: bool
) -> tuple[Evaluation, Path | None]:
    """Fit the estimator on the training features, evaluate and save it."""
    import numpy as np

    from protail import Evaluation, PrototypeClassifier
    from protail.cli.fitting import Fitted, save_with_picture
    from protail.cli.sources import Model

    names = np.array(data.classes)
    # The network that made the features has learned from these very images.
    classifier = PrototypeClassifier(memorised=True, random_state=0)
    classifier.fit(data.train.rows, names[data.train.labels])
    probabilities = classifier.predict_proba(data.test.rows)
    evaluation = Evaluation.from_predictions(
        names[data.test.labels],
        classifier.classes_[probabilities.argmax(1)],
        classes=names,
        counts=data.train.profile.counts,
        confidence=probabilities.max(1),
    )
    evaluated_on = f"{len(data.test):,} test images"
    picture = save_with_picture(
        Fitted(Model(output, classifier, None), evaluation, evaluated_on),
        output,
        voice,
        made_by="protail quickstart",
        overwrite=overwrite,
        drawn={_SOFTMAX: softmax, _PROTOTYPES: evaluation},
    )
    said = ", ".join(f"{group} {100 * score:.1f}" for group, score in _scores(evaluation).items())
    voice.say(
        f"PrototypeClassifier(memorised=True) on the {len(data.train):,} training features "
        f"alone, nothing augmented or flipped: {said}."
    )
    return evaluation, picture


app = make_app(quickstart, "protail quickstart -o first-model")
