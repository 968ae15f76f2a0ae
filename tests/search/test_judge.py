"""The verdict of a rung from its figures: each limit from both sides, and every sentence that goes with it."""

from __future__ import annotations

import pytest

from gluontune import stats
from gluontune.core.events import rung_row
from gluontune.recipe import Recipe
from gluontune.search.judge import Loss, choose, compare, judge, judge_accuracy, next_best, verdict_of
from gluontune.search.measure import Contender
from gluontune.search.rung import Variant
from gluontune.search.sequential import Scatter, ratio_at_look
from gluontune.train import RunFailed


def contender(*rates, workers=0, cut=None, failure=None):
    found = Contender(Recipe(num_workers=workers), f"{workers} workers")
    found.rates, found.cut, found.failure = list(rates), cut, failure
    return found


def measured(median, low, high, n=6):
    return {"median": median, "ci95": [low, high], "n": n}


def row(**fields):
    return {**rung_row("records", "a rung"), "reason": None, **fields}


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (measured(1.01, 1.001, 1.2), "helped"),
        (measured(1.009, 1.001, 1.2), "no gain"),  # certain, but not worth a change
        (measured(1.3, 1.0, 1.5), "no gain"),  # from nothing on
        (measured(0.5, 0.4, 0.899), "hurt"),
        (measured(0.5, 0.4, 0.9), "no gain"),
    ],
)
def test_the_limits_of_a_verdict(ratio, verdict):
    assert verdict_of(ratio) == verdict


def compared(field, best=None, naive=None, scatter=None):
    found = row(variants=[])
    naive = contender(50.0, 50.0, 50.0, 50.0) if naive is None else naive
    variants = [Variant(f"v{k}", {"num_workers": k, "rewrites": ("pool-to-mean",)}) for k in range(len(field))]
    return found, compare(found, field, variants, naive, best, scatter)


def test_of_those_that_tie_the_smallest_change_is_chosen():
    steady = {speed: contender(*[speed] * 4) for speed in (99.0, 100.0, 103.0, 103.1)}
    for field, chosen in (
        ((99.0, 100.0, 103.0), 1),  # three per cent below the fastest ties with it
        ((100.0, 103.1), 1),
        ((103.1, 100.0), 0),
        ((103.0, 103.1, 100.0), 0),
    ):
        found, winner = compared([steady[speed] for speed in field])
        assert winner is steady[field[chosen]]
        assert [v["chosen"] for v in found["variants"]] == [k == chosen for k in range(len(field))]


def test_what_helps_for_certain_goes_before_what_only_seems_faster():
    best = contender(*[100.0] * 6)
    wild, sure = contender(90.0, 300.0, 80.0, 310.0, 95.0, 290.0), contender(*[120.0] * 6)
    found, winner = compared([wild, sure], best)
    assert winner is sure
    assert stats.interval(wild.rates)["median"] > 120
    assert found["samples_per_sec"] == stats.interval([120.0] * 6)
    assert found["ratio_to_previous"]["median"] == pytest.approx(1.2)
    assert found["ratio_to_previous"]["ci95"] == pytest.approx([1.2, 1.2])
    assert found["speedup_vs_naive"] == pytest.approx(2.4) and found["speedup_ci95"] == pytest.approx([2.4] * 2)
    assert found["changes"] == {"num_workers": 1, "rewrites": ["pool-to-mean"]}
    assert found["recipe"] == sure.recipe.to_dict()


def test_a_row_names_what_failed_what_was_cut_and_what_has_no_ratio():
    failure = RunFailed("Died", "it ended", "training")
    cut = contender(40.0, 41.0, cut="slower than the best")
    field = [contender(failure=failure), contender(), cut]
    found, winner = compared(field)
    assert winner is cut
    assert [v["status"] for v in found["variants"]] == ["failed", "ran", "ran"]
    assert [v["reason"] for v in found["variants"]] == [str(failure), None, "slower than the best"]
    assert [v["samples_per_sec"] is None for v in found["variants"]] == [True, True, False]
    assert [v["label"] for v in found["variants"]] == ["v0", "v1", "v2"]
    assert not any(v["lost"] or v["ratio_to_previous"] for v in found["variants"])
    assert compared([contender(failure=failure), contender()])[1] is None
    assert compared([])[1] is None
    broken = contender(60.0, 60.0, failure=failure)  # its slices before it broke count for nothing
    found, winner = compared([broken])
    assert winner is None and not found["variants"][0]["chosen"]


