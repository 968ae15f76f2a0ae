"""The big answer first: the best guess at once, proven against naive, then explained rung by rung."""

from __future__ import annotations

import math
import random
import re

import pytest

from gluontune import ladder
from gluontune.recipe import Recipe
from gluontune.report import ladder_sentence
from gluontune.report.page import finish_ladder
from gluontune.train import RunFailed
from tests.support.page_checker import contradictions

HELD = ["environment", "records", "hybridized", "mixed-precision"]


def rows(document):
    return {row["name"]: row for row in document["rungs"]}


def test_the_best_guess_is_proven_first_and_each_of_its_rungs_is_left_out_once(machine, tmp_path):
    found = ladder.climb(Recipe(), out=tmp_path)
    by_name = rows(found)
    assert list(by_name)[:6] == ["naive", "together", *HELD]
    together = by_name["together"]
    assert (together["verdict"], together["kept"]) == ("helped", True)
    assert together["ratio_to_previous"]["median"] == pytest.approx(2.0 * 1.5 * 1.2 * 1.6, rel=0.03)
    for name, gain in zip(HELD, (2.0, 1.5, 1.2, 1.6)):
        row = by_name[name]
        assert row["left_out"] and row["kept"] and row["verdict"] == "helped"
        assert row["ratio_to_previous"]["median"] == pytest.approx(gain, rel=0.03)
        assert row["speedup_vs_naive"] == together["speedup_vs_naive"]
        assert [v["label"] for v in row["variants"]] == ["with it", "without it"]
    workers = by_name["multi-worker"]  # they have no place beside samples in memory, and are measured in theirs
    assert workers["status"] == "ran" and not workers["kept"] and workers["ratio_to_previous"]["median"] < 1
    assert all(v["label"].endswith(" in place of loader resident") for v in workers["variants"])
    assert by_name["large-batch"]["verdict"] == "helped"
    assert found["best"]["name"] == "large-batch" and not any(a["adopted"] for a in found["revisited"])
    finish_ladder(found, tmp_path)
    assert contradictions((tmp_path / "ladder.html").read_text(encoding="utf-8")) == []


def test_a_rung_that_costs_is_left_out_of_what_was_proven(machine, tmp_path):
    usual = machine.rate
    machine.rate = lambda r: (
        usual(r)
        * (0.8 if r.loader == "resident" and r.runtime == "tuned" else 1.0)
        / (1.5 if r.loader == "resident" else 1.0)
    )
    found = ladder.climb(Recipe(), out=tmp_path)
    row = rows(found)["records"]
    assert row["left_out"] and not row["kept"] and row["ratio_to_previous"]["ci95"][1] < 1
    assert found["best"]["recipe"]["loader"] == "gluon" and "loader" not in rows(found)["together"]["changes"]
    finish_ladder(found, tmp_path)
    assert contradictions((tmp_path / "ladder.html").read_text(encoding="utf-8")) == []


def test_what_cannot_be_told_apart_stays_and_is_called_proven_only_together(machine):
    tick = [0]

    def noise(number):
        tick[0] += 1
        return (1.25, 0.8, 1.1, 0.9, 1.0)[tick[0] % 5]

    machine.rate = lambda r: 100.0 * (1.7 if r.runtime == "tuned" else 1.0) * (1.06 if r.hybridize == "static" else 1.0)
    machine.noise = noise
    found = ladder.climb(Recipe(), rungs=["together", "environment", "hybridized"], budget_s=60.0)
    row = rows(found)["hybridized"]
    if row["kept"] and row["verdict"] == "n/a":
        assert "stays as a part" in row["reason"] and "proven only together: hybridizing" in ladder_sentence(found)
    assert rows(found)["together"]["kept"] and found["best"]["speedup_vs_naive"] > 1.3


