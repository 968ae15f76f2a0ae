"""Several hosts, as far as one machine can show them: two agents here. ``make hosts`` has real network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gluontune.cli.main import main
from gluontune.errors import GluontuneError, UsageError
from gluontune.parallel.fleet import Fleet, HostsDiffer
from gluontune.parallel.hosts import Hosts
from gluontune.parallel.kvstore import free_port
from gluontune.parallel.link import Link, LinkLost
from gluontune.parallel.wire import Lines, frame
from gluontune.recipe import Recipe
from gluontune.train import run


@pytest.fixture
def here(tmp_path):
    """A transport that runs the command on this machine, whatever the host is called."""
    script = tmp_path / "rsh"
    script.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("text", "wrong"), [("a:0", "'a:0' is no host"), ("a,,b", "'' is no host"), ("-oProxyCommand=x:1", "is no host"),
                        ("a b", "is no host"), ("a:1,a:2", "each host once")],
)  # fmt: skip
def test_hosts_that_cannot_be_read_are_refused(text, wrong):
    with pytest.raises(UsageError, match=wrong):
        Hosts.parse(text)


def test_ranks_fill_the_hosts_in_order_and_are_numbered_on_each():
    hosts = Hosts.parse("user@node1:2,node2")
    assert [(p.host, p.local_rank, p.local_ranks) for p in hosts.places(3)] == [
        ("user@node1", 0, 2), ("user@node1", 1, 2), ("node2", 0, 1),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"4 ranks do not fit on --hosts user@node1:2,node2:1 \(3 in all\)"):
        hosts.places(4)


def test_ssh_never_asks_and_the_hosts_shell_sees_whole_words():
    command = Hosts.parse("node1", rsh="ssh -p 2222", python="/opt/my env/python").command("node1", "-m", "x")
    assert command[:3] == ["ssh", "-p", "2222"] and "BatchMode=yes" in command
    # --python is a command: a path with spaces is quoted in it
    assert Hosts.parse("node1", python="'/opt/my env/python' -E").command("node1")[-3:] == [
        "node1", "'/opt/my env/python'", "-E",
    ]  # fmt: skip
    assert Hosts.parse("localhost").command("localhost", "-V") == [sys.executable, "-V"]
    assert Hosts.parse("node1", rsh="ip netns exec").command("node1", "-V") == [
        "ip", "netns", "exec", "node1", sys.executable, "-V",
    ]  # fmt: skip


def test_messages_come_whole_from_among_what_else_is_printed():
    lines, data = Lines(), b"motd\n" + frame({"a": 1}) + frame({"b": "x" * 99})
    found = [m for k in range(0, len(data), 7) for m in lines.feed(data[k : k + 7])]
    assert found == [{"a": 1}, {"b": "x" * 99}] and lines.noise == "motd\n"


def test_two_agents_find_a_network_and_end_with_all_they_started(here):
    fleet = Fleet(Hosts(("a", "b"), (1, 1), rsh=here), 2, "kvstore", "as-installed")
    try:
        assert set(fleet.addresses) == {"a", "b"} and fleet.trouble() is None
        env = fleet._rank_env
        assert env[0]["DMLC_NUM_SERVER"] == "2" and env[1]["DMLC_NODE_HOST"] == fleet.addresses["b"]
        agents = [psutil.Process(link.process.pid) for link in fleet.links.values()]
        started = [child for agent in agents for child in agent.children()]
        assert len(started) == 3  # the scheduler and two servers
    finally:
        fleet.close()
    gone, left = psutil.wait_procs([*agents, *started], 5)
    assert len(gone) == 5 and not left


def test_a_file_that_a_host_lacks_is_brought_there(here, tmp_path, monkeypatch):
    content = os.urandom(600_000)
    (tmp_path / "a.ckpt").write_bytes(content)
    fleet = Fleet(Hosts(("a", "b"), (1, 1), rsh=here), 2, "kvstore", "as-installed")
    try:
        assert fleet.deliver(str(tmp_path / "a.ckpt")) == [str(tmp_path / "a.ckpt")] * 2
        ask = fleet.links["b"].start_ask
        monkeypatch.setattr(
            fleet.links["b"], "start_ask",
            lambda do, **given: ask(do, **({"path": "/nowhere"} if do == "see" else given)),
        )  # fmt: skip
        first, second = fleet.deliver(str(tmp_path / "a.ckpt"))
        assert first != second and Path(second).read_bytes() == content
    finally:
        fleet.close()
    assert not os.path.exists(second)


def test_a_link_that_is_cut_is_named_after_its_silence(here, monkeypatch):
    monkeypatch.setattr("gluontune.parallel.link.LINK_SILENT_S", 1.5)
    link = Link(Hosts(("b",), (1,), rsh=here), "b")
    try:
        link.ask("see", path="/")
        link.process.send_signal(19)  # SIGSTOP: like a cut, it closes nothing
        until = time.monotonic() + 20
        while link.lost is None and time.monotonic() < until:
            time.sleep(0.05)
        assert link.lost.startswith("host b has gone silent for 2 s")
        with pytest.raises(LinkLost, match="host b has gone silent"):
            link.ask("see", path="/")
    finally:
        link.close()


def test_an_agent_ends_when_its_launcher_is_silent_or_gone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import gluontune.parallel.wire as w; w.LEASE_S = 1.0\n")
    command = [sys.executable, "-m", "gluontune.parallel.agent"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    silent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    closed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    closed.stdin.close()
    assert closed.wait(20) == 0 and silent.wait(20) == 0
    silent.stdin.close()


def test_versions_that_differ_are_named():
    fleet = object.__new__(Fleet)
    fleet.links = {"a": None, "b": None}
    fleet._facts = {name: {"versions": {"python": "3.11", "mxnet": v}} for name, v in (("a", "1.9.1"), ("b", None))}
    with pytest.raises(HostsDiffer, match=r"host b has mxnet not installed, host a has 1\.9\.1"):
        fleet._compare_versions()


def test_a_python_without_gluontune_is_explained(here, tmp_path):
    bare = "/usr/bin/python3 -I" if os.path.exists("/usr/bin/python3") else f"{sys.executable} -I -S"
    with pytest.raises(LinkLost, match=r"host b: no agent could be started: .*No module named.*--python"):
        Link(Hosts(("b",), (1,), rsh=here, python=bare), "b").ask("see", path="/")


def test_a_port_in_use_is_named():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(GluontuneError, match=f"port {port} of 127.0.0.1 cannot be taken"):
            free_port("127.0.0.1", port)


def test_a_host_that_is_not_there_is_an_error_of_the_run():
    recipe = Recipe(net="mlp", engine="kvstore", num_devices=2)
    result = run(recipe, hosts=Hosts.parse("nowhere.invalid:2"))
    assert result.status == "failed" and result.error["type"] == "HostUnreachable"
    assert "nowhere.invalid" in result.error["message"]
    recipe = Recipe(net="mlp", engine="local")
    assert "use kvstore or horovod" in run(recipe, hosts="localhost").error["message"]


def test_launch_refuses_options_that_go_nowhere(capsys):
    assert main(["launch", "--rsh", "ssh", "--", "train"]) == 2
    assert "--rsh goes with --hosts" in capsys.readouterr().err
    assert main(["launch", "-n", "3", "--hosts", "a,b", "--", "train"]) == 2
    assert "3 ranks do not fit" in capsys.readouterr().err
    assert main(["launch", "--hosts", "a,b", "--", "train", "--hosts=c"]) == 2
    assert "--hosts after `--`" in capsys.readouterr().err
