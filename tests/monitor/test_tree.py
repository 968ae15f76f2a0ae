"""CPU time of a process tree whose members come and go."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from gluontune.core.errors import GluontuneError
from gluontune.monitor import cpu, tree
from gluontune.monitor.tree import ProcessTree, WaitClock


class FakeSystem:
    """Processes by id: own and waited CPU seconds, start time, children."""

    def __init__(self, monkeypatch):
        self.table: dict[int, SimpleNamespace] = {}
        monkeypatch.setattr(tree.psutil, "Process", self.process)
        monkeypatch.setattr(tree, "_children", lambda pid: list(self.table[pid].children) if pid in self.table else [])

    def add(self, pid, parent=None, own=0.0, started=0.0, denied=False):
        entry = SimpleNamespace(pid=pid, own=own, waited=0.0, started=started, denied=denied, children=[])
        self.table[pid] = entry
        if parent is not None:
            self.table[parent].children.append(pid)
        return entry

    def end(self, pid, parent, waited=True):
        gone = self.table.pop(pid)
        self.table[parent].children.remove(pid)
        if waited:
            self.table[parent].waited += gone.own + gone.waited

    def process(self, pid):
        if pid not in self.table:
            raise psutil.NoSuchProcess(pid)
        entry, table = self.table[pid], self.table

        def times():
            if pid not in table:
                raise psutil.NoSuchProcess(pid)
            if entry.denied:
                raise psutil.AccessDenied(pid)
            return SimpleNamespace(user=entry.own, system=0.0, children_user=entry.waited, children_system=0.0)

        return SimpleNamespace(
            pid=pid,
            create_time=lambda: entry.started,
            oneshot=contextlib.nullcontext,
            is_running=lambda: table.get(pid) is entry,
            status=lambda: "running",
            cpu_times=times,
            memory_info=lambda: SimpleNamespace(rss=1 << 20),
        )


@pytest.fixture
def system(monkeypatch):
    return FakeSystem(monkeypatch)


def watch(system, wall=100.0):
    system.add(1, own=50.0)
    seen = ProcessTree(1)
    assert seen.read(wall).cpu_s is None  # no interval yet
    return seen


def test_own_time_counts_and_the_past_does_not(system):
    seen = watch(system)
    system.table[1].own += 2
    assert seen.read().cpu_s == pytest.approx(2)


def test_a_child_that_ends_neither_takes_time_back_nor_brings_it_twice(system):
    system.add(1, own=5)
    system.add(2, parent=1, own=100.0)
    seen = ProcessTree(1)
    seen.read()
    system.table[2].own += 3
    assert seen.read().cpu_s == pytest.approx(3)
    system.table[2].own += 1  # … and then it ends; its parent now has 104 s of waited time
    system.end(2, parent=1)
    assert seen.read().cpu_s == pytest.approx(1)
    assert seen.read().cpu_s == 0


def test_a_child_between_two_looks_counts(system):
    seen = watch(system)
    system.add(2, parent=1, own=4.0, started=101)
    system.end(2, parent=1)
    assert seen.read().cpu_s == pytest.approx(4)


def test_a_young_tree_is_searched_at_each_look_and_an_old_one_more_rarely(system, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(tree.time, "monotonic", lambda: clock[0])
    system.add(1)
    found = ProcessTree(1, find_every_s=1.0)
    for pid in (2, 3, 4):  # a command that starts its children one after the other
        found.read()
        system.add(pid, parent=1)
        clock[0] += 0.1
        assert pid in found.read().pids
    clock[0] += 10.0
    found.read()  # nothing new: from now on it rests between two searches
    system.add(5, parent=1)
    clock[0] += 0.1
    assert 5 not in found.read().pids
    clock[0] += 1.0
    assert 5 in found.read().pids


def test_a_newborn_counts_whole_and_an_adopted_one_from_now_on(system):
    seen = watch(system, wall=100.0)
    system.add(2, parent=1, own=1.5, started=100.5)
    system.add(3, parent=1, own=900.0, started=10.0)
    assert seen.read().cpu_s == pytest.approx(1.5)
    system.table[3].own += 0.5
    assert seen.read().cpu_s == pytest.approx(0.5)


def test_a_child_that_nobody_waits_for_leaves_no_negative_time(system):
    system.add(1, own=5)
    system.add(2, parent=1, own=100.0)
    seen = ProcessTree(1)
    seen.read()
    system.table[1].own += 0.25
    system.end(2, parent=1, waited=False)
    assert seen.read().cpu_s == pytest.approx(0.25)


def test_an_unreadable_child_is_left_out_and_its_end_is_no_spike(system):
    system.add(1, own=5)
    system.add(2, parent=1, own=700.0, denied=True)
    seen = ProcessTree(1)
    reading = seen.read()
    assert reading.rss_mib == 1 and reading.processes == 2
    system.table[1].own += 1
    system.end(2, parent=1)
    assert seen.read().cpu_s == pytest.approx(1)


def test_a_reused_process_number_is_another_process(system):
    seen = watch(system)
    system.add(2, parent=1, own=30, started=50)
    seen.read()
    system.end(2, parent=1, waited=False)
    system.add(2, parent=1, own=0.5, started=200)
    assert seen.read().cpu_s == pytest.approx(0.5)


def test_orphans_stay_in_the_tree(system):
    system.add(1)
    system.add(2, parent=1)
    system.add(3, parent=2)
    seen = ProcessTree(1)
    seen.read()
    del system.table[2]
    system.table[1].children.remove(2)  # 3 now belongs to init
    system.table[3].own += 2
    assert seen.read().cpu_s == pytest.approx(2)


def test_no_such_process_is_said():
    with pytest.raises(GluontuneError, match="no running process with id 99999999"):
        ProcessTree(99999999)


def test_real_children_are_counted_as_the_system_counts_them():
    """The tree's total over looks at odd moments equals what the kernel bills the children."""
    burn = "import time\ne=time.process_time()+0.15\nwhile time.process_time()<e: pass"
    before = os.times()
    seen = ProcessTree(os.getpid())
    seen.read(time.time())
    total = 0.0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", burn]) as child:
            time.sleep(0.05)
            total += seen.read(time.time()).cpu_s
            child.wait()
        total += seen.read(time.time()).cpu_s
    after = os.times()
    billed = sum(after[:4]) - sum(before[:4])
    assert billed > 0.4
    assert total == pytest.approx(billed, abs=0.06)


