"""Two network namespaces as two hosts: ``make hosts`` runs these. They need root, iproute2 and sshd, and fail without.

Each namespace has its own interfaces, addresses and loopback; a veth pair is the cable between them. One transport is
``ip netns exec``, the other a real sshd in the second namespace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from launch_faults import FAULTS, fault_trial, restart_trial, undisturbed
from two_hosts import RSH, two_hosts

from gluontune.job import checkpoint
from gluontune.parallel.hosts import Hosts
from gluontune.train import Checkpoints, Group, RunFailed, run

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from ranks import TWO as SMALL, parameters_after

os.environ["OMP_NUM_THREADS"] = "1"  # both hosts share these cores
ENGINES = ["kvstore", "horovod"]


@pytest.fixture(scope="module")
def net():
    with two_hosts() as net:
        yield net


@pytest.fixture
def hosts(net):
    return Hosts(net.names, (1, 1), rsh=RSH, insecure_network=True)


def below(process):
    """gluontune's processes among the descendants of ``process``."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "gluontune" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize("engine", ENGINES)
def test_two_hosts_are_one_process_with_the_whole_batch(tmp_path, hosts, net, engine):
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    two = parameters_after(SMALL.override(engine=engine), 20, tmp_path / "two", hosts)
    one = parameters_after(
        SMALL.override(engine="local", num_devices=1, batch_size_per_device=64), 20, tmp_path / "one"
    )
    assert len(one) == 6 and max(np.abs(one[name] - two[name]).max() for name in one) <= 1e-5


def launch(*words, **options):
    command = [sys.executable, "-m", "gluontune", "launch", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, **options)


TRAIN = (
    "train", "--net", "mlp", "--loader", "resident", "--devices", "cpu", "--train-samples", "512", "--val-samples",
    "64", "--batch-size-per-device", "32",
)  # fmt: skip


def test_the_command_merges_one_result_with_its_hosts_and_their_logs(tmp_path, net):
    (tmp_path / "job.py").write_text("print('hello', flush=True)\ndef data(): return 'sample'\n")
    done = launch(
        "--hosts",
        ",".join(net.names),
        "--rsh",
        RSH,
        "--insecure-network",
        "--",
        *TRAIN,
        "--job",
        "job.py",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["val_accuracy"]) == 1 and result["recipe"]["num_devices"] == 2
    assert [(h["name"], h["address"], h["ranks"]) for h in result["hosts"]] == [
        (net.names[0], net.addresses[0], [0]),
        (net.names[1], net.addresses[1], [1]),
    ]
    assert "[0] hello" in done.stderr and "[1] hello" in done.stderr
    assert result["peak_rss_mib"] > 100


def test_a_checkpoint_is_gone_on_from_where_other_hosts_do_not_have_it(tmp_path, hosts):
    recipe = SMALL.override(epochs=2, optimizer="adam", learning_rate=0.001)
    whole = run(recipe, hosts=hosts, checkpoints=Checkpoints(tmp_path / "a", every="7steps"))
    assert whole.ok, whole.error
    want = checkpoint.read(tmp_path / "a" / checkpoint.name_of(whole.steps))[1]
    (tmp_path / "a" / checkpoint.name_of(whole.steps)).unlink()
    # The second host does not see the folder: each rank there gets a copy.
    hidden = f"unshare -m sh -c 'mount -t tmpfs none {tmp_path}/a; exec \"$@\"' sh"
    script = tmp_path / "rsh"
    script.write_text(
        f'#!/bin/sh\nhost=$1; shift\ncase $host in *-b) exec ip netns exec $host {hidden} "$@";; esac\n'
        'exec ip netns exec $host "$@"\n'
    )
    script.chmod(0o755)
    apart = Hosts(hosts.names, hosts.slots, rsh=str(script), insecure_network=True)
    again = run(recipe, hosts=apart, checkpoints=Checkpoints(tmp_path / "a", every="7steps", resume=True))
    assert again.ok and "went on from" in again.notes[0], (again.error, again.notes)
    got = checkpoint.read(tmp_path / "a" / checkpoint.name_of(whole.steps))[1]
    assert all(want[name].tobytes() == got[name].tobytes() for name in want)
    turned = Hosts(tuple(reversed(hosts.names)), hosts.slots, rsh=str(script), insecure_network=True)
    lost = run(recipe, hosts=turned, checkpoints=Checkpoints(tmp_path / "a", resume=True))
    assert lost.status == "failed" and "does not have this folder" in lost.error["message"]


