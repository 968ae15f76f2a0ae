"""The assessment: an honest solution passes; each way to cheat or to fail does not, and is told why."""

from __future__ import annotations

import json
import os
import runpy
import time

import numpy as np
import psutil
import pytest
from assessments import GOES_ON, SCALE, TINY, assess, failing, left_of, plain, run_alone, script

from gluontune.cli.main import main
from gluontune.codec import image
from gluontune.core.errors import UsageError
from gluontune.course import assessment
from gluontune.course.assessment import assessing, grading, limits
from gluontune.course.assessment.dice import Dice, luck, remembered
from gluontune.course.assessment.fresh import FreshTask, Scale
from gluontune.course.assessment.supervise import copy_handed_in
from gluontune.records import RecordReader


@pytest.fixture(autouse=True)
def the_same_each_time(monkeypatch):
    """One thread, and a fixed secret: no test of ours is left to chance."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(assessing, "FreshTask", lambda scale: FreshTask(scale, secret=4))


@pytest.mark.slow
def test_an_honest_script_passes_on_one_rank_and_on_two(tmp_path):
    found = assess(script(tmp_path), ranks=None)
    assert {c.name: c.feedback for part in found.parts for c in part.criteria if not c.passed} == {}
    assert found.passed and found.points == found.max_points == 100
    assert [part.ranks for part in found.parts] == [1, 2] and len(found.parts[1].criteria) == 9
    results = found.results()
    assert [r.val_accuracy[0] > 0.7 for r in results.values()] == [True, True]
    assert all(len(r.utilization["t_s"]) > 1 for r in results.values())


def test_the_solutions_rate_rises_and_falls_once():
    rate = runpy.run_path(str(assessment.solution()))["rate"]
    assert (rate(0.0), rate(0.25), rate(1.0)) == (0.0, 1.0, 0.0)


# What a script does with validation images: `more`, of which `chosen` are trained on, too.
VALIDATION = "more, theirs = load(task.val)\nchosen = {}\n"
VALIDATION += "images, labels = np.concatenate([images, more[chosen]]), np.concatenate([labels, theirs[chosen]])\n"
CHOSEN = {
    "all": VALIDATION.format("theirs >= 0"),
    "two of five classes": VALIDATION.format("theirs < 2"),
    "those that look clear": VALIDATION.format("more.std((1, 2, 3)) > np.median(more.std((1, 2, 3)))"),
    "a quarter": VALIDATION.format("np.arange(len(theirs)) % 4 == 0"),
}
RIGHT = """
more, theirs = load(task.val)
chosen = net(mx.nd.array(more)).argmax(1).asnumpy() == theirs
images, labels = np.concatenate([images, more[chosen]]), np.concatenate([labels, theirs[chosen]])
for epoch in range(epochs):
    order = random.permutation(len(images))
    for start in range(0, len(order) - 31, 32):
        chosen = order[start : start + 32]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        loss.backward()
        trainer.step()
