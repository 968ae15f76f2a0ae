"""A script's own process, which trains so many steps at a time and tells what it saw."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import pytest
from plain_mxnet import python_alone

from gluontune.core.errors import GluontuneError
from gluontune.training.diagnosis import examine_script
from gluontune.training.group import Group, RunFailed
from gluontune.training.starting import ScriptRun, ScriptSite
from tests.support.small_scripts import script

pytestmark = [pytest.mark.mxnet, pytest.mark.process]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a program's text as a group; all are ended at the end."""
    groups = []
    monkeypatch.chdir(tmp_path)

    def begin(text, words=(), **how):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        run = ScriptRun(("train.py", *words), **how)
        site = functools.partial(ScriptSite, log=tmp_path / "logs" / "train.log")
        groups.append(Group(run, time_limit=240, wait=False, site=site))
        groups[-1].wait()
        return groups[-1]

    yield begin
    for group in groups:
        group.close()


def test_it_trains_as_many_steps_as_it_is_told_and_counts_their_samples(start, tmp_path):
    group = start(script("normalized"))
    seen = group.ready[0]
    assert 5 <= seen["steps"] == len(seen["losses"]) <= 12 and seen["loaders"] >= 1 and seen["workers"] == 0
    assert seen["trainers"] == 1 and seen["samples_per_step"] == 16
    found = group.individual("phases", steps=3)["phases_pct"]
    assert sum(found.values()) == pytest.approx(100) and set(found) >= {"data", "forward", "backward", "update"}
    assert group.peak_rss_mib() > 50


def test_losses_are_the_scripts_own_and_slices_go_on_where_it_ends(start):
    text = script("normalized").replace("total +=", "print('step', loss.mean().asscalar()); total +=")
    group = start(text)  # 12 steps in all
    env = {**os.environ, **python_alone()}
    alone = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True, env=env)
    printed = [float(line.split()[1]) for line in alone.stdout.splitlines() if line.startswith("step")]
    seen = group.ready[0]["losses"]
    assert seen == pytest.approx(printed[: len(seen)], rel=1e-5)
    done = [group.steps(5) for _ in range(3)]
    assert all(each["samples"] > 0 and each["samples"] % 16 == 0 and each["seconds"] > 0 for each in done)
    assert group.notes == ["the script ends after 12 steps: it was started again to go on"]


def test_what_a_script_does_at_the_end_of_an_epoch_is_no_part_of_a_step(start):
    slow = script("normalized").replace("    print(epoch", "    import time; time.sleep(3)\n    print(epoch")
    group = start(slow.replace("range(2)", "range(9)"))
    assert group.steps(6)["seconds"] < 2  # an epoch has six


def test_what_a_script_does_after_its_last_step_is_no_part_of_a_slice(start):
    group = start(script("normalized") + "\nimport time; time.sleep(3)\n")
    group.steps(20)  # to its end, which is not known before
    assert group.steps(20)["seconds"] < 2


def test_two_trainers_make_one_step_and_its_losses_are_added(start):
    group = start(script("adversaries"))
    assert group.ready[0]["trainers"] == 2 and group.ready[0]["samples_per_step"] == 16
    assert group.steps(2)["samples"] == 32
    assert 1.5 < group.ready[0]["losses"][1] < 2.5  # about three times ln 2: of the judge twice, of the maker once


def test_a_step_without_a_trainer_is_a_backward_pass(start):
    group = start(script("by hand"))
    assert group.ready[0]["trainers"] == 0 and group.ready[0]["samples_per_step"] == 16


def test_changes_are_in_force_and_compute_the_same(start):
    plain = start(script("normalized").replace("net.hybridize()", "")).ready[0]["losses"][
        :5
    ]  # so many are seen at least
    group = start(script("normalized").replace("net.hybridize()", ""), changes=("blocks",))
    assert group.ready[0]["losses"][:5] == pytest.approx(plain, rel=1e-4)
    group = start(script("normalized"), backend="torch")
    assert group.ready[0]["why_not"] == "" and not group.ready[0]["draws"]
    assert group.ready[0]["losses"][:5] == pytest.approx(plain, rel=1e-3)
    apart = start(script("normalized").replace("0.05", "0.06")).ready[0]["losses"][:5]
    assert apart != pytest.approx(plain, rel=1e-3)


