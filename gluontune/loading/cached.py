"""A Gluon data set whose samples are read once and kept as they came out of its transforms, where memory allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gluontune.core.errors import UsageError

# (limit, usage) of cgroup v2 and v1
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def usable_memory(cgroups: tuple[tuple[str, str], ...] = _CGROUPS) -> int:
    """Bytes that are free for this process: the machine's, or what the container's limit leaves.

    >>> usable_memory() > 0
    True
    """
    free = int(psutil.virtual_memory().available)
    for limit_file, usage_file in cgroups:
        try:
            limit, usage = Path(limit_file).read_text().strip(), Path(usage_file).read_text().strip()
            free = min(free, max(0, int(limit) - int(usage)))
        except (OSError, ValueError):  # "max" is no limit
            continue
    return free


_ASKED = 64  # samples that are read twice before all are kept
_SHARE = 0.5  # of the free memory


class _Kept:
    """Samples in memory behind the interface of a Gluon data set; made by :func:`keep_in_memory`."""

    def __init__(self, samples: list[Any]):
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: int) -> Any:
        return self._samples[place]


def keep_in_memory(dataset: Any) -> _Kept:
    """Read each sample of a Gluon data set once, transforms included, and keep it as numpy arrays.

    Gluon's loader reads and transforms every sample anew in each epoch, one after the other. Where a sample is the same
    each time, as after ``ToTensor`` or a resize, that work is done once; what the loader yields stays the same.

    Args:
        dataset: any Gluon data set that fits in half of the free memory.

    Raises:
        UsageError: a sample that is another one when it is read again, as random transforms make it; or too many.

    >>> from gluontune.runtime import mxnet
    >>> gluon = mxnet().gluon
    >>> plain = gluon.data.ArrayDataset(np.arange(6, dtype="float32"), np.arange(6))
    >>> kept = keep_in_memory(plain.transform_first(lambda x: x / 2))
    >>> len(kept), [x for x, _ in gluon.data.DataLoader(kept, 3)][1].asnumpy().tolist()
    (6, [1.5, 2.0, 2.5])
    """
    other = redrawn(dataset, _ASKED)
    if other is not None:
        raise UsageError(
            f"sample {other} of the data set is another one when it is read again (random transforms): it cannot be "
            "kept; leave it to Gluon's loader, or keep the data set below the random transforms"
        )
    needed, free = len(dataset) * sample_bytes(dataset), usable_memory()
    if needed > _SHARE * free:
        raise UsageError(
            f"{len(dataset):,} samples need {needed / 2**30:.2g} GiB, and do not fit in half of the free memory "
            f"({free / 2**30:.2g} GiB): leave them to Gluon's loader with workers"
        )
    return _Kept([_plain(dataset[place]) for place in range(len(dataset))])


def redrawn(dataset: Any, count: int) -> int | None:
    """The first of ``count`` samples, spread over the data set, that is another one when it is read again.

    >>> redrawn([1, 2], 4) is None
    True
    """
    for place in np.unique(np.linspace(0, len(dataset) - 1, count).astype(int)):
        once, again = _leaves(_plain(dataset[int(place)])), _leaves(_plain(dataset[int(place)]))
        same = len(once) == len(again) and all(np.array_equal(a, b) for a, b in zip(once, again))
        if not same:
            return int(place)
    return None


def sample_bytes(dataset: Any) -> int:
    """What the first sample takes in memory.

    >>> sample_bytes([(np.zeros((2, 3), "float32"), 1)])
    32
    """
    return sum(leaf.nbytes for leaf in _leaves(_plain(dataset[0]))) if len(dataset) else 0


def _plain(sample: Any) -> Any:
    """A sample with numpy arrays for MXNet's; the rest, and the nesting, as they are."""
    if isinstance(sample, (list, tuple)):
        return type(sample)(_plain(item) for item in sample)
    return sample.asnumpy() if hasattr(sample, "asnumpy") else sample


def _leaves(sample: Any) -> list[np.ndarray]:
    if isinstance(sample, (list, tuple)):
        return [leaf for item in sample for leaf in _leaves(item)]
    return [np.asarray(sample)]
