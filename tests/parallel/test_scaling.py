"""The scaling model: deck 001's table, limits that can be worked out by hand, and the measurement it starts from."""

from __future__ import annotations

import json
import statistics

import pytest

from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.parallel.scaling import Link, Parts, exchange_ms, expected, minimum_bandwidth, slowest_ms
from gluontune.search import parts_alone as scaling

#: Deck 001's table: training samples, model MB, {batch: (seconds an epoch, GB/s required)}.
DECK_TABLE: dict[str, tuple[float, float, dict[int, tuple[float, float]]]] = {
    "Joule": (2.46e3, 7.69, {
        1: (5.61, 7.00), 2: (3.22, 6.10), 4: (1.77, 5.54), 8: (1.00, 4.89),
        16: (0.75, 3.27), 32: (0.72, 1.69), 64: (0.80, 0.76), 128: (1.00, 0.31),
    }),
    "Watt": (7e3, 20.72, {
        1: (25.22, 11.50), 2: (14.11, 10.28), 4: (7.46, 9.72), 8: (4.06, 8.93),
        16: (2.79, 6.49), 32: (2.38, 3.82), 64: (2.37, 1.91), 128: (2.77, 0.82),
    }),
    "Age": (68.48e3, 72.86, {
        1: (574.80, 17.36), 2: (309.51, 16.12), 4: (169.99, 14.68), 8: (104.39, 11.95),
        16: (77.79, 8.02), 32: (69.52, 4.49), 64: (77.14, 2.02), 128: (100.22, 0.78),
    }),
    "Yelp": (500e3, 98.60, {
        1: (4376.12, 22.53), 2: (2367.04, 20.83), 4: (1299.42, 18.97), 8: (802.04, 15.37),
        16: (571.10, 10.79), 32: (451.61, 6.82), 64: (403.69, 3.82), 128: (402.97, 1.91),
    }),
    "CIFAR": (50e3, 59.97, {
        2: (792.45, 3.78), 4: (502.63, 2.98), 8: (356.46, 2.10),
        16: (290.95, 1.29), 32: (261.23, 0.72), 64: (245.68, 0.38), 128: (234.38, 0.20),
    }),
    "ImageNet": (1280e3, 244.48, {
        2: (26957.54, 11.61), 4: (15596.41, 10.03), 8: (9499.38, 8.24),
        16: (7294.30, 5.36), 32: (5769.76, 3.39), 64: (5014.85, 1.95), 128: (4784.22, 1.02),
    }),
}  # fmt: skip


def test_the_decks_minimum_bandwidths_are_reproduced():
    cells = [
        (task, required, minimum_bandwidth(1e6 * megabytes, samples, batch, seconds))
        for task, (samples, megabytes, of) in DECK_TABLE.items()
        for batch, (seconds, required) in of.items()
    ]
    assert len(cells) == 46
    for task, required, model in cells:
        # The deck gives two decimals, and rounds Joule's number of samples: all of its cells are 3-5 % off.
        assert model == pytest.approx(required, rel=0.05 if task == "Joule" else 0.01, abs=0.006), task
    joule = [model / required for task, required, model in cells if task == "Joule" and required > 1]
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
    ],
)
def test_bad_numbers_are_named(work, words):
    with pytest.raises(UsageError, match=words):
        work()


def test_scale_measures_here_and_says_that_it_is_a_model(capfd, monkeypatch):
    monkeypatch.setattr(scaling, "_WINDOWS", 2)
    monkeypatch.setattr(scaling, "_WINDOW_S", 0.1)
    argv = ["scale", "--net", "softmax", "--loader", "resident", "--devices", "cpu", "--to", "8,512", "--json"]
    argv += ["--bandwidth", "0.001,10"]
    assert main([*argv, "--set", "env={OMP_NUM_THREADS: '1'}"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert "This is a model" in found["note"] and found["parts"]["step_ms"] > 0
    assert found["parts"]["tensors"] == 2 and found["parts"]["gradient_bytes"] % 40 == 0  # of ten classes
    rows = {(r["algorithm"], r["gb_per_sec"], r["devices"]): r["efficiency"] for r in found["rows"]}
    assert len(rows) == 8 and rows["ring", 10.0, 512] > rows["ring", 0.001, 512]
    assert main(["scale", "--to", "8,many"]) == 2 and "--to '8,many'" in capfd.readouterr().err
