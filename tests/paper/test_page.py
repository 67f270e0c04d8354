"""The page of results: what stands in which order, and what lies beside the results."""

import json

from protail_paper.page import results_page
from protail_paper.results import Results
from protail_paper.wanted import Experiment, Subset

SCORES = {"all": 0.5, "many": 0.7, "medium": 0.4, "few": 0.1}
BOTH = {"plain": SCORES, "mirrored": SCORES}
ABOUT = {
    "started": "2026-01-02T03:04:05Z",
    "protail": "0.1.0",
    "commit": "0123456789abcdef",
    "torch": "2.11.0",
    "python": "3.12.3",
    "gpus": ["Some GPU"],
    "cpu": "Some CPU",
}


def test_the_larger_backbone_comes_first():
    page = results_page(Results("nowhere"))
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles[:2] == ["## ResNet-34", "## ResNet-32"]
    tables = [line for line in page.splitlines() if line.startswith("### ")]
    assert len(tables) == 8
    assert ["ResNet-34" in line for line in tables] == [True] * 4 + [False] * 4


def test_no_table_is_wide():
    page = results_page(Results("nowhere"))
    assert max(line.count("|") for line in page.splitlines()) == 7


def test_the_paper_stands_beneath(tmp_path):
    results = Results(tmp_path / "cells")
    results.add(Experiment("wd", Subset("cifar100-lt", 100), 0), {"scores": BOTH})
    lines = results_page(results).splitlines()
    ours = lines.index("| Softmax | 70.00 | 40.00 | 10.00 | 50.00 (1 of 3 seeds) |  |")
    assert lines[ours + 1] == "| *paper* | 76.12 | 46.13 | 11.34 | 46.12 [46.19] | +3.81 |"


def test_it_says_what_ran_the_results(tmp_path):
    results = Results(tmp_path / "cells")
    for seed, about in enumerate([ABOUT, ABOUT, ABOUT | {"gpus": []}, None]):
        outcome = {"scores": BOTH} | ({"about": about} if about else {})
        results.add(Experiment("wd", Subset("cifar100-lt", 100), seed), outcome)
    page = results_page(results)
    assert "**4 results.** Hardware: Some GPU × 2, Some CPU × 1." in page
    assert "Code: protail 0.1.0 (0123456)." in page
    assert "Days: 2026-01-02." in page


def test_results_of_changed_code_are_named(tmp_path):
    results = Results(tmp_path / "cells")
    for seed, commit in enumerate(["0123456789abcdef", "0123456789abcdef-dirty"]):
        outcome = {"scores": BOTH, "about": ABOUT | {"commit": commit}}
        results.add(Experiment("wd", Subset("cifar100-lt", 100), seed), outcome)
    page = results_page(results)
    assert "protail 0.1.0 (0123456-dirty) × 1" in page
    assert "1 result was run by code with changes that had not been committed (-dirty)." in page


def test_a_table_of_several_trainings_says_so(tmp_path):
    def page_of(*backbones):
        folder = tmp_path / "-".join(map(str, backbones))
        results = Results(folder / "cells")
        for recipe, backbone in zip(("wd", "pc", "pc-la"), backbones, strict=True):
            known = {} if backbone is None else {"backbone": backbone}
            results.add(
                Experiment(recipe, Subset("cifar100-lt", 100), 0), {"scores": BOTH, **known}
            )
        # Another seed is another training.
        results.add(
            Experiment("wd", Subset("cifar100-lt", 100), 1), {"scores": BOTH, "backbone": "other"}
        )
        return results_page(results)

    assert "**Mixed:**" not in page_of("one", "one", "one")
    assert "**Mixed:**" not in page_of("one", None, "one")
    mixed = page_of("one", "one", "two").split("\n### ")
    # Table 1 and the questions have both prototypes; Tables 2 and 8 have neither or one of them.
    assert ["**Mixed:**" in part for part in mixed[1:5]] == [True, False, False, True]
    # Of the questions, only the first compares PC with PC + LA.
    assert "".join(mixed).count("**Mixed:**") == 2


def test_seeds_that_are_far_apart_are_shown(tmp_path):
    results = Results(tmp_path / "cells")
    for seed, fraction in enumerate([0.5, 0.6, 0.1]):
        scores = {"plain": SCORES | {"few": fraction}, "mirrored": SCORES}
        results.add(Experiment("wd", Subset("cifar100-lt", 100), seed), {"scores": scores})
    assert "| 40.00 ± 26.46 (50.00, 60.00, 10.00) | 50.00 ± 0.00 |" in results_page(results)


def test_a_group_that_no_class_is_in_is_no_run_that_is_missing(tmp_path):
    results = Results(tmp_path / "cells")
    scores = {"plain": SCORES | {"few": None}, "mirrored": SCORES | {"few": None}}
    results.add(Experiment("ce-resnet32", Subset("cifar100-lt", 10), 0), {"scores": scores})
    page = results_page(results)
    assert "| CE | 70.00 | 40.00 | - | 50.00 (1 of 3 seeds) |" in page
    assert "| CE | ResNet-32 | not run | not run | 50.00 (1 of 3 seeds) |" in page


def test_the_paper_has_no_dash_where_nothing_is_wanted(tmp_path):
    results = Results(tmp_path / "cells")
    results.add(Experiment("ce-resnet32", Subset("cifar100-lt", 100), 0), {"scores": BOTH})
    results.add(Experiment("wd", Subset("cifar100-lt", 100, "author"), 0), {"scores": BOTH})
    lines = results_page(results).splitlines()
    row = next(n for n, text in enumerate(lines) if text.startswith("| WD, two sets of images |"))
    assert lines[row + 1] == "| *paper* |  | 46.08 | 52.71 |  |  |  |"


def test_figures_and_searches_are_linked_where_they_are(tmp_path):
    beside = [("figures", "figure2-resnet34.png"), ("figures", "cost.png"), ("search", "wd.png")]
    for folder, name in beside:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch()
    search = {
        "over": {"representation.weight_decay": "0.001:0.01:log", "classifier.head": "choice:a,b"},
        "trials": [{}, {}],
        "score": "balanced",
        "held_out": 0.2,
        "best": {
            "params": {"representation.weight_decay": 0.00512345, "classifier.head": "a"},
            "score": 0.4809,
        },
    }
    (tmp_path / "search" / "wd.json").write_text(json.dumps(search))
    page = results_page(Results(tmp_path / "cells"))
    assert "(figures/figure2-resnet34.png)" in page
    assert "![Accuracy against the GPU seconds of training: Table 4, imbalance 100](" in page
    assert "[wd](search/wd.json) ([picture](search/wd.png))" in page
    assert "2 trials; chosen representation.weight_decay = 0.005123, classifier.head = a" in page
    assert "balanced accuracy 48.09 on 20 % of the training images" in page
    assert "## Figures" not in results_page(Results("nowhere"))
