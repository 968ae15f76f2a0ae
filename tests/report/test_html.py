"""The HTML report: whole, self-contained, and safe with hostile text."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import report_samples as samples
import yaml
from hypothesis import given, settings, strategies as st
from page_reader import Page

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.monitor import JsonLines
from gluontune.report import Source, check_ladder, load, write_ladder_html, write_runs_html
from gluontune.report.page import finish_ladder, render

HOSTILE = samples.HOSTILE


def page_of(ladder: dict, tmp_path: Path) -> tuple[Page, str]:
    out = tmp_path / "ladder.html"
    write_ladder_html(ladder, out)
    text = out.read_text(encoding="utf-8")
    return Page(text), text


LADDERS = {
    "full": samples.full_ladder,
    "gpu": lambda: samples.full_ladder(gpus=4),
    "damaged": samples.damaged_ladder,
    "interrupted": samples.interrupted_ladder,
    "failed": samples.failed_ladder,
    "hostile": samples.hostile_ladder,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, tuple[Page, str]]:
    return {name: page_of(make(), tmp_path_factory.mktemp(name)) for name, make in LADDERS.items()}


@pytest.mark.parametrize("name", LADDERS)
def test_nothing_is_requested_from_elsewhere(pages, name):
    page, text = pages[name]
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "image", "foreignobject"}
        for key, value in attributes.items():
            assert not key.startswith("on"), f"<{tag} {key}>"
            if key in ("href", "xlink:href", "src", "action", "srcset", "poster"):
                assert value.startswith("#"), f"<{tag} {key}={value}>"
            elif value and key not in ("aria-label",):
                assert "://" not in value or key == "content", f"<{tag} {key}={value}>"
                assert not re.search(r"url\((?!#)", value), f"<{tag} {key}={value}>"
    style = "".join(page.texts["style"])
    assert "@import" not in style and "url(" not in style and "http" not in style
    policy = next(a["content"] for a in page.find("meta") if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert len(text) < 700_000


@pytest.mark.parametrize("name", LADDERS)
def test_ids_are_unique_and_references_lead_somewhere(pages, name):
    page, text = pages[name]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {a["href"][1:] for _, a in page.elements if a.get("href")} | set(re.findall(r"url\(#([^)]+)\)", text))
    wanted |= {a["data-copy"] for a in page.find("button")}
    assert wanted <= set(ids)


def test_only_the_page_s_own_script_may_run(pages):
    for page, _ in pages.values():
        scripts = page.find("script")
        assert [s.get("type") for s in scripts] == ["application/json", None]
        own = page.texts["script"][-1]
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        policy = next(a["content"] for a in page.find("meta") if a.get("http-equiv"))
        assert f"script-src 'sha256-{digest}'" in policy


def test_figures_are_there_each_with_words_for_who_cannot_see_them(pages):
    page, _ = pages["full"]
    labels = [a["aria-label"] for a in page.find("svg")]
    assert all(a["role"] == "img" for a in page.find("svg"))
    assert sum("Utilization of" in label for label in labels) == 8
    for start, part in {
        "Throughput": "mixed-precision: 1,571 img/s (between 1,524 and 1,618)",
        "Gain over": "multi-worker 1.01× (95 %: 0.97–1.05)",
        "Phases": "naive: data 48 %",
        "Validation accuracy": "records reached 61.0 % after 34 s",
    }.items():
        assert any(label.startswith(start) and part in label for label in labels), start


def test_gpu_series_are_drawn_one_by_one(pages):
    labels = [a["aria-label"] for a in pages["gpu"][0].find("svg") if "Utilization" in a["aria-label"]]
    assert all(f"GPU {n}" in labels[0] for n in range(4)) and "CPU" in labels[0]
    assert "gpus 3" in pages["gpu"][0].text() and "Tesla V100" in pages["gpu"][0].text()


def test_figures_follow_the_theme(pages):
    page, text = pages["full"]
    drawn = text[text.index("<svg") : text.rindex("</svg>")]
    assert "prefers-color-scheme: dark" in text
    painted = re.findall(r"(?:fill|stroke): (#[0-9a-f]+)", drawn)
    assert not painted, f"colours that no theme changes: {set(painted)}"
    used = set(re.findall(r"var\(--(\w+)\)", drawn))
    light, dark = ("".join(page.texts["style"])).split("prefers-color-scheme: dark")
    assert all(f"--{name}:" in light and f"--{name}:" in dark.split("}")[0] for name in used)


def test_the_table_shows_every_rung_with_its_fate(pages):
    text = pages["damaged"][0].text()
    for part in (
        "1,524–1,618", "1.38–1.50", "accuracy fell by 5.0 points", "one usable core and no GPU",
        "the training process broke off (MXNetError: [06:01:02] src/storage/storage.cc:110: out of memory)",
        "the CPU is shared", "AMD EPYC",
    ):  # fmt: skip
        assert part in text, part
    text = pages["full"][0].text()
    assert "predicted 930" in text and "steadiness 0.70" in text  # beside what was measured
    assert "8 workers" in text and "OSError: /dev/shm is full" in text and "chosen for the rung" in text


def test_interrupted_and_failed_say_so(pages):
    assert "This ladder was interrupted" in pages["interrupted"][0].text()
    text = pages["failed"][0].text()
    assert "No rung could be measured: naive failed" in text and "0 of 1" in text


def test_hostile_text_is_shown_and_does_nothing(pages):
    page, text = pages["hostile"]
    assert "alert" not in "".join(page.texts["script"][-1:]) and not page.find("img")
    assert len(page.find("script")) == 2
    assert "<script>alert('x')</script>" in page.text()
    assert "{{7*7}}" in page.text() and "49" not in page.find("title")
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text


def test_the_recipe_to_copy_is_the_best_one(pages):
    page, _ = pages["full"]
    copied = yaml.safe_load(next(part for part in page.texts["pre"] if "dataset:" in part))
    assert copied == samples.full_ladder()["best"]["recipe"]
    hostile = pages["hostile"][0]
    copied = yaml.safe_load("".join(hostile.texts["pre"]))
    assert copied["net"] == HOSTILE


@pytest.mark.parametrize("name", LADDERS)
def test_the_page_carries_its_data(pages, name):
    page, _ = pages[name]
    data = json.loads(page.texts["script"][0])["ladders"]["ladder"]
    ladder = LADDERS[name]()
    assert [row["name"] for row in data["rungs"]] == [row["name"] for row in ladder["rungs"]]
    assert data["rungs"][0]["samples_per_sec"] == ladder["rungs"][0]["samples_per_sec"]
    series = data["rungs"][0]["utilization"]
    assert not series or (len(series["t_s"]) == len(series["cpu_pct"]) <= 120)


def test_the_same_ladder_gives_the_same_figures(tmp_path):
    drawn = [re.findall("<svg.*?</svg>", page_of(samples.full_ladder(), tmp_path)[1], re.S) for _ in range(2)]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 12


def test_missing_readings_leave_gaps_and_do_not_break_figures(tmp_path):
    ladder = samples.full_ladder(gpus=1)
    used = ladder["rungs"][0]["utilization"]
    used["gpu_util_pct"]["0"] = [None] * len(used["t_s"])  # NVML denied: N/A, not 0
    used["cpu_pct"][5:40] = [None] * 35
    ladder["rungs"][1]["utilization"] = {"t_s": [0.0], "cpu_pct": [10.0], "gpu_util_pct": None, "device": "cpu"}
    ladder["rungs"][2]["samples_per_sec"] = {"median": 5.0, "ci95": None, "n": 1}
    ladder["rungs"][3]["val_accuracy"] = [None, 0.5]
    page, _ = page_of(ladder, tmp_path)
    labels = [a["aria-label"] for a in page.find("svg")]
    first = next(label for label in labels if label.startswith("Utilization of naive"))
    assert "GPU" not in first and "CPU on average" in first
    assert not any(label.startswith("Utilization of environment") for label in labels)


def test_many_rungs_and_long_names_are_drawn(tmp_path):
    ladder = samples.full_ladder()
    for n in range(16):
        row = copy.deepcopy(ladder["rungs"][1])
        row.update(name=f"_{n} " + "long name " * 30, utilization={})
        ladder["rungs"].append(row)
    page, _ = page_of(ladder, tmp_path)
    assert len([a for a in page.find("svg") if a["aria-label"].startswith("Throughput")]) == 1


def test_runs_side_by_side(tmp_path):
    error = {"type": "MXNetError", "message": "out of memory", "phase": "train"}
    failed = samples.run_result(3, status="failed", samples_per_sec=None, error=error)
    out = tmp_path / "runs.html"
    write_runs_html([samples.run_result(0), samples.run_result(5), failed], out, ["before", "<b>", "x"])
    page = Page(out.read_text(encoding="utf-8"))
    text = page.text()
    assert "3 runs side by side" in text and "<b>" in text and not page.find("b")[10:]
    assert "MXNetError: out of memory" in text and "bfloat16" in text and "as-installed" in text
    assert "not kept" not in text  # a ladder's word
    data = json.loads(page.texts["script"][0])
    assert set(data["runs"]) == {"before", "<b>", "x"}


def test_one_run_and_labels_that_do_not_fit(tmp_path):
    write_runs_html([samples.run_result()], tmp_path / "one.html")
    assert "One run" in Page((tmp_path / "one.html").read_text(encoding="utf-8")).text()
    with pytest.raises(ValueError, match="1 results need as many labels, not 2"):
        write_runs_html([samples.run_result()], tmp_path / "one.html", ["a", "b"])


def test_finish_ladder_writes_what_load_reads(tmp_path):
    ladder = samples.full_ladder()
    ladder["rungs"][0]["train_loss"] = [float("nan")]
    finish_ladder(ladder, tmp_path)
    assert ladder["sentence"].startswith("3.9× faster than naive")
    read = load(tmp_path / "ladder.json").ladder
    assert read["sentence"] == ladder["sentence"] and read["rungs"][0]["train_loss"] == [None]
    assert (tmp_path / "ladder.html").stat().st_size > 50_000


def _places(value, place=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*place, key)
        yield from _places(part, (*place, key))


_FULL = samples.full_ladder(1)
_PLACES = [place for place in _places(_FULL) if place != ("schema_version",)]
_ODD = [None, True, 0, -5, 1e300, "x", [], {}, [None], ["a", 2], {"a": 1}, [[1]], float("nan"), {"median": -2.0}]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), st.sampled_from(_ODD)), min_size=1, max_size=3))
def test_odd_values_are_shown_or_refused_by_name(changes):
    """Whatever a damaged ladder.json holds, the page is made or the error tells where it is wrong."""
    ladder = copy.deepcopy(_FULL)
    for place, value in changes:
        part = ladder
        with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):  # an earlier change took it away
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = copy.deepcopy(value)  # a later change may write into it
    with pytest.MonkeyPatch.context() as patch:
        for room in ("figures",):
            patch.setattr(f"gluontune.report.{room}.draw", lambda name, size, plot, alt: f"<svg id='{name}'></svg>")
        try:
            text = render([Source(Path("x.json"), "x", ladder=check_ladder(ladder, "x.json"))])
        except GluontuneError as error:
            assert str(error).startswith("x.json: ")
        else:
            Page(text)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GluontuneError, match="file"):
        write_ladder_html(samples.full_ladder(), tmp_path / "file" / "x.html")


def test_a_report_needs_no_mxnet_and_leaves_matplotlib_s_settings_alone():
    code = (
        "import sys, gluontune.report as r; assert not {'mxnet', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "import matplotlib; keep = ('svg.fonttype', 'font.size', 'text.parse_math')\n"
        "before = [matplotlib.rcParams[k] for k in keep]\n"
        "from gluontune.report import svg; svg.draw('a', (1, 1), lambda f: f.add_axes((0, 0, 1, 1)), 'x')\n"
        "assert [matplotlib.rcParams[k] for k in keep] == before and 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'mxnet' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_monitor_log_is_a_run_even_if_its_last_line_is_cut(tmp_path, capsys):
    log = tmp_path / "watched.jsonl"
    with JsonLines(log, {"command": ["train"]}) as lines:
        for k in range(1, 20):
            lines({"t_s": 0.2 * k, "cpu_pct": 60.0 + k, "rss_mib": 100.0})
    log.write_bytes(log.read_bytes()[:-25])
    assert main(["report", str(log), "--out", str(tmp_path / "r.html")]) == 0
    shown = (tmp_path / "r.html").read_text()
    assert "steadiness" in shown and "could not be read: [20]" in shown
    log.write_text("not a log\n")
    assert main(["report", str(log), "--out", str(tmp_path / "r.html")]) == 1
    assert "not a gluontune monitor log" in capsys.readouterr().err


def test_a_tick_at_the_end_of_its_axis_keeps_its_label_inside_the_figure():
    from gluontune.report.svg import draw

    figures = []

    def plot(figure):
        figures.append(figure)
        axes = figure.add_axes((0.02, 0.3, 0.95, 0.6))
        axes.set_xlim(0, 16000)
        axes.set_xticks([0, 8000, 16000], ["as it is, 0", "8,000", "16,000"])
        axes.set_yticks([])

    draw("ends", (4.8, 1.4), plot, "three ticks, two of them at the ends of the axis")
    (figure,) = figures
    boxes = [text.get_window_extent() for text in figure.axes[0].get_xticklabels()]
    assert boxes[0].x0 >= 0 and boxes[-1].x1 <= figure.bbox.x1
    middle = boxes[1]
    assert abs((middle.x0 + middle.x1) / 2 - (0.02 + 0.95 / 2) * figure.bbox.x1) < 1  # the others stay centred


@pytest.mark.parametrize("top", [3, 900, 14_900, 260_000, 98_000_000])
def test_long_numbers_at_an_axis_do_not_lie_over_each_other(top):
    from matplotlib.ticker import StrMethodFormatter

    from gluontune.report.svg import draw

    figures = []

    def plot(figure):
        figures.append(figure)
        axes = figure.add_axes((0.02, 0.3, 0.95, 0.6))
        axes.set_xlim(0, top * 1.34)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.1f}"))

    draw("long", (4.8, 1.4), plot, "an axis")
    boxes = [text.get_window_extent() for text in figures[0].axes[0].get_xticklabels()]
    assert len(boxes) >= 3
    assert all(left.x1 + 5 < right.x0 for left, right in zip(boxes, boxes[1:]))


def test_the_samples_are_json_and_pass_the_check():
    for make in (
        samples.full_ladder,
        samples.damaged_ladder,
        samples.interrupted_ladder,
        samples.failed_ladder,
        samples.hostile_ladder,
    ):
        ladder = make()
        assert json.loads(json.dumps(ladder, allow_nan=False)) == ladder
        assert len(check_ladder(ladder)["rungs"]) == len(ladder["rungs"])
