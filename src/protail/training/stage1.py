"""Stage 1: learn a backbone, in one phase or in several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from protail._messages import counted
from protail.data import make_sampler
from protail.data.images import DataSet
from protail.losses import make_loss
from protail.methods import METHODS, ImageBatch, Method, make_method
from protail.models.backbones import check_images, make_backbone
from protail.models.heads import make_head
from protail.training.batches import (
    RowBatch,
    derived_seed,
    draw_fractions,
    make_loader,
    mixing_alphas,
)
from protail.training.features import FrozenFeatures, autocast, for_network
from protail.training.loop import (
    CapturedDriver,
    DivergenceError,
    Epoch,
    History,
    PlainDriver,
    Result,
    Steps,
    diverged,
    make_schedule,
    training_steps,
)
from protail.training.optimisation import MovingAverage, SharpnessAware, head_constraint
from protail.training.settings import RepresentationSettings, check_experts

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class RepresentationTraining:
    """Train a backbone with a head, epoch by epoch.

    Which images come, what happens to them and how they are mixed is a pure function of seed,
    epoch and place, so a training can be entered at the beginning of any epoch. What a network
    draws from torch's generators, as dropout does, depends on seed, epoch, rank and step in the
    same way, whoever else draws meanwhile; only captured steps share their GPU's generator, which
    is seeded again at each epoch: the same trainings begun together draw the same.

    Parameters
    ----------
    settings : RepresentationSettings
        What the stage depends on.
    data : DataSet
        Images, resident or in files.
    seed : int
        Same seed, same training.
    device : torch.device
        Where to train.
    captured : bool
        Whether steps are captured and replayed, for GPUs; of images in files, from the moment on
        at which they are on the device.
    fabric : lightning.fabric.Fabric, optional
        Where several processes train together: knows the others. Each takes its part of every
        batch.
    compiled : bool
        Whether to compile the network first; worth it for long trainings on a GPU.
    start : Method, optional
        What an earlier phase has learned: its backbone, and its head where that is of the same
        kind, are where this one begins; or they are the teacher of a method that has one.
    stage : str
        What the phase is called; others draw other images.

    Attributes
    ----------
    method : Method
        What is trained.
    image_size : tuple of int
        Height and width of an image as the backbone gets it.
    """

    def __init__(
        self,
        settings: RepresentationSettings,
        data: DataSet,
        *,
        seed: int,
        device: torch.device,
        captured: bool = False,
        fabric: Fabric | None = None,
        compiled: bool = False,
        start: Method | None = None,
        stage: str = "representation",
    ) -> None:
        self.settings, self.device, self.seed = settings, device, seed
        self._data, self._stage = data, stage
        self._fabric: Any = fabric
        self._captured = captured and fabric is None
        self._part = (fabric.global_rank, fabric.world_size) if fabric else (0, 1)
        world_size = self._part[1]
        self.method = build_method(settings, data.train.profile.counts, seed, start).to(device)
        if device.type == "cuda":
            self.method.to(memory_format=torch.channels_last)
            if world_size > 1:
                # Statistics of the whole batch, as one process would have them.
                synchronised: Any = nn.SyncBatchNorm
                self.method.backbone = synchronised.convert_sync_batchnorm(self.method.backbone)
        self._max_norm = head_constraint(self.method.head, settings.max_norm)
        self.average = MovingAverage(self.method, settings.ema) if settings.ema else None
        self._check_settings(world_size)
        # Stage 2 draws by the seed itself, and must not see again what stage 1 has seen.
        self._stream_seed = derived_seed(seed, stage)
        self._sampler = make_sampler(
            settings.sampler,
            data.train.labels,
            seed=self._stream_seed,
            **settings.sampler_options,
        )
        self.loader = make_loader(
            data.train,
            settings.augment,
            seed=self._stream_seed,
            device=device,
            mixing="-".join(mixing_alphas(settings)) or None,
            second=settings.second_view,
            partners=settings.partners,
            backbone=self.method.backbone,
        )
        self.image_size = self._checked_image_size()
        self.optimizer = torch.optim.SGD(
            [each for each in self.method.parameters() if each.requires_grad],
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            fused=device.type == "cuda",
        )
        self._nearby = SharpnessAware(self.method, self.optimizer, settings.sam)
        self._forward: Callable[..., Tensor] = (
            torch.compile(self.method, dynamic=False) if compiled else self.method
        )
        self._driver = self._make_driver()
        self.steps_an_epoch = -(-len(self._sampler) // settings.batch_size)
        self.n_steps = settings.epochs * self.steps_an_epoch
        self.epochs_before = self.steps_before = 0  # those of earlier phases

    def _check_settings(self, world_size: int) -> None:
        settings, stage = self.settings, self._stage
        most = self.method.largest_batch
        if most is not None and settings.batch_size > most:
            raise ValueError(
                f"{stage}.batch_size={settings.batch_size}: method {settings.method!r} takes "
                f"{most} images at most as it is set; expected fewer, or larger settings of it."
            )
        if settings.sam and world_size > 1:
            raise ValueError(
                f"{stage}.sam={settings.sam:g} with {world_size} processes, which would move the "
                f"weights each its own way; expected {stage}.sam=0, or a single process."
            )
        if settings.batch_size % world_size:
            raise ValueError(
                f"batch_size={settings.batch_size} cannot be shared by {world_size} processes; "
                f"expected a multiple. Set {stage}.batch_size to one, or start fewer processes."
            )

    def _checked_image_size(self) -> tuple[int, int]:
        """Raise before training what a network would raise in the middle of it."""
        height, width = next(self.loader.clean(self._data.train.subset([0]))).shape[2:]
        n_last, n_parts = len(self._sampler) % self.settings.batch_size, self._part[1]
        alone = self.settings.epochs > 0 and 0 < n_last < 2 * n_parts
        if alone and self.settings.second_view:
            raise ValueError(
                f"the last of the batches of {self.settings.batch_size} of an epoch has "
                f"{counted(n_last, 'image')} for {counted(n_parts, 'process', 'processes')}, and "
                f"method {self.settings.method!r} needs two at least in each; expected another "
                f"batch size. Set {self._stage}.batch_size."
            )
        check_images(self.method.backbone, (height, width), alone=alone)
        return height, width

    def _make_driver(self) -> PlainDriver[Any]:
        if self._captured:
            return CapturedDriver(self.state, self._loss, self.optimizer, self._after_step)
        if self._fabric is None:
            return PlainDriver(self._loss, self.optimizer, self._after_step)
        self._forward, optimizer = self._fabric.setup(self.method, self.optimizer)
        return PlainDriver(self._loss, optimizer, self._after_step, self._fabric.backward)

    @property
    def evaluated(self) -> Method:
        """What is evaluated in the end: the method, or the moving average of it."""
        return self.method if self.average is None else self.average.average  # type: ignore[return-value]

    @property
    def state(self) -> nn.Module:
        """Everything that changes while training, as one module."""
        parts = [self.method] if self.average is None else [self.method, self.average]
        return nn.ModuleList(parts)

    def steps(
        self, first_epoch: int = 0, after_epoch: Callable[[Epoch], None] | None = None
    ) -> Steps[Method]:
        """Train, handing over after every step.

        Parameters
        ----------
        first_epoch : int
            Epochs that an earlier, interrupted run had finished.
        after_epoch : callable, optional
            Told what each epoch came to.

        Yields
        ------
        None
            After every step.

        Returns
        -------
        Method
            What is to be evaluated.
        """
        self.method.train()
        for epoch in range(first_epoch, self.settings.epochs):
            self._begin_epoch(epoch)
            history = yield from self._epoch_steps(epoch)
            if diverged(history):
                raise self._diverged(f"the loss of epoch {epoch} is {history.losses[-1]}")
            if after_epoch is not None:
                number, step = self.epochs_before + epoch, self.steps_before + history.steps[-1]
                after_epoch(Epoch(number, step, history.losses[-1]))
        # No loss tells any more where the last step went wrong.
        for name, parameter in self.method.named_parameters():
            if not parameter.isfinite().all():
                raise self._diverged(f"{name} is not finite after the last step")
        if self.average is not None and self.settings.epochs:
            # The averaged weights have other statistics of batch norms than the last ones.
            batches = map(self._images, self._batches(self.settings.epochs - 1))
            mean = self._fabric and partial(self._fabric.all_reduce, reduce_op="mean")
            with autocast(self.device, self.settings.precision):
                self.average.recompute_batch_norms(batches, self.evaluated, mean)
        del self._driver  # they know each other: kept, both would wait to be collected
        return self.evaluated

    def _diverged(self, what: str) -> DivergenceError:
        advice = f"Lower {self._stage}.lr or raise {self._stage}.warm_up_epochs."
        return DivergenceError(f"{what}; expected finite numbers. {advice}")

    def _begin_epoch(self, epoch: int) -> None:
        self.method.on_epoch(epoch)
        if self.method.wants_features:
            frozen = FrozenFeatures(self.method.backbone, self._data, self.device)
            features = frozen.of(self._data.train, self.settings.precision)
            self.method.on_features(features, self.loader.labels)

    def _epoch_steps(self, epoch: int) -> Steps[History]:
        steps = training_steps(
            self._driver,
            self._batches(epoch),
            self.n_steps,
            schedule=make_schedule(self.settings, self.settings.epochs),
            record_every=self.n_steps + 1,
            start=epoch * self.steps_an_epoch,
        )
        purpose = "network" if self._stage == "representation" else f"network of {self._stage}"
        seed = derived_seed(self.seed, purpose, epoch, self._part[0])
        if not self._captured:
            return _with_own_generators(steps, seed, self.device)
        # A graph is tied to the generator it was captured with.
        _generators(self.device)[-1].manual_seed(seed)
        return steps

    def _batches(self, epoch: int) -> Iterator[Any]:
        fractions = draw_fractions(self.settings, self.n_steps, self._stream_seed)
        if fractions is not None:
            begin = epoch * self.steps_an_epoch
            fractions = fractions[begin : begin + self.steps_an_epoch].to(self.device)
        size, part = self.settings.batch_size, self._part
        batches = self.loader.batches(self._sampler, size, epoch, fractions=fractions, part=part)
        # Reading and mixing come before a captured step; images in memory are augmented within it.
        in_files = self._captured and not self._data.train.is_resident
        return map(self._images, batches) if in_files else batches

    def _images(self, batch: Any) -> ImageBatch:
        if isinstance(batch, ImageBatch):
            return batch
        images = self.loader(batch)
        second = None if images.second is None else for_network(images.second)
        return images._replace(images=for_network(images.images), second=second)

    def _loss(self, batch: Any) -> Tensor:
        images = self._images(batch)
        named = batch if isinstance(batch, RowBatch) else batch[0]
        weight: float | None = getattr(named, "weight", None)

        def loss() -> Tensor:
            with autocast(self.device, self.settings.precision):
                loss = self._forward(images)
            return loss if weight is None else loss * weight

        return self._nearby(loss)

    def _after_step(self) -> None:
        self.method.after_step()
        if self._max_norm is not None:
            self._max_norm()
        if self.average is not None:
            self.average.update()


AfterEpoch = Callable[[RepresentationTraining, Epoch], None]


def stage1_steps(
    phases: Mapping[str, RepresentationSettings],
    data: DataSet,
    *,
    done: int = 0,
    restore: Callable[[RepresentationTraining], None] | None = None,
    after_epoch: AfterEpoch | None = None,
    **options: Any,
) -> Steps[Method]:
    """Train stage 1, all of its phases, handing over after every step.

    Parameters
    ----------
    phases : mapping of str to RepresentationSettings
        By the name of the phase, in their order. Each begins with what the one before it has
        learned, or has it as its teacher.
    data : DataSet
        Images, resident or in files.
    done : int
        Epochs of all phases that an earlier, interrupted run had finished.
    restore : callable, optional
        Brings a training to where it was then.
    after_epoch : callable, optional
        Told what each epoch came to, and shown the training; epochs and steps are counted over
        all phases.
    **options
        What `RepresentationTraining` takes: ``seed``, ``device``, ``captured``, ``fabric``,
        ``compiled``.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    Method
        What the last phase came to.
    """
    method: Method | None = None
    epochs_before = steps_before = 0
    last = list(phases)[-1]
    for name, settings in phases.items():
        n_done = max(0, done - epochs_before)
        training = RepresentationTraining(settings, data, start=method, stage=name, **options)
        training.epochs_before, training.steps_before = epochs_before, steps_before
        # What an earlier phase has learned is part of a later one that was begun.
        if n_done <= settings.epochs or name == last:
            if n_done and restore is not None:
                restore(training)
            tell = after_epoch and partial(after_epoch, training)
            method = yield from training.steps(n_done, tell)
            del tell
        epochs_before += settings.epochs
        steps_before += training.n_steps
        del training
        if options["device"].type == "cuda":
            gc.collect()  # what it held there is wanted now
    assert method is not None
    return method


def build_method(
    settings: RepresentationSettings,
    counts: np.ndarray[Any, Any],
    seed: int,
    start: Method | None = None,
) -> Method:
    """Build backbone, head, loss and method; same seed, same start."""
    is_taught = METHODS.needs(settings.method).get("pretrained") == "teacher"
    # With the seed of its teacher, a student would begin too near to it to become another network.
    own_seed = derived_seed(seed, "student") if is_taught else seed
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(own_seed)  # a GPU's is that of captured steps
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
        check_experts(settings, *(getattr(part, "n_experts", None) for part in (backbone, head)))
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
        shapes = [{k: t.shape for k, t in each.state_dict().items()} for each in (own, trained)]
        if type(own) is not type(trained) or shapes[0] != shapes[1]:
            raise ValueError(
                f"start has another {name} ({type(trained).__name__}) than the teacher "
                f"({type(own).__name__}), or one of another size; expected the same. Train both "
                "with one."
            )
        own.load_state_dict(trained.state_dict())


def _generators(device: torch.device) -> list[torch.Generator]:
    """Give torch's generator of the CPU and, where a training is on a GPU, that of the GPU."""
    if device.type != "cuda":
        return [torch.default_generator]
    number = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[number]]


def _with_own_generators(steps: Steps[Result], seed: int, device: torch.device) -> Steps[Result]:
    """Let torch's generators be seeded for these steps, and as they were for everybody else."""
    generators = _generators(device)
    own = [torch.Generator(each.device).manual_seed(seed).get_state() for each in generators]
    while True:
        with torch.random.fork_rng(devices=[each.device for each in generators[1:]]):
            for generator, state in zip(generators, own, strict=True):
                generator.set_state(state)
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            own = [generator.get_state() for generator in generators]
        yield