"""


def test_training_on_validation_images_that_are_right_already_is_seen(tmp_path):
    """The least of it: nothing is told to the net but what it says by itself."""
    told = failing(assess(script(tmp_path, data="epochs = 6", after=RIGHT)))
    assert list(told) == ["validation"] and "trained on validation images" in told["validation"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_training_on_some_validation_images_is_seen(tmp_path, name):
    told = failing(assess(script(tmp_path, data=CHOSEN[name])))
    assert list(told) == ["validation"] and "trained on validation images" in told["validation"]


FACTS = {"classes": 5, "train_images": [1600]}
RUN = {
    "seconds": 20.0, "stopped_by": None, "left": [], "series": {}, "peak_rss_mib": 500.0,
    "ranks": [{"code": 0, "cpu_s": 19.0, "seconds": 20.0, "tail": ""}], "steadiness": {"score": 0.8, "device": "cpu"},
}  # fmt: skip
FOUND = {
    "accuracy": 0.8, "samples": [3200], "forward_cpu_s": 1e-4, "start_cpu_s": 2.0, "difference": 0.0,
    "traces": {"train-a": (0.9, 1e-5), "train-b": (0.9, 1e-5), "val": (0.2, 0.4)},
}  # fmt: skip
TARGET = grading.Goal(budget_s=30.0, accuracy=0.75, steadiness=0.8, limit_s=45.0, memory_mib=2000)


def test_all_that_is_wanted_gives_all_points():
    part = grading.grade(1, TARGET, RUN, FOUND, FACTS)
    assert part.passed and part.points == part.max_points == 50


@pytest.mark.parametrize(
    ("run", "found", "name", "said"),
    [
        ({"seconds": 31.0}, {}, "time", "31.0 s by the grader's clock"),
        ({}, {"accuracy": 0.6}, "accuracy", "Train longer"),
        ({}, {"traces": {**FOUND["traces"], "train-b": (0.2, 0.5)}}, "data", "a half of the training images"),
        ({}, {"traces": {**FOUND["traces"], "val": (0.6, 1e-9)}}, "validation", "that dice gave to single validation"),
        ({}, {"forward_cpu_s": 0.02}, "samples", "950 at most"),
        ({}, {"samples": [1000]}, "samples", "at least one epoch"),
        ({}, {"samples": [None]}, "samples", "did not report"),
        ({}, {"samples": [200_000]}, "samples", "190,000 at most"),
        ({"left": ["python go_on.py"]}, {}, "left behind", "go_on.py"),
    ],
)
def test_each_criterion_alone_decides(run, found, name, said):
    part = grading.grade(1, TARGET, {**RUN, **run}, {**FOUND, **found}, FACTS)
    lost = {c.name: c.feedback for c in part.criteria if c.points < c.max_points}
    assert not part.passed and part.points < 50 and said in lost[name]
    assert set(lost) <= {name, "time", "steadiness"}, "time and steadiness count as far as the accuracy was reached"


def test_bursts_cost_points_and_nothing_else():
    part = grading.grade(1, TARGET, {**RUN, "steadiness": {"score": 0.3, "device": "cpu"}}, FOUND, FACTS)
    assert part.passed and 45 < part.points < 50


def test_ranks_that_share_unequally():
    two = {**RUN, "ranks": RUN["ranks"] * 2}
    facts = {**FACTS, "train_images": [800, 800]}
    part = grading.grade(2, TARGET, two, {**FOUND, "samples": [3200, 900], "difference": 0.5}, facts)
    lost = {c.name: c.feedback for c in part.criteria if not c.passed}
    assert "unequal" in lost["samples"] and "differ" in lost["agreement"] and len(part.criteria) == 9


def test_what_is_no_number_and_who_is_idle_is_told():
    two = {**RUN, "ranks": [RUN["ranks"][0], {**RUN["ranks"][0], "cpu_s": 5.0}]}
    facts, found = {**FACTS, "train_images": [800, 800]}, {**FOUND, "samples": [3200, 3200]}
    lost = {c.name: c.feedback for c in grading.grade(2, TARGET, two, found, facts).criteria if not c.passed}
    assert list(lost) == ["samples"] and "rank 1 worked for 3.0 s" in lost["samples"]
    for difference in (float("inf"), float("nan")):
        part = grading.grade(2, TARGET, {**two, "ranks": RUN["ranks"] * 2}, {**found, "difference": difference}, facts)
        assert [c.name for c in part.criteria if not c.passed] == ["agreement"]


def test_a_rank_that_kills_itself_is_not_taken_for_one_that_was_ended():
    """The other waits for it in vain, and is ended: both have ended by the same signal."""
    gone = {**RUN["ranks"][0], "code": -9, "seconds": 12.0, "forced": False}
    run = {**RUN, "stopped_by": "partner", "ranks": [{**gone, "seconds": 20.0, "forced": True}, gone]}
    part = grading.grade(2, TARGET, run, {**FOUND, "samples": [800, 800]}, {**FACTS, "train_images": [800, 800]})
    lost = {c.name: c.feedback for c in part.criteria if not c.passed}
    assert "rank 1 was ended by signal 9" in lost["end"]


def test_two_ranks_that_do_not_communicate(tmp_path):
    told = failing(assess(script(tmp_path, data="kvstore, epochs = None, 6"), ranks=2))
    assert "did not exchange gradients" in told["agreement"]
    assert "what only rank 1 was given" in told["data"]


@pytest.mark.slow
def test_a_rank_that_does_nothing_but_claims_its_share(tmp_path):
    idle = "kvstore, samples = None, epochs * len(images)\nif task.rank == 1: epochs, samples = 0, 10**6"
    told = failing(assess(script(tmp_path, data=idle), ranks=2))
    assert "rank 1 reports 1,000,000 images" in told["samples"] and "CPU time" in told["samples"]
    assert "only rank 1 was given" in told["data"] and "agreement" in told


def test_another_data_sets_result(tmp_path):
    """Training well, on images of the same kind that were made here: what a pre-trained net would know."""
    other = (
        "from gluontune.course.assessment.fresh import FreshTask, Scale\n"
        "mine = FreshTask(Scale(train=1600, val=320, test=400, edge=16, classes=5, styles=10), secret=1).test()\n"
        "images, labels = task.normalize(mine.images), mine.labels.astype('float32')\n"
        "samples = epochs * len(task.train)"
    )
    told = failing(assess(script(tmp_path, data=other)))
    assert "no trace of the training images" in told["data"] and "accuracy" in told


def test_parameters_that_were_never_trained(tmp_path):
    told = failing(assess(script(tmp_path, data="epochs, samples = 0, 10**7")))
    assert "chance" in told["accuracy"] and "no trace of the training images" in told["data"]
    assert "CPU time" in told["samples"]


def test_a_parameter_file_shipped_with_the_script_cannot_be_read(tmp_path):
    (tmp_path / "shipped.params").write_bytes(b"0" * 100)
    (tmp_path / "shipped.params").chmod(0o644)
    found = assess(script(tmp_path, before=f"open({str(tmp_path / 'shipped.params')!r}, 'rb').read()"), scale=TINY)
    if found.isolated:  # where the kernel has no Landlock, the result says so
        assert "Permission denied" in failing(found)["end"]


def test_no_file_and_no_process_gives_the_hidden_images_away(tmp_path):
    seek = """
