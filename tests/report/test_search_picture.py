import dataclasses
import io

import pytest

from protail.experiments import Search, SearchResult, SearchTrial, read_searched_keys
from protail.recipes import load_recipe
from reference.easy_images import easy_data

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from protail.report import search_picture  # noqa: E402

OVER = ["classifier.tau", "classifier.lr", "classifier.normalize", "classifier.epochs=1:5"]


def make_result(n_keys=4, scores=(0.2, 0.5, 0.3)):
    recipe = load_recipe("pc-la")
    search = Search(recipe, easy_data(size=4), read_searched_keys(OVER[:n_keys], recipe))
    params = {
        "classifier.tau": 0.3,
        "classifier.lr": 2.0,
        "classifier.normalize": "none",
        "classifier.epochs": 2,
    }
    trials = [SearchTrial(i, "done", params, score=score) for i, score in enumerate(scores)]
    trials.append(SearchTrial(9, "pruned", params, looks=(0.1, 0.15)))
    trials.append(SearchTrial(10, "diverged", params))
    trials.append(SearchTrial(11, "lost", {}))
    return SearchResult(search, tuple(trials))


def drawn(result, monkeypatch):
    """Draw, and give the figure too."""
    import matplotlib.figure

    figures = []
    original = matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **options):
        figures.append(figure)
        return original(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    picture = search_picture(result)
    return Image.open(io.BytesIO(picture)), figures[0]


def test_has_a_panel_for_each_key(monkeypatch):
    picture, figure = drawn(make_result(), monkeypatch)
    assert picture.format == "PNG"
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == [text.split("=")[0] for text in OVER]
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "linear", "linear"]
    assert [text.get_text() for text in panels[2].get_xticklabels()] == ["none", "10", "20", "40"]


def test_marks_the_best_and_shows_the_pruned(monkeypatch):
    _, figure = drawn(make_result(1), monkeypatch)
    (axes,) = figure.axes
    pruned, done, best = (points.get_offsets().tolist() for points in axes.collections)
    assert pruned == [[0.3, 15.0]]
    assert [score for _, score in done] == [20.0, 50.0, 30.0]
    assert best == [[0.3, 50.0]]
    assert axes.get_title() == "best: 0.3"
    assert "50.0 %" in figure.get_suptitle()


def test_nothing_done_is_told():
    result = make_result(scores=())
    with pytest.raises(ValueError, match="no trial that is done"):
        search_picture(result)


def test_names_with_dollars_are_no_formulas(monkeypatch):
    result = make_result(1)
    recipe = dataclasses.replace(result.search.recipe, name="a$b$c")
    search = dataclasses.replace(result.search, recipe=recipe)
    _, figure = drawn(SearchResult(search, result.trials), monkeypatch)
    assert "a$b$c" in figure.get_suptitle()
