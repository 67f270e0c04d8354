"""Stage 1: learn a backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from protail.backbones import check_images
from protail.data import make_sampler
from protail.data.sets import DataSet
from protail.methods import ImageBatch, Method
from protail.training._randomness import derived_seed, seed_device, with_own_generators
from protail.training.average import MovingAverage
from protail.training.captured import CapturedDriver
from protail.training.constraints import head_constraint
from protail.training.fabric import FabricDriver
from protail.training.feeds import RowBatch
from protail.training.frozen import FrozenFeatures
from protail.training.inference import autocast, for_network
from protail.training.loader import make_feed
from protail.training.loop import Driver, History, Steps, diverged, training_steps
from protail.training.making import build_method, make_optimizer, make_schedule
from protail.training.mixtures import draw_shares, mixing_alphas
from protail.training.plain import PlainDriver
from protail.training.progress import DivergenceError, Epoch
from protail.training.settings import RepresentationSettings
from protail.training.sharpness import SharpnessAware

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class RepresentationTraining:
    """Train a backbone with a head, epoch by epoch.

    Which images come, what happens to them and how they are mixed is a pure function of seed,
    epoch and place, so a training can be entered at the beginning of any epoch. What a network
    draws from torch's generators, as dropout does, hangs on seed, epoch, rank and step in the same
    way, whoever else draws meanwhile; only recorded steps share their GPU's generator, which is
    seeded anew at each epoch: the same trainings begun together draw the same.

    Parameters
    ----------
    settings : RepresentationSettings
        What the stage hangs on.
    data : DataSet
        Images, resident or in files.
    seed : int
        Same seed, same training.
    device : torch.device
        Where to train.
    captured : bool
        Whether steps are recorded and replayed; for GPUs.
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
        self.settings = settings
        self.device = device
        self.seed = seed
        counts = data.train.profile.counts
        self.method = build_method(settings, counts, seed, start).to(device)
        if device.type == "cuda":
            self.method.to(memory_format=torch.channels_last)
            if fabric is not None and fabric.world_size > 1:
                # Statistics of the whole batch, as one process would have them.
                synchronised: Any = nn.SyncBatchNorm
                self.method.backbone = synchronised.convert_sync_batchnorm(self.method.backbone)
        self._max_norm = head_constraint(self.method.head, settings.max_norm)
        self.average = MovingAverage(self.method, settings.ema) if settings.ema else None
        most = self.method.largest_batch
        if most is not None and settings.batch_size > most:
            raise ValueError(
                f"{stage}.batch_size={settings.batch_size}: method {settings.method!r} takes "
                f"{most} images at most as it is set; expected fewer, or larger settings of it."
            )
        rank, world_size = (fabric.global_rank, fabric.world_size) if fabric else (0, 1)
        self._rank, self._captured = rank, captured and fabric is None
        self._fabric: Any = fabric
        self._data, self._stage = data, stage
        # Stage 2 draws by the seed itself, and must not see again what stage 1 has seen.
        self._stream_seed = derived_seed(seed, stage)
        self._sampler = make_sampler(
            settings.sampler,
            data.train.labels,
            seed=self._stream_seed,
            rank=rank,
            world_size=world_size,
            **settings.sampler_options,
        )
        self._batch_size = _share_of_batch(settings.batch_size, world_size)
        self.feed = make_feed(
            data.train,
            settings.augment,
            seed=self._stream_seed,
            device=device,
            mixing="-".join(mixing_alphas(settings)) or None,
            second=settings.second_view,
            partners=settings.partners,
            backbone=self.method.backbone,
        )
        self._check_images(data)
        learning = [each for each in self.method.parameters() if each.requires_grad]
        self.optimizer = make_optimizer(learning, settings, device)
        if settings.sam and world_size > 1:
            raise ValueError(
                f"{stage}.sam={settings.sam:g} with {world_size} processes, which would move the "
                f"weights each its own way; expected {stage}.sam=0, or a single process."
            )
        self._nearby = SharpnessAware(self.method, self.optimizer, settings.sam)
        self._forward: Callable[..., Tensor] = (
            torch.compile(self.method, dynamic=False) if compiled else self.method
        )
        self._driver = self._make_driver(captured, fabric)
        self.steps_an_epoch = -(-len(self._sampler) // self._batch_size)
        self.n_steps = settings.epochs * self.steps_an_epoch

    def _check_images(self, data: DataSet) -> None:
        """Raise before training what a network would raise in the middle of it."""
        height, width = next(self.feed.clean(data.train.subset([0]))).shape[2:]
        self.image_size = (int(height), int(width))
        alone = self.settings.epochs > 0 and len(self._sampler) % self._batch_size == 1
        if alone and self.settings.second_view:
            raise ValueError(
                f"the last of the batches of {self._batch_size} of an epoch has one image, and "
                f"method {self.settings.method!r} needs two at least; expected another batch size. "
                f"Set {self._stage}.batch_size."
            )
        check_images(self.method.backbone, (height, width), alone=alone)

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
                raise DivergenceError(
                    f"the loss of epoch {epoch} is {history.losses[-1]}; expected a number. Lower "
                    f"{self._stage}.lr or raise {self._stage}.warm_up_epochs."
                )
            if after_epoch is not None:
                after_epoch(Epoch(epoch, history.steps[-1], history.losses[-1]))
        self._check_numbers()
        self._settle_average()
        return self.evaluated

    def _check_numbers(self) -> None:
        """Raise where the last step went wrong, of which no loss tells any more."""
        for name, parameter in self.method.named_parameters():
            if not parameter.isfinite().all():
                raise DivergenceError(
                    f"{name} holds what is no number after the last step; expected numbers. Lower "
                    f"{self._stage}.lr or raise {self._stage}.warm_up_epochs."
                )

    def _settle_average(self) -> None:
        """Count the statistics of the average's batch norms: the last weights have others."""
        if self.average is None or self.settings.epochs == 0:
            return
        batches = self._batches(self.settings.epochs - 1)
        self.average.count_anew(batches, self._show_average, self._mean_of_processes)

    def _show_average(self, rows: RowBatch) -> None:
        with autocast(self.device, self.settings.precision):
            self.evaluated(self._images(rows))

    def _mean_of_processes(self, own: Tensor) -> Tensor:
        return own if self._fabric is None else self._fabric.all_reduce(own, reduce_op="mean")

    def _begin_epoch(self, epoch: int) -> None:
        self.method.on_epoch(epoch)
        if self.method.wants_features:
            frozen = FrozenFeatures(self.method.backbone, self._data, self.device)
            features = frozen.of(self._data.train, self.settings.precision)
            self.method.on_features(features, self.feed.labels)

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
        seed = derived_seed(self.seed, purpose, epoch, self._rank)
        if not self._captured:
            return with_own_generators(steps, seed, self.device)
        # A graph is tied to the generator it was recorded with.
        seed_device(self.device, seed)
        return steps

    def _batches(self, epoch: int) -> Iterator[RowBatch]:
        return self.feed.batches(self._sampler, self._batch_size, epoch, shares=self._shares(epoch))

    def _shares(self, epoch: int) -> Tensor | None:
        shares = draw_shares(self.settings, self.n_steps, self._stream_seed)
        if shares is None:
            return None
        begin = epoch * self.steps_an_epoch
        return shares[begin : begin + self.steps_an_epoch].to(self.device)

    def _images(self, rows: RowBatch) -> ImageBatch:
        batch = self.feed(rows)
        batch = batch._replace(images=for_network(batch.images))
        if batch.second is not None:
            batch = batch._replace(second=for_network(batch.second))
        return batch

    def _loss(self, rows: RowBatch) -> Tensor:
        batch = self._images(rows)

        def loss() -> Tensor:
            with autocast(self.device, self.settings.precision):
                return self._forward(batch)

        return self._nearby(loss)

    def _after_step(self) -> None:
        self.method.after_step()
        if self._max_norm is not None:
            self._max_norm()
        if self.average is not None:
            self.average.update()

    def _make_driver(self, captured: bool, fabric: Fabric | None) -> Driver[RowBatch]:
        if fabric is not None:
            self._forward, optimizer = fabric.setup(self.method, self.optimizer)
            return FabricDriver(fabric, self._loss, optimizer, self._after_step)
        if captured:
            return CapturedDriver(self.state, self._loss, self.optimizer, self._after_step)
        return PlainDriver(self._loss, self.optimizer, self._after_step)


def _share_of_batch(batch_size: int, world_size: int) -> int:
    if batch_size % world_size:
        raise ValueError(
            f"batch_size={batch_size} cannot be shared by {world_size} processes; expected a "
            f"multiple. Set representation.batch_size to one, or start fewer processes."
        )
    return batch_size // world_size
