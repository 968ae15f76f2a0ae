"""The launcher's side of one host: the ssh (or other) process, and its messages: one JSON object a line."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import SAFE
from gluontune.core.processes import Heard
from gluontune.parallel.hosts import Hosts

BEAT_S = 1.0  # interval of both sides' signs of life
LINK_SILENT_S = 10.0  # silence after which the launcher declares a host cut off
HOST_CUT_S = 8.0  # time after which hosts that cannot reach each other are cut off, even if the launcher reaches both
LEASE_S = 15.0  # silence of the launcher after which an agent ends all its processes

_MARK = b"gluontune "  # login scripts print, too


def frame(message: Mapping[str, Any]) -> bytes:
    """One message as a line.

    >>> list(Lines().feed(b"Welcome to node2!\\n" + frame({"beat": 1})))
    [{'beat': 1}]
    """
    return _MARK + json.dumps(message).encode() + b"\n"


class Lines:
    """Splits a stream of bytes into messages; ``noise`` has the other lines."""

    def __init__(self) -> None:
        self._rest, self.noise = bytearray(), ""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages completed by ``data``."""
        self._rest += data
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            if line.startswith(_MARK):
                yield json.loads(line[len(_MARK) :])
            else:
                self.noise = (self.noise + line.decode("utf-8", "replace") + "\n")[-2000:]


class LinkLost(GluontuneError):
    """A host does not answer, or no longer."""


class RemoteRank(Heard):
    """A rank on another host, with the interface of :class:`gluontune.core.processes.PipedProcess`."""

    def __init__(self, link: Link, rank: int):
        reading, self._writing = os.pipe()
        super().__init__(reading, tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as the rank
        self.link, self.rank, self._how = link, rank, ""
        self.pid = 0

    def say(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
        self.link.send(do="say", rank=self.rank, command=dict(command))

    def signal(self, number: int) -> None:
        """Signal the process and its session."""
        self.link.send(do="signal", rank=self.rank, number=int(number))

    def take(self, message: dict[str, Any]) -> None:
        """Handle a message about this rank, in the link's thread."""
        if "log" in message:
            self.log.write(message["log"].encode())
            self.log.flush()
        if "event" in message:
            self._how = message.get("how", self._how)
            line = frame(message["event"]).partition(b" ")[2]
            with contextlib.suppress(OSError):
                while line:
                    line = line[os.write(self._writing, line) :]

    def how_ended(self, name: str) -> str:
        """The reason why it ended, for the process called ``name``."""
        return self._how.replace("NAME", name)

    def close(self) -> None:
        """Close the pipe and the log; the agent ends the process."""
        with contextlib.suppress(OSError):
            os.close(self._writing)
        self._close_reading()


class Link:
    """One host, through its agent.

    Attributes:
        ranks: of this host, by their number.
        lost: the reason why it is lost, or None.
        cut: the host that it cannot reach, and the reason, or None.
        trouble: the agent's message on a failed helper, or None.
    """

    def __init__(self, hosts: Hosts, name: str):
        self.name, self._limit = name, hosts.connect_s
        self.ranks: dict[int, RemoteRank] = {}
        self.lost: str | None = None
        self.cut: tuple[str, str] | None = None
        self.trouble: str | None = None
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._numbers, self._lines, self._lock = itertools.count(), Lines(), threading.Lock()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the link
        self._closing = self._spoke = False
        self._command = command = hosts.command(
            name, *(SAFE if hosts.python is None else ()), "-m", "gluontune.parallel.agent"
        )
        try:
            self.process = subprocess.Popen(  # in a session: Ctrl-C is for the launcher, which then ends its agents
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, start_new_session=True
            )
        except OSError as error:
            raise LinkLost(f"host {name}: {command[0]} cannot be started: {error.strerror}") from error
        self._heard = self._started = time.monotonic()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._beat, daemon=True).start()

    def __str__(self) -> str:
        ranks = f" (rank {', '.join(map(str, sorted(self.ranks)))})" if self.ranks else ""
        return f"host {self.name}{ranks}"

    def send(self, **message: Any) -> None:
        """Send a message; if the link is broken, its reader reports it."""
        data = frame(message)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._lock:
            while data:
                data = data[os.write(self.process.stdin.fileno(), data) :]

    def start_ask(self, do: str, **given: Any) -> int:
        """Send a request to the agent, for :meth:`answer`."""
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        self.send(do=do, id=number, given=given)
        return number

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a request."""
        until = time.monotonic() + self._limit
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._answers[number].get(timeout=0.05)
                if "error" in found:
                    raise GluontuneError(f"host {self.name}: {found['error']}")
                return found
            if self.lost is not None:
                raise LinkLost(self.lost)
            if time.monotonic() > until:
                self._lose(f"host {self.name} has not answered for {self._limit:.0f} s")

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.answer(self.start_ask(do, **given))

    def _beat(self) -> None:
        while self.lost is None and not self._closing:
            silent, limit = time.monotonic() - self._heard, LINK_SILENT_S if self._spoke else self._limit
            if silent > limit:
                word = "has gone silent" if self._spoke else "has not answered"
                self._lose(f"{self} {word} for {limit:.0f} s: is it up, and is there a way to it?")
            before = time.monotonic()
            # In a thread: a write to a cut link may block.
            threading.Thread(target=self.send, kwargs={"do": "beat"}, daemon=True).start()
            time.sleep(BEAT_S)
            if (stopped := time.monotonic() - before - BEAT_S) > 1:  # this process was stopped
                self._heard += stopped

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 20):
            for message in self._lines.feed(data):
                self._heard, self._spoke = time.monotonic(), True
                if "answer" in message:
                    self._answers[message["answer"]].put(message)
                elif "rank" in message and message["rank"] in self.ranks:
                    self.ranks[message["rank"]].take(message)
                elif "cut" in message:
                    self.cut = message["cut"], message["error"]
                elif "trouble" in message:
                    self.trouble = f"host {self.name}: {message['trouble']}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if not self._closing and self.lost is None:
            words = self.last_words()
            self._lose(
                f"host {self.name}: {'its agent ended' if self._spoke else 'no agent could be started'}: {words}"
            )

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
        self._kill()

    def last_words(self) -> str:
        """The last line of ssh, or of Python there."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
        lines = [line.strip() for line in (self._lines.noise + said).splitlines() if line.strip()]
        code = self.process.poll()
        text = lines[-1][-300:] if lines else f"{self._command[0]} ended with code {code}"
        if "No module named" in text:
            text += " (install the same gluontune there, or name its Python with --python)"
        return text

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def start_close(self) -> None:
        """Have the agent end all its processes."""
        self._closing = True
        threading.Thread(target=self._say_goodbye, daemon=True).start()

    def _say_goodbye(self) -> None:
        self.send(do="end")
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait for the end of the link."""
        self.start_close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.1 if self.lost else 5)
        self._kill()
        self.process.wait()
        self._listener.join(1)
        for rank in self.ranks.values():
            rank.close()
