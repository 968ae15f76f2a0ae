"""The rungs of inference: the document by given figures, and a small real run of every rung."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gluontune import datasets
from gluontune.cli.main import main
from gluontune.search.bench import _inference, inference


@pytest.mark.slow
def test_rungs_answer_as_the_float32_net_does(capfd):
    arguments = ["--net", "small_cnn", "--rounds", "2", "--seconds", "0.05", "--batch-size", "32", "--json"]
    arguments += ["--rungs", "fused,int8,onnxruntime,onnxruntime-int8", "--val-images", "200", "--latencies", "20"]
    assert main(["bench", "inference", *arguments]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["name"]: row for row in found["rows"]}
    ran = {name: row for name, row in rows.items() if row["status"] == "ok"}
    assert list(ran) == ["hybridized", "fused", "int8", "onnxruntime", "onnxruntime-int8"], rows
    for name, row in ran.items():
        late = row["latency_ms"]
        assert late["n"] == 20 and 0 < late["p50"] <= late["p90"] <= late["p99"]
        cores = found["conditions"]["threads"]
        tried = {cores} if "onnxruntime" in name else {1, cores}  # MXNet's rungs with one thread, too
        assert set(late["p50_by_threads"]) == {str(count) for count in tried}
        assert late["p50"] == min(late["p50_by_threads"].values())
        assert late["p50"] == late["p50_by_threads"][str(late["threads"])]
        assert row["images_per_sec"]["n"] == 2
        exact = "int8" not in name
        assert row["output_error"] < (1e-4 if exact else 0.3) and row["agree_pct"] >= (99.5 if exact else 80), row
    for name in ("int8", "onnxruntime-int8"):
        assert ran[name]["output_error"] > 1e-4  # it is really another arithmetic
    assert rows["TensorRT"]["status"] == "not run here" and rows["TensorRT"]["reason"]
    assert found["best"]["agree_pct"] >= 99 and found["conditions"]["weights"] == "random"


def test_bfloat16_is_not_run_where_the_cpu_only_emulates_it(monkeypatch):
    from gluontune.compute.process import bfloat16_support
    from gluontune.recipe import Recipe

    seen = []

    def hold(entrants, **_):
        seen.extend(entrant.name for entrant in entrants)
        raise KeyboardInterrupt

    for flags, there in (({"avx512f"}, False), ({"avx512_bf16"}, True)):
        seen.clear()
        monkeypatch.setattr(inference, "bfloat16_support", lambda flags=flags: bfloat16_support(flags))
        with pytest.raises(KeyboardInterrupt):
            inference.run(Recipe(), contest=hold)
        assert ("bfloat16" in seen) is there and "onnxruntime-int8" in seen
        seen.clear()
        with pytest.raises(KeyboardInterrupt):
            inference.run(Recipe(), modes=["bfloat16"], contest=hold)
        assert seen == ["hybridized", "bfloat16"]  # asked for by name, it runs anyway


class OneImage:
    """A process of a rung that predicts one image: more slowly, the more threads it was given."""

    def __init__(self, entrant):
        self.entrant, self.failure, self.closed = entrant, None, False
        self.rates, self.info, self.memory_mib = [9.0, 10.0], {}, 1.0

    def launch(self):
        if self.entrant.name == "static":
            self.failure = "killed"

    def ask(self, name, **arguments):
        if name == "predict_all":
            return {"scores": [[0.0, 1.0]], "accuracy": 1.0}
        threads = int(self.entrant.env["OMP_NUM_THREADS"])
        return None if self.failure else [2.5 * threads] * arguments["count"]

    def close(self):
        self.closed = True


def test_one_thread_is_tried_for_one_image_and_a_failure_of_it_costs_no_row(monkeypatch, capsys):
    from rich.console import Console

    from gluontune.recipe import Recipe

    made, said = [], []

    def hold(entrants, *, finish, **_):
        field = [OneImage(entrant) for entrant in entrants]
        finish(field)
        return field

    monkeypatch.setattr(inference, "Contender", lambda entrant: made.append(OneImage(entrant)) or made[-1])
    monkeypatch.setattr(inference.runtime, "usable_cores", lambda: 4)
    found = inference.run(Recipe(), modes=["hybridized", "static", "onnxruntime"], say=said.append, contest=hold)
    late = {row["name"]: row["latency_ms"] for row in found["rows"] if row["status"] == "ok"}
    assert late["hybridized"]["p50_by_threads"] == {"4": 10.0, "1": 2.5}
    assert late["hybridized"]["p50"] == 2.5 and late["hybridized"]["threads"] == 1
    assert late["static"]["p50_by_threads"] == {"4": 10.0} and late["static"]["p50"] == 10.0
    assert [contender.closed for contender in made] == [True, True]
    assert any(line == "static with one thread: killed" for line in said)
    inference.show(found, Console(width=80))
    shown = capsys.readouterr().out
    assert "OMP_NUM_THREADS=1 (hybridized: 2.50 ms, with all threads 10.00)" in " ".join(shown.split())
    assert "…" not in shown


def test_the_best_rung_is_the_fastest_of_those_that_answer_alike():
    def row(name, gain, agree):
        ratio = {"median": gain, "ci95": [gain, gain]} if gain else None
        return {"name": name, "ratio_to_hybridized": ratio, "agree_pct": agree, "accuracy": 0.5}

    rows = [row("a", 1.0, 100.0), row("b", 3.0, 98.9), row("c", 2.0, 99.1), row("broken", None, None)]
    assert inference._best(rows)["name"] == "c"
    assert inference._best([row("broken", None, None)]) is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--rungs", "int9"], 2, "did you mean int8"),
        (["missing.params"], 1, "no such file"),
        (["--dataset", "cifar11"], 2, "cifar10"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, capfd, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "inference", *arguments]) == code
    assert message in capfd.readouterr().err


def test_images_that_int8_is_judged_on_are_not_measured():
    found = SimpleNamespace(data=datasets.open("sample"), image_shape=(28, 28, 1))
    measured, labels = _inference._decoded(found, "test", 90)
    judged, _ = _inference._decoded(found, "test", 60, skip=90)
    assert measured.shape == (90, 1, 28, 28) and len(labels) == 90 and len(judged) == 60
    assert not {image.tobytes() for image in measured} & {image.tobytes() for image in judged}
