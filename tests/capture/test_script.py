"""A user's program under ``gluontune run``: what is seen from outside is what ``python`` shows."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from plain_mxnet import python_alone

from gluontune.capture import script
from gluontune.capture.script import ALL_THREADS
from gluontune.core.errors import UsageError

PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "gluontune", "run"]
TELLS = "gluontune: "


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write


def both(folder, *words, **options):
    """The program under python, and under ours, with our lines taken off its stderr."""
    found = []
    for start in (PYTHON, RUN):
        env = {**os.environ, **(python_alone() if start is PYTHON else {})}
        done = subprocess.run([*start, *words], cwd=folder, capture_output=True, timeout=300, env=env, **options)
        lines = done.stderr.decode().splitlines()
        ours = [line for line in lines if line.startswith(TELLS)]
        assert len(ours) == (2 if start is RUN and b"no summary" not in done.stdout else 0)
        found.append((done.returncode, done.stdout, [line for line in lines if line not in ours]))
    return found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print('one', flush=True); print('two')", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit('a reason')", 1),
        ("raise SystemExit", 0),
        ("import os; print('no summary', flush=True); os._exit(7)", 7),
        ("def f():\n    return 1 / 0\nf()", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e", 1),
        ("import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[2].tb_frame.f_code.co_name)\n1 / 0", 1),
        ("x = = 1", 1),
        ("import nonesuch", 1),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\x00'); sys.stderr.write('told\\n')", 0),
    ],
)
def test_exit_codes_output_and_tracebacks_are_those_of_python(write, tmp_path, text, code):
    plain, ours = both(tmp_path, write(text))
    assert ours == plain
    assert plain[0] == code


def test_words_paths_and_main_are_those_of_python(write, tmp_path):
    write("name = 'beside'", "sub/beside.py")
    text = """
        import sys, beside, __main__
        print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__, __doc__, beside.name)
        print(__main__.__file__, sorted(k for k in vars(__main__)), getattr(sys.flags, "safe_path", 0))
    """
    name = write(text, "sub/train.py")
    words = [name, "--out", "x", "-m", "--", "--help", "--json", "-5", "a b"]
    plain, ours = both(tmp_path, *words)
    assert ours == plain and plain[0] == 0 and b"'--help', '--json', '-5', 'a b'" in plain[1]


@pytest.mark.mxnet
def test_a_module_beside_the_script_that_is_called_like_one_of_ours_is_the_scripts_alone(write, tmp_path):
    """The script got the error of a helper that had found it."""
    write("MINE = 7", "psutil.py")
    plain, ours = both(tmp_path, write("import mxnet, psutil; print(psutil.MINE, mxnet.nd.ones(2).shape)"))
    assert ours[:2] == plain[:2] == (0, b"7 (2,)\n"), ours


def test_a_module_and_a_package_are_run_as_python_runs_them(write, tmp_path):
    write("", "pack/__init__.py")
    write("from . import other; import sys; print(sys.argv[1:], __spec__.name, __package__)", "pack/train.py")
    write("from . import other; print('main', __name__, __spec__.name)", "pack/__main__.py")
    write("print('other')", "pack/other.py")
    for words in (["-m", "pack.train", "--a"], ["-m", "pack"]):
        plain, ours = both(tmp_path, *words)
        assert ours == plain and plain[0] == 0
    done = subprocess.run([*RUN, "-m", "pack.nonesuch"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "No module named pack.nonesuch" in done.stderr


def test_classes_of_main_are_pickled_and_reach_workers_forked_and_spawned(write, tmp_path):
    text = """
        import multiprocessing, pickle
        class Point:
            def __init__(self, x): self.x = x
        def double(p): return Point(p.x * 2)
        if __name__ == "__main__":
            print(pickle.dumps(Point(1))[:60], pickle.loads(pickle.dumps(Point(1))).x)
            for kind in ("fork", "spawn"):
                with multiprocessing.get_context(kind).Pool(2) as pool:
                    print(kind, [p.x for p in pool.map(double, [Point(1), Point(2)])])
    """
    plain, ours = both(tmp_path, write(text))
    assert ours == plain and b"spawn [2, 4]" in plain[1]


def test_ctrl_c_ends_it_as_it_ends_python(write, tmp_path):
    name = write("import time\nprint('ready', flush=True)\ntry:\n    time.sleep(60)\nfinally:\n    print('cleaned')\n")
    found = []
    for start in (PYTHON, RUN):
        # A shell that starts this in the background has its children ignore Ctrl-C.
        heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*start, name], cwd=tmp_path, preexec_fn=heeds, **pipes) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        shown = [line for line in err.decode().splitlines() if not line.startswith(TELLS)]
        found.append((process.returncode, out, shown))
    assert found[1] == found[0] and found[0][0] == -signal.SIGINT and found[0][1] == b"cleaned\n"


def test_standard_input_and_the_folder_are_the_scripts(write, tmp_path):
    name = write("import os, sys; print(sys.stdin.read()[::-1], os.getcwd()); open('made.txt', 'w').write('x')")
    plain, ours = both(tmp_path, name, input=b"abc")
    assert ours == plain and (tmp_path / "made.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("words", "told"), [(["none.py"], "none.py: no such file"), (["."], ".: a folder"), ([], "SCRIPT")]
)
def test_a_script_that_is_not_there_is_wrong_usage(tmp_path, words, told):
    done = subprocess.run([*RUN, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_the_environment_is_tuned_and_what_the_user_set_stays(monkeypatch):
    monkeypatch.setattr(script, "running_others", lambda: 0)
    tuned = script.environment(environ={"PATH": "/bin", "MALLOC_TOP_PAD_": "1"})
    assert int(tuned["OMP_NUM_THREADS"]) >= 1 and tuned["MALLOC_TOP_PAD_"] == "1" and tuned["PATH"] == "/bin"
    monkeypatch.setattr("gluontune.runtime.cpu.Cpu.compute_cores", lambda self: 8)
    for others, threads in ((0, "8"), (1, "7"), (5, "4"), (20, "4")):  # MXNet itself takes half of the cores
        monkeypatch.setattr(script, "running_others", lambda running=others: running)
        found = script.environment(environ={})
        assert (found["OMP_NUM_THREADS"], found[ALL_THREADS]) == ("4", threads)
    found = script.environment(environ={"OMP_NUM_THREADS": "3"})
    assert (found["OMP_NUM_THREADS"], found[ALL_THREADS]) == ("3", "3")
    assert script.environment("as-installed", {"A": "1"}) == {"A": "1"}


def test_a_script_that_mpirun_started_takes_its_part_of_the_cores(monkeypatch):
    monkeypatch.setattr(script, "running_others", lambda: 0)
    monkeypatch.setattr("gluontune.runtime.cpu.Cpu.compute_cores", lambda self: 8)
    monkeypatch.setattr("gluontune.runtime.cpu.Cpu.affinity", lambda self: tuple(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ranks = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(names, "1414")}
    threads = {"one": {}, "four": ranks, "contradicting": {**ranks, "RANK": "0"}}
    seen = {name: script.environment(environ=environ)[ALL_THREADS] for name, environ in threads.items()}
    assert seen == {"one": "8", "four": "2", "contradicting": "8"}
    monkeypatch.setattr(os, "cpu_count", lambda: 64)  # mpirun has bound each to its own
    assert script.environment(environ=ranks)[ALL_THREADS] == "8"
    slurm = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "12"}
    assert script.environment(environ={**ranks, **slurm})[ALL_THREADS] == "3"


def test_other_programs_on_the_cores_are_counted(tmp_path):
    (tmp_path / "proc").mkdir()
    for running in (4, 1):
        (tmp_path / "proc/stat").write_text(f"cpu 1 2 3\nprocs_running {running}\n")
        assert script.running_others(str(tmp_path)) == running - 1
    assert script.running_others(str(tmp_path / "none")) == 0


def test_a_program_is_read_as_python_reads_it():
    assert script.Program.of(["-m", "a.b", "-m"]) == script.Program("a.b", ("-m",), True)
    assert script.Program.of(["-m", "a.b", "-m"]).words == ["-m", "a.b", "-m"]
    for words in ([], ["-m"]):
        with pytest.raises(UsageError, match="name the script"):
            script.Program.of(words)


@pytest.mark.mxnet
def test_mxnet_is_imported_once_by_every_way_of_importing_it(write, tmp_path):
    text = """
        import sys
        before = "mxnet" in sys.modules
        from mxnet.gluon import nn
        import mxnet, mxnet as mx
        import numpy as np
        print(before, mx is mxnet, sys.modules["mxnet"] is mx, mx.gluon.nn is nn, mx.__spec__.loader.name)
        print(float(mx.nd.ones((2, 3)).sum().asscalar()), np.bool is bool)
    """
    plain, ours = both(tmp_path, write(text))
    assert ours[:2] == plain[:2] and ours[0] == 0


@pytest.mark.mxnet
def test_modules_are_left_out_of_pythons_collections_and_the_scripts_garbage_is_not(write, tmp_path):
    text = """
        import gc, weakref, mxnet
        class Node: pass
        one = Node(); one.self = one
        gone = weakref.ref(one); del one; gc.collect()
        print(gc.isenabled(), gone() is None)
        print(gc.get_freeze_count() > 50_000)
    """
    plain, ours = both(tmp_path, write(text))
    assert plain[1].split() == [b"True", b"True", b"False"] and ours[1].split() == [b"True"] * 3


def test_an_mxnet_that_is_missing_is_missing_as_it_is_to_python(write, tmp_path):
    write("raise ImportError('no module here')", "mxnet/__init__.py")
    plain, ours = both(tmp_path, write("try:\n    import mxnet\nexcept ImportError as e:\n    print('without')"))
    assert ours[:2] == plain[:2] == (0, b"without\n")


def test_the_document_says_what_was_set(write, tmp_path):
    done = subprocess.run([*RUN, "--out", "o.json", write("print(1)")], cwd=tmp_path, capture_output=True, timeout=60)
    found = json.loads((tmp_path / "o.json").read_text())
    assert done.stdout == b"1\n" and found["schema_version"] == 1 and found["saved_seconds"] == {}
    assert set(found["settings"]) >= {"GOMP_SPINCOUNT"} - set(os.environ) and found["seconds"] > 0


GPU_SCRIPT = """
    import mxnet as mx
    from mxnet import autograd, gluon, nd
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=mx.gpu())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(3):
        x = nd.ones((4, 3)).as_in_context(mx.gpu(0))
        with autograd.record():
            loss = net(x).square().sum()
        loss.backward()
        trainer.step(4)
    print(x.context, nd.ones(1, ctx=mx.Context("gpu", 1)).context, mx.context.num_gpus())