def test_there_is_a_ratio_only_to_another_recipe_that_was_measured():
    best = contender(*[100.0] * 4)
    found, _ = compared([best, contender(*[110.0] * 4)], best)
    assert [v["ratio_to_previous"] is None for v in found["variants"]] == [True, False]
    found, _ = compared([contender(*[110.0] * 4)], contender())
    assert found["variants"][0]["ratio_to_previous"] is None


def test_the_error_is_shared_by_the_contenders_and_the_scatter_is_used():
    best, one, two = (contender(*rates) for rates in ([100, 97, 103, 101], [120, 131, 126, 118], [90, 99, 97, 94]))
    scatter = Scatter()
    scatter.add_single([100.0, 106.0, 95.0, 101.0, 108.0, 99.0, 103.0, 97.0])
    found, _ = compared([one, two], best, scatter=scatter)
    assert found["variants"][0]["ratio_to_previous"] == ratio_at_look(one.rates, best.rates, 2, scatter)


def test_what_was_cut_while_it_warmed_up_is_below_four_tenths():
    best = contender(90.0, 100.0, 110.0, 100.0)
    for rate, high in ((20.0, 0.4), (60.0, 0.6)):
        found, _ = compared([contender(rate, cut="far slower")], best)
        assert found["ratio_to_previous"] == {"median": rate / 100, "ci95": [0.0, high], "n": 1}
    once = compared([contender(20.0)], best)[0]  # not cut: one slice tells nothing
    assert once["ratio_to_previous"]["ci95"][1] > 1000
    often = compared([contender(20.0, 20.0, cut="far slower")], best)[0]
    assert often["ratio_to_previous"]["n"] == 2


def test_a_ratio_to_naive_has_one_interval_that_of_its_looks():
    naive, chosen = contender(100.0, 97.0, 103.0, 101.0), contender(190.0, 231.0, 208.0, 204.0)
    found, _ = compared([chosen], naive, naive=naive)
    assert found["ratio_to_previous"]["ci95"] == list(found["speedup_ci95"])
    assert found["ratio_to_previous"]["median"] == found["speedup_vs_naive"]


def test_the_speedup_is_taken_over_the_slices_that_both_have():
    naive, chosen = contender(50.0, 50.0), contender(100.0, 100.0, 400.0, 400.0)
    found, _ = compared([chosen], naive=naive)
    assert (found["speedup_vs_naive"], found["speedup_ci95"]) == (
        pytest.approx(2.0),
        stats.bounds(stats.ratio_interval([100.0, 100.0], [50.0, 50.0])),
    )
    found, _ = compared([naive], naive=naive)
    assert (found["speedup_vs_naive"], found["speedup_ci95"]) == (1.0, [1.0, 1.0])
    found, _ = compared([chosen], naive=contender())
    assert found["speedup_vs_naive"] is None
    bare = row(variants=[])
    choose(bare, contender(), [], naive)
    assert bare["speedup_vs_naive"] is None


def tried(*ratios):
    """A row whose first variant was chosen, and lost accuracy."""
    variants = [
        {"ratio_to_previous": ratio, "chosen": not k, "lost": False, "reason": None} for k, ratio in enumerate(ratios)
    ]
    return row(variants=variants, ratio_to_previous=ratios[0], reason="accuracy was lost")


def test_after_a_loss_the_next_that_helped_is_tried():
    helped, hurt = measured(1.5, 1.4, 1.6), measured(0.5, 0.4, 0.6)
    field = [contender(workers=k) for k in range(4)]
    found = tried(helped, None, hurt, helped)
    assert next_best(found, field) is field[3]
    assert found["variants"][0]["lost"] and found["variants"][0]["reason"] == "accuracy was lost"
    assert found["reason"] is None
    found["variants"][0]["chosen"], found["variants"][3]["chosen"] = False, True
    assert next_best(found, field) is None  # the first was tried already, and the others do not help
    for none in (tried(helped, None, hurt), tried(hurt, helped), {**tried(helped, helped), "kept": True}):
        before = none["reason"]
        assert next_best(none, field) is None and none["reason"] == before
        assert not any(v["lost"] for v in none["variants"])
    assert next_best(tried(None, helped), field) is None


