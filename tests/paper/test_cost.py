"""Accuracy against training cost: what is drawn is what results of one GPU say."""

import numpy as np
import pytest

from reference.made_up_results import entries_of

pytest.importorskip("matplotlib")

from protail_paper.drawing import draw_costs, draw_figures, method_costs
from protail_paper.figures import CostPoint, cost_figure
from protail_paper.results import Results
from reference.sheets import texts_that_overlap

ENTRIES = {row: entry for (row, column), entry in entries_of("table4").items() if column == "100"}
GPU, OTHER_GPU = "Some GPU", "Another GPU"
KIND = "prototypes on frozen features"
# Seconds of stage 1 on the small network: most methods crowd in two columns.
STAGE_1 = {"standard": 37.0, "dro-lt": 75.0, "ride": 95.0, "paco": 330.0}


def keep(results, row, fractions=(0.5, 0.51, 0.53), gpus=(GPU,), **changes):
    entry = ENTRIES[row]
    recipe = entry.experiment(0).recipe
    took = {"representation": 80.0, "guessed": 0.0}
    if recipe.classifier is not None:
        took["classifier"] = 1.5
    for seed, fraction in enumerate(fractions):
        scores = {"many": 0.7, "medium": 0.5, "few": 0.1, "all": fraction}
        both = {"plain": scores | {"all": 0.0}, "mirrored": scores}
        outcome = {"scores": both, "norms": [1.0] * 100, "seconds": took}
        results.add(entry.experiment(seed), outcome | {"about": {"gpus": list(gpus)}} | changes)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "cells")


@pytest.fixture
def all_rows(results):
    """Every row of the table, as near to each other as they may come."""
    rng = np.random.default_rng(0)
    for place, (row, entry) in enumerate(ENTRIES.items()):
        recipe = entry.experiment(0).recipe
        stage_1 = recipe.phases["representation"]
        first = 88.0 if stage_1.backbone == "resnet34-cifar" else STAGE_1[stage_1.method]
        took = {"representation": first, "guessed": 0.0} | (
            {"classifier": 1.4} if recipe.classifier else {}
        )
        middle = (0.51 if first == 88.0 else 0.41) + 0.002 * (place % 13)
        n_seeds = 1 if row in ("PaCo", "CutMix") else 3
        keep(results, row, rng.normal(middle, 0.003, n_seeds), seconds=took)
    return results


def test_variants_of_a_recipe_are_points_of_their_own(results):
    keep(results, "WD + WD + Max")
    keep(results, "WD + WD + Max, as published")
    assert list(method_costs(results).points) == ["wd-max", "wd-max, as published"]


def test_a_row_on_other_images_is_no_point(results):
    keep(results, "PC")
    keep(results, "PC, two sets of images")
    costs = method_costs(results)
    assert ([point.label for point in costs.points.values()], costs.left_out) == (["PC"], ())


def test_points_are_means_of_the_results(results):
    keep(results, "CE")
    keep(results, "PC", (0.6,))
    costs = method_costs(results)
    assert costs.hardware == GPU
    ce, pc = costs.points.values()
    assert (ce.label, ce.seconds, ce.backbone) == ("CE", 80.0, "ResNet-32")
    assert ce.accuracies == pytest.approx((50, 51, 53))
    assert ce.deviation == pytest.approx(np.std([50, 51, 53], ddof=1))
    assert (pc.label, pc.seconds, pc.backbone) == ("PC", 81.5, "ResNet-34")
    assert pc.deviation is None
    assert costs.to_dict() == {
        "hardware": GPU,
        "rows": {
            "CE": {
                **{"name": "ce-resnet32", "kind": "one training, its own loss or mixing"},
                **{"backbone": "ResNet-32", "seeds": 3, "seconds": 80.0},
                **{"all": 51.33, "deviation": 1.53},
            },
            "PC": {
                **{"name": "pc-cdt-la", "kind": KIND, "backbone": "ResNet-34", "seeds": 1},
                **{"seconds": 81.5, "all": 60.0, "deviation": None},
            },
        },
        "left_out": [],
    }


def test_kinds_are_told_by_what_is_trained(all_rows):
    kinds = {}
    for point in method_costs(all_rows).points.values():
        kinds.setdefault(point.kind, []).append(point.label)
    assert kinds[KIND] == [
        *("PaCo, PC", "RIDE, PC", "NCM", "PC + LA", "PC", "Mixture distillation, PC (pc-strong)"),
        *("PaCo, PC, as on WD", "RIDE, PC, as on WD"),
    ]
    assert kinds["experts, views or contrast"] == [
        *("DRO-LT", "PaCo", "RIDE", "RIDE, routed"),
        *("Mixture distillation", "Mixture distillation, post-hoc LogitAdjust"),
    ]
    assert "WD" in kinds["one training, its own loss or mixing"]
    assert {"cRT", "WD + WD + Max"} < set(kinds["classifier on frozen features"])


def test_only_one_kind_of_gpu_is_shown(results):
    keep(results, "CE")
    keep(results, "PC")
    keep(results, "WD", gpus=(OTHER_GPU,))
    keep(results, "NCM", gpus=())
    costs = method_costs(results)
    assert costs.hardware == GPU
    assert [point.label for point in costs.points.values()] == ["CE", "PC"]
    assert costs.left_out == ("WD", "NCM")


