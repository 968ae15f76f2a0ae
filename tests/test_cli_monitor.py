"""``gluontune monitor`` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gluontune.cli.main import main
from gluontune.monitor import read_log

PYTHON = sys.executable


def run(capfd, *arguments):
    code = main(["monitor", *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_around_a_command_that_ends_well(capfd, tmp_path):
    log = tmp_path / "run.jsonl"
    code, out, err = run(
        capfd, "--period", "0.05", "--gpus", "none", "--out", str(log), "--", PYTHON, "-c",
        "import time; print('mine'); time.sleep(0.3)",
    )  # fmt: skip
    assert code == 0
    assert out == "mine\n"  # the command's own output is left alone
    assert "ended well after" in err and "steadiness" in err and "peak memory" in err
    read = read_log(log)
    assert read.facts["command"][0] == PYTHON and len(read.samples) >= 4


@pytest.mark.parametrize(("taken", "told"), [(42.0, True), (3.0, False)])
def test_cores_that_other_programs_took_are_not_blamed_on_the_command(capfd, monkeypatch, taken, told):
    monkeypatch.setattr("gluontune.monitor.command.OtherLoad.read", lambda self: taken)
    _, _, err = run(capfd, "--gpus", "none", "--", PYTHON, "-c", "pass")
    assert ("other programs took 42 % of the cores" in err) == told
    _, out, _ = run(capfd, "--json", "--gpus", "none", "--", PYTHON, "-c", "pass")
    assert json.loads(out)["others_pct"] == taken


def test_json_is_the_only_thing_on_stdout(capfd):
    code, out, err = run(capfd, "--json", "--period", "0.05", "--", PYTHON, "-c", "print('mine')")
    document = json.loads(out)
    assert code == 0 and "mine" in err
    assert document["exit_code"] == 0 and document["signal"] is None
    assert len(document["series"]["t_s"]) == len(document["series"]["cpu_pct"]) >= 1
    assert {"mean_pct", "score", "by_device"} <= set(document["steadiness"])


def test_options_after_the_command_are_the_commands(capfd):
    code, out, _ = run(capfd, "--gpus", "none", "--", PYTHON, "-c", "import sys; print(sys.argv[1:])", "--json", "-x")
    assert code == 0 and out == "['--json', '-x']\n"


def test_a_command_that_fails_gives_1_and_its_own_code_in_the_document(capfd):
    code, out, _ = run(capfd, "--json", "--", PYTHON, "-c", "raise SystemExit(37)")
    assert code == 1 and json.loads(out)["exit_code"] == 37
    code, _, err = run(capfd, "--", PYTHON, "-c", "raise SystemExit(37)")
    assert code == 1 and "returned 37" in err


def test_a_command_that_dies_of_a_signal(capfd):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code, out, _ = run(capfd, "--json", "--", PYTHON, "-c", kill)
    document = json.loads(out)
    assert code == 1 and document["exit_code"] is None and document["signal"] == "SIGKILL"


def test_children_of_the_command_count(capfd):
    burn = "import time\ne=time.process_time()+0.3\nwhile time.process_time()<e: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    code, out, _ = run(capfd, "--json", "--period", "0.1", "--gpus", "none", "--", PYTHON, "-c", parent)
    document = json.loads(out)
    figures = document["steadiness"]
    used = figures["mean_pct"] / 100 * document["usable_cores"] * figures["measured_s"]
    assert code == 0 and used >= 0.25


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--", "no-such-command-here"], 2, "no-such-command-here: no such command"),
        (["--", "/dev/null"], 1, "/dev/null: may not be run"),
        (["--period", "0", "--", "true"], 2, "period_s=0"),
        (["--period", "-1", "--seconds", "1"], 2, "period_s=-1"),
        (["--gpus", "x", "--", "true"], 2, "--gpus 'x'"),
        (["--gpus", "99", "--", "true"], 2, "no GPU 99"),
        (["--pid", "99999999"], 1, "no running process"),
        (["--seconds", "0"], 2, "--seconds 0"),
        (["--seconds", "1", "--", "true"], 2, "without a command"),
        (["--out", "/dev/null/x.jsonl", "--", "true"], 1, "/dev/null/x.jsonl"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(capfd, arguments, code, words):
    found, out, err = run(capfd, *arguments)
    assert found == code and out == ""
    assert words in err and "Traceback" not in err and len(err.strip().splitlines()) <= 2


def test_a_wrong_period_is_found_before_the_command_runs(capfd, tmp_path):
    target = tmp_path / "ran"
    code, _, _ = run(capfd, "--period", "0", "--", PYTHON, "-c", f"open({str(target)!r}, 'w')")
    assert code == 2 and not target.exists()


def test_watching_the_machine_for_some_seconds(capfd):
    code, out, _ = run(capfd, "--seconds", "0.4", "--period", "0.1", "--json", "--gpus", "none")
    document = json.loads(out)
    assert code == 0 and len(document["series"]["t_s"]) >= 3
    assert all(0 <= v <= 100 for v in document["series"]["cpu_pct"] if v is not None)


def test_watching_a_process_ends_with_it(capfd):
    with subprocess.Popen([PYTHON, "-c", "import time; time.sleep(0.5)"]) as child:
        code, _, err = run(capfd, "--pid", str(child.pid), "--period", "0.05", "--gpus", "none")
    assert code == 0 and "peak memory" in err


def test_sigterm_reaches_the_command_and_the_summary_still_comes(tmp_path):
    ready = tmp_path / "ready"
    program = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)"
    )
    words = [PYTHON, "-m", "gluontune", "monitor", "--json", "--gpus", "none", "--", PYTHON, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=os.environ) as process:
        end = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert json.loads(out)["exit_code"] == 5
