"""Checkpoints: the file, the folder, and runs that are stopped, killed, damaged and gone on with."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from train_kills import kill_trials

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job import checkpoint
from gluontune.job.checkpoint import Writer
from gluontune.recipe import Recipe
from gluontune.train import Checkpoints, Group, run
from gluontune.training.hooks import Keeper, parse_interval

SMALL = Recipe(
    net="small_cnn", loader="resident", train_samples=1024, val_samples=128, learning_rate=0.1, devices="cpu"
)


def some(folder, step, accuracy=None):
    path = folder / checkpoint.name_of(step)
    checkpoint.write(path, {"step": step, "val_accuracy": accuracy}, {"w": np.full(1000, step, np.float32)})
    return path


def final(folder):
    header, arrays = checkpoint.read(checkpoint.files(folder)[0])
    return header["step"], {name: value.tobytes() for name, value in arrays.items()}


@pytest.mark.parametrize("place", [0, 30, 90, 120, 2000, -1])
def test_any_changed_byte_is_found(tmp_path, place):
    path = some(tmp_path, 5)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(checkpoint.DamagedCheckpoint, match=path.name):
        checkpoint.read(path)


@pytest.mark.parametrize("size", [0, 10, 88, 150, 3000])
def test_a_cut_file_is_found(tmp_path, size):
    path = some(tmp_path, 5)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(checkpoint.DamagedCheckpoint, match=path.name):
        checkpoint.read_header(path)


def test_an_object_array_is_never_unpickled(tmp_path):
    path = tmp_path / checkpoint.name_of(1)
    checkpoint.write(path, {}, {"w": np.array([{}], dtype=object)})  # what a malicious writer could do
    with pytest.raises(checkpoint.DamagedCheckpoint, match="cannot be read"):
        checkpoint.read(path)


def test_the_one_before_a_damaged_one_is_used(tmp_path):
    old, new = some(tmp_path, 5), some(tmp_path, 9)
    new.write_bytes(new.read_bytes()[:-3])
    path, header, passed = checkpoint.newest(tmp_path)
    assert path == old and header["step"] == 5
    assert len(passed) == 1 and new.name in passed[0]
    old.write_bytes(b"")
    with pytest.raises(GluontuneError, match="all 2 checkpoints are damaged"):
        checkpoint.newest(tmp_path)


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step, accuracy in ((1, 0.3), (2, 0.9), (3, None), (4, 0.5), (5, 0.4), (6, None)):
        some(tmp_path, step, accuracy)
    checkpoint.prune(tmp_path, 2)
    assert [p.name for p in checkpoint.files(tmp_path)] == [checkpoint.name_of(n) for n in (6, 5, 2)]


def test_a_folder_is_held_by_one_run_and_cleaned(tmp_path):
    (tmp_path / ".step-00000007.ckpt.abc.part").write_bytes(b"half")
    with checkpoint.locked(tmp_path):
        assert not list(tmp_path.glob(".step-*"))
        with pytest.raises(UsageError, match="another run"), checkpoint.locked(tmp_path):
            pass


def test_a_full_disk_leaves_the_old_one_whole(tmp_path):
    writer = Writer(str(tmp_path), keep=1)
    writer.save({"step": 1, "val_accuracy": None}, {"w": np.zeros(10)}, wait=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        answer = writer.save({"step": 2, "val_accuracy": None}, {"w": np.zeros(10_000)}, wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoint.name_of(2) in answer["error"] and answer["written"].endswith(checkpoint.name_of(1))
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.name_of(1)]
    assert checkpoint.newest(tmp_path)[1]["step"] == 1
    again = writer.save({"step": 3, "val_accuracy": None}, {"w": np.zeros(10)}, wait=True)
    assert again["error"] is None and again["written"].endswith(checkpoint.name_of(3))


@pytest.mark.parametrize("text", ["500", "", "5 weeks", "0s", "2.5steps", "-1s", "steps"])
def test_an_interval_needs_a_unit(text):
    with pytest.raises(UsageError, match="500steps, 90s or 5min"):
        parse_interval(text)


@pytest.mark.parametrize("fields", [{}, {"backend": "torch"}, {"loader": "threaded"}, {"net": "job"}], ids=str)
def test_a_checkpoint_before_the_first_step_begins_at_the_first_batch(fields, tmp_path):
    """Every engine tries one batch before it trains."""
    if fields.get("net") == "job":
        (tmp_path / "job.py").write_text(
            "import gluontune as gt\nfrom gluontune.job.job import build_net\nmx = gt.runtime.mxnet()\n"
            "def net(): return build_net('mlp', 10)\n"
            "def data(): return [mx.gluon.data.ArrayDataset(mx.nd.ones((64, 3, 8, 8)), mx.nd.zeros(64))] * 2\n"
        )
        fields = {"net": "mlp", "job": str(tmp_path / "job.py"), "loader": "gluon"}
    recipe = SMALL.override(**{"net": "mlp", "train_samples": 64, **fields})
    with Group(recipe, checkpoints={"folder": str(tmp_path), "keep": 1}) as group:
        group.reset()
        group.checkpoint({}, wait=True)
    header, _ = checkpoint.read(checkpoint.files(tmp_path)[0])
    assert (header["step"], header["epoch"], header["loader"]["batch"]) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mxnet", "torch"])
def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path, backend):
    # In the middle of the second epoch, with windows of steps that end elsewhere: every value, to the bit.
    recipe = SMALL.override(epochs=2, optimizer="adam", learning_rate=0.001, backend=backend)
    whole = run(recipe, checkpoints=Checkpoints(tmp_path / "a", every="7steps"))
    plan, at = Checkpoints(tmp_path / "b", every=f"{random.randint(2, 5)}steps"), random.uniform(0.52, 0.8)

    def stop(event):
        if event["stage"] == "training" and event["done"] > at:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = run(recipe, checkpoints=plan, on_event=stop)
    assert stopped.status == "interrupted" and 16 < stopped.steps < 32
    assert "SIGTERM" in stopped.notes[-1] and "--resume" in stopped.notes[-1]
    gone_on = run(recipe, checkpoints=Checkpoints(tmp_path / "b", resume=True))
    assert gone_on.ok and f"step {stopped.steps}" in gone_on.notes[0], gone_on.error
    assert final(tmp_path / "a") == final(tmp_path / "b")
    for field in ("steps", "train_loss", "val_loss", "val_accuracy", "val_metric"):
        assert getattr(gone_on, field) == getattr(whole, field), (field, plan.every, at)
    assert len(gone_on.epoch_seconds) == 2


def test_a_run_on_a_full_disk_goes_on(tmp_path):
    text = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from gluontune.job.job import build_net\n"
        "def net(): return build_net('small_cnn', 10)\n"
    )
    (tmp_path / "job.py").write_text(text)
    recipe = SMALL.override(job=str(tmp_path / "job.py"))
    result = run(recipe, checkpoints=Checkpoints(tmp_path / "c", every="8steps"))
    assert result.ok and result.val_accuracy
    assert any("a checkpoint was not written: " in note for note in result.notes)
    assert not checkpoint.files(tmp_path / "c")


def test_a_folder_that_becomes_read_only_in_mid_run_is_told_and_the_run_goes_on(tmp_path):
    """Two checkpoints long every rename in the training process is answered as a read-only file system's."""
    text = (
        "import errno, os\n"
        "from gluontune.job.job import build_net\n"
        "def net(): return build_net('small_cnn', 10)\n"
        "real, seen = os.replace, []\n"
        "def replace(a, b, **options):\n"
        "    if str(b).endswith('.ckpt'):\n"
        "        seen.append(b)\n"
        "        if len(seen) in (2, 3):\n"
        "            raise OSError(errno.EROFS, 'Read-only file system', b)\n"
        "    return real(a, b, **options)\n"
        "os.replace = replace\n"
    )
    (tmp_path / "job.py").write_text(text)
    recipe = SMALL.override(job=str(tmp_path / "job.py"), epochs=3)
    result = run(recipe, checkpoints=Checkpoints(tmp_path / "c", every="8steps", keep=9))
    told = [note for note in result.notes if "a checkpoint was not written: " in note]
    assert result.ok and len(result.val_accuracy) == 3
    assert 1 <= len(told) <= 2 and all("the file system is read-only" in note for note in told)
    assert checkpoint.newest(tmp_path / "c")[1]["step"] == result.steps and not list(
        (tmp_path / "c").glob(".step-*.part")
    )


