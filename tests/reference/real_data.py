"""Real data, where it is at hand; a test that needs what is not there is skipped."""

import os
from pathlib import Path

import pytest

from protail.data.images import cifar, load_dataset

_PACKED = {"cifar10-lt": "data/draws/cifar10-lt-100.zip"}


def shared(name):
    """Find a file or folder below PROTAIL_SHARED."""
    path = Path(os.environ.get("PROTAIL_SHARED", ""), name)
    if "PROTAIL_SHARED" not in os.environ or not path.exists():
        pytest.skip(f"needs {name} (PROTAIL_SHARED)")
    return path


def cifar_root(name):
    """Find the folder with CIFAR's own files."""
    root = Path(os.environ.get("PROTAIL_DATA", ""))
    if "PROTAIL_DATA" not in os.environ or not _has(root, name):
        pytest.skip(f"needs {name} (PROTAIL_DATA)")
    return root


def real_cifar(name, imbalance=100, **options):
    """Load a real draw, of imbalance 100 and more also from a file that holds one."""
    root = Path(os.environ.get("PROTAIL_DATA", ""))
    if name in _PACKED and not options and imbalance >= 100 and not _has(root, name):
        return load_dataset(shared(_PACKED[name]), imbalance=imbalance)
    return load_dataset(name, root=cifar_root(name), imbalance=imbalance, download=False, **options)


def _has(root, name):
    source = cifar.SOURCES[name]
    return all((root / source.folder / file).is_file() for file in source.files)
