"""Every recipe that comes with the package takes a step, and learns something."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from protail.experiments import (
    Job,
    Options,
    Run,
    evaluate_stages,
    load_stages,
    pipeline,
    run_jobs,
)
from protail.losses.registry import make_loss
from protail.models.backbones import make_backbone
from protail.models.heads import make_head
from protail.recipes import recipe_names
from protail.training.features import FrozenFeatures, Stream
from protail.training.stage1 import RepresentationTraining
from protail.training.stage2 import FeatureBatch, HeadGroup, learn_heads
from reference.small_images import small_images
from reference.small_recipes import small_recipe

CPU = torch.device("cpu")
DATA = small_images(counts=(48, 24, 12, 8), size=24)
CHANCE = 1 / DATA.train.profile.n_classes


@pytest.fixture(scope="module", autouse=True)
def trained_once():
    """Let recipes that share a stage 1 share its training, as tables do."""
    trained, train = {}, pipeline.stage1_steps

    def steps(phases, *data, **options):
        if (key := repr(phases)) not in trained:
            trained[key] = yield from train(phases, *data, **options)
        return deepcopy(trained[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "stage1_steps", steps)
        yield


def gradients_are_where_they_belong(module):
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{name} gets no gradient"
            assert parameter.grad.isfinite().all(), f"{name} has a gradient that is no number"
            assert parameter.grad.any(), f"{name} has a gradient of nothing but zeros"
        else:
            assert parameter.grad is None, f"{name} is frozen and gets a gradient"


@pytest.mark.parametrize("name", recipe_names())
def test_a_step_has_a_finite_loss_and_gradients_where_something_learns(name):
    recipe = small_recipe(name)
    method = None
    for stage, settings in recipe.phases.items():
        training = RepresentationTraining(
            settings, DATA, seed=0, device=CPU, start=method, stage=stage
        )
        method = training.method.train()
        training._begin_epoch(0)
        batch = training.loader(next(training._batches(0)))
        loss = method(batch)
        assert loss.isfinite()
        loss.backward()
        gradients_are_where_they_belong(method)
    if recipe.classifier is not None:
        step_of_stage_2(recipe.classifier, method)


def step_of_stage_2(settings, method):
    frozen = FrozenFeatures(method.backbone, DATA, CPU)
    start = learn_heads({"": replace(settings, epochs=0)}, frozen, seed=0, first_head=method.head)[
        ""
    ]
    if not list(start.parameters()):
        assert settings.epochs == 0
        return
    loss = make_loss(settings.loss, frozen.counts, **settings.loss_options)
    group = HeadGroup({"": start}, {"": loss}).train()
    features, labels = frozen.stream(Stream.of(settings), 0, 0, 64)
    optimizer = torch.optim.SGD(group.parameters(), lr=0.1)
    # Two steps: what a head begins with may be where some of it does not matter yet.
    for _ in range(2):
        optimizer.zero_grad()
        value = group(FeatureBatch(features, labels))
        assert value.isfinite()
        value.backward()
        optimizer.step()
    gradients_are_where_they_belong(start)


def filled(module, name, weights):
    """Fill a module with what a run says of that name."""
    parts = {key.partition("."): tensor for key, tensor in weights.items()}
    module.load_state_dict(
        {rest: tensor for (part, _, rest), tensor in parts.items() if part == name}
    )
    return module.eval()


def stage_2_has_learned(job):
    """Say whether the head is another one than it was at the start of stage 2."""
    first, second = job.recipe.representation, job.recipe.classifier
    weights = Run.open(job.folder).weights()
    backbone = filled(make_backbone(first.backbone), "backbone", weights)
    frozen = FrozenFeatures(backbone, DATA, CPU)
    sizes = len(frozen.counts), frozen.n_features
    stage_1 = filled(make_head(first.head, *sizes, **first.head_options), "representation", weights)
    start = learn_heads({"": replace(second, epochs=0)}, frozen, seed=0, first_head=stage_1)[""]
    learned = filled(make_head(second.head, *sizes, **second.head_options), "classifier", weights)
    before, after = start.state_dict(), learned.state_dict()
    return any(not torch.equal(before[name], after[name]) for name in after)


@pytest.mark.parametrize("name", recipe_names())
def test_a_short_training_ends_above_chance_and_is_judged_the_same_again(name, tmp_path):
    recipe = small_recipe(name)
    job = Job(recipe, DATA, 0, tmp_path / "run")
    [record] = run_jobs([job], Options(CPU, "plain"))
    last = "classifier" if recipe.classifier is not None else "representation"
    assert record[last]["plain"]["all"] > 1.5 * CHANCE
    if recipe.classifier is not None and recipe.classifier.epochs:
        assert stage_2_has_learned(job)
    stages = load_stages(Run.open(job.folder), DATA, CPU)
    assert evaluate_stages(stages) == record


@pytest.mark.parametrize("name", ["pc-la", "crt", "lws"])
def test_it_would_be_seen_if_stage_2_learned_nothing(name, tmp_path):
    recipe = small_recipe(name)
    unlearned = replace(recipe, classifier=replace(recipe.classifier, epochs=0))
    job = Job(unlearned, DATA, 0, tmp_path / "run")
    run_jobs([job], Options(CPU, "plain"))
    assert not stage_2_has_learned(job)
