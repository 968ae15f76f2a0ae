"""``gluontune doctor``: table, JSON, exit codes, settings and kernel."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_fakes import make_system

from gluontune.cli.main import main
from gluontune.runtime import launch_settings
from gluontune.runtime.doctor import CHECKS

QUICK = ["--only", "python", "--only", "operating-system"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine(**changes)`` makes the command see a made-up machine."""

    def use(**changes):
        fake = make_system(tmp_path / "root", **changes)
        monkeypatch.setattr("gluontune.runtime.doctor._base.System", lambda: fake)
        return fake

    return use


def test_json_is_one_document_with_every_check(machine, tmp_path, capfd):
    machine()
    assert main(["doctor", "--json", "--data", str(tmp_path)]) == 0
    findings = json.loads(capfd.readouterr().out)["findings"]
    assert [f["id"] for f in findings] == CHECKS.names()
    assert all(set(f) == {"id", "severity", "message", "evidence", "fix"} for f in findings)


def test_an_error_is_exit_1_and_says_what_mends_it(machine, capfd):
    machine(packages={"numpy": "2.1.0"})
    assert main(["doctor", "--json", "--only", "numpy"]) == 1
    (finding,) = json.loads(capfd.readouterr().out)["findings"]
    assert finding["severity"] == "error" and finding["fix"].startswith("pip install 'numpy==")
    assert main(["doctor", "--only", "numpy"]) == 1
    said = capfd.readouterr().out
    assert "numpy 2.1.0" in said and "pip install" in said and "1 error" in said


def test_warnings_alone_are_exit_0(machine, capfd):
    machine(environ={"OMP_NUM_THREADS": None})
    assert main(["doctor", "--only", "omp-threads"]) == 0
    assert "1 warning" in capfd.readouterr().out


def test_brackets_in_a_command_are_not_swallowed(machine, capfd):
    machine(packages={"onnx": None})
    main(["doctor", "--only", "onnx"])
    assert "gluontune[export]" in capfd.readouterr().out.replace("\n", "")


def test_what_matters_comes_first_and_what_is_ok_is_folded(machine, tmp_path, capfd):
    machine(packages={"numpy": "2.1.0"})
    main(["doctor", "--only", "numpy", "--only", "python"])
    said = capfd.readouterr().out
    assert said.index("numpy 2.1.0") < said.index("python"), "what was asked for is shown, ok or not"
    main(["doctor", "--data", str(tmp_path)])
    short = capfd.readouterr().out
    main(["doctor", "--data", str(tmp_path), "--all"])
    full = capfd.readouterr().out
    assert "operating-system" in full and "operating-system" not in short and "(--all shows them)" in short
    assert len(short.splitlines()) < len(full.splitlines()) and "mend: nothing" not in full
    assert short.splitlines()[0].startswith("error")


def test_unknown_check_and_missing_data(machine, tmp_path, capfd):
    machine()
    assert main(["doctor", "--only", "pyton"]) == 2
    assert "did you mean 'python'" in capfd.readouterr().err
    assert main(["doctor", "--only", "data-folder", "--data", str(tmp_path / "gone")]) == 1
    assert main(["doctor", "--settings", "--processes", "0"]) == 2


def test_settings_can_be_evaluated_by_a_shell():
    command = f'eval "$({shlex.quote(sys.executable)} -m gluontune doctor --settings)"; env'
    home = Path(__file__).resolve().parents[2]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, cwd=home)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert launch_settings().env.items() <= seen.items()


def test_settings_as_json(capfd):
    assert main(["doctor", "--settings", "--processes", "2", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert {row["name"]: row["value"] for row in document["settings"]} == launch_settings(2).env
    assert all(row["why"] for row in document["settings"]) and len(document["cpus"]) == 2


def test_install_kernel(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert main(["doctor", "--install-kernel", "--json"]) == 0
    folder = Path(json.loads(capfd.readouterr().out)["kernel"])
    assert folder.is_relative_to(tmp_path) and (folder / "kernel.json").is_file()
    assert main(["doctor", "--install-kernel"]) == 0
    assert "papermill -k gluontune" in capfd.readouterr().out


def test_a_process_of_its_own_without_mxnet_and_with_json_alone_on_stdout():
    code = (
        "import sys; from gluontune.cli.main import main;"
        f"status = main(['doctor', '--json', *{QUICK!r}]);"
        "sys.exit(9 if 'mxnet' in sys.modules else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert [f["severity"] for f in json.loads(done.stdout)["findings"]] == ["ok", "ok"]
