"""Naive evaluation: one row, one class, one pair at a time, in float64."""

import random
from fractions import Fraction

from hypothesis import strategies as st

GROUPS = ("many", "medium", "few")


def group_of(count, many, few):
    if count >= many:
        return "many"
    return "few" if count < few else "medium"


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def accuracy_by_class(rows, classes):
    """Map every class that has rows (truth, guess) to its accuracy."""
    found = {}
    for label in classes:
        own = [truth == guess for truth, guess in rows if truth == label]
        if own:
            found[label] = mean(own)
    return found


def accuracies(truth, guesses, classes, counts, many, few):
    """Give all, balanced_accuracy, many, medium and few over the rows of known classes."""
    rows = [(t, g) for t, g in zip(truth, guesses, strict=True) if t in classes]
    by_class = accuracy_by_class(rows, classes)
    groups = {c: group_of(n, many, few) for c, n in zip(classes, counts, strict=True)}
    return {
        "all": mean(t == g for t, g in rows),
        "balanced_accuracy": mean(by_class.values()),
        **{name: mean(a for c, a in by_class.items() if groups[c] == name) for name in GROUPS},
    }


def macro_f1(truth, guesses, classes):
    rows = [(t, g) for t, g in zip(truth, guesses, strict=True) if t in classes]
    values = []
    for label in classes:
        hits = sum(t == g == label for t, g in rows)
        misses = sum((t == label) != (g == label) for t, g in rows)
        if hits + misses:
            values.append(2 * hits / (2 * hits + misses))
    return mean(values)


def calibration_error(confidence, right, n_bins):
    total = 0.0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        inside = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low <= c < high or (b == n_bins - 1 and c == 1)
        ]
        if inside:
            gap = abs(mean(r for _, r in inside) - mean(c for c, _ in inside))
            total += gap * len(inside) / len(right)
    return total


def auroc(known, unseen):
    wins = [Fraction((u > k) * 2 + (u == k), 2) for u in unseen for k in known]
    return float(sum(wins) / len(wins))


def confusion(truth, guesses, classes, counts, many, few):
    """Share of each group's rows that are wrong and go to each group; None without rows."""
    groups = {c: group_of(n, many, few) for c, n in zip(classes, counts, strict=True)}
    rows = [(t, g) for t, g in zip(truth, guesses, strict=True) if t in classes]
    table = []
    for source in GROUPS:
        own = [(t, g) for t, g in rows if groups[t] == source]
        table.append([mean(t != g and groups[g] == target for t, g in own) for target in GROUPS])
    return table


def bootstrap(truth, first, second, classes, counts, many, few, n_resamples, seed):
    """Draw rows with replacement and compare the two models on each resample."""
    rng = random.Random(seed)
    rows = [row for row in zip(truth, first, second, strict=True) if row[0] in classes]
    samples = {name: [] for name in ("all", "balanced_accuracy", *GROUPS)}
    for _ in range(n_resamples):
        t, a, b = zip(*rng.choices(rows, k=len(rows)), strict=True)
        one = accuracies(t, a, classes, counts, many, few)
        two = accuracies(t, b, classes, counts, many, few)
        for name, values in samples.items():
            if one[name] is not None:
                values.append(two[name] - one[name])
    return samples


@st.composite
def problems(draw):
    """Draw test rows of a few classes, some without training rows, some without test rows."""
    classes = draw(
        st.sampled_from([[0, 1, 2, 3, 4], [7, -2, 30], ["b", "a", "[bold]", "<script>"], [True]])
    )
    counts = draw(
        st.lists(st.integers(0, 12), min_size=len(classes), max_size=len(classes)).filter(any)
    )
    few = draw(st.integers(0, 6))
    strange = "unseen" if isinstance(classes[0], str) else 99
    known = st.sampled_from(classes)
    row = st.tuples(st.sampled_from([*classes, strange]), known, known)
    rows = [(draw(known), draw(known), draw(known)), *draw(st.lists(row, max_size=30))]
    truth, first, second = map(list, zip(*rows, strict=True))
    return {
        "truth": truth,
        "first": first,
        "second": second,
        "known": {
            "classes": classes,
            "counts": counts,
            "many": few + draw(st.integers(0, 6)),
            "few": few,
        },
    }
