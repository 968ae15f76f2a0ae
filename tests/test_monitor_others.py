"""What other programs take of the cores, told apart from what this process and its children take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

from gluontune.monitor import others
from gluontune.monitor.others import OtherLoad

# Started by a shell that ends at once, so that it is no child of this process.
_BUSY = "import time; end = time.monotonic() + 4\nwhile time.monotonic() < end: sum(range(1000))"


def test_a_busy_program_of_another_tree_is_seen():
    load = OtherLoad()
    subprocess.run(["sh", "-c", f'"{sys.executable}" -c "$0" &', _BUSY], check=True)
    time.sleep(2.5)
    cores = len(os.sched_getaffinity(0))
    assert load.read() > 100 * 0.3 / cores


def test_what_this_process_and_its_children_take_does_not_count(monkeypatch):
    machine = {"clock": 0.0, "busy": [0.0, 0.0], "own": 0.0}

    class Times(SimpleNamespace):
        def __iter__(self):
            return iter((self.user, self.idle))

    def cpu_times(percpu):
        return [Times(user=busy, idle=10 * machine["clock"] - busy) for busy in machine["busy"]]

    monkeypatch.setattr(others.psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(others.ProcessTree, "read", lambda self: SimpleNamespace(cpu_s=machine["own"]))
    monkeypatch.setattr(others.Cpu, "affinity", lambda self: [1])
    load = OtherLoad()
    machine.update(clock=1.0, busy=[9.0, 5.0], own=4.0)  # of core 1's ten seconds five were used, four of them here
    assert round(load.read(), 6) == 10.0  # core 0 is not ours to use, and does not count
    machine.update(clock=2.0, busy=[9.0, 10.0], own=5.0)
    assert load.read() == 0.0
    machine.update(own=1.0)  # no time has passed: nothing can be said
    assert load.read() == 0.0
