"""``gluontune bench gpu``: every part a row, whatever fails; its parts on the CPU; what others print."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from waiting import until

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe.result import RunResult
from gluontune.report import write_document_html
from gluontune.search.bench import gpu
from gluontune.search.bench._gluon_training import EngineWork
from gluontune.search.bench.contender import Contender, ContenderFailed

RATE = {"median": 100.0, "ci95": [90.0, 110.0], "n": 3}
CARD = {"index": 0, "name": "NVIDIA Test", "memory_mib": None, "compute_capability": [8, 6]}
AIRBENCH = """print("|  run  |  epoch  |  val_acc  |  tta_val_acc  |  time_seconds  |")
for run, flipped, seconds in (("warmup", 0.91, 9), ("1", 0.9405, 3.4), ("2", 0.2, 1)):
    print(f"|  {run} |  7 |  0.9 |   |  {seconds} |")
    print(f"|  {run} |  eval |  0.934 |  {flipped} |  {seconds} |", flush=True)
import time
time.sleep(600)
"""


@pytest.fixture
def quick(monkeypatch):
    """Contests and trainings that return at once; ``seen.recipes`` are those that were asked for."""
    seen = SimpleNamespace(recipes=[], entrants=[], fail=set(), killed=None, cards=[[8, 6]])

    def contest(entrants, **how):
        found = [Contender(entrant) for entrant in entrants]
        for one in found:
            seen.entrants.append(one.entrant)
            if seen.killed == len(seen.entrants):
                raise KeyboardInterrupt
            if one.entrant.name in seen.fail:
                one.failure = ContenderFailed("out of memory in a step of 512 images; 432 fit")
            one.rates, one.info = [100.0, 110.0, 90.0], {"notes": ["TF32"], "capabilities": seen.cards}
        return found

    def train(recipe, **how):
        seen.recipes.append(recipe)
        if "training" in seen.fail:
            raise ValueError("no NCCL")
        result = RunResult(recipe=recipe.to_dict(), samples_per_sec=RATE, val_accuracy=[0.95], elapsed_seconds=[7.5])
        result.utilization = {"gpu_util_pct": {"0": [None, 90.0, 100.0]}}
        return result

    monkeypatch.setattr(gpu, "train", train)
    monkeypatch.setattr("shutil.which", lambda name: None)
    seen.contest = contest
    return seen


@pytest.fixture
def card(monkeypatch):
    facts = {**gpu.machine_facts(), "gpus": [CARD], "gpu_status": "ok"}
    monkeypatch.setattr(gpu, "machine_facts", lambda: facts)
    monkeypatch.setattr(gpu, "can_run_mxnet_on_gpu", lambda: (True, "1 GPU"))
    return facts


def by_name(found):
    return {(r["part"], r["name"]): r for r in found["rows"]}


def test_without_a_gpu_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr(gpu, "machine_facts", lambda: {"gpus": [], "gpu_status": "no-driver"})
    with pytest.raises(GluontuneError, match=r"no GPU here \(no-driver\); --pretend"):
        gpu.run()


def test_every_part_is_a_row_and_what_fails_ends_nothing(quick, card, tmp_path):
    quick.fail = {"PyTorch, float32, channels-last", "training"}
    found = gpu.run(out=tmp_path / "gpu.json", contest=quick.contest)
    rows = by_name(found)
    failed = rows["Steps of cifar_resnet20_v1", "PyTorch, float32, channels-last"]
    assert failed["status"] == "failed" and "432 fit" in failed["reason"]
    assert rows["Monitor", "Monitor"]["reason"] == "ValueError: no NCCL"
    assert rows["Steps of cifar_resnet20_v1", "MXNet, bfloat16, static"]["status"] == "missing"
    assert "no bfloat16 kernels for a GPU" in rows["Steps of cifar_resnet20_v1", "MXNet, bfloat16, static"]["reason"]
    graphs = rows["Steps of resnet50_v1", "PyTorch, bfloat16, channels-last, compiled, CUDA graphs"]
    assert graphs["samples_per_sec"]["median"] == 100.0 and graphs["batch"] == 128 and graphs["reason"] == "TF32"
    assert rows["Loader and device", "share of the slower one that is reached"]["share_pct"] == 100.0
    assert rows["What is there", "GPU 0"]["memory_mib"] == "N/A", "withheld, as by a MIG slice: never 0"
    assert rows["Two ranks", "two ranks by NCCL"]["status"] == "missing"
    assert rows["Time to accuracy", "airbench94"]["status"] == "missing"
    assert len({r["part"] for r in found["rows"]}) == 8
    assert found["headline"].startswith("NVIDIA Test: ") and "PyTorch, float32, channels-last" in found["headline"]
    assert {e.settings["recipe"]["devices"] for e in quick.entrants if e.settings} == {"gpu"}


def test_a_killed_run_goes_on_and_tries_failed_parts_again(quick, card, tmp_path):
    quick.killed, quick.fail = 4, {"training"}
    with pytest.raises(KeyboardInterrupt):
        gpu.run(out=tmp_path / "gpu.json", contest=quick.contest)
    quick.killed = None
    gpu.run(out=tmp_path / "gpu.json", contest=quick.contest, resume=True)
    before = len(quick.entrants)
    assert before == 22 + 1, "only the killed contender twice; of the rest each once"
    quick.fail = set()
    found = gpu.run(out=tmp_path / "gpu.json", contest=quick.contest, resume=True)
    assert len(quick.entrants) == before, "what was measured is kept"
    rows = by_name(found)
    assert {r.devices for r in quick.recipes} == {"gpu"}
    assert rows["Monitor", "after: resident"]["nvml_pct"] == 95.0
    assert rows["Time to accuracy", "cifar10-80"]["seconds"] == 7.5
    assert rows["Time to accuracy", "cifar10-80, eager float32 with NAG"]["status"] == "ok"


def test_an_engine_that_cannot_use_the_card_is_not_tried(quick, card, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "can_run_mxnet_on_gpu", lambda: (False, "no machine code for 9.0"))
    quick.cards = []
    rows = by_name(gpu.run(out=tmp_path / "gpu.json", contest=quick.contest))
    steps = [r for (part, _), r in rows.items() if part.startswith("Steps of")]
    assert {(r["status"], r["reason"]) for r in steps} == {
        ("missing", "no machine code for 9.0"), ("missing", "it sees no GPU")}  # fmt: skip
    assert len(quick.entrants) == 1 + 3, "PyTorch's sight, and the loader's three"


def test_when_the_minutes_are_over_the_rest_is_skipped_until_a_resume(quick, card, tmp_path):
    found = gpu.run(out=tmp_path / "gpu.json", contest=quick.contest, minutes=0.0)
    assert {r["status"] for r in found["rows"]} == {"skipped"} and not quick.recipes


def test_two_gpus_are_two_ranks(quick, card, tmp_path):
    card["gpus"].append({**CARD, "index": 1})
    try:
        rows = by_name(gpu.run(out=tmp_path / "gpu.json", contest=quick.contest))
    finally:
        card["gpus"].pop()
    assert rows["Two ranks", "two ranks"]["efficiency_pct"] == 50.0
    assert [(r.engine, r.num_devices) for r in quick.recipes][-2:] == [("local", 1), ("ddp", 2)]


def test_airbench_stands_beside_ours_after_its_warm_up(quick, card, tmp_path):
    script = tmp_path / "airbench94.py"
    script.write_text(AIRBENCH)
    row = by_name(gpu.run(airbench=str(script), contest=quick.contest))["Time to accuracy", "airbench94"]
    assert (row["seconds"], row["flipped"], row["status"]) == (3.4, 0.9405, "ok")
    script.write_text("print('nothing')")
    row = by_name(gpu.run(airbench=str(script), contest=quick.contest))["Time to accuracy", "airbench94"]
    assert row["status"] == "failed" and "no second run" in row["reason"]
    with pytest.raises(UsageError, match="no such file"):
        gpu.run(airbench="nowhere.py")


def test_nvidia_smi_stands_beside_nvml(quick, card, tmp_path, monkeypatch):
    smi, printed = tmp_path / "nvidia-smi", tmp_path / "printed"
    smi.write_text(f'#!/bin/sh\n"exec" "{sys.executable}" "$0"\n'
                   f"import pathlib, time\nprint('90, 800\\n[N/A], 900', flush=True)\n"
                   f"pathlib.Path({str(printed)!r}).touch()\ntime.sleep(600)\n")  # fmt: skip
    smi.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(smi))
    usual = gpu.train

    def train(recipe, **how):
        if recipe.net == "cifar_resnet20_v1" and recipe.seconds == 12.0:
            until(printed.exists)
            printed.unlink()
        return usual(recipe, **how)

    monkeypatch.setattr(gpu, "train", train)
    row = by_name(gpu.run(contest=quick.contest))["Monitor", "after: resident"]
    assert (row["nvidia_smi_pct"], row["nvidia_smi_mib"], row["nvml_pct"]) == (90.0, 900.0, 95.0)


def test_a_page_that_was_pretended_says_so_first(quick, tmp_path):
    found = gpu.run(pretend=True, contest=quick.contest)
    write_document_html(found, tmp_path / "gpu.html")
    page = (tmp_path / "gpu.html").read_text()
    assert f"<h1>{gpu.PRETENDED}</h1>" in page and 'class="warn"' in page
    assert {e.settings["recipe"]["devices"] for e in quick.entrants if e.settings} == {"cpu"}
    assert {r.devices for r in quick.recipes} == {"cpu"}


@pytest.mark.parametrize(("backend", "part"), [("mxnet", "step"), ("torch", "both"), ("torch", "loader")])
def test_the_work_is_the_engines_own(backend, part):
    if backend == "torch":
        pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    recipe = {"net": "mlp", "dataset": "sample", "loader": "resident", "train_samples": 64, "val_samples": 16}
    work = EngineWork({**recipe, "batch_size_per_device": 16, "backend": backend, "epochs": 9.0}, part)
    try:
        assert [work.step() for _ in range(6)] == [16] * 6, "over the end of an epoch, too"
        work.sync()
        assert set(work.info["versions"]) == {backend} and work.remarks() == []
    finally:
        work.close()


@pytest.mark.slow
def test_pretended_from_end_to_end(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    code = main(["bench", "gpu", "--pretend", "--out", str(out)])
    document = json.loads(out.read_text())
    failed = [r for r in document["rows"] if r["status"] in ("failed", "skipped")]
    assert failed == [] and code == 0
    assert gpu.PRETENDED in out.with_suffix(".html").read_text() and gpu.PRETENDED in " ".join(
        capsys.readouterr().out.split()
    )
