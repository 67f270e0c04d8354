"""Parametric contrastive learning: classes and other images' embeddings share one softmax."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, distributed, nn

from protail.losses import check_plain_cross_entropy
from protail.methods.method import ImageBatch, Method, register_method
from protail.ops import full_precision, in_full, unit_rows
from protail.options import Count, Fraction, NonNegative, Positive, checked
from protail.profile import ClassProfile, Counts


@register_method(
    "paco", views=2, heads=("linear",), losses=("cross-entropy",), mixes=False, plain_loss=True
)
class PaCo(Method):
    """Draw an image to its class and to images of it, away from others (PaCo).

    The first view of an image is classified, and projected to an embedding h of length 1. The
    second becomes a key: the embedding that a slowly following copy of backbone and projector
    makes of it. For image i, a class c scores ``u_c = z_c + log prior_c``, with z the head's
    logits, and a sample a, which is another image's embedding, a key of this batch or one of the
    queue, scores ``v_a = h_i . h_a / temperature``. With P the samples of image i's class::

        log D = log(sum_c exp u_c + gamma * sum_a exp v_a)
        loss  = log D - (beta * u_y + alpha * sum_(a in P) v_a) / (beta + alpha * |P|)

    averaged over the batch. With ``alpha = gamma = 0`` this is the balanced softmax. It takes the
    place of the loss that the method is given, which must be the plain cross-entropy: what is left
    of ``u`` alone. Trained are backbone, projector and head; predictions come from backbone and
    head alone.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    head : nn.Linear
        A linear head, whose weights are the learned centres of the classes.
    loss : nn.Module
        The plain cross-entropy.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class, none of them 0.
    alpha : float, default=0.01
        What each sample of the class counts as a target.
    temperature : float, default=0.05
        Divides the products of embeddings.
    gamma : float, default=1
        What samples count against classes in the softmax.
    beta : float, default=1
        What the class itself counts as a target.
    queue : int, default=1024
        Keys of earlier batches to keep; at least the batch size, of all processes together.
    projection : int, default=32
        Length of an embedding.
    key_momentum : float, default=0.999
        How much of the key networks' parameters stays at each step.

    Attributes
    ----------
    projector, key_backbone, key_projector : nn.Module
        The networks beside backbone and head. Those of the keys have no gradients, and statistics
        of their own in batch norms.
    queue_keys : Tensor, shape (queue, projection)
        First random directions, then keys; the oldest is overwritten first.
    queue_labels : Tensor of int, shape (queue,)
        Their classes; at first random ones.
    queue_place : Tensor of int, shape ()
        Where the next key goes.

    Notes
    -----
    Where several processes train together, a process contrasts its own part of the batch with
    itself and with the queue. The queue is one: it takes the keys of all of them, in the order of
    their ranks, so that every process has the same.

    The published code starts the queue with rows of length ``sqrt(projection / queue)``; here they
    have length 1, as keys have. Whether the paper's equation has the division by
    ``beta + alpha * |P|`` was not verified; the published code has it.

    References
    ----------
    Parametric Contrastive Learning. ICCV 2021.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.methods import ImageBatch, PaCo
    >>> parts = nn.Flatten(), nn.Linear(12, 3), nn.CrossEntropyLoss(), [4, 2, 1]
    >>> method = PaCo(*parts, queue=8)
    >>> batch = ImageBatch(torch.rand(2, 3, 2, 2), torch.tensor([0, 2]))
    >>> method(batch._replace(second=torch.rand(2, 3, 2, 2))).shape
    torch.Size([])
    >>> method.queue_place, method.queue_labels[:2]
    (tensor(2), tensor([0, 2]))
    """

    log_prior: Tensor
    queue_keys: Tensor
    queue_labels: Tensor
    queue_place: Tensor

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        loss: nn.Module,
        counts: Counts,
        *,
        alpha: NonNegative = 0.01,
        temperature: Positive = 0.05,
        gamma: NonNegative = 1.0,
        beta: NonNegative = 1.0,
        queue: Count = 1024,
        projection: Count = 32,
        key_momentum: Fraction = 0.999,
    ) -> None:
        super().__init__(backbone, head, loss, counts)
        self.check_options(alpha, beta)
        check_plain_cross_entropy(loss, "'paco' has a loss of its own")
        self.alpha, self.beta, self.gamma = alpha, beta, gamma
        self.temperature = temperature
        self.key_momentum = key_momentum
        n_features = head.in_features
        self.projector = nn.Sequential(
            nn.Linear(n_features, n_features),
            nn.BatchNorm1d(n_features),
            nn.ReLU(inplace=True),
            nn.Linear(n_features, projection),
        )
        self.key_backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.key_projector = copy.deepcopy(self.projector).requires_grad_(False)
        profile = ClassProfile.of(counts)
        self.register_buffer(
            "log_prior", torch.as_tensor(profile.log_prior, dtype=torch.get_default_dtype())
        )
        self.register_buffer("queue_keys", unit_rows(torch.randn(queue, projection))[0])
        self.register_buffer("queue_labels", torch.randint(profile.n_classes, (queue,)))
        self.register_buffer("queue_place", torch.zeros((), dtype=torch.int64))
        self.largest_batch = queue

    @staticmethod
    def check_options(alpha: float, beta: float, **others: object) -> None:
        """Raise unless something is learned."""
        if alpha + beta == 0:
            raise ValueError("alpha=0 and beta=0 leave nothing to learn; expected one above 0.")

    def forward(self, batch: ImageBatch) -> Tensor:
        """Give the loss of a batch; in training, let the key networks and the queue follow.

        Parameters
        ----------
        batch : ImageBatch
            With a second view, and not mixed.

        Returns
        -------
        Tensor, shape ()
            The mean over the batch.
        """
        second = self._checked_second(batch)
        features = self.features(batch.images)
        logits = self.head(features)
        queries = _embeddings(self.projector(features))
        keys = self._keys(second)
        with full_precision(logits.device):  # at a temperature of 0.05 scores reach 20
            loss = self._contrast(logits.to(queries.dtype), queries, keys, batch.labels)
        if self.training:
            self._put_into_queue(_of_all_processes(keys), _of_all_processes(batch.labels))
        return loss

    def _contrast(self, logits_bc: Tensor, q_bd: Tensor, k_bd: Tensor, label_b: Tensor) -> Tensor:
        """Give the loss by the queue as it is."""
        # One new tensor: the queue may change before the gradients are computed.
        sample_sd = torch.cat([q_bd, k_bd, self.queue_keys.to(q_bd.dtype)])
        sample_label_s = torch.cat([label_b, label_b, self.queue_labels])
        itself_bs = torch.eye(len(q_bd), len(sample_sd), dtype=torch.bool, device=q_bd.device)
        alike_bs = (label_b.unsqueeze(1) == sample_label_s) & ~itself_bs

        u_bc = logits_bc + self.log_prior.to(logits_bc.dtype)
        v_bs = q_bd @ sample_sd.mT / self.temperature
        log_gamma = math.log(self.gamma) if self.gamma else -math.inf
        rivals_bs = (v_bs + log_gamma).masked_fill(itself_bs, -math.inf)
        log_d_b = torch.cat([u_bc, rivals_bs], 1).logsumexp(1)

        target_b = u_bc.gather(1, label_b.unsqueeze(1)).squeeze(1)
        wanted_b = self.beta * target_b + self.alpha * (alike_bs * v_bs).sum(1)
        n_alike_b = alike_bs.sum(1, dtype=v_bs.dtype)
        return (log_d_b - wanted_b / (self.beta + self.alpha * n_alike_b)).mean()

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """Embed second views; in training, after a step of the key networks towards the others."""
        if self.training:
            followed = _parameters(self.backbone, self.projector)
            own = _parameters(self.key_backbone, self.key_projector)
            torch._foreach_lerp_(own, followed, 1 - self.key_momentum)
        return _embeddings(self.key_projector(self.key_backbone(images)))

    @torch.no_grad()
    def _put_into_queue(self, keys_bd: Tensor, label_b: Tensor) -> None:
        n_places = len(self.queue_keys)
        place_b = (self.queue_place + torch.arange(len(label_b), device=label_b.device)) % n_places
        self.queue_keys.index_copy_(0, place_b, keys_bd.to(self.queue_keys.dtype))
        self.queue_labels.index_copy_(0, place_b, label_b)
        self.queue_place.add_(len(label_b)).remainder_(n_places)

    def _checked_second(self, batch: ImageBatch) -> Tensor:
        if batch.second is None:
            raise ValueError(
                "batch.second is missing; 'paco' expected two views of every image. Give the same "
                "images, augmented another way, as batch.second."
            )
        if batch.other is not None:
            raise ValueError(
                "batch.other is given; 'paco' expected images of one class each, because keys are "
                "told apart by theirs. Switch mixup and cutmix off."
            )
        n_images, n_places, n_processes = len(batch.labels), len(self.queue_keys), _n_processes()
        if n_images * n_processes > n_places or (self.training and n_images < 2):
            each = "" if n_processes == 1 else f" in each of {n_processes} processes"
            raise ValueError(
                f"batch has {n_images} images{each}; 'paco' expected from 2, which batch norm "
                f"needs, to the {n_places} that its queue can take. Change the batch size or the "
                "option 'queue'."
            )
        return batch.second


def _parameters(*modules: nn.Module) -> tuple[Tensor, ...]:
    return tuple(parameter for module in modules for parameter in module.parameters())


def _n_processes() -> int:
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def _of_all_processes(rows: Tensor) -> Tensor:
    """Put the rows of all processes, whose numbers may differ, one below the other."""
    # Otherwise each would have a queue of its own, and in place of it get that of the first:
    # buffers are kept alike.
    n_processes = _n_processes()
    if n_processes == 1:
        return rows
    own = torch.tensor(len(rows), device=rows.device)
    numbers = [torch.empty_like(own) for _ in range(n_processes)]
    distributed.all_gather(numbers, own)
    filled = rows.new_zeros(max(map(int, numbers)), *rows.shape[1:])
    filled[: len(rows)] = rows
    gathered = [torch.empty_like(filled) for _ in range(n_processes)]
    distributed.all_gather(gathered, filled)
    return torch.cat([part[:n] for part, n in zip(gathered, map(int, numbers), strict=True)])


def _embeddings(projected_bd: Tensor) -> Tensor:
    """Scale rows to length 1, in float32 at least."""
    return unit_rows(in_full(projected_bd))[0]
