"""Distributional robustness: classes gather around class means that may be off by a radius."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as weighted_cross_entropy

from protail.losses import check_plain_cross_entropy
from protail.methods.method import ImageBatch, Method, register_method
from protail.models.heads import class_means
from protail.ops import distances, in_full
from protail.options import NonNegative, Positive, checked
from protail.profile import ClassProfile, Counts


@register_method(
    "dro-lt",
    heads=("linear",),
    losses=("cross-entropy",),
    mixes=False,
    pretrained=True,
    plain_loss=True,
)
class DroLT(Method):
    """Draw features to the mean of their class, as if it were a radius further away (DRO-LT).

    The paper's centroids are the class means of the training images' features, taken before each
    epoch and held until the next. With d_ci the Euclidean distance of feature i from centroid c,
    ``a_ci = -(d_ci + radius_c [y_i = c]) / temperature``, and n_c the images of class c in the
    batch, the robust loss of a class is a softmax over the images of the batch::

        l_c = log(sum_i exp a_ci) - sum_(i: y_i = c) a_ci / n_c

    averaged over the classes of the batch. Added is the cross-entropy of the head, in which a
    class counts as its fraction of the largest class. The head is frozen: features are learned that
    suit it. That the method begins with a trained backbone and head, and that the head learns
    again in the end, is the work of other stages.

    Parameters
    ----------
    backbone : nn.Module
        Images to features; trained before.
    head : nn.Linear
        A linear head, trained with the backbone. Its ``requires_grad`` is switched off.
    loss : nn.Module
        The plain cross-entropy, to which the weights of the classes are added here.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class.
    cross_entropy : float, default=1
        Factor of the cross-entropy.
    radius : float, default=1
        How far off a class mean may be, at the start.
    learned : bool, default=True
        Whether each class learns a radius of its own; otherwise they stay.
    temperature : float, default=1
        Divides distances and radii.

    Attributes
    ----------
    centroids : Tensor, shape (n_classes, n_features)
        Zero until `on_features` is called.
    radii : Tensor, shape (n_classes,)
        A parameter where they are learned, otherwise a buffer. They may take any sign.

    Notes
    -----
    Where paper and published code differ, this does what the code is meant to do. The paper, as
    far as we know (we did not verify it), adds twice the radius and mixes the two losses by
    lambda and 1 - lambda: ``radius=2`` and ``cross_entropy = lambda / (1 - lambda)`` give that, up
    to a factor of the whole and the pace at which radii are learned. The published code adds the
    radius once and sums the losses, but puts the radii of the images in the order of the batch to
    places in the order of the classes, so that classes get each other's; here each class gets its
    own. It also takes the centroids from augmented, resampled images; here they are those of
    the training images as they are. Where several processes train together, the images of the
    batch are those of one of them.

    References
    ----------
    Distributional Robustness Loss for Long-tail Learning. ICCV 2021.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.methods import DroLT, ImageBatch
    >>> method = DroLT(nn.Flatten(), nn.Linear(12, 3), nn.CrossEntropyLoss(), [4, 2, 1])
    >>> images, labels = torch.rand(7, 3, 2, 2), torch.tensor([0, 0, 0, 0, 1, 1, 2])
    >>> method.on_features(method.features(images), labels)
    >>> method(ImageBatch(images, labels)).shape, method.radii.data
    (torch.Size([]), tensor([1., 1., 1.]))
    """

    wants_features = True
    centroids: Tensor
    radii: Tensor
    class_weights: Tensor

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        loss: nn.Module,
        counts: Counts,
        *,
        cross_entropy: NonNegative = 1.0,
        radius: NonNegative = 1.0,
        learned: bool = True,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(backbone, head, loss, counts)
        check_plain_cross_entropy(loss, "'dro-lt' weighs the classes itself")
        head.requires_grad_(False)
        self.cross_entropy = cross_entropy
        self.temperature = temperature
        profile = ClassProfile.of(counts)
        dtype = torch.get_default_dtype()
        weights = torch.as_tensor(profile.counts / profile.counts.max(), dtype=dtype)
        self.register_buffer("class_weights", weights)
        self.register_buffer("centroids", torch.zeros(profile.n_classes, head.in_features))
        radii = torch.full_like(weights, radius)
        if learned:
            self.radii = nn.Parameter(radii)
        else:
            self.register_buffer("radii", radii)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Give the loss of a batch.

        Parameters
        ----------
        batch : ImageBatch
            Not mixed.

        Returns
        -------
        Tensor, shape ()
            The cross-entropy times its factor, and the robust loss.
        """
        if batch.other is not None:
            raise ValueError(
                "batch.other is given; 'dro-lt' expected images of one class each, because each "
                "is drawn to one class mean. Switch mixup and cutmix off."
            )
        features = self.features(batch.images)
        logits = in_full(self.head(features))
        weights = self.class_weights.to(logits.dtype)
        classified = weighted_cross_entropy(logits, batch.labels, weights)
        return self.cross_entropy * classified + self._robust(features, batch.labels)

    def _robust(self, features_bd: Tensor, label_b: Tensor) -> Tensor:
        class_c = torch.arange(len(self.centroids), device=label_b.device)
        target_cb = class_c.unsqueeze(1) == label_b
        count_c = target_cb.sum(1)

        distance_cb = distances(features_bd, self.centroids, target=label_b).mT
        a_cb = -(distance_cb + target_cb * self.radii.unsqueeze(1)) / self.temperature
        loss_c = a_cb.logsumexp(1) - (target_cb * a_cb).sum(1) / count_c.clamp_min(1)
        present_c = count_c > 0
        return (present_c * loss_c).sum() / present_c.sum()

    @torch.no_grad()
    def on_features(self, features: Tensor, labels: Tensor) -> None:
        """Set the class means, in place; a class without images keeps its own.

        Parameters
        ----------
        features : Tensor, shape (n_images, n_features)
            Of every training image.
        labels : Tensor of int, shape (n_images,)
            Class codes.
        """
        present, places = torch.unique(labels, return_inverse=True)
        means = class_means(features, places)
        self.centroids.index_copy_(0, present.to(self.centroids.device), means.to(self.centroids))
