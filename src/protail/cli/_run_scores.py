"""The scores of runs, as tables: each stage as it is, and averaged with mirror images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table

    from protail.cli.command import Voice
    from protail.evaluation import Evaluation

Record = Mapping[str, Mapping[str, Any]]

COST = "cost"
_MODES = {"plain": "{}", "mirrored": "{} (mirrored)"}
_SCORES = ("all", "many", "medium", "few")


def chosen(record: Record, mirrored: bool | None) -> dict[str, dict[str, Any]]:
    """Keep of a run's scores those that were asked for.

    Parameters
    ----------
    record : mapping
        What ``evaluation.json`` holds: scores by stage and mode.
    mirrored : bool or None
        Averaged with mirror images, or not; None keeps both.

    Returns
    -------
    dict
        By stage and mode.

    Examples
    --------
    >>> from protail.cli._run_scores import chosen
    >>> chosen({"classifier": {"plain": {"all": 0.5}, "mirrored": {"all": 0.6}}}, True)
    {'classifier': {'mirrored': {'all': 0.6}}}
    """
    modes = list(_MODES) if mirrored is None else ["mirrored" if mirrored else "plain"]
    if mirrored and not all("mirrored" in scores for scores in record.values()):
        raise ValueError(
            "--mirrored was given, but the data has no features of mirrored test images; expected "
            "them as x_test_mirror. Leave it out."
        )
    return {
        stage: {mode: scores[mode] for mode in (*modes, COST) if mode in scores}
        for stage, scores in record.items()
    }


def show_scores(voice: Voice, runs: Mapping[str, Record]) -> None:
    """Show a table of all runs and, of several, one of means and standard deviations.

    Parameters
    ----------
    voice : Voice
        Who shows it.
    runs : mapping of str to mapping
        Scores by stage and mode, by the name of the run.
    """
    from protail.evaluation import results_table

    rows = {name: _evaluations(record) for name, record in runs.items()}
    lonely = len(rows) == 1
    labelled = {
        label if lonely else f"{name}: {label}": evaluation
        for name, evaluations in rows.items()
        for label, evaluation in evaluations.items()
    }
    voice.show(results_table(labelled))
    for words in dict.fromkeys(_cost_words(record) for record in runs.values()):
        if words:
            voice.show(words)
    if not lonely:
        voice.show(f"mean ± standard deviation of {len(rows)} runs:")
        voice.show(_summary_table(summary(runs.values())))


def summary(records: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Give mean and standard deviation of each score over several runs.

    Parameters
    ----------
    records : iterable of mapping
        Scores by stage and mode, one a run; at least two.

    Returns
    -------
    dict
        By row of the table and score, ``mean`` and ``std`` (of a sample).

    Examples
    --------
    >>> from protail.cli._run_scores import summary
    >>> summary([{"classifier": {"plain": {"all": share}}} for share in (0.25, 0.75)])
    {'classifier': {'all': {'mean': 0.5, 'std': 0.3535533905932738}}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for label, scores in _labelled(record).items():
            for name in _SCORES:
                if scores.get(name) is not None:
                    found.setdefault(label, {}).setdefault(name, []).append(scores[name])
    return {
        label: {
            name: {"mean": float(np.mean(each)), "std": float(np.std(each, ddof=1))}
            for name, each in scores.items()
        }
        for label, scores in found.items()
    }


def _labelled(record: Record) -> dict[str, Any]:
    return {
        _MODES[mode].format(stage): scores
        for stage, modes in record.items()
        for mode, scores in modes.items()
        if mode != COST
    }


def _cost_words(record: Record) -> str:
    """Say what an image costs, once where all stages cost the same."""
    costs = {
        stage: f"{modes[COST]['gflops']:.3g} GFLOPs" + _experts_words(modes[COST])
        for stage, modes in record.items()
        if COST in modes
    }
    if not costs:
        return ""
    each = ", ".join(f"{stage} {cost}" for stage, cost in costs.items())
    one = next(iter(costs.values()))
    return f"An image costs {one if len(set(costs.values())) == 1 else each}."


def _experts_words(cost: Mapping[str, float]) -> str:
    used = cost.get("experts_used")
    return "" if used is None else f" ({used:.2f} experts, the mean over the test images)"


def _evaluations(record: Record) -> dict[str, Evaluation]:
    from protail.evaluation import Evaluation

    return {label: Evaluation.from_dict(scores) for label, scores in _labelled(record).items()}


def _summary_table(rows: dict[str, dict[str, dict[str, float]]]) -> Table:
    from rich.table import Table

    shown = [name for name in _SCORES if any(name in scores for scores in rows.values())]
    table = Table("", *shown, caption="per cent")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, scores in rows.items():
        cells = [f"{100 * scores[n]['mean']:.1f} ± {100 * scores[n]['std']:.1f}" for n in shown]
        table.add_row(label, *cells)
    return table
