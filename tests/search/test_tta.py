"""Time to accuracy: crossings, statistics with failures, resume, cost, parity, exchange formats, one real run."""

from __future__ import annotations

import json
import math

import pytest
from tta_fakes import pretend

from gluontune import report
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe import Recipe
from gluontune.report.tta import finish_tta
from gluontune.search import study, time_to_target, tta as tta
from gluontune.search.study import Part
from gluontune.search.time_to_target import parity, summarize


@pytest.fixture
def machine(monkeypatch):
    return pretend(monkeypatch)


def test_counted_time_leaves_start_and_validation_out_and_the_total_has_them(machine):
    found = tta.time_to_accuracy(Recipe(seed=2), target=0.8, repeats=1)
    row = found["done"][0]
    assert row["first"]["epoch"] == 2 and row["first"]["train_seconds"] == 24.0
    assert row["first"]["wall_seconds"] == 5.0 + 2 * (12.0 + 1.0) and row["first"]["eval_seconds"] == 2.0
    assert (row["start_seconds"], row["warmup_seconds"]) == (3.0, 2.0)


def test_a_crossing_that_falls_back_is_first_but_not_sustained(machine):
    machine.curve = lambda recipe: [0.85, 0.7, 0.82, 0.83]
    row = tta.time_to_accuracy(Recipe(), target=0.8, repeats=1)["done"][0]
    assert row["first"]["epoch"] == 1 and row["sustained"]["epoch"] == 3
    machine.curve = lambda recipe: [0.85, 0.7]
    row = tta.time_to_accuracy(Recipe(), target=0.8, repeats=1)["done"][0]
    assert row["status"] == "reached" and row["sustained"] is None


def test_a_schedule_that_ends_within_an_epoch_took_no_whole_one(machine):
    machine.curve = lambda recipe: [0.5, 0.7, 0.8]
    found = tta.time_to_accuracy(Recipe(epochs=2.5), target=0.8, repeats=2, against=Recipe(epochs=3, num_workers=1))
    first = found["done"][0]["first"]
    assert (first["epoch"], first["epochs"]) == (3, 2.5) and found["summary"]["this"]["epochs"] == [2.5, 2.5]
    assert found["parity"]["epochs_ratio"] == pytest.approx(2.5 / 3)


def test_stop_at_target_ends_the_run_and_claims_no_sustained_crossing(machine):
    row = tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, stop_at_target=True)["done"][0]
    assert row["val_accuracy"] == [0.5, 0.8] and row["sustained"] is None
    assert machine.ran[0].target_accuracy == 0.8


def test_statistics_of_repeats_by_hand(machine):
    found = tta.time_to_accuracy(Recipe(), target=0.9, repeats=3)["summary"]["this"]["train_seconds"]
    times = [30.0, 33.0, 36.0]
    deviation = math.sqrt(sum((t - 33) ** 2 for t in times) / 2)
    assert found["mean"] == pytest.approx(33.0) and found["median"] == 33.0 and found["failed"] == 0
    assert found["cv_pct"] == pytest.approx(100 * deviation / 33)
    reach = 4.302653 * deviation / math.sqrt(3) / 33  # t(0.975, 2)
    assert found["mean_ci95"] == pytest.approx([33 * math.exp(-reach), 33 * math.exp(reach)], rel=1e-5)


def test_two_repeats_have_no_interval_and_three_none_below_zero(machine):
    machine.epoch_s = lambda recipe: 10.0 * (1 + recipe.seed)
    found = tta.time_to_accuracy(Recipe(loader="resident"), target=0.8, repeats=2, against=Recipe())
    times = found["summary"]["this"]["train_seconds"]
    assert times["ci95"] is None and times["mean_ci95"] is None and times["cv_pct"] > 0
    assert found["ratio"]["train_seconds"]["ci95"] is None
    assert "95 %" not in "".join(report.tta_lines(found))
    wild = summarize([1.0, 2.0, 60.0])
    assert wild["mean_ci95"][0] > 0 and wild["ci95"][0] > 0