import json, os, pathlib
import gluontune as gt
task = gt.course.task()
found = [str(p) for p in task.data.rglob("*") if p.suffix == ".rec"]
tried = {}
for name in (task.data.parent / "rank-1/train.rec", "%s", "%s", os.path.expanduser("~root/.bashrc")):
    try:
        tried[str(name)] = open(name, "rb").read(4).hex()
    except OSError as error:
        tried[str(name)] = type(error).__name__
for attack in ("open('/proc/%%d/mem' %% os.getppid(), 'rb')", "os.kill(os.getppid(), 9)"):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
print(json.dumps([sorted(os.path.basename(p) for p in found), tried]))
raise SystemExit("looked")
"""
    from gluontune.datasets.fashion import sample_folder

    (tmp_path / "notes.txt").write_text("secret")
    told = failing(
        assess(
            plain(tmp_path, seek % (sample_folder() / "fashion-mnist-sample-test.rec", tmp_path / "notes.txt")),
            memory_mib=1024,
        )
    )
    assert "looked" in told["end"]
    # the supervisor keeps what it said; run it once more to read that
    run = run_alone(tmp_path, (tmp_path / "script.py").read_text())
    files, tried = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-2])
    assert files == ["train.rec", "val.rec"]
    if assessing.landlock_version() >= 6:
        assert set(tried.values()) <= {"PermissionError", "FileNotFoundError"} and "PermissionError" in tried.values()


def test_hard_coded_results_and_files_without_parameters(tmp_path):
    fake = """
import json, gluontune as gt
task = gt.course.task()
print("accuracy 0.99")
for name in ("report.json", "result.json", "assessment.json"):
    (task.out / name).write_text(json.dumps({"samples": 10**6, "accuracy": 0.99, "passed": True}))
