"""Horovod: ring all-reduce between processes, without a server.

gluontune starts the ranks itself and keeps Horovod's own meeting place for them (the HTTP server of
``horovod.runner``, as ``horovodrun --gloo`` does). In a rank, Horovod only sums gradients and hands rank 0's
values round; rates, optimizer and batch sizes are those of every other engine, so that a mean is taken once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.runtime import mxnet

__all__ = ["Exchange", "Meeting", "installed", "join", "start_meeting"]

_MISSING = (
    "Horovod is not installed for this mxnet: `make horovod` builds it (about 75 s; it needs g++ and cmake), "
    "or use engine='kvstore' (--engine kvstore)"
)

# Gloo takes a rank that is silent for 30 s as lost, and ends the process. A ladder pauses whole groups for
# longer; whether a rank still lives is watched by who has started it.
_PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "86400"}


def installed() -> str | None:
    """The version of the Horovod that is installed, or None. Imports nothing."""
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass
class Meeting:
    """Where the ranks of one run find each other.

    Args:
        envs: environment variables for each rank. server: Horovod's ``RendezvousServer``.
    """

    envs: list[dict[str, str]]
    server: Any

    def close(self) -> None:
        """End the server; the ranks need it only while they start."""
        self.server.stop()


def start_meeting(ranks: int) -> Meeting:
    """Open a meeting place on this machine for ``ranks`` ranks.

    Raises:
        GluontuneError: Horovod is not installed.
    """
    if installed() is None:
        raise GluontuneError(_MISSING)
    http = importlib.import_module("horovod.runner.http.http_server")
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    launcher = importlib.import_module("horovod.runner.gloo_run")
    plan = hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks)
    server = http.RendezvousServer()
    port = server.start()
    server.init(plan)
    common = {**launcher.create_run_env_vars("127.0.0.1", ["lo"], port), **_PATIENT}
    envs = [{**common, **launcher.create_slot_env_vars(slot)} for slot in plan]
    return Meeting([{name: str(value) for name, value in env.items()} for env in envs], server)


def join(rank: int, world: int) -> Exchange:
    """Meet the other ranks; called in each of them, before the net is built.

    Raises:
        GluontuneError: Horovod was not built for this mxnet, or another rank or number of them was meant.
    """
    mxnet()
    try:
        hvd = importlib.import_module("horovod.mxnet")
    except ImportError as error:
        raise GluontuneError(f"{_MISSING} ({error})") from error
    hvd.init()
    if (hvd.rank(), hvd.size()) != (rank, world):
        raise GluontuneError(
            f"Horovod says rank {hvd.rank()} of {hvd.size()}, but this is rank {rank} of {world}: "
            "was HOROVOD_RANK or HOROVOD_SIZE set from outside?"
        )
    return Exchange(hvd, rank)


class Exchange:
    """What the ranks do together.

    Args:
        hvd: the module ``horovod.mxnet``, initialized. rank: of this process.
    """

    def __init__(self, hvd: Any, rank: int):
        self.hvd, self.rank = hvd, rank

    def sum_gradients(self, grads: Sequence[Any]) -> None:
        """Replace each NDArray by its sum over the ranks: a sum, because the trainer divides by the global batch.

        All in one group: the ranks then agree once a step instead of once for each gradient.
        """
        alike: dict[Any, list[Any]] = {}
        for grad in grads:
            alike.setdefault(np.dtype(grad.dtype).name, []).append(grad)
        for name, group in alike.items():
            self.hvd.grouped_allreduce_(group, average=False, name=f"gradients.{name}")

    def take_from_first(self, named: Mapping[str, Any]) -> None:
        """Overwrite each NDArray with that of rank 0 (parameters, and BatchNorm's running statistics)."""
        from gluontune.optim.trainer import to_default_layout

        mxnet().nd.waitall()
        for array in named.values():
            to_default_layout(array)  # Horovod sends no other
        for name in sorted(named):
            self.hvd.broadcast_(named[name], root_rank=0, name=f"first.{name}")
        mxnet().nd.waitall()

    def hand_round(
        self, header: dict[str, Any] | None, arrays: Mapping[str, np.ndarray] | None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Rank 0's values for JSON and its arrays, on every rank; the others give None. Nothing is pickled."""
        blob = b""
        if header is not None and arrays is not None:
            parts = {n: np.ascontiguousarray(a) for n, a in arrays.items()}
            index = [[n, a.dtype.str, list(arrays[n].shape)] for n, a in parts.items()]
            text = json.dumps([header, index]).encode()
            blob = len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in parts.values())
        size = int(self._broadcast(np.array([len(blob)], np.int64), "size")[0])
        content = np.frombuffer(blob, np.uint8) if blob else np.zeros(size, np.uint8)
        blob = self._broadcast(content, "values").tobytes()
        end = 8 + int.from_bytes(blob[:8], "little")
        shared, index = json.loads(blob[8:end])
        found = {}
        for name, dtype, shape in index:
            count = int(np.prod(shape, dtype=np.int64))
            found[name] = np.frombuffer(blob, dtype, count, end).reshape(shape).copy()
            end += found[name].nbytes
        return shared, found

    def _broadcast(self, values: np.ndarray, name: str) -> np.ndarray:
        array = mxnet().nd.array(values, dtype=values.dtype)
        return self.hvd.broadcast(array, root_rank=0, name=f"round.{name}").asnumpy()

    def leave(self) -> None:
        """End the exchange; the other ranks must be leaving too."""
        self.hvd.shutdown()
