"""Start of a run's processes on this machine: of a recipe, with what its engine needs beside them, or of a script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, ClassVar

from gluontune import runtime
from gluontune.capture import script
from gluontune.capture.script import CHANGES, ENVIRONMENT
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.engines import ENGINES
from gluontune.parallel.horovod import meeting
from gluontune.parallel.kvstore import Cluster, free_port, start_cluster
from gluontune.parallel.shared import PATH_VARIABLE, available, create
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import RunFailed


class EngineHelpers:
    """The helpers of one run's engine, on this machine. They end with the calling thread.

    Args:
        recipe: of the run. world: ranks. env: of the helper processes.
        network: for ranks on several hosts, ``(interface, address)`` of each rank, rank 0 here; None: all are here.

    Attributes:
        envs: the engine's variables of each rank. cluster: of a parameter server, or None.
    """

    def __init__(
        self, recipe: Recipe, world: int, env: Mapping[str, str], network: Sequence[tuple[str, str]] | None = None
    ):
        self.envs: list[dict[str, str]] = [{} for _ in range(world)]
        self.cluster: Cluster | None = None
        self._held = contextlib.ExitStack()
        try:
            self._start_here(recipe, env) if network is None else self._start_for(network, recipe, env)
        except BaseException:
            self.close()
            raise

    def _start_here(self, recipe: Recipe, env: Mapping[str, str]) -> None:
        world, common = len(self.envs), {}
        if recipe.engine == "horovod":
            self.envs = self._held.enter_context(meeting([world]))
        elif recipe.engine == "kvstore":
            self.cluster = self._held.enter_context(start_cluster(world, env))
            common = self.cluster.worker_env
        elif recipe.engine in ("async", "shared-memory"):
            common = {PATH_VARIABLE: self._memory()}
        elif recipe.engine == "ddp":
            card = ENGINES[recipe.backend]
            if available():
                common = {card.meeting: f"file://{self._memory()}", **{name: self._memory() for name in card.shared}}
            else:
                folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="gluontune-ddp-"))
                common = {card.meeting: f"file://{Path(folder) / 'meeting'}"}
        self.envs = [{**common, **own} for own in self.envs]

    def _start_for(self, network: Sequence[tuple[str, str]], recipe: Recipe, env: Mapping[str, str]) -> None:
        world, address = len(self.envs), network[0][1]
        if recipe.engine == "horovod":
            envs = self._held.enter_context(meeting([1] * world, address=address))
            names = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
            given = [{"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, **dict.fromkeys(names, name)} for name, _ in network]
            self.envs = [{**own, **more} for own, more in zip(envs, given)]
        elif recipe.engine == "kvstore":
            self.cluster = self._held.enter_context(start_cluster(world, env, address))
            self.envs = [{**self.cluster.worker_env, "DMLC_NODE_HOST": own} for _, own in network]
        elif recipe.engine == "ddp":
            place = {ENGINES[recipe.backend].meeting: f"tcp://{address}:{free_port(address)}"}
            self.envs = [{**place, "GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} for name, _ in network]
        else:
            raise GluontuneError(
                f"engine={recipe.engine!r} works on one host, and these ranks are on several: use engine='kvstore', "
                "'horovod' or 'ddp'"
            )

    def _memory(self) -> str:
        """Create memory that the ranks share; returns its path."""
        memory, path = create()
        self._held.callback(os.close, memory)
        return path

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.cluster.processes] if self.cluster else []

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a helper that failed, or None."""
        message = self.cluster.failed() if self.cluster is not None else None
        return None if message is None else ("ClusterFailed", message)

    def close(self) -> None:
        self._held.close()
        self.cluster = None


CHILD = "gluontune.training.child"
_LEARNER = "gluontune.training.learner"  # a child that is replaced when it dies


class LocalRanks:
    """The common part of sites with the engine's helpers on this machine; without any, of tests' sites."""

    ranks: list[Any]
    _helpers: EngineHelpers | None = None

    @property
    def pids(self) -> list[int]:
        own = [rank.process.pid for rank in self.ranks if isinstance(rank, PipedProcess)]
        return own + (self._helpers.pids if self._helpers is not None else [])

    def trouble(self) -> tuple[str, str] | None:
        return self._helpers.trouble() if self._helpers is not None else None

    def where(self, rank: int) -> str:
        """A rank's host, for messages; "" for this machine."""
        return ""

    def facts(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        """End the processes on this machine and the helpers; safe to call twice."""
        for rank in self.ranks:
            if isinstance(rank, PipedProcess):
                rank.close()
        if self._helpers is not None:
            self._helpers.close()
        self.ranks = []


class Here(LocalRanks):
    """The ranks of a run on this machine, and the helpers of its engine."""

    def __init__(self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]]):
        self.ranks = []
        env = runtime.child_env(recipe.runtime, recipe.env, processes=world)
        self.applied = runtime.applied(env)
        self._helpers = helpers = or_failed(lambda: EngineHelpers(recipe, world, env), "EngineMissing")
        try:
            module = _LEARNER if recipe.engine == "async" else CHILD
            for rank, own in enumerate(helpers.envs):
                cpus = runtime.cpus_for_rank(rank, world) if world > 1 else None
                first = {**setup(rank, rank), "parent": os.getpid(), "cpus": cpus}
                self.ranks.append(PipedProcess(python("-m", module), first, {**env, **own}))
        except BaseException:
            self.close()
            raise


def or_failed(work: Callable[[], Any], kind: str) -> Any:
    """The result of ``work``; its errors become failures of the run."""
    try:
        return work()
    except GluontuneError as error:
        raise RunFailed(kind, str(error), "starting") from error


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
        return script.Program.of(self.words).target

    def override(self, **changed: Any) -> ScriptRun:
        return replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
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
    """The process of a script, as a Group's ranks; ``log`` is the file of its output."""

    def __init__(
        self, run: ScriptRun, world: int, setup: Callable[[int, int], dict[str, Any]], log: Path | None = None
    ):
        self.ranks = []
        options = {name: getattr(run, name) for name in ("changes", "state", "dtype", "backend", "look")}
        command = script.command(script.Program.of(run.words), _PROCESS, json.dumps(options))
        env = run.environment()
        self.applied = runtime.applied(env)
        stream: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = open(log, "w+b")  # noqa: SIM115 - closed with the process
        self.ranks.append(PipedProcess(command, {"parent": os.getpid()}, env, log=stream))


def log_name(label: str) -> str:
    """The file of a contender's output.

    >>> log_name("2 threads, allocator")
    '2-threads-allocator.log'
    """
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") + ".log"
