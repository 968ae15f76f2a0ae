"""A list of scripts: read strictly, each run in a process group of its own, resumed stage by stage."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from small_scripts import script

from gluontune.cli.main import main
from gluontune.core.errors import UsageError
from gluontune.search.bench import script_stages, scripts
from gluontune.search.bench.script_stages import Site, judged
from gluontune.search.bench.scripts import Script, read_list, run
from gluontune.training.group import RunFailed

EVERY = dict(scripts.STAGES)
real = EVERY["as is"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "good.py").write_text(
        "import os, sys\nprint('first')\nprint(*sys.argv[1:], os.getcwd(), os.environ['WORD'])\n"
    )
    (tmp_path / "bad.py").write_text("print('before')\nraise ValueError('no such data')\n")
    (tmp_path / "inner").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def first_stage(monkeypatch):
    monkeypatch.setattr(scripts, "STAGES", {"as is": real})


def written(folder: Path, *entries: object, name: str = "list.yaml") -> Path:
    (folder / name).write_text(json.dumps(entries))
    return folder / name


def statuses(found, stage="as is"):
    return {row["name"]: row["stages"][stage]["status"] for row in found["rows"]}


def test_a_script_gets_its_arguments_folder_and_environment(folder):
    found = run(written(folder, {"path": "good.py", "argv": ["--epochs", 2], "cwd": "inner", "env": {"WORD": "said"}}))
    (row,) = found["rows"]
    assert row["stages"]["as is"]["last"] == f"--epochs 2 {folder / 'inner'} said"
    assert row["name"] == "good" and row["command"]["argv"] == ["--epochs", "2"]
    assert found["figures"] == {"as is": {"ok": 1, "of": 1}} and scripts.holds(found)


def test_what_a_script_printed_is_kept_and_its_error_is_its_last_line(folder):
    found = run(written(folder, {"path": "bad.py"}), out=folder / "seen")
    told = found["rows"][0]["stages"]["as is"]
    assert (told["status"], told["exit"], told["last"]) == ("failed", 1, "ValueError: no such data")
    assert "before" in (folder / "seen" / "bad" / "as-is.log").read_text()
    assert json.loads((folder / "seen" / "scripts.json").read_text())["rows"] == found["rows"]
    assert not scripts.holds(found)


def test_waiting_is_no_work(folder):
    (folder / "good.py").write_text("import time; time.sleep(1)")
    told = run(written(folder, {"path": "good.py"}))["rows"][0]["stages"]["as is"]
    assert told["seconds"] >= 1 and 0 < told["cpu_seconds"] < told["seconds"]


def test_colours_and_progress_bars_do_not_reach_the_table(folder):
    (folder / "good.py").write_text("print('\\x1b[31mhalf\\rwhole\\x1b[0m')")
    assert run(written(folder, {"path": "good.py"}))["rows"][0]["stages"]["as is"]["last"] == "whole"


def test_after_the_time_limit_nothing_of_a_script_lives_on(folder):
    code = "import os, time\nif child := os.fork():\n    open('child', 'w').write(str(child))\ntime.sleep(600)\n"
    (folder / "slow.py").write_text(code)
    begun = time.monotonic()
    found = run(written(folder, {"path": "slow.py"}), time_limit=5)
    assert statuses(found) == {"slow": "over the time limit"} and time.monotonic() - begun < 300
    child = int((folder / "child").read_text())
    until = time.monotonic() + 30
    while alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_resume_runs_what_failed_what_changed_and_what_is_new(folder, monkeypatch):
    entries = [
        {"path": "good.py", "env": {"WORD": "a"}},
        {"path": "bad.py"},
        {"path": "good.py", "name": "other", "env": {"WORD": "b"}},
    ]
    listed, out, ran = written(folder, *entries), folder / "seen", []
    monkeypatch.setitem(scripts.STAGES, "as is", lambda script, site: (ran.append(script.name), real(script, site))[1])
    first = run(listed, out=out)
    assert ran == ["good", "bad", "other"]
    (folder / "bad.py").write_text("print('mended')")
    entries[2]["env"] = {"WORD": "c"}
    again = run(written(folder, *entries), out=out, resume=True)
    assert ran[3:] == ["bad", "other"] and set(statuses(again).values()) == {"ok"}
    assert again["rows"][0] == first["rows"][0]


def test_a_stage_is_one_entry_and_comes_after_those_before_it(folder, monkeypatch):
    seen = {}

    def counted(script, site):
        seen[script.name] = site.before["as is"]["status"]
        return {"status": "refused", "last": "line 3: no source"}

    monkeypatch.setitem(scripts.STAGES, "captured", counted)
    listed = written(folder, {"path": "good.py", "env": {"WORD": "x"}}, {"path": "bad.py"})
    found = run(listed, out=folder / "seen")
    assert seen == {"good": "ok"} and statuses(found, "captured") == {"good": "refused", "bad": "skipped"}
    assert found["figures"]["captured"] == {"ok": 0, "of": 2}
    # A later run asks the new stage alone for what went well.
    seen.clear()
    again = run(listed, out=folder / "seen", resume=True, stages=["captured"], only=["good"])
    assert again["rows"][0]["stages"].keys() == {"as is", "captured"}
    assert seen == {"good": "ok"}


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"path": "good.py"}, "give a list of scripts"),
        ([{"path": "good.py", "args": []}], "unknown field 'args'"),
        ([{"path": "good.py", "argv": "--epochs 2"}], "argv is '--epochs 2'; give a list"),
        ([{"name": "a"}], "lacks path"),
        ([{"path": "gone.py"}], "gone.py is not there"),
        ([{"path": "good.py", "cwd": "gone"}], "gone is not there"),
        ([{"path": "good.py"}, {"path": "good.py"}], "'good' stands there twice"),
    ],
)
def test_a_list_that_cannot_be_run_is_refused_with_the_way_out(folder, entries, told):
    (folder / "list.yaml").write_text(json.dumps(entries))
    with pytest.raises(UsageError, match=told):
        read_list(folder / "list.yaml")


def test_the_shortest_entry_runs_in_the_scripts_folder(folder):
    assert read_list(written(folder, {"path": "good.py"})) == [Script("good", str(folder / "good.py"), (), str(folder))]


def test_the_command_prints_the_table_and_exits_by_what_it_saw(folder, capfd):
    listed = written(folder, {"path": "good.py", "env": {"WORD": "x"}}, {"path": "bad.py"})
    assert main(["bench", "scripts", "--list", str(listed), "--only", "good"]) == 0
    assert "as is: 1 of 1" in capfd.readouterr().out
    assert main(["bench", "scripts", "--list", str(listed), "--json"]) == 1
    assert statuses(json.loads(capfd.readouterr().out)) == {"good": "ok", "bad": "failed"}
    assert main(["bench", "scripts", "--list", str(listed), "--stages", "wished"]) == 2
    assert "there are as is" in capfd.readouterr().err
    assert main(["bench", "scripts", "--list", str(folder / "none.yaml")]) == 1
    assert "none.yaml" in capfd.readouterr().err
    (folder / "list.yaml").write_text("[")
    assert main(["bench", "scripts", "--list", str(folder / "list.yaml")]) == 2


@pytest.mark.mxnet
def test_a_training_script_is_captured_and_computed_by_pytorch(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "STAGES", EVERY)
    (tmp_path / "train.py").write_text(script("by hand"))
    (tmp_path / "idle.py").write_text("import gluontune as gt; gt.runtime.mxnet(); print('idle')")
    path = f"{Path(scripts.__file__).parents[3]}"
    entries = [{"path": name, "env": {"PYTHONPATH": path}} for name in ("train.py", "idle.py")]
    found = run(written(tmp_path, *entries), stages=["captured", "torch"])
    train, idle = (row["stages"] for row in found["rows"])
    assert train["captured"]["status"] == "ok" and train["captured"]["gap"] < 1e-10 and train["captured"]["steps"] == 12
    assert train["torch"]["status"] == "ok" and train["torch"]["steps_on_torch"] == 10
    assert idle["captured"]["status"] == idle["torch"]["status"] == "refused"
    assert "no training step" in idle["captured"]["last"]


@pytest.mark.slow
@pytest.mark.mxnet
def test_a_script_is_measured_in_turn_and_becomes_a_project(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "STAGES", EVERY)
    (tmp_path / "train.py").write_text(script("normalized"))
    path = f"{Path(scripts.__file__).parents[3]}"
    entries = [{"path": "train.py", "env": {"PYTHONPATH": path}}]
    listed, here = written(tmp_path, *entries), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = run(listed, out=Path("seen"), stages=["in turn", "migrated"])
    assert (here / "seen" / "train" / "in-turn").is_dir() and not (tmp_path / "seen").exists()
    turn, project = (found["rows"][0]["stages"][name] for name in ("in turn", "migrated"))
    assert turn["status"] == "ok" and not turn["failures"] and os.getcwd() != str(tmp_path)
    assert set(turn["ratios"]) == {"run", "torch"} and all(each["n"] == 9 for each in turn["ratios"].values())
    assert all(each["gap"] <= each["allowed"] and each["steps"] == 12 for each in turn["losses"].values())
    assert turn["changed"]["run"]["kept samples"] > 0
    assert found["figures"]["in turn"]["run"]["n"] == 1 and "run ÷ as is: median" in shown(found)
    assert project["status"] == "ok" and project["cell"] == "checked"


class Measured:
    """A contender that was measured, or failed."""

    def __init__(self, *rates, losses=(2.0, 1.0), failure=None):
        self.rates, self.losses, self.failure = list(rates), list(losses), failure
        self.seen = {"changed": {}, "draws": False}


def test_ratios_and_losses_of_a_script_in_turn_are_those_of_its_slices():
    late = RunFailed("NothingToChange", "line 3: no source", "starting")
    found = judged({
        "as is": Measured(10.0, 11.0, 10.0), "run": Measured(20.0, 22.0, 20.0, losses=(2.0, 1.5)),
        "torch": Measured(failure=late),
    })  # fmt: skip
    assert (
        found["status"] == "ok"
        and found["cell"] == "run 2.00 ×"
        and found["failures"] == {"torch": "line 3: no source"}
    )
    assert found["losses"]["run"] == {"gap": 0.5, "allowed": 2e-5, "steps": 2}
    untrained = RunFailed("NoTraining", "ended without a training step", "starting")
    found = judged({"as is": Measured(failure=untrained), "run": Measured()})
    assert (found["status"], found["last"]) == ("refused", "ended without a training step")
    crashed = RunFailed("Died", "killed", "training")
    assert judged({"as is": Measured(failure=crashed), "run": Measured()})["status"] == "failed"


class Drawn(Measured):
    """A contender whose losses are others each time that it is begun, or are those of its label."""

    known = {}
    begun = []

    def __init__(self, run, label, *_):
        super().__init__(10.0, losses=self.known.get(label, (2.0, 1.0)))
        self.label, self.at, self.step_s = label, 50, 0.1

    def launch(self):
        self.begun.append(self.label)

    def __getattr__(self, name):
        return lambda *args: None


@pytest.mark.parametrize("known, again", [({}, None), ({"run": (2.0, 1.2)}, 0.5)])
def test_a_script_whose_losses_differ_is_run_once_more_as_it_is(known, again, tmp_path, monkeypatch):
    monkeypatch.setattr(script_stages, "ScriptContender", Drawn)
    monkeypatch.setattr(script_stages, "interleave", lambda *_, **__: None)
    monkeypatch.setattr(Drawn, "known", {**known, "as is, again": (2.0, 1.5)})
    monkeypatch.setattr(Drawn, "begun", [])
    found = script_stages.in_turn(Script("a", "a.py", (), str(tmp_path)), Site(None, 10.0, {}))
    assert found["losses"].get("again", {}).get("gap") == again
    assert Drawn.begun == ["as is", "run", "torch", *(["as is, again"] if again else [])]


def shown(found):
    console = Console(width=200, record=True, file=io.StringIO())
    scripts.show(found, console)
    return console.export_text()


@pytest.mark.mxnet
def test_modules_beside_a_script_are_the_scripts_alone(tmp_path, monkeypatch):
    """A stranger's folder with a ``queue.py`` ended gluontune's own processes, or ran in them."""
    monkeypatch.setattr(scripts, "STAGES", EVERY)
    (tmp_path / "queue.py").write_text("import os, sys\nprint('NEAR', os.path.basename(sys.argv[0]))\nName = 1\n")
    (tmp_path / "idle.py").write_text("import queue; print('queue', queue.Name)\n")
    (row,) = run(written(tmp_path, {"path": "idle.py"}), out=tmp_path / "seen")["rows"]
    assert row["stages"]["as is"]["last"] == "queue 1"
    for stage in ("captured", "torch"):
        said = (tmp_path / "seen" / "idle" / f"{stage}.log").read_text()
        assert said.count("NEAR") == 1 and "NEAR idle.py" in said, said
