"""What a stage of training depends on, typed; recipes are written in these words."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from protail.options import BelowOne, Count, Epoch, NonNegative, Positive

Precision = Literal["bfloat16", "float32"]
"""What a backbone computes in."""
PartnerSource = Literal["batch", "instance", "class-balanced", "square-root"]


@dataclass(frozen=True, kw_only=True)
class RepresentationSettings:
    """Stage 1: learn a backbone, and a head to learn it with.

    Attributes
    ----------
    backbone : str
        A name `protail.models.backbones.make_backbone` knows.
    pretrained : bool
        Whether the backbone starts from the weights that timm has for it.
    weights : str or None
        A file of weights that the backbone starts from.
    method : str
        What a step computes; "standard" is backbone, head and loss.
    method_options : dict
        What the method takes beside them.
    head, loss : str
        Names of the head and the loss.
    head_options, loss_options : dict
        What they take.
    epochs, batch_size : int
        Length and width of the training.
    lr, momentum, nesterov, weight_decay
        Stochastic gradient descent; weight decay is on all parameters.
    schedule : {"cosine", "steps", "constant"}
        How the learning rate falls.
    drops : tuple of (float, float)
        For "steps": from which fraction of the training on, which factor.
    warm_up_epochs : float
        Epochs in which the learning rate rises from 0.
    sampler : str
        Which image comes next.
    sampler_options : dict
        What the sampler takes.
    augment : tuple of str
        What happens to an image, in this order.
    second_view : tuple of str
        For methods that compare two views of an image: what happens to it in the second one.
    mixup, cutmix : float
        Alpha of the Beta distribution of the fractions that are mixed; 0 mixes nothing. With both,
        each step takes one of them, with a fraction of its own distribution; of two views, the
        first takes mixup and the second CutMix, with one fraction.
    partners : {"batch", "instance", "class-balanced", "square-root"}
        Where the images that others are mixed with come from: out of the same batch, or drawn
        from all training images by the sampler of that name, class-balanced without runs. With
        "class-balanced" and CutMix, rare classes are pasted onto images of all kinds.
    max_norm : float
        How long a row of the head's weights may be after a step; 0 lets it be.
    sam : float
        Radius of sharpness-aware minimisation (SAM): gradients, and the loss that is shown, are
        those of the worst place within it, which takes two passes a step; 0 for none. For method
        "standard" and one process.
    ema : float
        Decay of the moving average of the weights that is evaluated; 0 for none. Its batch norms
        count their statistics in one more pass over the images of the last epoch.
    precision : {"bfloat16", "float32"}
        What the backbone computes in.
    """

    backbone: str = "resnet34-cifar"
    pretrained: bool = False
    weights: str | None = None
    method: str = "standard"
    method_options: dict[str, Any] = field(default_factory=dict)
    head: str = "linear"
    head_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "cross-entropy"
    loss_options: dict[str, Any] = field(default_factory=dict)
    epochs: Epoch = 200
    batch_size: Count = 64
    lr: Positive = 0.01
    momentum: BelowOne = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 5e-3
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    drops: tuple[tuple[float, float], ...] = ()
    warm_up_epochs: NonNegative = 0.0
    sampler: str = "instance"
    sampler_options: dict[str, Any] = field(default_factory=dict)
    augment: tuple[str, ...] = ("crop", "flip")
    second_view: tuple[str, ...] = ()
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    partners: PartnerSource = "batch"
    max_norm: NonNegative = 0.0
    sam: NonNegative = 0.0
    ema: BelowOne = 0.0
    precision: Precision = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """Stage 2: learn a head on the frozen backbone.

    Attributes
    ----------
    head, loss : str
        Names of the head and the loss.
    head_options, loss_options : dict
        What they take.
    start : {"new", "representation"}
        Whether the head is a new one, or begins with the one that stage 1 has learned.
    centroids : {"clean", "augmented"} or None
        Where prototypes start: at the means of clean features, or of the augmented ones of the
        first epoch's stream; None for heads that start otherwise.
    epochs : int
        Passes of the sampler; 0 learns nothing.
    max_steps : int or None
        Upper limit on the steps.
    batch_size, lr, momentum, nesterov, weight_decay
        As in stage 1.
    temperature_lr, temperature_weight_decay : float
        The same for temperatures.
    max_norm : float
        As in stage 1.
    max_norm_part : float or None
        The same by what the rows are at the beginning: 0 allows the length of the shortest, 1
        that of the longest, and so on between; None lets them be.
    max_norm_every : {"step", "epoch"}
        When rows that are too long are made shorter.
    warm_up_epochs : float
        As in stage 1.
    schedule : {"cosine", "steps", "constant"}
        How the learning rate falls.
    drops : tuple of (float, float)
        For "steps": from which fraction of the training on, which factor.
    sampler, sampler_options, augment
        As in stage 1.
    precision : {"bfloat16", "float32"}
        What the frozen backbone computes in.
    batch_norm : {"eval", "published"}
        Whether batch norms use the statistics of stage 1 throughout, or, as in the published
        code, from the second epoch on those of the batch, by which the running ones that serve
        the test drift away from stage 1.
    """

    head: str = "prototype"
    head_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "logit-adjusted"
    loss_options: dict[str, Any] = field(default_factory=dict)
    start: Literal["new", "representation"] = "new"
    centroids: Literal["clean", "augmented"] | None = "augmented"
    epochs: Epoch = 1
    max_steps: Count | None = None
    batch_size: Count = 64
    lr: Positive = 4.0
    momentum: BelowOne = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 0.0
    temperature_lr: NonNegative = 0.005
    temperature_weight_decay: NonNegative = 0.0
    max_norm: NonNegative = 0.0
    max_norm_part: NonNegative | None = None
    max_norm_every: Literal["step", "epoch"] = "step"
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    drops: tuple[tuple[float, float], ...] = ()
    warm_up_epochs: NonNegative = 0.0
    sampler: str = "class-balanced"
    sampler_options: dict[str, Any] = field(default_factory=partial(dict, run=4))
    augment: tuple[str, ...] = ("crop", "flip", "autoaugment", "cutout")
    precision: Precision = "bfloat16"
    batch_norm: Literal["eval", "published"] = "eval"


def check_experts(settings: RepresentationSettings, there: int | None, wanted: int | None) -> None:
    """Raise unless a head for experts meets a backbone that has as many."""
    if wanted is not None and wanted != there:
        has = "none" if there is None else there
        raise ValueError(
            f"head {settings.head!r} is for {wanted} experts, and backbone {settings.backbone!r} "
            f"has {has}; expected as many, as in 'resnet32-{wanted}-experts'."
        )
