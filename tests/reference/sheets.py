"""What stands on a drawn sheet."""

import pytest


@pytest.fixture
def sheets(monkeypatch):
    """Collect figures as they are drawn."""
    import matplotlib.figure

    drawn = []
    original = matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **options):
        drawn.append(figure)
        return original(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return drawn


def hidden_ticks(figure):
    """Find labels that matplotlib keeps for places outside of the axes."""
    axis_and_limits = [
        (axis, sorted(axis.get_view_interval()))
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
    ]
    return {
        id(label)
        for axis, (low, high) in axis_and_limits
        for tick in axis.get_major_ticks()
        if not low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    }


def texts_that_overlap(figure):
    """Find texts of a sheet that lie on each other."""
    from matplotlib.text import Text

    figure.canvas.draw()
    hidden = hidden_ticks(figure)
    boxes = [
        (text.get_text(), text.get_window_extent().padded(-1))
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in hidden
    ]
    return [
        (one, other)
        for i, (one, box) in enumerate(boxes)
        for other, there in boxes[:i]
        if box.overlaps(there)
    ]
