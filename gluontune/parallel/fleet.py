"""The ranks of one run on several hosts: their start, and the detection of lost hosts."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.parallel import horovod, kvstore
from gluontune.parallel.hosts import Hosts, Place, is_loopback
from gluontune.parallel.link import HOST_CUT_S, LINK_SILENT_S, Link, LinkLost, RemoteRank

_PASSED_ON = ("GLUONTUNE_", "MXNET_", "OMP_", "NCCL_")  # variables of the launcher; all others are the host's
_PIECE = 256 * 1024


class HostsDiffer(GluontuneError):
    """Hosts with unequal software."""


class Fleet:
    """The hosts of a run, with the engine's helpers and meeting place on them.

    Attributes:
        ranks: in order, after :meth:`start`.
        places: of each rank.
        applied: variables set by gluontune for rank 0.
    """

    notices_after_s = LINK_SILENT_S  # the time until a cut off host is noticed

    def __init__(self, hosts: Hosts, world: int, engine: str, runtime: str):
        self.hosts, self.world, self.runtime = hosts, world, runtime
        self.places: list[Place] = hosts.places(world)
        self.ranks: list[RemoteRank] = []
        self.applied: dict[str, str] = {}
        self.links: dict[str, Link] = {}
        names = list(dict.fromkeys(place.host for place in self.places))
        try:
            for name in names:  # all at once: each may take seconds
                self.links[name] = Link(hosts, name)
            env = {n: v for n, v in os.environ.items() if n.startswith(_PASSED_ON)}
            self._facts = self._ask_all("hello", cwd=os.getcwd(), env=env)
            self._compare_versions()
            self._find_network()
            self._rank_env = self._start_engine(engine)
        except BaseException:
            self.close()
            raise

    def _ask_all(self, do: str, **given: Any) -> dict[str, dict[str, Any]]:
        asked = [(link, link.start_ask(do, **given)) for link in self.links.values()]
        return {link.name: link.answer(number) for link, number in asked}

    def _compare_versions(self) -> None:
        first, *others = self.links
        for name in others:
            for package, version in self._facts[name]["versions"].items():
                wanted = self._facts[first]["versions"][package]
                if version != wanted:
                    raise HostsDiffer(
                        f"host {name} has {package} {version or 'not installed'}, host {first} has "
                        f"{wanted or 'not installed'}: bring them to the same"
                    )

    def _find_network(self) -> None:
        """Find an address of each host that the others reach; ``addresses`` is empty for one host."""
        self.addresses: dict[str, str] = {}
        if len(self.links) == 1:
            return
        token = secrets.token_hex(16)
        # Each host has another token: behind 127.0.0.1 a host finds itself, perhaps with the same port.
        tokens = {name: f"{token} {name}" for name in self.links}
        ports = {name: link.ask("listen", token=tokens[name])["port"] for name, link in self.links.items()}
        first, *others = self.links
        candidates = [address for _, address in self._facts[first]["addresses"]]
        targets = [(address, ports[first], tokens[first]) for address in candidates]
        until = time.monotonic() + self.hosts.connect_s
        while True:  # a cut network may come back, and a restarted run waits for it
            asked = [(name, self.links[name].start_ask("dial", targets=targets)) for name in others]
            found = {name: self.links[name].answer(number)["found"] for name, number in asked}
            reached = [k for k in range(len(candidates)) if all(found[name][k]["own"] for name in others)]
            if reached or time.monotonic() > until:
                break
            time.sleep(1)
        if not reached:
            name = next((n for n in others if not any(f["own"] for f in found[n])), others[-1])
            tried = "; ".join(f"{a}: {f['error'] or 'reached'}" for a, f in zip(candidates, found[name]))
            raise LinkLost(
                f"host {name} cannot reach host {first} ({tried}): is a firewall between them? All ports must be open"
            )
        self.addresses = {first: candidates[reached[0]]}
        self.addresses.update({name: found[name][reached[0]]["own"] for name in others})
        self._check_network()
        for name, own in self.addresses.items():
            self.links[name].ask("settle", address=own)
        for place, name in enumerate(others):  # between the others
            known = others[:place]
            targets = [(self.addresses[n], ports[n], tokens[n]) for n in known]
            answers = self.links[name].ask("dial", targets=targets)["found"]
            for other, answer in zip(known, answers):
                if not answer["own"]:
                    raise LinkLost(
                        f"host {name} cannot reach host {other} at {self.addresses[other]} ({answer['error']})"
                    )
            watched = [(n, self.addresses[n], ports[n], tokens[n]) for n in (first, *known)]
            self.links[name].ask("watch", targets=watched)

    def _check_network(self) -> None:
        """Refuse open networks: engines have no password, and who reaches the kvstore can run code."""
        name, address = next(iter(self.addresses.items()))
        if not is_loopback(address) and not self.hosts.insecure_network:
            raise GluontuneError(
                f"host {name} would be reached at {address}, where MXNet's kvstore unpickles what anyone sends it and "
                "Horovod's meeting place has no password:\non a network that is yours alone say --insecure-network "
                "(SECURITY.md); else join the hosts by a tunnel (WireGuard) and say so there"
            )

    def _start_engine(self, engine: str) -> list[dict[str, str]]:
        """Start helpers or meeting place. Returns the engine's variables of each rank."""
        names = list(self.links)
        first = self.links[names[0]]
        address = self.addresses.get(names[0], "127.0.0.1")
        if engine == "horovod":
            self._check_own_names()
            slots = [sum(place.host == name for place in self.places) for name in names]
            envs = first.ask("meeting", slots=slots, port=self.hosts.port, address=address)["envs"]
            if self.addresses:
                for place, env in zip(self.places, envs):
                    env.update(horovod.network_env(address, self._interface(place.host)))
            return envs
        port = first.ask("port", address=address, port=self.hosts.port)["port"]
        shared = kvstore.cluster_env(self.world, len(names), address, port)
        envs = {name: {**shared, "DMLC_NODE_HOST": self.addresses.get(name, address)} for name in names}
        for k, name in enumerate(names):  # a server on each host, for equal traffic on all links
            helpers = [*(["scheduler"] if k == 0 else []), f"server {k}"]
            self.links[name].ask("helpers", names=helpers, runtime_name=self.runtime, shared=envs[name])
        return [{**envs[place.host], "DMLC_ROLE": "worker"} for place in self.places]

    def _check_own_names(self) -> None:
        """Check host names: Horovod 0.28 ignores HOROVOD_GLOO_IFACE for process sets, and uses the host's name."""
        for name, address in self.addresses.items():
            named, hostname = self._facts[name]["named"], self._facts[name]["hostname"]
            if not is_loopback(address) and all(is_loopback(other) for other in named):
                raise GluontuneError(
                    f"host {name}: its own name {hostname} stands for {', '.join(named) or 'no address'}, where the "
                    f"other hosts would not find its ranks: put '{address} {hostname}' into its /etc/hosts, or use "
                    "--engine kvstore"
                )

    def _interface(self, name: str) -> str:
        wanted = self.addresses[name]
        return next(interface for interface, address in self._facts[name]["addresses"] if address == wanted)

    def start(self, module: str, setup: Callable[[int, int], dict[str, Any]], env: Mapping[str, str]) -> None:
        """Start all ranks."""
        asked = []
        for rank, place in enumerate(self.places):
            link = self.links[place.host]
            self.ranks.append(RemoteRank(link, rank))
            link.ranks[rank] = self.ranks[-1]
            given = {
                "module": module, "setup": setup(rank, place.local_rank), "runtime_name": self.runtime,
                "env": dict(env), "engine_env": self._rank_env[rank], "local_ranks": place.local_ranks,
            }  # fmt: skip
            asked.append((link, link.start_ask("start", rank=rank, **given)))
        answers = [link.answer(number) for link, number in asked]
        for remote, answer in zip(self.ranks, answers):
            remote.pid = answer["pid"]
        self.applied = answers[0]["applied"]

    @property
    def pids(self) -> list[int]:
        """The processes on this machine: ssh, or local agents."""
        return [link.process.pid for link in self.links.values()]

    def trouble(self) -> tuple[str, str] | None:
        """Kind and message of a lost host or helper, or None."""
        for link in self.links.values():
            if link.trouble is not None:
                return "ClusterFailed", link.trouble
        for link in self.links.values():
            if link.lost is not None:
                return "HostLost", link.lost
        for link in self.links.values():
            if link.cut is not None:
                other, why = link.cut
                way = f"at {self.addresses[other]} ({why})"
                return (
                    "HostLost",
                    f"{link} cannot reach {self.links[other]} {way} for {HOST_CUT_S:.0f} s: is one cut off?",
                )
        return None

    def where(self, rank: int) -> str:
        """The host of a rank, for messages."""
        return f" on host {self.places[rank].host}"

    def facts(self) -> list[dict[str, Any]]:
        """The hosts for a result: name, address, ranks, versions, machine."""
        return [
            {
                "name": name,
                "address": self.addresses.get(name),
                "ranks": [rank for rank, place in enumerate(self.places) if place.host == name],
                **{key: self._facts[name][key] for key in ("versions", "machine")},
            }
            for name in self.links
        ]

    def check_folder(self, folder: str) -> None:
        """Check that rank 0 and the launcher share the folder of checkpoints."""
        place = self.places[0]
        mark = Path(folder) / f".seen-{secrets.token_hex(8)}"
        mark.touch()
        try:
            seen = self.links[place.host].ask("see", path=str(mark))["there"]
        finally:
            mark.unlink()
        if not seen:
            raise GluontuneError(
                f"{folder}: host {place.host}, where rank 0 writes checkpoints, does not have this folder: name this "
                "machine first in --hosts, or use a folder that both share"
            )

    def deliver(self, path: str) -> list[str]:
        """The path of each rank to the file ``path`` of this machine, copied to hosts without it."""
        there = self._ask_all("see", path=path)
        paths = dict.fromkeys(self.links, path)
        for name, link in self.links.items():
            if not there[name]["there"]:
                with open(path, "rb") as stream:
                    while piece := stream.read(_PIECE):
                        data = base64.b64encode(piece).decode()
                        paths[name] = link.ask("file", name=os.path.basename(path), data=data)["path"]
        return [paths[place.host] for place in self.places]

    def close(self) -> None:
        """End everything on all hosts."""
        for link in self.links.values():
            link.start_close()
        for link in self.links.values():
            link.close()
