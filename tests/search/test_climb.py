"""The climb's logic on contenders whose figures are given: verdicts, gate, failures, interrupt, resume."""

from __future__ import annotations

import io
import json
import random
import re
from dataclasses import replace

import pytest
from rich.console import Console

from gluontune import ladder, report
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.recipe import Recipe
from gluontune.search.rung import Site
from gluontune.search.rungs import RUNGS
from gluontune.search.sequential import LOOKS
from gluontune.train import RunFailed

NAMES = [  # one by one; tests/search/test_together.py has the climb that begins with the best guess
    "naive",
    "environment",
    "multi-worker",
    "records",
    "hybridized",
    "mixed-precision",
    "large-batch",
    "multi-device",
    "modern-engine",
]


def rows(document):
    return {row["name"]: row for row in document["rungs"]}


def test_the_rungs_are_those_of_the_design():
    assert RUNGS.names() == ["naive", "together", *NAMES[1:], "methods"]


def test_a_whole_climb(machine, tmp_path):
    events = []
    found = ladder.climb(Recipe(), rungs=NAMES, out=tmp_path, on_event=events.append)
    by_name = rows(found)
    assert list(by_name) == NAMES
    verdicts = {name: row["verdict"] for name, row in by_name.items()}
    assert verdicts == {
        "naive": "n/a",
        "environment": "helped",
        "multi-worker": "no gain",
        "records": "helped",
        "hybridized": "helped",
        "mixed-precision": "helped",
        "large-batch": "helped",
        "multi-device": "hurt",
        "modern-engine": "n/a",
    }
    assert {name for name, row in by_name.items() if row["status"] != "ran"} == {"modern-engine"}
    chosen = next(v for v in by_name["hybridized"]["variants"] if v["chosen"])
    assert chosen["changes"] == {"hybridize": "static", "rewrites": ["pool-to-mean"]}
    assert by_name["records"]["changes"]["loader"] == "resident"
    assert found["best"]["name"] == "large-batch"
    assert found["best"]["speedup_vs_naive"] == pytest.approx(2.0 * 1.5 * 1.2 * 1.6 * 1.1, rel=0.05)
    assert found["complete"]
    assert json.loads((tmp_path / "ladder.json").read_text()) == found
    # The environment and the workers change no sum; they are trained again only where time abounds.
    assert {p.stem for p in (tmp_path / "runs").iterdir()} == set(NAMES) - {
        "environment",
        "multi-worker",
        "modern-engine",
    }
    assert [e["event"] for e in events if e["event"] != "progress"] == [
        "ladder-start",
        *["rung-start", "rung-end"] * len(NAMES),
        "ladder-end",
    ]


def test_a_rung_that_was_measured_beside_other_programs_says_so(machine, tmp_path):
    machine.others_pct = 9.9
    told = [n for row in ladder.climb(Recipe(), rungs=["environment"])["rungs"] for n in row["notes"]]
    assert not any("other programs" in note for note in told)
    machine.others_pct = 37.4
    found = ladder.climb(Recipe(), rungs=["environment"])
    naive, environment = found["rungs"]
    assert naive["notes"][0].startswith("other programs took 37 % of the cores")
    assert naive["notes"][0] == environment["notes"][0]
    told = io.StringIO()
    Console(file=told, width=200).print(report.ladder_table(found))
    assert told.getvalue().count("other programs took 37 % of the cores") == 2
    report.write_ladder_html(found, tmp_path / "ladder.html")
    page = (tmp_path / "ladder.html").read_text(encoding="utf-8")
    assert (
        len(re.findall('<td colspan="[0-9]">other programs took 37 % of the cores', page)) == 2
    )  # below the rung's own row


def slices(document, name):
    return rows(document)[name]["samples_per_sec"]["n"]


def test_noise_that_hides_a_gain_is_met_with_more_rounds(machine):
    noise = random.Random(5)
    machine.noise = lambda tick: noise.lognormvariate(0, 0.2)
    machine.rate = lambda r: 140.0 if r.runtime == "tuned" else 100.0
    row = rows(ladder.climb(Recipe(), rungs=["environment"]))["environment"]
    assert row["samples_per_sec"]["n"] > LOOKS[2] and row["verdict"] == "helped" and row["kept"]


