"""The MXNet contexts of a process, the sum of their gradients, and MXNet's parameter server on this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from gluontune.core.errors import GluontuneError
from gluontune.core.files import Closing
from gluontune.core.interpreter import python
from gluontune.recipe.rules import listed_gpus
from gluontune.runtime import mxnet

# A process with DMLC_ROLE=scheduler or server serves inside `import mxnet` and ends with the job: a cluster's SIGTERM
# to all its processes must not end the server before the ranks have saved.
_SERVE = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from gluontune.core.processes import die_with_parent; die_with_parent({parent}); "
    "import gluontune.runtime as r; r.mxnet()"
)


_HELPERS = ("scheduler", "server 0")


@dataclass
class Cluster(Closing):
    """The helper processes of a ``dist_sync`` kvstore, the scheduler first, and the variables of its workers."""

    worker_env: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    def failed(self) -> str | None:
        """A sentence on a helper that ended with an error, or None."""
        for name, process in zip(_HELPERS, self.processes):
            code = process.poll()
            if code not in (None, 0):
                return f"the kvstore's {name} ended with code {code}: {self._last_words()}"
        return None

    def _last_words(self) -> str:
        """The most informative line of the helpers' output."""
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if "Check failed" in line or "Error" in line]
        return (telling or lines or ["it said nothing"])[-1].strip()[-300:]

    def close(self) -> None:
        """End the helpers, which have nothing to save."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        self.log.close()


def _own_address() -> str:
    """A loopback address that no other cluster of this machine has.

    ps-lite's sockets reconnect for ever: on a shared address, the worker of a dead cluster can reach a new cluster's
    server behind a reused port, and push its gradients into another training.
    """
    return "127." + ".".join(str(1 + secrets.randbelow(253)) for _ in range(3))


def free_port(address: str) -> int:
    """A free TCP port of ``address``."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports of ended connections are free
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def start_cluster(workers: int, env: Mapping[str, str], address: str = "", *, under: Sequence[str] = ()) -> Cluster:
    """Start a scheduler and one server on this machine, which end with the calling thread.

    Args:
        env: the environment of the helpers (with gluontune's runtime settings).
        address: of this machine, where other hosts reach them; "": on the loopback interface.
        under: a command that execs the one that follows it, such as one that sets limits.
    """
    host = address or _own_address()
    shared = {
        "DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": str(free_port(host)), "DMLC_NODE_HOST": host,
        "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": "1", "PS_VERBOSE": "0",
    }  # fmt: skip
    cluster = Cluster(worker_env={**shared, "DMLC_ROLE": "worker"})
    try:
        for name in _HELPERS:
            command = [*under, *python("-c", _SERVE.format(parent=os.getpid()))]
            process = subprocess.Popen(
                command, env={**env, **shared, "DMLC_ROLE": name.partition(" ")[0]}, cwd=os.getcwd(),
                stdin=subprocess.DEVNULL, stdout=cluster.log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            cluster.processes.append(process)
    except OSError as error:
        cluster.close()
        raise GluontuneError(f"the kvstore's helpers cannot be started: {error}") from error
    return cluster


def contexts(devices: str = "auto", count: int = 1, first: int = 0) -> list[Any]:
    """The MXNet contexts for one process.

    Args:
        devices: ``auto`` (GPUs if this mxnet sees one, else the CPU), ``cpu``, ``gpu``, or ``gpu:0,2``.
        count: number of GPUs; CPU contexts beyond the first share the same cores and serve tests only.
        first: place of the first GPU among all, or among the listed ones.

    Raises:
        GluontuneError: fewer GPUs than asked for.

    >>> contexts("cpu", 2)
    [cpu(0), cpu(1)]
    """
    mx = mxnet()
    gpus = 0 if devices == "cpu" else mx.context.num_gpus()
    if devices.startswith("gpu") or (devices == "auto" and gpus):
        chosen = (listed_gpus(devices) or range(gpus))[first : first + count]
        if len(chosen) < count or max(chosen) >= gpus:
            raise GluontuneError(
                f"{first + count} GPUs wanted, but this mxnet sees {gpus}: use num_devices={max(gpus, 1)} or "
                "devices='cpu'; gluontune doctor says why a GPU is not seen"
            )
        return [mx.gpu(index) for index in chosen]
    return [mx.cpu(i) for i in range(count)]


def split_batch(batch: Any, ctxs: list[Any]) -> list[Any]:
    """Cut a batch along its first axis into one NDArray for each context.

    Unlike ``gluon.utils.split_and_load`` it accepts a batch smaller than the number of contexts: some get no part.

    Args:
        batch: NDArray or numpy array, shape (N, ...); of any dtype.
        ctxs: the contexts.

    >>> [part.shape for part in split_batch(mxnet().nd.zeros((3, 2)), contexts("cpu", 4))]
    [(1, 2), (1, 2), (1, 2)]
    """
    nd = mxnet().nd
    if not isinstance(batch, nd.NDArray):
        batch = nd.array(batch, dtype=batch.dtype, ctx=mxnet().cpu())
    if len(ctxs) == 1:
        return [batch.as_in_context(ctxs[0])]
    total, n = len(batch), min(len(ctxs), len(batch))
    edges = [total * i // n for i in range(n + 1)]
    return [batch[a:b].as_in_context(ctx) for a, b, ctx in zip(edges, edges[1:], ctxs)]


def clear_idle(parameters: Iterable[Any], used: int) -> None:
    """Zero the gradients of contexts without a part of a batch, before the gradients are summed.

    Otherwise Gluon's trainer refuses the step ("gradient has not been updated"), or sums those of the step before.
    """
    for parameter in parameters:
        if parameter.grad_req != "null":
            for grad, data in zip(parameter.list_grad()[used:], parameter.list_data()[used:]):
                grad[:] = 0
                data._fresh_grad = True


def choose_kvstore(
    ctxs: Sequence[Any], shapes: Sequence[Sequence[int]], repeats: int = 5
) -> tuple[str, dict[str, float]]:
    """The kvstore that sums gradients over these contexts fastest, and the milliseconds of each available one.

    Args:
        ctxs: contexts of one process. shapes: of the float32 gradients.
        repeats: exchanges of each, after one for warm-up; medians are compared.

    >>> name, times = choose_kvstore(contexts("cpu", 2), [(8, 8), (8,)])
    >>> name in times, sorted(times)
    (True, ['device', 'local'])
    """
    mx, found = mxnet(), {}
    grads = [[mx.nd.zeros(tuple(shape), ctx=ctx) for ctx in ctxs] for shape in shapes]
    keys = list(range(len(grads)))
    names = ("device", "local", "nccl") if ctxs[0].device_type == "gpu" else ("device", "local")
    for name in names:
        try:
            store = mx.kv.create(name)
        except mx.MXNetError:  # this mxnet was built without nccl
            continue
        store.init(keys, [per_context[0] for per_context in grads])
        found[name] = median_ms(functools.partial(push_and_pull, store, keys, grads), repeats, 1)
    return min(found, key=lambda name: found[name]), found


def push_and_pull(store: Any, keys: list[int], arrays: list[Any]) -> None:
    """One exchange through a kvstore."""
    store.push(keys, arrays)
    store.pull(keys, arrays)


def median_ms(exchange: Callable[[], None], repeats: int, before: int) -> float:
    """The median time of ``repeats`` exchanges, after ``before`` for warm-up."""
    times = []
    for _ in range(before + repeats):
        mxnet().nd.waitall()
        start = time.perf_counter()
        exchange()
        mxnet().nd.waitall()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[before:])
