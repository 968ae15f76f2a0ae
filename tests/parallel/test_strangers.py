"""Strangers on the network: silent and garbage callers, what listens where, and engines that trust everybody."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import psutil
import pytest
from waiting import until

from gluontune.core.errors import GluontuneError
from gluontune.parallel.fleet import Fleet
from gluontune.parallel.hosts import Hosts, Listener, dial
from gluontune.training.meeting import Meeting


class Strangers:
    """Calls a port again and again, loopback only: says nothing, or rubbish, and hangs on."""

    def __init__(self, port, count, keep=400):
        self.port, self.count, self.keep, self.done = port, count, keep, 0
        self.held, self.stop = [], False
        self.thread = threading.Thread(target=self.call, daemon=True)

    def call(self):
        while self.done < self.count and not self.stop:
            with contextlib.suppress(OSError):
                line = socket.socket()
                line.setblocking(False)
                line.connect_ex(("127.0.0.1", self.port))
                self.held.append(line)
                if self.done % 2:
                    line.send(os.urandom(7))
            self.done += 1
            if len(self.held) > self.keep:
                self.held.pop(0).close()
            if self.done % 50 == 0:
                time.sleep(0.001)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        for line in self.held:
            line.close()


@pytest.fixture
def here(tmp_path):
    """Runs a command of a "host" on this machine."""
    script = tmp_path / "here"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "exec $*"\n')
    script.chmod(0o755)
    return str(script)


def test_silent_callers_keep_nobody_waiting():
    listener = Listener("secret")
    lines = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(12)]
    started = time.monotonic()
    assert dial([("127.0.0.1", listener.port, "secret")])[0]["own"] == "127.0.0.1"
    assert time.monotonic() - started < 20  # one by one they took 60 s
    for line in lines:
        line.settimeout(30)
        assert line.recv(1) == b"", "a silent caller is let go"
        line.close()


def test_the_right_token_gets_in_among_thousands_of_callers():
    listener = Listener("secret")
    with Strangers(listener.port, 3000) as strangers:
        while strangers.done < 3000:
            assert dial([("127.0.0.1", listener.port, "secret")], attempts=2)[0]["own"]
    assert len(listener._callers) <= 256


@pytest.mark.parametrize("said", [b"secre", b"secret", b"secret2\n", b"\n", b"\0" * 999, b"secret\0\n"])
def test_only_the_whole_token_is_answered(said):
    listener = Listener("secret")
    with socket.create_connection(("127.0.0.1", listener.port), 6) as line:
        line.sendall(said)
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_WR)
            assert line.recv(10) == b""
    with socket.create_connection(("127.0.0.1", listener.port), 6) as line:  # in pieces
        for piece in (b"sec", b"ret", b"\n"):
            line.sendall(piece)
            time.sleep(0.05)
        assert line.recv(10) == b"here\n"


def test_once_the_address_is_known_nobody_is_heard_elsewhere():
    listener = Listener("secret")
    assert listener.address == "0.0.0.0"
    listener.settle("127.0.0.3")
    assert dial([("127.0.0.3", listener.port, "secret")])[0]["own"]
    assert dial([("127.0.0.1", listener.port, "secret")])[0]["error"]


def test_two_hosts_of_one_machine_meet_on_loopback_and_listen_nowhere_else(here):
    with contextlib.closing(Fleet(Hosts(("a", "b"), (1, 1), rsh=here), 2, "kvstore", "as-installed")) as fleet:
        assert set(fleet.addresses.values()) == {"127.0.0.1"}

        def listening():
            ours = [psutil.Process(pid) for pid in fleet.pids]
            ours += [child for one in ours for child in one.children(recursive=True)]
            return [c.laddr.ip for one in ours for c in one.net_connections("inet") if c.status == "LISTEN"]

        until(listening)
        time.sleep(0.5)  # another one may come a little later
        heard = listening()
        assert heard and all(address.startswith("127.") for address in heard), heard


def test_no_engine_starts_on_a_network_unless_it_is_allowed(here, monkeypatch):
    def fleet(**options):
        return contextlib.closing(Fleet(Hosts(("a", "b"), (1, 1), rsh=here, **options), 2, "kvstore", "tuned"))

    monkeypatch.setattr("gluontune.parallel.fleet.is_loopback", lambda address: False)
    with pytest.raises(GluontuneError, match="--insecure-network"), fleet():
        pass
    monkeypatch.setattr(Fleet, "_start_engine", lambda self, engine: [])
    with fleet(insecure_network=True) as allowed:
        assert set(allowed.addresses) == {"a", "b"}


@pytest.mark.parametrize(
    "said",
    [b"[" * 3000 + b"\n", b'{"rank": Infinity, "world": 2}\n', b"7\n", b"\xff\n", b'{"rank": "x"}\n', b"x" * 5000],
)
def test_no_word_of_a_stranger_breaks_the_meeting_of_an_elastic_round(said):
    meeting = Meeting("127.0.0.1", [0], 2, "alike")
    mine, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    meeting._welcome(mine)
    assert meeting.ranks == {} and mine.fileno() == -1
    theirs.close()
    meeting.close()