def judged(ratio, others=0.0, has_best=True, **fields):
    found = row(ratio_to_previous=ratio, **fields)
    judge(found, others, has_best=has_best)
    return found


def test_a_gain_is_kept_and_what_has_nothing_before_it_too():
    found = judged(measured(1.5, 1.4, 1.6), others=90.0)
    assert (found["status"], found["verdict"], found["kept"], found["reason"]) == ("ran", "helped", True, None)
    for nothing in (judged(measured(0.5, 0.4, 0.6), has_best=False), judged(None)):
        assert (nothing["status"], nothing["verdict"], nothing["kept"]) == ("ran", "n/a", True)


def test_what_is_not_kept_has_its_ratio_as_the_reason():
    found = judged(measured(0.5, 0.4, 0.6))
    assert (found["verdict"], found["kept"], found["measurable"]) == ("hurt", False, True)
    assert found["reason"] == "0.50× the recipe before it (95 %: 0.40–0.60)"
    assert judged(measured(0.2, 0.0, 0.4))["reason"] == "0.20× the recipe before it"  # cut off: no lower bound


@pytest.mark.parametrize(
    ("others", "high", "changes", "measurable"),
    [
        (9.9, 0.8, {}, True),
        (10.0, 0.8, {}, False),
        (10.0, 0.5, {"dtype": "bfloat16"}, False),
        (10.0, 0.49, {"dtype": "bfloat16"}, True),  # so slow that the load of others is no excuse
        (10.0, 0.49, None, True),
        (10.0, 0.49, {"num_workers": 2}, False),  # but for who shares the cores
    ],
)
def test_beside_other_programs_a_loss_is_no_verdict(others, high, changes, measurable):
    notes = ["other programs took 12 % of the cores", "a warm disk"]
    found = judged(measured(0.45, 0.4, high), others, notes=list(notes), changes=changes)
    assert found["measurable"] == measurable and not found["kept"]
    assert found["notes"] == (notes if measurable else notes[1:])
    assert (found["verdict"] == "hurt") == measurable
    if not measurable:
        assert found["verdict"] == "n/a"
        assert found["reason"].startswith("not measurable here now: other programs took 10 % of the cores")
        assert "it measured 0.45×" in found["reason"]


def test_a_contest_without_an_answer_is_no_verdict():
    open_ = measured(1.1, 0.9, 1.4)
    found = judged(open_, contest_decided=False)
    assert not found["measurable"] and found["verdict"] == "n/a"
    assert "6 slices do not tell, and there was no time for more; 1.10×" in found["reason"]
    for decided in ({}, {"contest_decided": True}):
        assert (judged(open_, **decided)["verdict"], judged(open_, **decided)["measurable"]) == ("no gain", True)
    assert judged(measured(0.5, 0.4, 0.6), contest_decided=False)["verdict"] == "hurt"


def test_a_gain_that_costs_accuracy_is_taken_back():
    ratio = measured(1.5, 1.4, 1.6)
    sure = Loss(0.11, 0.05, 0.17, 0.70, 0.59, 2)
    found = row(kept=True, verdict="helped", ratio_to_previous=ratio)
    assert judge_accuracy(found, sure)
    assert (found["kept"], found["verdict"], found["measurable"]) == (False, "hurt", True)
    assert found["reason"] == f"{sure.sentence} at equal epochs (throughput 1.50×)"
    for low, measurable in ((0.05, False), (0.12, True)):  # one run may be unlucky, but not so unlucky
        found = row(kept=True, verdict="helped", ratio_to_previous=ratio)
        assert judge_accuracy(found, Loss(0.15, low, 0.2, 0.70, 0.55, 1))
        assert found["measurable"] == measurable and found["verdict"] == ("hurt" if measurable else "n/a")
        assert ("in one run, and there was no time for a second" in found["reason"]) != measurable
    small = Loss(0.02, 0.01, 0.03, 0.70, 0.68, 2)
    for kept, loss in ((True, None), (False, sure), (True, small)):
        found = row(kept=kept, verdict="helped", ratio_to_previous=ratio)
        assert not judge_accuracy(found, loss) and found["verdict"] == "helped"
