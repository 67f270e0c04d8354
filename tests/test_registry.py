import sys

import pytest

from protail._registry import Registry


@pytest.fixture
def shapes():
    shapes = Registry("shape", given=["side"])

    @shapes.register("box")
    def make_box(side, height: float = 1.0, *, name: "str | None" = None):
        return side, height, name

    @shapes.register("needy")
    class Needy:
        def __init__(self, side, depth: int, **rest):
            self.depth = depth

    return shapes


def test_makes_what_was_registered(shapes):
    assert shapes.names() == ["box", "needy"]
    assert shapes.make("box", 2, name="b") == (2, 1.0, "b")
    assert shapes.make("needy", 2, depth=3).depth == 3


def test_options_are_what_the_signature_says(shapes):
    options = shapes.options("box")
    assert {name: option.default for name, option in options.items()} == {
        "height": 1.0,
        "name": None,
    }
    assert options["name"].hint == str | None
    assert list(shapes.options("needy")) == ["depth"]
    assert shapes.options("needy")["depth"].is_required


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("bux", {}, "shape='bux' is unknown; .* Did you mean 'box'. .* registers it is imported"),
        ("box", {"hight": 1}, "shape 'box' takes no option 'hight'; .* 'height', 'name'"),
        ("box", {"side": 1}, "takes no option 'side'"),
        ("needy", {}, "shape 'needy' needs the option 'depth'"),
    ],
)
def test_wrong_use_is_told(shapes, name, options, words):
    with pytest.raises(ValueError, match=words):
        shapes.make(name, 2, **options)


def test_a_name_is_given_once(shapes):
    with pytest.raises(ValueError, match="'box' is already a shape"):
        shapes.register("box")(dict)
    with pytest.raises(ValueError, match="is no name"):
        shapes.register("")


def test_a_file_in_the_package_is_enough(tmp_path, monkeypatch):
    package = tmp_path / "package_of_shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shapes.py").write_text(
        "from protail._registry import Registry\n"
        "SHAPES = Registry('shape', [], 'package_of_shapes')\n"
    )
    (package / "ball.py").write_text(
        "from package_of_shapes.shapes import SHAPES\n"
        "@SHAPES.register('ball')\n"
        "def ball(): return 'round'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from package_of_shapes.shapes import SHAPES

    assert SHAPES.make("ball") == "round"
    for name in [name for name in sys.modules if name.startswith("package_of_shapes")]:
        del sys.modules[name]
