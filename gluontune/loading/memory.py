"""How much memory this process may still take, cgroup limits included."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["usable_memory"]

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
