"""The loss of distance logits in Triton kernels, with its gradients, at every size.

Small steps take three kernels, all by subtraction. Larger ones go over tiles of a matrix product:
the forward pass keeps the logarithm of each tile's sum, and the backward pass computes tiles again,
a chunk of classes at a time. The row's own class always goes by subtraction. Every sum has a fixed
order, so the same inputs give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protail._messages import unknown_name
from protail.ops._arguments import check_inputs, check_target, pieces
from protail.ops._precision import accumulated, full_precision, smallest_length
from protail.ops._space import Inputs
from protail.ops.distance import Distance, as_distance
from protail.ops.kernels._device import (
    CLASS_STEP,
    PRECISIONS,
    gradient_tiles,
    interpreted,
    launch,
    precision_of,
    product_tiles,
    square_or_root,
    unsupported,
    whole,
)
from protail.ops.kernels._placed import Placed, Placing, middle_of

# Multiplications of a step below which it is computed by subtraction; classes at most.
_SMALL_STEP, _SMALL_CLASSES = 2**24, 1024
# The same for several heads together.
_SMALL_TOGETHER = 2**28
# Bytes of placed prototypes that are worked on at a time; small enough to stay near the cache.
_CHUNK_BYTES = 128 * 2**20
# Up to this size, what is placed for the forward pass is kept for the backward pass.
_KEPT_BYTES = 192 * 2**20
MOST_BYTES = 2**29
"""What the loss takes at most beside inputs and gradients, for as many rows as a batch has."""
# Up to this size, distances are kept and not computed again.
_STORED_BYTES = 64 * 2**20


def loss(
    x: Tensor,
    prototypes: Tensor,
    target: Tensor,
    *,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    adjustment: Tensor | None = None,
    reduction: str = "mean",
    precision: str | None = None,
    small: bool | None = None,
) -> Tensor:
    """Give the cross-entropy of the distance logits; see `protail.ops.reference.loss`.

    Parameters
    ----------
    x, prototypes, target, distance, reduction
        As in the reference form; on an NVIDIA GPU, in float32 or shorter. A target that is no class
        makes the loss NaN.
    temperature : Tensor, optional
        (1, channels); the others have only torch's forms.
    adjustment : Tensor, optional
        One number a class, without a gradient.
    precision : {"float32", "tf32", "bfloat16"}, optional
        How products are taken. By default as torch takes them: "tf32" after
        ``torch.set_float32_matmul_precision("high")``, otherwise "float32", which is three products
        of TF32's numbers. Squares are those of the rounded vectors.
    small : bool, optional
        Whether to compute by subtraction, without products; by default where a step is small.

    Returns
    -------
    Tensor
        A number, or one a row for ``"none"``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import kernels
    >>> x, prototypes = torch.randn(8, 4).cuda(), torch.randn(3, 4).cuda()  # doctest: +SKIP
    >>> kernels.loss(x, prototypes, torch.zeros(8).long().cuda())  # doctest: +SKIP
    tensor(1.1, device='cuda:0')
    """
    distance = as_distance(distance)
    temperature = check_inputs(x, prototypes, distance, temperature)
    target = check_target(target, x.shape[0])
    if reason := unsupported(x, prototypes, temperature, distance):
        raise ValueError(reason)
    if adjustment is not None and adjustment.requires_grad:
        raise ValueError("adjustment requires a gradient; expected one that does not.")
    for name, other in (("target", target), ("adjustment", adjustment)):
        if other is not None and other.device != x.device:
            raise ValueError(f"{name} is on {other.device}; expected {x.device}, where x is.")
    if precision is None:
        precision = precision_of(x.device)
    if precision not in PRECISIONS:
        raise ValueError(unknown_name("precision", precision, tuple(PRECISIONS)))
    with full_precision(x.device):
        scale = None if temperature is None else temperature.float()
        inputs = Inputs(x.float(), prototypes.float(), scale)
        if adjustment is not None:
            adjustment = adjustment.float().expand(1, len(prototypes)).squeeze(0)
        inputs, adjustment, distance = distance.flat(inputs, adjustment)
        if square_or_root(distance) is None:
            raise ValueError(f"the distance becomes {distance!r}; expected a root or a square.")
        if small is None:
            small = is_small(*inputs[:2])
        result: Tensor = _KernelLoss.apply(
            *(
                each if each is None else each.contiguous()
                for each in (*inputs, adjustment, target)
            ),
            _Settings(distance, reduction, precision, small),
        )
        return result


def losses(
    x: Tensor,
    prototypes: Sequence[Tensor],
    target: Tensor,
    *,
    distance: str | Distance = "euclidean",
    adjustment: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Give the mean losses of several small heads at once, as `loss` would one after the other.

    Parameters
    ----------
    x, target, distance
        As in `loss`; the rows get no gradient.
    prototypes : sequence of Tensor
        Those of each head: as many classes and channels in all of them.
    adjustment : Tensor, optional
        (heads, classes), without a gradient.

    Returns
    -------
    total : Tensor
        The sum of all losses, with the gradient.
    losses : Tensor
        That of each head, without one.
    """
    distance = as_distance(distance)
    if reason := unsupported(x, prototypes[0], None, distance) or not_together(prototypes, len(x)):
        raise ValueError(reason)
    settings = _Settings(distance, "mean", "float32", True)
    target = check_target(target, len(x))
    with full_precision(x.device):
        total, by_head = _HeadsLoss.apply(
            x.detach().float().contiguous(), adjustment, target, settings, *prototypes
        )
    return total, by_head


