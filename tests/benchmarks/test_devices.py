"""Ranks against one process: what is compared, and how it is told."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks import devices
from benchmarks.__main__ import main
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.search.bench import benchmark as outcome
from gluontune.search.bench.contender import Contender


def test_all_train_with_the_same_global_batch_and_rate():
    recipe = devices.best_recipe("sample", global_batch_size=96)
    field = devices.entrants(recipe, 3, devices.ENGINES)
    made = [Recipe.from_dict(e.settings["recipe"]) for e in field]
    assert [r.engine for r in made] == ["local", "shared-memory", "horovod", "kvstore", "local", "ddp"]
    assert [r.batch_size_per_device for r in made] == [96, 32, 32, 32, 96, 32]
    assert len({(r.global_batch_size, r.scaled_learning_rate, r.dtype) for r in made}) == 1
    assert len({r.rewrites for r in made[:4]}) == 1
    assert [r.backend for r in made] == ["mxnet"] * 4 + ["torch"] * 2
    with pytest.raises(UsageError, match="96 cannot be shared evenly by 5 ranks"):
        devices.entrants(recipe, 5, ("kvstore",))


def test_a_ratio_is_that_within_rounds_and_a_failure_is_a_row(monkeypatch):
    def hold(entrants, **kwargs):
        found = [Contender(entrant) for entrant in entrants]
        for contender, rates in zip(found, ([100.0, 200.0, 400.0], [90.0, 180.0, 360.0])):
            contender.rates = rates
        return found

    monkeypatch.setattr(devices.horovod, "installed", lambda: "0.28.1")
    found = devices.run(devices.best_recipe("sample"), engines=("horovod", "kvstore"), rounds=3, contest=hold)
    assert found["ratios"].keys() == {"Horovod, 2 ranks"}
    assert found["ratios"]["Horovod, 2 ranks"]["median"] == pytest.approx(0.9)
    assert [row["status"] for row in found["rows"]] == ["ok", "ok", "failed"]
    console = Console(width=200, record=True)
    devices.show(found, console)
    assert "Horovod, 2 ranks ÷ 1 process: 0.90 (0.90-0.90)" in console.export_text()
    assert outcome.UNIT not in found["rows"][0] and devices.UNIT in found["rows"][0]


def test_an_engine_that_is_not_there_is_refused(monkeypatch, capsys):
    assert main(["devices", "--only", "mpi"]) == 2
    assert "choose from shared-memory, horovod, kvstore, ddp" in capsys.readouterr().err
    monkeypatch.setattr(devices.horovod, "installed", lambda: None)
    with pytest.raises(UsageError, match="make horovod"):
        devices.run(devices.best_recipe("sample"))


def test_ddp_is_compared_with_one_process_of_its_engine():
    rates = {
        "1 process": [100.0] * 3,
        "1 process, PyTorch": [200.0] * 3,
        "DistributedDataParallel, 2 ranks": [220.0] * 3,
    }

    def hold(entrants, **kwargs):
        found = [Contender(entrant) for entrant in entrants]
        for contender in found:
            contender.rates = rates[contender.entrant.name]
        return found

    found = devices.run(devices.best_recipe("sample"), engines=("ddp",), rounds=3, contest=hold)
    assert {name: ratio["median"] for name, ratio in found["ratios"].items()} == {
        "DistributedDataParallel, 2 ranks": pytest.approx(1.1)
    }
