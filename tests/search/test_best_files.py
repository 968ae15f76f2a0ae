"""What a climb leaves in the user's hand: the recipe, the script, and the proof's words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gluontune import train
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.report import sentence_parts
from gluontune.search import results_store
from gluontune.search.proof import _conclude

RATIO = {"median": 1.3, "ci95": [1.2, 1.4], "n": 6}


def climbed(**changes):
    base = Recipe(epochs=1, val_samples=2000)
    fields = {"runtime": "tuned", "loader": "resident", "hybridize": "static", "rewrites": ["pool-to-mean"]}
    best = base.override(**{**fields, **changes})
    rungs = [
        {"name": "naive", "kept": True, "recipe": base.to_dict(), "changes": {}, "ratio_to_previous": None},
        {"name": "environment", "kept": True, "changes": {"runtime": "tuned"}, "ratio_to_previous": RATIO},
        {"name": "records", "kept": True, "changes": {"loader": "resident"}, "ratio_to_previous": RATIO},
        {"name": "hybridized", "kept": False, "changes": {"dtype": "bfloat16"}, "ratio_to_previous": RATIO},
    ]
    return {
        "base_recipe": base.to_dict(),
        "best": {"name": "records", "recipe": best.to_dict()},
        "dataset": {"name": "sample"},
        "rungs": rungs,
    }


def test_the_recipe_says_what_each_change_brought_and_carries_nothing_of_the_quick_climb(tmp_path):
    assert results_store.write_best(climbed(), tmp_path) == {"yaml": "best.yaml", "script": "best.py", "reason": None}
    text = (tmp_path / "best.yaml").read_text()
    assert "runtime: tuned  # environment: 1.30x the speed here" in text
    read = Recipe.from_yaml(tmp_path / "best.yaml")
    assert (read.loader, read.rewrites, read.hybridize) == ("resident", ("pool-to-mean",), "static")
    fields = [line.split(":")[0] for line in text.splitlines() if not line.startswith("#")]
    assert not {"epochs", "dataset", "val_samples", "train_samples", "seed"} & set(fields)
    assert "bfloat16" not in text and "epochs" in text  # the length is spoken of, in a comment


def test_a_shorter_schedule_that_was_kept_is_a_change_of_its_own(tmp_path):
    results_store.write_best(climbed(epochs=0.5), tmp_path)
    assert Recipe.from_yaml(tmp_path / "best.yaml").epochs == 0.5


def test_the_script_is_short_plain_and_does_not_train_by_our_loop(tmp_path):
    results_store.write_best(climbed(), tmp_path)
    text = (tmp_path / "best.py").read_text()
    ast.parse(text)
    assert len(text.splitlines()) <= 120 and max(map(len, text.splitlines())) <= 120
    assert "gt.train" not in text and "autograd.record" in text and "trainer.step" in text
    assert "'resident'" in text and "pool-to-mean" in text and "OMP_NUM_THREADS" in text
    assert text.count("# environment: 1.30x the speed here") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "kvstore", "num_devices": 2},
        {"engine": "shared-memory", "num_devices": 2, "exchange_every": 4},
        {"dtype": "float16"},
    ],
)
def test_where_a_plain_script_cannot_say_it_none_is_written_and_that_is_said(tmp_path, changes):
    (tmp_path / "best.py").write_text("of an earlier climb")
    found = results_store.write_best(climbed(**changes), tmp_path)
    assert found["script"] is None and found["reason"] and not (tmp_path / "best.py").exists()
    assert (tmp_path / "best.yaml").exists() and not (tmp_path / "best.previous.yaml").exists()
    assert (tmp_path / "best.previous.py").read_text() == "of an earlier climb"


@pytest.mark.parametrize("best", [None, {"name": "naive", "recipe": Recipe().to_dict()}])
def test_where_nothing_is_better_an_earlier_climbs_files_are_set_aside(tmp_path, best):
    results_store.write_best(climbed(), tmp_path)
    assert results_store.write_best({**climbed(), "best": best}, tmp_path) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.previous.py", "best.previous.yaml"]


REGRESSION = """
import numpy as np
from mxnet import gluon, metric as metrics
from mxnet.gluon import nn

