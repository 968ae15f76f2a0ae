"""Horovod: ring all-reduce between processes, without a server; gluontune starts the ranks and their meeting place.

In a rank, Horovod only sums gradients and broadcasts rank 0's values, so that a mean is taken once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.parallel.kvstore import free_port
from gluontune.runtime import mxnet
from gluontune.runtime.packages import installed_packages, to_make

_MISSING = (
    "Horovod is not installed for this mxnet: use engine='kvstore' (--engine kvstore), or build it "
    f"(about 75 s; it needs g++ and cmake): {to_make('horovod')}"
)

# Gloo declares a rank lost after 30 s of silence and ends the process. A ladder pauses whole groups for longer; the
# process that started a rank watches its life.
_LONG_STEP = 32  # images of a rank
_PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "86400"}


def installed() -> str | None:
    """The version of the installed Horovod, or None. Imports nothing."""
    return installed_packages().get("horovod")


@contextlib.contextmanager
def meeting(slots: Sequence[int], *, address: str = "127.0.0.1") -> Iterator[list[dict[str, str]]]:
    """The ranks' environments, for a meeting place at ``address`` alone, without a password.

    ``slots`` are the ranks on each host; they need the place only at their start.
    """
    if installed() is None:
        raise GluontuneError(_MISSING)
    http = importlib.import_module("horovod.runner.http.http_server")
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    launcher = importlib.import_module("horovod.runner.gloo_run")
    text = ",".join(f"host{k}:{count}" for k, count in enumerate(slots))
    plan = hosts.get_host_assignments(hosts.parse_hosts(text), sum(slots))
    server = http.RendezvousServer()
    port = free_port(address)  # Horovod's server takes any free port, on all addresses
    server._httpd = http.RendezvousHTTPServer((address, port), http.RendezvousHandler, 0)
    server._listen_thread = threading.Thread(target=server._httpd.serve_forever, daemon=True)
    server._listen_thread.start()
    server.init(plan)
    common = {**launcher.create_run_env_vars(address, ["lo"], port), **_PATIENT}
    envs = [{**common, **launcher.create_slot_env_vars(slot)} for slot in plan]
    try:
        yield [{name: str(value) for name, value in env.items()} for env in envs]
    finally:
        server.stop()


def join(rank: int, world: int, batch_size: int = 1) -> Exchange:
    """Connect to the other ranks; called in each of them, before the net is built.

    Args:
        batch_size: of this rank. With long steps Horovod's thread polls less often (every 5 ms in place of 1 ms,
            unless HOROVOD_CYCLE_TIME is set): on a CPU it takes the core from the training.

    Raises:
        GluontuneError: Horovod was not built for this mxnet, or has another rank or number of ranks.
    """
    mxnet()
    try:
        hvd = importlib.import_module("horovod.mxnet")
    except ImportError as error:
        raise GluontuneError(f"{_MISSING} ({error})") from error
    if batch_size >= _LONG_STEP:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
    hvd.init()
    if (hvd.rank(), hvd.size()) != (rank, world):
        raise GluontuneError(
            f"Horovod says rank {hvd.rank()} of {hvd.size()}, but this is rank {rank} of {world}: "
            "was HOROVOD_RANK or HOROVOD_SIZE set from outside?"
        )
    return Exchange(hvd, rank)


class Exchange:
    """Collective operations of the ranks."""

    def __init__(self, hvd: Any, rank: int):
        self.hvd, self.rank = hvd, rank

    def sum_gradients(self, grads: Sequence[Any], compression: str = "none") -> None:
        """Replace each NDArray by its sum over the ranks: a sum, because the trainer divides by the global batch.

        All in one group, so that the ranks negotiate once a step and not for each gradient. The ``compression``
        ``fp16`` sends half precision: half the bytes, 11 bits of each gradient, as Horovod's ``Compression.fp16``; sums
        above 65,504 become infinite.
        """
        if compression == "fp16":
            halves = [grad.astype("float16") for grad in grads]
            self.sum_gradients(halves)
            for grad, half in zip(grads, halves):
                half.astype(grad.dtype).copyto(grad)
            return
        alike: dict[Any, list[Any]] = {}
        for grad in grads:
            alike.setdefault(np.dtype(grad.dtype).name, []).append(grad)
        for name, group in alike.items():
            self.hvd.grouped_allreduce_(group, average=False, name=f"gradients.{name}")

    def take_from_first(self, named: Mapping[str, Any]) -> None:
        """Overwrite each NDArray with that of rank 0 (parameters, and BatchNorm's running statistics)."""
        from gluontune.runtime.importing import to_row_major

        mxnet().nd.waitall()
        for array in named.values():
            to_row_major(array)  # the only one that Horovod sends
        for name in sorted(named):
            self.hvd.broadcast_(named[name], root_rank=0, name=f"first.{name}")
        mxnet().nd.waitall()

    def read_once(
        self, read: Callable[[], tuple[dict[str, Any], dict[str, np.ndarray]]]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Rank 0's values for JSON and its arrays, on every rank: the others may be on hosts without the file."""
        blob = b""  # nothing is pickled
        if self.rank == 0:
            header, arrays = read()
            file = io.BytesIO()
            np.savez(file, json.dumps(header), **arrays)
            blob = file.getvalue()
        size = int(self._broadcast(np.array([len(blob)], np.int64), "size")[0])
        content = np.frombuffer(blob, np.uint8) if blob else np.zeros(size, np.uint8)
        with np.load(io.BytesIO(self._broadcast(content, "values").tobytes())) as shared:
            found = dict(shared)
        return json.loads(found.pop("arr_0").item()), found

    def _broadcast(self, values: np.ndarray, name: str) -> np.ndarray:
        array = mxnet().nd.array(values, dtype=values.dtype)
        return self.hvd.broadcast(array, root_rank=0, name=f"round.{name}").asnumpy()
