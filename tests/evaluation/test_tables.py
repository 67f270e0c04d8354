import subprocess
import sys

from rich.console import Console

from protail.evaluation import Comparison, Evaluation, results_table

KNOWN = {"classes": ["[bold]", "<script>", "c"], "counts": [300, 200, 3]}
TRUTH = ["[bold]", "[bold]", "[bold]", "<script>", "c", "c"]
GUESS = ["[bold]", "[bold]", "c", "<script>", "c", "<script>"]


def shown(table):
    console = Console(width=120, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_one_row_in_per_cent():
    result = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN, confidence=[1.0] * 6)
    text = shown(result.table("mine"))
    assert [str(c.header) for c in result.table().columns] == [
        "in %",
        "all",
        "balanced",
        "many (2)",
        "few (1)",
        "macro F1",
        "calibration error",
    ]
    row = next(line for line in text.splitlines() if "mine" in line)
    cells = [cell.strip() for cell in row.strip("│┃|").split("│")]
    assert cells == ["mine", "66.7", "72.2", "83.3", "50.0", "65.6", "33.3"]
    assert shown(result) == shown(result.table())


def test_a_number_that_only_one_entry_has_leaves_a_dash():
    plain = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN)
    sure = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN, confidence=[1.0] * 6)
    text = shown(results_table({"plain": plain, "sure": sure}))
    assert next(line for line in text.splitlines() if "plain" in line).split()[-2] == "-"


def test_group_sizes_are_left_out_where_entries_differ():
    one = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN)
    two = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN, many=250)
    headers = [str(c.header) for c in results_table({"one": one, "two": two}).columns]
    assert headers == ["in %", "all", "balanced", "many", "medium", "few (1)", "macro F1"]


def test_classes_that_were_not_evaluated_are_not_counted():
    known = {"classes": [*KNOWN["classes"], "d"], "counts": [*KNOWN["counts"], 1]}
    result = Evaluation.from_predictions(TRUTH, GUESS, **known)
    headers = [str(c.header) for c in results_table({"": result}, without=["macro_f1"]).columns]
    assert headers == ["in %", "all", "balanced", "many (2)", "few (1 of 2)"]


def test_names_do_not_pass_through_markup():
    result = Evaluation.from_predictions(TRUTH, GUESS, **KNOWN)
    text = shown(results_table({"[red]x[/red]": result, "[/oops]": result}, title="[bold]t"))
    assert "[red]x[/red]" in text
    assert "[/oops]" in text
    assert "[bold]t" in text
    comparison = Comparison.from_predictions(TRUTH, GUESS, TRUTH, **KNOWN)
    text = shown(comparison.table("[red]x", "[/oops]"))
    assert "[red]x" in text
    assert "[/oops] is" in text


def test_a_comparison_says_it_in_plain_words():
    truth = ["[bold]", "c"] * 50
    comparison = Comparison.from_predictions(truth, ["[bold]"] * 100, truth, **KNOWN)
    lines = shown(comparison.table("softmax", "prototypes")).splitlines()
    few = next(line for line in lines if "few (1)" in line)
    assert "+100.0 to +100.0" in few
    assert "better" in few
    many = next(line for line in lines if "many (2)" in line)
    assert "+0.0 to +0.0" in many
    assert "no clear difference" in many
    assert any("95 % interval" in line for line in lines)
    assert not any("medium" in line for line in lines)
    assert shown(comparison) == shown(comparison.table())


def test_rich_is_imported_only_for_a_table():
    code = "import sys, protail.evaluation; assert 'rich.table' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
