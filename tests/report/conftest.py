"""What tests of pictures share."""

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
