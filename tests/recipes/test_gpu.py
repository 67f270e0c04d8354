"""Every recipe in captured steps, alone and beside others, against plain steps, on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protail.recipes import recipe_names
from protail.training.features import FrozenFeatures
from protail.training.loop import interleave, make_streams
from protail.training.stage1 import stage1_steps
from protail.training.stage2 import learn_heads
from reference.small_images import small_images
from reference.small_recipes import small_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def full_precision():
    """Full float32, and sums in one order: what differs then is not chance."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = cudnn.benchmark = False
    cudnn.deterministic = True
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def small(name):
    """Make a recipe so short that rounding has no time to grow, with a rate that is mild."""
    recipe = small_recipe(name)
    return recipe.with_overrides(
        {f"{stage}.{key}": value for stage in recipe.phases for key, value in
         {"epochs": 5, "batch_size": 32, "lr": 0.01}.items()}
    )  # fmt: skip


def steps(recipe, data, driver, losses):
    return stage1_steps(
        recipe.phases,
        data,
        seed=0,
        device=GPU,
        captured=driver == "captured",
        after_epoch=lambda _, epoch: losses.append(epoch.loss),
    )


def heads_of(recipe, method, data, driver):
    settings = recipe.classifier
    if settings is None:
        return method.head
    frozen = FrozenFeatures(method.backbone, data, GPU)
    settings = replace(settings, lr=min(settings.lr, 0.05))
    wanted = {"": settings}
    return learn_heads(wanted, frozen, seed=0, driver=driver, first_head=method.head)[""]


@pytest.mark.parametrize("name", recipe_names())
def test_recorded_steps_are_the_plain_ones(name):
    recipe, data = small(name), small_images(counts=(40, 20, 10, 6), n_test=4)
    losses = {driver: [] for driver in ("plain", "captured")}
    methods = {
        driver: interleave([steps(recipe, data, driver, losses[driver])])[0] for driver in losses
    }
    torch.cuda.synchronize()
    np.testing.assert_allclose(losses["captured"], losses["plain"], rtol=1e-3, atol=1e-3)
    plain = methods["plain"]
    heads = {driver: heads_of(recipe, plain, data, driver).state_dict() for driver in losses}
    for key, tensor in heads["plain"].items():
        torch.testing.assert_close(heads["captured"][key], tensor, rtol=1e-3, atol=1e-3, msg=key)


@pytest.mark.parametrize("names", [("ldam-drw", "paco", "ride"), ("dro-lt", "focal", "mixup")])
def test_methods_at_once_do_not_disturb_each_other(names):
    data = small_images(counts=(40, 20, 10, 6), n_test=4)
    together = {name: [] for name in names}
    trainings = [steps(small(name), data, "captured", together[name]) for name in names]
    interleave(trainings, make_streams(GPU, len(names)))
    torch.backends.cudnn.benchmark = False
    for name in names:
        alone = []
        interleave([steps(small(name), data, "captured", alone)])
        np.testing.assert_allclose(together[name], alone, rtol=1e-2, atol=1e-2)
