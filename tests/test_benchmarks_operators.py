"""Operators beside the machine's peak: sizes traced from a net, a real quick run, the roofline."""

from __future__ import annotations

import json

import pytest

from benchmarks import operators
from benchmarks.__main__ import main
from benchmarks._operator_list import default_list
from benchmarks._operators import traced
from gluontune.recipe import Recipe


def test_the_sizes_are_those_of_the_nets_layers(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "from mxnet import gluon\n"
        "from mxnet.gluon import nn, rnn\n"
        "class Net(gluon.HybridBlock):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        with self.name_scope():\n"
        "            self.one = nn.Conv2D(8, 3, strides=2, padding=1)\n"
        "            self.two = nn.Conv2D(8, 3, padding=1, groups=2)\n"
        "            self.three = nn.Conv2D(8, 3, padding=1, groups=2)\n"
        "            self.rnn = rnn.LSTM(5, layout='NTC')\n"
        "            self.out = nn.Dense(10)\n"
        "    def hybrid_forward(self, F, x):\n"
        "        x = self.three(self.two(self.one(x)))\n"
        "        return self.out(self.rnn(F.reshape(x, (0, 0, -1))))\n"
        "def net():\n"
        "    return Net()\n"
    )
    found = [c for c in traced(Recipe(job=str(job), batch_size_per_device=4), arrays=2) if c["pass"] == "forward"]
    named = {c["name"]: c for c in found}
    side = 14  # of the sample's 28 pixels
    grouped = named[f"4×8×{side}×{side}, 8 of 3×3 in 2 groups, forward"]
    assert grouped["count"] == 2 and grouped["source"] == "job"
    assert grouped["flops"] == 2 * (4 * 8 * side * side) * (8 // 2 * 9)
    assert named["lstm 5, input 196, 8 steps of 4, forward"]["flops"] == 2 * 8 * 4 * 4 * 5 * (196 + 5)
    dense = next(c for c in found if c["kind"] == "product")
    assert dense["sizes"] == {"m": 4, "n": 10, "k": 40}
    lengths = [c["sizes"]["length"] for c in found if c["kind"] == "all-reduce"]
    assert lengths[0] == 4 * 5 * 196 and lengths[1] > lengths[0]  # the largest array, and all of them


def test_a_quick_run_of_a_small_net_for_real(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    arguments = ["--net", "small_cnn", "--batch-size-per-device", "4", "--sizes", "job", "--rounds", "1", "--json"]
    arguments += ["--types", "float32,float16", "--slice", "0.002", "--html", "ops.html", "--out", "ops.json"]
    assert main(["operators", *arguments]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads((tmp_path / "ops.json").read_text())
    rows = found["rows"]
    assert {row["kind"] for row in rows} == {"product", "convolution", "all-reduce"}
    assert sum(row["kind"] == "convolution" for row in rows) == 3 * 2 * 2  # layers, passes, types
    assert found["peaks"]["flops_per_sec"]["median"] > 1e8 and found["peaks"]["bytes_per_sec"]["median"] > 1e7
    for row in rows:
        if row["dtype"] == "float32":
            assert row["status"] == "ok", row
            assert row["flops_per_sec"]["n"] == 1 and 0 < row["flops_per_sec"]["median"] < 1e13
            expected = row["flops"] / row["microseconds"]["median"] * 1e6
            assert row["flops_per_sec"]["median"] == pytest.approx(expected)
            assert row["share_of_peak"]["median"] > 0 and row["bound_by"] in ("memory", "compute")
    halves = [r for r in rows if r["dtype"] == "float16" and r["kind"] == "convolution"]
    assert halves and all(r["status"] == "failed" and "FP16" in r["reason"] for r in halves)  # MXNet has none on CPUs
    page = (tmp_path / "ops.html").read_text()
    assert "convolution in float16 did not run here: FP16" in page and "Roofline; shares of the peak" in page
    assert main(["report", "ops.json", "--out", "again.html"]) == 0
    assert "roofline: " in capfd.readouterr().out


def test_the_default_list_has_every_kind_and_quick_is_short():
    whole, short = default_list(2), default_list(2, quick=True)
    assert {c["kind"] for c in whole} == {c["kind"] for c in short} == {
        "product", "convolution", "recurrent", "all-reduce"
    }  # fmt: skip
    assert len(short) < len(whole) and len({(c["kind"], c["name"]) for c in whole}) == len(whole)


def test_a_process_that_dies_fails_its_case_alone(monkeypatch):
    asked = []

    class Fragile:
        """Ends at the first case."""

        def __init__(self, entrant, time_limit):
            self.failure, self.info, self.entrant = None, {}, entrant

        def launch(self):
            asked.append(self.entrant.name)

        def ask(self, name, **arguments):
            from gluontune.bench.contender import ContenderFailed

            if name == "peaks":
                return {"flops_per_sec": 1e9, "bytes_per_sec": 1e9}
            if arguments["case"]["kind"] == "product":
                self.failure = ContenderFailed("its process was killed by SIGILL")
                return None
            return {"per_second": 10.0}

        def close(self):
            pass

    monkeypatch.setattr(operators, "Contender", Fragile)
    found = operators.run(Recipe(), sizes="list", quick=True, dtypes=["float32"], kinds=["product", "all-reduce"])
    by_kind = {row["kind"]: row for row in found["rows"]}
    assert by_kind["product"]["status"] == "failed" and "SIGILL" in by_kind["product"]["reason"]
    assert by_kind["all-reduce"]["share_of_peak"]["n"] == 3 and len(asked) == 3  # two forms of product, two new starts


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--kind", "convolutions"], 2, "did you mean convolution"),
        (["--types", "float64"], 2, "unknown dtype 'float64'"),
        (["--sizes", "mine"], 2, "choose job, list or both"),
        (["--dataset", "cifar11"], 2, "cifar10"),
        (["--net", "mlp", "--sizes", "job", "--kind", "recurrent"], 1, "has no recurrent"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, capfd, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    assert main(["operators", *arguments]) == code
    assert message in capfd.readouterr().err
