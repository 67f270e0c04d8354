"""Words that errors share."""

import pytest

from protail._messages import OWN_PART, counted, unknown_name, unknown_part


@pytest.mark.parametrize(
    ("got", "valid", "meant"),
    [
        ("ncm", ["PC", "NCM"], "NCM"),
        ("NCM", ["pc", "ncm"], "ncm"),
        ("resnet-34", ["ResNet-34", "ResNet-32"], "ResNet-34"),
        ("euclidian", ["cosine", "euclidean"], "euclidean"),
        ("pcla", ["pc", "pc-la"], "pc-la"),
        ("PC_CDT", ["pc_cd", "pc-cdt"], "pc-cdt"),
        ("t a-u_2", ["tau", "t_a-u-2"], "t_a-u-2"),
    ],
)
def test_the_nearest_name_is_written_as_it_is_known(got, valid, meant):
    said = unknown_name("row", got, valid)
    assert said.startswith(f"row={got!r} is unknown; expected one of {valid[0]!r}, {valid[1]!r}.")
    assert said.endswith(f" Did you mean {meant!r}?")


@pytest.mark.parametrize("got", ["something else", "", None, 3])
def test_nothing_is_near(got):
    assert "Did you mean" not in unknown_name("row", got, ["PC", "NCM"])


def test_an_unknown_part_may_be_somebodys_own():
    arguments = ("head", "cosin", ["cosine", "linear"])
    assert unknown_part(*arguments) == f"{unknown_name(*arguments)} {OWN_PART}"


def test_numbers_of_things():
    numbers = [counted(n, "class is", "classes are") for n in (0, 1, 2, 1000)]
    assert numbers == ["0 classes are", "1 class is", "2 classes are", "1,000 classes are"]
