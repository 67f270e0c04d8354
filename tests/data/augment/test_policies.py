"""Every op of every policy against torchvision's."""

import pytest
import torch

from protail.data.augment._steps import (
    RANDAUGMENT_OPS,
    SIGNED,
    Action,
    Policy,
    autoaugment_actions,
    randaugment_actions,
    strength,
    sub_policies,
)
from reference.augment import all_images, torchvision_op

pytest.importorskip("torchvision")
# Blends: a level that should come out whole may fall below it in torchvision's float32.
WITHIN_ONE = {"Color": 0.12, "Contrast": 0.01, "Sharpness": 0.01}
OPS = [*RANDAUGMENT_OPS, "Invert"]


def apply(images, action, fill=128):
    policy = Policy("autoaugment", [[[action]]], tuple(images.shape[2:]), fill)
    whole = torch.zeros(len(images), 2, dtype=torch.int64)
    return policy(images.flatten(2), whole.float(), whole).view(images.shape)


def magnitudes(largest):
    return range(largest + 1) if largest == 9 else (1, 9, 14, 30)


@pytest.mark.parametrize("largest", [9, 30])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [(32, 32), (20, 27)])
def test_op_equals_torchvision(op, largest, size):
    images = all_images(2, size)
    for magnitude in magnitudes(largest):
        value = strength(op, magnitude, largest, size)
        for signed in {value, -value} if op in SIGNED else {value}:
            got = apply(images, Action(op, signed))
            off = (got - torchvision_op(images, op, signed).long()).abs()
            assert off.max() <= (op in WITHIN_ONE)
            assert (off > 0).float().mean() <= WITHIN_ONE.get(op, 0.0)


def test_fill_and_tiny_images():
    images = all_images(2, (2, 2))
    for op in OPS:
        action = Action(op, strength(op, 5, 9, (2, 2)))
        got = apply(images, action, fill=7)
        assert (got - torchvision_op(images, *action, fill=7).long()).abs().max() <= 1


@pytest.mark.parametrize(("bins", "space"), [(10, "AutoAugment"), (31, "RandAugment")])
def test_strengths_are_torchvisions(bins, space):
    from torchvision.transforms import v2

    for op, (values, signed) in getattr(v2, space)._AUGMENTATION_SPACE.items():
        assert signed == (op in SIGNED)
        expected = values(bins, 40, 32)
        for magnitude in range(bins if expected is not None else 0):
            value = float(expected[magnitude])
            value = 255 * value if op == "Solarize" else value
            value = int(value) if op.startswith("Translate") else value
            assert strength(op, magnitude, bins - 1, (40, 32)) == value


@pytest.mark.parametrize(
    ("name", "theirs"), [("autoaugment", "CIFAR10"), ("autoaugment-imagenet", "IMAGENET")]
)
def test_sub_policies_are_torchvisions(name, theirs):
    from torchvision.transforms import v2

    policy = getattr(v2.AutoAugmentPolicy, theirs)
    expected = [
        [(op, round(10 * chance), magnitude or 0) for op, chance, magnitude in sub]
        for sub in v2.AutoAugment(policy)._policies
    ]
    assert sub_policies(name) == expected


def test_cases_have_the_chances_and_signs_of_the_policy():
    slots = autoaugment_actions("autoaugment", (32, 32))
    for slot, policies in enumerate(slots):
        for cases, sub in zip(policies, sub_policies("autoaugment"), strict=True):
            op, tenths, magnitude = sub[slot]
            done = [case for case in cases if case.op != "Identity"]
            assert len(done) == 2 * tenths
            assert {case.op for case in done} <= {op}
            if op in SIGNED and magnitude:
                assert sum(case.strength < 0 for case in done) == tenths


def test_randaugment_is_every_op_with_either_sign():
    actions = randaugment_actions(9, (32, 32))
    assert [action.op for action in actions[::2]] == list(RANDAUGMENT_OPS)
    assert actions[0::2] != actions[1::2]
    assert strength("Color", 9, 30, (32, 32)) == pytest.approx(0.27)


def test_slots_follow_one_another():
    images = all_images(3)
    cases = [[[Action("TranslateX", 9.0), Action("Equalize")]], [[Action("Invert")] * 2]]
    policy = Policy("autoaugment", cases, (32, 32), 128)
    whole = torch.tensor([[0, n % 2, n % 2] for n in range(len(images))])
    got = policy(images.flatten(2), whole.float(), whole).view(images.shape)
    for n, image in enumerate(images):
        first = cases[0][0][n % 2]
        want = torchvision_op(torchvision_op(image[None], *first), "Invert", 0.0)
        assert torch.equal(got[n], want[0].long())
