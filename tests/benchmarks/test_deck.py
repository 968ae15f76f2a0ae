"""oneDNN off and on over the deck's networks: the document by given figures, and two networks for real."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import deck
from benchmarks.__main__ import main
from benchmarks._deck import make
from gluontune.core.errors import UsageError


class Given:
    """A contender with given figures."""

    def __init__(self, entrant):
        self.entrant, self.failure = entrant, None
        off = "MXNET_MKLDNN_ENABLED" in entrant.env
        self.rates = [10.0, 10.0] if off else [40.0, 90.0]
        self.answer = [1.0, -2.0] if off else [1.0, -2.002]

    def ask(self, name):
        return self.answer


def test_the_decks_table_has_speedups_their_mean_and_the_delta_of_the_outputs(tmp_path, capsys):
    def hold(entrants, *, finish, **_):
        field = [Given(entrant) for entrant in entrants]
        if entrants[0].settings["name"] == "VGG16":
            field[0].failure = "no memory"
        finish(field)
        return field

    out = tmp_path / "deck.json"
    found = deck.run(["AlexNet", "VGG"], batch_size=4, out=out, contest=hold)
    assert found == json.loads(out.read_text())
    vgg, alexnet = found["rows"]
    assert vgg["status"] == "failed" and "oneDNN off, batch 1: no memory" in vgg["reason"]
    assert alexnet["throughput"]["speedup"]["median"] == pytest.approx(6.5)
    assert alexnet["deck"] == {"latency": 17.0, "throughput": 36.32}
    assert alexnet["output_delta"] == pytest.approx(0.001)
    assert found["geometric_mean"]["throughput"] == pytest.approx(6.5) and found["ours"] == ["AlexNet"]
    asked = []

    def recorded(entrants, **options):
        asked.append(entrants)
        return hold(entrants, **options)

    again = deck.run(["AlexNet", "VGG"], batch_size=4, out=out, resume=True, contest=recorded)
    deck.show(again, Console(width=80))
    shown = capsys.readouterr().out
    assert "36.32" in shown and "VGG16: failed: " in shown and "…" not in shown
    assert {e.settings["name"] for pair in asked for e in pair} == {"VGG16"}  # what failed is tried again
    with pytest.raises(UsageError, match="other conditions"):
        deck.run(["AlexNet"], batch_size=8, out=out, resume=True)


@pytest.mark.parametrize("name", ["DCGAN (small stand-in)", "GNMT (small stand-in)"])
def test_a_network_of_the_deck_gives_the_same_outputs_each_time(name):
    first, second = make(name, 2), make(name, 1)
    assert first.step() == 2
    assert len(first.outputs()) == 2000 and first.outputs() == pytest.approx(second.outputs(), abs=1e-5)


def test_a_network_that_is_not_in_the_deck(capfd):
    assert main(["deck", "--only", "Transformer"]) == 2
    assert "no network" in capfd.readouterr().err