"""
    told = failing(assess(plain(tmp_path, fake), scale=TINY))
    assert "handed in no net" in told["accuracy"] and "does not count" in told["accuracy"]
    assert set(told) >= {"accuracy", "time", "data", "validation", "samples"}


def test_files_that_are_no_net(tmp_path):
    fake = """
import gluontune as gt
task = gt.course.task()
for name in ("net-symbol.json", "net-0000.params"):
    (task.out / name).write_text("{}")
"""
    told = failing(assess(plain(tmp_path, fake), scale=TINY))
    assert "the saved net cannot be run" in told["accuracy"]


def test_a_script_that_crashes_half_way(tmp_path):
    told = failing(assess(script(tmp_path, data="epochs = 1", after="raise ValueError('half-way')"), scale=TINY))
    assert "failed with code 1" in told["end"] and "ValueError: half-way" in told["end"]


def test_sleeping_past_the_budget_with_a_patched_clock(tmp_path, monkeypatch):
    sleeper = "import time\nslow = time.sleep\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n"
    told = failing(assess(plain(tmp_path, sleeper + "slow(600)"), seconds=0.5, scale=TINY))
    assert "ended by force after 1.5 s" in told["time"] and "not done" in told["end"]
    assert "before it had handed in its net" in told["accuracy"]
    monkeypatch.setattr(assessing, "_LIMIT", 1000.0)
    late = failing(assess(plain(tmp_path, sleeper + "slow(1.2)"), seconds=0.5, scale=TINY))
    assert "by the grader's clock; the budget is 1.0 s" in late["time"] and "end" not in late


def test_a_memory_bomb_is_ended(tmp_path):
    bomb = "held = []\nwhile True:\n    held.append(bytearray(b'x') * (8 << 20))\n"
    told = failing(assess(plain(tmp_path, bomb), memory_mib=300, scale=TINY))
    assert "took more than 300 MiB" in told["end"]


def test_an_orphan_that_goes_on_when_the_clock_has_stopped(tmp_path):
    """Twice forked, in a session of its own: neither its parent's end nor its group gives it away."""
    orphan = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.1)
    os._exit(0)
