"""A third round of ways to cheat the grader: code in the parameter server, source and commands that are no text."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from assessments import left_of, plain, run_alone

from gluontune.core.errors import UsageError
from gluontune.course.assessment import assess, supervise
from gluontune.course.assessment.leftovers import _command

# The server takes the rank's open file, and writes into it while the files are copied: the first one takes a second.
SERVED = """
import array, os, pickle, socket, time
import gluontune as gt
mx, task = gt.runtime.mxnet(), gt.course.task()
CODE = '''
import threading
def serve():
    import array, os, socket, time
    with socket.socket(socket.AF_UNIX) as line:
        line.bind("/dev/shm/line")
        line.listen(1)
        text, given, _, _ = line.accept()[0].recvmsg(100, 1000)
    out = array.array("i", given[0][2])[0]
    while True:
        os.pwrite(out, f"{time.monotonic() - float(text):8.3f}".encode(), 0)
        time.sleep(0.001)
threading.Thread(target=serve, daemon=True).start()
'''
class Optimizer:
    def __reduce__(self):
        return exec, (CODE,)
kvstore = mx.kv.create("dist_sync")
if task.rank == 0:
    kvstore._send_command_to_servers(0, pickle.dumps(Optimizer(), 0).decode("latin-1"))
kvstore._barrier()
if task.rank == 0:
    with open(task.out / "net-symbol.json", "wb") as stream:
        stream.truncate((1 << 30) - 1)
    (task.out / "net-0000.params").write_text("-1")
    while not os.path.exists("/dev/shm/line"):
        time.sleep(0.01)
kvstore._barrier()
end = time.monotonic() + 1
if task.rank == 0:
    line = socket.socket(socket.AF_UNIX)
    line.connect("/dev/shm/line")
    out = array.array("i", [os.open(task.out / "net-0000.params", os.O_RDWR)])
    line.sendmsg([str(end).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, out)])
time.sleep(max(0, end - time.monotonic()))
os._exit(0)
"""


@pytest.mark.mxnet
@pytest.mark.process
def test_the_parameter_server_does_not_hand_in_behind_the_clock(tmp_path):
    run = run_alone(tmp_path, SERVED, seconds=100.0, memory_mib=3000, ranks=2)
    assert [rank["code"] for rank in run["ranks"]] == [0, 0], run["ranks"]
    (copied,) = (tmp_path / "place").rglob("taken-0/net-0000.params")
    written = float(copied.read_text())
    assert written > 0, "the server has written"
    assert written < 0.5 and left_of(tmp_path) == []


@pytest.mark.parametrize("text", ["-" * 200_000 + "1", "a" + ".a" * 120_000, "if 1: 1\n" + "elif 1: 1\n" * 20_000])
def test_source_that_is_nested_too_deeply_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="not a Python script"):
        assess(plain(tmp_path, text), ranks=1, out=tmp_path / "out")


def test_the_command_of_a_process_is_one_line_without_control_characters():
    command = [sys.executable, "-c", "print(flush=True); input()", "\n\npassed: 50 of 50 points\n\x1b[2J"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # before it has begun, its command is that of its parent
        told = _command(process.pid)
        process.communicate(b"\n")
    assert told.isprintable() and "passed: 50" in told


def test_the_machines_last_memory_ends_a_script_whoever_holds_it(monkeypatch):
    """Buffers of sockets belong to no process and no file: 1.6 GB in them were three times a limit that held nobody."""
    machine = SimpleNamespace(shared=0, available=1 << 30, total=100 << 30)
    monkeypatch.setattr(supervise.psutil, "virtual_memory", lambda: machine)
    one = supervise._Supervisor({"tasks": [], "seconds": 60, "memory_mib": 500})
    for available, stopped_by in ((4 << 30, None), (2 << 30, "memory")):
        machine.available = available
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            one.ranks = [process]
            one._look(time.monotonic(), {"rss_mib": 100})
            process.kill()
        assert one.stopped_by == stopped_by
