"""The prototype head: logits are minus half the distances from one learned vector a class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from protail import ops
from protail.models.heads.registry import register_head
from protail.ops import Distance, add_rows_, compute_dtype, make_distance
from protail.ops.distance import DISTANCES
from protail.options import Count, OneOf, Positive, checked
from protail.profile import class_codes

# The parameter that holds the temperatures, for each form of them.
_PARAMETERS = {"exp": "log_temperature", "square": "root_temperature"}
TemperatureScheme = Annotated[str, OneOf(tuple(ops.TEMPERATURES))]
TemperatureForm = Annotated[str, OneOf(tuple(_PARAMETERS))]
# A root may pass through 0; nothing is divided by less than this.
_LEAST = 1e-12
# Bytes of float64 rows that are added up at a time.
_SLICE_BYTES = 16 * 2**20


@register_head("prototype")
class PrototypeHead(nn.Module):
    """Classify a feature vector by its distances from one prototype a class.

    Untrained, with prototypes set to class means, this is the nearest-class-mean classifier.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    distance : str or Distance
        ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"``, ``"mahalanobis"`` (a linear map for all
        classes, learned at the temperatures' rate), or one of your own.
    temperature : str, optional
        ``"channel"``, ``"class"`` or ``"dense"``: what has a temperature of its own. It divides
        squared differences (for cosine, both vectors by its root first).
    temperature_form : {"exp", "square"}
        What is learned: the logarithm of a temperature, or, as in the published code, a root of
        it, of any sign, by which differences are divided before they are squared.
    initial_temperature : float
        Where temperatures start, whatever is learned.
    normalize : float, optional
        Scale every feature vector to this length first; zero vectors stay zero. Prototypes are
        free parameters and are not scaled.

    Attributes
    ----------
    prototypes : Parameter
        (classes, channels); zero until they are set.
    metric : Distance
        What measures; a map of its own is saved with the head.
    log_temperature, root_temperature : Parameter or None
        (1, channels), (classes, 1) or (classes, channels): one of them for each form.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import PrototypeHead
    >>> features = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 1.0]])
    >>> head = PrototypeHead.from_means(features, torch.tensor([0, 0, 1]))
    >>> head.prototypes.data
    tensor([[0., 1.],
            [4., 1.]])
    >>> head(torch.tensor([[1.0, 1.0]])).detach()
    tensor([[-0.5000, -1.5000]])
    """

    prototypes: nn.Parameter
    log_temperature: nn.Parameter | None
    root_temperature: nn.Parameter | None

    @checked
    def __init__(
        self,
        n_classes: Count,
        n_features: Count,
        *,
        distance: str | Distance = "euclidean",
        temperature: TemperatureScheme | None = None,
        temperature_form: TemperatureForm = "exp",
        initial_temperature: Positive = 1.0,
        normalize: Positive | None = None,
    ) -> None:
        super().__init__()
        self.check_options(distance, temperature, temperature_form, initial_temperature)
        self.metric = make_distance(distance, n_features)
        self.distance = self.metric.name
        self.temperature_scheme = temperature
        self.temperature_form = temperature_form
        self.normalize = normalize
        self.prototypes = nn.Parameter(torch.zeros(n_classes, n_features))
        for name in _PARAMETERS.values():
            self.register_parameter(name, None)
        if temperature is not None:
            n_rows = 1 if temperature == "channel" else n_classes
            n_columns = 1 if temperature == "class" else self.metric.width(n_features)
            logarithm = torch.full((n_rows, n_columns), math.log(initial_temperature))
            learned = nn.Parameter(self._from_logarithm(logarithm))
            self.register_parameter(_PARAMETERS[temperature_form], learned)

    @staticmethod
    def check_options(
        distance: str | Distance,
        temperature: str | None,
        temperature_form: str,
        initial_temperature: float,
        normalize: float | None = None,
    ) -> None:
        """Raise unless the names are known and go together."""
        if not isinstance(distance, Distance):
            DISTANCES.factory(distance)
        for name, value, unused in (
            ("temperature_form", temperature_form, "exp"),
            ("initial_temperature", initial_temperature, 1.0),
        ):
            if temperature is None and value != unused:
                raise ValueError(
                    f"{name}={value!r} without temperatures; expected {unused!r}, or a "
                    f"temperature: {', '.join(ops.TEMPERATURES)}."
                )

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
        return self.log_temperature if self.root_temperature is None else self.root_temperature

    @property
    def temperatures(self) -> list[nn.Parameter]:
        """What learns at the temperatures' own learning rate."""
        learned = (self.learned_temperature, *self.metric.tensors())
        return [each for each in learned if isinstance(each, nn.Parameter)]

    @classmethod
    def from_means(
        cls, features: Any, labels: Any, n_classes: int | None = None, **options: Any
    ) -> Self:
        """Make a head whose prototypes are the class means of (normalised) features.

        Parameters
        ----------
        features : Tensor or numpy array
            One vector a row; may be memory-mapped. Its device becomes the head's.
        labels : Tensor or numpy array
            Class index of each row.
        n_classes : int, optional
            Number of classes; by default one more than the largest label.
        **options
            What the head takes beside its size: ``distance``, ``temperature``, ``normalize``.

        Returns
        -------
        PrototypeHead
            In float64 for float64 tensors, otherwise in float32.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.models.heads import PrototypeHead
        >>> PrototypeHead.from_means(np.eye(3), np.array([0, 1, 2]), normalize=2.0).prototypes[0]
        tensor([2., 0., 0.], grad_fn=<SelectBackward0>)
        """
        # A head of one class, which knows how to normalise and then takes its true size.
        head = cls(1, features.shape[-1], **options)
        means_cd = class_means(features, labels, n_classes, transform=head.normalized)
        head = cls(*means_cd.shape, **options)
        dtype = compute_dtype(features) if isinstance(features, Tensor) else torch.float32
        return head.to(means_cd.device, dtype).set_prototypes(means_cd)

    @property
    def _measured(self) -> dict[str, Any]:
        """What the functions of `protail.ops` take to measure as this head does."""
        return {"distance": self.metric, "temperature": self.temperature}

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
        >>> from protail.models.heads import PrototypeHead
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

    def normalized(self, x: Tensor) -> Tensor:
        """Scale feature vectors as ``normalize`` says; zero vectors stay zero.

        Parameters
        ----------
        x : Tensor
            Feature vectors.

        Returns
        -------
        Tensor
            The same without ``normalize``, otherwise in float32 or float64.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> PrototypeHead(2, 2, normalize=10.0).normalized(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[6., 8.],
                [0., 0.]])
        """
        if self.normalize is None:
            return x
        units_bd, _ = ops.unit_rows(x.to(compute_dtype(x)))
        return units_bd * self.normalize

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits: minus half the distances.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (batch, classes), float64 if an input is, otherwise float32.
        """
        return ops.logits(self.normalized(x), self.prototypes, **self._measured)

    def distances(self, x: Tensor) -> Tensor:
        """Measure the distance of every row from every prototype.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            (batch, classes); most precise without gradients, see `protail.ops.distances`.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> with torch.no_grad():
        ...     PrototypeHead(2, 2).distances(torch.tensor([[3.0, 4.0]]))
        tensor([[5., 5.]])
        """
        return ops.distances(self.normalized(x), self.prototypes, **self._measured)

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        adjustment: Tensor | None = None,
        *,
        reduction: str = "mean",
        memory_budget: int | None = None,
    ) -> Tensor:
        """Give the cross-entropy of the logits, faster than from the logits themselves.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).
        target : Tensor
            Class index of each row.
        adjustment : Tensor, optional
            Added to every row of logits: one number a class.
        reduction : str
            ``"mean"``, ``"sum"`` or ``"none"``.
        memory_budget : int, optional
            Bytes to use at most beside inputs and gradients; see `protail.ops.loss`.

        Returns
        -------
        Tensor
            A number, or one a row for ``"none"``.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> PrototypeHead(2, 2).loss(torch.ones(1, 2), torch.tensor([0])).item()
        0.6931...
        """
        return ops.loss(
            self.normalized(x),
            self.prototypes,
            target,
            adjustment=adjustment,
            reduction=reduction,
            memory_budget=memory_budget,
            **self._measured,
        )

    def nearest(self, x: Tensor) -> Tensor:
        """Find the nearest prototype of each row; of equally near ones the first.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            Class index of each row.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> head = PrototypeHead(2, 1).set_prototypes(torch.tensor([[0.0], [2.0]]))
        >>> head.nearest(torch.tensor([[1.5], [0.5]]))
        tensor([1, 0])
        """
        with torch.no_grad():
            return ops.nearest(self.normalized(x), self.prototypes, **self._measured)

    def top_k(self, x: Tensor, k: int) -> ops.TopK:
        """Find the k nearest prototypes of each row, nearest first.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).
        k : int
            How many.

        Returns
        -------
        TopK
            ``distances_bk`` and ``classes_bk``.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> head = PrototypeHead(3, 1).set_prototypes(torch.tensor([[0.0], [2.0], [9.0]]))
        >>> head.top_k(torch.tensor([[1.5]]), 2).classes_bk
        tensor([[1, 0]])
        """
        with torch.no_grad():
            return ops.top_k(self.normalized(x), self.prototypes, k, **self._measured)

    def parameter_groups(
        self, lr: float = 4.0, temperature_lr: float = 0.005, momentum: float = 0.9
    ) -> list[dict[str, Any]]:
        """Give the paper's groups for ``torch.optim.SGD``.

        Parameters
        ----------
        lr, temperature_lr : float
            Learning rates of prototypes and of temperatures.
        momentum : float
            Momentum of both.

        Returns
        -------
        list of dict
            One group for prototypes, one for temperatures and a learned map where there are any.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> head = PrototypeHead(2, 2, temperature="channel")
        >>> [group["lr"] for group in torch.optim.SGD(head.parameter_groups()).param_groups]
        [4.0, 0.005]
        """
        groups = [{"params": [self.prototypes], "lr": lr, "momentum": momentum}]
        if self.temperatures:
            groups.append({"params": self.temperatures, "lr": temperature_lr, "momentum": momentum})
        return groups

    def add_classes(self, features: Any, labels: Any | None = None) -> Self:
        """Append classes from their means without touching the others.

        Class and dense temperatures of theirs start at the geometric mean of the others: that is
        the scale on which the trained classes compete, and at 1 a new class would be nearer or
        farther than all of them merely for being new. The parameters are replaced by longer ones,
        so an optimiser must be made again.

        Parameters
        ----------
        features : Tensor or numpy array
            With ``labels``, feature vectors of the new classes; without, one mean a new class,
            taken as it is.
        labels : Tensor or numpy array, optional
            Which new class each row belongs to, from 0.

        Returns
        -------
        PrototypeHead
            This head.

        Examples
        --------
        >>> import torch
        >>> from protail.models.heads import PrototypeHead
        >>> new = torch.tensor([[4.0], [6.0]])
        >>> PrototypeHead(2, 1).add_classes(new, torch.tensor([0, 0])).prototypes.data
        tensor([[0.],
                [0.],
                [5.]])
        """
        if labels is None:
            means_cd = torch.as_tensor(features)
        else:
            means_cd = class_means(features, labels, transform=self.normalized)
        if means_cd.ndim != 2 or means_cd.shape[1] != self.n_features:
            raise ValueError(
                f"features has shape {tuple(means_cd.shape)}; "
                f"expected rows of {self.n_features}, as the prototypes have."
            )
        temperature, learned = self.temperature, self.learned_temperature
        self.prototypes = _longer(self.prototypes, means_cd)
        if temperature is None or learned is None or self.temperature_scheme == "channel":
            return self
        logarithm = learned if self.temperature_form == "exp" else temperature.log()
        mean_1d = self._from_logarithm(logarithm.detach().mean(0, keepdim=True))
        longer = _longer(learned, mean_1d.expand(len(means_cd), -1))
        self.register_parameter(_PARAMETERS[self.temperature_form], longer)
        return self

    def _from_logarithm(self, logarithm: Tensor) -> Tensor:
        """Give temperatures in the form in which they are learned."""
        return logarithm if self.temperature_form == "exp" else (logarithm / 2).exp()

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

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        form = "" if self.temperature_form == "exp" else ", temperature_form='square'"
        return (
            f"{self.n_classes}, {self.n_features}, distance={self.distance!r}, "
            f"temperature={self.temperature_scheme!r}{form}, normalize={self.normalize!r}"
        )


def _longer(parameter: nn.Parameter, rows: Tensor) -> nn.Parameter:
    """Append rows to a parameter; the rows there are keep every bit."""
    rows = rows.to(parameter.device, parameter.dtype)
    joined = torch.cat([parameter.detach(), rows])
    return nn.Parameter(joined, requires_grad=parameter.requires_grad)


def class_means(
    features: Any,
    labels: Any,
    n_classes: int | None = None,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Average the rows of each class, in float64, without copying the array.

    Parameters
    ----------
    features : Tensor or numpy array
        One vector a row; may be memory-mapped.
    labels : Tensor or numpy array
        Class index of each row, from 0.
    n_classes : int, optional
        Number of classes; by default one more than the largest label.
    transform : callable, optional
        Applied to every slice of rows first.

    Returns
    -------
    Tensor
        (classes, channels), float64, on the features' device.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import class_means
    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([[2.],
            [5.]], dtype=torch.float64)
    """
    if len(np.shape(features)) != 2:
        raise ValueError(
            f"features has shape {tuple(np.shape(features))}; "
            "expected two dimensions, one vector a row."
        )
    codes = class_codes(labels, n_classes)
    if len(codes) != len(features):
        raise ValueError(
            f"labels has shape {codes.shape}; expected ({len(features)},), one a row of features."
        )
    device = features.device if isinstance(features, Tensor) else torch.device("cpu")
    index_n = torch.tensor(codes, device=device)
    count_c = torch.bincount(index_n, minlength=n_classes or 0)
    if not bool(count_c.all()):
        empty = count_c.eq(0).nonzero().squeeze(1)[:5].tolist()
        raise ValueError(
            f"labels has no row of class {', '.join(map(str, empty))}; expected at least one row "
            f"of each of the {len(count_c)} classes, because a class without rows has no mean."
        )
    sum_cd = torch.zeros(len(count_c), features.shape[1], dtype=torch.float64, device=device)
    step = max(1, _SLICE_BYTES // (8 * max(1, features.shape[1])))
    for start in range(0, len(features), step):
        rows_nd = features[start : start + step]
        # A copy of an array: it may be read-only.
        is_tensor = isinstance(rows_nd, Tensor)
        rows_nd = rows_nd.detach() if is_tensor else torch.tensor(np.asarray(rows_nd))
        rows_nd = rows_nd if transform is None else transform(rows_nd)
        add_rows_(sum_cd, index_n[start : start + step], rows_nd.to(torch.float64))
    return sum_cd / count_c.unsqueeze(1)
