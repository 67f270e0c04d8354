"""Every test starts from the same random numbers, so that what passed once passes again.

``PROTAIL_TEST_SEED=7 make test`` starts from others, and lets hypothesis draw anew: a test that
holds for some seeds only asserts too much.
"""

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

# Some tests fork, and a child in which torch believes it still has its threads waits for them for
# ever. It is read as torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# No test reaches the network, nor does a Python process that a test starts: each imports this.
OFFLINE = Path(__file__).parent / "tests" / "offline" / "sitecustomize.py"
if getattr(sys.modules.get("sitecustomize"), "__file__", None) != str(OFFLINE):
    sys.path.append(str(OFFLINE.parent))
    paths = str(OFFLINE.parent), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    exec(compile(OFFLINE.read_bytes(), str(OFFLINE), "exec"), {"__name__": "offline"})

CHOSEN = os.environ.get("PROTAIL_TEST_SEED")

# What is written in Triton cannot be looked through for examples without it.
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [f"src/protail/ops/kernels/{name}.py" for name in ("_found", "_small", "_tiles")]
)

# A shell ignores Ctrl-C in what it starts in the background, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "protail",
    deadline=None,
    max_examples=40 if CHOSEN is None else 100,
    derandomize=CHOSEN is None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # the machine may be, or busy
)
settings.load_profile("protail")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed before the fixtures of a test are made, whatever their scope."""
    seed = int(CHOSEN or 0)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: two that run files side by side then end together."""
    first = ["test_docs.py", "test_bad_files.py", "test_kill_anywhere.py"]
    items.sort(key=lambda item: (*first, item.path.name).index(item.path.name))