def test_hosts_that_do_not_answer_are_named_within_the_bound(tmp_path, net):
    dead = tmp_path / "dead"
    dead.write_text('#!/bin/sh\ncase $1 in *-b) exec sleep 600;; esac\nexec ip netns exec "$@"\n')
    dead.chmod(0o755)
    started = time.monotonic()
    with pytest.raises(RunFailed, match=f"host {net.names[1]} has not answered for 3 s") as caught:
        Group(SMALL, hosts=Hosts(net.names, (1, 1), rsh=str(dead), connect_s=3))
    assert caught.value.kind == "HostUnreachable" and time.monotonic() - started < 20
    with pytest.raises(RunFailed, match=r"host gluontune-none: .*Cannot open network namespace"):
        Group(SMALL, hosts=Hosts((net.names[0], "gluontune-none"), (1, 1), rsh=RSH))


def test_hosts_that_cannot_reach_each_other_are_named(net, hosts):
    net.cut()
    try:
        hosts = dataclasses.replace(hosts, connect_s=5)
        with pytest.raises(RunFailed, match=f"host {net.names[1]} cannot reach host {net.names[0]} .*firewall"):
            Group(SMALL, hosts=hosts)
    finally:
        net.mend()


def test_unequal_software_is_named(tmp_path, net):
    """The second host has a gluontune of its own, in which one file differs."""
    package = Path(__file__).parents[2] / "gluontune"
    shutil.copytree(package, tmp_path / "gluontune", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "gluontune" / "stats.py", "a") as changed:
        changed.write("# changed\n")
    script = tmp_path / "rsh"
    script.write_text("#!/bin/sh\ncase $1 in *-b) cd " + str(tmp_path) + ';; esac\nexec ip netns exec "$@"\n')
    script.chmod(0o755)
    with pytest.raises(RunFailed, match=rf"host {net.names[1]} has gluontune .*source .*, host {net.names[0]} has"):
        Group(SMALL, hosts=Hosts(net.names, (1, 1), rsh=str(script), insecure_network=True))