def test_failures_are_counted_and_enter_the_expected_time(machine):
    machine.crash = lambda recipe: recipe.seed == 1
    machine.curve = lambda recipe: [0.5, 0.6] if recipe.seed == 2 else [0.5, 0.9]
    found = tta.time_to_accuracy(Recipe(), target=0.9, repeats=3)
    assert [r["status"] for r in found["done"]] == ["reached", "crashed", "not reached"]
    assert "loss is nan" in found["done"][1]["reason"] and "60.0 %" in found["done"][2]["reason"]
    summary = found["summary"]["this"]
    assert (summary["crashed"], summary["not_reached"]) == (1, 1)
    times = summary["train_seconds"]
    assert (times["reached"], times["failed"], times["median"], times["cv_pct"]) == (1, 2, 20.0, None)
    assert times["median_of_all"] is None  # more than half never got there
    assert times["expected_seconds"] == 20.0 + 0.0 + 24.0
    lines = " ".join(report.tta_lines(found))
    assert "1 of 3 reached the target; 1 did not; 1 crashed" in lines


def test_the_median_of_all_counts_a_failure_as_longer_than_any_time():
    assert summarize([1.0, 2.0, 3.0], [9.0])["median_of_all"] == 2.5
    assert summarize([1.0, 2.0], [9.0])["median_of_all"] == 2.0


def test_two_recipes_take_turns_and_their_ratio_is_made_within_each_repeat(machine):
    machine.epoch_s = lambda recipe: (40.0 if recipe.loader == "gluon" else 10.0) * (1 + recipe.seed)
    found = tta.time_to_accuracy(Recipe(loader="resident"), target=0.8, repeats=3, against=Recipe())
    order = [(r.seed, r.loader) for r in machine.ran]
    fast, slow = "resident", "gluon"
    assert order == [(0, fast), (0, slow), (1, slow), (1, fast), (2, fast), (2, slow)]
    assert found["ratio"]["train_seconds"]["median"] == pytest.approx(4.0)
    assert found["ratio"]["train_seconds"]["ci95"] == pytest.approx([4.0, 4.0])
    assert found["parity"]["verdict"] == "as the reference"
    assert "4.0×" in report.tta_lines(found)[2]


def test_a_pair_with_a_failure_has_no_ratio_and_is_counted(machine):
    machine.crash = lambda recipe: recipe.seed == 1 and recipe.loader == "gluon"
    found = tta.time_to_accuracy(Recipe(loader="resident"), target=0.8, repeats=3, against=Recipe())
    assert (found["ratio"]["pairs"], found["ratio"]["pairs_without_a_time"]) == (3, 1)
    assert found["ratio"]["train_seconds"]["n"] == 2


def test_an_interrupt_keeps_finished_repeats_and_resume_does_the_rest(machine, tmp_path):
    machine.stop_before = lambda recipe: recipe.seed == 2
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=4, out=tmp_path)
    assert not found["complete"] and [r["seed"] for r in found["done"]] == [0, 1]
    machine.stop_before = lambda recipe: False
    machine.ran.clear()
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=5, out=tmp_path, resume=True)
    assert found["complete"] and [r.seed for r in machine.ran] == [2, 3, 4]
    assert found == json.loads((tmp_path / "tta.json").read_text())
    assert len(list((tmp_path / "runs").iterdir())) == 5


