"""Training for real: small nets on the embedded sample, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from waiting import until

from gluontune.parallel.horovod import installed
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.train import Group, RunFailed, drive, run
from gluontune.training.rank_messages import RankMessages

SMALL = Recipe(net="mlp", loader="resident", train_samples=2048, val_samples=512, learning_rate=0.1)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def job(tmp_path, text):
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


def test_a_run_learns_and_says_what_it_did():
    events = []
    result = run(SMALL.override(epochs=2), on_event=events.append)
    assert result.ok and result.error is None
    assert len(result.val_accuracy) == len(result.train_loss) == len(result.epoch_seconds) == 2
    assert result.val_accuracy[-1] > 0.6  # chance is 0.1
    assert result.steps == 64
    assert result.samples_per_sec["n"] >= 8
    low, high = result.samples_per_sec["ci95"]
    assert 0 < low <= result.samples_per_sec["median"] <= high
    assert sum(result.phases_pct.values()) == pytest.approx(100, abs=0.5)
    assert result.peak_rss_mib > 50
    assert RunResult.from_dict(result.to_dict()) == result
    assert {e["stage"] for e in events} >= {"starting", "training", "validating"}


def test_the_same_seed_gives_the_same_run_and_another_does_not(reused):
    first, second = run(SMALL), run(SMALL)
    assert first.train_loss == second.train_loss and first.val_accuracy == second.val_accuracy
    assert run(SMALL.override(seed=1), site=reused.site).train_loss != first.train_loss


def test_gathered_steps_train_what_one_large_batch_trains(reused):
    plain = SMALL.override(augment="none", warmup_epochs=0.25, wd=1e-3)
    whole = run(plain.override(batch_size_per_device=256), site=reused.site)
    parts = run(plain.override(batch_size_per_device=64, accumulate=4), site=reused.site)
    assert whole.steps == 8 and parts.steps == 32
    assert parts.val_loss == pytest.approx(whole.val_loss, rel=1e-5)
    assert parts.val_accuracy == whole.val_accuracy
    # the rate is that of its own, smaller batch
    apart = run(plain.override(batch_size_per_device=64), site=reused.site)
    assert apart.val_loss != pytest.approx(whole.val_loss, rel=1e-2)


def test_reset_forgets_all_steps(reused):
    with Group(SMALL, site=reused.site) as group:
        fresh = group.steps(4)["loss"]
        later = group.steps(4)["loss"]
        group.reset()
        assert group.steps(4)["loss"] == fresh != later
        group.reset(0.25)  # a shorter training, with a schedule fitted to it
        shorter = RunResult(recipe=group.recipe.to_dict(), machine={})
        drive(group, shorter)
    short = run(SMALL.override(epochs=0.25), site=reused.site)
    assert shorter.steps == short.steps == 8 and shorter.val_loss == short.val_loss


def test_target_accuracy_and_seconds_end_it_early(reused):
    reached = run(SMALL.override(epochs=6, target_accuracy=0.3), site=reused.site)
    assert reached.ok and len(reached.val_accuracy) < 6
    timed = run(SMALL.override(epochs=500, seconds=1.0), site=reused.site)
    assert timed.ok and 1.0 <= timed.elapsed_seconds[-1] < 30 and timed.steps < 500 * 32


def test_a_rate_far_too_high_diverges_with_a_way_out(reused):
    result = run(SMALL.override(learning_rate=1e6, schedule="constant"), site=reused.site)
    assert result.status == "failed" and result.error["type"] == "Diverged"
    assert "learning_rate" in result.error["message"]


def test_tuned_settings_reach_the_process_and_are_recorded(reused):
    result = run(SMALL.override(runtime="tuned", env={"MY_OWN": "1"}))
    assert result.env["MY_OWN"] == "1" and "GOMP_SPINCOUNT" in result.env
    assert "GOMP_SPINCOUNT" not in run(SMALL, site=reused.site).env


@pytest.mark.slow
def test_two_ranks_over_the_parameter_server_train_one_net(tmp_path):
    mark = {"OF_THIS_TEST": str(tmp_path)}  # other tests, and other people, have servers, too
    ranks = SMALL.override(net="small_cnn", engine="kvstore", num_devices=2, batch_size_per_device=32, env=mark)
    result = run(ranks)
    assert result.ok, result.error
    assert result.steps == 32 and result.val_accuracy[-1] > 0.4
    again = run(ranks)
    assert again.train_loss == result.train_loss
    assert not [p for p in psutil.process_iter(["environ"]) if str(tmp_path) in str(p.info["environ"])]


def test_a_killed_process_is_an_error_not_a_hang():
    with Group(SMALL) as group:
        os.kill(group.pids[0], signal.SIGKILL)
        with pytest.raises(RunFailed, match="SIGKILL"):
            group.steps(10)


def test_a_dead_server_is_named():
    ranks = SMALL.override(engine="kvstore", num_devices=2, batch_size_per_device=32)
    with Group(ranks) as group:
        killer = threading.Timer(0.5, os.kill, (group.pids[3], signal.SIGKILL))  # after two ranks and the scheduler
        killer.start()
        with pytest.raises(RunFailed, match="server 0"):
            group.steps(100_000)


@pytest.mark.parametrize(
    ("engine", "count"), [("kvstore", 4), ("async", 2), ("shared-memory", 2), ("ddp", 2), ("horovod", 2)]
)
def test_nothing_outlives_a_killed_parent(engine, count):
    if engine == "horovod" and installed() is None:
        pytest.skip("wants Horovod (make horovod)")
    backend, loader = "mxnet", "gluon"
    if engine == "ddp":
        pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
        backend, loader = "torch", "threaded"
    script = (
        "from gluontune.recipe import Recipe; from gluontune.train import Group; import time\n"
        f"r = Recipe(net='mlp', num_workers=1, train_samples=256, engine='{engine}', num_devices=2,\n"
        f"           batch_size_per_device=32, backend='{backend}', loader='{loader}')\n"
        "g = Group(r); g.steps(1); g.pause(); print(*g.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(p) for p in parent.stdout.readline().split()]
    workers = [c.pid for p in pids[:2] for c in psutil.Process(p).children(recursive=True)]
    assert len(pids) == count and (len(workers) >= 2 or loader == "threaded")
    pids += workers
    assert all(alive(p) for p in pids)
    parent.kill()
    parent.wait()
    until(lambda: not [p for p in pids if alive(p)])


def test_a_group_that_is_killed_by_another_thread_fails_for_who_waits_for_it():
    with Group(SMALL) as group:
        killer = threading.Timer(1.0, group.kill)
        killer.start()
        with pytest.raises(RunFailed, match="SIGKILL"):
            group.steps(10**6)
        killer.join()


def test_a_paused_group_does_nothing_and_comes_back():
    with Group(SMALL) as group:
        group.steps(2)
        group.pause()
        process = psutil.Process(group.pids[0])
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        before = process.cpu_times().user
        time.sleep(0.3)
        assert process.status() == psutil.STATUS_STOPPED and process.cpu_times().user == before
        group.resume()
        assert group.steps(2)["count"] == 2


def test_closing_leaves_no_process():
    group = Group(SMALL.override(loader="gluon", num_workers=1, train_samples=256))
    group.steps(2)
    tree = [group.pids[0], *[c.pid for c in psutil.Process(group.pids[0]).children(recursive=True)]]
    assert len(tree) >= 2
    group.close()
    until(lambda: not [p for p in tree if alive(p)])


OWN_DATA = """
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

