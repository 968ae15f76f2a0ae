"""Reading results, and comparing them with a baseline."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path

import pytest
import report_samples as samples
from rich.console import Console

from gluontune.errors import GluontuneError, UsageError
from gluontune.files import write_json
from gluontune.report import Source, check_ladder, collect, compare, comparison_table, load

run_result, measure = samples.run_result, samples.measure


def source(name: str, place: int = 0, **changes) -> Source:
    return Source(Path(f"{name}.json"), name, run=run_result(place, **changes))


def against_base(**changes):
    return compare([source("base"), source("new", **changes)])[0]


def test_a_slower_run_beyond_the_threshold_has_regressed():
    found = against_base(samples_per_sec=measure(350))
    assert found.regressions == ["12.9 % slower (limit: 5 %)"]
    assert found.speed_ratio["median"] == pytest.approx(350 / 402)
    low, high = found.speed_ratio["ci95"]
    assert low == pytest.approx(350 / 402 * 0.9585, rel=2e-3) and high == pytest.approx(350 / 402 * 1.0434, rel=2e-3)


def test_a_loss_within_the_threshold_or_within_the_noise_is_no_regression():
    assert against_base(samples_per_sec=measure(390)).regressions == []
    noisy = against_base(samples_per_sec={"median": 350, "ci95": [250, 450], "n": 3})
    assert noisy.regressions == [] and "the interval reaches 1" in noisy.remarks[0]
    pair = [source("base"), source("new", samples_per_sec=measure(350))]
    assert compare(pair, threshold_pct=20)[0].regressions == []


def test_a_single_measurement_without_interval_is_judged_by_its_value():
    found = against_base(samples_per_sec={"median": 300, "n": 1})
    assert found.speed_ratio["ci95"] is None and found.regressions


def test_accuracy_is_judged_at_equal_epochs():
    assert against_base(val_accuracy=[0.4, 0.5, 0.58]).regressions == [
        "accuracy is 3.0 points lower at equal epochs (limit: 2)"
    ]
    assert against_base(val_accuracy=[0.4, 0.5, 0.595]).regressions == []
    short = against_base(val_accuracy=[0.4])
    assert short.regressions == [] and "1 epochs stands against 3" in short.remarks[0]


def test_a_failed_run_has_regressed():
    error = {"type": "MXNetError", "message": "out of memory", "phase": "train"}
    found = against_base(status="failed", error=error, samples_per_sec=None)
    assert found.regressions == ["it failed: MXNetError: out of memory"]


def test_what_differs_in_recipe_and_machine_is_told():
    machine = copy.deepcopy(samples.MACHINE)
    machine["memory_mib"] = 512
    found = compare([source("base"), source("new", 5, machine=machine)])[0]
    assert found.recipe["dtype"] == ["float32", "bfloat16"] and found.machine == {"memory_mib": [24064, 512]}
    assert "the machines differ" in found.remarks[0] and found.regressions == []
    out = Console(file=io.StringIO(), width=100)
    out.print(comparison_table([found]))
    shown = out.file.getvalue()
    assert "3.9×" in shown and "recipe dtype: float32 → bfloat16" in shown and "machine memory_mib" in shown


def test_a_ladder_stands_for_its_best_rung():
    ladder = Source(Path("ladder.json"), "l", ladder=check_ladder(samples.full_ladder()))
    found = compare([source("base"), ladder])[0]
    assert found.name == "l (mixed-precision)" and found.speed_ratio["median"] == pytest.approx(1571 / 402)
    broken = Source(Path("b.json"), "b", ladder=check_ladder(samples.failed_ladder()))
    with pytest.raises(UsageError, match=r"b\.json: this ladder has no best rung"):
        compare([ladder, broken])


def test_different_data_are_not_compared():
    other = source("other")
    other.run.recipe = {**other.run.recipe, "dataset": "sample"}
    with pytest.raises(UsageError, match=r"other\.json trained on sample but base\.json on cifar10"):
        compare([source("base"), other])


@pytest.mark.parametrize(("count", "threshold", "told"), [(1, 5, "two or more"), (2, -1, "-1"), (2, 100, "100")])
def test_contradictory_requests_are_refused(count, threshold, told):
    with pytest.raises(UsageError, match=told):
        compare([source(f"r{n}") for n in range(count)], threshold)


def test_a_folder_gives_its_ladder_or_else_its_runs(tmp_path):
    run_result().save(tmp_path / "runs" / "b.json")
    run_result().save(tmp_path / "runs" / "a" / "b.json")
    (tmp_path / "runs" / "cut.json").write_text('{"schema_version": 1,')
    (tmp_path / "runs" / "other.json").write_text("[1, 2]")
    (tmp_path / "runs" / ".hidden").mkdir()
    run_result().save(tmp_path / "runs" / ".hidden" / "c.json")
    found = collect([tmp_path])
    assert [s.label for s in found.sources] == ["a/b", "runs/b"]
    assert [Path(entry["path"]).name for entry in found.left_out] == ["cut.json", "other.json"]
    assert "was its writing cut off" in found.left_out[0]["reason"]
    write_json(tmp_path / "ladder.json", samples.full_ladder())
    found = collect([tmp_path])  # the runs below belong to the ladder
    assert [s.label for s in found.sources] == ["ladder"] and found.left_out == []


def test_an_empty_folder_and_a_missing_file_are_errors(tmp_path):
    with pytest.raises(UsageError, match=r"no RunResult and no ladder\.json"):
        collect([tmp_path])
    with pytest.raises(GluontuneError, match=r"gone\.json: no such file"):
        collect([tmp_path / "gone.json"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema_version": 1, "rungs": [', "cut off"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"schema_version": 99, "recipe": {}}', "schema_version 99"),
        ('{"schema_version": 99, "rungs": []}', "schema_version 99"),
        ('{"recipe": {}}', "neither a RunResult nor a ladder"),
        ("[]", "neither a RunResult nor a ladder"),
        ("null", "neither a RunResult nor a ladder"),
        ('{"schema_version": 1, "recipe": {}, "phases_pct": [1]}', "phases_pct: expected a mapping, not list"),
        ('{"schema_version": 1, "recipe": {}, "error": "oops"}', "error: expected a mapping, not str"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path, text, told):
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GluontuneError) as caught:
        load(path)
    message = str(caught.value)
    assert "bad.json" in message and told in message and message.count("\n") <= 1


def test_not_a_number_in_a_file_is_no_value(tmp_path):
    path = tmp_path / "run.json"
    document = {**run_result().to_dict(), "train_loss": [float("nan")], "peak_rss_mib": float("inf")}
    path.write_text(json.dumps(document))
    run = load(path).run
    assert run.train_loss == [None] and run.peak_rss_mib is None
