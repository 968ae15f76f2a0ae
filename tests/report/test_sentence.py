"""The sentence that matters is honest in every case."""

from __future__ import annotations

import copy

import pytest
import report_samples as samples
from hypothesis import given, settings, strategies as st

from gluontune.core.errors import GluontuneError
from gluontune.report import formatting as words, ladder_sentence, sentence_parts
from gluontune.report.formatting import clean


def ladder(**changes) -> dict:
    return {**samples.full_ladder(), **changes}


def row(found: dict, name: str) -> dict:
    return next(r for r in found["rungs"] if r["name"] == name)


def test_the_whole_sentence_of_a_climb():
    assert ladder_sentence(ladder()) == (
        "3.9× faster than naive (95 %: 3.7–4.1); what held you back: waiting for data (48 % of the naive step); "
        "worker processes and more devices did not help on this CPU; hybridizing helped only together with rewrites "
        "of the net; a larger batch hurt: "
        "accuracy fell by 5.0 points at equal epochs (limit: 2.0)"
    )


def test_hybridizing_is_only_useless_alone_if_its_plain_variants_lost():
    found = ladder()
    for variant in row(found, "hybridized")["variants"]:
        variant["ratio_to_previous"] = samples.measure(1.3)
    assert "hybridizing" not in ladder_sentence(found)


def test_the_verdict_of_the_runner_goes_before_the_longest_phase():
    found = ladder(verdict={"kind": "input", "sentence": "the input pipeline starves the net."})
    assert sentence_parts(found)[1] == "what held you back: the input pipeline starves the net"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Other programs take the cores.", "other programs take the cores"),
        ("GPU 0 waits.", "GPU 0 waits"),
        ("MXNet waits.", "MXNet waits"),
        (".", "waiting for data (48 %"),
    ],
)
def test_the_runner_s_sentence_becomes_a_clause(said, told):
    assert told in ladder_sentence(ladder(verdict={"kind": "input", "sentence": said}))


def test_it_says_cpu_or_gpu_only_where_the_ladder_tells():
    assert "on this GPU" in ladder_sentence(samples.full_ladder(gpus=2))
    found = samples.full_ladder()
    for other in found["rungs"]:
        del other["utilization"]["device"]
    assert "on this CPU" in ladder_sentence(found)
    found["machine"]["gpus"] = [{"name": "H100"}]  # present, but did it train there?
    assert "on this machine" in ladder_sentence(found)


def test_an_interval_that_reaches_one_is_no_gain():
    found = ladder()
    row(found, "mixed-precision").update(speedup_vs_naive=1.04, speedup_ci95=[0.97, 1.11])
    assert sentence_parts(found)[0] == (
        "no certain gain: mixed-precision measured 1.04× (95 %: 0.97–1.11) the speed of naive"
    )


def test_a_best_rung_slower_than_naive_is_called_slower():
    found = ladder()
    row(found, "mixed-precision").update(speedup_vs_naive=0.8, speedup_ci95=[0.7, 0.9])
    assert sentence_parts(found)[0].startswith("0.80× the speed of naive: slower")


def test_without_a_measured_speedup_the_medians_speak_and_no_interval_is_made_up():
    found = ladder()
    row(found, "mixed-precision").update(speedup_vs_naive=None, speedup_ci95=None)
    assert sentence_parts(found)[0] == "3.9× faster than naive"


def test_nothing_helped():
    found = ladder()
    for other in found["rungs"][1:]:
        other.update(kept=False, verdict="no gain")
    found["best"] = {"name": "naive"}
    headline, limit, *rest = sentence_parts(found)
    assert headline == "nothing that was tried made this job faster than naive (402 img/s) on this CPU"
    assert limit == "what limits it: waiting for data (48 % of the naive step)"
    assert rest[0].endswith("a larger batch and more devices did not help on this CPU")


def test_only_naive_was_measured():
    found = ladder(rungs=samples.full_ladder()["rungs"][:1], best={"name": "naive"})
    assert sentence_parts(found)[0] == "only naive was measured: 402 img/s"


def test_interrupted_says_so_and_reports_what_there_is():
    parts = sentence_parts(samples.interrupted_ladder())
    assert parts[:2] == ["1.41× faster than naive (95 %: 1.34–1.48)", "interrupted: 3 rungs measured so far"]
    assert ladder_sentence(ladder(rungs=[], best=None, complete=False)) == (
        "interrupted before the first rung was measured"
    )


def test_a_failed_naive_leaves_no_speedup_to_state():
    found = ladder()
    found["rungs"][0] = samples.unmeasured(found["rungs"][0], "failed", "job.py raised in net()")
    headline = sentence_parts(found)[0]
    assert headline == (
        "naive failed: job.py raised in net(), so no speedup can be stated; "
        "the best rung that ran is mixed-precision with 1,571 img/s"
    )
    assert "faster" not in ladder_sentence(found)


def test_everything_failed():
    assert ladder_sentence(samples.failed_ladder()) == (
        "no rung could be measured: naive failed: job.py raised in data() "
        "(TypeError: data() takes 0 positional arguments)"
    )
    assert ladder_sentence(ladder(rungs=[], best=None)) == "no rung was measured"


def test_a_gain_that_costs_accuracy_says_so_at_equal_epochs_only():
    found = ladder()
    row(found, "mixed-precision")["val_accuracy"] = [0.4, 0.5, 0.55]
    assert "but its accuracy is 6.0 points below naive's (55.0 %)" in sentence_parts(found)
    row(found, "mixed-precision")["val_accuracy"] = [0.4, 0.5]
    assert "accuracy is" not in ladder_sentence(found)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema_version": 7}, "schema_version 7"),
        ({"rungs": "none"}, "rungs: expected a list, not str"),
        ({"rungs": [{"status": "ran"}]}, r"rungs\[0\]: expected a mapping with a name"),
        ({"machine": [1]}, "machine: expected a mapping"),
    ],
)
def test_a_ladder_of_the_wrong_shape_is_refused_by_name(change, told):
    with pytest.raises(GluontuneError, match=told):
        ladder_sentence(ladder(**change))


def test_wrong_shapes_inside_a_row_name_the_key():
    found = ladder()
    found["rungs"][2]["phases_pct"] = "much"
    with pytest.raises(GluontuneError, match=r"rungs\[2\].phases_pct: expected a mapping, not str"):
        ladder_sentence(found)


_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=3)
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.data())
def test_no_value_of_a_row_breaks_the_sentence_unexplained(place, data):
    """Whatever one field holds, the answer is a sentence or an error that names the row."""
    found = copy.deepcopy(_FULL)
    name = data.draw(st.sampled_from(sorted(found["rungs"][place])))
    found["rungs"][place][name] = data.draw(_values)
    try:
        sentence = ladder_sentence(found)
    except GluontuneError as error:
        assert f"rungs[{place}]" in str(error)
    else:
        assert sentence and "\n" not in sentence and "nan" not in sentence


_FULL = samples.full_ladder()


@given(st.text())
def test_cleaned_text_is_one_line_that_a_terminal_only_shows(text):
    shown = clean(text, 50)
    assert len(shown) <= 50 and shown == clean(shown, 50)
    assert all(c.isprintable() or c == " " or ord(c) > 0x9F for c in shown) and "\u202e" not in shown


def test_figures_as_words():
    assert words.duration(59.4) == "59 s" and words.duration(59.6) == "1 min"
    assert words.duration(3599.6) == "1 h 0 min" and words.duration(-3) == "0.0 s"
    assert words.ratio(1.949) == "1.95×" and words.ratio(1.951) == "2.0×" and words.ratio(150) == "150×"
