"""``protail quickstart``: every variant on data that comes with the install."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from protail.cli._command import Debug, Json, Overwrite, Voice
from protail.cli._command import command as _command

if TYPE_CHECKING:
    from protail import Evaluation

Output = Annotated[Path, typer.Option("-o", "--output", help="Model folder to write.")]
Array = NDArray[Any]

_IMBALANCE = 50
_SOFTMAX = "softmax"
_DEFAULT = "prototypes + LA"
# LA is logit adjustment, T a temperature. An empty setting is what PrototypeClassifier() does.
_VARIANTS: dict[str, dict[str, Any]] = {
    "nearest class mean": {"epochs": 0},
    "prototypes": {"logit_adjustment": 0.0},
    "prototypes + channel T": {"logit_adjustment": 0.0, "temperature": "channel"},
    _DEFAULT: {},
    "prototypes + channel T + LA": {"temperature": "channel"},
    "prototypes + class T + LA": {"temperature": "class"},
    "prototypes + dense T + LA": {"temperature": "dense"},
    "prototypes, cosine + LA": {"distance": "cosine"},
    "prototypes, squared + LA": {"distance": "sqeuclidean"},
}


@_command
def quickstart(
    output: Output = Path("protail-quickstart"),
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what prototypes do for rare classes.

    Fits softmax, the nearest class mean and every prototype variant on handwritten digits made
    long-tailed, prints the table, and saves the default one with a picture. No download.
    """
    from protail import ClassProfile
    from protail.cli._fitting import Fitted, save_with_picture
    from protail.cli._sources import Model
    from protail.estimator._saving import check_replaceable
    from protail.evaluation import results_table

    voice = Voice(as_json)
    check_replaceable(output, overwrite=overwrite)
    begin = time.perf_counter()
    X, y, X_test, y_test = long_tailed_digits()
    counts = ClassProfile.from_labels(y).counts
    voice.say(f"scikit-learn's digits, made long-tailed: {counts.tolist()} rows of 0 to 9.")
    classifiers = {name: make() for name, make in _makers().items()}
    results: dict[str, Evaluation] = {}
    for name, classifier in classifiers.items():
        voice.say(f"  {name} ...")
        results[name] = _evaluate(classifier.fit(X, y), counts, X_test, y_test)
    default = Model(output, classifiers[_DEFAULT], None)
    chosen = Fitted(default, results[_DEFAULT], f"{len(y_test)} test digits")
    drawn = {name: results[name] for name in (_SOFTMAX, _DEFAULT)}
    picture = save_with_picture(
        chosen, output, voice, made_by="protail quickstart", overwrite=overwrite, drawn=drawn
    )
    voice.show(results_table(results, title="Test digits by the size of their class"))
    voice.say(f"Model: {output}" + ("" if picture is None else f"   picture: {picture}"))
    voice.say("Next, on your own features: protail fit features.npz -o model")
    voice.finish(
        {
            "results": {name: result.to_dict() for name, result in results.items()},
            "model": str(output),
            "picture": None if picture is None else str(picture),
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def long_tailed_digits() -> tuple[Array, Array, Array, Array]:
    """Make scikit-learn's digits long-tailed: each digit is rarer than the one before.

    Returns
    -------
    X, y : ndarray
        Training images and digits, 104 zeros down to 2 nines.
    X_test, y_test : ndarray
        Test images, about as many of each digit.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    rng = np.random.default_rng(0)
    largest = np.bincount(y).min()
    kept = np.concatenate(
        [
            rng.permutation(np.flatnonzero(y == digit))[
                : round(largest * _IMBALANCE ** (-digit / 9))
            ]
            for digit in range(10)
        ]
    )
    return X[kept], y[kept], X_test, y_test


def _makers() -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    from protail import PrototypeClassifier

    makers: dict[str, Any] = {_SOFTMAX: lambda: LogisticRegression(max_iter=1000)}
    for name, settings in _VARIANTS.items():
        makers[name] = lambda settings=settings: PrototypeClassifier(random_state=0, **settings)
    return makers


def _evaluate(classifier: Any, counts: Array, X: Array, y: Array) -> Evaluation:
    from protail import Evaluation

    probabilities = classifier.predict_proba(X)
    return Evaluation.from_predictions(
        y,
        classifier.predict(X),
        classes=classifier.classes_,
        counts=counts,
        confidence=probabilities.max(1),
    )