def test_the_parts_of_an_array_become_one_document_without_a_lost_row(machine, tmp_path):
    def part(number, **options):
        return tta.time_to_accuracy(
            Recipe(), target=0.8, repeats=12, out=tmp_path / "shared", part=Part(number, 12), resume=True, **options
        )

    whole = tta.time_to_accuracy(Recipe(), target=0.8, repeats=12, out=tmp_path / "alone")
    machine.ran.clear()
    machine.stop_before = lambda recipe: recipe.seed == 7  # preempted, and never queued again
    for number in (11, 10, 3, 2, 1, 0, 4, 5, 6, 7, 8, 9, 3):  # one that is started twice
        part(number)
    machine.stop_before = lambda recipe: False
    assert sorted(r.seed for r in machine.ran) == [k for k in range(12) if k != 7]
    machine.ran.clear()
    merged = tta.time_to_accuracy(Recipe(), target=0.8, repeats=12, out=tmp_path / "shared", resume=True)
    assert merged["complete"] and [r.seed for r in machine.ran] == [7]  # what was lost is trained

    def known(document):
        rows = [(r["seed"], r["recipe"], r["val_accuracy"], r["first"]["train_seconds"]) for r in document["done"]]
        return sorted(rows), document["summary"]["this"]["train_seconds"]

    assert known(merged) == known(whole) and "notes" not in merged
    machine.ran.clear()
    again = tta.time_to_accuracy(Recipe(), target=0.8, repeats=12, out=tmp_path / "shared", resume=True)
    assert not machine.ran and again["done"] == merged["done"]


def test_a_part_keeps_both_recipes_of_a_repeat_and_another_machine_is_noted(machine, tmp_path):
    options = {"target": 0.8, "repeats": 3, "against": Recipe(), "out": tmp_path}
    found = tta.time_to_accuracy(Recipe(loader="resident"), part=Part(1, 3), **options)
    assert [(r["seed"], r["recipe"]) for r in found["done"]] == [(1, "against"), (1, "this")]
    path = tmp_path / "parts" / "1" / "tta.json"
    path.write_text(json.dumps({**found, "machine": {**found["machine"], "architecture": "riscv64"}}))
    merged = tta.time_to_accuracy(Recipe(loader="resident"), resume=True, **options)
    assert merged["ratio"]["pairs"] == 3 and "another machine (architecture: then 'riscv64'" in merged["notes"][0]
    with pytest.raises(UsageError, match=r"parts/1/tta.json: was begun with other options \(target: then 0.8"):
        tta.time_to_accuracy(Recipe(loader="resident"), resume=True, **{**options, "target": 0.7, "out": _moved(path)})


def _moved(path):
    """A folder with this part alone."""
    (path.parents[2] / "tta.json").unlink()
    return path.parents[2]


@pytest.mark.parametrize("text", ["3", "12/12", "-1/3", "a/b", "1/0"])
def test_a_part_is_one_of_all(text, capfd, tmp_path):
    assert main(["tta", "--target", "0.5", "--part", text, "--out", str(tmp_path)]) == 2
    assert f"--part '{text}': give the number of a task and of all" in " ".join(capfd.readouterr().err.split())


def test_resume_refuses_other_options_and_other_documents(machine, tmp_path):
    tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, out=tmp_path, resume=True)  # there is none yet: it begins
    with pytest.raises(UsageError, match=r"target: then 0\.8, now 0\.7"):
        tta.time_to_accuracy(Recipe(), target=0.7, repeats=1, out=tmp_path, resume=True)
    document = json.loads((tmp_path / "tta.json").read_text())
    (tmp_path / "tta.json").write_text(json.dumps({**document, "schema_version": 99}))
    with pytest.raises(GluontuneError, match="schema_version 99"):
        tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 80}, "above 0 and up to 1"),
        ({"target": 0.8, "repeats": 0}, "at least 1"),
        ({"target": 0.8, "seeds": [1, 1]}, "different seeds"),
        ({"target": 0.8, "against": Recipe(val_samples=100)}, "different data"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(machine, options, message):
    with pytest.raises(GluontuneError, match=message):
        tta.time_to_accuracy(Recipe(), **options)
    assert machine.ran == []


def test_the_page_shows_band_repeats_cost_and_every_failure(machine, tmp_path):
    machine.crash = lambda recipe: recipe.seed == 1
    price = {"machine": "m1", "usd_per_hour": 3.6, "date": "2026-01-31", "source": "list price"}
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=3, out=tmp_path, price=price, against=Recipe())
    assert found["summary"]["this"]["usd"] == pytest.approx(found["summary"]["this"]["wall_seconds"]["median"] / 1000)
    finish_tta(found, tmp_path)
    page = (tmp_path / "tta.html").read_text()
    assert page.count("<svg") == 3 and "http" not in page.split("<script")[0].replace("http-equiv", "")
    assert "the loss is nan" in page and "2026-01-31" in page and "Not counted:" in page
    with pytest.raises(GluontuneError, match="not a finished document"):
        (tmp_path / "tta.json").write_text("{}")
        report.load_tta(tmp_path)


