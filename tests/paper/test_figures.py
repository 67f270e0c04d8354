"""The paper's figures: what is drawn is what was given."""

import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from protail._files import OutputError  # noqa: E402
from protail.data.images import long_tailed_counts  # noqa: E402
from protail.profile import ClassProfile  # noqa: E402
from protail_paper.analysis import class_norms, class_separation, learn_boundaries  # noqa: E402
from protail_paper.figures import figure1, figure2, figure3, figure4, write_picture  # noqa: E402
from reference.sheets import texts_that_overlap  # noqa: E402

COUNTS = np.array(long_tailed_counts(500, 100, 100))


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.fixture(scope="module")
def boundaries():
    return learn_boundaries()


def test_figure1_shows_rows_regions_and_vectors(boundaries, sheets):
    figure1(boundaries)
    [figure] = sheets
    assert len(figure.axes) == 4
    for axes, classifier in zip(figure.axes, boundaries.classifiers, strict=True):
        [image] = axes.get_images()
        shown = np.asarray(image.get_array())
        half = axes.get_xlim()[1]
        line = np.linspace(-half, half, len(shown))
        for row in (3, 200, 390):
            points = np.stack([line, np.full(len(line), line[row])], 1)
            assert np.array_equal(shown[row], classifier.predict(points))
        rows = np.concatenate([c.get_offsets() for c in axes.collections[: len(boundaries.counts)]])
        assert np.array_equal(rows, boundaries.features)
        norms = np.linalg.norm(classifier.vectors, axis=1)
        digits = 2 if classifier.model == "softmax" else 1
        said = [text.get_text() for text in axes.texts if text.get_text()]
        assert said == [f"{norm:.{digits}f}" for norm in norms]
        assert classifier.model in axes.get_title(loc="left")
    assert legend_of(figure)[:4] == [f"class of {n} rows" for n in (500, 110, 25, 5)]


def test_figure1_arrows_are_as_long_as_weights(boundaries, sheets):
    figure1(boundaries)
    softmax = boundaries.classifiers[0]
    arrows = [text for text in sheets[0].axes[0].texts if not text.get_text()]
    tips = np.array([arrow.xy for arrow in arrows])
    ratios = np.linalg.norm(tips, axis=1) / np.linalg.norm(softmax.vectors, axis=1)
    assert np.allclose(ratios, ratios[0])


def test_figure2_draws_norms_from_the_largest_class_on(sheets):
    rng = np.random.default_rng(0)
    counts = rng.permutation(COUNTS)
    norms = [rng.random(100), np.log(counts), 1 / counts]
    figure2(counts, *norms)
    [figure] = sheets
    order = ClassProfile(counts).head_first()
    for axes, given in zip(figure.axes, [counts, *norms], strict=True):
        [points] = [line for line in axes.lines if len(line.get_xdata()) == 100]
        assert np.array_equal(points.get_ydata(), np.asarray(given)[order])
        assert [text.get_text() for text in axes.texts] == ["many", "medium", "few"]
        borders = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert borders == [34.5, 69.5]
    titles = [axes.get_title() for axes in figure.axes]
    expected = class_norms(norms[0][:, None], counts).rank_correlation
    assert f"rank correlation {expected:+.2f}" in titles[1]
    assert "rank correlation +1.00" in titles[2]
    assert "rank correlation -1.00" in titles[3]
    assert all(axes.get_ylim()[0] == 0 for axes in figure.axes[1:])


def test_figure2_takes_profiles_without_some_groups(sheets):
    figure2([5, 3], [1.0, 1.0], [0.0, 0.0], [1.0, 2.0])
    titles = [axes.get_title() for axes in sheets[0].axes]
    assert "rank correlation -, variation 0 %" in titles[1]
    assert "rank correlation -, variation -" in titles[2]


def test_figure2_draws_the_mean_of_seeds_and_measures_each(sheets):
    figure2([500, 5], [[1.0, 3.0], [3.0, 1.0]], [1.0, 1.0], [[2.0, 2.0]])
    axes = sheets[0].axes[1]
    assert "variation 50 %" in axes.get_title()
    assert [2.0, 2.0] in [list(line.get_ydata()) for line in axes.lines]


@pytest.mark.parametrize("bad", [[1.0], [[1.0], [2.0]], [[[1.0, 2.0]]], [1.0, -2.0], [1.0, np.nan]])
def test_figure2_names_the_norms_that_do_not_fit(bad):
    with pytest.raises(ValueError, match=r"centroid_norms has shape .*expected \(2,\)"):
        figure2([5, 3], [1.0, 1.0], bad, [1.0, 2.0])


def some_separations(n_looks, counts=COUNTS):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(len(counts), 8)) + 1
    return [class_separation(start * (1 + 0.1 * i) - 0.05 * i, counts) for i in range(n_looks)]


def test_figure3_draws_each_kind_of_pair(sheets):
    steps, looks = [0, 10, 200], some_separations(3)
    figure3(steps, looks)
    [figure] = sheets
    for axes, measure in zip(figure.axes, ("distance", "cosine"), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines) == ["all-all", "head-head", "head-tail", "tail-tail"]
        for pair, line in lines.items():
            assert list(line.get_xdata()) == steps
            assert list(line.get_ydata()) == [getattr(look, measure)[pair] for look in looks]
        assert len({line.get_color() for line in axes.lines}) == 4
    assert legend_of(figure) == ["all-all", "head-head", "head-tail", "tail-tail"]


