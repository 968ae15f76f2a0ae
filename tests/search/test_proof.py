"""What the proof says of a training that was made shorter: its length is given back, or its rung taken back."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from gluontune import ladder
from gluontune.recipe import Recipe
from gluontune.report.page import finish_ladder
from gluontune.report.sentence import sentence_parts
from gluontune.report.table import ladder_table
from gluontune.search import rung_contest
from gluontune.search.proof import length_rung, ratio_at, refuted_verdict, still_helps

DEVICES = ["environment", "large-batch", "multi-device"]


def rows(document):
    return {row["name"]: row for row in document["rungs"]}


def on_two(r: Recipe) -> float:
    """Both the settings and a second process help, whatever the optimizer."""
    return 100.0 * (2.0 if r.runtime == "tuned" else 1.0) * (1.5 if r.engine != "local" else 1.0)


@pytest.fixture
def lucky(machine):
    """Climbs in which a short training arrives until the proof, and in the proof only from ``enough`` epochs on."""

    def climb(enough, rungs=("large-batch",), hook=lambda: None, **how):
        proving = []

        def watch(event):
            if event.get("stage") == "proof":
                proving.append(True)
                hook()

        # What makes the training short is Muon: without it nothing is lost.
        machine.accuracy = lambda r: 0.80 if not proving or r.optimizer != "muon" or r.epochs >= enough else 0.60
        how = {"budget_s": 1e4, **how}
        return ladder.climb(Recipe(epochs=1), rungs=list(rungs), on_event=watch, **how)

    return climb


@pytest.mark.parametrize("enough", [0.5, 0.7])
def test_a_length_that_arrived_by_luck_is_given_back_step_by_step(lucky, tmp_path, enough):
    found = lucky(enough, out=tmp_path)
    proof, row = found["proof"], found["rungs"][-1]
    assert row["kept"] and [m["accuracy"] for m in proof["missed"]] == [0.60] * len(proof["missed"])
    lengths = [m["epochs"] for m in proof["missed"]] + [proof["epochs"]]
    assert lengths == sorted(lengths) and lengths[-2] < enough <= lengths[-1]
    assert proof["reached"] and proof["ratio"] and proof["same_accuracy"]
    assert found["best"]["recipe"]["epochs"] == row["recipe"]["epochs"] == proof["epochs"]
    assert row["changes"]["epochs"] == proof["epochs"]
    assert "\nepochs: " in (tmp_path / "best.yaml").read_text()
    assert "in the proof" in row["notes"][-1]
    assert row["elapsed_seconds"] == [proof["pairs"][0]["best"]["seconds"]]
    head, *others = sentence_parts(found)
    assert " instead of " in head and not any("points below" in part for part in others)
    assert found["taken_back"] == []


def test_the_rungs_gain_is_that_of_the_length_that_arrived(lucky, tmp_path):
    ratio = rows(lucky(0.5, out=tmp_path))["large-batch"]["seconds_to_accuracy"]["ratio"]
    assert ratio["median"] == pytest.approx(1 / 0.524, rel=0.03)  # 0.257 epochs had promised 3.9
    assert ratio["ci95"][0] < ratio["median"] < ratio["ci95"][1] < 2.1
    assert "1.91" in next(x for x in (tmp_path / "best.yaml").read_text().splitlines() if x.startswith("optimizer"))


def test_a_rung_that_stood_below_others_has_its_length_given_back_in_all_of_them(lucky, machine):
    machine.rate = on_two
    found = lucky(0.5, DEVICES)
    by_name = rows(found)
    assert by_name["multi-device"]["kept"] and found["best"]["name"] == "multi-device"
    lengths = {by_name[name]["recipe"]["epochs"] for name in DEVICES[1:]}
    assert lengths == {0.524} == {found["best"]["recipe"]["epochs"]}
    assert by_name["large-batch"]["seconds_to_accuracy"]["ratio"]["median"] == pytest.approx(1 / 0.524, rel=0.03)
    assert by_name["multi-device"]["val_accuracy"] == [0.80]


@pytest.mark.parametrize("enough", [1.0, 9.0])
def test_what_is_no_gain_at_any_length_that_may_arrive_is_taken_back(lucky, machine, tmp_path, enough):
    found = lucky(enough, out=tmp_path)
    row = rows(found)["large-batch"]
    assert (row["verdict"], row["kept"], row["measurable"]) == ("no gain", False, True)
    assert row["reason"].startswith("taken back: 0.257 to 0.749 epochs did not reach 78.0 % in the proof (60.0 %)")
    assert row["seconds_to_accuracy"]["ratio"] is None
    assert not any(r.optimizer == "muon" and r.epochs == 1 for r in machine.trained), "that was no gain anyway"
    assert found["best"]["name"] == "naive" and found["proof"] is None and found["files"] is None
    assert not (tmp_path / "best.yaml").exists()
    taken = found["taken_back"][0]
    assert taken["rung"] == "large-batch" and not taken["proof"]["reached"]
    assert len(taken["proof"]["pairs"]) == 1, "no time is spent on what is decided"
    parts = sentence_parts(found)
    assert "made this job faster" in parts[0]
    assert sum("a larger batch was taken back: 0.257 to 0.749 epochs" in part for part in parts) == 1
    finish_ladder(found, tmp_path)
    assert "a larger batch was taken back: 0.257 to" in (tmp_path / "ladder.html").read_text(encoding="utf-8")
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(ladder_table(found))
    text = console.export_text()
    assert "taken back: 0.257 to 0.749 epochs did not reach" in text and "= no gain, not kept" in text


def faster_batches(r: Recipe) -> float:
    """A batch of 128 takes half the time of two of 64, and so may be a gain at the whole length."""
    return on_two(r) * (2.0 if r.batch_size_per_device > 64 else 1.0)


@pytest.mark.parametrize("enough", [1.0, 9.0])
def test_the_whole_length_is_tried_where_it_is_a_gain(lucky, machine, enough):
    machine.rate = faster_batches
    found = lucky(enough)
    row = rows(found)["large-batch"]
    assert min(c["epochs"] for c in row["seconds_to_accuracy"]["candidates"] if c["arrived"]) < 1
    if enough == 1.0:
        assert row["kept"] and row["recipe"]["epochs"] == 1.0 and found["proof"]["reached"]
        assert row["seconds_to_accuracy"]["ratio"]["median"] == pytest.approx(2.0, rel=0.03)
    else:
        assert (row["verdict"], row["kept"]) == ("hurt", False) and " to 1 epochs did not reach" in row["reason"]
        assert found["best"]["name"] == "naive"
        assert "a larger batch hurt" not in " ".join(sentence_parts(found)), "it is said once"


def test_a_larger_batch_that_loses_accuracy_in_every_training_of_the_proof_is_taken_back(machine):
    machine.rate = faster_batches
    proving = []

    def accuracy(r):
        if r.optimizer != "nag" or r.epochs < 1:  # no length is given back here
            return 0.1
        return 0.71 if proving and r.batch_size_per_device > 64 else 0.80

    machine.accuracy = accuracy
    watch = lambda event: proving.extend([True] if event.get("stage") == "proof" else [])  # noqa: E731
    found = ladder.climb(Recipe(epochs=1), rungs=["large-batch"], budget_s=1e4, on_event=watch)
    row, proof = rows(found)["large-batch"], found["taken_back"][0]["proof"]
    assert "epochs" not in row["changes"] and len(proof["pairs"]) > 1 and proof["missed"] == []
    assert (row["verdict"], row["kept"], found["best"]["name"]) == ("hurt", False, "naive")
    assert "ended at 71.0 % in the proof: accuracy was lost" in " ".join(sentence_parts(found))


def test_without_time_for_a_longer_training_it_is_not_known(lucky, machine):
    now = [0.0]
    spent = []

    def train(recipe):
        if spent and recipe.optimizer == "muon":
            now[0] = 9999.0

    machine.on_train = train
    row = rows(lucky(0.5, hook=lambda: spent.append(True), clock=lambda: now[0]))["large-batch"]
    assert (row["verdict"], row["kept"], row["measurable"]) == ("n/a", False, False)
    assert row["reason"].endswith("and there was no time for a longer training")


def test_what_stood_on_it_is_measured_again_and_proven(lucky, machine, tmp_path):
    machine.rate = on_two
    found = lucky(9.0, DEVICES, out=tmp_path)
    by_name = rows(found)
    assert by_name["environment"]["kept"] and not by_name["large-batch"]["kept"]
    row = by_name["multi-device"]
    assert (row["verdict"], row["on_top_of"], row["accuracy_runs"]) == ("n/a", "large-batch", [])
    again = next(a for a in found["revisited"] if a["rung"] == "multi-device")
    assert again["adopted"] and again["ratio"]["median"] == pytest.approx(1.5, rel=0.03)
    best = Recipe.from_dict(found["best"]["recipe"])
    assert (best.optimizer, best.epochs, best.runtime, best.num_devices) == (Recipe().optimizer, 1, "tuned", 2)
    assert best.global_batch_size == Recipe().global_batch_size
    assert found["best"]["speedup_vs_naive"] == pytest.approx(3.0, rel=0.05)
    proof = found["proof"]
    assert proof["reached"] and proof["epochs"] == 1 and proof["ratio"]["median"] == pytest.approx(3.0, rel=0.05)
    text = (tmp_path / "best.yaml").read_text()
    assert "optimizer" not in text and "\nepochs" not in text and "num_devices: 2  # multi-device: 1." in text
    head, *others = sentence_parts(found)
    assert " instead of " in head
    assert not any("more devices" in part for part in others), "it helped, when it was asked again"


def test_what_helped_only_on_top_of_it_goes_with_it(lucky, machine):
    def rate(r):
        alone = r.engine != "local" and r.optimizer != "muon"
        return on_two(r) * (0.4 if alone else 1.0)

    machine.rate = rate
    found = lucky(9.0, DEVICES)
    assert found["best"]["name"] == "environment" and found["best"]["recipe"]["num_devices"] == 1
    again = next(a for a in found["revisited"] if a["rung"] == "multi-device")
    assert not again["adopted"] and again["verdict"] == "hurt"
    assert found["proof"]["ratio"]["median"] == pytest.approx(2.0, rel=0.05)


def test_what_stood_on_it_is_measured_even_where_the_budget_is_spent(lucky, machine):
    machine.rate = on_two
    now, proving = [0.0], []

    def train(recipe):
        if proving and recipe.optimizer == "muon" and recipe.epochs > 0.6:
            now[0] = 1e6

    machine.on_train = train
    found = lucky(9.0, DEVICES, hook=lambda: proving.append(True), clock=lambda: now[0])
    again = next(a for a in found["revisited"] if a["rung"] == "multi-device")
    assert again["adopted"] and "accuracy was kept on top of large-batch" in again["reason"]
    assert found["best"]["recipe"]["num_devices"] == 2 and found["best"]["recipe"]["optimizer"] != "muon"
    assert found["proof"] is None and "faster than naive" in sentence_parts(found)[0]


@pytest.mark.parametrize("moment", ["first proof", "asked again", "second proof"])
def test_a_killed_climb_ends_in_the_same_state(lucky, machine, tmp_path, moment):
    machine.rate = on_two
    whole = lucky(9.0, DEVICES, out=tmp_path / "whole")
    proving, plain, left = [], [], []
    file = tmp_path / "killed" / "ladder.json"

    def kill(recipe):
        if proving and recipe.optimizer != "muon":
            plain.append(recipe)  # naive in the proof, what is asked again, naive in the second proof, ...
        at = {
            "first proof": bool(proving) and recipe.optimizer == "muon" and recipe.epochs > 0.4,
            "asked again": len(plain) == 2,
            "second proof": len(plain) == 4,
        }
        if at[moment]:
            left.append(file.read_text())
            raise KeyboardInterrupt

    machine.on_train, machine.tick = kill, 0  # the same noise again
    cut = lucky(9.0, DEVICES, hook=lambda: proving.append(True), out=tmp_path / "killed")
    assert not cut["complete"]
    machine.on_train = lambda recipe: None
    file.write_text(left[0])  # nothing was saved at the end
    assert bool(json.loads(left[0])["taken_back"]) == (moment != "first proof")
    again = lucky(9.0, DEVICES, out=tmp_path / "killed", resume=True)
    assert again["complete"]
    said = lambda d: [(r["name"], r["kept"], r["verdict"], r["reason"], r["recipe"]) for r in d["rungs"]]  # noqa: E731
    if moment != "first proof":  # until then its slices may differ by noise
        assert said(again)[:3] == said(whole)[:3]
    for name in ("name", "recipe"):
        assert again["best"][name] == whole["best"][name]
    assert [t["rung"] for t in again["taken_back"]] == ["large-batch"]
    assert again["proof"]["reached"] and again["proof"]["epochs"] == 1
    assert [(a["rung"], a["adopted"]) for a in again["revisited"]] == [
        (a["rung"], a["adopted"]) for a in whole["revisited"]
    ]


def test_a_climb_that_is_resumed_after_its_last_rung_has_a_proof(lucky, machine, tmp_path):
    proving = []

    def kill(recipe):
        if proving:
            raise KeyboardInterrupt

    machine.on_train = kill
    assert lucky(0.1, hook=lambda: proving.append(True), out=tmp_path)["proof"] is None
    machine.on_train = lambda recipe: None
    found = lucky(0.1, out=tmp_path, resume=True)
    assert found["revisited"] == [] and found["proof"]["reached"]


def test_the_last_rung_that_chose_a_length_owns_it():
    ratio = {"median": 2.0, "ci95": [1.9, 2.1], "n": 9}
    usual = {"kept": True, "seconds_to_accuracy": None, "changes": {"runtime": "tuned"}, "recipe": {"epochs": 1}}
    first = {**usual, "changes": {"epochs": 0.5}, "recipe": {"epochs": 0.5}, "seconds_to_accuracy": {"ratio": ratio}}
    assert length_rung([usual]) is None and length_rung([usual, {**first, "kept": False}]) is None
    assert length_rung([usual, first, usual]) is first
    assert still_helps(first, 0.9) and not still_helps(first, 0.97) and still_helps(None, 1.0)
    assert ratio_at(first, 0.8)["ci95"] == pytest.approx([1.1875, 1.3125])
    missed = [{"epochs": 0.5, "accuracy": 0.7}]
    proof = {"epochs": 0.9, "target": 0.8, "missed": missed, "pairs": [{"best": {"accuracy": 0.6, "seconds": None}}]}
    shown = refuted_verdict(first, proof, longest=0.9)
    assert (
        shown["verdict"] == "hurt" and "0.5 to 0.9 epochs did not reach 80.0 % in the proof (70.0 %)" in shown["reason"]
    )
    slower = {**first, "seconds_to_accuracy": {"ratio": {"median": 1.5, "ci95": [1.4, 1.6], "n": 9}}}
    assert refuted_verdict(slower, proof, longest=1.0)["verdict"] == "hurt"  # 0.75 times as fast is no tie


def test_each_pair_of_the_proof_is_trained_from_a_start_of_its_own(machine):
    trained, before = [], machine.train
    machine.train = lambda group, *rest: (trained.append(group), before(group, *rest))
    proving = []

    def watch(event):
        proving.extend([len(trained)] if event.get("stage") == "proof" else [])

    found = ladder.climb(Recipe(), rungs=["environment"], on_event=watch)
    pairs = found["proof"]["pairs"]
    assert len(pairs) >= 3 and len({id(group) for group in trained[proving[0] :]}) == 2 * len(pairs)


def test_a_naive_start_that_was_slow_by_chance_does_not_make_the_headline(machine):
    machine.rate = lambda r: 100.0
    first, usual = [], machine.group.steps

    def steps(group, count):
        first.extend([] if first else [group])  # naive's, which is the first to take a step
        found = usual(group, count)
        return {**found, "seconds": found["seconds"] * (2 if group is first[0] else 1)}

    machine.group.steps = steps
    found = ladder.climb(Recipe(), rungs=["environment", "multi-worker"])
    assert [row["name"] for row in found["rungs"] if row["kept"]] == ["naive"] and found["best"]["name"] == "naive"
    assert any("start by start: 1.98×, 0.99×" in note for note in rows(found)["environment"]["notes"])


def test_a_gain_that_there_is_no_time_to_see_from_another_start_is_not_called_none(machine, monkeypatch):
    machine.rate = lambda r: 115.0 if r.runtime == "tuned" else 100.0
    monkeypatch.setattr(rung_contest, "_STARTS", 2)  # as when the budget ends
    row = rows(ladder.climb(Recipe(), rungs=["environment"]))["environment"]
    assert not row["kept"] and row["verdict"] == "n/a" and not row["measurable"]
    assert "start by start" in row["notes"][0] and "no time for more" in row["reason"]
