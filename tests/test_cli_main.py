"""The command line's frame: help, exit codes, errors without tracebacks, JSON alone on stdout."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import typer

import gluontune
from gluontune.cli import main as cli
from gluontune.cli._help import EXAMPLES, GROUPS
from gluontune.cli._recipe import field_help
from gluontune.recipe import Recipe

COMMANDS = (
    "doctor",
    "init",
    "ladder",
    "train",
    "monitor",
    "report",
    "data",
    "pack",
    "verify",
    "size",
    "launch",
)


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
    cli.main(["train", "--help"])
    text = capsys.readouterr().out
    for name in set(Recipe().to_dict()) - {"env", "rewrites"}:
        assert ("--method " if name == "methods" else f"--{name.replace('_', '-')}") in text, name


def test_without_a_command_it_says_what_to_do_first(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert "Three things to do first" in text and "gluontune ladder --quick" in text


def test_commands_stand_in_groups_and_none_is_left_out(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^(\w[\w ]+):$", text, re.M) == ["Options", *GROUPS]


def leaves(command, path=()):
    below = getattr(command, "commands", None)
    if not below:
        yield " ".join(path), command
    for name, inner in (below or {}).items():
        yield from leaves(inner, (*path, name))


def test_each_example_is_one_that_the_command_line_takes():
    known = dict(leaves(typer.main.get_command(cli.build_app())))
    assert set(EXAMPLES) <= set(known)
    for name, examples in EXAMPLES.items():
        assert len(examples) == 2
        for example in examples:
            assert example.startswith(name)
            known[name].make_context(name, example[len(name) :].split())


def test_help_shows_examples_and_groups_of_options(capsys):
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert "gluontune train --dataset sample --epochs 1" in text
    places = [text.index(f"{title}:") for title in ("Options", "Recipe: job", "Recipe: length", "Examples")]
    assert places == sorted(places) and "default: None" not in text


def test_init_writes_a_job_that_trains_and_overwrites_nothing(tmp_path, capsys):
    job = tmp_path / "job.py"
    assert cli.main(["init", str(job)]) == 0
    assert (
        cli.main(
            ["train", "--job", str(job), "--epochs", "0.1", "--train-samples", "640", "--val-samples", "64"]
        )
        == 0
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
        (["launch", "--", "ladder"], 2, "launch runs `train`"),
        (["launch", "--", "train", "--engine", "kvstore"], 2, "--engine"),
    ],
)
def test_wrong_usage_is_one_or_two_lines_and_its_exit_code(
    arguments, code, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_debug_shows_the_traceback():
    with pytest.raises(gluontune.errors.UsageError):
        cli.main(["train", "--debug", "--dtype", "float31"])


def test_a_fault_of_our_own_is_told_without_a_traceback(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("oh no")

    monkeypatch.setattr("gluontune.train.running.run", broken)
    monkeypatch.setattr("gluontune.train.run", broken, raising=False)
    assert cli.main(["train"]) == 1
    assert "oh no" in capsys.readouterr().err


def test_json_stands_alone_on_stdout():
    command = [sys.executable, "-m", "gluontune", "train", "--net", "mlp", "--loader", "resident", "--json"]
    done = subprocess.run(
        [*command, "--train-samples", "640", "--val-samples", "64"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "ok" and isinstance(document["val_accuracy"], list)


def test_launch_prints_one_merged_result():
    command = [sys.executable, "-m", "gluontune", "launch", "-n", "2", "--engine", "kvstore", "--", "train"]
    small = [
        "--net",
        "mlp",
        "--loader",
        "resident",
        "--train-samples",
        "1280",
        "--val-samples",
        "64",
        "--json",
    ]
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
