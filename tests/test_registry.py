import math
import sys
from typing import Annotated

import numpy as np
import pytest

from protail._registry import Registry
from protail.options import BelowOne, Count, Fraction, OneOf, Positive, Range, checked


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


@checked
def declared(
    size: Count,
    *,
    scale: Positive | None = None,
    part: BelowOne = 0.0,
    whole: Fraction = 1.0,
    kind: Annotated[str, OneOf(("round", "flat"))] = "flat",
):
    return size, scale, part, whole, kind


def test_what_an_annotation_allows_passes():
    assert declared(np.int64(3), scale=0.5, whole=1, kind="round") == (3, 0.5, 0.0, 1, "round")
    assert declared(size=1) == (1, None, 0.0, 1.0, "flat")


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (0, {}, "size=0; expected a whole number >= 1"),
        (1.0, {}, "size=1.0; expected a whole number"),
        (True, {}, "size=True; expected a whole number"),
        (1, {"scale": 0.0}, "scale=0.0; expected a finite number > 0"),
        (1, {"scale": math.inf}, "scale=inf"),
        (1, {"scale": "1"}, "scale='1'"),
        (1, {"part": 1.0}, "part=1.0; expected a number >= 0 and < 1"),
        (1, {"part": math.nan}, "part=nan"),
        (1, {"part": None}, "part=None"),
        (1, {"whole": 1.5}, "whole=1.5; expected a number >= 0 and <= 1"),
        (1, {"kind": "rond"}, "kind='rond' is unknown; .* Did you mean 'round'"),
    ],
)
def test_what_it_does_not_allow_is_refused_with_and_without_a_call(size, options, words):
    things = Registry("thing", given=[])
    things.register("declared")(declared)
    with pytest.raises(ValueError, match=words):
        declared(size, **options)
    with pytest.raises(ValueError, match=words):
        things.check_values("declared", {"size": size, **options})
    things.check_values("declared", {"size": 1})


def test_annotations_give_types_and_what_is_allowed():
    things = Registry("thing", given=[])
    things.register("declared")(declared)
    options = things.options("declared")
    assert (options["size"].hint, options["size"].allowed) == (int, Range(1, kind=int))
    assert (options["scale"].hint, str(options["scale"].allowed)) == (
        float | None,
        "a finite number > 0",
    )
    assert options["kind"].allowed.names == ("round", "flat")


def test_options_that_go_together_are_checked_without_making_anything():
    things = Registry("thing", given=["side"])

    @things.register("pair")
    class Pair:
        def __init__(self, side, *, low: float = 0.0, high: float = 1.0):
            raise AssertionError

        @staticmethod
        def check_options(low, high):
            if low > high:
                raise ValueError(f"low={low}; expected at most high={high}.")

    things.check_values("pair", {})
    with pytest.raises(ValueError, match="low=2; expected at most high=1"):
        things.check_values("pair", {"low": 2})
