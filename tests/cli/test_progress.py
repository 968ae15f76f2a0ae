"""What a batch job's log says of a long command."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from gluontune.cli import _common, _progress


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then_and_a_short_command_none(clock, capfd):
    with _progress.status_line() as say:
        say("1 of 2: loss [nan]")
        clock[0] += 29
        say("still")
        assert capfd.readouterr().err == ""
        clock[0] += 2
        say("2 of 2: loss [nan]")
        say("at once")
    line = capfd.readouterr().err
    assert line.rstrip().endswith("2 of 2: loss [nan]") and line.count("\n") == 1
    assert time.strptime(line[:8], "%H:%M:%S")


def test_a_trainings_progress_reaches_the_log_too(clock, capfd):
    event = {"stage": "training", "done": 0.25, "detail": "epoch 1/4", "samples_per_sec": 512.0, "val_accuracy": None,
             "seconds_left": 90.4}  # fmt: skip
    with _progress.progress_line() as show:
        clock[0] += 31
        show(event)
    assert capfd.readouterr().err.rstrip().endswith("training 25 %: epoch 1/4, 512 img/s, 90 s left")


def test_a_terminal_has_one_moving_line_and_brackets_are_no_markup(monkeypatch):
    screen = Console(force_terminal=True, width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    monkeypatch.setattr(_common, "stderr", screen)
    seen = []
    monkeypatch.setattr("rich.status.Status.update", lambda self, text: seen.append(text))
    with _progress.status_line() as say:
        say("loss [nan]")
    assert seen == ["loss \\[nan]"]


def test_a_count_says_what_is_left(clock, capfd):
    with _progress.progress_bar("packing", "MB", scale=1e6) as show:
        show(0, 200_000_000)
        clock[0] += 40
        show(50_000_000, 200_000_000)
        clock[0] += 40
        show(200_000_000, 200_000_000)  # the end is the command's own to tell
    err = capfd.readouterr().err
    assert err.rstrip().endswith("packing: 50 of 200 MB, 120 s left") and err.count("\n") == 1
