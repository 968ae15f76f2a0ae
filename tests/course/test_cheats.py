"""More ways to cheat the grader, or to outlive it: none passes, and no process is left."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest
from assessments import GOES_ON, TINY, assess, failing, left_of, plain, run_alone, script
from course_cheats import CHEATS
from waiting import until

from gluontune.core.errors import GluontuneError
from gluontune.core.files import write_sealed
from gluontune.course.assessment import assessing, grading, limits
from gluontune.course.assessment.leftovers import lives


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


DAEMONS = {
    # it adopts its own orphans, and stands still, so that it can do nothing at a signal but die
    "a reaper that is stopped": """
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for _ in range(3):
        if os.fork() == 0:
            if os.fork() == 0:
                train()
            os._exit(0)
    time.sleep(0.2)
    os.kill(os.getpid(), 19)
time.sleep(0.6)
""",
    # its name says that it is a zombie without parents
    "a name that lies": """
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"x) Z 1 (", 0, 0, 0)
    train()
time.sleep(0.3)
""",
    # in namespaces of its own, where the kernel lets it: the first process there cannot be ended from within
    "a process namespace": """
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).unshare(0x10000000 | 0x20000000)
    if os.fork() == 0:
        signal.signal(15, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
        train()
    train()
time.sleep(0.4)
""",
    # a program that lies in no file, under the name of a thread of the kernel
    "a program in memory": """
import shutil
program = os.memfd_create("x")
os.write(program, open(shutil.which("sleep"), "rb").read())
if os.fork() == 0:
    os.setsid()
    os.execve(program, ["kworker/0:1", "600"], {})
time.sleep(0.3)
""",
    # the first thread is gone when another one becomes a new program
    "a new program of a thread": """
def go():
    time.sleep(0.2)
    if os.fork() == 0:
        os.setsid()
        train()
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])
threading.Thread(target=go).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
""",
    # reapers of their own orphans, none of which takes a signal
    "a crowd of reapers": """
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        for number in set(range(1, 65)) - {9, 19, 32, 33}:
            signal.signal(number, signal.SIG_IGN)
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
        train()
time.sleep(0.5)
""",
    # children of the supervisor, not of the script (CLONE_PARENT), whose end no signal tells
    "a child of another's": """
number = 56 if os.uname().machine == "x86_64" else 220
if ctypes.CDLL(None).syscall(number, 0x8000, 0, 0, 0, 0) == 0:
    os.setsid()
    train()
time.sleep(0.3)
""",
}


@pytest.mark.parametrize("name", DAEMONS)
def test_no_disguise_outlives_the_clock(tmp_path, name):
    run = run_alone(tmp_path, "import signal\n" + GOES_ON + DAEMONS[name])
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    assert run["left"] and grading._left(run)[0] == 0
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("victim", ["supervisor", "guard"])
def test_nothing_is_left_when_the_supervisor_or_its_guard_is_killed(tmp_path, victim):
    """As the kernel does when memory is short."""
    daemon = GOES_ON + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        train()\n    os._exit(0)\n"
    said: list[BaseException] = []

    def grade():
        try:
            run_alone(tmp_path, daemon + "open('ready', 'w').close()\ntrain()\n", seconds=300.0)
        except BaseException as error:
            said.append(error)

    thread = threading.Thread(target=grade)
    thread.start()
    until(lambda: list(tmp_path.rglob("ready")))
    until(lambda: len(left_of(tmp_path)) == 2)  # the script and its daemon, whose parent takes a moment to end
    guards = [
        process
        for process in psutil.Process().children()
        if any(word.endswith("assessment.supervise") for word in process.cmdline())
    ]
    (supervisor,) = guards[0].children()
    os.kill(supervisor.pid if victim == "supervisor" else guards[0].pid, signal.SIGKILL)
    thread.join(60)
    assert isinstance(said[0], GluontuneError) and "was it killed" in str(said[0])
    # Where the guard is gone, the supervisor still ends what it has started; init may take its time to bury it.
    until(lambda: not left_of(tmp_path) and not lives(supervisor.pid))


def test_the_graders_report_and_folders_are_out_of_reach(tmp_path):
    attempts = """
import glob, json, os, pathlib, signal
import gluontune as gt
out, tried = gt.course.task().out, {}
def parents():
    pid = os.getpid()
    while pid > 1:
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        yield pid
above = list(parents())[:3]
for pid in above:
    for attack in (f"os.kill({pid}, 9)", f"os.kill({pid}, 19)", f"open('/proc/{pid}/fd/1', 'w').write('{{}}')",
                   f"open('/proc/{pid}/mem', 'r+b')", f"os.readlink('/proc/{pid}/cwd')"):
        try:
            exec(attack)
            tried[attack] = "possible"
        except OSError as error:
            tried[attack] = type(error).__name__
