"""GLMC's consistency: two mixtures of the same two images, blended and pasted, look alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protail.methods.method import ImageBatch, Method, register_method
from protail.ops import in_full, unit_rows
from protail.options import Count, NonNegative, checked
from protail.profile import Counts


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
    ...     share=torch.tensor(0.7),
    ...     second=torch.rand(2, 3, 8, 8),
    ...     second_share=torch.tensor(0.75),
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
        of_second = self.loss_of(second, batch._replace(share=batch.second_share))
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
        for name in ("second", "other", "share", "second_share"):
            if getattr(batch, name) is None:
                raise ValueError(
                    f"batch.{name} is missing; {self._name!r} expected two views of every "
                    "image, both mixed with the same other image. Ask for a second view, and "
                    "switch mixup, cutmix or both on."
                )
        assert batch.second is not None
        return torch.cat([batch.images, batch.second])