def test_mlperf_lines_have_what_the_published_rules_ask_for(machine, tmp_path):
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, out=tmp_path)
    study.write_submissions(found, tmp_path, author="some one")
    lines = (tmp_path / "mlperf" / "this_seed0.log").read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    events = [json.loads(line[len(":::MLLOG ") :]) for line in lines]
    keys = [event["key"] for event in events]
    once = ("init_stop", "run_start", "run_stop", "train_samples", "eval_samples", "submission_org",
            "submission_division", "submission_benchmark", "submission_platform", "submission_status")  # fmt: skip
    assert [keys.count(key) for key in once] == [1] * len(once) and "cache_clear" in keys
    assert keys.index("init_start") < keys.index("init_stop") < keys.index("run_start") < keys.index("epoch_start")
    assert keys[-1] == "run_stop" and events[-1]["metadata"]["status"] == "success"
    assert keys.count("eval_accuracy") == 2  # it ends with the epoch that reached the target
    assert all("epoch_num" in e["metadata"] for e in events if e["key"].startswith(("epoch_", "eval_st", "eval_acc")))
    times = [event["time_ms"] for event in events]
    assert times == sorted(times) and times[-1] - times[keys.index("run_start")] == 22_000
    assert next(e["value"] for e in events if e["key"] == "train_samples") == 10_000


@pytest.mark.parametrize("curve", [[0.5, 0.8, 0.9], [0.5, 0.6]])
def test_the_published_checker_accepts_the_mlperf_lines(machine, tmp_path, curve):
    from mlperf_logging.compliance_checker import mlp_compliance

    def accepted(path):
        checker = mlp_compliance.make_checker("training", "4.0.0", quiet=True, werror=True)
        return mlp_compliance.main(str(path), "training_4.0.0/common.yaml", checker)[0]

    machine.curve = lambda recipe: curve
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, out=tmp_path)
    study.write_submissions(found, tmp_path, author="some one")
    log = tmp_path / "mlperf" / "this_seed0.log"
    assert accepted(log)
    kept = [line for line in log.read_text().splitlines() if '"submission_org"' not in line]
    log.write_text("\n".join(kept) + "\n")
    assert not accepted(log)  # the checker does see what is missing


def test_dawnbench_files_are_those_of_the_median_repeat(machine, tmp_path):
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=3, out=tmp_path)
    study.write_submissions(found, tmp_path, author="some one")
    entry = next((tmp_path / "dawnbench").glob("*gluontune.json"))
    values = json.loads(entry.read_text())
    assert {"version", "author", "framework", "model", "hardware", "timestamp"} <= set(values)
    assert "costPerHour" not in values
    rows = [line.split("\t") for line in entry.with_suffix(".tsv").read_text().splitlines()]
    assert rows[0] == ["epoch", "hours", "top1Accuracy"] and len(rows) == 4
    assert float(rows[2][1]) == pytest.approx(22 / 3600) and float(rows[2][2]) == 80.0


@pytest.mark.parametrize(
    ("text", "machine_name", "message"),
    [
        ("prices: [{machine: m, usd_per_hour: 1, source: s}]", None, r"price 1 \(m\): the field date is missing"),
        ("prices: [{usd_per_hour: 1}]", None, "the fields machine, date, source are missing"),
        ("prices: [{machine: m, usd_per_hour: free, date: 2026-01-01, source: s}]", None, "usd_per_hour='free'"),
        ("prices: [{machine: m, usd_per_hour: 1, date: soon, source: s}]", None, "date='soon'"),
        ("price: 3", None, "a list of prices"),
        ("prices: [{machine: big, usd_per_hour: 1, date: 2026-01-01, source: s}]", "bigg", "did you mean 'big'"),
    ],
)
def test_a_price_table_with_a_fault_is_told_with_its_place(tmp_path, text, machine_name, message):
    table = tmp_path / "prices.yaml"
    table.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        time_to_target.read_price(table, machine_name)
    assert str(caught.value).startswith(str(table))


