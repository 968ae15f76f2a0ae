"""The launcher's agent on one host: ``python -m gluontune.parallel.agent``, started there by ssh.

It starts the host's ranks and helpers of the engine, passes commands, events and logs, and ends all of them when its
stdin closes, after 15 s of silence of the launcher (a cut link closes nothing), or on request. Messages are those of
:mod:`gluontune.parallel.link`, on stdin and stdout; nothing else is written to stdout.
"""

from __future__ import annotations

if __name__ == "__main__":  # on another host, which starts it with its current folder
    from gluontune.core.interpreter import leave_current_folder

    leave_current_folder()

import base64
import contextlib
import os
import selectors
import signal
import socket
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from gluontune import __version__, runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.parallel import horovod, hosts, kvstore
from gluontune.parallel.link import BEAT_S, HOST_CUT_S, LEASE_S, Lines, frame

_TICK_S = 0.2


def source_mark() -> str:
    """A checksum of gluontune's source, since a version number does not distinguish two checkouts."""
    folder, crc = Path(__file__).parents[1], 0
    for path in sorted(folder.rglob("*.py")):
        crc = zlib.crc32(path.relative_to(folder).as_posix().encode() + path.read_bytes(), crc)
    return f"{crc:08x}"


class Agent:
    """All processes of a run on this host."""

    def __init__(self, speaking: int):
        self._speaking, self._lock = speaking, threading.Lock()
        self.heard = time.monotonic()
        self.ranks: dict[int, PipedProcess] = {}
        self.cluster: kvstore.Cluster | None = None
        self.meeting: horovod.Meeting | None = None
        self.listener: hosts.Listener | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self._told_trouble = False

    def tell(self, **message: Any) -> None:
        """Send a message to the launcher; end if it is gone."""
        data = frame(message)
        try:
            with self._lock:
                while data:
                    data = data[os.write(self._speaking, data) :]
        except OSError:
            self.end()

    def end(self) -> None:
        """End all processes, and this one."""
        for rank in list(self.ranks.values()):
            rank.signal(signal.SIGKILL)
        if self.cluster is not None:
            self.cluster.close()
        if self.folder is not None:
            self.folder.cleanup()
        os._exit(0)

    # Requests of the launcher; each method returns the answer.

    def do_hello(self, cwd: str, env: dict[str, str]) -> dict[str, Any]:
        """Enter the launcher's folder, set its variables, and return facts of this host."""
        try:
            os.chdir(cwd)
        except OSError as error:
            raise GluontuneError(
                f"the folder {cwd} is not there ({error.strerror}): start the launcher in a folder that all hosts have"
            ) from error
        os.environ.update(env)
        facts = runtime.machine_facts()
        versions = {
            "gluontune": f"{__version__} (source {source_mark()})",
            "python": ".".join(facts["python"].split(".")[:2]),
            "mxnet": facts["packages"].get("mxnet"),
            "numpy": facts["packages"].get("numpy"),
        }
        named = {"hostname": socket.gethostname(), "named": hosts.own_name_stands_for()}
        return {"versions": versions, "machine": facts, "addresses": hosts.own_addresses(), **named}

    def do_listen(self, token: str) -> dict[str, Any]:
        self.listener = hosts.Listener(token)
        return {"port": self.listener.port}

    def do_settle(self, address: str) -> dict[str, Any]:
        """Listen only at the chosen address, after the search."""
        if self.listener is not None:
            self.listener.settle(address)
        return {}

    def do_dial(self, targets: list[tuple[str, int, str]]) -> dict[str, Any]:
        return {"found": hosts.dial(targets, attempts=2)}

    def do_watch(self, targets: list[tuple[str, str, int, str]]) -> dict[str, Any]:
        """Report from now on when another host (name, address, port, token) can no longer be reached."""
        for name, *target in targets:
            threading.Thread(target=self._watch_host, args=(name, tuple(target)), daemon=True).start()
        return {}

    def _watch_host(self, name: str, target: tuple[str, int, str]) -> None:
        reached, seen = time.monotonic(), {"error": None}
        while time.monotonic() - reached < HOST_CUT_S:
            time.sleep(BEAT_S)
            seen = hosts.dial([target])[0]
            if seen["own"]:
                reached = time.monotonic()
        self.tell(cut=name, error=seen["error"])

    def do_port(self, address: str, port: int) -> dict[str, Any]:
        return {"port": kvstore.free_port(address, port)}

    def do_helpers(self, names: list[str], runtime_name: str, shared: dict[str, str]) -> dict[str, Any]:
        self.cluster = kvstore.start_helpers(names, runtime.child_env(runtime_name), shared)
        return {}

    def do_meeting(self, slots: list[int], port: int, address: str) -> dict[str, Any]:
        self.meeting = horovod.start_meeting(slots, port=port, address=address)
        return {"envs": self.meeting.envs}

    def do_start(
        self, rank: int, module: str, setup: dict[str, Any], runtime_name: str, env: dict[str, str],
        engine_env: dict[str, str], local_ranks: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Start one rank, with threads and processors by its number on this host."""
        whole = runtime.child_env(runtime_name, env, processes=local_ranks)
        cpus = runtime.cpus_for_rank(setup["local_rank"], local_ranks) if local_ranks > 1 else None
        setup = {**setup, "parent": os.getpid(), "cpus": cpus}
        self.ranks[rank] = PipedProcess(python("-m", module), setup, {**whole, **engine_env})
        return {"pid": self.ranks[rank].process.pid, "applied": runtime.applied(whole)}

    def do_see(self, path: str) -> dict[str, Any]:
        return {"there": os.path.exists(path)}

    def do_file(self, name: str, data: str) -> dict[str, Any]:
        """Append a piece to a file missing on this host."""
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory(prefix="gluontune-")
        path = Path(self.folder.name) / Path(name).name
        with open(path, "ab") as stream:
            stream.write(base64.b64decode(data))
        return {"path": str(path)}

    # The loop.

    def carry_out(self, message: dict[str, Any]) -> None:
        """Execute one message of the launcher."""
        kind = message["do"]
        if kind == "say":
            self.ranks[message["rank"]].say(message["command"])
        elif kind == "signal":
            self.ranks[message["rank"]].signal(message["number"])
        elif kind == "end":
            self.end()
        elif kind != "beat":
            try:
                answer = getattr(self, f"do_{kind}")(**message["given"])
                self.tell(answer=message["id"], **answer)
            except (GluontuneError, OSError) as error:
                self.tell(answer=message["id"], error=str(error))

    def look_after(self) -> None:
        """Report logs, ends and failures since the last call."""
        for place, rank in list(self.ranks.items()):
            while (event := rank.poll()) is not None:
                if event["event"] == "end":
                    self.pass_on_log(place, rank)
                    self.tell(rank=place, event=event, how=rank.how_ended("NAME"), tail=rank.tail())
                    rank.close()
                    del self.ranks[place]
                    break
                self.tell(rank=place, event=event)
            else:
                self.pass_on_log(place, rank)
        if self.cluster is not None and not self._told_trouble and (trouble := self.cluster.failed()):
            self._told_trouble = True
            self.tell(trouble=trouble)

    def pass_on_log(self, place: int, rank: PipedProcess) -> None:
        if lines := rank.new_lines():
            self.tell(rank=place, log="\n".join(lines) + "\n")

    def beat(self) -> None:
        """Send signs of life."""
        while True:
            time.sleep(BEAT_S)
            self.tell(beat=1)

    def watch(self) -> None:
        """End all if the launcher is silent, even while a write to a cut link blocks."""
        while time.monotonic() - self.heard <= LEASE_S:
            time.sleep(BEAT_S)
        self.end()


def _listen(agent: Agent, inbox: int) -> None:
    """Pass stdin on, and note the launcher's last sign of life, independent of the loop."""
    while True:
        data = os.read(0, 1 << 20)
        if not data:
            agent.end()
        agent.heard = time.monotonic()
        while data:
            data = data[os.write(inbox, data) :]


def main() -> None:
    """Serve until the launcher is gone."""
    speaking = os.dup(1)
    os.dup2(2, 1)  # prints must not disturb the messages
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # perhaps for a whole cluster: the launcher decides
    agent = Agent(speaking)
    outbox, inbox = os.pipe()
    threading.Thread(target=_listen, args=(agent, inbox), daemon=True).start()
    for work in (agent.beat, agent.watch):
        threading.Thread(target=work, daemon=True).start()
    lines = Lines()
    with contextlib.suppress(KeyboardInterrupt), selectors.DefaultSelector() as selector:
        selector.register(outbox, selectors.EVENT_READ)
        while True:
            watched = {key.fd for key in selector.get_map().values()}
            wanted = {outbox, *(rank.reading for rank in agent.ranks.values())}
            for descriptor in watched - wanted:
                selector.unregister(descriptor)
            for descriptor in wanted - watched:
                selector.register(descriptor, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(_TICK_S)]
            if outbox in ready:
                for message in lines.feed(os.read(outbox, 1 << 20)):
                    agent.carry_out(message)
            agent.look_after()


if __name__ == "__main__":
    main()
