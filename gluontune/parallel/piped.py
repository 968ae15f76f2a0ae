"""A child process that takes one JSON command a line, and answers with one JSON event a line on its own pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from gluontune.runtime.endings import how_it_ended, out_of_memory_kills

__all__ = ["Heard", "PipedProcess", "event_sender"]


class Heard:
    """Events that come on a descriptor, and a log beside them.

    Args:
        reading: the descriptor on which the events come, for a selector. log: a file of what was printed.
    """

    def __init__(self, reading: int, log: IO[bytes]):
        os.set_blocking(reading, False)
        self.reading, self.log, self._buffer, self._told = reading, log, b"", 0

    def poll(self) -> dict[str, Any] | None:
        """The next event, if a whole one is there; an ``end`` event when the process has closed its pipe."""
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
        """The end of what the process printed."""
        # pread, because the process writes at the offset that a seek here would move.
        handle = self.log.fileno()
        return os.pread(handle, size, max(0, os.fstat(handle).st_size - size)).decode("utf-8", "replace")

    def new_lines(self) -> list[str]:
        """The whole lines that it has printed since the last call."""
        found = os.pread(self.log.fileno(), 1 << 20, self._told)
        end = found.rfind(b"\n") + 1
        self._told += end
        return found[:end].decode("utf-8", "replace").splitlines()

    def _close_reading(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.reading)
        self.log.close()


class PipedProcess(Heard):
    """One process in a session of its own: its pipes, its log, and what it has said so far.

    Args:
        argv: the command; ``--events FD`` is added: the pipe on which it answers. Its stdout and stderr
            go to the log.
        setup: the first command.
        env: its whole environment.
        apart: in a session of its own, which can be signalled as a whole; otherwise it belongs to the caller's, and
            prints where the caller prints.

    Attributes:
        process: the ``subprocess.Popen``. Its pid is also the group of all that it starts.
        reading: the descriptor on which its events come, for a selector.
    """

    def __init__(self, argv: Sequence[str], setup: Mapping[str, Any], env: Mapping[str, str], apart: bool = True):
        self._apart, self._killed_before = apart, out_of_memory_kills()
        log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        try:
            self.process = subprocess.Popen(
                [*argv, "--events", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log if apart else None,
                stderr=subprocess.STDOUT if apart else None,
                env=dict(env),
                pass_fds=(writing,),
                start_new_session=apart,
            )
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
        with contextlib.suppress(BrokenPipeError):  # its death is found, and told better, by the reader
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Signal the process and all that it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._apart:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def close(self) -> None:
        """End it, and all that it started, at once."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._close_reading()

    def how_ended(self, name: str) -> str:
        """How it came to its end, after its ``end`` event; ``name`` is what to call it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return how_it_ended(name, self.process.returncode, self.tail(), self._killed_before)


def event_sender() -> Callable[..., None]:
    """In the process that was started so: the function that sends an event, from any thread.

    What it is called with becomes one JSON document a line, on the pipe that ``--events`` names.
    """
    events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w", encoding="utf-8")
    lock = threading.Lock()

    def send(**event: Any) -> None:
        with lock:
            events.write(json.dumps(event) + "\n")
            events.flush()

    return send
