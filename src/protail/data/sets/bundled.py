"""Features that come with the package: no download, no backbone, no GPU."""

from __future__ import annotations

import os
from pathlib import Path

from protail.data.sets._errors import DataSetError
from protail.data.sets.feature_files import load_features
from protail.data.sets.features import FeatureData
from protail.data.sets.registry import register_dataset

BUNDLED_FEATURES = "cifar100-lt-features"


def bundled_features() -> Path:
    """Say where the file of the bundled features is.

    ``benchmarks/make_bundle.py`` makes it.

    Returns
    -------
    Path
        What `load_dataset` reads as "cifar100-lt-features".

    Examples
    --------
    >>> from protail.data.sets.bundled import bundled_features
    >>> bundled_features().name
    'cifar100-lt-features.safetensors'
    """
    return Path(__file__).with_name(f"{BUNDLED_FEATURES}.safetensors")


@register_dataset(BUNDLED_FEATURES)
def load_bundled_features(root: str | os.PathLike[str] | None) -> FeatureData:
    """CIFAR-100-LT 100 through a trained ResNet-32: comes with the package, stage 2 only."""
    if root is not None:
        raise DataSetError(
            f"{BUNDLED_FEATURES} comes with the package, and root={os.fspath(root)!r} has no part "
            "in it; expected none. Leave it out (root=, --data-root)."
        )
    return load_features(bundled_features())
