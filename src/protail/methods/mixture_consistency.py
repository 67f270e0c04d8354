"""GLMC's consistency: two mixtures of the same two images, blended and pasted, look alike.

Alone, or beside a frozen teacher that sees the same mixtures.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from protail.methods.method import ImageBatch, Method, register_method
from protail.ops import in_full, unit_rows
from protail.options import Count, Fraction, NonNegative, Positive, checked
from protail.profile import ClassProfile, Counts


@register_method("mixture-consistency", views=2, mixes="always")
class MixtureConsistency(Method):
    """Classify two mixtures of the same two images, and draw their features together (GLMC).

    Of each image there are two views. The first is mixed with that of a partner by mixup, the
    second with that of the same partner by CutMix, by the same random fraction. With f the
    features of both, in one pass of the backbone, z = projector(f), p = predictor(z), and z held
    fixed where it is the aim::

        disagreement = 1 - (cos(p_1, z_2) + cos(p_2, z_1)) / 2
        loss = (loss_1 + loss_2) / 2 + weight * disagreement

    averaged over the batch. The loss of a view counts both classes in the fractions that the view
    really has: for CutMix, those of the box inside the image. Predictions come from backbone and
    head alone.

    Parameters
    ----------
    backbone : nn.Module
        Images to features; says how many as ``n_features``.
    head : nn.Module
        Features to logits.
    loss : nn.Module
        Logits and labels to a number.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class; only the loss goes by them.
    weight : float, default=4
        How much the disagreement counts; 0 leaves the losses of the two views.
    projection : int, default=256
        Length of what is compared.

    Attributes
    ----------
    projector, predictor : nn.Linear
        The layers beside backbone and head; both are trained.

    Notes
    -----
    GLMC is global and local mixture consistency with cumulative learning. This is its consistency
    between mixtures, and no more. Its second loss, which re-weights classes and counts for more
    from epoch to epoch (the cumulative learning), is left out: balance is the task of stage 2.

    References
    ----------
    Global and Local Mixture Consistency Cumulative Learning for Long-tailed Visual Recognitions.
    CVPR 2023.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.models.backbones import CifarResNet
    >>> from protail.methods import ImageBatch, MixtureConsistency
    >>> backbone = CifarResNet([1], [8], learned_shortcuts=False, fan="fan_in")
    >>> parts = backbone, nn.Linear(8, 3), nn.CrossEntropyLoss(), [4, 2, 1]
    >>> method = MixtureConsistency(*parts, projection=16)
    >>> batch = ImageBatch(
    ...     images=torch.rand(2, 3, 8, 8),
    ...     labels=torch.tensor([0, 2]),
    ...     other=torch.tensor([2, 0]),
    ...     fraction=torch.tensor(0.7),
    ...     second=torch.rand(2, 3, 8, 8),
    ...     second_fraction=torch.tensor(0.75),
    ... )
    >>> method(batch).shape
    torch.Size([])
    """

    _name = "mixture-consistency"

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        loss: nn.Module,
        counts: Counts,
        *,
        weight: NonNegative = 4.0,
        projection: Count = 256,
    ) -> None:
        super().__init__(backbone, head, loss, counts)
        self.weight = weight
        n_features = int(backbone.n_features)  # type: ignore[arg-type]
        self.projector = nn.Linear(n_features, projection)
        self.predictor = nn.Linear(projection, projection)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Give the loss of a batch.

        Parameters
        ----------
        batch : ImageBatch
            With a second view, and both views mixed.

        Returns
        -------
        Tensor, shape ()
            Of both views, and of how far they disagree.
        """
        features = self.features(self._both_views(batch))
        logits = in_full(self.head(features))
        return self._mixed_loss(logits, batch) + self.weight * self._disagreement(features)

    def _mixed_loss(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """Give the mean of the losses of both views, one below the other."""
        first, second = logits.chunk(2)
        of_first = self.loss_of(first, batch)
        of_second = self.loss_of(second, batch._replace(fraction=batch.second_fraction))
        return (of_first + of_second) / 2

    def _disagreement(self, features: Tensor) -> Tensor:
        """Give the mean over both views, one below the other, of one minus the cosine."""
        z = self.projector(features)
        p = self.predictor(z)
        guesses, own = (unit_rows(in_full(rows))[0] for rows in (p, z))
        aims = own.detach().roll(len(own) // 2, 0)  # those of the other view
        return 1 - (guesses * aims).sum(1).mean()

    def _both_views(self, batch: ImageBatch) -> Tensor:
        """Put the images of both views one below the other, or say what the batch lacks."""
        for name in ("second", "other", "fraction", "second_fraction"):
            if getattr(batch, name) is None:
                raise ValueError(
                    f"batch.{name} is missing; {self._name!r} expected two views of every "
                    "image, both mixed with the same other image. Ask for a second view, and "
                    "switch mixup, cutmix or both on."
                )
        assert batch.second is not None
        return torch.cat([batch.images, batch.second])


@register_method("mixture-distillation", views=2, mixes="always", pretrained="teacher")
class MixtureDistillation(MixtureConsistency):
    """Learn as "mixture-consistency" does, and from what a trained network says of the mixtures.

    The teacher is a backbone and a head of the same kinds, trained before and frozen. With s the
    student's logits of both views, t the teacher's, T the temperature and l_c the logarithm of a
    class's fraction of the training images::

        q = softmax((t - tau * l) / T)
        p = softmax((s - tau * l) / T)
        taught_loss = T^2 * KL(q || p)
        loss = (1 - taught) * (loss_1 + loss_2) / 2 + taught * taught_loss + weight * disagreement

    averaged over the batch and, for the taught loss, over both views. Predictions come from
    the student's backbone and head alone.

    Parameters
    ----------
    backbone : nn.Module
        Images to features; says how many as ``n_features``.
    head : nn.Module
        Features to logits.
    loss : nn.Module
        Logits and labels to a number.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class, none of them 0.
    weight : float, default=4
        How much the disagreement counts; 0 leaves the losses.
    projection : int, default=256
        Length of what is compared.
    taught : float, default=0.5
        Fraction of the loss that is the teacher's, from 0 to 1; the rest is that of the labels.
    tau : float, default=0
        How far teacher and student are compared as if classes were equally frequent; 1 takes the
        whole logarithm of their frequencies away.
    temperature : float, default=1
        Divides the logits that are compared; above 1, small probabilities count for more.

    Attributes
    ----------
    projector, predictor : nn.Linear
        The layers beside backbone and head; both are trained.
    teacher : Method
        Copies of backbone and head, without gradients and always in eval mode. They know nothing
        until what has been trained before is loaded into them.
    log_prior : Tensor, shape (n_classes,)
        The logarithm of every class's fraction of the training images.

    Notes
    -----
    The factor T^2 keeps the gradients of the taught loss as large at one temperature as at
    another, as in the first reference. A student of the same kind as its teacher, which starts
    from scratch, is the second's. Neither of them adjusts the logits that are compared.

    References
    ----------
    Distilling the Knowledge in a Neural Network. 2015.

    Born-Again Neural Networks. ICML 2018.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.models.backbones import CifarResNet
    >>> from protail.methods import ImageBatch, MixtureDistillation
    >>> backbone = CifarResNet([1], [8], learned_shortcuts=False, fan="fan_in")
    >>> parts = backbone, nn.Linear(8, 3), nn.CrossEntropyLoss(), [4, 2, 1]
    >>> method = MixtureDistillation(*parts, projection=16, taught=0.7)
    >>> trained = CifarResNet([1], [8], learned_shortcuts=False, fan="fan_in")
    >>> method.teacher.backbone.load_state_dict(trained.state_dict())
    <All keys matched successfully>
    >>> batch = ImageBatch(
    ...     images=torch.rand(2, 3, 8, 8),
    ...     labels=torch.tensor([0, 2]),
    ...     other=torch.tensor([2, 0]),
    ...     fraction=torch.tensor(0.7),
    ...     second=torch.rand(2, 3, 8, 8),
    ...     second_fraction=torch.tensor(0.75),
    ... )
    >>> method(batch).shape, method.train().teacher.training
    (torch.Size([]), False)
    """

    _name = "mixture-distillation"
    log_prior: Tensor

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        loss: nn.Module,
        counts: Counts,
        *,
        weight: NonNegative = 4.0,
        projection: Count = 256,
        taught: Fraction = 0.5,
        tau: NonNegative = 0.0,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(backbone, head, loss, counts, weight=weight, projection=projection)
        self.taught, self.tau, self.temperature = taught, tau, temperature
        # It is never asked for a loss, and one with a state would be saved twice.
        copies = copy.deepcopy(backbone), copy.deepcopy(head)
        self.teacher = Method(*copies, nn.Identity(), counts).requires_grad_(False).eval()
        log_prior = ClassProfile.of(counts).log_prior
        self.register_buffer(
            "log_prior", torch.as_tensor(log_prior, dtype=torch.get_default_dtype())
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything but the teacher, which stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def _mixed_loss(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        """Give the loss of the labels and of the teacher, of both views."""
        with torch.no_grad():
            aims = self.teacher.logits(self._both_views(batch))
        labelled = (1 - self.taught) * super()._mixed_loss(logits, batch)
        return labelled + self.taught * self._taught_loss(logits, aims)

    def _taught_loss(self, logits: Tensor, aims: Tensor) -> Tensor:
        log_p, log_q = self._compared(logits), self._compared(aims)
        # Its gradient is as many times smaller.
        return self.temperature**2 * kl_div(log_p, log_q, reduction="batchmean", log_target=True)

    def _compared(self, logits: Tensor) -> Tensor:
        adjusted = logits - self.tau * self.log_prior.to(logits.dtype)
        return (adjusted / self.temperature).log_softmax(1)