for attack in ("os.rename(out, str(out) + '-2')", "os.symlink('/etc', str(out.parent / 'link'))",
               "(out.parent / 'taken-0').mkdir()", "os.link('/etc/passwd', out / 'report.json')"):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
print(json.dumps(tried))
"""
    if limits.landlock_version() < 6:
        attempts = attempts.replace("list(parents())[:3]", "[]")  # older kernels let signals pass
    run = run_alone(tmp_path, attempts)
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    tried = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-1])
    if limits.landlock_version():
        assert "possible" not in tried.values(), tried


def test_nobody_outside_can_be_asked(tmp_path):
    """To train the net elsewhere, to start what nobody finds here, or to keep something for the next time."""
    mark = f"gluontune-{os.getpid()}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as in_file, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        in_file.bind(str(tmp_path / "service"))
        abstract.bind(f"\0{mark}")
        for listener in (tcp, in_file, abstract):
            listener.listen()
        attempts = f"""
import json, os, socket, time
unix, tried = socket.AF_UNIX, {{}}
for attack in ("socket.create_connection({tcp.getsockname()!r}, 2)",
               "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
               "socket.socket(unix).connect({str(tmp_path / "service")!r})",
               "socket.socket(unix).connect(chr(0) + '{mark}')", "open('/dev/shm/{mark}', 'x').close()"):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))  # what ranks need of a network is there
    one.listen()
    socket.create_connection(one.getsockname(), 5)
print(json.dumps(tried))
"""
        run = run_alone(tmp_path, attempts)
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    tried = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-1])
    assert len(tried) == 5
    if run["secluded"]:  # where users may make no namespaces, the result says so
        assert [attack for attack, answer in tried.items() if answer == "possible"] == [
            f"open('/dev/shm/{mark}', 'x').close()"
        ]
        assert not os.path.exists(f"/dev/shm/{mark}"), "it is gone with the script"
    else:
        Path("/dev/shm", mark).unlink(missing_ok=True)


def test_nothing_is_kept_for_the_next_time(tmp_path):
    """A key in the kernel's keyring of the user, a segment of shared memory: both outlive a process."""
    keep = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
add, request = (248, 249) if os.uname().machine == "x86_64" else (217, 218)
print(json.dumps([libc.syscall(add, b"user", b"gluontune-cheat", b"secret", 6, -4), ctypes.get_errno(),
                  libc.syscall(request, b"user", b"gluontune-cheat", None, -4), libc.shmget(KEY, 4096, 0o1666)]))
"""
    number = 0x6C000000 | os.getpid()  # of no other run on this machine
    run = run_alone(tmp_path, keep.replace("KEY", str(number)))
    key, error, found, segment = json.loads(run["ranks"][0]["tail"])
    assert (key, error, found) == (-1, errno.EPERM, -1)
    if run["secluded"]:
        assert segment >= 0, "it may use one"
        assert ctypes.CDLL(None).shmget(number, 4096, 0o600) == -1, "which is gone with the script"


@pytest.mark.parametrize("make", ["os.memfd_create('x')", "os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT)"])
def test_memory_that_no_process_maps_is_limited_too(tmp_path, make):
    text = (
        f"import os\nfile, piece = {make}, bytes(1 << 26)\n"
        "try:\n    for _ in range(48):\n        os.write(file, piece)\n"
        "finally:\n    if os.path.exists('/dev/shm/x'):\n        os.unlink('/dev/shm/x')\n"
    )
    run = run_alone(tmp_path, text, memory_mib=600)
    said, code = run["ranks"][0]["tail"], run["ranks"][0]["code"]
    assert run["stopped_by"] == "memory" or (("File too large" in said or "No space left" in said) and code == 1)


def test_root_has_no_right_over_the_clock_the_priorities_or_the_grader(tmp_path):
    attempts = """
import json, os, socket, time
tried = {}
for attack in ("time.clock_settime(time.CLOCK_REALTIME, time.time())", "os.nice(-5)",
               "open(f'/proc/{os.getppid()}/environ', 'rb').read(1)", "open(f'/proc/{os.getppid()}/maps').read(1)",
               "socket.sethostname('x')", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "os.chroot('/proc')"):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps([tried, int(status["CapEff"], 16), int(status["CapPrm"], 16)]))
