"""The workflows and issue forms: they parse, and call targets that the Makefile has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_workflow_calls_targets_that_there_are(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["permissions"] == {"contents": "read"}, "no workflow may write"
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    assert all(job["timeout-minutes"] for job in document["jobs"].values())
    called = {step["run"].split()[1] for step in steps if "run" in step}
    assert called and called <= TARGETS
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)


def test_tests_docs_and_wheels_are_there():
    assert {path.stem for path in WORKFLOWS} == {"tests", "docs", "wheels"}


@pytest.mark.parametrize("path", [p for p in FORMS if p.stem != "config"], ids=lambda p: p.stem)
def test_an_issue_form_has_what_github_wants(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    for part in form["body"]:
        assert part["type"] == "textarea" and part["attributes"]["label"] and part["validations"]["required"]


def test_the_citation_has_the_version_of_the_package():
    import gluontune

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == gluontune.__version__ and citation["cff-version"] and citation["title"]


def test_a_wheel_holds_the_package_its_data_and_its_lessons_alone():
    """``make dist`` tries the wheel itself; this is what its check of the contents is about."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (included,) = re.findall(r"^\[tool\.hatch\.build\.targets\.wheel\]\ninclude = (\[.*\])$", text, re.M)
    lessons = ["/notebooks/*.ipynb", "/notebooks/assessment", "/notebooks/pictures"]
    assert json.loads(included) == ["/gluontune", "/data", *lessons]
