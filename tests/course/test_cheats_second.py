"""A second round of ways to cheat the grader: memory of nobody, marks on files, work behind the clock, nets apart."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from assessments import SCALE, left_of, run_alone
from course_cheats import CHEATS

import gluontune as gt
from gluontune.course.assessment import assessing, grading
from gluontune.course.assessment.examine import examine
from gluontune.course.assessment.fresh import FreshTask
from gluontune.course.assessment.task import Task

FACTS = {"classes": 5, "image_shape": [16, 16, 3], "mean": [0.5] * 3, "std": [0.25] * 3}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


HOARDS = {
    "an orphan": """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    held = []
    while True:
        held.append(bytearray(b'x') * (8 << 20))
        time.sleep(0.01)
time.sleep(12)
""",
    "memory files": """
held = []
for n in range(12):
    held.append(os.memfd_create("x"))
    for _ in range(2):
        os.write(held[-1], bytes(64 << 20))
time.sleep(5)
print("had", len(held))
""",
    "memory files without a process": """
import socket, array
a, b = socket.socketpair()
for n in range(12):
    one = os.memfd_create("x")
    for _ in range(2):
        os.write(one, bytes(64 << 20))
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one]))])
    os.close(one)
time.sleep(5)
print("had", n)
""",
    "files in /dev/shm": """
for n in range(12):
    with open(f"/dev/shm/{n}", "wb") as stream:
        for _ in range(2):
            stream.write(bytes(64 << 20))
time.sleep(5)
print("had", n)
""",
    "segments": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
for n in range(12):
    one = libc.shmget(0, 128 << 20, 0o1600)
    assert one >= 0
    at = libc.shmat(one, None, 0)
    ctypes.memset(at, 1, 128 << 20)
    libc.shmdt(at)
time.sleep(5)
print("had", n)
""",
}


@pytest.mark.parametrize("name", HOARDS)
def test_memory_that_belongs_to_no_rank_counts(tmp_path, name):
    """Three times the limit, which no single process or file exceeds."""
    run = run_alone(tmp_path, "import os, time\n" + HOARDS[name], memory_mib=500, seconds=60)
    assert run["stopped_by"] == "memory" and "had" not in run["ranks"][0]["tail"], run
    assert left_of(tmp_path) == []


def test_no_mark_is_left_on_a_file_of_others(tmp_path):
    """Landlock does not restrict modes, times and attributes: they would break an installation, or keep parameters."""
    package = f"{os.path.dirname(os.path.abspath(assessing.__file__))}/task.py"
    before = os.stat(package)
    attempts = f"""
import json, os
file, tried = {package!r}, {{}}
for attack in ("os.utime(file, ns=(5, 5))", "os.chmod(file, 0o640)", "os.setxattr(file, 'user.kept', b'1')",
               "os.chmod(os.path.dirname(file), 0o700)", "os.chmod({str(tmp_path)!r}, 0o711)",
               "os.removexattr(file, 'user.kept')"):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
for change in ("os.chmod(os.path.expanduser('~'), 0o700)", "os.utime(os.path.expanduser('~'))"):
    exec(change)
print(json.dumps(tried))
"""
    try:
        run = run_alone(tmp_path, attempts)
    finally:
        os.chmod(package, before.st_mode & 0o7777)
        os.utime(package, ns=(before.st_atime_ns, before.st_mtime_ns))
    tried = json.loads(run["ranks"][0]["tail"])
    if run["secluded"]:
        assert [attack for attack, answer in tried.items() if answer == "possible"] == [], tried


LATE = """
import os, time
import gluontune as gt
out, begun = gt.course.task().out, time.monotonic()
with open(out / "net-symbol.json", "wb") as stream:
    stream.truncate((1 << 30) - 1)  # is copied for a second
(out / "net-0000.params").write_text("-1")
end = begun + 1.0
worker = os.fork()
if worker == 0:
    os.setsid()
    with open(out / "net-0000.params", "r+") as stream:
        while time.monotonic() < end + 0.8:
            stream.seek(0)
            stream.write(f"{time.monotonic() - end:8.3f}")
            stream.flush()
            time.sleep(0.001)
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    while time.monotonic() < end + 0.7:  # each forks the next one, and wakes the worker
        time.sleep(0.003)
        if os.fork():
            os._exit(0)
        os.kill(worker, 18)
    os._exit(0)
time.sleep(max(0, end - time.monotonic()))
os._exit(0)
"""


def test_what_wakes_a_stopped_process_does_not_hand_in_later(tmp_path):
    """All end by themselves within the grace, after they have written into what is being copied."""
    run = run_alone(tmp_path, LATE, seconds=60)
    (copied,) = (tmp_path / "place").rglob("taken-0/net-0000.params")
    assert run["left"] or float(copied.read_text()) < 0.5, "behind the clock, and nobody has told"
    assert left_of(tmp_path) == []


SERVED = """
import os, pickle, time
import gluontune as gt
mx, task = gt.runtime.mxnet(), gt.course.task()
CODE = '''
import ctypes, os, signal, time
if os.fork() == 0:
    for number in set(range(1, 65)) - {9, 19, 32, 33}:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    while True:
        time.sleep(0.05)
'''
class Optimizer:
    def __reduce__(self):
        return exec, (CODE,)
kvstore = mx.kv.create("dist_sync")
if task.rank == 0:
    kvstore._send_command_to_servers(0, pickle.dumps(Optimizer(), 0).decode("latin-1"))
kvstore._barrier()
time.sleep(1)
os._exit(0)
"""


