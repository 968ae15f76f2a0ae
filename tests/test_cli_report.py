"""``gluontune report`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report_samples as samples

from gluontune.cli.main import main
from gluontune.files import write_json


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write_json("out/ladder.json", samples.interrupted_ladder())
    samples.run_result(0).save("base.json")
    samples.run_result(0, samples_per_sec=samples.measure(300)).save("slow.json")
    samples.run_result(5).save("fast.json")
    return tmp_path


def test_a_ladder_folder_becomes_a_page(results, capfd):
    assert main(["report", "out"]) == 0
    assert "1.41× faster than naive" in (results / "report.html").read_text(encoding="utf-8")
    out = capfd.readouterr().out
    assert "1.41× faster than naive" in out and "wrote report.html" in out


def test_ladders_and_runs_share_one_page_and_json_stays_alone_on_stdout(results, capfd):
    (results / "out2").mkdir()
    (results / "out2" / "broken.json").write_text("{")
    samples.run_result(2).save("out2/run.json")
    assert main(["report", "out", "base.json", "out2", "--out", "all.html", "--json"]) == 0
    captured = capfd.readouterr()
    document = json.loads(captured.out)
    assert document["out"] == "all.html" and [s["kind"] for s in document["sources"]] == ["ladder", "run", "run"]
    assert document["sources"][0]["best"]["name"] == "environment" and not document["sources"][0]["complete"]
    assert [Path(entry["path"]).name for entry in document["left_out"]] == ["broken.json"]
    assert "left out: " in captured.err and "wrote all.html" in captured.err
    page = (results / "all.html").read_text(encoding="utf-8")
    assert "1.41× faster" in page and "2 runs side by side" in page


def test_compare_exits_1_on_a_regression_and_0_without(results, capfd):
    assert main(["report", "base.json", "slow.json", "--compare"]) == 1
    assert "25.4 % slower" in capfd.readouterr().out
    assert main(["report", "base.json", "slow.json", "--compare", "--threshold", "30"]) == 0
    assert not (results / "report.html").exists()


def test_compare_as_json(results, capfd):
    assert main(["report", "base.json", "fast.json", "slow.json", "--compare", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["regressed"] is True
    assert [bool(one["regressions"]) for one in document["comparisons"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["gone.json"], 1, "gone.json: no such file"),
        (["cut.json"], 1, "cut.json: not valid JSON"),
        (["empty"], 2, "empty: no RunResult and no ladder.json"),
        (["base.json", "--compare"], 2, "two or more results"),
        (["base.json", "--out", "base.json/x.html"], 1, "base.json/x.html"),
        ([], 2, "RUN"),
    ],
)
def test_bad_input_is_one_clear_line(results, capfd, arguments, code, told):
    (results / "cut.json").write_text('{"schema_version": 1, "recipe": {')
    (results / "empty").mkdir()
    assert main(["report", *arguments]) == code
    captured = capfd.readouterr()
    assert told in captured.err and "Traceback" not in captured.err


def test_brackets_in_names_are_printed_as_they_are(results, capfd):
    samples.run_result(0).save("[red]odd.json")
    assert main(["report", "[red]odd.json", "--out", "[b].html"]) == 0
    out = capfd.readouterr().out
    assert "[red]odd" in out and "wrote [b].html" in out
