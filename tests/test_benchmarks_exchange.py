"""Engines at small batches, and the interval between exchanges, on pretended engines."""

from __future__ import annotations

import json

import pytest

from benchmarks import exchange as bench
from benchmarks.__main__ import main
from benchmarks._link import fit_link
from benchmarks.pages.exchange import write_exchange_html
from gluontune.errors import UsageError
from gluontune.result import RunResult


@pytest.fixture
def pretended(monkeypatch):
    """Rates and accuracies of pretended engines."""
    speed = {"async": 160.0, "horovod": 100.0, "kvstore": 90.0, "shared-memory": 110.0}

    def throughput(recipes, rounds, seconds, say):
        return {
            label: {
                "rates": [speed[r.engine] * (1 + min(r.exchange_every, 9) / 10) * (1 + k / 100) for k in range(rounds)],
                "failure": None,
            }
            for label, r in recipes.items()
        }

    def train(recipe):
        accuracy = 0.9 - 0.001 * recipe.exchange_every - (0.03 if recipe.engine == pretended_worse else 0)
        result = RunResult(recipe=recipe.to_dict(), val_accuracy=[0.5, accuracy], train_loss=[1.0, 0.5])
        result.utilization = {"cpu_pct": [50.0, None, 70.0]}
        return result

    pretended_worse = None

    def make(worse=None):
        nonlocal pretended_worse
        pretended_worse = worse

    monkeypatch.setattr(bench, "_throughput", throughput)
    monkeypatch.setattr(bench, "train", train)
    monkeypatch.setattr("gluontune.parallel.horovod.installed", lambda: "0.28.1")
    return make


def test_the_contest_of_engines_holds_its_bar_or_not(pretended, tmp_path, capfd):
    argv = ["exchange", "--batch-size", "2,4", "--out", str(tmp_path)]
    assert main(argv) == 0
    found = json.loads((tmp_path / "exchange.json").read_text())
    row = next(r for r in found["rows"] if r["name"] == "batch 4, horovod")
    assert row["async_ratio"]["median"] == pytest.approx(1.6) and found["complete"]
    assert "async ÷ horovod 1.60" in found["sentence"]
    assert "<svg" in (tmp_path / "exchange.html").read_text()
    pretended(worse="async")
    capfd.readouterr()
    assert main([*argv, "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["points"] == pytest.approx(-3.0)


def test_the_interval_costs_accuracy_and_wins_time(pretended, tmp_path):
    found = bench.run("interval", batches=[4], intervals=[1, 8], engines=["async"], out=tmp_path)
    first, last = found["rows"]
    assert first["utilization"]["median"] < last["utilization"]["median"] < 1
    assert first["val_accuracy"]["median"] > last["val_accuracy"]["median"] and first["cpu_pct"] == 60.0
    write_exchange_html(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Joule" in page and "time spent training" in page
    again = bench.run("interval", batches=[4], intervals=[1, 8], engines=["async"], out=tmp_path, resume=True)
    assert again["done"] == found["done"]
    with pytest.raises(UsageError, match="carrier"):
        bench.run("engines", engines=["carrier"])


def test_a_link_is_fitted_to_two_sizes_at_least():
    with pytest.raises(UsageError, match="two sizes"):
        fit_link([{"bytes": 1, "tensors": 1, "ms": 1.0}])