def net():
    layers = nn.HybridSequential()
    layers.add(nn.Dense(16, activation="relu"), nn.Dense(3))
    return layers

def data():
    rng = np.random.default_rng(0)
    def part(n):
        labels = rng.integers(0, 3, n)
        points = rng.normal(size=(n, 8)).astype("float32") + 2 * np.eye(3, 8, dtype="float32")[labels]
        return gluon.data.ArrayDataset(points, labels.astype("float32"))
    return part(1500), part(300)
"""


def test_a_job_with_its_own_data_net_and_loss(tmp_path, reused):
    result = run(Recipe(job=job(tmp_path, OWN_DATA), epochs=2), site=reused.site)
    assert result.ok, result.error
    assert result.val_accuracy[-1] > 0.7


def test_a_job_that_imports_mxnet_itself_and_names_a_data_set(tmp_path):
    text = (
        "from mxnet.gluon import nn\n"
        "def net():\n"
        "    layers = nn.HybridSequential()\n"
        "    layers.add(nn.Flatten(), nn.Dense(10))\n"
        "    return layers\n"
        "def data(): return 'sample'\n"
    )
    result = run(SMALL.override(job=job(tmp_path, text)))
    assert result.ok and result.val_accuracy[-1] > 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def net(:\n", ["job.py:1", "SyntaxError"]),
        ("x = 1 / 0\n", ["job.py:1", "ZeroDivisionError"]),
        ("x = 1\n", ["job.py", "net(), data(), loss()"]),
        ("def net():\n    raise KeyError('lost')\n", ["job.py:2", "net()", "lost"]),
        ("def net(): return 3\n", ["net()", "int", "Block"]),
        ("def data(): return 5\n", ["data()", "int", "pair"]),
        ("def data(): return 'smaple'\n", ["smaple", "sample"]),
        ("from mxnet.gluon import nn\ndef net(): return nn.Dense(7)\n", ["7 scores", "10 classes", "Dense(10)"]),
        ("from mxnet.gluon import nn\ndef net(): return nn.Conv2D(4, 3)\n", ["must return class scores"]),
        (
            "from mxnet.gluon import nn\ndef net(): return nn.Dense(10, in_units=5)\n",
            ["job.py:2", "the net failed for a batch of shape (2, 1, 28, 28)", "784"],
        ),
        (
            "from mxnet import gluon\nclass L(gluon.loss.Loss):\n"
            "    def __init__(s): super().__init__(1, 0)\n"
            "    def hybrid_forward(s, F, o, y): return F.sum(o)\ndef loss(): return L()\n",
            ["loss has shape", "one value per"],
        ),
    ],
)
def test_a_job_that_does_not_fit_is_explained(tmp_path, text, words, reused):
    result = run(SMALL.override(job=job(tmp_path, text)), site=reused.site)
    assert result.status == "failed"
    message = result.error["message"]
    assert all(word in message for word in words), message


def test_a_job_that_never_ends_meets_the_time_limit(tmp_path):
    text = "import time\ndef net():\n    time.sleep(1000)\n"
    result = run(SMALL.override(job=job(tmp_path, text)), time_limit=8)
    assert result.status == "failed" and result.error["type"] == "TimeLimit"
    assert "job.py" in result.error["message"] and "8 s" in result.error["message"]


def test_own_datasets_need_the_gluon_loader(tmp_path, reused):
    result = run(Recipe(job=job(tmp_path, OWN_DATA), loader="threaded"), site=reused.site)
    assert result.status == "failed" and "loader='threaded'" in result.error["message"]


def test_an_unknown_net_offers_the_nearest(reused):
    result = run(SMALL.override(net="cifar_resnet20"), site=reused.site)
    assert result.status == "failed" and "cifar_resnet20_v1" in result.error["message"]


def test_an_interrupt_keeps_what_was_measured():
    seen = []

    def interrupt(event):
        seen.append(event)
        if event["stage"] == "training" and event["done"] > 0.3:
            raise KeyboardInterrupt

    result = run(SMALL.override(epochs=2), on_event=interrupt)
    assert result.status == "interrupted"
    assert result.steps > 0 and result.samples_per_sec is not None
    assert np.isfinite(result.samples_per_sec["median"])


def test_drive_raises_what_broke(reused):
    recipe = SMALL.override(learning_rate=1e6, schedule="constant")
    with Group(recipe, site=reused.site) as group, pytest.raises(RunFailed, match="diverged"):
        drive(group, RunResult(recipe=recipe.to_dict()))


def test_a_stopped_and_continued_run_is_not_taken_for_a_hung_one(monkeypatch):
    """Ctrl-Z and `fg`: the clock goes on while neither side does anything."""
    clock, asked = [0.0], []

    class Selector:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def register(self, fd, events, place):
            self.fd, self.place = fd, place

        def unregister(self, fd):
            pass

        def select(self, timeout):
            asked.append(timeout)
            clock[0] += 1000.0 if len(asked) == 1 else timeout
            return [] if len(asked) < 3 else [(SimpleNamespace(data=self.place, fd=self.fd), 1)]

    class Rank:
        reading = -1
        answers = [{"event": "done"}]

        def poll(self):
            return self.answers.pop() if self.answers else None

    monkeypatch.setattr("gluontune.training.rank_messages.selectors.DefaultSelector", Selector)
    monkeypatch.setattr("gluontune.training.rank_messages.time.monotonic", lambda: clock[0])
    heard = RankMessages(SimpleNamespace(trouble=lambda: None), [Rank()], 1, 5.0)
    assert heard.gather("done") == [{"event": "done"}]
