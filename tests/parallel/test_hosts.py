"""`launch --hosts`: what it gives to mpirun, seen by a stand-in. `make hosts` has real ones and two hosts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest
from waiting import until

from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.parallel import mpi
from gluontune.parallel.environment import found
from gluontune.parallel.mpi import Hosts


@pytest.mark.parametrize(
    ("text", "wrong"), [("a:0", "'a:0' is no host"), ("a,,b", "'' is no host"), ("-oProxyCommand=x:1", "is no host"),
                        ("a b", "is no host"), ("a:1,a:2", "each host once")],
)  # fmt: skip
def test_hosts_that_cannot_be_read_are_refused(text, wrong):
    with pytest.raises(UsageError, match=wrong):
        Hosts.parse(text)


def test_ssh_never_asks_and_a_python_may_have_words_of_its_own():
    hosts = Hosts.parse("node1", rsh="ssh -p 2222", python="'/opt/my env/python' -E", connect_s=7)
    assert hosts.transport()[:3] == ["ssh", "-p", "2222"]
    assert {"BatchMode=yes", "ConnectTimeout=7"} < set(hosts.transport())
    assert hosts.python_words("-V") == ["/opt/my env/python", "-E", "-V"]
    assert Hosts.parse("node1", rsh="ip netns exec").transport() == ["ip", "netns", "exec"]
    assert Hosts.parse("node1").python_words("-m", "x")[0] == sys.executable


#: Writes down each call with the variables that it got, prints a line, and ends with the next code of `codes`.
STAND_IN = f"""#!/bin/sh
"exec" "{sys.executable}" "$0" "$@"
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1:] == ["--version"]:
    sys.exit(print({{kind!r}}))
words = sys.argv[1:]
if "plm_rsh_agent" in words:
    agent = words[words.index("plm_rsh_agent") + 1]
else:
    agent = words[words.index("-bootstrap-exec") + 1]
call = {{{{"words": words, "env": dict(os.environ), "agent": open(agent).read()}}}}
with open(os.path.join(here, "calls"), "a") as stream:
    stream.write(json.dumps(call) + "\\n")