def test_a_clear_contest_ends_early(machine):
    noise = random.Random(0)
    machine.noise = lambda tick: noise.lognormvariate(0, 0.05)
    machine.rate = lambda r: 400.0 if r.runtime == "tuned" else 100.0
    found = ladder.climb(Recipe(), rungs=["environment"])
    assert slices(found, "environment") == 2 * LOOKS[0] and rows(found)["environment"]["kept"]
    machine.noise = lambda tick: 1 + 0.01 * (tick % 3 - 1)
    machine.rate = lambda r: 100.0  # noise of 1 %: five per cent are ruled out
    found = ladder.climb(Recipe(), rungs=["environment"])
    assert slices(found, "environment") <= LOOKS[1] and rows(found)["environment"]["verdict"] == "no gain"


def test_a_contest_that_never_becomes_clear_ends_and_is_not_called_no_gain(machine):
    noise = random.Random(4)
    machine.noise = lambda tick: noise.lognormvariate(0, 0.9)
    machine.rate = lambda r: 100.0
    found = ladder.climb(Recipe(), rungs=["environment"])
    row = rows(found)["environment"]
    assert slices(found, "environment") == LOOKS[-1]
    assert (row["verdict"], row["kept"], row["measurable"]) == ("n/a", False, False)
    assert "36 slices do not tell" in row["reason"]
    assert report.ladder_sentence(found).startswith("no gain could be proven on this")


def test_beside_other_programs_nothing_is_called_hurt_that_may_not_be(machine):
    machine.others_pct = 50.0
    machine.rate = lambda r: 80.0 if r.runtime == "tuned" else 100.0
    row = rows(ladder.climb(Recipe(), rungs=["environment"]))["environment"]
    assert (row["verdict"], row["kept"]) == ("n/a", False)
    assert row["reason"].startswith("not measurable here now: other programs took 50 %")
    machine.rate = lambda r: 30.0 if r.runtime == "tuned" else 100.0
    row = rows(ladder.climb(Recipe(), rungs=["environment"]))["environment"]
    assert row["verdict"] == "n/a"  # seen: threads that spin on a core that another program has, 0.3 times as fast
    machine.rate = lambda r: 30.0 if r.hybridize != "imperative" else 100.0
    row = rows(ladder.climb(Recipe(), rungs=["hybridized"]))["hybridized"]
    assert row["verdict"] == "hurt"  # no load explains a third of the speed there
    machine.others_pct = 0.0
    machine.rate = lambda r: 80.0 if r.runtime == "tuned" else 100.0
    assert rows(ladder.climb(Recipe(), rungs=["environment"]))["environment"]["verdict"] == "hurt"


def test_a_hopeless_variant_is_cut_off_while_it_warms_up(machine):
    usual = machine.rate
    machine.rate = lambda r: 5.0 if r.dtype == "bfloat16" else usual(r)
    row = rows(ladder.climb(Recipe(), rungs=["mixed-precision"]))["mixed-precision"]
    first = row["variants"][0]
    assert first["samples_per_sec"]["n"] == 1 and first["reason"].startswith("cut off while warming up at 5")
    assert "0.05 × the best" in first["reason"] and row["verdict"] == "hurt"