"""
    run = run_alone(tmp_path, attempts)
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    tried, *rights = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-1])
    if not limits.landlock_version():
        tried = {attack: answer for attack, answer in tried.items() if "/proc/{" not in attack}
    assert set(tried.values()) <= {"PermissionError"} and len(tried) >= 5, tried
    assert max(rights) <= 2  # CAP_DAC_OVERRIDE


def test_folders_a_thousand_deep_do_not_break_the_grader(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    deep = """
import os
os.chdir(os.path.expanduser("~"))
for _ in range(1200):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
os.mkdir("closed")
open("closed/file", "w").close()
os.chmod("closed", 0)
"""
    assert "handed in no net" in failing(assess(plain(tmp_path, deep), scale=TINY))["accuracy"]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["out", "script.py"]


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, '{"samples":' * 9000, '{"samples": NaN}', '{"samples": -1}', '{"samples": true}',
     '{"samples": 1e400}', '{"samples": "900"}', '{"samples": [900]}', "[]", "\udcff", '{"samples": ' + "9" * 70_000],
)  # fmt: skip
def test_no_report_breaks_the_grader(tmp_path, text):
    (tmp_path / "report.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert assessing._samples(tmp_path / "report.json") is None


def test_a_report_of_gigabytes_is_not_read(tmp_path):
    with open(tmp_path / "report.json", "wb") as stream:
        stream.write(b'{"samples": 900')
        stream.truncate(3 << 30)
    assert assessing._samples(tmp_path / "report.json") is None


NETS = {
    "a graph that bites its tail": (
        '{"nodes": [{"op": "relu", "name": "a", "inputs": [[0, 0, 0]]}], "arg_nodes": [], "heads": [[0, 0, 0]]}',
        "b''",
    ),
    "arrays of terabytes": (
        '{"nodes": [{"op": "null", "name": "data", "inputs": []}], "arg_nodes": [0], "heads": [[0, 0, 0]]}',
        "b'\\x12\\x01' + bytes(14) + b'\\x01' + bytes(7) + b'\\xc9\\xfa\\x93\\xf9' + bytes(4) + b'\\2\\0\\0\\0'"
        " + b'\\xff' * 6 + b'\\0\\0' + b'\\xff' * 6 + b'\\0\\0' + bytes(64)",
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_made_to_break_the_examiner_is_told_in_a_sentence(tmp_path, name):
    """The files beside them are no part of the examiner's Python either."""
    graph, arrays = NETS[name]
    mark = tmp_path / "ran"
    text = f"""
import os, pathlib, sys
import gluontune as gt
task = gt.course.task()
(task.out / "net-symbol.json").write_text({graph!r})
(task.out / "net-0000.params").write_bytes({arrays})
code = "import pathlib; pathlib.Path({str(mark)!r}).touch()"
home = pathlib.Path.home() / ".local/lib" / f"python3.{{sys.version_info[1]}}" / "site-packages"
home.mkdir(parents=True)
for place in (home, pathlib.Path.cwd(), task.out):
    for module in ("sitecustomize", "usercustomize", "json"):
        (place / f"{{module}}.py").write_text(code)
"""
    told = failing(assess(plain(tmp_path, text), scale=TINY))
    assert "the saved net cannot be run" in told["accuracy"] and not mark.exists()
    assert left_of(tmp_path) == []


PICKLED = """
import pickle, time
import gluontune as gt
mx, task = gt.runtime.mxnet(), gt.course.task()
CODE = '''
import json, os
tried = {}
for attack in TRIED:
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
with open(os.path.expanduser("~/tried"), "w") as stream:
    json.dump(tried, stream)
'''
class Optimizer:
    def __reduce__(self):
        return exec, (CODE.replace("TRIED", repr(ATTACKS)),)
kvstore = mx.kv.create("dist_sync")
if task.rank == 0:
    kvstore._send_command_to_servers(0, pickle.dumps(Optimizer(), 0).decode("latin-1"))
kvstore._barrier()
time.sleep(1)
"""


def test_what_the_parameter_server_unpickles_is_under_the_scripts_limits(tmp_path):
    """It takes an optimizer from the script, which may be any code."""
    (tmp_path / "secret").write_text("x")
    attacks = [
        f"open({str(tmp_path / 'mark')!r}, 'w')",
        f"open({str(tmp_path / 'secret')!r}).read()",
        f"open({str(tmp_path / 'data/rank-1/train.rec')!r}, 'rb')",
        "open(f'/proc/{os.getppid()}/mem', 'rb')",
        "os.sched_setaffinity(os.getppid(), {0})",
        *(["os.kill(os.getppid(), 0)"] if limits.landlock_version() >= 6 else []),
    ]
    run = run_alone(tmp_path, PICKLED.replace("ATTACKS", repr(attacks)), seconds=100.0, memory_mib=2048, ranks=2)
    assert [rank["code"] for rank in run["ranks"]] == [0, 0], run["ranks"]
    if limits.landlock_version():
        (said,) = (tmp_path / "place").rglob("tried")
        assert set(json.loads(said.read_text()).values()) <= {"PermissionError", "OSError"}  # a read-only file system
        assert not (tmp_path / "mark").exists()
    assert left_of(tmp_path) == []


