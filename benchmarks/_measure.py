"""Time, memory and accuracy of classifiers, measured side by side."""

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType

import numpy as np

from protail import ClassProfile

MIB = 2**20
_STATUS = Path("/proc/self/status")
_SAMPLED_EVERY_S = 0.01
# Short calls are repeated until this much time is spent on each, or often enough.
_ENOUGH_S = 1.0
_ENOUGH_CALLS = 51


def anonymous_memory() -> int:
    """Bytes of this process that are in memory and not the image of a file."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    import psutil

    return psutil.Process().memory_info().rss


class PeakMemory:
    """Sample anonymous memory in a thread; ``rise`` is the largest increase inside the block."""

    def __init__(self) -> None:
        self.rise = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        _return_free_memory()
        self._before = anonymous_memory()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.rise = max(self.rise, anonymous_memory() - self._before)
            if self._ended.wait(_SAMPLED_EVERY_S):
                return


def _return_free_memory() -> None:
    """Make the allocator give back what earlier work freed; else new work would hide in it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if _STATUS.exists() else None
    if trim is not None:
        trim(0)


def timed(call: Callable[[], object]) -> float:
    """Give the seconds of all threads that a call takes: what else a machine does costs none."""
    start = time.process_time()
    call()
    return time.process_time() - start


def interleaved_times(
    calls: dict[str, Callable[[], object]], at_least: int, long_s: float
) -> dict[str, float]:
    """Call everything in turn, round after round, and give each call's median time.

    Whatever else the machine does in the meantime then slows all of them alike. What takes
    longer than ``long_s`` is called once.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    waiting = dict(calls)
    while waiting:
        for name, call in list(waiting.items()):
            times[name].append(timed(call))
            spent, done = sum(times[name]), len(times[name])
            enough = done >= at_least and (spent > _ENOUGH_S or done >= _ENOUGH_CALLS)
            if enough or times[name][-1] > long_s:
                del waiting[name]
    return {name: median(found) for name, found in times.items()}


def group_accuracies(
    y_train: np.ndarray, y_test: np.ndarray, predicted: np.ndarray
) -> dict[str, float]:
    """Give the mean accuracy (in %) of the classes in each shot group, and of all classes."""
    profile = ClassProfile.from_labels(y_train)
    tested = np.bincount(y_test, minlength=profile.n_classes)
    right = np.bincount(y_test[predicted == y_test], minlength=profile.n_classes)
    accuracy = 100 * right / tested
    found = {name: accuracy[members] for name, members in profile.groups().items()}
    found["all"] = accuracy
    return {name: float(part.mean()) if len(part) else np.nan for name, part in found.items()}