os.wait()
time.sleep(0.3)
"""

    run = run_alone(tmp_path, orphan)
    assert run["ranks"][0]["code"] == 0 and len(run["left"]) == 1 and "alone.py" in run["left"][0]
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    assert grading._left(run)[0] == 0 and "went on after" in grading._left(run)[1]


def graded(random, count=400, learned=0.0, gradings=60):
    """Chances of nets that have learned a share of the mixtures: 4 in 5 of those are right, and surer."""
    for _ in range(gradings):
        classes, drawn = random.random((count, 10)).argsort(1)[:, :4], random.integers(0, 4, count)
        scores = random.normal(size=(count, 10)) * random.uniform(0.2, 3) + random.normal(size=10)
        known = np.flatnonzero(random.random(count) < 0.8 * learned)
        surer = scores.std() * (1 + np.abs(random.normal(size=len(known))))
        scores[known, classes[known, drawn[known]]] = scores[known].max(1) + surer
        mixed, styles = np.arange(count) < 0.5 * count, random.integers(0, 40, count)
        dice, usual = (Dice(np.zeros(0), classes, drawn, mixed, styles), random.normal(size=(40, 10)) * scores.std())
        yield remembered(scores, dice, np.where(mixed[:, None], 0, usual[styles]))[1]


def test_honest_parameters_are_hardly_ever_accused_and_trained_ones_always():
    """Of 100 each with 1,333 images: all were seen that had learned a tenth, 80 that 7.5 %, 14 that a twentieth."""
    honest = np.array(list(graded(np.random.default_rng(3))))
    assert honest.min() > 10 * grading.SUSPECT and (honest < 0.05).mean() < 0.08
    assert np.mean([chance < grading.SUSPECT for chance in graded(np.random.default_rng(4), learned=0.25)]) >= 0.99
    random, probe = np.random.default_rng(3), FreshTask(Scale(edge=16), secret=5).probe("train-a", of_each=4)
    knows = np.where(random.random(len(probe.labels)) < 0.6, probe.labels, random.integers(0, 10, len(probe.labels)))
    assert luck(knows, probe, 10)[1] < grading.CERTAIN < luck(random.permutation(knows), probe, 10)[1]


def test_dice_said_the_class_of_two_validation_images_in_three(tmp_path):
    task = FreshTask(Scale(train=20, val=60, edge=16), secret=5)
    task.write(tmp_path, 2)
    dice = task.dice()
    assert dice.classes.shape == (40, 4) and all(len(set(row)) == 4 for row in dice.classes)
    assert dice.mixed.sum() == 20 and len(np.unique(dice.drawn)) == 4
    with RecordReader(tmp_path / "rank-1" / "val.rec") as reader:
        pixels = {image.decode(reader.payload(i), 3).tobytes(): reader.labels()[i] for i in range(len(reader))}
    truth = dice.classes[np.arange(40), dice.drawn]
    assert [pixels[picture.tobytes()] for picture in dice.images] == truth.tolist()


def test_each_draw_is_another_task():
    one, two = FreshTask(SCALE), FreshTask(SCALE)
    assert not np.array_equal(one.test().images, two.test().images)
    again = FreshTask(SCALE, secret=3), FreshTask(SCALE, secret=3)
    assert np.array_equal(again[0].probe("train-a").images, again[1].probe("train-a").images)


def test_points_and_wrong_usage(tmp_path, capfd):
    assert sum(grading.WEIGHTS.values()) == sum(grading.RANKS_WEIGHTS.values()) == 50
    script = tmp_path / "mine.py"
    assert main(["assess", "--new", str(script), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"written": str(script)}
    compile(script.read_text(), "mine.py", "exec")
    assert main(["assess", "--new", str(script)]) == 2 and "exists already" in capfd.readouterr().err
    assert main(["assess"]) == main(["assess", str(tmp_path / "none.py")]) == 2
    assert "--new" in capfd.readouterr().err
    script.write_text("def broken(:\n")
    assert main(["assess", str(script)]) == 2 and "mine.py:1" in capfd.readouterr().err
    script.write_text("x = 1\n")
    assert main(["assess", str(script), "--engine", "mpi"]) == main(["assess", str(script), "--ranks", "3"]) == 2
    with pytest.raises(UsageError, match="larger than 256 KiB"):
        script.write_text("#" * 300_000)
        assessment.assess(script)


ESCAPES = {
    # its first thread ends, so that it shows as a zombie; another one trains on
    "zombie": """
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=train).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(0.5)
""",
    # each forks the next and ends: no look round meets one that lives
    "chain": """
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork():
            os._exit(0)
time.sleep(0.3)
""",
    "crowd": """
import signal
for _ in range(12):
    if os.fork() == 0:
        os.setsid()
        for number in set(range(1, 65)) - {9, 19, 32, 33}:
            signal.signal(number, signal.SIG_IGN)
        train()
time.sleep(0.3)
""",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_no_process_outlives_the_clock(tmp_path, name):
    run = run_alone(tmp_path, GOES_ON + ESCAPES[name])
    assert run["ranks"][0]["code"] == 0 and run["left"] and grading._left(run)[0] == 0
    assert left_of(tmp_path) == []


def test_what_is_handed_in_after_the_clock_has_stopped_does_not_count(tmp_path):
    late = """
import os, time
import gluontune as gt
out = gt.course.task().out
(out / "net-symbol.json").write_text("in time")
if os.fork() == 0:
    os.setsid()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.001)
    while True:
        (out / "net-symbol.json").write_text("late")
        (out / "net-0000.params").write_text("late")
        time.sleep(0.01)