def test_unequal_data_are_named(tmp_path, hosts, net):
    job = (
        "import os\n"
        "first = os.environ['DMLC_NODE_HOST'].endswith('.1')\n"
        "def data(): return 'sample' if first else 'synthetic:train=2048,test=64,size=28x28'\n"
    )
    (tmp_path / "job.py").write_text(job)
    recipe = SMALL.override(job=str(tmp_path / "job.py"), train_samples=None)
    with pytest.raises(RunFailed, match=rf"rank 1 on host {net.names[1]} has data .*rank 0 on host"):
        Group(recipe, hosts=hosts)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_port_in_use_is_named(net, engine):
    with subprocess.Popen(
        ["ip", "netns", "exec", net.names[0], sys.executable, "-c",
         "import socket, time; s = socket.create_server(('0.0.0.0', 9455)); print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        holder.stdout.readline()
        try:
            with pytest.raises(RunFailed, match=f"host {net.names[0]}: port 9455 .*cannot be taken"):
                Group(
                    SMALL.override(engine=engine),
                    hosts=Hosts(net.names, (1, 1), rsh=RSH, port=9455, insecure_network=True),
                )
        finally:
            holder.kill()


def test_a_host_whose_own_name_is_loopback_is_told_what_to_do_for_horovod(net, hosts):
    """Debian's /etc/hosts says 127.0.1.1; Horovod would have the other hosts call themselves."""
    own = Path("/etc/netns") / net.names[1] / "hosts"
    before = own.read_text()
    own.write_text(before.replace(net.addresses[1], "127.0.1.1"))
    try:
        with pytest.raises(RunFailed, match=rf"host {net.names[1]}: its own name .* 127\.0\.1\.1.*{net.addresses[1]}"):
            Group(SMALL.override(engine="horovod"), hosts=hosts)
    finally:
        own.write_text(before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_on_any_host_outlives_the_launcher(tmp_path, net, number):
    said = tmp_path / "said.txt"
    flags = ["--train-samples", "2048", "--epochs", "500", "--checkpoint", str(tmp_path / "c"),
             "--checkpoint-every", "5steps"]  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "gluontune",
        "launch",
        "--hosts",
        ",".join(net.names),
        "--rsh",
        RSH,
        "--insecure-network",
        "--",
    ]
    with open(said, "wb") as log:
        launched = subprocess.Popen([*command, *TRAIN, *flags], stdout=log, stderr=log)
    try:
        wait_for(lambda: list((tmp_path / "c").glob("*.ckpt")), 120)
        family = psutil.Process(launched.pid).children(recursive=True)
        assert len(family) >= 7, said.read_text()  # two agents, two ranks, a scheduler, two servers
        launched.send_signal(number)
        launched.wait(30)
        _, left = psutil.wait_procs(family, 10)
        assert not left
    finally:
        launched.kill()


@pytest.mark.parametrize("fault", [name for name in FAULTS if "cut off" in name])
def test_a_host_that_is_cut_off_ends_all_and_is_named(fault):
    seen = fault_trial(*FAULTS[fault])
    assert seen["named"] and seen["seconds"] <= 30 and not seen["orphans"], seen


def test_a_restart_after_a_cut_ends_with_the_accuracy_of_a_run_left_alone():
    seen = restart_trial(*FAULTS["kvstore host cut off"])
    assert seen["accuracies"] == undisturbed("kvstore")["accuracies"]
    assert any("restarted after a fault: host" in note for note in seen["notes"])


@contextlib.contextmanager
def sshd_in(name, folder):
    """A real sshd in a namespace, with keys of its own; the ssh command that reaches it."""
    server = shutil.which("sshd") or "/usr/sbin/sshd"
    assert Path(server).exists(), "sshd is missing (Debian, Ubuntu: apt install openssh-server)"
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / "sshd_config"
    config.write_text(
        f"Port 2022\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin prohibit-password\nPidFile {folder}/pid\nPasswordAuthentication no\n"
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", name, server, "-D", "-e", "-f", str(config)],
        stderr=open(folder / "sshd.log", "wb"),  # noqa: SIM115
    )
    try:
        time.sleep(1)
        assert process.poll() is None, (folder / "sshd.log").read_text()
        ssh = f"ssh -p 2022 -i {folder}/user -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=no"
        yield f"{ssh} -o BatchMode=yes", process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.kill()
        process.wait()


@pytest.fixture
def over_ssh(tmp_path, net):
    """A command that launches from within the first host, and reaches the second by ssh; that host's sshd; ssh."""
    with sshd_in(net.names[1], tmp_path) as (ssh, sshd):
        script = tmp_path / "rsh"  # ssh for the other host; for the launcher's own, no transport at all
        lines = ["#!/bin/sh", 'if [ $1 = localhost ]; then shift; exec "$@"; fi', f'exec {ssh} "$@"']
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)
        inside = [*RSH.split(), net.names[0], sys.executable, "-m", "gluontune", "launch"]
        yield (
            [*inside, "--hosts", f"localhost,{net.addresses[1]}", "--rsh", str(script), "--insecure-network", "--"],
            sshd,
            ssh,
        )


def captured(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_over_a_real_ssh(net, over_ssh):
    command, sshd, ssh = over_ssh
    done = captured([*command, *TRAIN, "--json"])
    assert done.returncode == 0, done.stderr
    assert [h["address"] for h in json.loads(done.stdout)["hosts"]] == list(net.addresses)
    assert wait_for(lambda: not below(sshd), 10)
    # ssh itself, with options of its own: both ranks on the other host
    inside = command[: command.index("--hosts")]
    both = captured([*inside, "--hosts", f"{net.addresses[1]}:2", "--rsh", ssh, "--", *TRAIN, "--json"])
    assert both.returncode == 0, both.stderr
    assert json.loads(both.stdout)["hosts"][0]["ranks"] == [0, 1]
    # nobody listens on port 22, and no key fits that user: named, with ssh's own words
    refused = captured([*inside, "--hosts", f"localhost,{net.addresses[1]}", "--", *TRAIN])
    assert refused.returncode == 1 and f"host {net.addresses[1]}" in refused.stderr
    assert "Connection refused" in refused.stderr
    denied = captured([*inside, "--hosts", f"nobody@{net.addresses[1]}", "-n", "1", "--rsh", ssh, "--", *TRAIN])
    assert denied.returncode == 1 and "Permission denied" in denied.stderr


def test_an_ssh_link_that_is_cut_ends_both_sides(tmp_path, net, over_ssh):
    command, sshd, _ = over_ssh
    flags = ["--train-samples", "2048", "--epochs", "500", "--checkpoint", str(tmp_path / "c")]
    said = tmp_path / "said.txt"
    with open(said, "wb") as log:
        launched = subprocess.Popen([*command, *TRAIN, *flags, "--checkpoint-every", "5steps"], stdout=log, stderr=log)
    try:
        wait_for(lambda: list((tmp_path / "c").glob("*.ckpt")), 120)
        assert len(below(sshd)) >= 3, said.read_text()  # the agent, a rank, a server
        net.cut()
        assert launched.wait(30) == 1
        error = " ".join(said.read_text().split())
        assert f"host {net.addresses[1]} (rank 1)" in error and ("silent" in error or "cannot reach" in error)
        assert wait_for(lambda: not below(sshd), 30)
    finally:
        net.mend()
        launched.kill()