def test_batches_of_worker_processes_go_through_compiled_blocks(start):
    text = script("normalized").replace("net.hybridize()", "").replace("Y), 16)", "Y), 16, num_workers=1)")
    plain = start(text).ready[0]
    compiled = start(text, changes=("blocks",)).ready[0]  # MXNet's own graphs refuse memory that processes share
    assert plain["workers"] == 1 and compiled["losses"][:5] == pytest.approx(plain["losses"][:5], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "how", "kind", "words"),
    [
        ("import mxnet", {}, "NoTraining", "without a training step"),
        ("print('no mxnet at all')", {}, "NoTraining", "without a training step"),
        ("import mxnet; mxnet.nd.ones((2,)).no_such()", {}, "ScriptFailed", "AttributeError"),
        ("import mxnet; input('which? ')", {}, "ScriptFailed", "EOFError"),
        ("import sys; sys.exit('give me a file')", {}, "ScriptFailed", "give me a file"),
        (script("by hand").replace("range(2)", "range(1)").replace("in loader", "in list(loader)[:2]"), {}, "TooShort",
         "ends after 2"),
        (script("recurrent"), {"changes": ("samples",)}, "NothingToChange", "reads its data itself"),
        (script("by hand"), {"changes": ("blocks",)}, "NothingToChange", "no block to compile"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_told_in_a_line(start, text, how, kind, words):
    with pytest.raises(RunFailed) as failure:
        start(text, **how)
    assert failure.value.kind == kind and words in failure.value.message


def test_the_script_has_its_own_words_and_an_empty_stdin(start, tmp_path):
    begin = "import sys; print(sys.argv, repr(sys.stdin.read()), __name__, flush=True)\n"
    start(begin + script("by hand"), words=("--events", "7", "--epochs"))
    log = (tmp_path / "logs" / "train.log").read_text()
    assert "['train.py', '--events', '7', '--epochs'] '' __main__" in log


def test_the_command_line_of_a_way():
    run = ScriptRun(("train.py", "--name", "a b"), runtime="tuned", env={"OMP_NUM_THREADS": "2"}, changes=("samples",))
    assert run.command() == "OMP_NUM_THREADS=2 gluontune run --leave blocks train.py --name 'a b'"
    assert ScriptRun(("-m", "pkg.train"), changes=("blocks",), dtype="bfloat16").command() == (
        "gluontune run --dtype bfloat16 --leave environment,samples -m pkg.train"
    )
    assert ScriptRun(("train.py",), runtime="tuned", backend="torch").command() == (
        "gluontune run --backend torch --leave samples train.py"
    )


def test_the_doctor_says_where_the_time_goes_and_what_can_be_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = script("recurrent").replace("loss.backward()", "loss.backward(); pause(0.03)")
    (tmp_path / "train.py").write_text(f"from time import sleep as pause\n{text}")
    found = examine_script(["train.py"])
    assert found.sentence.startswith("The script's own work between them takes ")
    assert found.phases_pct["rest"] > 50 and sum(found.phases_pct.values()) == pytest.approx(100)
    by_id = {finding["id"]: finding for finding in found.findings}
    assert by_id["script-rest"]["severity"] == "info" and found.findings[0]["id"] == "script-rest"
    assert "reads its data itself" in by_id["script-samples"]["message"]
    assert by_id["script-blocks"]["severity"] == "ok"  # the loss alone
    assert by_id["script-torch"]["evidence"] == "by gluontune run --backend torch train.py"
    (tmp_path / "none.py").write_text("import mxnet")
    with pytest.raises(GluontuneError, match=r"^none\.py ended without a training step"):
        examine_script(["none.py"])