lines = open(os.path.join(here, "calls")).read().splitlines()
print("result", len(lines), flush=True)
code = json.load(open(os.path.join(here, "codes")))[len(lines) - 1]
time.sleep(600 if code is None else 0)
sys.exit(code)
"""


class Mpirun:
    def __init__(self, folder):
        self.folder = folder
        self.becomes("mpirun (Open MPI) 4.1.4")

    def becomes(self, kind, codes=(0,)):
        (self.folder / "mpirun").write_text(STAND_IN.format(kind=kind))
        (self.folder / "mpirun").chmod(0o755)
        (self.folder / "codes").write_text(json.dumps(codes))

    @property
    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLUONTUNE_RUN"):
        monkeypatch.setenv(name, "x")  # is put back at the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Mpirun(tmp_path)


HOSTS = ["launch", "--hosts", "node1:2,me@node2:1", "--engine", "horovod", "--insecure-network", "--rsh", "ssh -p 2222"]


def test_open_mpi_gets_hosts_variables_and_a_command_that_each_rank_understands(mpirun, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET", "stays here")
    assert main([*HOSTS, "--port", "4321", "--", "train", "--epochs", "2"]) == 0
    (call,) = mpirun.calls
    words, env = call["words"], call["env"]
    assert words[words.index("--host") + 1] == "node1:2,me@node2:1" and words[words.index("-np") + 1] == "3"
    given = {words[k + 1] for k, word in enumerate(words) if word == "-x"}
    assert {"OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "GLUONTUNE_RUN"} <= given and "SECRET" not in given
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("node1", "4321")
    assert words[-6:] == ["train", "--epochs", "2", "--engine", "horovod", "--insecure-network"]
    assert words[words.index("--wdir") + 1] == os.getcwd()
    assert "ssh -p 2222 -o BatchMode=yes" in call["agent"]
    assert capfd.readouterr().out == "result 1\n"
    ranks = dict(zip((f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")), "2301"))
    place = found({**ranks, **{name: env[name] for name in given}})
    assert (place.host, place.port) == ("node1", 4321) and env["GLUONTUNE_RUN"] in place.job


def test_the_words_of_rsh_are_words_in_what_is_told_of_a_failure_too(tmp_path):
    hosts = Hosts.parse("node1", rsh="false '$(touch RAN)' '`touch RAN`' '\"' \"it's\"")
    transport = shlex.join(hosts.transport())
    text = mpi._AGENT.format(transport=transport, shown=shlex.quote(transport)).replace("sleep 5", "")
    (tmp_path / "agent").write_text(text)
    done = subprocess.run(["sh", "-c", "sh ./agent node1; true"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == f"error: host node1: ended with code 1: {transport}\n"
    assert not (tmp_path / "RAN").exists()


def test_each_launch_draws_a_number_that_only_its_ranks_know(mpirun):
    mpirun.becomes("mpirun (Open MPI) 5.0.1", [0, 0])
    for _ in range(2):
        assert main([*HOSTS, "--", "train"]) == 0
    first, second = (call["env"]["GLUONTUNE_RUN"] for call in mpirun.calls)
    assert first != second and len(first) == 32


def test_mpich_gets_the_same_in_its_own_words(mpirun):
    mpirun.becomes("HYDRA build details:")
    assert main([*HOSTS, "-n", "2", "--", "train"]) == 0
    words = mpirun.calls[0]["words"]
    assert words[words.index("-hosts") + 1] == "node1:2,me@node2:1" and words[words.index("-n") + 1] == "2"
    assert "MASTER_ADDR" in words[words.index("-genvlist") + 1].split(",")
    assert words[words.index("-bootstrap") + 1] == "rsh"  # `ssh` would put -x before the host


@pytest.mark.parametrize(
    ("codes", "code", "out"),
    [([137, 1, 0], 0, "result 3\n"), ([1, 1, 1], 1, "result 3\n"), ([2], 2, "result 1\n"), ([130], 130, "result 1\n")],
)
def test_a_restart_resumes_and_one_result_is_printed(mpirun, monkeypatch, capfd, codes, code, out):
    monkeypatch.setattr("gluontune.parallel.mpi._HOST_BACK_S", 0)
    mpirun.becomes("Open MPI", codes)
    assert main([*HOSTS, "--restart", "2", "--", "train", "--checkpoint", "ckpt"]) == code
    resumed = [call["words"].count("--resume") for call in mpirun.calls]
    assert resumed == [0, 1, 1][: len(codes)]
    told = capfd.readouterr()
    assert told.out == out and told.err.count("restarted after a fault: mpirun ended with code") == len(codes) - 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_mpirun_hears_of_a_stop_and_ends_with_the_launcher(mpirun, number, tmp_path):
    mpirun.becomes("Open MPI", [None])
    launched = subprocess.Popen(
        [sys.executable, "-m", "gluontune", *HOSTS, "--", "train"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    until((tmp_path / "calls").exists)
    time.sleep(0.2)
    children = psutil.Process(launched.pid).children()
    launched.send_signal(number)
    assert launched.wait(20) == (130 if number == signal.SIGTERM else -number)
    assert children and not psutil.wait_procs(children, 10)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rsh", "ssh", "--", "train"], "--rsh goes with --hosts"),
        (["-n", "3", "--hosts", "a", "--", "train"], "3 ranks do not fit"),
        (["--hosts", "a,b", "--", "train", "--hosts=c"], "--hosts after `--`"),
        (["--hosts", "a,b", "--", "train"], "2 machines meet on a network"),
        (["--hosts", "localhost,b", "--insecure-network", "--", "train"], "the other hosts cannot reach localhost"),
        (["--hosts", "a", "--restart", "1", "--", "train"], "--restart 1 needs checkpoints"),
    ],
)
def test_what_goes_nowhere_is_refused(mpirun, words, said, capfd):
    assert main(["launch", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.split())
    assert not (mpirun.folder / "calls").exists()


def test_without_mpirun_the_refusal_says_what_to_install_and_the_line_to_start(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "--hosts", "a:2,b:2", "--insecure-network", "--", "train", "--epochs", "2"]) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert "no mpirun is installed: apt install openmpi-bin (or mpich)" in told
    assert "mpirun -np 4 --bind-to none --host a:2,b:2 -x MASTER_ADDR=a gluontune train --epochs 2" in told