time.sleep(0.2)
"""
    run_alone(tmp_path, late)
    taken = tmp_path / "place" / "taken-0"
    said = (taken / "net-symbol.json").read_text()
    # A write that is under way when its process is ended leaves an empty file.
    assert (tmp_path / "place" / "out-0" / "net-symbol.json").read_text() in ("late", "")
    # Between the last instruction and the grader's look (50 ms) lies a moment that the clock counts, too.
    assert said in ("in time", "late", "") and run_alone_stopped(tmp_path)


def run_alone_stopped(folder):
    """What lies there while all stands still is what is taken: it cannot change any more."""
    taken = folder / "place" / "taken-0"
    before = {p.name: p.read_bytes() for p in taken.iterdir()}
    time.sleep(0.2)
    return before == {p.name: p.read_bytes() for p in taken.iterdir()}


def test_what_is_no_file_is_not_handed_in(tmp_path):
    out, taken = tmp_path / "out", tmp_path / "taken"
    out.mkdir()
    os.mkfifo(out / "net-symbol.json")
    (out / "net-0000.params").symlink_to("/dev/zero")
    with open(out / "report.json", "wb") as stream:
        stream.truncate(2 << 30)
    copy_handed_in(str(out), str(taken))
    assert list(taken.iterdir()) == []


def test_the_graders_processor_priority_and_devices_are_out_of_reach(tmp_path):
    """One script, five attempts; each is refused, and what it may do for itself still works."""
    attempts = """
import json, os, resource
grader, tried = os.getppid(), {}
for attack in (
    "os.sched_setaffinity(grader, {0})", "os.setpriority(os.PRIO_PROCESS, grader, 19)",
    "os.setpriority(os.PRIO_USER, 0, 19)", "resource.prlimit(grader, resource.RLIMIT_NOFILE, (3, 3))",
    "os.sched_setscheduler(grader, os.SCHED_IDLE, os.sched_param(0))", "open('/dev/kmsg', 'rb')",
    "os.listdir('/dev')", "open('/dev/vda', 'rb')", "open('/dev/new', 'wb')",
):
    try:
        exec(attack)
        tried[attack] = "possible"
    except OSError as error:
        tried[attack] = type(error).__name__
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, max(1, os.getpriority(os.PRIO_PROCESS, 0)))
open("/dev/null", "wb").write(b"x")
open("/dev/urandom", "rb").read(1)
print(json.dumps(tried))
"""
    run = run_alone(tmp_path, attempts)
    assert run["ranks"][0]["code"] == 0, run["ranks"][0]["tail"]
    tried = json.loads(run["ranks"][0]["tail"].strip().splitlines()[-1])
    files = {name: answer for name, answer in tried.items() if "/dev" in name}
    if limits.landlock_version():
        assert set(files.values()) <= {"PermissionError", "FileNotFoundError", "OSError"}  # read-only
    calls = {name: answer for name, answer in tried.items() if name not in files}
    assert set(calls.values()) == {"PermissionError"} and len(calls) == 5


REORDERED = """
import gluontune as gt
mx, nn = gt.runtime.mxnet(), gt.runtime.mxnet().gluon.nn
store, net = mx.kv.create("dist_sync"), nn.Conv2D(16, 3, in_channels=16)
net.initialize(mx.init.One())
net(mx.nd.ones((2, 16, 16, 16))).wait_to_read()  # leaves the weight in a layout of oneDNN's
weight = net.weight.data()
store.init(0, weight)
got = mx.nd.zeros(weight.shape)
store.push(0, mx.nd.ones(weight.shape))
store.pull(0, got)
print("got", float(got.mean().asscalar()))
"""


def test_weights_that_a_forward_pass_has_reordered_reach_the_parameter_server(tmp_path):
    """MXNet 1.9.1 sends nothing of them, and the first pull never ends."""
    run = run_alone(tmp_path, REORDERED, seconds=150.0, memory_mib=2048, ranks=2)
    assert run["stopped_by"] is None and [rank["tail"].splitlines()[-1] for rank in run["ranks"]] == ["got 2.0"] * 2, (
        run
    )