def test_figure3_leaves_out_pairs_that_are_not_there(sheets):
    figure3([0, 5], some_separations(2, counts=np.array([50, 5, 3])))
    assert legend_of(sheets[0]) == ["all-all", "tail-tail"]


@pytest.mark.parametrize(("steps", "n_looks"), [([], 0), ([0, 1], 1)])
def test_figure3_needs_a_look_for_each_step(steps, n_looks):
    with pytest.raises(ValueError, match="expected as many"):
        figure3(steps, some_separations(n_looks))


def curve(values, n_seeds=3):
    rng = np.random.default_rng(0)
    centres = {"many": 0.74, "medium": 0.55, "few": 0.25, "all": 0.52}
    return {
        value: {name: (c + rng.normal(0, 0.01, n_seeds)).tolist() for name, c in centres.items()}
        for value in values
    }


CURVES = {"lr": [8, 0.5, 4, 1], "epochs": [1, 2, 5], "tau": [0, 0.25, 1]}


def test_figure4_draws_means_and_deviations(sheets):
    curves = {setting: curve(values) for setting, values in CURVES.items()}
    figure4(curves)
    [figure] = sheets
    chosen = {"lr": 4, "epochs": 1, "tau": 0.25}
    for axes, (setting, given) in zip(figure.axes, curves.items(), strict=True):
        drawn = {one.get_label(): one for one in axes.containers}
        assert list(drawn) == ["many", "medium", "few", "all"]
        for group, container in drawn.items():
            points, _, [bars] = container
            assert list(points.get_xdata()) == sorted(given)
            for value, y, bar in zip(
                sorted(given), points.get_ydata(), bars.get_segments(), strict=True
            ):
                scores = 100 * np.array(given[value][group])
                assert y == pytest.approx(scores.mean())
                assert np.diff(bar[:, 1])[0] == pytest.approx(2 * scores.std(ddof=1))
        [mark] = [line for line in axes.lines if line.get_label() == "the paper's choice"]
        assert list(mark.get_xdata()) == [chosen[setting]] * 2
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        assert ticks == [f"{value:g}" for value in sorted(given)]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear", "linear"]
    assert legend_of(figure) == ["many", "medium", "few", "all", "the paper's choice"]


def test_figure4_leaves_out_labels_that_have_no_room(sheets):
    figure4({"tau": curve([0, 0.125, 0.25, 0.5, 0.75, 1, 1.5])})
    ticks = [text.get_text() for text in sheets[0].axes[0].get_xticklabels()]
    assert ticks == ["0", "", "0.25", "0.5", "0.75", "1", "1.5"]


def test_figure4_with_one_seed_and_a_group_less(sheets):
    figure4({"tau": {0.0: {"all": [0.5]}, 0.5: {"all": [0.51], "few": [0.2]}}})
    assert legend_of(sheets[0]) == ["few", "all", "the paper's choice"]


@pytest.mark.parametrize(
    ("curves", "complaint"),
    [
        ({}, "expected at least one value"),
        ({"tau": {}}, "expected at least one value"),
        ({"taus": {0.0: {"all": [0.5]}}}, "mean 'tau'"),
        ({"tau": {0.0: {"al": [0.5]}}}, "mean 'all'"),
        ({"tau": {0.0: {"all": [52.0]}}}, r"\['tau'\]\[0.0\]\['all'\]=\[52.0\].*from 0 to 1"),
        ({"tau": {0.0: {"all": []}}}, "one a seed"),
    ],
)
def test_figure4_names_what_does_not_fit(curves, complaint):
    with pytest.raises(ValueError, match=complaint):
        figure4(curves)


def test_no_text_lies_on_another(boundaries, sheets):
    rng = np.random.default_rng(0)
    figure1(boundaries)
    figure2(COUNTS, np.log(COUNTS), rng.random(100), rng.random(100))
    figure3([0, 100, 782], some_separations(3))
    values = {
        "lr": [0.25, 0.5, 1, 2, 4, 8, 16],
        "epochs": [1, 2, 5, 10],
        "tau": [0, 0.125, 0.25, 0.5, 0.75, 1, 1.5],
    }
    figure4({setting: curve(tried) for setting, tried in values.items()})
    assert len(sheets) == 4
    assert [texts_that_overlap(figure) for figure in sheets] == [[], [], [], []]


def test_a_written_picture_is_complete(tmp_path):
    place = tmp_path / "images/figure3.png"
    picture = figure3([0, 1], some_separations(2))
    write_picture(place, picture)
    assert place.read_bytes() == picture
    with Image.open(place) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (1500, 570)
    assert [file.name for file in place.parent.iterdir()] == ["figure3.png"]
    with pytest.raises(OutputError, match="already there"):
        write_picture(place, picture)
    write_picture(place, b"other", overwrite=True)
    assert place.read_bytes() == b"other"


def test_same_numbers_same_bytes():
    assert figure3([0, 1], some_separations(2)) == figure3([0, 1], some_separations(2))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install .*\[report\]"):
        figure3([0], some_separations(1))
