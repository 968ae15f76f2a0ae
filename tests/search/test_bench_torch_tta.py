"""Time to accuracy beside PyTorch: the twin's run by pretended answers, the document, refusals."""

from __future__ import annotations

import json

import pytest
import tta_fakes as runs

from gluontune.cli.main import main
from gluontune.recipe import Recipe
from gluontune.report.tta import finish_tta
from gluontune.search import study, tta as tta
from gluontune.search.bench import tta_peers
from gluontune.search.bench.contender import ContenderFailed

MODE = {"name": "PyTorch compile channels_last float32", "threads": 2, "channels_last": True, "compiled": True,
        "allocator": "glibc", "env": {}}  # fmt: skip


class Twin:
    """A contender whose trainings take 20 s an epoch and reach 0.5, 0.8, 0.9."""

    made: list = []
    breaks_at = None

    def __init__(self, entrant, time_limit):
        self.entrant, self.failure, self.memory_mib = entrant, None, 0.0
        self.info = {"batches_per_epoch": 10, "warmup_seconds": 4.0, "versions": {"torch": "2"}}
        self.epochs = 0
        Twin.made.append(self)

    def launch(self):
        pass

    def ask(self, name, **arguments):
        if self.failure is not None:
            return None
        if name == "train_epoch":
            if self.breaks_at == self.epochs:
                self.failure = ContenderFailed("RuntimeError: out of memory")
                return None
            self.epochs += 1
            samples = arguments["steps"] * self.entrant.settings["recipe"]["batch_size_per_device"]
            return {"seconds": 20.0, "loss": 1.0, "samples": samples, "steps": arguments["steps"]}
        return {"accuracy": [0.5, 0.8, 0.9][self.epochs - 1], "seconds": 1.0}

    def close(self):
        pass


@pytest.fixture
def twin(monkeypatch, tmp_path):
    """Our side pretended at 10 s an epoch; the peer's Python is there; one mode is the fastest."""
    machine = runs.pretend(monkeypatch)
    Twin.made, Twin.breaks_at = [], None
    monkeypatch.setattr(tta_peers, "Contender", Twin)
    monkeypatch.setattr(tta_peers, "fastest", lambda *_: dict(MODE))
    python = tmp_path / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    return machine


def test_the_twin_is_trained_in_turn_and_the_ratio_is_of_pairs(twin, tmp_path):
    options = {"target": 0.8, "repeats": 2, "peers": tmp_path / "peers", "out": tmp_path / "out"}
    found = tta_peers.against_torch(Recipe(epochs=3), changes={"learning_rate": 0.1}, **options)
    assert [(r["recipe"], r["seed"]) for r in found["done"]] == [
        ("this", 0), ("against", 0), ("against", 1), ("this", 1)
    ]  # fmt: skip
    theirs = [r for r in found["done"] if r["recipe"] == "against"]
    assert [r["first"]["train_seconds"] for r in theirs] == [40.0, 40.0] and theirs[0]["warmup_seconds"] == 4.0
    assert found["ratio"]["train_seconds"]["n"] == 2
    assert found["ratio"]["train_seconds"]["median"] == pytest.approx((40 / 20 + 40 / 22) / 2)
    assert found["torch"] == MODE and Twin.made[0].entrant.settings["recipe"]["learning_rate"] == 0.1
    finish_tta(found, tmp_path / "out")
    assert "faster than PyTorch compile channels_last" in found["sentence"]
    study.write_submissions(found, tmp_path / "out")
    entry = next((tmp_path / "out" / "dawnbench").glob("*against*gluontune.json"))
    assert json.loads(entry.read_text())["framework"].startswith("PyTorch")
    # A resume goes on in the mode that was chosen, and trains what is left.
    options["repeats"] = 3
    again = tta_peers.against_torch(Recipe(epochs=3), changes={"learning_rate": 0.1}, resume=True, **options)
    assert len(again["done"]) == 6 and len(Twin.made) == 3


def test_a_twin_that_breaks_is_a_row(twin, tmp_path):
    Twin.breaks_at = 1
    found = tta_peers.against_torch(Recipe(epochs=3), target=0.8, repeats=1, peers=tmp_path / "peers")
    row = next(r for r in found["done"] if r["recipe"] == "against")
    assert row["status"] == "crashed" and "out of memory" in row["reason"] and row["val_accuracy"] == [0.5]
    assert found["ratio"]["train_seconds"] is None


def test_a_mode_that_is_named_is_taken_without_a_trial(tmp_path, monkeypatch):
    def contest(*_, **__):
        pytest.fail("nothing is to be tried")

    chosen = tta_peers.fastest(Recipe(), tmp_path / "python", print, "compile channels_last", contest=contest)
    assert chosen["compiled"] and chosen["channels_last"] and "OMP_NUM_THREADS" in chosen["env"]
    assert not tta_peers.fastest(Recipe(), tmp_path / "python", print, "eager", contest=contest)["channels_last"]
    monkeypatch.setattr(tta_peers.runtime, "usable_cores", lambda: 4)
    ranks = Recipe(engine="kvstore", num_devices=2)
    shared = tta_peers.fastest(ranks, tmp_path / "python", print, "eager")  # each rank has its share of the cores
    assert shared["threads"] == 2 and shared["name"] == "PyTorch eager float32, 2 ranks"


def test_of_the_modes_and_allocators_that_ran_the_fastest_are_taken(tmp_path):
    class Tried:
        def __init__(self, entrant):
            self.entrant, self.failure = entrant, None
            self.rates = [300.0, 310.0] if entrant.settings["channels_last"] else [200.0, 210.0]
            if entrant.name.endswith(", glibc"):  # the trial of allocators
                self.rates = [400.0]
            if entrant.settings["compiled"]:
                self.failure = "no compiler"

    def contest(entrants, **_):
        return [Tried(entrant) for entrant in entrants]

    chosen = tta_peers.fastest(Recipe(), tmp_path / "python", print, contest=contest)
    assert chosen["name"] == "PyTorch eager channels_last float32" and chosen["allocator"] == "glibc"
    assert any(name.startswith("MALLOC_") for name in chosen["env"])
    assert chosen["samples_per_sec"] == {"PyTorch eager float32": 205.0, "PyTorch eager channels_last float32": 305.0}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--net", "mobilenet0.25"], 2, "no PyTorch twin of 'mobilenet0.25'"),
        (["--optimizer", "adam"], 2, "optimizer='adam' has no twin"),
        (["--engine", "async", "--num-devices", "2"], 2, "engine='async' has no twin"),
        (["--against", "x.yaml"], 2, "give one of them"),
        (["--peers", "nowhere"], 1, "make peers"),
        (["--torch-set", "optimizer=adam"], 2, "optimizer='adam' has no twin"),
        (["--torch-set", "val_samples=9"], 2, "both must have the same"),
        (["--torch-set", "epochs"], 2, "--torch-set 'epochs': write FIELD=VALUE"),
        (["--torch-mode", "fast"], 2, "choose from 'eager', 'eager channels_last'"),
    ],
)
def test_what_has_no_twin_is_refused(tmp_path, monkeypatch, capfd, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    assert main(["tta", "--target", "0.8", "--against-torch", *arguments]) == code
    assert message in capfd.readouterr().err
