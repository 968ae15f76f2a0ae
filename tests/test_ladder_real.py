"""The ladder for real: a job of the user's own, Ctrl-C and --resume, the README's example."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"

JOB = """
from mxnet import gluon
from mxnet.gluon import nn


class Tiny(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(8, 3, strides=2), nn.BatchNorm(), nn.Activation("relu"))
            self.body.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.head = nn.Dense(10)

    def hybrid_forward(self, F, x):
        return self.head(self.body(x))


def net():
    return Tiny()


def data():
    return "sample"
"""


# The command with slices of a sixth of the length, that waits for no other program to end (another test, mostly):
# nothing here asks how certain a figure is.
SHORT = """
from gluontune import ladder
from gluontune.cli.main import entry
from gluontune.ladder import budget
budget.PATIENCE = 0.0
ladder.QUICK = ladder.Pace("quick", rounds=9, slice_s=0.05, epochs=1)
entry()
"""


def ladder(*arguments):
    return [sys.executable, "-c", SHORT, "ladder", "--quick", *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [["records"], ["records", "hybridized"]], ids=["records", "records and hybridized"])
def test_a_job_of_the_users_own_climbs(tmp_path, names):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    out = tmp_path / "out"
    done = subprocess.run(
        ladder("--job", job, "--out", out, "--rungs", ",".join(names), "--train-samples", "1920", "--json",
               "--val-samples", "500", "--budget", "4m"),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / "ladder.json").read_text())
    rows = {row["name"]: row for row in found["rungs"]}
    assert list(rows) == ["naive", *names]
    assert all(row["status"] == "ran" for row in rows.values()), rows
    assert rows["records"]["recipe"]["loader"] in ("resident", "threaded")
    if "hybridized" in names:
        labels = [v["label"] for v in rows["hybridized"]["variants"]]
        assert any("pool-to-mean" in label for label in labels), labels
    for row in rows.values():
        assert row["samples_per_sec"]["n"] >= 1
        if row["name"] == "naive" or row["kept"]:
            assert len(row["val_accuracy"]) == 1
            assert row["utilization"]["cpu_pct"] and row["steadiness"]["mean_pct"] > 0
            assert sum(row["phases_pct"].values()) == pytest.approx(100, abs=0.5)
    assert found["sentence"]
    page = (out / "ladder.html").read_text()
    assert "<svg" in page and names[-1] in page


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c", marks=pytest.mark.slow), pytest.param(signal.SIGTERM, id="preemption")],
)
def test_an_interrupt_keeps_what_was_measured_and_resume_goes_on(tmp_path, number):
    options = ("--net", "mlp", "--out", tmp_path, "--rungs", "environment,records")
    options += ("--train-samples", "1920", "--val-samples", "300")
    process = subprocess.Popen(
        ladder(*options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background command ignores it
    )  # fmt: skip
    deadline = time.monotonic() + 120
    book = tmp_path / "ladder.json"
    while time.monotonic() < deadline and not (book.exists() and json.loads(book.read_text())["rungs"]):
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output and "Traceback" not in output
    before = json.loads(book.read_text())
    assert not before["complete"] and before["rungs"][0]["val_accuracy"]
    assert (tmp_path / "ladder.html").exists()
    if number == signal.SIGTERM:  # what is kept is the same, and so is how it goes on
        return
    done = subprocess.run(ladder(*options, "--resume"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = json.loads(book.read_text())
    assert after["complete"] and [r["name"] for r in after["rungs"]] == ["naive", "environment", "records"]
    assert after["rungs"][0] == before["rungs"][0]


def test_the_readmes_job_runs(tmp_path):
    block = re.search(r"```python\n(# job\.py\n.+?)```", README.read_text(), re.S)
    job = tmp_path / "job.py"
    job.write_text(block.group(1))
    done = subprocess.run(
        [sys.executable, "-m", "gluontune", "train", "--job", str(job), "--loader", "resident", "--json",
         "--train-samples", "640", "--val-samples", "100"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "ok"


def test_the_readme_names_only_commands_that_exist():
    import typer

    from gluontune.cli.main import build_app

    known = set(typer.main.get_command(build_app()).commands)
    used = set(re.findall(r"^ {4}gluontune (\w+)", README.read_text(), re.M))
    assert used and used <= known
