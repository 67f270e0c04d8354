"""First steps: a classifier that is fair to rare classes, on data that comes with scikit-learn.

The digits are made long-tailed: about a hundred zeros, two nines. Everything the classifier
needs to choose, it chooses from the training rows.
"""

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from protail import ClassProfile, PrototypeClassifier

IMBALANCE = 50


def long_tailed(y, rng):
    """Keep fewer rows of each digit than of the one before, down to one in IMBALANCE."""
    largest = np.bincount(y).min()
    keep = [
        rng.permutation(np.flatnonzero(y == digit))[: round(largest * IMBALANCE ** (-digit / 9))]
        for digit in range(10)
    ]
    return np.concatenate(keep)


def accuracies(truth, predicted, groups):
    """Mean accuracy of the classes of each group, in per cent."""
    by_class = np.array([np.mean(predicted[truth == c] == c) for c in np.unique(truth)])
    return [100 * by_class.mean()] + [100 * by_class[group].mean() for group in groups.values()]


def main():
    console = Console()
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.4, stratify=y, random_state=0
    )
    kept = long_tailed(y_train, np.random.default_rng(0))
    X_train, y_train = X_train[kept], y_train[kept]
    profile = ClassProfile.from_labels(y_train)
    groups = {name: index for name, index in profile.groups().items() if len(index)}
    console.print(f"{profile}: rows of 0 to 9: {profile.counts.tolist()}")

    classifiers = {
        "logistic regression": LogisticRegression(max_iter=1000),
        "logistic regression, balanced": LogisticRegression(max_iter=1000, class_weight="balanced"),
        "nearest class mean": PrototypeClassifier(epochs=0),
        "prototypes": PrototypeClassifier(random_state=0),
    }
    table = Table("accuracy in %", "all", *groups, title="Long-tailed digits")
    for name, classifier in classifiers.items():
        predicted = classifier.fit(X_train, y_train).predict(X_test)
        table.add_row(name, *(f"{a:.1f}" for a in accuracies(y_test, predicted, groups)))
    console.print(table)

    prototypes = classifiers["prototypes"]
    chosen = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in prototypes.choices_.items()
    }
    console.print("Chosen from the training rows:", chosen)
    labels, probabilities = prototypes.top_k(X_test[:1], 3)
    guesses = [f"{d} ({p:.0%})" for d, p in zip(labels[0], probabilities[0], strict=True)]
    console.print(f"The first test image is a {y_test[0]}. Best guesses: {', '.join(guesses)}")


if __name__ == "__main__":
    main()