def test_energy_of_the_packages_adds_up_over_a_wrapped_counter(tmp_path):
    zone = tmp_path / "intel-rapl:0"
    (zone / "intel-rapl:0:0").mkdir(parents=True)  # a part of the package: not to be counted twice
    (zone / "max_energy_range_uj").write_text("10000000")
    (zone / "energy_uj").write_text("9000000")
    meter = time_to_target.PackageEnergy(tmp_path)
    (zone / "energy_uj").write_text("1000000")
    assert meter.joules() == pytest.approx(2.0)
    (zone / "energy_uj").write_text("4000000")
    assert meter.joules() == pytest.approx(5.0)


def test_parity_marks_what_converges_too_well_and_what_fails():
    assert parity([4, 4, 4], [8, 8, 8])["suspicious"]
    assert parity([11, 12, 12], [8, 9, 8])["verdict"] == "converges slower"
    assert parity([8, 8], [8, 8], accuracy=[0.9], reference_accuracy=[0.95])["verdict"] == "less accurate"
    assert parity([8, None, None], [8, 8, 8])["verdict"] == "fails more often"
    assert parity([8], [8, 8])["verdict"] == "too few repeats"


def test_the_command_for_real(tmp_path, capfd):
    small = ["--net", "mlp", "--loader", "resident", "--train-samples", "640", "--val-samples", "200"]
    out = tmp_path / "out"
    code = main(["tta", "--target", "0.2", "--repeats", "1", *small, "--epochs", "2", "--out", str(out), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert code == 0 and found["summary"]["this"]["train_seconds"]["reached"] == 1
    row = found["done"][0]
    assert 0 < row["first"]["train_seconds"] < row["first"]["wall_seconds"] <= row["spent"]["wall_seconds"]
    assert row["start_seconds"] > row["warmup_seconds"] > 0 and row["first"]["eval_seconds"] > 0
    parts = row["start_seconds"] + row["warmup_seconds"] + row["first"]["train_seconds"] + row["first"]["eval_seconds"]
    assert parts <= row["first"]["wall_seconds"] * 1.001
    assert (out / "tta.html").exists() and list((out / "mlperf").glob("*.log"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "1.5"], "--target 1.5"),
        (["--target", "0.5", "--seeds", "a,b"], "--seeds 'a,b'"),
        (["--target", "0.5", "--machine", "m"], "give --prices"),
        ([], "such as --target 0.8"),
        (["--recipe", "dekc"], "gluontune's own are cifar10-80, dawnbench-94, deck"),
    ],
)
def test_wrong_usage_of_the_command(tmp_path, capfd, arguments, message):
    assert main(["tta", *arguments, "--out", str(tmp_path / "out")]) in (1, 2)
    assert message in capfd.readouterr().err


def test_results_of_other_data_or_targets_are_not_shown_beside(machine, tmp_path, capfd):
    tta.time_to_accuracy(Recipe(), target=0.8, repeats=1, out=tmp_path / "other")
    common = ["--repeats", "1", "--out", str(tmp_path / "out"), "--beside", str(tmp_path / "other")]
    assert main(["tta", "--target", "0.7", *common]) == 2
    assert "its target is 0.8, this one's 0.7" in capfd.readouterr().err
    assert main(["tta", "--target", "0.8", "--dataset", "cifar10", *common]) == 2
    assert "its data set is sample" in capfd.readouterr().err
    assert main(["tta", "--target", "0.8", *common]) == 0 and (tmp_path / "out" / "tta.html").exists()
    document = json.loads((tmp_path / "other" / "tta.json").read_text())
    (tmp_path / "other" / "tta.json").write_text(json.dumps({**document, "schema_version": 9}))
    assert main(["tta", "--target", "0.8", *common]) == 1
    assert "schema_version 9" in capfd.readouterr().err