def net():
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.BatchNorm(), nn.Dense(1))
    return net

def data():
    x = np.random.default_rng(0).normal(size=(1200, 8)).astype("float32")
    y = (np.sin(x[:, :1]) + x[:, 1:2]).astype("float32")
    return gluon.data.ArrayDataset(x[:1000], y[:1000]), gluon.data.ArrayDataset(x[1000:], y[1000:])

def loss():
    return gluon.loss.L2Loss()

def metric():
    return metrics.MAE()
"""


def run_script(folder):
    done = subprocess.run([sys.executable, "best.py", "3"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"epoch (\d): [\d,]+ samples/s, (\w+) ([\d.]+)(?: %)?, [\d.]+ s", done.stdout)
    assert [int(epoch) for epoch, _, _ in found] == [1, 2, 3], done.stdout
    return found[0][1], [float(value) for _, _, value in found], done.stderr


def test_the_script_runs_two_processes_where_the_climb_kept_two(tmp_path):
    document = climbed(
        dataset="synthetic:train=240,test=100,size=24x24", net="small_cnn", accumulate=2,
        engine="shared-memory", num_devices=2, batch_size_per_device=15,
    )  # fmt: skip
    results_store.write_best(document, tmp_path)
    (tmp_path / "best.py").write_text((tmp_path / "best.py").read_text().replace("img/s, acc", "samples/s, acc"))
    name, right, _ = run_script(tmp_path)
    assert name == "accuracy" and right[-1] > 30  # ten classes; printed once, by rank 0
    assert (tmp_path / "best.params").is_file()


@pytest.mark.parametrize(
    ("loader", "workers"), [pytest.param("gluon", 0, marks=pytest.mark.slow), ("gluon", 1), ("threaded", 1)]
)
def test_the_script_runs_with_the_loader_that_the_climb_kept(tmp_path, loader, workers):
    document = climbed(
        dataset="synthetic:train=240,test=100,size=24x24", net="small_cnn", loader=loader, num_workers=workers,
        batch_size_per_device=30,
    )  # fmt: skip
    results_store.write_best(document, tmp_path)
    text = (tmp_path / "best.py").read_text()
    assert f"'{loader}', data.train" in text
    (tmp_path / "best.py").write_text(text.replace("img/s, acc", "samples/s, acc"))
    name, right, _ = run_script(tmp_path)
    assert name == "accuracy" and right[-1] > 30


def test_a_job_in_two_processes(tmp_path):
    (tmp_path / "job.py").write_text(REGRESSION)
    two = {"engine": "shared-memory", "num_devices": 2, "batch_size_per_device": 32}
    job = {"job": str(tmp_path / "job.py"), "loader": "gluon", "rewrites": [], "optimizer": "adam"}
    results_store.write_best(climbed(**job, **two), tmp_path)
    name, errors, _ = run_script(tmp_path)
    assert name == "mae" and errors[-1] < 0.8 * errors[0]


def test_a_job_of_gluon_data_sets_gets_a_script_that_trains_it(tmp_path):
    (tmp_path / "my job.py").write_text(REGRESSION)
    document = climbed(job=str(tmp_path / "my job.py"), loader="gluon", rewrites=[], optimizer="adam")
    results_store.write_best(document, tmp_path)
    text = (tmp_path / "best.py").read_text()
    assert len(text.splitlines()) <= 120 and "#   runtime: environment: 1.30x the speed here" in text
    name, errors, said = run_script(tmp_path)
    assert name == "mae" and errors[-1] < 0.8 * errors[0] and errors[-1] < 0.5
    assert "started without settings" not in said  # it has started itself again with them


def test_a_job_of_a_named_data_set_gets_the_loader_that_the_climb_found(tmp_path):
    template = (Path(train.__file__).parent / "training" / "job.py.template").read_text()
    few = template.replace('"sample"  #', '"synthetic:train=240,test=100,size=24x24"  #')
    assert few != template
    (tmp_path / "job.py").write_text(few)
    results_store.write_best(climbed(job=str(tmp_path / "job.py"), batch_size_per_device=30), tmp_path)
    name, right, _ = run_script(tmp_path)
    assert name == "accuracy" and right[-1] > 0.3


def test_a_job_whose_step_is_its_own_is_trained_by_our_loop(tmp_path):
    found = results_store.write_best(climbed(job="job.py"), tmp_path, "step")
    assert found["script"] is None and "step()" in found["reason"]


def trained(accuracy, seconds, speed=500.0):
    rate = {"median": speed, "ci95": [speed * 0.98, speed * 1.02], "n": 9}
    return RunResult(
        recipe=Recipe().to_dict(), val_accuracy=[accuracy], elapsed_seconds=[seconds], samples_per_sec=rate
    )


def test_the_proof_is_the_headline_and_throughput_stands_below_it():
    found = _conclude(0.76, [{"naive": trained(0.78, 40.0), "best": trained(0.79, 8.0)}], 2000)
    assert found["ratio"]["median"] == pytest.approx(5.0) and found["same_accuracy"] and found["reached"]
    assert found["ratio"]["ci95"] is None, "one training each has no interval"
    rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    best = {**naive, "name": "records", "verdict": "helped", "speedup_vs_naive": 4.2, "speedup_ci95": [4, 4.4]}
    ladder = {"schema_version": 1, "rungs": [naive, best], "best": {"name": "records"}, "proof": found}
    head, below, *_ = sentence_parts(ladder)
    assert head == "8.0 s instead of 40 s to 76.0 % accuracy: 5.0×, one training each"
    assert below.startswith("throughput: 4.2× faster than naive")


def test_a_best_that_does_not_reach_the_accuracy_proves_nothing():
    found = _conclude(0.76, [{"naive": trained(0.78, 40.0), "best": trained(0.60, 8.0)}], 2000)
    assert not found["reached"] and found["ratio"] is None and not found["same_accuracy"]
    rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    ladder = {
        "schema_version": 1,
        "rungs": [{"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}],
        "proof": found,
    }
    assert "instead of" not in sentence_parts(ladder)[0]


def test_advice_that_the_climb_has_followed_is_not_given_again():
    rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    told = {"sentence": "The net uses only 50 % of the cores: give it more threads.", "next_rung": "environment"}
    ladder = {"schema_version": 1, "rungs": [naive], "verdict": told}
    assert any("give it more threads" in part for part in sentence_parts(ladder))
    ladder["rungs"].append({**naive, "name": "environment", "verdict": "no gain", "kept": False})
    parts = sentence_parts(ladder)
    assert not any("more threads" in part for part in parts) and any("50 % of the cores" in p for p in parts)


def test_the_page_says_what_to_do_where_nothing_was_kept():
    import report_samples

    from gluontune.report.read import check_ladder
    from gluontune.report.sentence import advice

    document = report_samples.full_ladder()
    assert advice(check_ladder(document), None)["next"] == []  # what was kept is what to do
    for row in document["rungs"]:
        row.update(kept=row["name"] == "naive")
    assert advice(check_ladder(document), None)["next"] == [
        "Leave the job as it is: nothing that was tried made it faster here"
    ]
    document["rungs"][1].update(verdict="no gain", measurable=False)
    document["rungs"][2].update(status="skipped", reason="not measured: the budget was used up")
    first, second = advice(check_ladder(document), None)["next"]
    assert "other programs" in first and "--budget" in second


def test_what_failed_and_what_mxnet_cannot_do_stand_with_their_rung():
    from gluontune.report.read import check_ladder
    from gluontune.report.views import ladder_view

    row = {"name": "mixed-precision", "status": "ran", "kept": False, "variants": [
        {"label": "bfloat16", "changes": {}, "status": "failed", "reason": "out of memory"}]}  # fmt: skip
    document = {"schema_version": 1, "rungs": [row], "machine": {"cpu": {"flags": ["amx_bf16"]}}}

    def remarks():
        return ladder_view(check_ladder(document), "l0")["first"][0]["tables"][0]["rows"][0]["why"]

    assert "The variant bfloat16 could not be trained here: out of memory" in remarks()
    assert any("AMX" in sentence for sentence in remarks())
    document["machine"] = {"cpu": {"flags": ["avx2"]}}
    assert not any("AMX" in sentence for sentence in remarks())
