"""An entrant of a benchmark, and its process, which is measured slice by slice."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import psutil

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.processes import PipedProcess
from gluontune.runtime.packages import to_make

OURS = "gluontune"
LIMIT = "limit"  # no contender: an upper limit of the machine
LEAD = 0.25  # of a slice, untimed before it, to use up queues that filled during the pause
PEERS_VARIABLE = "GLUONTUNE_PEERS"
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Entrant:
    """One row of a benchmark: its work and interpreter.

    Args:
        name: the row's name, unlike all others. peer: ``OURS``, ``LIMIT``, or the peer's name; the best row of each
        counts.
        target: ``"module:function"``, called with ``settings`` (plain values) in the process.
        python: the interpreter; None: this one. env: variables added to the user's environment.
        slices: ``seconds``: steps until the slice is over; ``steps``: a fixed number, counted in the warm-up, for
            asynchronous work; ``once``: one step is the slice.
        note: facts that a comparison needs (sizes, formats).
    """

    name: str
    peer: str
    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: Optional[Path] = None
    env: Mapping[str, str] = field(default_factory=dict)
    slices: str = "seconds"
    note: str = ""


class ContenderFailed(GluontuneError):
    """A contender could not be measured. ``status`` is ``missing`` (not installed) or ``failed``."""

    def __init__(self, reason: str, status: str = "failed"):
        super().__init__(reason)
        self.status = status


class Contender:
    """An entrant in its process, paused between its turns; the process ends with its parent.

    Args:
        entrant: its description. time_limit: seconds that building or one command may take before it counts as hung.
        say: called with a line before each action.

    Attributes:
        rates: units a second of each slice. info: of its work. failure: why it could not be measured, or None.
        memory_mib: most resident memory, without pages shared with files or other processes, at the end of a slice.
    """

    def __init__(self, entrant: Entrant, time_limit: float = 300.0, say: Callable[[str], None] = lambda line: None):
        self.entrant, self.time_limit, self.say = entrant, time_limit, say
        self.rates: list[float] = []
        self.info: dict[str, Any] = {}
        self.memory_mib = 0.0
        self.failure: ContenderFailed | None = None
        self._process: PipedProcess | None = None
        self._seconds, self._steps = 0.0, 1

    def launch(self) -> None:
        """Start the process, wait until its work is built, and pause it."""
        self.say(f"building {self.entrant.name}")
        if self._process is not None or self.failure is not None:
            return
        with self._guarded():
            python = self.entrant.python or Path(sys.executable)
            if not python.is_file():
                raise ContenderFailed(f"not installed: {to_make('peers')}", "missing")
            setup = {"target": self.entrant.target, "settings": dict(self.entrant.settings), "parent": os.getpid()}
            env = runtime.child_env("as-installed", self.entrant.env)
            self._process = PipedProcess([str(python), str(_CHILD)], setup, env)
            self.info = self._wait("ready")["info"]
            self._process.signal(signal.SIGSTOP)

    def warm_up(self, slice_s: float) -> None:
        self.say(f"warming up {self.entrant.name}")
        self._seconds = slice_s
        with self._turn():
            if self.entrant.slices == "once":
                self._command(do="run", steps=1)
            elif self.entrant.slices == "seconds":
                self._command(do="run", seconds=slice_s)
            else:
                self._command(do="run", steps=2)
                seen = self._command(do="run", steps=2)
                for _ in range(2):  # the first estimate contains some of the warm-up
                    self._steps = max(2, round(slice_s / max(seen["seconds"], 1e-6) * seen["steps"]))
                    seen = self._command(do="run", steps=self._steps)

    def slice(self) -> None:
        """One turn: resume, an untimed lead-in, a timed slice, pause."""
        self.say(f"measuring {self.entrant.name}")
        how: dict[str, dict[str, Any]] = {
            "once": {"steps": 1}, "steps": {"lead": 1e-9, "steps": self._steps},
            "seconds": {"lead": LEAD * self._seconds, "seconds": self._seconds},
        }  # fmt: skip
        with self._turn():
            seen = self._command(do="run", **how[self.entrant.slices])
            self.rates.append(seen["units"] / seen["seconds"])
            self.memory_mib = max(self.memory_mib, self._memory())

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call a method of its work, and return the result; None if it has failed."""
        answer: dict[str, Any] = {}
        with self._turn():
            answer = self._command(do="call", name=name, arguments=arguments)
        return answer.get("value")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._guarded():
            if self._process is not None:
                self._process.signal(signal.SIGCONT)
            yield
            if self._process is not None:
                self._process.signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (ContenderFailed, OSError) as error:
            failed = error if isinstance(error, ContenderFailed) else ContenderFailed(f"cannot be started: {error}")
            self.failure = self.failure or failed
            self.close()

    def _command(self, **command: Any) -> dict[str, Any]:
        if self._process is None:
            raise self.failure or ContenderFailed("was not started")
        self._process.say(command)
        return self._wait("done")

    def _wait(self, wanted: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + self.time_limit
        with selectors.DefaultSelector() as selector:
            selector.register(process.reading, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ContenderFailed(f"no answer for {self.time_limit:.0f} s")
                selector.select(left)
                event = process.poll()
                if event is None:
                    continue
                if event["event"] == wanted:
                    return event
                if event["event"] != "error":
                    raise ContenderFailed(process.how_ended("its process"))
                if event["missing"]:
                    cure = to_make("peers") if self.entrant.python is not None else f"pip install {event['missing']}"
                    raise ContenderFailed(f"{event['missing']} is not installed: {cure}", "missing")
                raise ContenderFailed(f"{event['type']}: {event['message']}")

    def _memory(self) -> float:
        assert self._process is not None
        total = 0
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self._process.process.pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    seen = process.memory_info()
                    total += seen.rss - seen.shared
        return total / 2**20


def peer_python(folder: Union[str, os.PathLike[str], None] = None) -> Path:
    """The Python of the environment of ``make peers``; the file may not exist.

    Args:
        folder: the environment; None: ``$GLUONTUNE_PEERS``, else ``.peers`` here, else ``.peers`` of the checkout.

    >>> peer_python("/opt/peers").as_posix()
    '/opt/peers/bin/python'
    """
    chosen = os.fspath(folder) if folder is not None else os.environ.get(PEERS_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute() / "bin" / "python"
    here, checkout = (base / ".peers" / "bin" / "python" for base in (Path.cwd(), Path(__file__).resolve().parents[3]))
    return here if here.is_file() else checkout
