"""environment.yml: parses, names every package, agrees with pyproject.toml and constraints.txt, and resolves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gluontune.runtime import cuda

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux"}
# what the user named
NAMED = ("mxnet-cu112", "gluoncv", "numpy", "matplotlib", "jupyterlab", "nvidia-ml-py")


def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def pip_lines():
    (part,) = [entry["pip"] for entry in environment()["dependencies"] if isinstance(entry, dict)]
    return part


def pip_requirements():
    found = [Requirement(line) for line in pip_lines() if not line.startswith("-")]
    assert len({canonicalize_name(r.name) for r in found}) == len(found), "a package is named twice"
    return {canonicalize_name(r.name): r for r in found}


def pyproject_lists():
    """Requirements by extra; the core's under ''. (tomllib is there from Python 3.11 on only.)"""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = {"": re.search(r"^dependencies = \[(.*?)^\]", text, re.S | re.M)[1]}
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    lists.update(re.findall(r"^([\w-]+) = \[(.*?)\]$", section, re.S | re.M))
    quoted = {name: re.findall(r'"([^"]+)"', re.sub(r"#.*", "", body)) for name, body in lists.items()}
    return {name: [Requirement(text) for text in texts] for name, texts in quoted.items()}


def constraints():
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(PYTHON):
                found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def pinned(requirement):
    """The one version that ``==`` names, or None."""
    specifiers = list(requirement.specifier)
    return specifiers[0].version if len(specifiers) == 1 and specifiers[0].operator == "==" else None


def test_it_parses_and_conda_brings_python_and_pip_alone():
    document = environment()
    assert document["name"] == "gluontune" and document["channels"] == ["conda-forge"]
    plain = [entry for entry in document["dependencies"] if isinstance(entry, str)]
    assert plain == ["python=3.11", "pip"]
    assert "-c constraints.txt" in pip_lines() and "-e .[notebooks]" in pip_lines()


@pytest.mark.parametrize("name", NAMED)
def test_every_package_that_the_user_named_is_there(name):
    assert name in pip_requirements()


def test_its_python_is_one_that_gluontune_supports():
    (spec,) = re.findall(r'^requires-python = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    (python,) = [entry for entry in environment()["dependencies"] if str(entry).startswith("python=")]
    assert SpecifierSet(spec).contains(python.partition("=")[2])


def test_it_holds_all_of_the_extra_cu112_in_allowed_versions():
    have = pip_requirements()
    wanted = pyproject_lists()["cu112"]
    assert len(wanted) >= 12
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate(PYTHON):
            continue
        mine = have[canonicalize_name(requirement.name)]
        assert pinned(mine), f"{mine} is not pinned"
        assert requirement.specifier.contains(pinned(mine)), f"{mine} against pyproject's {requirement}"
    extra = set(have) - {canonicalize_name(r.name) for r in wanted} - {*NAMED}
    assert not extra, f"neither in the extra cu112 nor named by the user: {extra}"


def test_it_contradicts_neither_the_core_nor_the_constraints():
    have, limits = pip_requirements(), constraints()
    for requirement in pyproject_lists()[""]:
        mine = have.get(canonicalize_name(requirement.name))
        applies = requirement.marker is None or requirement.marker.evaluate(PYTHON)
        if mine is not None and applies and pinned(mine):
            assert requirement.specifier.contains(pinned(mine)), f"{mine} against pyproject's {requirement}"
    for name, requirement in have.items():
        if pinned(requirement) and name in limits:
            assert limits[name].contains(pinned(requirement)), f"{requirement} against constraints.txt"


def test_there_is_one_mxnet_and_it_is_not_the_cpu_wheel():
    assert [name for name in pip_requirements() if name.startswith("mxnet")] == ["mxnet-cu112"]


def test_every_cuda_library_has_its_wheel_in_the_file():
    have = pip_requirements()
    for library in cuda.CUDA_LIBRARIES:
        wheel = Requirement(library.wheel)
        assert wheel.specifier.contains(pinned(have[wheel.name])), library.prefix


# -- does it resolve? Metadata only: the wheels are 4 GB


OFFLINE = re.compile(
    r"failed to (fetch|lookup)|dns error|error sending request|connection|network|timed? ?out|offline|certificate", re.I
)
CONFLICT = re.compile(r"no solution found|unsatisfiable|resolutionimpossible|conflict", re.I)


def resolve(requirements, folder):
    """(exit status, output) of uv's resolver for the environment's platform, whatever runs this test."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        pytest.skip("wants uv, which resolves by metadata alone (pip install uv)")
    place = folder / "requirements.txt"
    shutil.copy(ROOT / "constraints.txt", folder)
    place.write_text("\n".join(requirements) + "\n")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11"]
    command += ["--python-platform", "x86_64-manylinux2014", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    if done.returncode and OFFLINE.search(output) and not CONFLICT.search(output):
        pytest.skip("wants a package index: " + " ".join(output.split())[:200])
    return done.returncode, output


def lines_from_elsewhere():
    """The pip part with its checkout named: conda runs it in the file's folder, this test in another."""
    here = {"-e .[notebooks]": f"gluontune[notebooks] @ {ROOT.as_uri()}"}
    return [here.get(line, line) for line in pip_lines()]


def test_the_pip_part_resolves(tmp_path):
    status, output = resolve(lines_from_elsewhere(), tmp_path)
    assert status == 0, output
    chosen = dict(re.findall(r"^([\w.-]+)==([\w.]+)", output, re.M))
    assert chosen["numpy"] == "1.23.5" and chosen["mxnet-cu112"] == "1.9.1"
    assert "mxnet" not in chosen and "jupyterlab" in chosen and "papermill" in chosen
    for name, requirement in pip_requirements().items():
        assert pinned(requirement) in (None, chosen[name])


def test_a_conflict_would_be_seen(tmp_path):
    status, output = resolve([*lines_from_elsewhere(), "numpy>=2"], tmp_path)
    assert status != 0 and CONFLICT.search(output), output


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_files_with_hashes_come_first_and_nothing_else_beside_them():
    """pip knows no hashes beside an editable installation: first these files alone, then gluontune without any."""
    steps = subprocess.run(
        ["make", "-n", "-B", "setup", "MXNET=cpu", "HASHES=h.txt"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    files, ours = steps.index('--require-hashes --no-deps -r "h.txt"'), steps.index("-e '.[cpu")
    assert files < ours and "--no-deps --no-build-isolation -e '.[cpu" in steps
    plain = subprocess.run(["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--no-deps --no-build-isolation" not in plain and '[ -z "" ]' in plain
