"""Stage 1 of several processes as one plain loop: batch norm of each part, gradients averaged."""

import torch

from protail.data import make_sampler
from protail.methods import ImageBatch
from protail.training import build_method
from protail.training.batches import derived_seed, make_loader
from protail.training.loop import make_schedule
from protail.training.optimisation import head_constraint


def train_in_parts(settings, data, seed, n_parts):
    """Train epoch by epoch, each in so many parts; give the state of backbone and head."""
    stream_seed = derived_seed(seed, "representation")
    method = build_method(settings, data.train.profile.counts, seed).train()
    sampler = make_sampler(settings.sampler, data.train.labels, seed=stream_seed)
    device = torch.device("cpu")
    loader = make_loader(data.train, settings.augment, seed=stream_seed, device=device)
    optimizer = torch.optim.SGD(
        method.parameters(),
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
    constraint = head_constraint(method.head, settings.max_norm)
    schedule, step = make_schedule(settings, settings.epochs), 0
    n_steps = settings.epochs * -(-len(sampler) // settings.batch_size)
    for epoch, n in enumerate(n_parts):
        for batch in loader.batches(sampler, settings.batch_size, epoch):
            images = loader(batch)
            optimizer.zero_grad()
            # Batch norm has in the end what the first process has seen.
            for part in reversed(range(n)):
                own = ImageBatch(images.images[part::n], images.labels[part::n])
                if not len(own.labels):
                    continue
                before = [buffer.clone() for buffer in method.buffers()]
                (method(own) * len(own.labels) / len(images.labels)).backward()
                if part:
                    for buffer, value in zip(method.buffers(), before, strict=True):
                        buffer.copy_(value)
            optimizer.param_groups[0]["lr"] = settings.lr * schedule(step / n_steps)
            optimizer.step()
            if constraint is not None:
                constraint()
            step += 1
    parts = {"backbone": method.backbone, "representation": method.head}
    return {
        f"{name}.{key}": tensor
        for name, part in parts.items()
        for key, tensor in part.state_dict().items()
    }
