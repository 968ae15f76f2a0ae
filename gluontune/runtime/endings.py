"""How a child process came to its end: the cause in one line, from its exit code and its last words."""

from __future__ import annotations

import re
import signal
from pathlib import Path

__all__ = ["how_it_ended", "last_words", "out_of_memory_kills"]

_LIMIT = 400  # characters of last words
_SIGNALS = {
    "SIGBUS": "shared memory or a mapped file gave way: is /dev/shm, or the disk, full?",
    "SIGILL": "this CPU lacks an instruction that a library uses",
    "SIGXCPU": "the limit of CPU time, 'ulimit -t'",
    "SIGXFSZ": "the limit of a file's size, 'ulimit -f'",
}
_FATAL = re.compile(r"^(Fatal Python error: .+|\s*what\(\):.+|.*error while loading shared libraries.*)$", re.M)


def last_words(said: str) -> str:
    """The line of ``said`` (what a process printed) that names the cause: the last exception's, else the last line.

    >>> last_words("Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nValueError: 3 is odd\\n")
    'ValueError: 3 is odd'
    >>> last_words("loading\\nterminate called after throwing an instance\\n  what():  std::bad_alloc\\n")
    'what():  std::bad_alloc'
    """
    trace = said.rpartition("Traceback (most recent call last):")
    lines = [line for line in trace[2].splitlines() if line.strip()]
    if trace[1]:
        lines = [line for line in lines if not line[0].isspace()][:1] or lines
    elif fatal := _FATAL.findall(said):
        lines = fatal
    return lines[-1].strip()[:_LIMIT] if lines else ""


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def how_it_ended(name: str, code: int | None, said: str = "", killed_before: int | None = None) -> str:
    """What to tell of a process that is gone.

    Args:
        name: what to call it. code: as of ``subprocess.Popen.returncode``; None where nobody has seen it.
        said: what it printed. killed_before: :func:`out_of_memory_kills` when it was started.

    >>> how_it_ended("rank 1", 1, "ImportError: no yacs")
    'rank 1 failed: ImportError: no yacs'
    >>> how_it_ended("rank 1", -9)
    'rank 1 was killed by SIGKILL (out of memory?)'
    """
    words = last_words(said)
    if code is None or code >= 0:
        how = f"{name} failed" if words and code else f"{name} ended by itself with code {code}"
    else:
        try:
            number = signal.Signals(-code).name
        except ValueError:  # a real-time signal
            number = f"signal {-code}"
        cause = _SIGNALS.get(number, "")
        if number == "SIGKILL":
            starved = killed_before is not None and out_of_memory_kills() > killed_before
            cause = "the kernel ran out of memory" if starved else "out of memory?"
        how = f"{name} was killed by {number}{f' ({cause})' if cause else ''}"
    return f"{how}: {words}" if words else how
