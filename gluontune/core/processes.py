"""Child processes: one JSON command or event a line; the reason why one ended; none outlives its parent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class Heard:
    """JSON events from a descriptor, and the log beside them."""

    def __init__(self, reading: int, log: IO[bytes]):
        os.set_blocking(reading, False)
        self.reading, self.log, self._buffer, self._told = reading, log, b"", 0

    def poll(self) -> dict[str, Any] | None:
        """The next event, or None; an ``end`` event once the process has closed its pipe."""
        if b"\n" not in self._buffer:
            try:
                chunk = os.read(self.reading, 65536)
            except BlockingIOError:
                return None
            if not chunk:
                return {"event": "end"}
            self._buffer += chunk
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return json.loads(line)

    def tail(self, size: int = 4000) -> str:
        """The end of the process's output."""
        # pread, because the process writes at the offset that a seek here would move.
        handle = self.log.fileno()
        return os.pread(handle, size, max(0, os.fstat(handle).st_size - size)).decode("utf-8", "replace")

    def new_lines(self) -> list[str]:
        """The complete lines of output since the last call."""
        new = os.pread(self.log.fileno(), 1 << 20, self._told)
        end = new.rfind(b"\n") + 1
        self._told += end
        return new[:end].decode("utf-8", "replace").splitlines()

    def _close_reading(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.reading)
        self.log.close()


class PipedProcess(Heard):
    """A child process: its pipes, its log and its events.

    Args:
        argv: the command; ``--events FD``, the pipe of its events, is added. Stdout and stderr go to the log.
        setup: the first command. env: its whole environment.
        apart: in a new session, which can be signalled as a whole; otherwise it shares the caller's session and output.
        log: a file for its output, which is closed with it; None: a temporary one.
    """

    def __init__(
        self, argv: Sequence[str], setup: Mapping[str, Any], env: Mapping[str, str], apart: bool = True,
        log: IO[bytes] | None = None,
    ):  # fmt: skip
        self._apart, self._killed_before = apart, out_of_memory_kills()
        if log is None:
            log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        try:
            self.process = subprocess.Popen(
                [*argv, "--events", str(writing)], stdin=subprocess.PIPE, stdout=log if apart else None,
                stderr=subprocess.STDOUT if apart else None, env=dict(env), pass_fds=(writing,),
                start_new_session=apart,
            )  # fmt: skip
        except OSError:
            os.close(reading)
            log.close()
            raise
        finally:
            os.close(writing)
        super().__init__(reading, log)
        self.say(setup)

    def say(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
        with contextlib.suppress(BrokenPipeError):  # the reader reports its death
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Signal the process and its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._apart:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def close(self) -> None:
        """Kill the process and its session."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._close_reading()

    def how_ended(self, name: str) -> str:
        """The reason why it ended, for the process called ``name``, after its ``end`` event."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return how_it_ended(name, self.process.returncode, self.tail(), self._killed_before)


def event_sender() -> Callable[..., None]:
    """In a child process: a function that sends its keyword arguments as an event, from any thread, to ``--events``."""
    events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w", encoding="utf-8")
    lock = threading.Lock()

    def send(**event: Any) -> None:
        with lock:
            events.write(json.dumps(event) + "\n")
            events.flush()

    return send


_LIMIT = 400  # characters of a cause
_SIGNALS = {
    "SIGFPE": "MXNet's convolutions on a CPU? MXNET_MKLDNN_ENABLED=0 does without oneDNN, see docs/mxnet-faults.md",
    "SIGBUS": "shared memory or a mapped file failed: is /dev/shm, or the disk, full?",
    "SIGILL": "this CPU lacks an instruction that a library uses",
    "SIGXCPU": "the limit of CPU time, 'ulimit -t'",
    "SIGXFSZ": "the limit of a file's size, 'ulimit -f'",
}
_FATAL = re.compile(r"^(Fatal Python error: .+|\s*what\(\):.+|.*error while loading shared libraries.*)$", re.M)


def last_words(said: str) -> str:
    """The line of a process's output that names the cause: the last exception's, else the last line.

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
    """The kernel's count of processes killed for memory since it started, or 0 if unknown."""
    try:
        found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def how_it_ended(name: str, code: int | None, said: str = "", killed_before: int | None = None) -> str:
    """The reason why the process ``name`` ended.

    ``code`` is ``Popen.returncode``, None if unknown; ``said`` the output; ``killed_before`` what
    :func:`out_of_memory_kills` returned when it was started.
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


@contextlib.contextmanager
def session(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process without input in a session of its own, all of which is killed at the end; ``how`` is of ``Popen``."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # the group may outlive its leader
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_PR_SET_PDEATHSIG = 1
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C; a scheduler's; what mpirun passes on to its ranks


def die_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process, even a stopped one, when its parent thread ends."""
    _arm()
    os.register_at_fork(after_in_child=_arm)  # the loaders' workers are forked and do not inherit it
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def supervise(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] = 2,
    stop_by: signal.Signals = signal.SIGTERM,
) -> tuple[int, signal.Signals | None]:
    """Run a launcher of other processes, such as ``mpirun``, which ends with this process.

    ``stop_by`` is the signal that it gets for the first one here; the second kills. Returns its exit code, and the
    signal that stopped it, or None.
    """
    seen: list[signal.Signals] = []

    def stop(number: int, frame: Any) -> None:
        seen.append(signal.Signals(number))
        process.send_signal(stop_by if len(seen) == 1 else signal.SIGKILL)

    with session(command, env=env, stdout=stdout, preexec_fn=_arm) as process, handling(stop):
        return process.wait(), seen[-1] if seen else None


_LOOK_S = 0.5


def end_with_launcher(say: Callable[[str], object] = str) -> None:
    """Have this process end within a second of its parent, whatever thread of it started this one.

    A launcher such as ``mpirun`` may start processes in a thread that ends, where :func:`die_with_parent` would kill.
    Before, ``say`` gets a sentence with the launcher's name.
    """
    parent, name = os.getppid(), ""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{parent}/comm").read_text().strip()
    os.register_at_fork(after_in_child=_arm)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        words = f"ended with {name or 'its launcher'}, which had started it"
        last = threading.Thread(target=say, args=(words,), daemon=True)
        last.start()  # it may wait for ever
        last.join(_LOOK_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _arm() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """A context in which the signals of ``STOPS`` go to ``handler``; no effect outside the main thread."""
    ours = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, handler) for n in STOPS if ours}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