class Clock:
    """Seconds that pass when the pretended machine works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("slow", [1.0, 4.0, 30.0])
def test_a_climb_ends_within_its_budget_on_any_machine(machine, slow):
    clock = Clock()
    machine.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    steps, starts = machine.group.steps, machine.group.wait

    def timed_steps(self, count):
        seen = steps(self, count)
        clock.now += slow * seen["seconds"]
        return {**seen, "seconds": slow * seen["seconds"]}

    def timed_start(self):
        starts(self)
        clock.now += 1.5 * slow

    def validate(self):
        clock.now += slow
        return {"samples": 2000, "seconds": slow, "accuracy": 0.1, "loss": 2.3}

    def train(group, result, on_event=None):
        total = slow * 10_000 * group.recipe.epochs / machine.rate(group.recipe)
        for _ in range(20):
            clock.now += total / 20
            on_event({"event": "progress"})
        result.val_accuracy, result.elapsed_seconds, result.epoch_seconds = [0.8], [total], [total]

    machine.group.steps = timed_steps
    machine.group.wait = timed_start
    machine.group.validate = validate
    machine.train = train
    machine.others_pct = 50.0 if slow > 1 else 0.0
    found = ladder.climb(Recipe(), rungs=NAMES, budget_s=300.0, clock=clock)
    assert found["complete"] and len(found["rungs"]) == len(NAMES)
    assert clock.now <= 1.2 * 300, [(r["name"], r["seconds"]) for r in found["rungs"]]
    assert found["budget"]["spent_seconds"] == clock.now
    assert not any(r["verdict"] == "hurt" for r in found["rungs"]) or slow == 1.0


def test_what_a_rung_will_bring_is_predicted_from_its_parts(machine):
    by_name = rows(ladder.climb(Recipe(), rungs=NAMES))
    net = 64 / 0.138  # a step of 64 takes 10 + 2 * 64 ms
    workers = {v["label"]: v["predicted"] for v in by_name["multi-worker"]["variants"]}
    assert workers["1 worker"]["samples_per_sec"] == pytest.approx(min(300, 2 / (1 / 300 + 2 / net)))
    assert workers["2 workers"]["samples_per_sec"] == pytest.approx(2 / (1 / 300 + 2 / net))
    assert "300/s" in workers["2 workers"]["basis"]
    resident = by_name["records"]["predicted"]
    assert resident["samples_per_sec"] == pytest.approx(1 / (1 / 9e4 + 1 / net))
    guesses = {v["label"]: v["predicted"] for v in by_name["large-batch"]["variants"]}
    for batch in (128, 256):
        predicted = guesses[f"batch {batch}"]["samples_per_sec"]
        assert predicted == pytest.approx(1 / (1 / 9e4 + (10 + 2 * batch) / 1e3 / batch), rel=1e-3)
    assert by_name["multi-device"]["predicted"]["samples_per_sec"] < 500
    for name in ("naive", "environment", "hybridized", "mixed-precision"):
        assert by_name[name]["predicted"] is None


def test_a_prediction_that_fails_leaves_the_rung_to_be_measured(machine):
    def dies(self, seconds):
        raise RunFailed("ProcessDied", "gone", "training")

    machine.group.loading_alone = dies
    row = rows(ladder.climb(Recipe(), rungs=["naive", "multi-worker"]))["multi-worker"]
    assert row["predicted"] is None and row["samples_per_sec"]["median"] > 0


def test_accuracy_that_falls_is_hurt_and_not_kept(machine):
    machine.accuracy = lambda r: 0.70 if r.dtype == "bfloat16" else 0.80
    found = ladder.climb(Recipe(), rungs=NAMES)
    row = rows(found)["mixed-precision"]
    assert (row["verdict"], row["kept"]) == ("hurt", False)
    assert "10.0 points" in row["reason"]
    assert found["best"]["recipe"]["dtype"] == "float32"
    assert rows(found)["large-batch"]["recipe"]["dtype"] == "float32"


def test_two_points_less_is_still_parity(machine):
    machine.accuracy = lambda r: 0.785 if r.dtype == "bfloat16" else 0.80
    assert rows(ladder.climb(Recipe(), rungs=NAMES))["mixed-precision"]["kept"]


def test_a_rung_that_breaks_is_a_row(machine):
    def breaks(recipe):
        if recipe.engine != "local" or recipe.hybridize != "imperative":
            return RunFailed("MXNetError", "boom <&>", "building the net")
        return None

    machine.breaks = breaks
    found = ladder.climb(Recipe(), rungs=NAMES)
    row = rows(found)["hybridized"]
    assert (row["status"], row["kept"], row["error"]["phase"]) == ("failed", False, "building the net")
    assert rows(found)["mixed-precision"]["status"] == "ran"
    assert found["complete"] and found["best"] is not None


def test_a_large_batch_is_chosen_by_the_time_to_the_accuracy(machine):
    def accuracy(r):
        if r.optimizer == "muon":
            return 0.80 if r.epochs >= 1 and r.batch_size_per_device == 128 else 0.6
        return 0.80 if r.batch_size_per_device == 64 else 0.07

    machine.accuracy = accuracy
    row = rows(ladder.climb(Recipe(epochs=2), rungs=["large-batch"], budget_s=3600))["large-batch"]
    assert row["kept"] and row["verdict"] == "helped"
    assert row["recipe"]["optimizer"] == "muon" and row["recipe"]["epochs"] == pytest.approx(1.05)
    found = row["seconds_to_accuracy"]
    tried = {c["label"]: c["arrived"] for c in found["candidates"]}
    assert tried["batch 128, Muon, 1.5 epochs"] and tried["batch 128, Muon, 1.05 epochs"]
    assert not any(entry["chosen"] and entry["changes"].get("optimizer") != "muon" for entry in row["variants"])
    assert found["ratio"]["median"] == pytest.approx(1.1 / 0.525, rel=0.05) and found["ratio"]["ci95"][0] > 1.5
    assert all("accuracy" in v for v in row["variants"] if v["lost"])  # what collapsed is shown with its figure
    assert row["accuracy_runs"] == [0.80, 0.80]


def of_batch(row):
    return {c["label"]: c for c in row["seconds_to_accuracy"]["candidates"]}


def test_after_one_that_arrived_what_can_be_made_shorter_is_tried_too(machine):
    usual = machine.rate  # of the larger batch: so fast that its length is the shorter time at first
    machine.rate = lambda r: usual(r) * (1.5 if r.batch_size_per_device == 128 else 1.0)
    arrives = {64: 0.35, 128: 0.75}
    machine.accuracy = lambda r: 0.80 if r.optimizer != "muon" or r.epochs >= arrives[r.batch_size_per_device] else 0.6
    row = rows(ladder.climb(Recipe(), rungs=["large-batch"], budget_s=3600))["large-batch"]
    tried = of_batch(row)
    assert list(tried)[:1] == ["batch 128, Muon, 0.75 epochs"] and tried["batch 64, Muon, 0.35 epochs"]["arrived"]
    assert row["recipe"]["batch_size_per_device"] == 64 and row["recipe"]["epochs"] == pytest.approx(0.35)
    assert row["val_accuracy"] == [0.80] and row["elapsed_seconds"][0] == pytest.approx(0.35 * 100, rel=0.01)


def test_where_the_second_training_missed_both_accuracies_are_told(machine):
    machine.accuracy = lambda r: (
        0.80 if r.optimizer != "muon" and r.batch_size_per_device == 64 else 0.79 - 0.2 * r.seed
    )
    row = rows(ladder.climb(Recipe(), rungs=["large-batch"], budget_s=3600))["large-batch"]
    assert row["verdict"] == "no gain" and "Muon, 0.5 epochs: 79.0 % and 59.0 %" in row["reason"]


def test_one_that_arrives_later_does_not_take_the_place_of_the_first(machine):
    usual = machine.rate
    machine.rate = lambda r: usual(r) * (1.5 if r.batch_size_per_device == 128 else 1.0)
    arrives = {64: 0.5, 128: 0.75}
    machine.accuracy = lambda r: 0.80 if r.optimizer != "muon" or r.epochs >= arrives[r.batch_size_per_device] else 0.6
    row = rows(ladder.climb(Recipe(), rungs=["large-batch"], budget_s=3600))["large-batch"]
    assert of_batch(row)["batch 64, Muon, 0.5 epochs"]["arrived"], "tried, for it might have been shortened"
    assert row["recipe"]["batch_size_per_device"] == 128 and row["recipe"]["epochs"] == pytest.approx(0.75)
    assert row["elapsed_seconds"][0] == pytest.approx(0.75 * 100 / 1.65, rel=0.01)


def test_an_accuracy_near_the_bar_is_trained_twice_and_the_mean_decides(machine):
    def accuracy(r):
        first, second = {True: (0.85, 0.70), False: (0.87, 0.87)}[r.epochs < 0.3] if r.epochs != 0.35 else (0.83, 0.87)
        return 0.85 if r.optimizer != "muon" else second if r.seed else first

    machine.accuracy = accuracy  # the bar is at 83 %, of shortened schedules at 84
    row = rows(ladder.climb(Recipe(), rungs=["large-batch"], budget_s=3600))["large-batch"]
    tried = of_batch(row)
    lucky, unlucky = tried["batch 64, Muon, 0.257 epochs"], tried["batch 64, Muon, 0.35 epochs"]
    assert lucky["accuracies"] == [0.85, 0.70] and not lucky["arrived"]
    assert "0.257 epochs: trained twice, for it ended near the bar: 85.0 % and 70.0 %, where 84.0 % are" in str(
        row["notes"]
    )
    assert unlucky["accuracies"] == [0.83, 0.87] and unlucky["arrived"]
    assert tried["batch 64, Muon, 0.5 epochs"]["accuracies"] == [0.87], "that is clear"
    assert 0.257 < row["recipe"]["epochs"] < 0.35, "between the one that missed and the one that arrived"
    assert tried["batch 64, Muon, 0.3 epochs"]["accuracies"] == row["accuracy_runs"] == [0.87]


def test_a_full_climb_asks_methods_by_the_time_to_the_accuracy(machine):
    machine.accuracy = lambda r: 0.80 if r.epochs == 2 or "whitening-init" in r.methods else 0.6
    base = Recipe(epochs=2, loader="resident", augment="pad-crop-flip")
    row = rows(ladder.climb(base, rungs=["methods"], budget_s=3600))["methods"]
    assert row["kept"] and row["verdict"] == "helped" and dict(row["recipe"]["methods"]) == {"whitening-init": True}
    labels = [entry["label"] for entry in row["variants"]]
    assert labels[:3] == [f"{n}, 1.5 epochs" for n in ("whitening-init", "label-smoothing", "alternating-flip")]
    assert row["seconds_to_accuracy"]["ratio"]["median"] > 1.3
    machine.accuracy = lambda r: 0.80 if r.epochs == 2 else 0.6
    row = rows(ladder.climb(base, rungs=["methods"], budget_s=3600))["methods"]
    assert not row["kept"] and "nothing that was tried reaches 78.0 %" in row["reason"]
    whole = rows(ladder.climb(Recipe(epochs=2), pace=ladder.FULL))
    assert sorted(whole) == sorted(RUNGS.names()) and whole["methods"]["status"] == "ran"


def test_methods_are_not_asked_where_they_cannot_be_judged():
    cpu = {"cores": 2, "gpus": 0, "bf16": False, "splits": True, "fits_memory": True, "rewrites": ()}
    rung, site = RUNGS["methods"], Site(**cpu, num_train=50_000)
    assert rung.requires(Recipe(), site) is None and len(rung.variants(Recipe(), site)) >= 2
    assert "own loss" in rung.requires(Recipe(), replace(site, step="step"))
    assert "measures rmse" in rung.requires(Recipe(), replace(site, metric="rmse"))
    assert not rung.variants(Recipe(), replace(site, num_train=2000)), "no schedule can be made that short"
    own = Recipe(methods={"label-smoothing": {"epsilon": 0.2}})
    assert not any("smoothing" in v.label for v in rung.variants(own, site)), "the job's own numbers stay"


def test_where_no_batch_arrives_earlier_the_evidence_is_given(machine):
    machine.accuracy = lambda r: 0.80 if r.batch_size_per_device == 64 else 0.069
    row = rows(ladder.climb(Recipe(), rungs=["large-batch"]))["large-batch"]
    assert not row["kept"] and row["verdict"] == "no gain" and "6.9 %" in row["reason"]
    assert not any(v["chosen"] for v in row["variants"])
    assert len(row["seconds_to_accuracy"]["candidates"]) >= 3
    already = rows(ladder.climb(Recipe(optimizer="muon"), rungs=["large-batch"]))["large-batch"]
    assert [v["label"] for v in already["variants"]] == [
        "batch 128", "batch 256", "batch 128, 256 from half-way on"
    ]  # fmt: skip


def test_one_broken_variant_does_not_break_the_rung(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p") if r.loader == "resident" else None
    row = rows(ladder.climb(Recipe(), rungs=NAMES))["records"]
    assert row["status"] == "ran" and row["recipe"]["loader"] == "threaded"
    assert [v["status"] for v in row["variants"]] == ["failed", "ran"]


def test_naive_that_breaks_does_not_end_the_ladder(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p") if r.runtime == "as-installed" else None
    found = ladder.climb(Recipe(), rungs=NAMES)
    by_name = rows(found)
    assert by_name["naive"]["status"] == "failed"
    assert by_name["environment"]["kept"] and by_name["environment"]["speedup_vs_naive"] is None
    assert found["best"] is not None


def test_everything_broken(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p")
    found = ladder.climb(Recipe(), rungs=NAMES)
    assert found["best"] is None and len(found["rungs"]) == len(NAMES)
    assert {r["status"] for r in found["rungs"]} <= {"failed", "skipped"}


def test_a_job_with_its_own_datasets_skips_records(machine):
    found = ladder.climb(Recipe(job="some/job.py"), rungs=NAMES)
    row = rows(found)["records"]
    assert row["status"] == "skipped" and "folder:" in row["reason"]


def test_a_cpu_without_bfloat16_skips_mixed_precision(machine):
    machine.facts = {"cpu": {"flags": ["avx2"]}}
    row = rows(ladder.climb(Recipe(), rungs=NAMES))["mixed-precision"]
    assert row["status"] == "skipped" and "bfloat16" in row["reason"]


def test_interrupt_keeps_what_was_measured_and_resume_goes_on(machine, tmp_path):
    def interrupt(recipe):
        if recipe.dtype == "bfloat16" and recipe.optimizer == "nag":
            raise KeyboardInterrupt

    machine.on_train = interrupt
    found = ladder.climb(Recipe(), rungs=NAMES, out=tmp_path)
    assert not found["complete"]
    assert [r["name"] for r in found["rungs"] if r["finished"]] == NAMES[:5]
    assert rows(found)["mixed-precision"]["reason"].startswith("interrupted")
    assert rows(found)["mixed-precision"]["variants"][0]["samples_per_sec"]["n"] >= LOOKS[0]
    machine.on_train = lambda recipe: None
    machine.trained.clear()
    again = ladder.climb(Recipe(), rungs=NAMES, out=tmp_path, resume=True)
    assert again["complete"] and [r["name"] for r in again["rungs"]] == NAMES
    assert machine.trained[0].dtype == "bfloat16"
    pairs = [r.loader for r in machine.trained].index("gluon")  # the proof
    assert all(r.loader == "resident" for r in machine.trained[:pairs])
    assert again["best"]["name"] == "large-batch"


def test_resume_of_another_recipe_is_refused(machine, tmp_path):
    ladder.climb(Recipe(), rungs=NAMES, out=tmp_path)
    with pytest.raises(UsageError, match="seed: then 0, now 3"):
        ladder.climb(Recipe(seed=3), rungs=NAMES, out=tmp_path, resume=True)
    with pytest.raises(UsageError, match="mode: then 'quick', now 'full'"):
        ladder.climb(Recipe(), rungs=NAMES, out=tmp_path, resume=True, pace=ladder.FULL)


def test_a_resume_before_the_first_rung_begins_and_one_of_a_damaged_file_does_not(machine, tmp_path):
    found = ladder.climb(Recipe(), rungs=NAMES, out=tmp_path / "new", resume=True)
    assert found["complete"] and (tmp_path / "new" / "ladder.json").exists()
    (tmp_path / "ladder.json").write_text('{"schema_v')
    with pytest.raises(GluontuneError, match=r"ladder\.json: cannot be resumed"):
        ladder.climb(Recipe(), rungs=NAMES, out=tmp_path, resume=True)


def test_a_second_climb_keeps_the_first_book(machine, tmp_path):
    first = ladder.climb(Recipe(), rungs=NAMES, out=tmp_path)
    ladder.climb(Recipe(seed=1), rungs=NAMES, out=tmp_path)
    assert json.loads((tmp_path / "ladder.previous.json").read_text()) == first


def test_some_rungs_only(machine):
    found = ladder.climb(Recipe(), rungs=["records"])
    assert [r["name"] for r in found["rungs"]] == ["naive", "records"]
    with pytest.raises(UnknownNameError, match="records"):
        ladder.climb(Recipe(), rungs=["recrods"])


def test_a_read_only_folder_is_told_before_anything_starts(machine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GluontuneError, match="file"):
        ladder.climb(Recipe(), rungs=NAMES, out=tmp_path / "file" / "out")
    assert machine.started == []


def test_a_missing_data_set_is_told_before_anything_starts(machine):
    with pytest.raises(UsageError, match="sample"):
        ladder.climb(Recipe(dataset="smaple"))
    assert machine.started == []


@pytest.mark.parametrize(
    ("version", "memory", "engines"),
    [
        (None, True, ["shared-memory"]),
        (None, False, ["kvstore"]),
        ("0.28.1", True, ["shared-memory", "horovod"]),
        ("0.28.1", False, ["kvstore", "horovod"]),
    ],
)
def test_ranks_exchange_by_what_this_system_has(monkeypatch, version, memory, engines):
    monkeypatch.setattr("gluontune.parallel.horovod.installed", lambda: version)
    monkeypatch.setattr("gluontune.parallel.shared.available", lambda: memory)
    site = Site(cores=2, gpus=0, bf16=True, splits=True, fits_memory=True, rewrites=(), num_train=50_000)
    variants = RUNGS["multi-device"].variants(Recipe(), site)
    assert [v.changes["engine"] for v in variants] == engines


def test_the_last_rung_says_which_number_of_devices_is_best_and_why(machine, monkeypatch):
    monkeypatch.setattr("gluontune.parallel.horovod.installed", lambda: None)
    found = ladder.climb(Recipe(dataset="sample"), rungs=["multi-device"])
    row = rows(found)["multi-device"]
    one, two = row["devices"]["rows"]
    assert (one["devices"], two["devices"], row["devices"]["best"]) == (1, 2, 1)
    assert two["efficiency"] == pytest.approx(0.8, abs=0.02) and two["exchange_share"] == pytest.approx(0.3, abs=0.01)
    assert "1 process is best here" in row["devices"]["sentence"] and "30 % of a step" in row["devices"]["sentence"]
    assert row["devices"]["sentence"] in row["notes"]


def test_gpus_change_the_variants():
    site = Site(cores=16, gpus=4, bf16=False, splits=True, fits_memory=False, rewrites=(), num_train=50_000)
    recipe = Recipe()
    labels = {rung.name: [v.label for v in rung.variants(recipe, site)] for rung in RUNGS}
    assert labels["mixed-precision"][0] == "float16"
    assert labels["multi-device"] == ["2 GPUs", "4 GPUs"]
    assert labels["multi-worker"] == ["1 worker", "13 workers", "16 workers"]
    assert labels["records"] == ["threaded"]
    for rung in RUNGS:
        for variant in rung.variants(recipe, site):
            recipe.override(**variant.changes)


def test_amx_is_a_variant_only_where_it_is_given():
    names = ("pool-to-mean", "pad-channels")
    cpu = {"cores": 2, "gpus": 0, "bf16": True, "splits": True, "fits_memory": True, "num_train": 50_000}
    recipe = Recipe(env={"MINE": "1"})
    for amx in (False, True):
        variants = RUNGS["mixed-precision"].variants(recipe, Site(**cpu, rewrites=names, amx=amx))
        asking = [v for v in variants if "AVX512_CORE_AMX" in v.changes.get("env", {}).values()]
        assert len(asking) == (2 if amx else 0)
        for variant in asking:
            changed = recipe.override(**variant.changes)
            assert changed.env["MINE"] == "1" and changed.dtype == "bfloat16"
            assert changed.hybridize == "static" and changed.rewrites[:2] == names
    gpus = Site(**{**cpu, "gpus": 1}, rewrites=names, amx=True)
    assert not any("env" in v.changes for v in RUNGS["mixed-precision"].variants(recipe, gpus))
