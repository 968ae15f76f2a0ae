"""No two statements of a ladder's page differ: over ladders drawn by chance, and with statements that were changed."""

from __future__ import annotations

import re

import pytest

from gluontune.report.page import finish_ladder
from tests.support.drawn_ladders import drawn
from tests.support.page_checker import contradictions


def page_of(seed, folder):
    finish_ladder(drawn(seed, folder), folder)
    return (folder / "ladder.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", [1, 5, 9, 22, 23])
def test_a_drawn_ladders_page_contradicts_itself_nowhere(seed, tmp_path):
    assert contradictions(page_of(seed, tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_no_drawn_ladders_page_contradicts_itself(seed, tmp_path):  # tests/trials/page_trials.py draws more of them
    assert contradictions(page_of(seed, tmp_path)) == []


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(22, tmp_path_factory.mktemp("drawn"))


@pytest.mark.parametrize(
    ("pattern", "instead", "told"),
    [
        (r"accuracy after [\d.]+ epochs?", "accuracy after 7 epochs", "epochs of best"),
        (r"(<span>best</span><b>)[\d,]+", r"\g<1>99,999", "rate of best"),
        (r"(<small>in )[\dmin s.]+(</small></div>\s*</div>)", r"\g<1>59 min 1 s\2", "seconds of the climb"),
        (r"\d trainings of each, in turn", "one training each", "an interval over one training"),
        (r"(% accuracy: )[\d.]+×", r"\g<1>77×", "proof of best"),
        (r"accuracy to reach", "accuracy", "is explained nowhere"),
        (r"(takes )\d+(.% of the step)", r"\g<1>3\2", "share of"),
        (r"(<span class=\"mark helped\">.*?) helped", r"\1 hurt", "verdict of"),
        (r"hybridized: [\d,.]+ img/s", "hybridized: 1 img/s", "rate of hybridized"),
        (r"predicted [\d,.]+ \(", "predicted 7 (", "prediction of"),
        (r"img/s \(between ([^;]*?), kept", r"img/s (between \1, not kept", "kept of"),
        (r"(reached )[\d.]+( % after)", r"\g<1>1.5\2", "accuracy of"),
        (r"(<b>[^<]*</b>: )[\d.]+×", r"\g<1>55×", "before of"),
    ],
)
def test_a_changed_statement_is_found(page, pattern, instead, told):
    head, body, rest = page.partition("<body>")
    changed, count = re.subn(pattern, instead, rest, count=1, flags=re.S)
    assert count == 1, "the page says this in other words"
    changed = head + body + changed
    assert any(told in found for found in contradictions(changed)), contradictions(changed)


def test_an_empty_column_is_found(page):
    head = page.replace(
        '<th scope="col" class="n">Memory</th>', '<th scope="col">Memory</th><th scope="col">Speed</th>'
    )
    rows = re.sub(r"</tr>\n<tr", "<td><span>—</span></td></tr>\n<tr", head)
    assert any(
        "column 'Speed' is empty" in found
        for found in contradictions(rows.replace("</tr>\n</tbody", "<td></td></tr>\n</tbody"))
    )