def test_children_are_found_with_and_without_the_kernels_list(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as child:
        try:
            assert child.pid in tree._children(os.getpid())
            monkeypatch.setattr(tree, "open", lambda *a, **k: (_ for _ in ()).throw(OSError()), raising=False)
            assert child.pid in tree._children(os.getpid())
        finally:
            child.kill()


def test_rates_are_shares_of_usable_cores_and_never_above_100():
    sampler = cpu.CpuSampler(os.getpid(), cores=0.5)
    assert sampler.read(None, time.time())["cpu_pct"] is None
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert sampler.read(0.05, time.time())["cpu_pct"] == 100.0
    assert sampler.read(0.0, time.time())["cpu_pct"] is None  # a clock that stood still gives no rate


def test_a_system_that_tells_nothing_gives_na():
    class Mute:
        def __getattr__(self, name):
            raise psutil.AccessDenied()

    sampler = cpu.CpuSampler(os.getpid(), system=Mute())
    sampler.read(None, time.time())
    sample = sampler.read(1.0, time.time())
    assert sample["cpu_pct"] is not None
    assert sample["system_mem_pct"] is None and sample["disk_read_mib_per_s"] is None
    assert sample["cpu_cores_pct"] == {} and sample["system_cpu_pct"] is None


def test_counters_that_are_set_back_give_no_negative_rate():
    reads = iter([10 << 20, 30 << 20, 5 << 20, 6 << 20])
    fake = SimpleNamespace(
        disk_io_counters=lambda: SimpleNamespace(read_bytes=next(reads), write_bytes=0),
        net_io_counters=lambda: None,
        virtual_memory=lambda: SimpleNamespace(percent=5.0),
        cpu_times=lambda percpu: [],
    )
    sampler = cpu.CpuSampler(os.getpid(), system=fake)
    rates = [sampler.read(passed, time.time())["disk_read_mib_per_s"] for passed in (None, 2.0, 1.0, 1.0)]
    assert rates == [None, 10.0, None, 1.0]


def test_threads_that_wait_for_a_core_are_told_from_those_that_have_one(monkeypatch, tmp_path):
    """Three threads: one ran 30 of 40 ms that it wanted, one slept, one is new."""
    texts = {"11": "1000000 2000000 5", "12": "7000000 0 1"}

    def entries(folder):
        assert folder == "/proc/11/task"
        return list(texts)

    def opened(path, mode):
        return io.BytesIO(texts[path.split("/")[4]].encode())

    monkeypatch.setattr("gluontune.monitor.tree.os.listdir", entries)
    monkeypatch.setattr("builtins.open", opened)
    clock = WaitClock()
    assert clock.read([11]) is None
    texts["11"] = "31000000 12000000 9"
    texts["13"] = "5000000 50000000 1"
    assert clock.read([11]) == pytest.approx(25.0)
    texts["12"] = "rubbish"
    assert clock.read([11]) is None


def test_two_busy_processes_on_one_core_wait_for_each_other():
    cpu = sorted(os.sched_getaffinity(0))[0]
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: sum(range(10000))"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        time.sleep(0.3)
        clock = WaitClock()
        clock.read([processes[0].pid])
        time.sleep(0.5)
        waited = clock.read([processes[0].pid])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert waited is not None and waited > 25
