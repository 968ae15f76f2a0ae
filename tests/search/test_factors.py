"""Factor analysis on pretended figures: sets, gains, interactions, DNC, resume; one real run of the command."""

from __future__ import annotations

import json

import pytest

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.report.factors import finish_factors
from gluontune.search import factors as factors, measure
from gluontune.search.budget import Pace
from gluontune.search.factor_plan import Factor, combine, parse_factor, plan
from gluontune.train import RunFailed

OWN = [
    Factor("quick", "the resident loader", {"loader": "resident"}),
    Factor("static", "a static graph", {"hybridize": "static"}),
    Factor("big", "a larger batch", {"batch_size_per_device": 256}),
]
FACTS = {"cpu": {"flags": ["avx512_bf16"]}, "packages": {}}


class Machine:
    """A pretended machine on which ``quick`` and ``static`` get in each other's way, and all diverges."""

    def __init__(self):
        self.slices: list[Recipe] = []
        self.trained: list[Recipe] = []
        self.breaks = lambda recipe: None
        self.stop_before = lambda recipe: False

    def rate(self, r):
        rate = 100.0 * (2.0 if r.loader == "resident" else 1.0) * (3.0 if r.hybridize == "static" else 1.0)
        rate *= 0.5 if r.loader == "resident" and r.hybridize == "static" else 1.0
        return rate * (1.5 if r.batch_size_per_device == 256 else 1.0)

    def group(self, recipe, **_):
        failure = self.breaks(recipe)
        if failure:
            raise failure
        return FakeGroup(recipe, self)

    def train_once(self, recipe, *, on_event=None, time_limit=0, machine=None):
        result = RunResult(recipe=recipe.to_dict())
        if self.stop_before(recipe):
            result.status = "interrupted"
            return result, None
        self.trained.append(recipe)
        big = recipe.batch_size_per_device == 256
        result.val_accuracy = [0.6, 0.7 if big and recipe.hybridize == "static" else 0.9]
        result.epoch_seconds = [1000 / self.rate(recipe)] * 2
        result.elapsed_seconds = [1000 / self.rate(recipe), 2000 / self.rate(recipe)]
        return result, None


class FakeGroup:
    def __init__(self, recipe, machine):
        self.recipe, self.machine, self.world, self.ready = (
            recipe,
            machine,
            1,
            [{"num_train": 60_000, "splits": True}],
        )
        self.ready[0].update(image_bytes=784, rewrites=["pool-to-mean"])

    def steps(self, count):
        self.machine.slices.append(self.recipe)
        samples = count * self.recipe.global_batch_size
        return {"samples": samples, "seconds": samples / self.machine.rate(self.recipe), "loss": 1.0, "count": count}

    def wait(self):
        pass

    pause = resume = close = wait


@pytest.fixture
def machine(monkeypatch):
    pretended = Machine()
    monkeypatch.setattr(measure, "Group", pretended.group)
    monkeypatch.setattr(factors, "train_once", pretended.train_once)
    monkeypatch.setattr("gluontune.runtime.machine_facts", lambda: FACTS)
    return pretended


def by_name(document):
    return {entry["name"]: entry for entry in document["sets"]}


def test_every_set_is_measured_against_the_base_of_its_own_block(machine):
    found = factors.analyse(Recipe(), factors=[], own=OWN)
    sets = by_name(found)
    assert list(sets) == ["base", "quick", "static", "big", "quick + static", "quick + static + big",
                          "static + big", "quick + big"]  # fmt: skip
    gain = {name: entry["throughput"]["ratio"]["median"] for name, entry in sets.items()}
    assert gain["quick"] == pytest.approx(2.0) and gain["quick + static"] == pytest.approx(3.0)
    assert gain["base"] == 1.0 and gain["quick + static + big"] == pytest.approx(4.5)
    assert found["complete"] and all(entry["tta"] == [] for entry in found["sets"])


def test_interactions_and_leave_one_out_say_what_composes(machine):
    found = factors.analyse(Recipe(), factors=[], own=OWN)
    pairs = {tuple(r["factors"]): r for r in found["interactions"]["throughput"]}
    clash = pairs["quick", "static"]
    assert clash["verdict"] == "less than promised" and clash["ratio"]["median"] == pytest.approx(0.5)
    assert clash["promised"]["median"] == pytest.approx(6.0)
    assert pairs["static", "big"]["verdict"] == "as promised"
    assert pairs["quick", "static", "big"]["ratio"]["median"] == pytest.approx(0.5)
    rest = {r["factor"]: r for r in found["leave_one_out"]["throughput"]}
    assert rest["quick"]["verdict"] == "no difference" and rest["big"]["ratio"]["median"] == pytest.approx(1.5)


def test_a_set_that_does_not_reach_the_target_is_shown_as_such(machine, tmp_path):
    found = factors.analyse(Recipe(epochs=2), factors=[], own=OWN, targets=[0.9, 0.6], repeats=2, out=tmp_path)
    sets = by_name(found)
    low, high = sets["quick + static + big"]["tta"]
    assert low["target"] == 0.6 and low["converged"] and not high["converged"]
    assert (high["reached"], high["runs"], high["seconds"]) == (0, 2, None)
    assert sets["quick"]["tta"][1]["seconds"]["median"] == pytest.approx(2000 / 200)
    assert sets["quick + static"]["tta"] and sets["big"]["tta"] == []  # cumulative and leave-one-out alone
    assert not any(r["ratio"] for r in found["leave_one_out"]["time to 0.9"])
    rest = {r["factor"]: r["ratio"] for r in found["leave_one_out"]["time to 0.6"]}
    assert rest["big"]["median"] == pytest.approx(1.5)
    finish_factors(found, tmp_path)
    page = (tmp_path / "factors.html").read_text()
    assert "DNC (70.0 %)" in page and page.count("<svg") >= 4
    assert "did not converge" in found["sentence"]


