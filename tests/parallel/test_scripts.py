"""What `launch --print` writes for a cluster: read back, as the cluster reads it."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml
from hypothesis import given, strategies as st

from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.parallel.environment import found
from gluontune.parallel.scripts import SCRIPTS, Layout

TRAIN = ("train", "--dataset", "sample", "--checkpoint", "my ckpt", "--out", "a b.json")


def printed(kind, *options, train=TRAIN):
    return SCRIPTS[kind](Layout(train, *options))


def options_of(text):
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, flags=re.M))


def test_a_batch_script_saves_in_time_and_is_queued_again():
    text = printed("slurm", "kvstore", 2, 4, None, True)
    options = options_of(text)
    assert (options["nodes"], options["ntasks-per-node"], options["signal"]) == ("2", "4", "TERM@120")
    assert "requeue" in options and options["open-mode"] == "append"
    line = next(line for line in text.split("\n") if line.startswith("srun"))
    assert shlex.split(line)[2:] == ["gluontune", *TRAIN, "--engine", "kvstore", "--insecure-network", "--resume"]
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


@pytest.mark.parametrize(("code", "queued"), [(0, ""), (1, ""), (130, "requeue 7\n")])
def test_only_an_interrupted_run_is_queued_again(code, queued, tmp_path):
    for name, text in {"srun": f"exit {code}", "scontrol": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=printed("slurm", "kvstore"), env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, queued)


def test_the_tasks_of_an_array_have_their_own_seeds_and_files(tmp_path):
    text = printed("slurm-array", "kvstore", 1, 1, train=(*TRAIN, "--seed", "0-11"))
    assert options_of(text)["array"] == "0-11"
    (tmp_path / "srun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "5", "SLURM_JOB_ID": "7"}
    words = subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True).stdout.splitlines()
    given = dict(zip(words, words[1:]))
    assert (given["--seed"], given["--out"], given["--checkpoint"]) == ("5", "a b-5.json", "my ckpt-5")
    assert "--engine" not in words  # one process a task
    with pytest.raises(UsageError, match="an array wants the seeds of its tasks"):
        printed("slurm-array", "kvstore", 1, 1)


def test_no_line_of_a_word_becomes_a_command(tmp_path):
    """The comment of an array of parts shows the words, one of which may have several lines."""
    words = ("tta", "--part", "0-3", "--out", "a\ntouch RAN\n")
    text = printed("slurm-array", "local", 1, 1, train=words)
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}
    assert subprocess.run(["bash"], input=text, env=env, cwd=tmp_path, text=True).returncode == 0
    assert not (tmp_path / "RAN").exists()


def test_an_mpirun_line_is_one_that_ranks_understand():
    words = shlex.split(printed("mpi", "horovod", 2, 4, "a:4,b:4", True))
    assert words[:5] == ["mpirun", "-np", "8", "--bind-to", "none"]
    name, value = words[words.index("-x") + 1].split("=")
    ranks = dict(zip((f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")), "5814"))
    assert found({**ranks, name: value}).host == "a"


@given(
    st.sampled_from(["slurm", "mpi"]), st.integers(1, 9), st.integers(1, 9),
    st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=1000), min_size=1), max_size=4),
)  # fmt: skip
def test_every_word_reaches_the_ranks_as_it_was_given(kind, nodes, ranks, words):
    text = printed(kind, "kvstore", nodes, ranks, None, True, train=("train", "--set", *words))
    line = next(line for line in text.split("\n") if "gluontune train" in line)
    assert ["gluontune", "train", "--set", *words] == shlex.split(line)[shlex.split(line).index("gluontune") :][
        : 3 + len(words)
    ]


def check_pod(spec, name):
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["name"] == name and container["image"] and all(isinstance(w, str) for w in container["command"])
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert all(mount["name"] in volumes for mount in container["volumeMounts"])
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/dev/shm", "/work"}
    return container


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pytorch_job_has_what_its_crd_demands(ranks):
    job = yaml.safe_load(printed("kubernetes", "ddp", 3, ranks, None, True))
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("kubeflow.org/v1", "PyTorchJob", "gluontune")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: spec["replicas"] for name, spec in replicas.items()} == {"Master": 1, "Worker": 2}
    for spec in replicas.values():
        assert spec["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        command = check_pod(spec["template"]["spec"], "pytorch")["command"]  # the operator looks for this name
        assert command[: 2 if ranks > 1 else 1] == (["torchrun", "--no-python"] if ranks > 1 else ["gluontune"])
        assert command[-2:] == ["--insecure-network", "--resume"]
    assert job["spec"].get("nprocPerNode") == (None if ranks == 1 else "2")  # a string, by the CRD
    # the operator's variables make each pod a rank
    assert (
        found({"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "gluontune-master-0", "MASTER_PORT": "23456"}).rank == 2
    )


def test_an_mpi_job_has_what_its_crd_demands(tmp_path):
    text = printed("kubernetes", "horovod", 2, 4, None, True)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob") and "&id" not in text
    spec = job["spec"]
    assert spec["slotsPerWorker"] == 4 and spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
    assert (launcher["replicas"], worker["replicas"]) == (1, 2)
    check_pod(worker["template"]["spec"], "worker")
    shell, flag, line = check_pod(launcher["template"]["spec"], "launcher")["command"]
    assert (shell, flag) == ("sh", "-c")
    (tmp_path / "hostfile").write_text("gluontune-worker-0.gluontune.ns.svc slots=4\ngluontune-worker-1.x slots=4\n")
    (tmp_path / "mpirun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "mpirun").chmod(0o755)
    line = line.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile"))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = subprocess.run([shell, flag, line], env=env, capture_output=True, text=True).stdout.splitlines()
    assert words[1] == "8" and "MASTER_ADDR=gluontune-worker-0.gluontune.ns.svc" in words and "my ckpt" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--print", "pbs"], "--print 'pbs': choose one of slurm, slurm-array, mpi, kubernetes"),
        (["--print", "slurm", "--nnodes", "2"], "2 machines meet on a network, .*add --insecure-network"),
        (["--print", "slurm", "--nnodes", "1:4"], "--nnodes '1:4': give a number"),
        (["--print", "slurm", "--hosts", "a:1"], "--hosts: slurm chooses the machines"),
        (["--print", "mpi", "--hosts", "a:1,b:2", "--insecure-network"], "the same number of ranks"),
    ],
)
def test_what_cannot_be_printed_is_told(options, words, capfd):
    assert main(["launch", *options, "--", "train"]) == 2
    assert re.search(words, " ".join(capfd.readouterr().err.split()))


def test_the_command_prints_it(capfd):
    assert main(["launch", "--print", "mpi", "-n", "3", "--engine", "ddp", "--", "train"]) == 0
    told = capfd.readouterr().out
    assert told == "mpirun -np 3 --bind-to none gluontune train --engine ddp --backend torch\n"
