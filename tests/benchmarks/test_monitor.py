"""The benchmark of the monitor: real processes where they are quick, given figures where they are not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks import monitoring, overhead, predicting, verdict_runs
from benchmarks.__main__ import main
from benchmarks.situations import SITUATIONS
from gluontune.core.errors import GluontuneError
from gluontune.monitor import StepPhases
from gluontune.monitor.verdicts import KINDS
from gluontune.recipe import Recipe

MLP = {"net": "mlp", "loader": "resident", "train_samples": 512, "val_samples": 128}


def test_there_is_a_situation_for_each_verdict_that_names_a_cause():
    assert set(SITUATIONS) | {"unknown"} == set(KINDS)


@pytest.mark.slow
@pytest.mark.process
def test_a_situation_runs_in_its_own_process_and_is_taken_up_again(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(verdict_runs, "_FOREIGN_PCT", 200.0)  # whatever else the machine does
    one = replace(SITUATIONS["thermally-throttled"], threads=1)  # more crowd another test
    monkeypatch.setitem(SITUATIONS, "thermally-throttled", one)
    out = tmp_path / "found.json"
    command = ["monitor", "--part", "verdicts", "--only", "thermally-throttled", "--out", str(out)]
    assert main([*command, "--rounds", "1", "--json"]) == 0
    first = json.loads(capfd.readouterr().out)
    assert first == json.loads(out.read_text())
    run = first["parts"]["verdicts"]["runs"][0]
    assert run["right"] and run["phases"]["steps_sampled"] >= 1
    assert main([*command, "--rounds", "2", "--resume"]) == 0
    shown = capfd.readouterr().out
    assert "2 of 2" in shown and "simulated" in shown
    again = json.loads(out.read_text())["parts"]["verdicts"]["runs"]
    assert [r["seed"] for r in again] == [0, 1] and again[0] == run


def test_a_wrong_verdict_is_counted_as_what_it_said():
    runs = [
        {"situation": "copy-bound", "seed": k, "right": k > 1, "verdict": {"kind": "copy-bound" if k > 1 else "x"}}
        for k in range(20)
    ]
    (row,) = verdict_runs.summarize(runs)
    assert (row["right"], row["runs"], row["instead"], row["holds"]) == (18, 20, {"x": 2}, False)
    assert verdict_runs.summarize(runs[2:])[0]["holds"]
    for run in runs[:2]:
        run["foreign_pct"] = 40.0  # others were busy: no matter what it said, it does not count
    (row,) = verdict_runs.summarize(runs)
    assert (row["right"], row["runs"], row["disturbed"], row["holds"]) == (18, 18, 2, True)


@pytest.mark.process
def test_cost_and_phases_of_a_real_training():
    threads = {"one thread": {"OMP_NUM_THREADS": "1"}}
    (row,) = overhead.slowdown("sample", 4, training=MLP, threads=threads, slice_s=0.2)  # less counts no CPU time
    assert row["pairs"] == 4 and row["ratio"]["n"] == 4
    assert row["step_time_ms"]["on"]["median"] > 0 and row["cpu_ms_per_step"]["off"] >= 0
    (row,) = overhead.attribution("sample", 0.3, recipes={"small": MLP})
    assert abs(row["sum_vs_wall_pct"]) < 20 and row["steps"] >= 40
    assert sum(row["phases_pct"].values()) == pytest.approx(100)


def test_phases_that_are_switched_off_wait_and_count_nothing():
    waits = []
    phases = StepPhases(sync=lambda: waits.append(1), every=1, skip=0)

    def step():
        with phases.step() as phase, phase("forward"):
            pass

    phases.enable(False)
    for _ in range(5):
        step()
    assert waits == [] and phases.report()["steps_sampled"] == 0
    phases.wait()
    assert len(waits) == 1
    phases.enable()
    step()
    assert phases.report()["steps_sampled"] == 1


def test_what_the_waits_cost_is_counted_for_both_ends_of_a_sample():
    report = {"step_time_ms": {"sampled": 12.0, "unsampled": 10.0}, "steps_sampled": 1, "steps_unsampled": 99}
    assert overhead._waits_pct(report) == pytest.approx(100 * 2 * 2.0 / 1000.0)
    faster = {**report, "step_time_ms": {"sampled": 9.0, "unsampled": 10.0}}
    assert overhead._waits_pct(faster) == 0


class FakeGroup:
    """Loaders and nets of given rates, which share the cores as the prediction supposes, and 10 % slower."""

    def __init__(self, recipe: Recipe, **_):
        self.recipe = recipe

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def pause(self):
        pass

    resume = pause

    def loading_alone(self, seconds):
        return {"samples_per_sec": {"gluon": 500.0, "threaded": 5000.0, "resident": 1e5}[self.recipe.loader]}

    def training_alone(self, sizes, seconds):
        return {str(size): {"step_time_ms": 5.0 + size} for size in sizes}

    def steps(self, count):
        batch, workers = self.recipe.batch_size_per_device, self.recipe.num_workers
        loading = batch / self.loading_alone(0)["samples_per_sec"] / max(1, workers)
        seconds = count * ((5.0 + batch) / 1e3 + loading) * 1.1
        return {"samples": count * batch, "seconds": seconds, "loss": 1.0, "count": count}


def test_predictions_are_compared_over_workers_batches_and_loaders(monkeypatch, tmp_path):
    monkeypatch.setattr(predicting, "Group", FakeGroup)
    monkeypatch.setattr(predicting, "_simulated", lambda seconds, say: [])
    monkeypatch.setattr(predicting.runtime, "usable_cores", lambda: 2)
    found = monitoring.run(parts=["whatif"], out=tmp_path / "w.json")
    part = found["parts"]["whatif"]
    assert part["summary"]["comparisons"] == len(part["rows"]) >= 12
    assert len({row["name"] for row in part["rows"]}) == len(part["rows"])
    assert part["holds"] and part["summary"]["median_error_pct"] == pytest.approx(10, abs=2)
    console = Console(width=140, record=True, file=None)
    with console.capture() as shown:
        monitoring.show(found, console)
    assert "resident" in shown.get() and "holds: median error pct" in shown.get()


def test_a_simulated_device_is_fed_as_predicted():
    for workers in (0, 1):
        assert 0 < predicting._feed(workers, 20.0, 0.3) <= 64 / 0.020 * 1.05


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--part", "speed"], "--part 'speed': choose from slowdown"),
        (["--only", "cosmic-rays"], "--only 'cosmic-rays': choose from"),
        (["--resume", "--part", "whatif"], "--out FILE"),
    ],
)
def test_wrong_requests_are_told_in_a_line(arguments, words, capfd):
    assert main(["monitor", *arguments]) == 2
    err = capfd.readouterr().err
    assert words in err and "Traceback" not in err


def test_a_file_that_cannot_be_resumed_is_named(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(GluontuneError, match=r"x\.json: cannot be resumed"):
        monitoring.run(parts=["verdicts"], out=tmp_path / "x.json", resume=True)