def test_one_run_has_no_interval_and_looks_certain_of_nothing(machine):
    found = factors.analyse(Recipe(epochs=2), factors=[], own=OWN, targets=[0.6], every_set=True)
    rows = found["interactions"]["time to 0.6"]
    assert len(rows) == 4 and {row["verdict"] for row in rows} == {"one run"}
    assert rows[0]["ratio"]["median"] == pytest.approx(0.5) and rows[0]["ratio"]["ci95"] is None
    assert combine([{"median": 2.0, "ci95": None}, {"median": 2.0, "ci95": [1.0, 4.0]}])["ci95"] is None


def test_a_set_that_breaks_is_a_row_and_the_rest_goes_on(machine):
    def breaks(recipe):
        return RunFailed("OutOfMemory", "no memory", "training") if recipe.batch_size_per_device == 256 else None

    machine.breaks = breaks
    found = factors.analyse(Recipe(), factors=[], own=OWN)
    sets = by_name(found)
    assert sets["big"]["throughput"]["status"] == "failed" and "no memory" in sets["big"]["throughput"]["reason"]
    assert sets["quick + static"]["throughput"]["status"] == "ran"
    assert [r["factors"] for r in found["interactions"]["throughput"]] == [["quick", "static"]]
    machine.breaks = lambda recipe: RunFailed("Odd", "the base is broken", "starting")
    with pytest.raises(GluontuneError, match="the base is broken"):
        factors.analyse(Recipe(), factors=[], own=OWN)


def test_rungs_stand_for_factors_with_what_the_site_allows(machine):
    found = factors.analyse(Recipe(), own=[Factor("slow", "SGD", {"optimizer": "sgd"})], pairs=False)
    changes = {factor["name"]: factor["changes"] for factor in found["factors"]}
    assert list(changes) == ["environment", "records", "hybridized", "mixed-precision", "large-batch", "slow"]
    assert changes["hybridized"] == {"hybridize": "static", "rewrites": ["pool-to-mean"]}
    assert changes["mixed-precision"] == {"dtype": "bfloat16"}
    assert "pair" not in {part for entry in found["sets"] for part in entry["parts"]}


def test_an_interrupt_is_taken_up_where_it_was(machine, tmp_path):
    machine.stop_before = lambda recipe: recipe.loader == "resident"
    options = {"factors": [], "own": OWN, "targets": [0.6], "out": tmp_path}
    found = factors.analyse(Recipe(epochs=2), **options)
    assert not found["complete"] and len(machine.trained) == 1
    machine.stop_before = lambda recipe: False
    machine.slices.clear()
    found = factors.analyse(Recipe(epochs=2), **options, resume=True)
    assert found["complete"] and machine.slices == [] and len(machine.trained) == len(set(map(str, machine.trained)))
    with pytest.raises(UsageError, match=r"targets: then \[0\.6\], now \[0\.7\]"):
        factors.analyse(Recipe(epochs=2), **{**options, "targets": [0.7]}, resume=True)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([OWN[0], Factor("quick", "again", {"optimizer": "sgd"})], "there twice"),
        ([OWN[2], Factor("huge", "a huge batch", {"batch_size_per_device": 512})], "both set batch_size_per_device"),
        ([Factor("none", "the gluon loader", {"loader": "gluon"})], "changes nothing"),
        ([], "no factor to analyse"),
    ],
)
def test_factors_that_cannot_be_analysed_are_refused(machine, own, message):
    with pytest.raises(UsageError, match=message):
        factors.analyse(Recipe(), factors=[], own=own)


def test_an_unknown_rung_is_refused_before_anything_starts(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(factors, "Contender", lambda *_: pytest.fail("nothing is to be started"))
    with pytest.raises(UsageError, match="hybridized"):
        factors.analyse(Recipe(), factors=["environment", "hybridised"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("big", "write NAME:FIELD=VALUE"), ("big:256", "write NAME"), ("big:batch=2", "no field 'batch'"),
     ("a:rewrites=[", "not YAML"), ("a b:seed=1", "write NAME")],
)  # fmt: skip
def test_a_factor_of_the_users_own_is_checked(text, message):
    with pytest.raises(UsageError, match=message):
        parse_factor(text)


def test_five_factors_make_as_many_sets_as_they_must():
    sets = plan(list("abcde"))
    assert len(sets) == 1 + 5 + 10 + 3 + 4  # base, alone, pairs, three longer cumulative, four more without one
    assert sets["a", "b", "c", "d"] == ["cumulative", "without e"]


@pytest.mark.slow
def test_the_command_for_real(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("gluontune.ladder.QUICK", Pace("quick", rounds=3, slice_s=0.02, epochs=1))
    small = ["--net", "mlp", "--train-samples", "640", "--val-samples", "200", "--epochs", "2"]
    own = ["--rungs", "", "--factor", "resident:loader=resident", "--factor", "static:hybridize=static"]
    arguments = ["factors", *small, *own, "--target", "0.2", "--target", "1.0", "--out", str(tmp_path), "--json"]
    assert main(arguments) == 0
    found = json.loads(capfd.readouterr().out)
    sets = by_name(found)
    assert list(sets) == ["base", "resident", "static", "resident + static"]
    assert all(entry["throughput"]["samples_per_sec"]["n"] >= 3 for entry in sets.values())
    assert all(entry["tta"][0]["converged"] and not entry["tta"][1]["converged"] for entry in sets.values())
    assert "DNC" in (tmp_path / "factors.html").read_text()
    assert main(["factors", "--rungs", ""]) == 2 and "no factor" in capfd.readouterr().err