def test_a_clock_that_jumps_back_changes_nothing(tmp_path, monkeypatch, reused):
    """By a day, over and over, here and in the training process."""
    text = (
        "import time\nfrom gluontune.job.job import build_net\n"
        "def net(): return build_net('small_cnn', 10)\n"
        "real = time.time\n"
        "time.time = lambda: real() - 86400 * (int(real() * 7) % 3)\n"
    )
    (tmp_path / "job.py").write_text(text)
    recipe = SMALL.override(job=str(tmp_path / "job.py"))
    whole = run(SMALL, checkpoints=Checkpoints(tmp_path / "a", every="8steps"), site=reused.site)
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() - 86400 * (int(real() * 7) % 3))
    result = run(recipe, checkpoints=Checkpoints(tmp_path / "b", every="1s"))
    assert result.ok and result.val_accuracy == whole.val_accuracy
    assert all(0 < seconds < 3600 for seconds in [*result.epoch_seconds, *result.elapsed_seconds])
    times = result.utilization.get("t_s", [])
    assert times == sorted(times) and final(tmp_path / "a")[0] == final(tmp_path / "b")[0]


def test_a_run_that_stood_still_ends_as_if_it_had_not(tmp_path):
    """SIGSTOP of the training process, as a laptop's lid or a batch system's preemption does."""
    recipe = SMALL.override(epochs=2)
    whole = run(recipe, checkpoints=Checkpoints(tmp_path / "a", every="8steps"))
    stopped: list[int] = []

    def stop(event):
        if event["stage"] == "training" and event["done"] > 0.3 and not stopped:
            for child in psutil.Process().children(recursive=True):
                stopped.append(child.pid)
                os.kill(child.pid, signal.SIGSTOP)

                def go_on(pid=child.pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGCONT)

                threading.Timer(2.0, go_on).start()

    result = run(recipe, checkpoints=Checkpoints(tmp_path / "b", every="8steps"), on_event=stop)
    assert stopped and result.ok and result.val_accuracy == whole.val_accuracy
    assert final(tmp_path / "a") == final(tmp_path / "b")


