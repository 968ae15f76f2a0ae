"""A training process that dies: its cause is in the first line of the error, in every command that starts one."""

import json

import pytest

import gluontune as gt
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.core.processes import how_it_ended, last_words
from gluontune.training.group import Group

CAUSES = {
    "a missing library": ("import ctypes; ctypes.CDLL('libnope.so.7')", r"libnope\.so\.7: cannot open"),
    "a missing module": ("import nope_module", "No module named 'nope_module'"),
    "a missing file": ("open('/nowhere/weights.bin')", "No such file or directory: '/nowhere/weights.bin'"),
    "a file that does not parse": ("def broken(:", r"SyntaxError: invalid syntax \(job.py, line 1\)"),
    "a full disk": ("f = open('/dev/full', 'w'); f.write('x' * 100000); f.flush()", "No space left on device"),
    "no memory left": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); bytearray(1 << 31)",
        "the job raised MemoryError [(]while",
    ),
    "the kernel's or another's SIGKILL": (
        "import os; os.kill(os.getpid(), 9)",
        r"killed by SIGKILL \(out of memory\?\)",
    ),
    "a crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV|Segmentation fault"),
    "a crash of oneDNN's": (
        "import os, signal; os.kill(os.getpid(), signal.SIGFPE)",
        "killed by SIGFPE .*MXNET_MKLDNN_ENABLED=0",
    ),
    "shared memory that gave way": (
        "import os, signal; os.kill(os.getpid(), signal.SIGBUS)",
        "killed by SIGBUS .*/dev/shm",
    ),
    "an abort with a C++ error": (
        r"import os; os.write(2, b'terminate called\n  what():  std::bad_alloc\n'); os.abort()",
        r"SIGABRT: what\(\):  std::bad_alloc",
    ),
    "a file that ends itself": ("import sys; sys.exit(3)", r"ends itself \(exit code 3\)"),
    "an end without a word": ("import os; os._exit(5)", "ended by itself with code 5 [(]while starting"),
}
NET = """
def net():
    from mxnet.gluon import nn
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(10))
    return net
"""


@pytest.fixture
def job(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.process
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_a_death_is_in_the_error(cause, job):
    text, told = CAUSES[cause]
    result = gt.train.run(gt.Recipe(job=job(text + NET)))
    assert result.status == "failed"
    line = f"{result.error['message']} (while {result.error['phase']})"
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(line)


@pytest.mark.process
@pytest.mark.parametrize(
    "command", ["train", "ladder --quick --budget 30s --rungs naive", "tta --target 0.9 --repeats 1", "scale", "doctor"]
)
def test_every_command_says_it(command, job, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    path = job("import os; os.write(2, b'the dog ate it\\n'); os._exit(5)" + NET)
    code = main([*command.split(), "--job", path])
    said = " ".join("".join(capfd.readouterr()).split())
    assert "failed: the dog ate it" in said, said
    assert code == 1 or command.startswith(("ladder", "tta"))  # there it is a row


def test_the_doctor_is_asked_when_a_process_dies_and_before_a_climb(monkeypatch, job):
    from gluontune.runtime import doctor

    monkeypatch.setattr(doctor, "prevents", lambda: "libnope.so.1 is missing. To mend it: apt install nope")
    result = gt.train.run(gt.Recipe(job=job("import os; os._exit(5)" + NET)))
    assert result.error["message"].endswith("(libnope.so.1 is missing. To mend it: apt install nope)")
    with pytest.raises(GluontuneError, match="nothing can be trained here: libnope"):
        gt.ladder.climb(gt.Recipe(net="mlp"))


def test_an_error_before_the_session_stands_is_told_as_one(monkeypatch, tmp_path):
    """A package that the engine imports, and that fails: its message, not "ended by itself"."""
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(gt.train.RunFailed, match=r"mxnet cannot load libgomp\.so\.1: apt install libgomp1"):
        Group(gt.Recipe(net="mlp"))


@pytest.mark.parametrize(
    "said, words",
    [
        ("", ""),
        ("step 3\nAborted by the user\n", "Aborted by the user"),
        ("Traceback (most recent call last):\n  File 'x'\nKeyError: 'a'\nwarning: late\n", "KeyError: 'a'"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x1:\n  File a\n", "Fatal Python error: Segmentation fault"),
        ("x" * 1000, "x" * 400),
    ],
)  # fmt: skip
def test_last_words(said, words):
    assert last_words(said) == words
    assert how_it_ended("it", 1, said) == (f"it failed: {words}" if words else "it ended by itself with code 1")


def test_memory_that_the_kernel_took_is_said(monkeypatch):
    from gluontune.core import processes

    monkeypatch.setattr(processes, "out_of_memory_kills", lambda: 4)
    assert how_it_ended("it", -9, "", 3) == "it was killed by SIGKILL (the kernel ran out of memory)"
    assert how_it_ended("it", -9, "", 4) == "it was killed by SIGKILL (out of memory?)"
    assert json.dumps(how_it_ended("it", -40, "")) == '"it was killed by signal 40"'