def not_together(prototypes: Sequence[Tensor], n_rows: int) -> str | None:
    """Say why heads cannot take a step together; None if they can."""
    first = prototypes[0]
    if any(each.shape != first.shape or each.dtype != torch.float32 for each in prototypes):
        return "heads have prototypes of different shapes or dtypes; expected the same, in float32."
    n_heads, (n_classes, n_channels) = len(prototypes), first.shape
    if n_classes > _SMALL_CLASSES or n_heads * n_rows * n_classes * n_channels > _SMALL_TOGETHER:
        return f"{n_heads} heads of {n_classes} classes are too many; expected small ones."
    return None


def is_small(x_bd: Tensor, prototypes_cd: Tensor) -> bool:
    """Say whether a step is so small that starting kernels is what takes time."""
    n_classes = len(prototypes_cd)
    return x_bd.numel() * n_classes <= _SMALL_STEP and n_classes <= _SMALL_CLASSES


class _Settings(NamedTuple):
    """What is no tensor."""

    distance: Distance
    reduction: str
    precision: str
    small: bool

    @property
    def root(self) -> bool:
        return bool(square_or_root(self.distance))

    @property
    def factor(self) -> float:
        """What a unit of ``pull (x - c)`` weighs in the gradients."""
        return self.distance.rate * (1.0 if self.root else 2.0)

    def weight(self, n_rows: int) -> float:
        """Give that and what a row weighs in the loss."""
        return self.factor / (n_rows if self.reduction == "mean" else 1)

    def reduce(self, loss_b: Tensor) -> Tensor:
        if self.reduction == "none":
            return loss_b
        reduced: Tensor = loss_b.mean() if self.reduction == "mean" else loss_b.sum()
        return reduced


class _KernelLoss(torch.autograd.Function):
    """The loss in the small or the tiled form."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x_bd, prototypes_cd, temperature, adjustment_c, target_b, settings = given
        form: type[Any] = _Small if settings.small else _Tiled
        step = form(x_bd, prototypes_cd, temperature, adjustment_c, target_b, settings)
        step.needs_c = ctx.needs_input_grad[1]
        loss_b: Tensor = step.forward() if len(x_bd) else x_bd.new_zeros(0)
        if any(ctx.needs_input_grad[:3]):
            ctx.save_for_backward(x_bd, prototypes_cd, temperature, adjustment_c, target_b)
            ctx.left, ctx.settings = step.left, settings
        reduced: Tensor = settings.reduce(loss_b)
        return reduced

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        form: type[Any] = _Small if ctx.settings.small else _Tiled
        step = form(*ctx.saved_tensors, ctx.settings)
        step.left, ctx.left = ctx.left, step.without_room(ctx.left)
        needs = ctx.needs_input_grad[:3]
        if not len(ctx.saved_tensors[0]):
            nothing = (
                torch.zeros_like(each) if need else None
                for each, need in zip(ctx.saved_tensors[:3], needs, strict=True)
            )
            return *nothing, None, None, None
        return *step.backward(grad.contiguous(), *needs), None, None, None


class _HeadsLoss(torch.autograd.Function):
    """The sum of the losses of several small heads, and each of them."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        x_bd, adjustment_hc, target_b, settings, *prototypes = given
        step = _Small(x_bd, torch.cat(prototypes), None, adjustment_hc, target_b, settings)
        step.n_heads = len(prototypes)
        by_head: Tensor = step.forward().view(-1, step.n_heads).mean(0)
        ctx.step = step
        ctx.mark_non_differentiable(by_head)
        return by_head.sum(), by_head

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        _, gradient, _ = ctx.step.backward(grad, False, True, False)
        return None, None, None, None, *gradient.chunk(ctx.step.n_heads)


