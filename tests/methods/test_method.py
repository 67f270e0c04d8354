import pytest
import torch
from torch import nn

from protail.methods import METHODS, ImageBatch, Method, make_method, register_method

PARTS = (nn.Flatten(), nn.Linear(12, 3), nn.CrossEntropyLoss(), [4, 2, 1])


@register_method("negated-for-tests")
class Negated(Method):
    def logits(self, images):
        return -super().logits(images)


@register_method("doubled-for-tests")
class Doubled(Method):
    def features(self, images):
        return 2 * super().features(images)


@pytest.mark.parametrize(
    ("name", "part", "place"),
    [("negated-for-tests", "logits", "head"), ("doubled-for-tests", "features", "backbone")],
)
def test_nothing_is_trained_that_would_be_judged_by_something_else(name, part, place):
    with pytest.raises(ValueError, match=rf"{name}' has {part} of its own.*into a {place}"):
        make_method(name, *PARTS)


def test_what_a_method_may_say_of_mixtures():
    for mixes in (True, False, "always"):
        register_method(f"mixes {mixes} for tests", views=2, mixes=mixes)(Method)
        assert METHODS.needs(f"mixes {mixes} for tests")["mixes"] == mixes
    for views, mixes in ((1, True), (2, False)):
        register_method(f"{views} views and no word for tests", views=views)(Method)
        assert METHODS.needs(f"{views} views and no word for tests")["mixes"] == mixes
    with pytest.raises(ValueError, match=r"mixes=.sometimes. is unknown; .* True, False, .always."):
        register_method("torn-for-tests", mixes="sometimes")


def test_a_method_of_ones_own_may_have_another_loss():
    @register_method("halved-for-tests")
    class Halved(Method):
        def forward(self, batch):
            return super().forward(batch) / 2

    batch = ImageBatch(torch.ones(2, 3, 2, 2), torch.tensor([0, 2]))
    halved, whole = (make_method(name, *PARTS) for name in ("halved-for-tests", "standard"))
    torch.testing.assert_close(2 * halved(batch), whole(batch))


def test_the_loss_is_told_of_epochs():
    class Counting(nn.CrossEntropyLoss):
        def on_epoch(self, epoch):
            self.epoch = epoch

    method = Method(nn.Flatten(), nn.Linear(12, 3), Counting(), [4, 2, 1])
    method.on_epoch(7)
    assert method.loss.epoch == 7
    Method(*PARTS).on_epoch(7)
