"""A fitted classifier, and a network of photos, as one `torch.nn.Module`: for export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from protail.estimator._checks import check_prior
from protail.estimator._features import Placement, Preparation
from protail.estimator._local import Corrections
from protail.models.heads import PrototypeHead

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

# Rows whose largest number is beyond this are scored at this size: products would overflow.
_LARGEST = 1e15


class LogitsToProbabilities(nn.Module):
    """Take the softmax of a head's logits.

    Parameters
    ----------
    head : nn.Module
        Feature rows to logits.
    temperature : float
        Logits are divided by it.

    Examples
    --------
    >>> import torch
    >>> from protail.estimator import LogitsToProbabilities
    >>> LogitsToProbabilities(torch.nn.Identity())(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, head: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        self.head, self.temperature = head, temperature

    def forward(self, features: Tensor) -> Tensor:
        """Give the probability of each class (batch, classes)."""
        return torch.softmax(self.head(features).float() / self.temperature, 1)


class PhotosToProbabilities(nn.Module):
    """Normalise photos, compute their features and classify these.

    Parameters
    ----------
    backbone : nn.Module
        Images to feature rows.
    classifier : nn.Module
        Feature rows to probabilities.
    mean, std : tuple of float
        Of red, green and blue, on a scale of 0 to 1.

    Examples
    --------
    >>> import torch
    >>> from protail.estimator import PhotosToProbabilities
    >>> means = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    >>> module = PhotosToProbabilities(means, torch.nn.Softmax(1), (0.5,) * 3, (0.5,) * 3)
    >>> module(torch.zeros(1, 4, 4, 3, dtype=torch.uint8))
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.backbone, self.classifier = backbone, classifier
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Give the probability of each class, of bytes (batch, height, width, 3)."""
        images = pixels.permute(0, 3, 1, 2).to(self.mean.dtype) / 255
        probabilities: Tensor = self.classifier(self.backbone((images - self.mean) / self.std))
        return probabilities


def module_of(fitted: PrototypeClassifier) -> nn.Module:
    """Write what a fitted classifier does as a module: float32 rows to probabilities."""
    check_is_fitted(fitted)
    prior = check_prior(fitted.prior, fitted.class_counts_)
    with np.errstate(divide="ignore"):
        log_prior_c = np.log(prior * (fitted.class_counts_ > 0))
    offset_c = torch.from_numpy(log_prior_c - log_prior_c.max())
    kind = _Distances if fitted.choices_["method"] == "paper" else _Linear
    return kind(fitted, offset_c).eval().requires_grad_(False)


class _Linear(nn.Module):
    """Prototypes in a whitened space, linear in the prepared row."""

    centre_d: Tensor
    spread_d: Tensor
    origin_d: Tensor
    axes_dr: Tensor | None
    weight_dc: Tensor
    bias_c: Tensor
    landmark_md: Tensor | None
    local_cm: Tensor | None

    def __init__(self, fitted: PrototypeClassifier, offset_c: Tensor) -> None:
        super().__init__()
        preparation = Preparation.from_arrays(
            fitted.choices_["preparation"], fitted.preparation_
        ).to(torch.device("cpu"), torch.float32)
        self.kind = preparation.kind
        self.drops_lengths = preparation.drops_lengths
        for name, part in zip(Preparation._fields[1:], preparation[1:], strict=True):
            self.register_buffer(name, None if part is None else part.clone())
        self.register_buffer("weight_dc", torch.from_numpy(fitted.coef_).float().mT.contiguous())
        bias_c = torch.from_numpy(fitted.intercept_) + offset_c
        self.register_buffer("bias_c", bias_c.float())
        self.width = fitted.choices_["local_width"]
        for name, array in (
            ("landmark_md", fitted.landmarks_),
            ("local_cm", fitted.local_coef_),
        ):
            self.register_buffer(name, None if array is None else torch.from_numpy(array).float())

    def forward(self, features: Tensor) -> Tensor:
        """Give the probability of each class (batch, classes)."""
        x_bd = self._prepared(features.to(self.weight_dc.dtype))
        size_b1 = (x_bd.abs().amax(1, keepdim=True) / _LARGEST).clamp_min(1)
        scores_bc = (x_bd / size_b1) @ self.weight_dc + self.bias_c / size_b1
        if self.landmark_md is not None and self.local_cm is not None:
            local = Corrections(self.landmark_md, self.width, self.local_cm)
            scores_bc = scores_bc + local(x_bd) / size_b1
        return torch.softmax((scores_bc - scores_bc.amax(1, keepdim=True)) * size_b1, 1)

    def _prepared(self, x_bd: Tensor) -> Tensor:
        """Do what `Preparation` does, in operations that do not depend on what comes."""
        largest = torch.finfo(x_bd.dtype).max
        if self.kind not in ("l2", "root-l2"):
            x_bd = (x_bd - self.centre_d).clamp(-largest, largest)
        if not self.drops_lengths:
            x_bd = (x_bd / self.spread_d).clamp(-largest, largest)
        if self.kind == "root-l2":
            x_bd = x_bd.sign() * x_bd.abs().sqrt()
        if self.drops_lengths:
            x_bd = _unit(x_bd)
        x_bd = x_bd - self.origin_d
        return x_bd if self.axes_dr is None else x_bd @ self.axes_dr


class _Distances(nn.Module):
    """The paper's prototypes: distances from each, in float64, where squares may cancel."""

    offset_c: Tensor

    def __init__(self, fitted: PrototypeClassifier, offset_c: Tensor) -> None:
        super().__init__()
        choices = fitted.choices_
        head = PrototypeHead(
            *fitted.prototypes_.shape,
            distance=choices["distance"],
            temperature=choices["temperature"],
        ).double()
        head.set_prototypes(torch.from_numpy(fitted.prototypes_))
        if head.log_temperature is not None and fitted.temperature_ is not None:
            head.log_temperature.data.copy_(torch.from_numpy(fitted.temperature_).double().log())
        self.head = head
        self.placement = Placement(fitted.normalize_, fitted.feature_scale_)
        self.scale = float(fitted.scale_)
        self.register_buffer("offset_c", offset_c.double())

    def forward(self, features: Tensor) -> Tensor:
        """Give the probability of each class (batch, classes)."""
        radius, factor = self.placement.radius, self.placement.factor
        x_bd = features.to(self.offset_c.dtype)
        x_bd = x_bd * factor if radius is None else _unit(x_bd) * radius
        logits_bc = self.head(x_bd) * self.scale + self.offset_c
        return torch.softmax(logits_bc, 1).float()


def _unit(x_bd: Tensor) -> Tensor:
    """Scale rows of any length to length 1; those of zeros stay zero."""
    largest_b1 = x_bd.abs().amax(1, keepdim=True)
    x_bd = x_bd / torch.where(largest_b1 > 0, largest_b1, 1)
    length_b1 = x_bd.square().sum(1, keepdim=True).sqrt()
    return x_bd / torch.where(length_b1 > 0, length_b1, 1)
