"""One learned vector a class, with the temperatures that belong to it."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from protail import ops
from protail._messages import unknown_name

# The parameter that holds the temperatures, for each form of them.
_PARAMETERS = {"exp": "log_temperature", "square": "root_temperature"}
# A root may pass through 0; nothing is divided by less than this.
_LEAST = 1e-12


class PrototypeTable(nn.Module):
    """Hold prototypes and temperatures: set them, append to them, load them, group them.

    Parameters
    ----------
    n_classes, n_features : int
        Rows and columns.
    temperature : str, optional
        ``"channel"``, ``"class"`` or ``"dense"``.
    temperature_form : {"exp", "square"}
        What is learned: the logarithm of the temperature, or a root of it, of any sign.
    initial_temperature : float
        What squares are divided by at the start.

    Examples
    --------
    >>> from protail.heads._table import PrototypeTable
    >>> PrototypeTable(3, 2, "class").log_temperature.shape
    torch.Size([3, 1])
    >>> PrototypeTable(3, 2, "channel", "square", 9.0).root_temperature.data
    tensor([[3., 3.]])
    """

    prototypes: nn.Parameter
    log_temperature: nn.Parameter | None
    root_temperature: nn.Parameter | None

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        temperature: str | None,
        temperature_form: str = "exp",
        initial_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if temperature is not None and temperature not in ops.TEMPERATURES:
            raise ValueError(unknown_name("temperature", temperature, ops.TEMPERATURES))
        for name, value in (("n_classes", n_classes), ("n_features", n_features)):
            if value < 1:
                raise ValueError(f"{name}={value!r}; expected at least 1.")
        _check_form(temperature, temperature_form, initial_temperature)
        self.temperature_scheme = temperature
        self.temperature_form = temperature_form
        self.prototypes = nn.Parameter(torch.zeros(n_classes, n_features))
        shape = {
            "channel": (1, n_features),
            "class": (n_classes, 1),
            "dense": (n_classes, n_features),
        }
        for name in _PARAMETERS.values():
            self.register_parameter(name, None)
        if temperature is not None:
            logarithm = torch.full(shape[temperature], math.log(initial_temperature))
            learned = nn.Parameter(self._from_logarithm(logarithm))
            self.register_parameter(_PARAMETERS[temperature_form], learned)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.prototypes.shape[0]

    @property
    def n_features(self) -> int:
        """Length of a feature vector."""
        return self.prototypes.shape[1]

    @property
    def temperature(self) -> Tensor | None:
        """What divides squares, positive, broadcastable to the prototypes; or None."""
        if self.root_temperature is not None:
            return self.root_temperature.square().clamp_min(_LEAST)
        return None if self.log_temperature is None else self.log_temperature.exp()

    @property
    def learned_temperature(self) -> nn.Parameter | None:
        """The parameter that holds the temperatures, in its form; or None."""
        learned: nn.Parameter | None = getattr(self, _PARAMETERS[self.temperature_form])
        return learned

    @property
    def temperatures(self) -> list[nn.Parameter]:
        """What learns at the temperatures' own rate."""
        learned = self.learned_temperature
        return [] if learned is None else [learned]

    def _from_logarithm(self, logarithm: Tensor) -> Tensor:
        return logarithm if self.temperature_form == "exp" else (logarithm / 2).exp()

    def set_prototypes(self, prototypes: Tensor) -> Self:
        """Copy prototypes into the head.

        Parameters
        ----------
        prototypes : Tensor
            (classes, channels).

        Returns
        -------
        PrototypeHead
            This head.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> PrototypeHead(2, 1).set_prototypes(torch.tensor([[1.0], [2.0]])).prototypes.data
        tensor([[1.],
                [2.]])
        """
        if prototypes.shape != self.prototypes.shape:
            raise ValueError(
                f"prototypes has shape {tuple(prototypes.shape)}; "
                f"expected {tuple(self.prototypes.shape)}, classes by channels."
            )
        with torch.no_grad():
            self.prototypes.copy_(prototypes)
        return self

    def parameter_groups(
        self, lr: float = 4.0, temperature_lr: float = 0.005, momentum: float = 0.9
    ) -> list[dict[str, Any]]:
        """Give the paper's groups for ``torch.optim.SGD``.

        Parameters
        ----------
        lr, temperature_lr : float
            Rates of prototypes and of temperatures.
        momentum : float
            Momentum of both.

        Returns
        -------
        list of dict
            One group for prototypes, one for temperatures where there are any.

        Examples
        --------
        >>> import torch
        >>> from protail.heads import PrototypeHead
        >>> head = PrototypeHead(2, 2, temperature="channel")
        >>> [group["lr"] for group in torch.optim.SGD(head.parameter_groups()).param_groups]
        [4.0, 0.005]
        """
        groups = [{"params": [self.prototypes], "lr": lr, "momentum": momentum}]
        learned = self.learned_temperature
        if learned is not None:
            groups.append({"params": [learned], "lr": temperature_lr, "momentum": momentum})
        return groups

    def append_rows(self, prototypes: Tensor) -> None:
        """Append prototypes and their temperatures; the rows there are keep every bit.

        Temperatures of class and dense schemes start at the geometric mean of the old ones: that
        is the scale on which the trained classes compete, and at 1 a new class would be nearer or
        farther than all of them merely for being new.

        Parameters
        ----------
        prototypes : Tensor
            One a new class.

        Examples
        --------
        >>> import torch
        >>> from protail.heads._table import PrototypeTable
        >>> table = PrototypeTable(1, 2, None)
        >>> table.append_rows(torch.ones(1, 2))
        >>> table.n_classes
        2
        """
        self.prototypes = _longer(self.prototypes, prototypes)
        temperature, learned = self.temperature, self.learned_temperature
        if temperature is None or learned is None or self.temperature_scheme == "channel":
            return
        logarithm = learned if self.temperature_form == "exp" else temperature.log()
        mean_1d = self._from_logarithm(logarithm.detach().mean(0, keepdim=True))
        longer = _longer(learned, mean_1d.expand(len(prototypes), -1))
        self.register_parameter(_PARAMETERS[self.temperature_form], longer)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Explain a head of another size instead of listing tensors that do not fit."""
        saved = state_dict.get(prefix + "prototypes")
        *_, error_msgs = arguments
        if saved is None or saved.shape == self.prototypes.shape:
            super()._load_from_state_dict(state_dict, prefix, *arguments)
            return
        saved_size, own_size = (" x ".join(map(str, t.shape)) for t in (saved, self.prototypes))
        error_msgs.append(
            f"the state dict holds a prototype head of {saved_size} (classes x channels), this "
            f"head is {own_size}; make a head of the saved size, or bring this one to it with "
            "add_classes, and load again."
        )


def _check_form(temperature: str | None, form: str, initial: float) -> None:
    if form not in _PARAMETERS:
        raise ValueError(unknown_name("temperature_form", form, _PARAMETERS))
    if not 0 < initial < float("inf"):
        raise ValueError(f"initial_temperature={initial!r}; expected a number above 0.")
    for name, value, unused in (
        ("temperature_form", form, "exp"),
        ("initial_temperature", initial, 1.0),
    ):
        if temperature is None and value != unused:
            raise ValueError(
                f"{name}={value!r} without temperatures; expected {unused!r}, or a temperature: "
                f"{', '.join(ops.TEMPERATURES)}."
            )


def _longer(parameter: nn.Parameter, rows: Tensor) -> nn.Parameter:
    rows = rows.to(parameter.device, parameter.dtype)
    joined = torch.cat([parameter.detach(), rows])
    return nn.Parameter(joined, requires_grad=parameter.requires_grad)
