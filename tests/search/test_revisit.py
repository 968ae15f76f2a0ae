"""Asking again at the end of a climb: what was dropped, what was kept early, and what depends on what."""

from __future__ import annotations

import json
import re

import pytest

from gluontune import ladder, report
from gluontune.recipe import Recipe
from gluontune.report.page import finish_ladder
from gluontune.search.results_store import best_yaml

TWO = ["environment", "hybridized"]


def late(r: Recipe) -> float:
    """Threads that gain nothing before the graph is compiled."""
    graph = r.hybridize == "static"
    return 100.0 * (1.5 if graph else 1.0) * (1.3 if graph and r.runtime == "tuned" else 1.0)


def early(r: Recipe) -> float:
    """Threads that gain before the graph is compiled, and hurt afterwards."""
    graph, tuned = r.hybridize == "static", r.runtime == "tuned"
    return 100.0 * (2.0 if graph else 1.0) * ((0.7 if graph else 1.2) if tuned else 1.0)


def rows(document):
    return {row["name"]: row for row in document["rungs"]}


def answers(document):
    return {(a["rung"], a["kind"]): a for a in document["revisited"]}


def test_what_was_dropped_is_asked_again_on_top_of_the_best(machine, tmp_path):
    machine.rate = late
    found = ladder.climb(Recipe(), rungs=TWO, out=tmp_path)
    assert rows(found)["environment"]["verdict"] == "no gain"
    answer = answers(found)["environment", "asked again"]
    assert answer["adopted"] and answer["verdict"] == "helped"
    assert answer["first"]["median"] == pytest.approx(1.0, rel=0.03)
    assert answer["ratio"]["median"] == pytest.approx(1.3, rel=0.03)
    assert re.match(r"environment: (0\.99|1\.0\d)× when it was climbed, 1\.[23]", answer["interaction"])
    best = Recipe.from_dict(found["best"]["recipe"])
    assert (best.runtime, best.hybridize) == ("tuned", "static")
    assert found["best"]["name"] == "hybridized, environment, asked again"
    assert found["best"]["speedup_vs_naive"] == pytest.approx(1.95, rel=0.05)
    assert json.loads((tmp_path / "ladder.json").read_text())["revisited"] == found["revisited"]
    assert "x the speed here, on top of the rest" in best_yaml(found).split("runtime: tuned  # environment: 1.3")[1]
    assert "1.9" in report.ladder_sentence(found)


def test_what_was_kept_early_is_left_out_where_it_hurts_by_now(machine):
    machine.rate = early
    found = ladder.climb(Recipe(), rungs=TWO)
    assert rows(found)["environment"]["kept"] and rows(found)["hybridized"]["kept"]
    answer = answers(found)["environment", "left out"]
    assert answer["adopted"] and answer["ratio"]["median"] == pytest.approx(1 / 0.7, rel=0.03)
    assert Recipe.from_dict(found["best"]["recipe"]).runtime == Recipe().runtime
    assert re.search(r"0\.(69|70|71)× with what was kept later", answer["interaction"])
    assert "runtime" not in best_yaml(found)


def test_what_loses_accuracy_on_top_of_the_best_is_not_adopted(machine):
    def rate(r):
        resident = 1.5 if r.hybridize == "static" else 1.0
        return late(r) * (1.0 if r.loader == "gluon" else resident)

    machine.rate = rate
    machine.accuracy = lambda r: 0.5 if r.loader != "gluon" and r.hybridize == "static" else 0.8
    found = ladder.climb(Recipe(), rungs=["records", "hybridized"])
    answer = answers(found)["records", "asked again"]
    assert answer["verdict"] == "hurt" and not answer["adopted"] and "accuracy 50.0 %" in answer["reason"]
    assert found["best"]["name"] == "hybridized"


def test_what_the_proof_shows_to_lose_accuracy_is_taken_back(machine):
    machine.rate = late
    machine.accuracy = lambda r: 0.5 if r.hybridize == "static" else 0.8
    found = ladder.climb(Recipe(), rungs=["hybridized"])
    row = rows(found)["hybridized"]
    assert row["accuracy_runs"] == []  # a graph computes the same but for rounding: there was no time to doubt that
    assert found["proof"]["same_accuracy"] is False
    assert (row["verdict"], row["kept"], found["best"]["name"]) == ("hurt", False, "naive")
    assert "50.0 % in the proof" in row["reason"]


def test_a_climb_where_nothing_interacts_changes_nothing(machine):
    found = ladder.climb(Recipe(), rungs=["environment", "multi-worker", "records", "hybridized", "large-batch"])
    assert found["best"]["name"] == "large-batch"
    assert not any(a["adopted"] or a["interaction"] for a in found["revisited"])
    asked = set(answers(found))
    assert ("multi-worker", "asked again") not in asked  # the resident loader has no workers
    assert {("environment", "left out"), ("hybridized", "left out")} <= asked


def test_without_time_it_is_said(machine):
    found = ladder.climb(Recipe(), rungs=["environment", "records"], budget_s=10.0, clock=lambda: 0.0)
    assert [a["reason"] for a in found["revisited"]] == ["no time was left to ask again"]


def test_the_page_says_first_what_to_do_and_has_the_script(machine, tmp_path):
    machine.rate = late
    found = ladder.climb(Recipe(net="cifar_resnet20_v1"), rungs=TWO, out=tmp_path)
    finish_ladder(found, tmp_path)
    page = (tmp_path / "ladder.html").read_text(encoding="utf-8")
    todo = page.index("What to do")
    assert todo < page.index("The rungs") < page.index("Asked again at the end")
    assert page.index("Compile the net to a graph") > todo and "Set threads and allocator" in page
    assert "python best.py" in page and "gt.optim.setup(" in page and "Copy best.py" in page
    (tmp_path / "best.py").unlink()  # moved away: the page is written all the same
    finish_ladder(found, tmp_path)
    assert "Copy best.py" not in (tmp_path / "ladder.html").read_text(encoding="utf-8")