def test_a_part_whose_own_effect_is_known_to_be_small_is_decided(machine, tmp_path):
    drawn = random.Random(0)
    gains = {"runtime": 1.7, "hybridize": 1.03}  # the second is worth a change, and too small for these slices
    machine.rate = lambda r: 100.0 * math.prod(g for n, g in gains.items() if getattr(r, n) != getattr(Recipe(), n))
    machine.noise = lambda number: drawn.lognormvariate(0, 0.02)
    found = ladder.climb(Recipe(), rungs=["together", "environment", "hybridized"], budget_s=60.0, out=tmp_path)
    row = rows(found)["hybridized"]
    assert row["kept"] and row["verdict"] == "no gain" and row["measurable"]
    assert re.match(r"1\.\d\d× \(95 %: .*\) alone, no certain gain: it stays as a part", row["reason"])
    assert "proven only together: hybridizing" in ladder_sentence(found)
    assert "hybridizing did not help" not in ladder_sentence(found)
    finish_ladder(found, tmp_path)
    assert contradictions((tmp_path / "ladder.html").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("cause", ["dtype", "hybridize"])
def test_a_proof_that_lost_accuracy_takes_back_16_bits_and_then_what_was_proven_together(machine, cause):
    proving = []
    machine.accuracy = lambda r: 0.5 if proving and getattr(r, cause) != getattr(Recipe(), cause) else 0.8

    def watch(event):
        proving.extend([event] if event.get("stage") == "proof" else [])

    found = ladder.climb(Recipe(), rungs=["together", *HELD], on_event=watch)
    lost = "the best recipe with it ended at 50.0 % in the proof: accuracy was lost"
    row = rows(found)["mixed-precision"]
    assert (row["kept"], row["verdict"], row["reason"]) == (False, "hurt", f"taken back: {lost}")
    assert found["taken_back"][0]["rung"] == "mixed-precision" and found["best"]["recipe"]["dtype"] == "float32"
    for row in (rows(found)[name] for name in HELD if name != "mixed-precision"):
        assert row["left_out"] and row["kept"] == (cause == "dtype")
        assert row["verdict"] == ("helped" if cause == "dtype" else "n/a")
    assert found["proof"]["same_accuracy"] == (cause == "dtype")
    assert found["best"]["name"] != "naive" if cause == "dtype" else found["best"]["name"] == "naive"


def test_16_bits_that_no_rung_explains_are_taken_back_too(machine):
    proving = []
    machine.accuracy = lambda r: 0.5 if proving and r.dtype != "float32" else 0.8

    def watch(event):
        proving.extend([event] if event.get("stage") == "proof" else [])

    found = ladder.climb(Recipe(), rungs=["together", "environment"], on_event=watch)
    assert found["best"]["recipe"]["dtype"] == "float32" and "dtype" not in rows(found)["together"]["changes"]
    assert found["proof"]["same_accuracy"] and found["taken_back"][0]["rung"] == "mixed-precision"
    assert not any(row["verdict"] == "hurt" for row in found["rungs"])


def test_a_guess_that_fails_or_is_no_gain_leaves_the_climb_as_it_was(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p") if r.runtime == "tuned" and r.hybridize == "static" else None
    found = ladder.climb(Recipe(), rungs=["together", "environment", "records"])
    by_name = rows(found)
    assert by_name["together"]["status"] == "failed" and by_name["environment"]["verdict"] == "helped"
    assert by_name["records"]["kept"] and not by_name["records"].get("left_out")


def test_an_interrupt_after_the_guess_leaves_its_recipe(machine, tmp_path):
    def stop(event):
        if event["event"] == "rung-start" and event["name"] == "environment":
            raise KeyboardInterrupt

    found = ladder.climb(Recipe(), out=tmp_path, on_event=stop)
    assert not found["complete"] and found["best"]["name"] == "together"
    assert found["best"]["recipe"]["dtype"] == "bfloat16"
    again = ladder.climb(Recipe(), out=tmp_path, resume=True)
    assert again["complete"] and rows(again)["environment"]["left_out"]


def test_a_naive_script_of_long_steps_takes_no_part_in_later_contests(machine):
    usual = machine.rate
    machine.rate = lambda r: 0.01 * usual(r) * (1.0 if r.runtime == "as-installed" else 60.0)
    found = ladder.climb(Recipe(), rungs=["together", "environment", "multi-device"], budget_s=3000.0)
    row = rows(found)["multi-device"]
    before = rows(found)["environment"]
    assert row["over_naive"]["median"] == before["speedup_vs_naive"]
    assert row["speedup_vs_naive"] == pytest.approx(before["speedup_vs_naive"] * row["ratio_to_previous"]["median"])
