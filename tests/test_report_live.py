"""The live table and its plain form for logs."""

from __future__ import annotations

import io

import pytest
import report_samples as samples
from rich.console import Console

from gluontune.report import LiveLadder, ladder_table, runs_table
from gluontune.report.read import row_of

HOSTILE = samples.HOSTILE


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(width: int = 100, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def printed(renderable, width: int) -> str:
    out = console(width)
    out.print(renderable)
    return out.file.getvalue()


def progress(stage: str, **more) -> dict:
    return {"event": "progress", "name": "naive", "stage": stage, "done": 0.5, "detail": "epoch 1/2", **more}


def climb(live: LiveLadder, ladder: dict) -> None:
    names = [row["name"] for row in ladder["rungs"]]
    live.on_event({"event": "ladder-start", "rungs": names, "mode": "quick", "dataset": ladder["dataset"]})
    for row in ladder["rungs"]:
        live.on_event({"event": "rung-start", "name": row["name"], "sentence": row["sentence"], "seconds_left": 60})
        live.on_event({**progress("training", val_accuracy=0.5, samples_per_sec=99.0), "name": row["name"]})
        live.on_event({"event": "rung-end", "row": row})
    live.on_event({"event": "ladder-end", "ladder": ladder})


def test_a_log_gets_one_plain_line_for_each_piece_of_news():
    out = console(200)
    with LiveLadder(out) as live:
        climb(live, samples.damaged_ladder())
    lines = out.file.getvalue().splitlines()
    assert "\x1b" not in out.file.getvalue()
    assert lines[0] == "gluontune ladder (quick) on cifar10: 8 rungs"
    assert lines[1].startswith("[1/8] naive: the script") and lines[1].endswith("(about 1 min left)")
    assert any("multi-worker: ✗ failed" in line and "out of memory" in line for line in lines)
    assert any("multi-device: – skipped; one usable core" in line for line in lines)
    assert len(lines) == 1 + 3 * 8  # and nothing is said twice


def test_a_log_is_not_flooded_by_progress():
    clock, out = Clock(), console()
    with LiveLadder(out, clock=clock) as live:
        live.on_event({"event": "rung-start", "name": "naive", "sentence": "", "seconds_left": None})
        for _ in range(400):
            clock.now += 0.1
            live.on_event(progress("training"))
        assert 3 <= out.file.getvalue().count("training 50 %") <= 4
        live.on_event(progress("validating"))  # another stage is news at once
    assert "validating 50 %" in out.file.getvalue()


def test_final_prints_the_table_and_the_sentence():
    out = console(120)
    with LiveLadder(out, final=True) as live:
        climb(live, samples.full_ladder())
    tail = out.file.getvalue().splitlines()[-20:]
    assert any(line.startswith("mixed-precision  1,571") for line in tail)
    assert any(line.startswith("3.9× faster than naive") for line in tail)


def test_a_terminal_gets_a_table_with_progress_and_remaining_time():
    clock = Clock()
    live = LiveLadder(console(80, terminal=True), clock=clock)
    ladder = samples.full_ladder()
    live.on_event({"event": "ladder-start", "rungs": ["naive", "records"], "mode": "full", "dataset": "x"})
    live.on_event({"event": "rung-end", "row": ladder["rungs"][0]})
    live.on_event({"event": "rung-start", "name": "records", "sentence": "packed", "seconds_left": 90})
    live.on_event({**progress("measuring", seconds_left=8.0), "name": "records"})
    clock.now += 5
    shown = printed(live._render(), 80)
    assert ["naive", "402", "1.00×", "61.0", "%", "55", "%", "start"] in [line.split() for line in shown.splitlines()]
    assert "◀ measuring" in shown and "records: packed" in shown
    assert "5.0 s passed, about 1 min 25 s left" in shown  # it counts down between events
    assert "3.0 s to go" in shown
    clock.now += 500
    assert "nearly done" in printed(live._render(), 80)


def test_a_broken_off_climb_leaves_what_was_measured_on_the_terminal():
    out = console(80, terminal=True)
    ladder = samples.full_ladder()
    with pytest.raises(KeyboardInterrupt), LiveLadder(out) as live:
        live.on_event({"event": "ladder-start", "rungs": ["naive", "records"], "mode": "", "dataset": ""})
        live.on_event({"event": "rung-end", "row": ladder["rungs"][0]})
        raise KeyboardInterrupt
    last = out.file.getvalue().splitlines()[-4:]
    assert any(line.startswith("naive") and "402" in line for line in last)


def test_unknown_events_are_passed_over():
    with LiveLadder(console()) as live:
        live.on_event({"event": "coffee-break"})
        live.on_event({})
        assert live.console.file.getvalue() == ""


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_table_keeps_names_speed_and_verdict_at_every_width(width):
    text = printed(ladder_table(samples.full_ladder()), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "1,571" in text and "mixed-" in text and "▲ helped" in text
    assert ("(1.40–1.48)" in text or "1,524–1,618" in text) == (width >= 100)


def test_a_ladder_of_which_nothing_ran_is_a_table_too():
    text = printed(ladder_table(samples.failed_ladder()), 120)
    assert "✗ failed" in text and "TypeError: data() takes 0" in text


def test_hostile_names_neither_colour_nor_break_the_terminal():
    ladder = samples.hostile_ladder()
    out = console(120)
    with LiveLadder(out, final=True) as live:
        climb(live, ladder)
    text = out.file.getvalue() + printed(runs_table({HOSTILE: row_of(samples.run_result(), HOSTILE)}), 90)
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text
    assert "[red]b[/red]" in text  # shown, not obeyed
