"""What tests of methods share: a small network, images of four colours, a few steps."""

from contextlib import contextmanager

import torch
from torch import nn

from protail.losses import make_loss
from protail.methods import ImageBatch, make_method
from protail.models.backbones import CifarResNet
from protail.models.heads import LinearHead

COUNTS = [50, 20, 7, 3]
# Losses that a method with a loss of its own would pass over.
OTHER_LOSSES = [
    make_loss("logit-adjusted", COUNTS),
    make_loss("cross-entropy", COUNTS, label_smoothing=0.1),
    make_loss("cross-entropy", COUNTS, reweight_from=160),
]


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def small_method(name, **options):
    """Make a method with a network that takes milliseconds a step."""
    torch.manual_seed(0)
    backbone = CifarResNet([1, 1], [8, 16], learned_shortcuts=False, fan="fan_in")
    parts = backbone, LinearHead(len(COUNTS), 16), nn.CrossEntropyLoss()
    return make_method(name, *parts, COUNTS, **options)


def coloured_images(n, seed):
    """Make two views of images whose class is a colour, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % len(COUNTS)
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])[labels]
    noise = torch.randn(2, n, 3, 8, 8, generator=generator)
    first, second = colours[:, :, None, None] + 0.5 * noise
    return ImageBatch(first, labels, second=second)


def losses_of_steps(method, optimizer, n_steps=40, before_step=lambda step: None):
    """Train on coloured images, and give the loss of every step."""
    losses = []
    for step in range(n_steps):
        before_step(step)
        loss = method(coloured_images(16, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
