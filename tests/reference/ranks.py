"""Functions that several processes run as one group on a CPU, as torchrun would start them."""

import os
import traceback
from datetime import timedelta

import torch
from safetensors.torch import load_file, save_file

from reference import apart
from reference.patience import PATIENCE


def in_ranks(function, n_ranks, folder, *arguments):
    """Call ``function(mesh, folder, *arguments)`` in every process; give each one's tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = apart.waiting()
    started = [
        waiting.Process(target=_call, args=(function, rank, n_ranks, folder, arguments))
        for rank in range(n_ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE)
    errors = [place.read_text() for place in sorted(folder.glob("*.error"))]
    assert [process.exitcode for process in started] == [0] * n_ranks, "\n".join(errors)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(n_ranks)]


def _call(function, rank, n_ranks, folder, arguments):
    from protail.training import leave_group_at_end

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        with leave_group_at_end():
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'store'}",
                rank=rank,
                world_size=n_ranks,
                timeout=timedelta(seconds=PATIENCE),
            )
            mesh = torch.distributed.init_device_mesh("cpu", (n_ranks,))
            found = function(mesh, folder, *arguments)
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in found.items()},
                folder / f"{rank}.safetensors",
            )
            del mesh
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise
