"""The place of a rank, from the variables of each launcher."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gluontune.core.errors import UsageError
from gluontune.parallel.environment import LOOPBACK, address_of, found, hosts_of

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HOROVOD = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
FOUR = {"torchrun": TORCH, "horovodrun": HOROVOD, "mpirun": OPEN_MPI, "mpiexec": MPICH}


def tasks_per_node(counts):
    """As SLURM writes it: 2(x3),1."""
    parts = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1][1] += 1
        else:
            parts.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)


def srun(counts, node, local):
    """The variables of a task of a step with so many tasks on each node."""
    return {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(sum(counts[:node]) + local),
        "SLURM_STEP_NUM_TASKS": str(sum(counts)), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node(counts),
        "SLURM_STEP_NODELIST": f"n[1-{len(counts)}]" if len(counts) > 1 else "n1",
    }  # fmt: skip


@st.composite
def layouts(draw):
    """Ranks of each host, and one of them: its host and its number there."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6).filter(lambda c: sum(c) > 1))
    node = draw(st.integers(0, len(counts) - 1))
    return counts, node, draw(st.integers(0, counts[node] - 1))


def variables(names, layout):
    counts, node, local = layout
    return dict(zip(names, map(str, (sum(counts[:node]) + local, sum(counts), local, counts[node]))))


@given(layouts(), st.sampled_from(sorted(FOUR)))
def test_each_launcher_gives_the_same_place(layout, by):
    counts, node, local = layout
    environ = {**variables(FOUR[by], layout), "MASTER_ADDR": "n1"}
    place, theirs = found(environ), found(srun(*layout))
    want = (sum(counts[:node]) + local, sum(counts), local, counts[node], LOOPBACK if len(counts) == 1 else "n1")
    for seen in (place, theirs):
        assert (seen.rank, seen.world, seen.local_rank, seen.local_world, seen.host) == want
    assert (place.by, theirs.by) == (by, "srun")
    assert all(name in str(place) for name in FOUR[by][:2]) and f"rank {want[0]} of {want[1]}" in str(theirs)


@given(layouts(), st.sampled_from(sorted(FOUR)), st.sampled_from(sorted(FOUR)))
def test_launchers_that_agree_are_one(layout, one, other):
    environ = {**srun(*layout), **variables(FOUR[one], layout), **variables(FOUR[other], layout)}
    assert (found(environ).rank, found(environ).world) == (found(srun(*layout)).rank, sum(layout[0]))


@given(layouts(), st.sampled_from(sorted(FOUR)), st.integers(1, 9), st.data())
def test_launchers_that_contradict_are_named(layout, by, more, data):
    other = data.draw(st.sampled_from(sorted(set(FOUR) - {by})))
    environ = {**variables(FOUR[by], layout), "MASTER_ADDR": "n1"}
    rank, world = int(environ[FOUR[by][0]]), sum(layout[0])
    environ.update({FOUR[other][0]: str(rank), FOUR[other][1]: str(world + more)})
    with pytest.raises(UsageError, match="contradict each other") as caught:
        found(environ)
    assert all(name in str(caught.value) for name in (*FOUR[by][:2], *FOUR[other][:2]))


@given(layouts().filter(lambda layout: max(layout[0]) > 1))
def test_srun_may_start_the_launcher_of_the_ranks_on_each_host(layout):
    counts, node, _ = layout
    outer = srun([1] * len(counts), node, 0)  # one torchrun on each node
    place = found({**outer, **variables(TORCH, layout), "MASTER_ADDR": "n1", "MASTER_PORT": "29500"})
    assert (place.by, place.world, place.port) == ("torchrun", sum(counts), 29500)


def test_more_tasks_of_srun_than_ranks_contradict():
    environ = {**srun([2], 0, 1), "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "n1"}
    with pytest.raises(UsageError, match="RANK=0 of WORLD_SIZE=1 and SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2"):
        found(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script, which is no task
        srun([1], 0, 0),
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"MASTER_ADDR": "node1", "WORLD_SIZE": "4"},
        {"DMLC_NUM_WORKER": "4"},
    ],
)
def test_one_process_is_no_rank(environ):
    assert found(environ) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "1"}, "RANK=1 without WORLD_SIZE: set both"),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK='2' is no number from 0 to 1"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' is no number"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE='0' is no number of at least 1"),
        ({**dict(zip(OPEN_MPI, "1411"))}, "OMPI_COMM_WORLD_LOCAL_RANK='1' is no number from 0 to 0"),
        ({**dict(zip(OPEN_MPI, "1412"))}, "several hosts, and rank 0's is unknown: set MASTER_ADDR"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, "DMLC_ROLE=worker without the worker's number"),
        ({**dict(zip(TORCH, "0202")), "MASTER_PORT": "99999"}, "MASTER_PORT='99999'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(environ, words):
    with pytest.raises(UsageError, match=words):
        found(environ)


def test_trackers_of_mxnet():
    base = {"DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}
    worker = found({**base, "DMLC_ROLE": "worker", "DMLC_TASK_ID": "1"})
    assert (worker.rank, worker.world, worker.host, worker.waits) == (1, 2, "10.0.0.1", False)
    assert found({**base, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"}).rank == 1
    assert found({**base, "DMLC_ROLE": "server"}).waits and found({**base, "DMLC_ROLE": "scheduler"}).waits


def test_a_scheduler_limits_processors_and_counts_starts():
    task = srun([2, 2], 1, 0)
    assert found(task).cpus is None and found(task).attempt == 0
    assert found({**task, "SLURM_CPUS_ON_NODE": "9"}).cpus == 4
    assert found({**task, "SLURM_CPUS_ON_NODE": "9", "SLURM_CPUS_PER_TASK": "3"}).cpus == 3
    assert found({**task, "SLURM_RESTART_COUNT": "2"}).attempt == 2


def test_runs_are_told_apart_and_torchruns_port_is_its_own():
    task = srun([2], 0, 0)
    assert found(task).job != found({**task, "SLURM_STEP_ID": "1"}).job != ""
    ranks = {**dict(zip(TORCH, "0212")), "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    ranks["LOCAL_RANK"] = "0"
    assert found(ranks).port == 29500 and found({**ranks, "TORCHELASTIC_USE_AGENT_STORE": "True"}).port is None


@given(st.lists(st.tuples(st.sampled_from(["n", "gpu-", "a1-"]), st.integers(0, 40), st.integers(0, 5)), max_size=4))
def test_lists_of_nodes(groups):
    text, want = [], []
    for name, first, more in groups:
        text.append(f"{name}[{first:02d}-{first + more:02d},99]" if more else f"{name}{first:02d}")
        numbers = [*range(first, first + more + 1), 99] if more else [first]
        want += [f"{name}{number:02d}" for number in numbers]
    assert hosts_of(",".join(text)) == want


@pytest.mark.parametrize("text", ["n[1-4", "n[4-1]", "n[a-b]", "n[1-999999999]"])
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(UsageError, match=r"no list of nodes: node\[1-4,7\]"):
        hosts_of(text)


def test_a_node_that_only_slurm_knows_is_looked_up(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.9 NodeHostName=x"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert address_of("n1.invalid") == "127.0.0.9"
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UsageError, match=r"n1\.invalid: rank 0's host has no address here .*: set MASTER_ADDR"):
        address_of("n1.invalid")