def test_results_without_a_gpu_are_no_points(results):
    keep(results, "CE", gpus=())
    keep(results, "WD", about={})
    costs = method_costs(results)
    assert (costs.hardware, costs.points, costs.left_out) == ("", {}, ("CE", "WD"))


def test_seeds_that_ran_elsewhere_do_not_count(results):
    keep(results, "CE")
    keep(results, "PC", (0.2, 0.2, 0.2), gpus=(OTHER_GPU,))
    keep(results, "PC", (0.5, 0.52))
    [_, pc] = method_costs(results).points.values()
    assert pc.accuracies == pytest.approx((50, 52))


def test_results_of_unknown_cost_and_diverged_ones_are_left_out(results):
    keep(results, "CE")
    keep(results, "WD")
    # Older results say what all classifiers took together.
    keep(results, "NCM", seconds={"representation": 80.0, "classifiers": 41.0})
    keep(results, "Focal", seconds={})
    keep(results, "LDAM")
    results.add(ENTRIES["LDAM"].experiment(2), {"diverged": True, "about": {"gpus": [GPU]}})
    costs = method_costs(results)
    assert [point.label for point in costs.points.values()] == ["CE", "WD"]
    assert costs.left_out == ("Focal", "LDAM", "NCM")


def test_rows_that_come_to_the_same_are_one_point(all_rows):
    points = method_costs(all_rows).points
    keys = {
        ENTRIES[label].experiment(0).key for p in points.values() for label in p.label.split(" = ")
    }
    assert len(points) == len(keys)
    on_the_same_images = [row for row in ENTRIES if not row.endswith("two sets of images")]
    assert sum(len(p.label.split(" = ")) for p in points.values()) == len(on_the_same_images)


def test_every_method_is_drawn_where_its_numbers_are(all_rows, sheets):
    costs = method_costs(all_rows)
    list(draw_costs(all_rows, str))
    [figure] = sheets
    [axes] = figure.axes
    drawn = {}
    for line in axes.lines:
        if line.get_marker() in "os^D" and len(line.get_xdata()) == 1:
            drawn.setdefault((line.get_xdata()[0], line.get_ydata()[0]), []).append(line)
    for point in costs.points.values():
        [line] = drawn[point.seconds, point.accuracy]
        filled = line.get_markerfacecolor() == line.get_color()
        assert filled == (point.backbone == "ResNet-34")
    bars = [container.get_children()[-1].get_segments()[0] for container in axes.containers]
    spreads = sorted(np.diff(bar[:, 1])[0] / 2 for bar in bars)
    expected = [point.deviation for point in costs.points.values() if point.deviation is not None]
    assert spreads == pytest.approx(sorted(expected))
    assert axes.get_xscale() == "log"
    assert GPU in axes.get_title(loc="left")
    assert "share their time by what" in figure.get_supxlabel()
    check_labels(costs, figure, axes)  # drawing takes long: once is enough


def check_labels(costs, figure, axes):
    """Every point has a label and none lies on another."""
    labels = [text.get_text() for text in axes.texts]
    single = {"PaCo", "CutMix"}
    assert labels == [
        f"{point.label} (1 seed)" if point.label in single else point.label
        for point in costs.points.values()
    ]
    assert texts_that_overlap(figure) == []
    # Nor does any lie on a point, or leave the axes.
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    for point in costs.points.values():
        x, y = axes.transData.transform((point.seconds, point.accuracy))
        assert not any(box.contains(x, y) for box in boxes.values())
    inside = axes.bbox.padded(1)
    for box in boxes.values():
        assert inside.contains(box.x0, box.y0)
        assert inside.contains(box.x1, box.y1)


def test_it_is_one_of_the_figures(all_rows):
    said = []
    *_, last = draw_figures(all_rows, None, said.append)
    assert (last.name, last.picture[1:4]) == ("cost", b"PNG")
    assert last.numbers == method_costs(all_rows).to_dict()
    assert not any("costs" in line for line in said)


def test_one_row_is_no_picture(results):
    keep(results, "CE")
    keep(results, "PC", gpus=())
    said = []
    assert list(draw_costs(results, said.append)) == []
    assert "The figure of costs is left out" in said[-1]
    keep(results, "WD")
    assert [drawn.name for drawn in draw_costs(results, said.append)] == ["cost"]
    assert said[-1].startswith("The figure of costs is without PC: diverged, or no seconds on Some")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kind": "prototype"}, "kind='prototype'"),
        ({"seconds": 0.0}, r"'PC' has seconds=0.0"),
        ({"seconds": float("nan")}, r"'PC' has seconds=nan"),
        ({"accuracies": ()}, "0 accuracies"),
    ],
)
def test_points_that_cannot_be_drawn(changes, complaint):
    given = {"label": "PC", "kind": KIND, "backbone": "ResNet-34"}
    with pytest.raises(ValueError, match=complaint):
        CostPoint(**{**given, "seconds": 1.0, "accuracies": (50.0,), **changes})


@pytest.mark.parametrize("backbones", [(), ("a", "b", "c")])
def test_backbones_that_cannot_be_told_apart(backbones):
    points = [CostPoint(name, KIND, name, 1.0, (50.0,)) for name in backbones]
    with pytest.raises(ValueError, match=f"on {len(backbones)} backbones"):
        cost_figure(points, "title")
