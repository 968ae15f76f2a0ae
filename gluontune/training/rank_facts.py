"""What a rank tells about itself, and its part of what it shares with other ranks: processors, threads, devices."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import __version__, runtime
from gluontune.parallel.environment import Place
from gluontune.parallel.mpi import is_loopback, own_addresses, own_name_stands_for
from gluontune.recipe import Recipe
from gluontune.runtime.system import System


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """A hash of the recipe's fields that all ranks must share: all but their number.

    >>> fingerprint({"net": "mlp", "num_devices": 2}) == fingerprint({"num_devices": 3, "net": "mlp"})
    True
    """
    same = {key: value for key, value in recipe.items() if key != "num_devices"}
    return f"{zlib.crc32(json.dumps(same, sort_keys=True).encode()):08x}"


def versions() -> dict[str, str]:
    """What all ranks must share to understand each other; the checksum of the source tells two checkouts apart."""
    folder, crc = Path(__file__).parents[1], 0
    for path in sorted(folder.rglob("*.py")):
        crc = zlib.crc32(path.relative_to(folder).as_posix().encode() + path.read_bytes(), crc)
    return {"gluontune": f"{__version__} (source {crc:08x})", "python": "{}.{}".format(*sys.version_info)}


def _machine() -> str:
    """This host as its own processes see it: two containers on one are two."""
    seen = [socket.gethostname()]
    with contextlib.suppress(OSError):
        seen += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    return " ".join(seen)


def hello_of(place: Place, alike: str, address: str) -> dict[str, Any]:
    """What a rank tells rank 0 about itself; ``address`` is its own one in their connection."""
    interface = next((name for name, own in own_addresses() if own == address), "lo")
    return {
        "rank": place.rank, "world": place.world, "job": place.job, "recipe": alike, "host": socket.gethostname(),
        "machine": _machine(), "network": [interface, address], "cpus": list(System().affinity()),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "versions": versions(), "named": own_name_stands_for(),
    }  # fmt: skip


def nameless(hellos: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason why Horovod's ranks on several hosts would not find each other, or None.

    Horovod 0.28 ignores HOROVOD_GLOO_IFACE for process sets, and takes the address of the host's name.

    >>> hello = {"host": "b", "network": ["eth0", "10.0.0.2"], "named": ["127.0.1.1"]}
    >>> nameless([hello]).split(": put")[0], nameless([{**hello, "named": ["10.0.0.2"]}])
    ('host b: its own name stands for 127.0.1.1, where other hosts would not find its ranks', None)
    """
    for hello in hellos:
        (_, address), named = hello["network"], hello["named"]
        if not is_loopback(address) and all(is_loopback(other) for other in named):
            return (
                f"host {hello['host']}: its own name stands for {', '.join(named) or 'no address'}, where other hosts "
                f"would not find its ranks: put '{address} {hello['host']}' into its /etc/hosts, "
                "or use --engine kvstore"
            )
    return None


def shares(hellos: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Each rank's part of what it sees: ``part`` of ``parts`` of its processors, and its ``device``.

    Ranks share processors, or GPUs, if they are on one host and see the same ones.

    >>> alike = {"machine": "a", "cpus": [0, 1], "devices": None}
    >>> shares([alike, alike, {**alike, "machine": "b"}])[1:]
    [{'part': 1, 'parts': 2, 'device': 1}, {'part': 0, 'parts': 1, 'device': 0}]
    >>> shares([{**alike, "cpus": [0], "devices": "0"}, {**alike, "cpus": [1], "devices": "1"}])[1]
    {'part': 0, 'parts': 1, 'device': 0}
    """
    found = []
    for rank, hello in enumerate(hellos):
        same = {
            name: [k for k, h in enumerate(hellos) if (h["machine"], h[name]) == (hello["machine"], hello[name])]
            for name in ("cpus", "devices")
        }
        cpus = same["cpus"]
        found.append({"part": cpus.index(rank), "parts": len(cpus), "device": same["devices"].index(rank)})
    return found


def resources(recipe: Recipe, limit: int | None, share: Mapping[str, int]) -> tuple[dict[str, str], Any]:
    """Environment and processors of a rank's process, before mxnet is imported.

    Args:
        limit: processors that the scheduler allows without binding the process to them. share: of :func:`shares`.
    """
    part, parts = share["part"], share["parts"]
    cores = max(1, System().compute_cores() // parts)
    few = limit is not None and limit < cores
    env = runtime.child_env(recipe.runtime, recipe.env, cores=limit if few else cores)
    if few:
        env.setdefault("OMP_NUM_THREADS", str(limit))  # as installed, MXNet takes half of all that it sees
    return env, runtime.cpus_for_rank(part, parts) if parts > 1 and not few else None