class _Step:
    """The inputs of a step, and what its forward pass leaves for its backward pass."""

    def __init__(
        self,
        x_bd: Tensor,
        prototypes_cd: Tensor,
        temperature: Tensor | None,
        adjustment_c: Tensor | None,
        target_b: Tensor,
        settings: _Settings,
    ) -> None:
        self.x_bd, self.prototypes_cd, self.temperature = x_bd, prototypes_cd, temperature
        self.adjustment_c, self.target_b, self.settings = adjustment_c, target_b, settings
        self.left: tuple[Any, ...] = ()
        self.needs_c = False

    def without_room(self, left: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give what is left for another backward pass, after one that writes gradients."""
        return left

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, classes, channels."""
        return len(self.x_bd), *self.prototypes_cd.shape

    @property
    def kind(self) -> dict[str, bool]:
        return {
            "ROOT": self.settings.root,
            "ADJUSTED": self.adjustment_c is not None,
        }


class _Small(_Step):
    """Everything by subtraction; for several heads at once, whose prototypes follow each other."""

    n_heads = 1

    def forward(self) -> Tensor:
        from protail.ops.kernels import _small

        n_rows, n_classes, n_channels = self.sizes
        root, scaled = self.settings.root, self.temperature is not None
        pull_bc = self.x_bd.new_empty(n_rows, n_classes)
        loss_b = self.x_bd.new_empty(n_rows * self.n_heads)
        block = 4
        grid = -(-n_rows // block), -(-n_classes // block)
        launch(_small.measure, grid,
            self.x_bd, self.prototypes_cd, self.temperature, pull_bc, n_rows, n_classes, n_channels,
            ROOT=root, SCALED=scaled, BLOCK_B=block, BLOCK_C=block, BLOCK_D=128,
        )  # fmt: skip
        of_a_head = n_classes // self.n_heads
        wide = max(16, 1 << (of_a_head - 1).bit_length())
        tall = max(1, 1024 // wide)
        launch(_small.weigh, (-(-len(loss_b) // tall),),
            pull_bc, self.adjustment_c, self.target_b, loss_b, len(loss_b), of_a_head,
            self.n_heads, self.settings.distance.rate, smallest_length(torch.float32),
            **self.kind, BLOCK_B=tall, BLOCK_C=wide,
        )  # fmt: skip
        self.left = (pull_bc,)
        return loss_b

    def backward(self, grad: Tensor, *needs: bool) -> Iterator[Tensor | None]:
        needs_x, needs_c, needs_t = needs
        (pull_bc,) = self.left
        n_classes = len(self.prototypes_cd)
        sides = (self.x_bd, self.prototypes_cd), (self.prototypes_cd, self.x_bd)
        strides = (n_classes, 1), (1, n_classes)
        yield self._gather(*sides[0], pull_bc, grad, strides[0])[0] if needs_x else None
        gradient = energy = None
        if needs_c or needs_t:
            gradient, energy = self._gather(*sides[1], pull_bc, grad, strides[1], needs_c, needs_t)
        yield gradient
        yield None if energy is None else energy.sum(0, keepdim=True).mul_(0.5)

    def _gather(
        self,
        own: Tensor,
        others: Tensor,
        pull_bc: Tensor,
        grad: Tensor,
        strides: tuple[int, int],
        gradient: bool = True,
        energy: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        from protail.ops.kernels import _small

        n_own, n_channels = own.shape
        block, deep = 8, 32
        grid = -(-n_own // block), -(-n_channels // deep)
        found = own.new_empty(own.shape) if gradient else None
        moment = own.new_empty(grid[0], n_channels) if energy else None
        by_row = grad.ndim > 0
        of_rows = own is self.x_bd
        launch(_small.gather, grid,
            own, others, self.temperature, pull_bc, grad, found, moment,
            n_own, len(others), n_channels, *strides, self.settings.weight(len(self.x_bd)),
            OWN_GRAD=by_row and of_rows, OTHER_GRAD=by_row and not of_rows,
            SCALED=self.temperature is not None, ENERGY=energy, GRADIENT=gradient,
            BLOCK=block, BLOCK_D=deep,
        )  # fmt: skip
        return found, moment


class _Tiled(_Step):
    """Tiles of a matrix product, and the own class by subtraction."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        n_rows, n_classes, n_channels = self.sizes
        parts, dtype = PRECISIONS[self.settings.precision]
        device = self.x_bd.device
        self.tiles = product_tiles(n_rows, parts, dtype, device)
        self.gradient_tiles = gradient_tiles(n_channels, dtype, device)
        vector = (
            (2 if parts == 3 else 1) * dtype.itemsize * whole(n_channels, self.gradient_tiles.right)
        )
        self.class_step = 2 * self.tiles.left if interpreted() else CLASS_STEP
        self.at_a_time = n_classes
        if vector * n_classes > _KEPT_BYTES or interpreted():
            at_once = self.class_step if interpreted() else _CHUNK_BYTES // vector
            self.at_a_time = max(1, at_once // self.class_step) * self.class_step
        lifts = self.settings.distance.lifts
        self.lift = accumulated(n_channels, torch.float32) if lifts else 0.0
        self.least = smallest_length(torch.float32) ** 2 if self.settings.root else 0.0
        self.n_tiles = whole(n_classes, self.class_step) // self.tiles.left

    @property
    def product(self) -> dict[str, int]:
        return {
            "PARTS": PRECISIONS[self.settings.precision][0],
            "BLOCK_B": self.tiles.right,
            "BLOCK_C": self.tiles.left,
            "DEEP": self.tiles.deep,
            "DESCRIBED": self.tiles.described,
            **self.tiles.options(),
        }

    def forward(self) -> Tensor:
        from protail.ops.kernels import _tiles

        n_rows, n_classes, n_channels = self.sizes
        placing = Placing(
            middle_of(self.prototypes_cd),
            self.temperature,
            self.settings.precision,
            self.gradient_tiles.right,
        )
        rows = placing.place(self.x_bd, self.tiles.right, across=True)
        parts = self.x_bd.new_empty(n_rows, self.n_tiles)
        room = self._room(placing, rows.width)
        kept: list[Placed] = []
        stored = None
        if self.at_a_time >= n_classes:
            size = whole(n_classes, self.class_step), len(rows.square_n)
            stored = self.x_bd.new_empty(size) if 4 * size[0] * size[1] <= _STORED_BYTES else None
        for chunk in pieces(n_classes, self.at_a_time):
            end = chunk.start + whole(chunk.stop - chunk.start, self.class_step)
            own = None if room is None else room[chunk.start : end]
            classes = placing.place(self.prototypes_cd[chunk], self.class_step, room=own)
            if own is not None or self.at_a_time >= n_classes:
                kept.append(classes)
            grid = (len(classes.square_n) // self.tiles.left * -(-n_rows // self.tiles.right),)
            launch(_tiles.sum_tiles, grid,
                *self._tables(rows, classes), rows.square_n, classes.square_n,
                self.adjustment_c, self.target_b,
                parts, stored, classes.n, chunk.start, n_rows, len(rows.square_n), self.n_tiles,
                rows.width, self.settings.distance.rate, self.lift, self.least,
                STORED=stored is not None, **self.kind, **self.product, SPREAD=classes.spread,
            )  # fmt: skip
        log_total, own_pull, loss_b = self.x_bd.new_empty(3, n_rows).unbind()
        following = torch.empty(2, n_rows, dtype=torch.int32, device=self.x_bd.device)
        launch(_tiles.merge_tiles, (n_rows,),
            self.x_bd, self.prototypes_cd, self.temperature, self.adjustment_c, self.target_b,
            parts, log_total, own_pull, loss_b, following, n_rows, n_classes, self.n_tiles,
            n_channels, self.settings.distance.rate, smallest_length(torch.float32), **self.kind,
            SCALED=self.temperature is not None, BLOCK_D=512, BLOCK_T=1024, BLOCK_N=1024,
        )  # fmt: skip
        self.left = placing, rows, kept, room, stored, log_total, own_pull, following
        return loss_b

    def _room(self, placing: Placing, width: int) -> Tensor | None:
        """Give the place of the prototypes' gradient, where they lie as placed until it is due."""
        n_classes, n_channels = self.prototypes_cd.shape
        if not self.needs_c or placing.parts == 3 or width != n_channels:
            return None
        return self.x_bd.new_empty(whole(n_classes, self.class_step), n_channels)

    def _tables(self, rows: Placed, classes: Placed) -> tuple[Any, Any]:
        """Give both sides of the product as its kernels take them."""
        tiles = self.tiles
        return tiles.table(rows.vectors, tiles.right), tiles.table(classes.vectors, tiles.left)

    def without_room(self, left: tuple[Any, ...]) -> tuple[Any, ...]:
        placing, rows, _, room, *others = left
        return left if room is None else (placing, rows, [], None, *others)

    def backward(self, grad: Tensor, *needs: bool) -> Iterator[Tensor | None]:
        needs_x, needs_c, needs_t = needs
        placing, rows, kept, room, *_ = self.left
        n_rows, n_classes, n_channels = self.sizes
        grad_c = None if room is None else room[:n_classes]
        if grad_c is None and (needs_c or needs_t):
            grad_c = torch.empty_like(self.prototypes_cd)
        n_padded = len(rows.square_n)
        n_blocks = whole(n_classes, self.class_step) // self.gradient_tiles.left
        energy = self.x_bd.new_empty(n_blocks, n_channels) if needs_t else None
        row_sum = self.x_bd.new_empty(self.n_tiles, n_padded) if needs_x or needs_t else None
        pulled = torch.zeros_like(self.x_bd) if needs_x else None
        for number, chunk in enumerate(pieces(n_classes, self.at_a_time)):
            classes = (
                kept[number] if kept else placing.place(self.prototypes_cd[chunk], self.class_step)
            )
            pull, class_sum = self._pull(rows, classes, chunk.start, grad, row_sum)
            if pulled is not None:
                pulled.addmm_(
                    _total(pull, n_padded)[: classes.n, :n_rows].mT, classes.total()[:, :n_channels]
                )
            if grad_c is not None:  # where the classes are, it may be
                self._gradient(rows, classes, chunk, pull, class_sum, grad_c[chunk], energy)
        own_x, own_energy = self._add_own(grad, grad_c if needs_c else None, needs_x, needs_t)
        sum_b = None if row_sum is None else row_sum.sum(0)[:n_rows]
        u_bd = rows.total()[:, :n_channels] if sum_b is not None else None
        if pulled is not None and sum_b is not None and u_bd is not None and own_x is not None:
            pulled.addcmul_(sum_b.unsqueeze(1), u_bd, value=-1)
            if self.temperature is not None:
                pulled *= self.temperature.rsqrt()
            pulled += own_x
        yield pulled
        yield grad_c if needs_c else None
        if energy is None or sum_b is None or u_bd is None or self.temperature is None:
            yield None
            return
        total_d = energy.sum(0) + own_energy.sum(0)  # type: ignore[union-attr]
        total_d += (sum_b.unsqueeze(1) * u_bd.square()).sum(0)
        yield total_d.div_(2 * self.temperature[0]).unsqueeze(0)

    def _pull(
        self, rows: Placed, classes: Placed, first: int, grad: Tensor, row_sum: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        from protail.ops.kernels import _tiles

        n_rows = self.sizes[0]
        n_padded, n_rows_padded = len(classes.square_n), len(rows.square_n)
        stored, log_total = self.left[4:6]
        copies = rows.vectors.shape[1] // rows.width
        pull = rows.vectors.new_empty(n_padded, copies * n_rows_padded)
        n_blocks = n_rows_padded // self.tiles.right
        class_sum = self.x_bd.new_empty(n_blocks, n_padded)
        launch(_tiles.pull_tiles, (n_padded // self.tiles.left * n_blocks,),
            *self._tables(rows, classes), rows.square_n, classes.square_n,
            self.adjustment_c, self.target_b, log_total, grad,
            self.tiles.table(pull, self.tiles.left, self.tiles.right), class_sum, row_sum, stored,
            classes.n, n_padded, first, n_rows, n_rows_padded, rows.width,
            self.settings.distance.rate, self.lift, self.least, self.settings.weight(n_rows),
            GRAD_STRIDE=grad.ndim, ROW_SUMS=row_sum is not None,
            STORED=stored is not None, **self.kind, **self.product, SPREAD=classes.spread,
        )  # fmt: skip
        return pull, class_sum

    def _gradient(
        self, rows: Placed, classes: Placed, chunk: slice, pull: Tensor, class_sum: Tensor,
        out: Tensor, energy: Tensor | None,
    ) -> None:  # fmt: skip
        from protail.ops.kernels import _tiles

        n_channels = out.shape[1]
        n_padded, n_rows_padded = len(classes.square_n), len(rows.square_n)
        tiles, across = self.gradient_tiles, rows.across
        assert across is not None
        sizes = tiles.left, tiles.right
        prototypes, parts = self.prototypes_cd[chunk], PRECISIONS[self.settings.precision][0]
        # A descriptor's rows begin at multiples of 16 bytes.
        is_whole = tiles.described and n_channels % 4 == 0 and prototypes.data_ptr() % 16 == 0
        own, placed, found = prototypes, classes.vectors, out
        if is_whole:
            found = tiles.table(out, *sizes)
            own = tiles.table(prototypes, *sizes) if parts == 3 else prototypes
            placed = placed if parts == 3 else tiles.table(placed, *sizes)
        blocks = -(-n_channels // tiles.right)
        launch(_tiles.gradient_tiles, (n_padded // tiles.left * blocks,),
            tiles.table(pull, tiles.left), tiles.table(across, tiles.right),
            placed, own, self.left[0].middle_d, class_sum, self.temperature, found, energy,
            classes.n, n_padded, len(class_sum), n_rows_padded, n_channels, rows.width,
            chunk.start // tiles.left,
            SCALED=self.temperature is not None, ENERGY=energy is not None,
            PARTS=parts, SPREAD=classes.spread,
            BLOCK_C=tiles.left, BLOCK_D=tiles.right, DEEP=tiles.deep,
            DESCRIBED=tiles.described, WHOLE=is_whole, **tiles.options(),
        )  # fmt: skip

    def _add_own(
        self, grad: Tensor, grad_c: Tensor | None, of_rows: bool, of_temperature: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        from protail.ops.kernels import _tiles

        n_rows, n_classes, n_channels = self.sizes
        own_pull, following = self.left[6:]
        own_x = torch.empty_like(self.x_bd) if of_rows else None
        energy = torch.empty_like(self.x_bd) if of_temperature else None
        block = 256
        launch(_tiles.add_own, (n_rows, -(-n_channels // block)),
            self.x_bd, self.prototypes_cd, self.temperature, self.target_b, own_pull, grad,
            following, grad_c, own_x, energy, n_rows, n_classes, n_channels,
            self.settings.weight(n_rows),
            GRAD_STRIDE=grad.ndim, SCALED=self.temperature is not None,
            OF_CLASSES=grad_c is not None, OF_ROWS=of_rows, ENERGY=of_temperature, BLOCK=block,
        )  # fmt: skip
        return own_x, energy


def _total(pull: Tensor, width: int) -> Tensor:
    pull = pull.float()
    return pull if pull.shape[1] == width else pull[:, :width] + pull[:, width:]