def test_nothing_beside_the_script_runs_in_the_grader(tmp_path, monkeypatch):
    """A psutil.py there would slow the supervisor's clock, or a json.py write its report."""
    mark = tmp_path / "ran"
    for name in ("psutil", "json", "queue", "typing", "sitecustomize", "usercustomize", "gluontune", "cv2"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    run = run_alone(tmp_path, "import json, psutil, time\ntime.sleep(0.5)\nprint(json.__file__, psutil.__file__)\n")
    assert run["ranks"][0]["code"] == 0 and 0.5 <= run["seconds"] < 15
    assert str(tmp_path) not in run["ranks"][0]["tail"] and not mark.exists()


def test_a_reference_that_was_measured_elsewhere_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "mine"))
    key, runs = {"scale": 1}, {"1": {"seconds": 1e9, "accuracy": 0.0, "steadiness": 0.0}}
    path = tmp_path / "reference.json"
    path.write_text(json.dumps({"key": key, "runs": runs}))
    assert assessing._known(path, key) == {}, "no seal"
    write_sealed(path, {"key": key, "runs": runs})
    assert assessing._known(path, key) == runs and assessing._known(path, {"scale": 2}) == {}
    good = path.read_text()
    path.write_text(good.replace("1000000000.0", "2000000000.0"))
    assert assessing._known(path, key) == {}, "another figure"
    for content in ("", "[]", "null", '{"seal": 3}', '{"seal": ""}', good.replace('"seal": "', '"seal": "0')):
        path.write_text(content)
        assert assessing._known(path, key) == {}
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "theirs"))
    path.write_text(good)
    assert assessing._known(path, key) == {}, "another user's, or another machine's"
    secret = tmp_path / "mine" / "grader.key"
    assert secret.stat().st_mode & 0o777 == 0o600 and len(secret.read_bytes()) == 32
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "mine"))
    secret.chmod(0o644)
    assert assessing._known(path, key) == {}, "a key that others could read"


@pytest.mark.parametrize("name", ["the place in the batch", "the others of the batch"])
def test_the_others_of_a_batch_tell_nothing(tmp_path, name):
    """A third of the images, once: those of one style lay in a row, so eight points were to be had from neighbours."""
    told = failing(assess(script(tmp_path, **CHEATS[name])))
    assert "depends on the other images of the batch" in told["accuracy"]


def test_no_rare_call_reaches_the_grader_or_the_machine(tmp_path):
    """Memory and files of others by number, what root's files start, and files that nobody can remove."""
    attempts = """
import ctypes, fcntl, json, os
libc, tried = ctypes.CDLL(None, use_errno=True), {}
above = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
room = ctypes.create_string_buffer(64)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), 64)
def call(name, *arguments):
    tried[name] = "possible" if getattr(libc, name)(*arguments) >= 0 else os.strerror(ctypes.get_errno())
for pid in (os.getppid(), above):
    call("process_vm_readv", pid, vector, 1, vector, 1, 0)
    call("ptrace", 16, pid, 0, 0)
    handle = libc.syscall(434, pid, 0)  # pidfd_open, then pidfd_getfd
    if handle >= 0 and libc.syscall(438, handle, 1, 0) >= 0:
        tried["pidfd_getfd"] = "possible"
call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
call("swapon", b"/dev/null", 0)
call("reboot", 0)
for place in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/sys/fs/cgroup/cgroup.procs",
              "/proc/self/oom_score_adj", "/sys/kernel/uevent_helper", "/dev/kmsg", "/dev/mem"):
    try:
        with open(place, "w") as stream:
            stream.write("-1000" if "oom" in place else "x")
        tried[place] = "possible"
    except OSError as error:
        tried[place] = type(error).__name__
with open(os.path.expanduser("~/kept"), "w") as stream:
    try:
        fcntl.ioctl(stream, 0x40086602, (ctypes.c_long * 1)(0x10))  # nobody removes it any more
        tried["immutable"] = "possible"
    except OSError as error:
        tried["immutable"] = type(error).__name__
inside = os.fork()
if inside == 0:  # root in a namespace of its own, where the kernel lets it be one
    libc.unshare(0x10000000 | 0x00020000)
    os._exit(1 if libc.mount(b"none", b"/usr", b"tmpfs", 0, None) == 0 else 0)
tried["mount in a namespace"] = "possible" if os.waitpid(inside, 0)[1] else "no"
tried["files"] = sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")[:-1])
print(json.dumps(tried))
"""
    run = run_alone(tmp_path, attempts)
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    tried = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-1])
    own = ("/dev/null", "/tmp", "pipe:", "anon_inode:[pidfd]", str(tmp_path))
    assert [name for name in tried.pop("files") if not name.startswith(own)] == [], "something of the grader's is open"
    if limits.landlock_version() >= 6:
        assert [name for name, answer in tried.items() if answer == "possible"] == [], tried
    assert left_of(tmp_path) == []
