"""The weights that come with the package."""

from protail.backbones import bundled_weights, load_weights, make_backbone


def test_they_fill_a_resnet32():
    report = load_weights(make_backbone("resnet32"), bundled_weights())
    assert len(report.loaded) == 186
    assert report.left_out == ()


def test_they_are_small_enough_to_come_with_every_install():
    assert bundled_weights().stat().st_size < 2_000_000
