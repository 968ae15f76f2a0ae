"""The ladder of a script: on a pretended machine, and with a small script that really trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plain_mxnet import python_alone

from gluontune import ladder
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.report.page import finish_ladder
from gluontune.search import rung_contest
from gluontune.search.script_climb import SCRIPT_RUNGS, gap_of
from gluontune.training.group import RunFailed
from gluontune.training.starting import ScriptRun
from tests.support.pretended_machine import pretend_script
from tests.support.small_scripts import script


@pytest.fixture
def pretended(machine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")

    return pretend_script(monkeypatch)


def climb(**how):
    found = ladder.climb_script(["train.py", "--epochs", "3"], out="out", budget_s=300, **how)
    return found, {row["name"]: row for row in found["rungs"]}


def test_all_rungs_have_their_row_and_the_best_is_a_command_line(pretended):
    pretended.speeds["torch"] = 0.5
    found, rows = climb()
    assert list(rows) == SCRIPT_RUNGS.names() and found["complete"]
    kept = {name for name, row in rows.items() if row["kept"]}
    assert kept == {"naive", "environment", "records", "hybridized"}
    assert found["best"]["command"] == "OMP_NUM_THREADS=1 gluontune run train.py --epochs 3"
    assert rows["hybridized"]["speedup_vs_naive"] == pytest.approx(2 * 1.5 * 1.3, rel=0.02)
    assert rows["naive"]["phases_pct"]["data"] == 60 and rows["naive"]["peak_rss_mib"] == 300
    assert rows["large-batch"]["status"] == "skipped" and "its own" in rows["large-batch"]["reason"]
    best = Path("out/best.sh").read_text().splitlines()
    assert best[1:] == [f"cd {os.getcwd()} || exit", found["best"]["command"]]
    finish_ladder(found, "out")
    page = Path("out/ladder.html").read_text()
    assert (
        "sh best.sh" in page
        and "Keep the samples in memory" in page
        and "script train.py" in page
        and "recipe.yaml" not in page
    )
    assert found["sentence"].startswith("3.9× faster than naive")


def test_words_and_folder_stay_what_they_are_in_best_sh(pretended, tmp_path, monkeypatch):
    place = tmp_path / "a $(touch RAN) 'b'\nc"
    place.mkdir()
    monkeypatch.chdir(place)
    Path("train.py").touch()
    words = ["train.py", "$(touch RAN)", "`touch RAN`", 'it\'s\n"so"', "; touch RAN", "-", ""]
    ladder.climb_script(words, out="out", budget_s=300, rungs=["environment"])
    (tmp_path / "gluontune").write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@"\n')
    (tmp_path / "gluontune").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "out/best.sh"], env=env, capture_output=True, text=True, check=True)
    folder, *given, end = done.stdout.split("\0")
    assert folder == str(place) and given[-len(words) :] == words and end == ""
    assert not list(tmp_path.rglob("RAN"))


def test_bfloat16_changes_losses_and_is_kept_only_where_it_was_asked_for(pretended):
    pretended.apart["bfloat16"] = 0.01  # kept nowhere unasked, equal or not: see the first test
    found, rows = climb(rungs=["mixed-precision"])
    row = rows["mixed-precision"]
    assert row["verdict"] == "helped" and not row["kept"] and found["best"]["name"] == "naive"
    assert row["reason"] == "its first 4 losses differ from naive's by 1.0 %: kept only with --dtype bfloat16"
    assert not Path("out/best.sh").exists()
    found, rows = climb(rungs=["mixed-precision"], dtype="bfloat16")
    assert rows["mixed-precision"]["kept"] and "--dtype bfloat16" in found["best"]["command"]


def test_a_faster_way_with_other_losses_gives_way_to_the_next_one(pretended):
    pretended.speeds["compiled and rewritten"] = 2.0
    pretended.apart["compiled and rewritten"] = 0.001
    _, rows = climb(rungs=["hybridized"])
    row = rows["hybridized"]
    assert row["kept"] and row["changes"]["state"] == "compiled"
    assert "differ from naive's by 0.1 %" in row["variants"][1]["reason"]


def test_another_engine_that_draws_other_numbers_says_so(pretended):
    pretended.apart["torch"], pretended.seen["draws"] = 0.2, True
    _, rows = climb(rungs=["modern-engine"])
    reason = rows["modern-engine"]["reason"]
    assert not rows["modern-engine"]["kept"] and "by 20.0 %" in reason
    assert "other random numbers" in reason and "gluontune run --backend torch --leave samples train.py" in reason


def test_another_engine_goes_on_with_the_samples_that_were_kept(pretended):
    found, rows = climb(rungs=["records", "hybridized", "modern-engine"])
    assert rows["modern-engine"]["recipe"]["changes"] == ("samples",)
    assert rows["modern-engine"]["speedup_vs_naive"] == pytest.approx(2 * 1.5 * 4, rel=0.02)
    assert found["best"]["command"].endswith("gluontune run --backend torch train.py --epochs 3")


def test_losses_of_a_script_that_is_other_each_time_prove_nothing(pretended):
    pretended.apart.update(tuned=0.3, torch=0.5)
    _, rows = climb(rungs=["environment", "hybridized", "modern-engine"])
    assert rows["environment"]["kept"] and rows["modern-engine"]["kept"]
    assert any("losses prove nothing here" in note for note in rows["environment"]["notes"])


def test_what_the_script_has_not_is_skipped_and_what_fails_is_told(pretended):
    pretended.seen["loaders"] = 0
    pretended.failing["compiled"] = RunFailed("NothingToChange", "there is no block to compile", "starting")
    pretended.failing["compiled and rewritten"] = pretended.failing["compiled"]
    pretended.failing["torch"] = RunFailed("ProcessDied", "it crashed", "starting")
    found, rows = climb()
    assert rows["records"]["reason"].startswith("the script reads its data itself")
    assert (rows["hybridized"]["status"], rows["hybridized"]["reason"]) == ("skipped", "there is no block to compile")
    assert rows["modern-engine"]["status"] == "failed" and "it crashed" in rows["modern-engine"]["reason"]
    assert found["complete"] and not rows["modern-engine"]["kept"]


@pytest.mark.parametrize("kind", ["NoTraining", "TooShort", "ScriptFailed"])
def test_a_script_that_cannot_be_measured_ends_the_climb_in_a_line(pretended, kind):
    pretended.failing["as-installed"] = RunFailed(kind, "train.py ended without a training step", "starting")
    with pytest.raises(GluontuneError, match=r"ended without a training step$"):
        climb()
    assert json.loads(Path("out/ladder.json").read_text())["complete"] is False


def test_ctrl_c_leaves_what_is_known(pretended):
    def interrupt(event):
        if event.get("name") == "records":
            raise KeyboardInterrupt

    found, rows = climb(on_event=interrupt)
    assert not found["complete"] and rows["environment"]["kept"] and found["best"]["name"] == "environment"
    finish_ladder(found, "out")
    assert "interrupted" in Path("out/ladder.html").read_text()


def test_words_that_are_wrong(pretended):
    with pytest.raises(UsageError, match=r"no\.py: no such file"):
        ladder.climb_script(["no.py"])
    with pytest.raises(UsageError, match="'methods': a script has no such rung"):
        ladder.climb_script(["train.py"], rungs=["methods"])


def test_what_rounding_explains_grows_with_the_steps():
    assert gap_of([1.0, None], [1.0 + 2e-5, 3.0])[:2] == (pytest.approx(2e-5), 1e-5)
    assert gap_of([1.0, 1.0], [1.0, 1.0 + 1.5e-5])[1] > 1.5e-5
    assert gap_of([None], [1.0]) == (None, 1e-5, 0)


@pytest.mark.mxnet
@pytest.mark.process
@pytest.mark.slow  # the doctest of climb_script climbs each time
@pytest.mark.parametrize(
    ("rungs", "budget_s"),
    [(["environment"], 20), (["environment", "hybridized", "modern-engine"], 40)],
    ids=["environment", "each"],
)
def test_a_script_climbs_and_its_command_runs_it(tmp_path, monkeypatch, rungs, budget_s):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rung_contest, "DISTURBED_PCT", 1e9)  # what it finds does not matter here
    text = script("normalized").replace("net.hybridize()", "").replace("range(2)", "range(4)")
    Path("train.py").write_text(f"import sys; print(sys.argv[1:])\n{text}")
    found = ladder.climb_script(["train.py", "--x", "1"], out="out", budget_s=budget_s, rungs=rungs)
    rows = {row["name"]: row for row in found["rungs"]}
    assert rows["naive"]["status"] == "ran" and rows["naive"]["samples_per_sec"]["median"] > 0
    assert rows["environment"]["losses"]["largest_gap"] <= rows["environment"]["losses"]["allowed"]
    assert sum(rows["naive"]["phases_pct"].values()) == pytest.approx(100)
    assert "['--x', '1']" in Path("out/logs/naive.log").read_text()
    for name in rungs[1:]:
        if rows[name]["status"] == "ran" and "losses" in rows[name]:  # else there was no time for it
            assert rows[name]["losses"]["largest_gap"] < 1e-2
    measured = ScriptRun(**rows["environment"]["recipe"])  # the best may be naive: a plain python
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **python_alone(), "PATH": path}
    for command in {found["best"]["command"], measured.command()}:
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, env=env)
        assert ran.returncode == 0 and ran.stdout.startswith("['--x', '1']\n0 "), ran.stderr
