"""What a stage is made of: method, optimiser, schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from protail._messages import unknown_name
from protail.backbones import make_backbone
from protail.heads.registry import make_head
from protail.losses.registry import make_loss
from protail.methods import Method, make_method
from protail.methods.registry import METHODS
from protail.training._randomness import derived_seed
from protail.training.schedules import Schedule, constant, cosine, steps, warm_up
from protail.training.settings import ClassifierSettings, RepresentationSettings


def build_method(
    settings: RepresentationSettings,
    counts: np.ndarray[Any, Any],
    seed: int,
    start: Method | None = None,
) -> Method:
    """Build backbone, head and loss; same seed, same start."""
    is_taught = METHODS.needs(settings.method).get("pretrained") == "teacher"
    # Drawn as its teacher was, a student would begin too near to it to become another network.
    own_seed = derived_seed(seed, "student") if is_taught else seed
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(own_seed)  # a GPU's is that of recorded steps
        backbone = make_backbone(
            settings.backbone, pretrained=settings.pretrained, weights=settings.weights
        )
        n_features = int(backbone.n_features)  # type: ignore[arg-type]
        head = make_head(settings.head, len(counts), n_features, **settings.head_options)
        if start is not None and not is_taught:
            # Before a method makes copies of them.
            backbone.load_state_dict(start.backbone.state_dict())
            if type(head) is type(start.head):
                head.load_state_dict(start.head.state_dict())
        check_experts(settings, backbone, head)
        loss = make_loss(settings.loss, counts, **settings.loss_options)
        options = settings.method_options
        method = make_method(settings.method, backbone, head, loss, counts, **options)
    if start is not None and is_taught:
        _load_teacher(method, start)
    return method


def _load_teacher(method: Method, start: Method) -> None:
    teacher = getattr(method, "teacher", None)
    for name in ("backbone", "head"):
        own, trained = getattr(teacher, name, None), getattr(start, name)
        if not isinstance(own, nn.Module):
            raise ValueError(
                f"{type(method).__name__} has no teacher.{name}; expected a module there, because "
                'it is registered with pretrained="teacher".'
            )
        shapes = [
            {key: tensor.shape for key, tensor in part.state_dict().items()}
            for part in (own, trained)
        ]
        if type(own) is not type(trained) or shapes[0] != shapes[1]:
            raise ValueError(
                f"start has another {name} ({type(trained).__name__}) than the teacher "
                f"({type(own).__name__}), or one of another size; expected the same. Train both "
                "with one."
            )
        own.load_state_dict(trained.state_dict())


def check_experts(settings: RepresentationSettings, backbone: nn.Module, head: nn.Module) -> None:
    """Raise unless a head for experts meets a backbone that has as many."""
    there, wanted = (getattr(each, "n_experts", None) for each in (backbone, head))
    if wanted is not None and wanted != there:
        has = "none" if there is None else there
        raise ValueError(
            f"head {settings.head!r} is for {wanted} experts, and backbone {settings.backbone!r} "
            f"has {has}; expected as many, as in 'resnet32-{wanted}-experts'."
        )


def make_optimizer(
    parameters: Any, settings: RepresentationSettings, device: torch.device
) -> torch.optim.Optimizer:
    """Make the stochastic gradient descent of a stage, one kernel a step on a GPU."""
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        fused=device.type == "cuda",
    )


def make_schedule(
    settings: RepresentationSettings | ClassifierSettings, n_epochs: float
) -> Schedule:
    """Make the schedule that settings name.

    Parameters
    ----------
    settings : RepresentationSettings or ClassifierSettings
        Of a stage.
    n_epochs : float
        How long the stage is; a limit on its steps may end it within an epoch.

    Returns
    -------
    callable
        The part of the stage that is done to a factor on the rates.

    Examples
    --------
    >>> from protail.training.making import make_schedule
    >>> from protail.training.settings import RepresentationSettings
    >>> risen = make_schedule(RepresentationSettings(warm_up_epochs=5.0), 100)
    >>> risen(0.0), risen(0.05) > 0.99
    (0.0, True)
    """
    shapes: dict[str, Schedule] = {
        "cosine": cosine,
        "constant": constant,
        "steps": steps(settings.drops),
    }
    if settings.schedule not in shapes:
        raise ValueError(unknown_name("schedule", settings.schedule, shapes))
    # A limit on the steps may end a stage before its rate has risen.
    rise = min(settings.warm_up_epochs / max(n_epochs, 1e-9), 1 - 1e-9)
    return warm_up(shapes[settings.schedule], rise)
