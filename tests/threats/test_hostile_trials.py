"""A small part of the campaigns of ``hostile_trials.py``, which are run by hand."""

from __future__ import annotations

import time

import hostile_trials
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


@pytest.mark.mxnet
@pytest.mark.parametrize("kind, cases", [("names", 26), ("symbols", 200), ("recipes", 300), ("resumes", 80)])
def test_nothing_of_others_runs_and_no_error_is_raw(kind, cases):
    found = hostile_trials.campaign(kind, cases, seed=0)
    assert not found["executed"] and not found["raw"], "\n".join(found["told"])
    assert found["taken"] and (found["refused"] or kind == "names")


def test_a_campaign_tells_what_runs_and_what_is_raw(monkeypatch):
    """Else the test above would say nothing."""

    def kind(rng, number, folder):
        if number == 0:
            (folder / "deep" / "RAN").mkdir(parents=True)
        if number == 1:
            raise KeyError("raw")
        if number == 2:
            raise hostile_trials.GluontuneError("a" * 9000)
        if number == 4:
            time.sleep(60)

    monkeypatch.setitem(hostile_trials.KINDS, "own", kind)
    monkeypatch.setattr(hostile_trials, "HANG_S", 1)
    found = hostile_trials.campaign("own", 5, 0)
    assert (found["executed"], found["raw"], found["taken"], found["refused"]) == (1, 3, 2, 1)
    assert "KeyError" in found["told"][1] and "--first 1 --cases 1" in found["told"][1]
    assert "not done after 1 s" in found["told"][-1]
