"""The scaling model: deck 001's table, limits that can be worked out by hand, and the measurement it starts from."""

from __future__ import annotations

import json
import statistics

import pytest

from gluontune.cli.main import main
from gluontune.errors import UsageError
from gluontune.ladder import scaling
from gluontune.parallel.scaling import (
    DECK_TABLE,
    Link,
    Parts,
    deck_check,
    exchange_ms,
    expected,
    fit_link,
    slowest_ms,
)


def test_the_decks_minimum_bandwidths_are_reproduced():
    cells = deck_check()
    assert len(cells) == sum(len(table) for _, _, table in DECK_TABLE.values()) == 46
    for cell in cells:
        # The deck gives two decimals, and rounds Joule's number of samples: all of its cells are 3-5 % off.
        near = 0.05 if cell["task"] == "Joule" else 0.01
        assert cell["model"] == pytest.approx(cell["deck"], rel=near, abs=0.006), cell
    joule = [c["model"] / c["deck"] for c in cells if c["task"] == "Joule" and c["deck"] > 1]
    assert max(joule) - min(joule) < 0.011  # one and the same factor


def test_a_ring_carries_at_most_twice_the_bytes_and_a_server_all_of_them():
    link = Link(gb_per_sec=1.0)
    ring = [exchange_ms(1e6, n, link) for n in (1, 2, 4, 512)]
    assert ring == pytest.approx([0.0, 1.0, 1.5, 2.0], rel=0.01)
    assert exchange_ms(1e6, 8, link, "parameter-server", servers=1) == pytest.approx(16.0)
    assert exchange_ms(1e6, 8, link, "parameter-server", servers=8) == pytest.approx(2.0)
    slow = Link(1.0, latency_us=100.0, overhead_ms=0.5, tensor_us=10.0)
    assert exchange_ms(0, 8, slow, tensors=100) == pytest.approx(0.5 + 14 * 0.1 + 1.0)


def test_what_holds_many_devices_back():
    parts = Parts([10.0], 1e6, 32)
    assert expected(parts, 1, Link(1))["efficiency"] == 1.0
    assert expected(parts, 8, Link(1e5))["bound_by"] == "compute"
    found = expected(parts, 512, Link(0.2))
    assert found["bound_by"] == "exchange" and found["efficiency"] == pytest.approx(0.5, abs=0.01)
    assert expected(Parts([10.0] * 9 + [30.0], 1e3, 32), 512, Link(10))["bound_by"] == "stragglers"
    fed = expected(Parts([10.0], 1e3, 32, loader_samples_per_sec=1600.0), 8, Link(10))
    assert fed["step_ms"] == pytest.approx(20.0) and fed["efficiency"] == 1.0  # each brings its own loader
    one_source = expected(Parts([10.0], 1e3, 32, shared_loader_samples_per_sec=6400.0), 8, Link(10))
    assert one_source["bound_by"] == "input" and one_source["efficiency"] == pytest.approx(0.25)
    hidden = expected(Parts([10.0], 1e6, 32, hidden=1.0), 512, Link(0.2))
    assert hidden["efficiency"] == 1.0 and hidden["exchange_ms"] == pytest.approx(10.0, rel=0.01)


def test_the_slowest_of_many_is_the_slowest_measured():
    times = [float(t) for t in range(1, 11)]
    assert slowest_ms(times, 1) == pytest.approx(5.5)
    assert slowest_ms(times, 2) == pytest.approx(statistics.mean(max(a, b) for a in times for b in times))
    assert slowest_ms(times, 10_000) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: Link(0), "bandwidth 0 GB/s"),
        (lambda: Parts([], 1, 1), "step_ms"),
        (lambda: exchange_ms(1, 2, Link(1), "tree"), "ring, parameter-server"),
        (lambda: fit_link([{"bytes": 1, "tensors": 1, "ms": 1.0}]), "two sizes"),
    ],
)
def test_bad_numbers_are_named(work, words):
    with pytest.raises(UsageError, match=words):
        work()


def test_scale_measures_here_and_says_that_it_is_a_model(capfd, monkeypatch):
    monkeypatch.setattr(scaling, "_WINDOWS", 2)
    monkeypatch.setattr(scaling, "_WINDOW_S", 0.1)
    argv = [
        "scale",
        "--net",
        "softmax",
        "--loader",
        "resident",
        "--devices",
        "cpu",
        "--to",
        "8,512",
        "--json",
    ]
    argv += ["--bandwidth", "0.001,10"]
    assert main([*argv, "--set", "env={OMP_NUM_THREADS: '1'}"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert "This is a model" in found["note"] and found["parts"]["step_ms"] > 0
    assert found["parts"]["tensors"] == 2 and found["parts"]["gradient_bytes"] % 40 == 0  # of ten classes
    rows = {(r["algorithm"], r["gb_per_sec"], r["devices"]): r["efficiency"] for r in found["rows"]}
    assert len(rows) == 8 and rows["ring", 10.0, 512] > rows["ring", 0.001, 512]
    assert main(["scale", "--to", "8,many"]) == 2 and "--to '8,many'" in capfd.readouterr().err
