"""One of two processes that train PaCo together, as a script: rank, meeting place, result."""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from protail.methods import ImageBatch, make_method
from protail.models.heads import LinearHead
from protail.training import leave_group_at_end

# By rank and step.
LABELS = [[[0, 1, 2], [1, 1, 0]], [[2, 2, 0], [0, 2]]]
QUEUE = 10


def batch_of(labels, seed):
    views = torch.randn(2, len(labels), 3, 1, 1, generator=torch.Generator().manual_seed(seed))
    return ImageBatch(views[0], torch.tensor(labels), second=views[1])


def train(rank, meeting):
    """Take two steps; give the queue, and the keys of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3, 5))
    parts = backbone, LinearHead(3, 5), nn.CrossEntropyLoss(), [5, 3, 1]
    method = make_method("paco", *parts, queue=QUEUE, projection=4)
    start = method.queue_keys.clone(), method.queue_labels.clone()
    keys, embed = [], method._keys
    method._keys = lambda images: keys.append(embed(images)) or keys[-1]
    together = DistributedDataParallel(method)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    for step, labels in enumerate(LABELS[rank]):
        optimizer.zero_grad()
        together(batch_of(labels, seed=10 * step + rank)).backward()
        optimizer.step()
    queue = method.queue_keys, method.queue_labels, method.queue_place
    refused = ""
    try:
        method(batch_of([0] * 6, seed=0))
    except ValueError as error:
        refused = str(error)
    return {"start": start, "queue": queue, "keys": keys, "refused": refused}


if __name__ == "__main__":
    with leave_group_at_end():
        torch.save(train(int(sys.argv[1]), sys.argv[2]), sys.argv[3])
