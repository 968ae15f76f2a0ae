"""The search's logic on contenders whose figures are given, then a real search on the sample."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gluontune import ladder, runtime
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.recipe import Recipe
from gluontune.runtime.cpu import AmxSupport
from gluontune.runtime.system import System
from gluontune.search import measure, racing, tune as tuning
from gluontune.train import RunFailed

START = Recipe(env={"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "1"})


class Machine:
    """A pretended machine: how fast each recipe is, which break, and how much is alive at once."""

    def __init__(self):
        self.started: list[Recipe] = []
        self.alive = self.most_alive = self.tick = 0
        self.breaks = lambda recipe: None
        self.now = 0.0
        self.rss = 100.0

    def rate(self, r: Recipe) -> float:
        rate = 100.0 * (1.5 if r.env["OMP_NUM_THREADS"] == "2" else 1.0)
        rate *= 1.3 if "MALLOC_TOP_PAD_" in r.env else 1.0
        rewritten = "pool-to-mean" in r.rewrites
        rate *= {"imperative": 1.0, "hybridized": 0.7, "static": 1.2 if rewritten else 0.7}[r.hybridize]
        rate *= 0.9 if "order-sums" in r.rewrites else 1.0
        if r.dtype == "bfloat16":
            rate *= 1.6 if rewritten else 0.5
        return rate * {"gluon": 1.0, "resident": 1.01, "threaded": 0.8}[r.loader]


class FakeGroup:
    def __init__(self, recipe, machine):
        self.recipe, self.machine, self.world = recipe, machine, 1
        machine.alive += 1
        machine.most_alive = max(machine.most_alive, machine.alive)
        machine.now += 2.0
        self.ready = [
            {
                "num_train": 10_000,
                "image_bytes": 784,
                "splits": recipe.job is None,
                "gpus": 0,
                "rewrites": ["pool-to-mean", "order-sums"],
            }
        ]

    def steps(self, count):
        self.machine.tick += 1
        samples = count * self.recipe.global_batch_size
        seconds = samples / self.machine.rate(self.recipe) * (1 + 0.01 * (self.machine.tick % 3 - 1))
        self.machine.now += seconds
        return {"samples": samples, "seconds": seconds, "loss": 1.0, "count": count}

    def peak_rss_mib(self):
        return self.machine.rss

    def close(self):
        self.machine.alive -= 1

    def wait(self):
        pass

    pause = resume = wait


@pytest.fixture
def machine(monkeypatch):
    pretended = Machine()

    def group(recipe, **_):
        pretended.started.append(recipe)
        failure = pretended.breaks(recipe)
        if failure:
            raise failure
        return FakeGroup(recipe, pretended)

    monkeypatch.setattr(measure, "Group", group)
    monkeypatch.setattr(racing.time, "monotonic", lambda: pretended.now)
    monkeypatch.setattr(runtime, "machine_facts", lambda: {"cpu": {"flags": ["avx512_bf16"]}})
    monkeypatch.setattr(runtime, "usable_cores", lambda: 2)
    monkeypatch.setattr(runtime, "memory_limit_mib", lambda: 16_000)
    monkeypatch.setattr(System, "compute_cores", lambda self: 2)
    return pretended


def rows(found, stage):
    return {row["label"]: row for row in found["tried"] if row["stage"] == stage}


def test_the_whole_search_finds_what_only_works_together(machine, tmp_path):
    events = []
    found = ladder.tune(START, budget_minutes=60, out=tmp_path, on_event=events.append)
    best = Recipe.from_dict(found["best"]["recipe"])
    assert (best.dtype, best.hybridize, best.rewrites) == ("bfloat16", "static", ("pool-to-mean",))
    assert best.runtime == "tuned" and best.env == {}
    assert found["best"]["speedup_vs_start"] == pytest.approx(1.5 * 1.3 * 1.2 * 1.6, rel=0.03)
    assert found["complete"] and found["best"]["name"] in found["sentence"] and machine.alive == 0
    compute = rows(found, "compute")
    assert compute["bfloat16, static"]["round_eliminated"] == 1
    assert compute["bfloat16, static, pool-to-mean"]["round_eliminated"] is None
    assert compute["bfloat16, static"]["speedup_vs_start"] == pytest.approx(1.5 * 1.3 * 0.35, rel=0.05)
    kept = [row["label"] for row in found["tried"] if row["kept"]]
    assert kept == ["2 threads", "glibc, tuned", "bfloat16, static, pool-to-mean"]
    assert json.loads((tmp_path / "tune.json").read_text()) == found
    assert Recipe.from_yaml(tmp_path / "recipe.yaml") == best
    assert events and all(0 <= e["done"] <= 1 for e in events)


def test_a_tie_goes_to_the_smaller_change(machine):
    found = ladder.tune(START, budget_minutes=60)
    loader = rows(found, "loader")
    assert loader["resident"]["status"] == "ran" and found["best"]["recipe"]["loader"] == "gluon"


def test_a_choice_that_has_become_useless_is_taken_back(machine, monkeypatch):
    plain = machine.rate
    # Threads help, until bfloat16 comes, which gains nothing from them.
    monkeypatch.setattr(
        machine, "rate", lambda r: plain(r) / (1.5 if r.dtype != "float32" and r.env["OMP_NUM_THREADS"] == "2" else 1)
    )
    machine.rate = lambda r, rate=machine.rate: rate(r) * (2 if r.dtype != "float32" else 1)
    found = ladder.tune(START, budget_minutes=60)
    assert rows(found, "take back")["without 2 threads"]["kept"]
    assert found["best"]["recipe"]["env"]["OMP_NUM_THREADS"] == "1"


def test_memory_bounds_what_is_alive(machine):
    machine.rss = 1300.0
    ladder.tune(START, budget_minutes=60)
    assert machine.most_alive == racing.FEWEST_ALIVE
    machine.most_alive, machine.rss = 0, 100.0
    ladder.tune(START, budget_minutes=60)
    assert machine.most_alive == racing.MOST_ALIVE


def test_the_budget_ends_the_search_and_every_row_says_so(machine):
    found = ladder.tune(START, budget_minutes=2)
    assert machine.now < 130 and found["complete"]
    assert any("budget of 2 minutes" in note for note in found["notes"])
    late = [r for r in found["tried"] if r["reason"] == tuning.NOT_REACHED]
    assert late and all(r["status"] == "skipped" for r in late)
    assert found["best"]["speedup_vs_start"] > 1.4
    short = ladder.tune(START, budget_minutes=0.01)
    assert short["best"]["name"] == "start" and short["best"]["recipe"] == START.to_dict()


def test_batch_sizes_only_when_asked_and_with_a_word_of_warning(machine):
    assert not rows(ladder.tune(START, knobs=["threads"]), "batch-size")
    found = ladder.tune(START, knobs=["threads"], batch_sizes=[64, 128])
    (row,) = rows(found, "batch-size").values()
    assert row["label"] == "batch 128" and "converges differently" in row["remark"]
    assert found["best"]["recipe"]["batch_size_per_device"] == 64


def test_what_fails_is_a_row(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p") if r.dtype == "bfloat16" else None
    found = ladder.tune(START, budget_minutes=60)
    failed = [r for r in found["tried"] if r["status"] == "failed"]
    assert len(failed) == 5 and all("boom" in r["reason"] for r in failed)
    assert found["best"]["recipe"]["rewrites"] == ["pool-to-mean"]


def test_a_start_that_fails_is_an_error(machine):
    machine.breaks = lambda r: RunFailed("X", "boom", "p")
    with pytest.raises(GluontuneError, match="boom"):
        ladder.tune(START)


def test_what_cannot_run_here_is_a_row_with_the_reason(machine, monkeypatch):
    monkeypatch.setattr(runtime, "machine_facts", lambda: {"cpu": {"flags": ["avx2"]}})
    found = ladder.tune(Recipe(job="own/job.py", env=START.env), budget_minutes=60)
    assert "bfloat16" in rows(found, "compute")["16 bits"]["reason"]
    assert "resident" not in rows(found, "loader")


def test_amx_is_a_knob_only_where_the_processor_has_it_and_an_option_that_fails_is_a_row(machine, monkeypatch):
    base = START.override(dtype="bfloat16", rewrites=("pool-to-mean",))
    assert rows(ladder.tune(base, knobs=["amx"], budget_minutes=60), "amx") == {}
    granted = AmxSupport("granted", "pretended")
    monkeypatch.setattr(runtime, "amx_support", lambda flags: granted)
    rate = machine.rate
    machine.rate = lambda r: rate(r) * (1.5 if "DNNL_MAX_CPU_ISA" in r.env else 1.0)
    failure = RunFailed("MXNetError", "could not create a primitive descriptor iterator", "p")
    machine.breaks = lambda r: failure if "narrow-in-float32" in r.rewrites else None
    found = ladder.tune(base, knobs=["amx"], budget_minutes=60)
    tried = rows(found, "amx")
    assert tried["AMX"]["kept"] and found["best"]["recipe"]["env"]["DNNL_MAX_CPU_ISA"] == "AVX512_CORE_AMX"
    assert tried["AMX, narrow in float32"]["status"] == "failed"
    assert "primitive descriptor" in tried["AMX, narrow in float32"]["reason"]
    found = ladder.tune(base.override(dtype="float32"), knobs=["amx"], budget_minutes=60)
    assert "not compute in bfloat16" in rows(found, "amx")["—"]["reason"]


def test_a_killed_search_goes_on_where_it_was(machine, tmp_path):
    whole = ladder.tune(START, budget_minutes=60)
    machine.tick = 0

    def interrupt(recipe):
        if recipe.dtype == "bfloat16":
            raise KeyboardInterrupt

    machine.breaks = interrupt
    part = ladder.tune(START, budget_minutes=60, out=tmp_path)
    assert not part["complete"] and machine.alive == 0 and len(part["heats"]) >= 3
    assert part["best"]["recipe"]["runtime"] == "tuned"
    machine.breaks = lambda recipe: None
    machine.started.clear()
    again = ladder.tune(START, budget_minutes=60, out=tmp_path, resume=True)
    assert again["complete"] and again["best"]["name"] == whole["best"]["name"]
    assert again["heats"][: len(part["heats"])] == part["heats"]
    stages = [heat["stage"] for heat in again["heats"]]
    assert stages.count("start") == stages.count("threads") == stages.count("allocator") == 1
    machine.started.clear()
    assert ladder.tune(START, budget_minutes=60, out=tmp_path, resume=True)["tried"] == again["tried"]
    assert machine.started == []


def test_wrong_use(machine, tmp_path):
    with pytest.raises(UnknownNameError, match="threads"):
        ladder.tune(START, knobs=["thread"])
    with pytest.raises(UsageError, match="above 0"):
        ladder.tune(START, budget_minutes=0)
    with pytest.raises(UsageError, match="batch_size_per_device=-1"):
        ladder.tune(START, batch_sizes=[-1])
    with pytest.raises(UsageError, match="folder"):
        ladder.tune(START, resume=True)
    ladder.tune(START, out=tmp_path, knobs=["threads"], resume=True)  # killed before it had begun
    with pytest.raises(UsageError, match="seed: then 0, now 3"):
        ladder.tune(START.override(seed=3), out=tmp_path, resume=True, knobs=["threads"])
    with pytest.raises(UsageError, match="knobs: then"):
        ladder.tune(START, out=tmp_path, resume=True)
    assert machine.alive == 0


@pytest.mark.slow
def test_a_real_search_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "gluontune", "tune", "--net", "mlp", "--loader", "resident"]
    command += ["--train-samples", "1024", "--val-samples", "100", "--budget", "1", "--knobs", "allocator"]
    done = subprocess.run(
        [*command, "--out", tmp_path / "out", "--json", "--slice", "0.05"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1 and found == json.loads((tmp_path / "out" / "tune.json").read_text())
    ran = [r for r in found["tried"] if r["status"] == "ran"]
    assert len(ran) >= 2 and all(r["samples_per_sec"]["median"] > 0 for r in ran)
    recipe = tmp_path / "out" / "recipe.yaml"
    trained = subprocess.run(
        [sys.executable, "-m", "gluontune", "train", "--recipe", recipe, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["recipe"] == found["best"]["recipe"]