def test_a_process_of_the_parameter_server_is_left_behind_like_any_other(tmp_path):
    run = run_alone(tmp_path, SERVED, seconds=100.0, memory_mib=2048, ranks=2)
    assert [rank["code"] for rank in run["ranks"]] == [0, 0], run["ranks"]
    assert len(run["left"]) == 1 and left_of(tmp_path) == []


def ranks_of(folder, before):
    """Nets of two ranks that were drawn apart, handed in as ``before`` makes of them."""
    mx = gt.runtime.mxnet()
    nn, out = mx.gluon.nn, []
    for rank in range(2):
        mx.random.seed(7 + rank)
        plain = nn.HybridSequential(prefix="plain_")
        with plain.name_scope():
            plain.add(nn.Flatten(), nn.Dense(8, activation="relu"), nn.Dense(5))
        plain.initialize(mx.init.Xavier())
        plain(mx.nd.zeros((2, 3, 16, 16)))
        task = SimpleNamespace(out=folder / str(rank), classes=5)
        names = {"mx": mx, "gt": gt, "nn": nn, "np": np, "net": plain, "task": task, "os": os, "time": time}
        names["images"] = np.zeros((2, 3, 16, 16), "float32")
        task.save = lambda net, _, task=task: Task.save(
            Task(folder, task.out, 0, 2, 5, (16, 16, 3), (0.5,) * 3, (0.25,) * 3), net, 1
        )
        task.out.mkdir()
        with mx.name.NameManager():  # each rank is a process, which counts its names from 0
            exec(before.replace("time.sleep(0.5)\nos._exit(0)", "saved = True"), names)
        if "saved" not in names:
            task.save(names["net"], 1)
        out.append(task.out)
    return out


@pytest.mark.parametrize("name", [name for name in CHEATS if name.startswith("another net of each rank,")])
def test_no_rank_hides_a_net_of_its_own(tmp_path, name):
    """Its arrays are called statistics, are BatchNorm's, or differ by little beside a huge number."""
    folders = ranks_of(tmp_path, CHEATS[name]["after"].replace("num_hidden=96", "num_hidden=8"))
    images = {"test": FreshTask(SCALE, secret=4).test().images[:100]}
    together = examine(folders, images, FACTS)
    alone = [examine([folder], images, FACTS)["scores"]["test"].argmax(1) for folder in folders]
    assert (alone[0] != alone[1]).mean() > 0.2, "two nets"
    answers = together["scores"]["test"]
    if "BatchNorm" in name:  # whatever the statistics said, all images get one answer
        assert together["difference"] == 0 and np.ptp(answers, 0).max() < 1e-3
    else:
        assert together["difference"] > grading.AGREE


def test_statistics_that_ranks_measured_apart_are_measured_again(tmp_path):
    """An honest net's answers stay nearly what they are; statistics that are the same on each rank are believed."""
    mx = gt.runtime.mxnet()
    nn, images = mx.gluon.nn, FreshTask(SCALE, secret=4).test().images
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(), nn.Conv2D(6, 3), nn.BatchNorm(axis=1), nn.Activation("relu"), nn.Dropout(0.5), nn.Flatten(),
            nn.Dense(9), nn.BatchNorm(scale=False), nn.Dense(5))  # fmt: skip
    net.initialize(mx.init.Xavier())
    tasks = [Task(tmp_path, tmp_path / str(rank), rank, 2, 5, (16, 16, 3), (0.5,) * 3, (0.25,) * 3) for rank in (0, 1)]
    inputs = mx.nd.array(tasks[0].normalize(images))
    for rank, task in enumerate(tasks):
        for _ in range(60):
            with mx.autograd.record():
                out = net(inputs[rank::2])
            out.backward()  # MXNet counts the statistics here
        task.save(net, 1)
    first, second = (task.out for task in tasks)
    alone, same, joined = (examine(some, {"test": images}, FACTS) for some in ([first], [first] * 2, [first, second]))
    assert np.allclose(same["scores"]["test"], alone["scores"]["test"], atol=1e-5)
    assert joined["difference"] == 0 and not np.allclose(joined["scores"]["test"], alone["scores"]["test"], atol=1e-3)
    assert (joined["scores"]["test"].argmax(1) == alone["scores"]["test"].argmax(1)).mean() > 0.9


def test_images_that_were_turned_or_enlarged_are_looked_at_as_they_were(tmp_path):
    """Nets that had met the validation images in these ways passed."""
    task = FreshTask(SCALE, secret=4)
    task.write(tmp_path, 1)
    dice = task.dice()
    views = dice.views().reshape(-1, *dice.images.shape).astype(float)
    enlarged = np.stack([cv2.resize(picture[2:14, 2:14], (16, 16)) for picture in dice.images])
    turns = [cv2.getRotationMatrix2D((7.5, 7.5), angle, 1.0) for angle in (20, -20)]
    turned = [np.stack([cv2.warpAffine(p, t, (16, 16), borderMode=2) for p in dice.images]) for t in turns]
    for changed in (enlarged, *turned):
        assert min(np.abs(view - changed).mean() for view in views) < 0.1 * changed.std()
