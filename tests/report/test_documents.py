"""``gluontune report`` over studies, searches and benchmarks: what each shows, and bad files by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report_samples as samples
import tta_fakes as runs
from page_reader import Page

from gluontune import report
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.core.files import write_json
from gluontune.recipe import Recipe
from gluontune.report.tta import finish_tta
from gluontune.search import tta as tta

HERE = Path(__file__).parent
MADE = {"created": "2026-01-31T10:00:00+00:00", "complete": True, "machine": {"cpu": {"model": "Test CPU"}}}


def ratio(value):
    return {"median": value, "ci95": [value * 0.9, value * 1.1], "n": 3}


def tune_document():
    def tried(label, gain, **more):
        rate = ratio(100 * gain) if gain else None
        return {"stage": "threads", "label": label, "status": "ran" if gain else "failed", "reason": None,
                "remark": "", "samples_per_sec": rate, "speedup_vs_start": gain, "kept": False,
                "speedup_ci95": [gain, gain] if gain else None, **more}  # fmt: skip

    best = {"name": "2 threads", "recipe": Recipe().to_dict(), "samples_per_sec": ratio(150.0), "speedup_vs_start": 1.5}
    rows = [tried("2 threads", 1.5, kept=True), tried("tcmalloc", None, reason="libtcmalloc is not here")]
    return {**MADE, "schema_version": 1, "heats": [], "tried": rows, "best": best, "notes": [], "seconds": 90.0,
            "sentence": "1.50 times as fast", "dataset": {"name": "sample"},
            "base_recipe": Recipe().to_dict()}  # fmt: skip


def esgd_document():
    def one(fitness, offspring=False):
        score = {"fitness": fitness, "loss": fitness, "accuracy": 0.75}
        return {"score": score, "offspring": offspring, "setup": {"optimizer": "sgd", "learning_rate": 0.1}}

    generations = [
        {"generation": k, "best": one(1 / k), "population": [one(1 / k), one(None, True)],
         "offspring_share_of_elite": 0.5} for k in (1, 2)
    ]  # fmt: skip
    given = {"recipe": Recipe().to_dict(), "plan": {"population": 2}}
    return {**MADE, "schema_version": 1, "kind": "esgd", "given": given, "done": [], "generations": generations,
            "cost": {"trained_images": 1000, "scored_images": 200}}  # fmt: skip


def bench_document():
    rows = [
        {"name": "ours", "peer": "gluontune", "images_per_sec": ratio(400.0), "status": "ok", "reason": "", "note": ""},
        {"name": "theirs", "peer": "DALI", "images_per_sec": None, "status": "missing", "reason": "make peers",
         "note": "uint8"},
    ]  # fmt: skip
    ours = {"name": "ours", "ratio_to": {"DALI": ratio(2.0)}}
    return {"rows": rows, "ours": ours, "conditions": {"size": 224}, "machine": MADE["machine"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One of each, as the commands leave them, runs and an older document among them."""
    monkeypatch.chdir(tmp_path)
    runs.pretend(monkeypatch).crash = lambda recipe: recipe.seed == 1
    found = tta.time_to_accuracy(Recipe(), target=0.8, repeats=3, out="all/tta", against=Recipe(epochs=3))
    finish_tta(found, "all/tta")
    write_json("all/tta/tta.previous.json", {"kind": "tta", "schema_version": 1})
    write_json("all/tune/tune.json", tune_document())
    write_json("all/esgd/esgd.json", esgd_document())
    write_json("all/loading.json", bench_document())
    samples.run_result(0).save("all/run.json")
    return tmp_path


def test_a_folder_of_everything_becomes_one_page(folder, capfd):
    assert main(["report", "all", "--out", "all.html"]) == 0
    said = capfd.readouterr()
    assert "left out" not in said.err  # neither the older document nor the runs below a study
    text = (folder / "all.html").read_text()
    page = Page(text)
    for wanted in ("80.0 % in", "the loss is nan", "1.50 times as fast", "libtcmalloc is not here",
                   "evolutionary SGD: 75.0 % after 2 generations of 2", "ours: 2.0× DALI", "make peers"):  # fmt: skip
        assert wanted in page.text(), wanted
    assert "evolutionary SGD" in said.out and "1.50 times" in said.out
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    uses = {a["href"][1:] for tag, a in page.elements if tag == "use"}
    assert uses and uses <= set(ids)
    assert len(page.find("svg")) >= 3 + 1 + 1 + 1  # tta, tune, esgd, loading; and the run's own
    assert {tag for tag, _ in page.elements} & {"link", "img", "iframe"} == set()


def test_the_first_figure_becomes_a_picture(folder, capfd):
    assert main(["report", "all/loading.json", "--svg", "bars.svg"]) == 0
    assert "prefers-color-scheme: dark" in Path("bars.svg").read_text()
    assert main(["report", "all/run.json", "--svg", "none.svg"]) == 2
    assert "no figure to write as SVG" in capfd.readouterr().err and not Path("none.svg").exists()


def test_the_command_says_what_it_read_as_json(folder, capfd):
    assert main(["report", "all/tta", "all/loading.json", "--json"]) == 0
    sources = json.loads(capfd.readouterr().out)["sources"]
    assert [s["kind"] for s in sources] == ["tta", "bench"] and "2 of 3 repeats" in sources[0]["sentence"]


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("tta/tta.json", {"summary": None}, "a document of `gluontune tta`"),
        ("tta/tta.json", {"schema_version": 9}, "schema_version 9"),
        ("tune/tune.json", {"tried": [{}]}, "without 'samples_per_sec'"),
        ("esgd/esgd.json", {"generations": 3}, "cannot be read"),
        ("loading.json", {"rows": [{"peer": "x"}]}, "without 'name'"),
    ],
)
def test_a_damaged_document_is_named_with_the_way_out(folder, capfd, name, change, told):
    path = Path("all") / name
    write_json(path, {**json.loads(path.read_text()), **change})
    assert main(["report", str(path), "--out", "none.html"]) == 1
    error = capfd.readouterr().err
    assert told in error and str(path) in error and "Traceback" not in error
    assert not Path("none.html").exists()


def test_studies_are_not_compared_as_runs(folder, capfd):
    assert main(["report", "all/run.json", "all/tune/tune.json", "--compare"]) == 2
    assert "--compare takes runs and ladders" in capfd.readouterr().err


def test_an_unfinished_study_says_so(folder):
    document = {**tune_document(), "complete": False}
    report.write_document_html(document, "tune.html")
    assert "interrupted" in Path("tune.html").read_text()
    with pytest.raises(GluontuneError, match="not a study or a benchmark"):
        report.write_document_html({"recipe": {}}, "other.html")