def test_a_checkpoint_of_another_run_is_refused_with_both_named(tmp_path, reused):
    run(SMALL.override(train_samples=128), checkpoints=Checkpoints(tmp_path), site=reused.site)
    with pytest.raises(UsageError, match="add --resume"):
        run(SMALL.override(train_samples=128), checkpoints=Checkpoints(tmp_path))
    other = SMALL.override(net="mlp", dataset="fashion-mnist")
    with pytest.raises(GluontuneError) as caught:
        run(other, checkpoints=Checkpoints(tmp_path, resume=True))
    for words in ("net='small_cnn'", "net='mlp'", "dataset='sample'", "dataset='fashion-mnist'", "step-"):
        assert words in str(caught.value)


def test_a_job_that_changed_its_net_is_told_so(tmp_path, reused):
    def job(width):
        text = "from mxnet.gluon import nn\ndef net():\n    n = nn.HybridSequential()\n"
        text += f"    n.add(nn.Flatten(), nn.Dense({width}), nn.Dense(10))\n    return n\n"
        (tmp_path / "job.py").write_text(text)
        return SMALL.override(job=str(tmp_path / "job.py"), train_samples=128)

    run(job(8), checkpoints=Checkpoints(tmp_path / "c"), site=reused.site)
    result = run(job(9), checkpoints=Checkpoints(tmp_path / "c", resume=True), site=reused.site)
    assert result.status == "failed"
    assert "another net" in result.error["message"] and "(9,) here" in result.error["message"]


