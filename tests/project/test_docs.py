"""README and docs: tables agree with benchmarks/, every number has a document or a reason, links lead somewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gluontune as gt
from benchmarks import tables
from benchmarks.published import check_published, published_view
from gluontune.core.errors import GluontuneError

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: The catalogue's numbers are of the cards, the rubric's of the lessons.
WRITTEN = [p for p in TEXTS if p.parent.name != "catalogue" and p.name != "course-rubric.md"]
DOCUMENTS = sorted((ROOT / "benchmarks").glob("*.json"))
#: Numbers that are no measurement, with what they are.
PLAIN = {
    "10": "CIFAR-10; images of the sample, in thousands", "80": "the target of tta-cifar10", "95": "% interval",
    "3.9": "Python", "3.12": "Python", "4.0": "MPICH", "2.0": "licence",
    "1.9.1": "mxnet", "100": "H100", "200": "H200, B200", "11": "CUDA", "86": "x86-64", "64": "x86-64",
    "2018": "a deck", "2019": "the deck", "2020": "a deck", "9": "a lecture", "2014": "a paper", "2016": "a paper",
    "20": "ResNet-20", "224": "pixels of the loading table", "30": "seconds, held by the tests of launch",
    "50": "ResNet-50", "94": "airbench94",
    "10,000": "images of the sample", "2,000": "images of the sample", "5": "points below the grader's reference",
    **dict.fromkeys(("5.0", "8.0", "8.6", "8.9", "9.0"), "compute capability"), "900": "GTX 900", "40": "RTX 40",
    "24.06": "container", "450.80": "driver", "65,536": "first loss scale",
    "1,333": "mixtures of the assessment", "14": "of 100, held by the assessment's tests", "150": "steps of its CNN",
    "1,500": "validation images of its trial", "500": "images of its statistics",
}  # fmt: skip


def prose(text: str) -> str:
    """A text without what is code, link, picture or generated."""
    text = re.sub(r"<!-- figures:.*?<!-- /figures -->", "", text, flags=re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    text = re.sub(r"`[^`]*`", "", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def numbers(text: str) -> set[str]:
    return {n.rstrip(".,") for n in re.findall(r"(?<![\w.])\d[\d,.]*|(?<=[A-Za-z-])\d[\d,.]*", text)}


def measured() -> set[str]:
    found: set[str] = set()
    for path in DOCUMENTS:
        document = json.loads(path.read_text(encoding="utf-8"))
        found |= numbers(tables.table(document)) | numbers(" ".join([document["title"], *document["notes"]]))
    return found


def test_the_rung_of_the_contributors_guide_runs(monkeypatch):
    from gluontune.search import rungs

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("### A rung")[1].split("###")[0]
    code = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    added = {}
    monkeypatch.setattr(rungs.RUNGS, "add", added.__setitem__)
    exec(code, vars(rungs).copy())
    site = rungs.Site.of({"num_train": 10_000}, {}, gt.Recipe())
    (rung,) = added.values()
    assert rung.requires(gt.Recipe(), site) is None
    for variant in rung.variants(gt.Recipe(), site):
        assert gt.Recipe().override(**variant.changes) != gt.Recipe()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_number_has_a_document_or_a_reason(path):
    unknown = numbers(prose(path.read_text(encoding="utf-8"))) - measured() - set(PLAIN)
    assert not unknown, f"{path.name}: no document in benchmarks/ holds {sorted(unknown)}"


def test_a_number_without_a_document_is_found():
    assert numbers(prose("It is 7.31 times faster than `9.99`.")) == {"7.31"}
    assert "7.31" not in measured()


def test_tables_are_those_of_the_documents():
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "tables", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_changed_document_makes_its_tables_stale(tmp_path):
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path)
    loading = tmp_path / "benchmarks" / "loading.json"
    document = json.loads(loading.read_text(encoding="utf-8"))
    figure = document["rows"][0][1]
    figure["median"] += 1
    loading.write_text(json.dumps(document), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks", "tables"]
    ran = subprocess.run([*command, "--check"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and "README.md: out of date" in ran.stdout
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    assert f"{figure['median']:,}" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_a_document_says_how_its_figures_were_made(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["id"] == path.stem
    check_published(document, path.name)
    assert published_view(document, "p")["headline"]
    for key in ("machine", "n", "command", "versions"):
        with pytest.raises(GluontuneError, match=f"{path.name}: '{key}' is missing"):
            check_published({k: v for k, v in document.items() if k != key}, path.name)


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.encode()) <= 9 * 1024


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):  # a forge shows the files; docs/_links.py makes pages of them on the site
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_picture_shows_the_document_and_a_stale_one_is_named(tmp_path, monkeypatch, capsys):
    ((path, name),) = tables.PICTURES.items()
    drawn, document = (ROOT / path).read_text(encoding="utf-8"), tables.load(name)
    rate, ratio = (document["rows"][-1][document["columns"].index(c)] for c in ("img/s (95 %)", "÷ naive (95 %)"))
    last = f"{rate['median']:,}  ({ratio['median']:.1f}×)"
    assert last in drawn and "prefers-color-scheme: dark" in drawn
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(drawn.replace(last, "668"), encoding="utf-8")
    monkeypatch.setattr(tables, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(tables, "texts", list)
    shutil.copytree(ROOT / "benchmarks", tables.HERE)
    assert tables.main(check=True) == 1 and f"{path}: out of date" in capsys.readouterr().out
    assert tables.main() == 0 and (tmp_path / path).read_text(encoding="utf-8") == drawn


def test_each_test_that_a_page_names_is_there():
    named = {path for text in [*TEXTS, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
             for path in re.findall(r"\btests/[\w/]+\.(?:py|txt)", text.read_text(encoding="utf-8"))}  # fmt: skip
    assert "tests/trials/hostile_trials.py" in named and not [path for path in named if not (ROOT / path).is_file()]
