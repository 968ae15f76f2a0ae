"""The command line's frame: help, exit codes, errors without tracebacks, JSON alone on stdout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import gluontune
from gluontune.cli import main as cli
from gluontune.cli._help import EXAMPLES, GROUPS
from gluontune.cli._recipe import LISTED, choices_of, field_help
from gluontune.recipe import Recipe

COMMANDS = ("doctor", "init", "ladder", "train", "monitor", "report", "data", "pack", "verify", "size", "launch")


def test_help_lists_the_commands_in_the_learners_order(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [re.search(rf"^  {name}\b", text, re.M).start() for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert len(capsys.readouterr().out) > 200


def test_every_field_of_the_recipe_is_a_flag_with_its_sentence(capsys):
    assert set(field_help()) == set(Recipe().to_dict())
    cli.main(["train", "--help-recipe"])
    text = capsys.readouterr().out
    for name in set(Recipe().to_dict()) - {"env", "rewrites"}:
        assert ("--method " if name == "methods" else f"--{name.replace('_', '-')}") in text, name


def test_without_a_command_it_says_what_to_do_first(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert (
        "Three things to do first" in text
        and "gluontune ladder --quick" in text
        and "gluontune ladder train.py" in text
    )


def test_commands_stand_in_groups_and_none_is_left_out(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^(\w[\w ]+):$", text, re.M) == ["Options", *GROUPS]


def leaves(command, path=()):
    below = getattr(command, "commands", None)
    if not below:
        yield " ".join(path), command
    for name, inner in (below or {}).items():
        if not inner.hidden:
            yield from leaves(inner, (*path, name))


def test_each_example_is_one_that_the_command_line_takes():
    known = dict(leaves(typer.main.get_command(cli.build_app())))
    assert set(EXAMPLES) == set(known)
    for name, examples in EXAMPLES.items():
        assert len(examples) == 2
        for example in examples:
            assert example.startswith(name)
            known[name].make_context(name, example[len(name) :].split())


def test_help_shows_examples_and_groups_of_options(capsys):
    assert cli.main(["train", "--help-recipe"]) == 0
    text = capsys.readouterr().out
    assert "gluontune train --dataset sample --epochs 1" in text
    places = [text.index(f"{title}:") for title in ("Options", "Recipe: job", "Recipe: length", "Examples")]
    assert places == sorted(places) and "default: None" not in text


def test_the_reference_of_json_has_every_command_and_every_key_that_is_quick_to_see(tmp_path, capfd):
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    titles = " ".join(re.findall("^## (.*)$", page, re.M))
    for name, command in leaves(typer.main.get_command(cli.build_app())):
        if any("--json" in parameter.opts for parameter in command.params):
            first, _, second = name.partition(" ")
            assert re.search(rf"\b{first}\b", titles), name
            assert first == "bench" or not second or f"`{name}`" in page or f"`{second}`" in page, name
    quick = ("data list", "course list", "course status", "doctor --only python", f"init {tmp_path}/job.py")
    for call in quick:
        assert cli.main([*call.split(), "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        inner = next((v[0] for v in document.values() if isinstance(v, list) and v), {})
        missing = {key for key in (*document, *inner) if f"`{key}`" not in page}
        assert not missing or "…" in page.split(call)[1].split("\n")[0], (call, missing)


@pytest.mark.parametrize("command", ["ladder", "train", "tta"])
def test_the_flags_of_a_recipe_are_folded(command, capsys):
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") <= 60 and "--help-recipe" in text and "--batch-size-per-device  " not in text


@pytest.mark.parametrize("group", ["bench", "course", "data", "export"])
def test_the_sentences_of_groups_are_whole(group, capsys):
    assert cli.main([group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_no_help_has_the_parsers_riddles(capsys):
    for name, command in leaves(typer.main.get_command(cli.build_app())):
        folded = any("--help-recipe" in parameter.opts for parameter in command.params)
        assert cli.main([*name.split(), "--help-recipe" if folded else "--help"]) == 0
        text = capsys.readouterr().out
        assert not re.search(r"range>|list\[|<=x|x>=|default: None|None:|[{}]$", text, re.M), name


@pytest.mark.parametrize("flag", LISTED)
def test_list_shows_the_names_that_a_flag_takes(flag, capfd):
    assert cli.main(["train", "--list", flag, "--json"]) == 0
    names = json.loads(capfd.readouterr().out)
    assert names == choices_of(flag) and len(names) > 1


def test_what_is_no_number_is_named(capsys):
    assert cli.main(["train", "--epochs", "abc"]) == 2
    assert "abc" in capsys.readouterr().err
    assert cli.main(["train", "--list", "seed"]) == 2
    assert "optimizer" in capsys.readouterr().err


def test_init_writes_a_job_that_trains_and_overwrites_nothing(tmp_path, capsys):
    job = tmp_path / "job.py"
    assert cli.main(["init", str(job)]) == 0
    assert (
        cli.main(["train", "--job", str(job), "--epochs", "0.1", "--train-samples", "640", "--val-samples", "64"]) == 0
    )
    assert cli.main(["init", str(job)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert cli.main(["init", str(tmp_path / "job.txt")]) == 2


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"gluontune {gluontune.__version__}"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["laddr"], 2, "No such command"),
        (["train", "--epochs", "many"], 2, "'--epochs'"),
        (["train", "--dtype", "float31"], 2, "choose one of float32"),
        (["train", "--set", "epochs"], 2, "FIELD=VALUE"),
        (["train", "--set", "epohcs=2"], 2, "'epochs'"),
        (["train", "--recipe", "nowhere.yaml"], 1, "nowhere.yaml"),
        (["ladder", "--dataset", "smaple"], 2, "'sample'"),
        (["ladder", "--rungs", "recrods"], 2, "'records'"),
        (["ladder", "train.py", "--epochs", "3"], 2, "its own words go behind --, as in train.py -- --epochs"),
        (["ladder", "train.py", "--resume"], 2, "--resume: a climb with a script begins anew"),
        (["ladder", "train.py", "--dtype", "float16"], 2, "computes in float32 or bfloat16"),
        (["ladder", "nowhere.py", "--", "--epochs", "3"], 2, "nowhere.py: no such file"),
        (["run", "--leave", "environment,rows", "x.py"], 2, "choose of environment, samples, blocks"),
        (["run", "--backend", "torch", "--leave", "samples", "nowhere.py"], 2, "nowhere.py: no such file"),
        (["run", "--backend", "torch", "--leave", "blocks", "x.py"], 2, "go with --backend mxnet"),
        (["ladder", "--rungs", " "], 2, "--rungs ' ' names nothing"),
        (["tune", "--knobs", ","], 2, "--knobs ',' names nothing"),
        (["tune", "--batch-sizes", ""], 2, "--batch-sizes ''"),
        (["tta", "--target", "0.5", "--seeds", " , "], 2, "--seeds ' , '"),
        (["factors", "--methods", ",", "--target", "0.5"], 2, "--methods ',' names nothing"),
        (["bench", "inference", "--rungs", ""], 2, "--rungs '' names nothing"),
        (["launch", "--", "ladder"], 2, "launch runs `train`"),
        (["launch", "--", "train", "--engine", "kvstore"], 2, "--engine"),
    ],
)
def test_wrong_usage_is_one_or_two_lines_and_its_exit_code(arguments, code, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_debug_shows_the_traceback():
    with pytest.raises(gluontune.core.errors.UsageError):
        cli.main(["train", "--debug", "--dtype", "float31"])


def test_a_fault_of_our_own_is_told_without_a_traceback(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("oh no")

    monkeypatch.setattr("gluontune.training.api.run", broken)
    monkeypatch.setattr("gluontune.train.run", broken, raising=False)
    assert cli.main(["train"]) == 1
    assert "oh no" in capsys.readouterr().err


def test_json_stands_alone_on_stdout():
    command = [sys.executable, "-m", "gluontune", "train", "--net", "mlp", "--loader", "resident", "--json"]
    done = subprocess.run(
        [*command, "--train-samples", "640", "--val-samples", "64"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "ok" and isinstance(document["val_accuracy"], list)


def test_launch_prints_one_merged_result():
    command = [sys.executable, "-m", "gluontune", "launch", "-n", "2", "--engine", "kvstore", "--", "train"]
    small = ["--net", "mlp", "--loader", "resident", "--train-samples", "1280", "--val-samples", "64", "--json"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["recipe"]["num_devices"] == 2 and document["steps"] == 10


def test_a_failed_run_exits_1_and_says_why():
    command = [sys.executable, "-m", "gluontune", "train", "--net", "no_such_net", "--loader", "resident"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no_such_net" in done.stderr and "Traceback" not in done.stderr


def test_import_is_light():
    script = (
        "import sys, gluontune as gt\n"
        "gt.Recipe()\n"
        "for name in gt.__all__: getattr(gt, name)\n"
        "heavy = {'mxnet', 'matplotlib', 'scipy', 'cv2', 'pandas', 'gluoncv'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["train", "tta", "tune", "factors"])
def test_a_script_given_to_a_command_for_recipes_is_told_who_takes_it(command, capsys):
    assert cli.main([command, "my own/train.py"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "`gluontune run 'my own/train.py'`" in said and "`gluontune ladder 'my own/train.py'`" in said
    assert cli.main([command, "words"]) == 2 and "gluontune run" not in capsys.readouterr().err