def test_own_gluon_datasets_resume_in_mid_epoch(tmp_path):
    text = (
        "import numpy as np\nfrom mxnet import gluon\nfrom mxnet.gluon import nn\n"
        "def net():\n    n = nn.HybridSequential()\n    n.add(nn.Dense(8), nn.Dropout(0.5), nn.Dense(3))\n"
        "    return n\n"
        "def data():\n    rng = np.random.default_rng(0)\n"
        "    x = rng.normal(size=(640, 8)).astype('float32')\n"
        "    d = gluon.data.ArrayDataset(x, rng.integers(0, 3, 640).astype('float32'))\n    return d, d\n"
    )
    (tmp_path / "job.py").write_text(text)
    recipe = Recipe(job=str(tmp_path / "job.py"), learning_rate=0.05)
    setup = {"folder": str(tmp_path), "keep": 9}
    extra = {"recipe": recipe.to_dict(), "progress": {}, "val_accuracy": None}
    with Group(recipe, checkpoints=setup) as group:
        group.steps(4)
        group.checkpoint(extra, wait=True)
        group.steps(9)  # over the end of the epoch
        group.checkpoint(extra, wait=True)
        want = final(tmp_path)
    with Group(recipe, checkpoints=setup) as group:
        group.restore(str(tmp_path / checkpoint.name_of(4)))
        group.steps(9)
        group.checkpoint(extra, wait=True)
    assert want[0] == 13 and final(tmp_path) == want


def test_a_fault_is_survived_by_restarting(tmp_path):
    text = (
        "import os, pathlib, signal, time\nfrom gluontune.job import checkpoint\n"
        "from mxnet import gluon\n"
        f"mark = pathlib.Path({str(tmp_path)!r}) / 'died'\n"
        "class L(gluon.loss.SoftmaxCrossEntropyLoss):\n"
        "    calls = 0\n"
        "    def forward(self, *a):\n"
        "        L.calls += 1\n"
        "        if L.calls == 12 and not mark.exists():\n"
        "            mark.touch()\n"
        f"            while not checkpoint.files({str(tmp_path / 'b')!r}): time.sleep(0.01)\n"  # its thread writes
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(*a)\n"
        "def loss(): return L()\n"
    )
    (tmp_path / "job.py").write_text(text)
    recipe = SMALL.override(job=str(tmp_path / "job.py"))
    whole = run(SMALL, checkpoints=Checkpoints(tmp_path / "a", every="4steps"))
    result = run(recipe, checkpoints=Checkpoints(tmp_path / "b", every="4steps"), restarts=1)
    assert (tmp_path / "died").exists() and result.ok
    assert "SIGKILL" in result.notes[0] and "went on from" in result.notes[1]
    assert result.val_accuracy == whole.val_accuracy and final(tmp_path / "a") == final(tmp_path / "b")
    with pytest.raises(UsageError, match="--checkpoint"):
        run(SMALL, restarts=1)


def test_the_command_stops_on_sigterm_and_says_how_to_go_on(tmp_path):
    flags = ["--net", "mlp", "--loader", "resident", "--devices", "cpu", "--epochs", "200"]
    flags += ["--train-samples", "2048", "--val-samples", "64"]
    flags += ["--checkpoint", str(tmp_path / "c"), "--checkpoint-every", "10steps"]
    command = subprocess.Popen([sys.executable, "-m", "gluontune", "train", *flags], stderr=subprocess.PIPE, text=True)
    while not checkpoint.files(tmp_path / "c"):
        assert command.poll() is None
        time.sleep(0.05)
    command.terminate()
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "SIGTERM" in said and "--resume" in said and "step-" in said


@pytest.mark.parametrize("flag", ["--resume", "--restart=2"])
def test_flags_that_need_a_folder_say_so(flag, capsys):
    assert main(["train", flag]) == 2
    assert "--checkpoint DIR" in capsys.readouterr().err


def test_a_keeper_counts_steps_from_the_last_checkpoint(tmp_path):
    keeper = Keeper(SMALL, Checkpoints(tmp_path, every="10steps"))
    assert [keeper.due(n) for n in (9, 10, 11)] == [False, True, True]
    assert keeper.steps_until_due(7) == 3


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_not_been():
    found = kill_trials(2, epochs=2)
    assert found["kills"] == 2 and found["identical"] == found["jobs"] and not found["different"]
