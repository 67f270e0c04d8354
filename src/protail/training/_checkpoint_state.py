"""All that a training changes, as named tensors, taken out and put back in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer


def training_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Name every tensor that a training step may change.

    Parameters
    ----------
    module : nn.Module
        Its parameters and all its buffers, also those its ``state_dict`` leaves out.
    optimizer : torch.optim.Optimizer
        Momentum (SGD) or moments (Adam, AdamW) of parameters of the module. What is not there
        before the first step is made, of zeros. Rates are not part of it: the schedule sets them.

    Returns
    -------
    dict of str to Tensor
        The tensors themselves, not copies: ``module.NAME`` and ``optimizer.KEY.NAME``.

    Examples
    --------
    >>> import torch
    >>> from protail.training.checkpoint import training_state
    >>> model = torch.nn.Linear(2, 1)
    >>> list(training_state(model, torch.optim.SGD(model.parameters(), momentum=0.9)))
    ['module.weight', 'module.bias',
     'optimizer.momentum_buffer.weight', 'optimizer.momentum_buffer.bias']
    """
    parameters = dict(module.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    state = {**parameters, **dict(module.named_buffers())}
    tensors = {f"module.{name}": tensor.detach() for name, tensor in state.items()}
    place = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ValueError(
                    f"optimizer has at place {place} a parameter of shape "
                    f"{tuple(parameter.shape)} that is not in module; expected parameters of the "
                    "module only. Make the optimizer from module.parameters()."
                )
            for key, tensor in _optimizer_state(optimizer, group, parameter).items():
                tensors[f"optimizer.{key}.{names[id(parameter)]}"] = tensor
            place += 1
    return tensors


def restore_training_state(
    tensors: Mapping[str, Tensor], module: nn.Module, optimizer: Optimizer
) -> None:
    """Put back what `training_state` gave.

    The values are copied into the tensors that are there, so whatever refers to these, such as
    a CUDA graph, stays valid. Everything is checked before the first value is copied.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The state; on any device.
    module : nn.Module
        Built as the one the state is from.
    optimizer : torch.optim.Optimizer
        Built as the one the state is from; it need not have taken a step.

    Examples
    --------
    >>> import torch
    >>> from protail.training.checkpoint import restore_training_state, training_state
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    >>> state = {k: torch.ones_like(v) for k, v in training_state(model, optimizer).items()}
    >>> restore_training_state(state, model, optimizer)
    >>> model.bias
    Parameter containing:
    tensor([1.], requires_grad=True)
    """
    own = training_state(module, optimizer)
    flaws = [f"{name} is missing" for name in own if name not in tensors]
    flaws += [f"{name} is unknown" for name in tensors if name not in own]
    flaws += [
        f"{name} is {_described(tensors[name])}, expected {_described(tensor)}"
        for name, tensor in own.items()
        if name in tensors and _described(tensors[name]) != _described(tensor)
    ]
    if flaws:
        raise ValueError(
            f"tensors do not fit this module and optimizer: {'; '.join(flaws)}. Build both as "
            "they were when the state was saved."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _optimizer_state(
    optimizer: Optimizer, group: dict[str, Any], parameter: Tensor
) -> dict[str, Tensor]:
    """Give what the optimizer remembers of a parameter; make it where it is not there yet."""
    state: dict[str, Any] = optimizer.state[parameter]
    keys = _state_keys(optimizer, group)
    for key in keys:
        if state.get(key) is None:
            state[key] = _step_count(group, parameter) if key == "step" else _zeros(parameter)
    return {key: state[key] for key in keys}


def _state_keys(optimizer: Optimizer, group: dict[str, Any]) -> list[str]:
    if isinstance(optimizer, Adam):  # AdamW is one too
        return ["step", "exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
    if not isinstance(optimizer, SGD):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; expected SGD, Adam or AdamW, whose state "
            "is known here."
        )
    if group["dampening"]:
        # Its first step does not dampen: no momentum yet is then something else than zeros.
        raise ValueError(f"optimizer has dampening={group['dampening']}; expected 0.")
    return ["momentum_buffer"] if group["momentum"] else []


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _step_count(group: dict[str, Any], parameter: Tensor) -> Tensor:
    """Make Adam's step count as Adam does: on the CPU unless the GPU is to read it."""
    wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
    on_device = group["capturable"] or group["fused"]
    return torch.zeros(
        (),
        dtype=torch.float64 if wide else torch.float32,
        device=parameter.device if on_device else "cpu",
    )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