"""


def test_a_script_for_gpus_is_computed_on_the_cpu_where_the_user_asks_for_it(write, tmp_path):
    name = write(GPU_SCRIPT)
    asked = {**os.environ, "GLUONTUNE_DEVICE": "cpu"}
    done = subprocess.run([*RUN, name], cwd=tmp_path, capture_output=True, text=True, env=asked, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cpu(0)", "cpu(1)", "0"]
    done = subprocess.run([*RUN[:3], "capture", "--steps", "3", name], cwd=tmp_path, capture_output=True, text=True,
                          env=asked, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["run", "capture"])
def test_a_script_that_finds_no_gpu_is_told_of_the_cpu(command, write, tmp_path):
    name = write(GPU_SCRIPT)
    done = subprocess.run([*RUN[:3], command, name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "GPU" in done.stderr and "GLUONTUNE_DEVICE=cpu before the command" in done.stderr


def test_another_device_is_refused(write, tmp_path):
    asked = {**os.environ, "GLUONTUNE_DEVICE": "cuda"}
    done = subprocess.run([*RUN, write("import mxnet")], cwd=tmp_path, capture_output=True, text=True, env=asked,
                          timeout=300)  # fmt: skip
    assert done.returncode != 0 and "GLUONTUNE_DEVICE=cuda: cpu is the only value" in done.stderr
