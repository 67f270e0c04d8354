"""What the paper leaves open: one factor at a time, everything else as in the recipe."""

from __future__ import annotations

from protail.bench.rows import AUGMENT_OF_PROTOTYPES, PUBLISHED_DECAY, Question, Row


def _curve(classifier: str, key: str, values: tuple[float, ...], label: str) -> tuple[Row, ...]:
    return tuple(Row(f"{label} {value:g}", classifier, {key: value}) for value in values)


_STEPS = (
    ("NCM", "ncm-augmented"),
    ("PC", "pc"),
    ("PC + LA", "pc-la"),
    ("PC + CDT + LA", "pc-cdt-la"),
)
_STRONGER = {"representation.augment": AUGMENT_OF_PROTOTYPES}


def _temperatures(scheme: str, recipe: str) -> tuple[Row, ...]:
    rows = []
    for form in ("exp", "square"):
        for rate in (0.005, 0.05, 0.5):
            rows.append(
                Row(
                    f"{scheme} T, {form}, rate {rate:g}",
                    recipe,
                    {"classifier.temperature_form": form, "classifier.temperature_lr": rate},
                )
            )
    return tuple(rows)


def _lengths() -> tuple[Row, ...]:
    """Train Weight Balancing, at the rate and decay of its authors, for other numbers of epochs."""
    return tuple(
        Row(
            f"{images}, {epochs} epochs{limited}",
            "wd-max",
            {**PUBLISHED_DECAY, "classifier.epochs": epochs, "classifier.max_norm_every": every},
            selection=selection,
            backbone="ResNet-34",
        )
        for images, selection in (("one set", "shuffled"), ("two sets", "author"))
        for every, limited in (("step", ""), ("epoch", ", limited once an epoch"))
        for epochs in (2, 3, 4, 5, 6, 8, 10)
    )


QUESTIONS = (
    Question(
        "centroids",
        "Do prototypes start better from clean or from augmented images?",
        (
            Row("PC, clean", "pc", {"classifier.centroids": "clean"}),
            Row("PC, augmented", "pc"),
            Row("PC + LA, clean", "pc-la", {"classifier.centroids": "clean"}),
            Row("PC + LA, augmented", "pc-la"),
        ),
    ),
    Question(
        "rate",
        "How does the prototypes' rate matter? (Figure 4a)",
        _curve("pc-cdt-la", "classifier.lr", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), "rate"),
        axis="classifier.lr",
    ),
    Question(
        "epochs",
        "Do more epochs hurt? (Figure 4b)",
        _curve("pc-cdt-la", "classifier.epochs", (1, 2, 5, 10), "epochs"),
        axis="classifier.epochs",
    ),
    Question(
        "tau",
        "How does the weight of the logit adjustment matter? (Figure 4c)",
        _curve("pc-cdt-la", "classifier.tau", (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5), "tau"),
        axis="classifier.tau",
    ),
    Question(
        "batch-norm",
        "What does batch norm in train mode, from the second epoch on, do to more epochs?",
        tuple(
            Row(
                f"{mode}, {epochs} epochs",
                "pc-la",
                {"classifier.batch_norm": mode, "classifier.epochs": epochs},
            )
            for mode in ("eval", "published")
            for epochs in (2, 5)
        ),
    ),
    Question(
        "radius",
        "Do features of one length help, and which length?",
        _curve("pc-la", "classifier.normalize", (2.0, 4.0, 8.0, 12.0, 16.0, 24.0), "radius"),
    ),
    Question(
        "radius-tau",
        "Is the best tau another one on features of one length?",
        tuple(
            Row(
                f"radius {radius:g}, tau {tau:g}",
                "pc-la",
                {"classifier.normalize": radius, "classifier.tau": tau},
            )
            for radius in (8.0, 16.0)
            for tau in (0.5, 0.75, 1.0)
        ),
    ),
    Question(
        "scale",
        "Do sharper or softer logits help? (a temperature that stays as it is)",
        tuple(
            Row(
                f"logits times {factor:g}",
                "pc-cdt-la",
                {
                    "classifier.initial_temperature": 1 / factor**2,
                    "classifier.temperature_lr": 0.0,
                },
            )
            for factor in (0.25, 0.5, 2.0, 4.0)
        ),
    ),
    Question(
        "cosine",
        "Is cosine held back by the rate it is given?",
        _curve("pc-cosine-la", "classifier.lr", (1.0, 4.0, 16.0, 64.0), "cosine, rate"),
    ),
    Question(
        "squared",
        "At which rate does squared Euclidean collapse?",
        _curve(
            "pc-sqeuclidean-cdt-la", "classifier.lr", (1.0, 4.0, 8.0, 16.0, 64.0), "squared, rate"
        ),
    ),
    Question(
        "temperatures",
        "What do temperatures need to pay?",
        (
            *_temperatures("channel", "pc-cdt"),
            *_temperatures("class", "pc-class-t"),
            *_temperatures("dense", "pc-dense-t"),
            *(
                Row(
                    f"channel T from {start:g}",
                    "pc-cdt",
                    {"classifier.initial_temperature": start},
                )
                for start in (0.25, 4.0)
            ),
        ),
    ),
    Question(
        "subsets",
        "What do the published code's two subsets change?",
        (
            Row("Softmax", None, selection="author"),
            *(Row(label, recipe, selection="author") for label, recipe in _STEPS),
            Row("the published code's settings", "author", selection="author"),
            Row("cRT", "crt", selection="author"),
            Row("WD + Max", "wd-max", selection="author"),
        ),
    ),
    Question(
        "lengths",
        "Does WD + Max, at the rate and decay of its authors, do better in fewer epochs? (Each "
        "with a whole schedule; they take, of one run, the epoch that is best on the test images.)",
        _lengths(),
    ),
    Question(
        "augment",
        "What does more augment in stage 1 change? (AutoAugment and Cutout)",
        (
            Row("Softmax", None, _STRONGER),
            *(Row(label, recipe, _STRONGER) for label, recipe in _STEPS),
        ),
    ),
)
