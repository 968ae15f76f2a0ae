"""A user's script as something to measure: how it is run, and the process that does it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, ClassVar

from gluontune.capture import script
from gluontune.capture.script import CHANGES, ENVIRONMENT
from gluontune.core.processes import PipedProcess
from gluontune.runtime import applied
from gluontune.training.starting import LocalRanks

_PROCESS = "gluontune.capture.stepping"


@dataclass(frozen=True)
class ScriptRun:
    """A way to run an unchanged script.

    Args:
        words: the script and its own words, or ``-m``, a module and its words.
        runtime: ``as-installed`` or ``tuned``, as of a Recipe. env: more variables of its process.
        changes: names of the changes in place that are in force from the first steps on. state: of compiled blocks, or
            :data:`gluontune.capture.script.DECIDED`: what can be in force and is faster. dtype, backend: as of
            ``gluontune run``. look: how many first losses are kept; 0: a dozen.

    >>> ScriptRun(("train.py", "--epochs", "2")).command()
    'python train.py --epochs 2'
    >>> ScriptRun(("train.py",), runtime="tuned", changes=("blocks",)).command()
    'gluontune run --leave samples train.py'
    >>> ScriptRun(("train.py",), runtime="tuned", changes=("samples",), backend="torch").command()
    'gluontune run --backend torch train.py'
    """

    words: tuple[str, ...]
    runtime: str = "as-installed"
    env: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    state: str = ""
    dtype: str = "float32"
    backend: str = "mxnet"
    look: int = 0

    # What a Group asks of what it trains.
    engine: ClassVar[str] = "local"
    num_devices: ClassVar[int] = 1
    exchange_every: ClassVar[int] = 1

    @property
    def job(self) -> str:
        """The script, for messages."""
        return script.Program.of(self.words).target

    def override(self, **changed: Any) -> ScriptRun:
        """The same script, run otherwise."""
        return replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """Of its process: the same hash of strings each time, so that runs can be compared."""
        given = {**os.environ, **self.env}
        return {"PYTHONHASHSEED": "0", **script.environment(self.runtime, given)}

    def command(self) -> str:
        """The command line of it, for a shell."""
        tuned = self.runtime != "as-installed"
        if not (tuned or self.changes or self.dtype != "float32" or self.backend != "mxnet"):
            return shlex.join(["python", *self.words])
        left = [] if tuned else [ENVIRONMENT]
        options = ["--backend", self.backend] if self.backend != "mxnet" else []
        options += ["--dtype", self.dtype] if self.dtype != "float32" else []
        known = CHANGES if self.backend == "mxnet" else ["samples"]
        left += [name for name in known if name not in self.changes]
        options += ["--leave", ",".join(left)] if left else []
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*env, shlex.join(["gluontune", "run", *options, *self.words])])


class ScriptSite(LocalRanks):
    """The process of a script, as a Group's ranks.

    Args:
        run: how it is run. world, setup: as of :class:`gluontune.training.starting.Here`.
        log: the file of its output; None: a temporary one.
    """

    def __init__(
        self, run: ScriptRun, world: int, setup: Callable[[int, int], dict[str, Any]], log: Path | None = None
    ):
        self.ranks = []
        options = {name: getattr(run, name) for name in ("changes", "state", "dtype", "backend", "look")}
        command = script.command(script.Program.of(run.words), _PROCESS, json.dumps(options))
        env = run.environment()
        self.applied = applied(env)
        stream: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = open(log, "w+b")  # noqa: SIM115 - closed with the process
        self.ranks.append(PipedProcess(command, {"parent": os.getpid()}, env, log=stream))

    def close(self) -> None:
        """End the process; safe to call twice."""
        for rank in self.ranks:
            rank.close()
        self.ranks = []


def log_name(label: str) -> str:
    """The file of a contender's output.

    >>> log_name("2 threads, allocator")
    '2-threads-allocator.log'
    """
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") + ".log"
