"""What the lessons lean on: figures, the simulated device's feeder, descent, number formats, memory, record files."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gluontune as gt
from gluontune import course
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.course import descent, numbers
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult

FOLDER_SET = "synthetic:train=160,test=20,size=96"


def result():
    return RunResult(
        recipe=Recipe(batch_size_per_device=64).to_dict(),
        samples_per_sec={"median": 320.0, "ci95": [300.0, 340.0], "n": 9},
        phases_pct={"data": 60.0, "forward": 40.0},
        val_accuracy=[0.5],
        elapsed_seconds=[2.0],
        utilization={"t_s": [0.0, 1.0, 2.0], "cpu_pct": [50.0, 60.0, 70.0]},
    )


@pytest.mark.parametrize("kind", ["throughput", "phases", "utilization", "accuracy"])
def test_figures_are_drawn_and_escaped(kind):
    text = str(course.show(kind, {"<b>naive</b>": result()}))
    assert "<svg" in text and "<b>naive" not in text and "prefers-color-scheme" in text


def test_long_names_of_bars_stay_inside_the_figure():
    long = "static + pool-to-mean + pad-channels + fuse-bn-relu + order-sums + keep-blocks"
    drawn = str(course.bars({"imperative": 2.0, long: 1.0, "last": 3.0}, unit="s", caption="Modes"))
    shown = [re.sub("<[^>]+>", "", text).strip() for text in re.findall(r"<text.*?</text>", drawn, re.S)]
    assert max(map(len, shown)) <= 44, shown
    assert any(text.endswith(("fuse-bn-relu", "+")) for text in shown), shown
    assert 'aria-label="Modes. imperative 2; ' + long in drawn


def test_an_unknown_figure_is_named():
    with pytest.raises(UsageError, match="phases"):
        course.show("phase", {"naive": result()})


def test_figures_follow_the_theme_and_say_what_they_show():
    axes = {"x": "update", "y": "rate"}
    step = np.array([[1.0, 1.0], [0.0, 0.0]])
    values = {"one": {"median": 5.0, "ci95": [4.0, 6.0]}, "two": None}
    drawn = [
        course.lines(
            {"<i>": ([0, 1], [1.0, 0.5]), "b": ([0, 1], [2.0, 4.0])}, caption="Two <lines>", log_y=True, **axes
        ),
        course.bars(values, unit="images/s", caption="Two bars", limits={"most": 7.0}),
        course.paths(descent.SURFACES["valley"], {"a": step}, caption="A walk", span=(-2, 2, -2, 2), **axes),
    ]
    said = [re.search(r'aria-label="([^"]*)"', str(figure)).group(1) for figure in drawn]
    assert "from 2 to 4" in said[0] and "one 5; two not measured" in said[1] and "1 steps, ends at (0, 0)" in said[2]
    for figure in drawn:
        text = str(figure)
        assert (
            "<i>" not in text
            and "mathdefault" not in text
            and "var(--fg)" in text
            and "data-jp-theme-light='false'" in text
        )
        assert not re.search(r"(?:fill|stroke): ?#(?!fff|none)[0-9a-f]{6}", text), "a colour that follows no theme"
    names = [re.findall(r' id="([^"]+)"', str(figure)) for figure in drawn]
    assert not set(names[0]) & set(names[1]) | set(names[1]) & set(names[2])


def test_series_of_unequal_length_are_refused():
    with pytest.raises(UsageError, match="as many"):
        course.lines({"a": ([0, 1], [1.0])}, x="x", y="y", caption="c")


def test_a_fast_loader_keeps_the_simulated_device_busy_and_a_slow_one_does_not():
    data = gt.datasets.open(FOLDER_SET)
    recipe = Recipe(dataset=FOLDER_SET, loader="resident", batch_size_per_device=16)
    fed = course.feed(recipe, data, ms_per_batch=25, seconds=0.6)
    assert fed.steadiness["mean_pct"] > 60 and "simulated" in fed.utilization["gpu_util_pct"]
    assert fed.samples_per_sec["median"] < 1.15 * 16 / 0.025
    assert "simulated" in fed.notes[0] and sum(fed.phases_pct.values()) == pytest.approx(100)
    starved = course.feed(recipe, data, ms_per_batch=0.001, seconds=0.3)
    assert starved.steadiness["mean_pct"] < 50 and starved.phases_pct["data"] > 50
    assert RunResult.from_dict(starved.to_dict()).recipe["loader"] == "resident"


def test_walks_follow_the_optimizers_own_rules():
    height = descent.SURFACES["valley"]
    sgd = descent.walk("sgd", "valley", start=(-4.0, 1.5), learning_rate=0.02, updates=3, momentum=0.9)
    place, speed, expected = np.array([-4.0, 1.5]), np.zeros(2), []
    for _ in range(3):
        speed = 0.9 * speed - 0.02 * place * np.array([1.0, 25.0])
        place = place + speed
        expected.append(place)
    assert np.allclose(sgd[1:], expected, rtol=1e-5)
    for name, rate in (("nag", 0.02), ("adagrad", 0.6), ("rmsprop", 0.1), ("adam", 0.2)):
        walk = descent.walk(name, "valley", start=(-4.0, 1.5), learning_rate=rate)
        assert height(*walk[-1]) < 0.2 * height(*walk[0]), name
    away = descent.walk("sgd", "valley", start=(-4.0, 1.5), learning_rate=0.2, momentum=0.0)
    assert len(away) < 61 and np.all(np.isfinite(away))


def test_momentum_carries_over_the_ridge_where_plain_descent_stays():
    ends = {
        m: descent.walk("sgd", "two hollows", start=(1.9, 1.0), learning_rate=0.01, updates=120, momentum=m)[-1]
        for m in (0.0, 0.9)
    }
    assert ends[0.0][0] > 0.8 and ends[0.9][0] < -0.8
    assert float(descent.SURFACES["two hollows"](-1.0362, 0.0)) == pytest.approx(0, abs=1e-4)


def test_number_formats_are_those_of_ieee_and_bfloat16_rounds_to_the_nearest():
    half, single = np.finfo(np.float16), np.finfo(np.float32)
    for name, info in (("float16", half), ("float32", single)):
        found = numbers.FORMATS[name]
        assert found.largest == float(info.max) and found.smallest_normal == float(info.tiny)
        assert found.next_after_one == 1 + float(info.eps)
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    values = np.concatenate([values, values * 1e-6, values * 1e6, [np.float32(1.00390625)]])
    rounded = numbers.round_to(values, "bfloat16")
    assert not np.any(rounded.view(np.uint32) & 0xFFFF), "the lower half of the bits is gone"
    assert np.max(np.abs(rounded - values) / np.abs(values)) <= 2**-8
    ties = numbers.round_to([1 + 2**-8, 1 + 3 * 2**-8], "bfloat16")
    assert ties.tolist() == [1.0, 1 + 2**-6]  # to the even neighbour


def test_half_the_bits_swallow_small_updates_and_gradients():
    assert numbers.round_to([1 + 2e-4], "float16")[0] == 1.0 < numbers.round_to([1 + 2e-4], "float32")[0]
    lost = numbers.lost_shares(np.array([1e-9, 1e-5, 1.0]), [1.0, 1e5])
    third = pytest.approx(100 / 3)
    assert lost == {"vanish": [third, 0.0], "digits": [third, 0.0], "overflow": [0.0, third]}


def test_the_graph_holds_one_array_less_than_the_script():
    imperative, symbolic = (course.deck_graph_memory(mode, mib=16) for mode in ("imperative", "symbolic"))
    assert 3.8 < imperative < 4.6 and 2.8 < symbolic < 3.6
    with pytest.raises(UsageError, match="symbolic"):
        course.deck_graph_memory("static")


def test_folding_leaves_fewer_operators_and_the_same_outputs():
    mx = gt.runtime.mxnet()
    net = gt.train.build_net("small_cnn", 10)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=(2, 3, 16, 16))
    net(x)
    fold = course.folded(net, x)
    assert sum(fold["after"].values()) < sum(fold["before"].values()) and fold["max_difference"] < 1e-4
    assert len(fold["seconds"]["before"]) == len(fold["seconds"]["after"]) >= 5


def test_a_record_is_taken_apart_and_a_bit_falls_over(tmp_path):
    data = gt.datasets.open("sample").test
    folder = course.as_files(data, tmp_path / "files", 20)
    assert len(list(folder.rglob("*.png"))) == 20
    rec = tmp_path / "images.rec"
    gt.records.pack(folder, rec, exact=True)
    rows = {row["field"]: row for row in course.record_fields(rec)}
    with gt.records.RecordReader(rec) as reader:
        payload = bytes(reader.payload(0))
    assert rows["image"]["byte"] == 32 and rows["image"]["bytes in hex"].startswith(payload[:4].hex(" "))
    assert rows["length"]["meaning"] == f"{24 + len(payload):,} bytes follow"
    with pytest.raises(UsageError, match="byte 4"):
        course.record_fields(rec, offset=4)
    course.flip_bit(rec, 40)
    assert len(gt.records.verify(rec).damaged) == 1
    with pytest.raises(UsageError, match="no byte"):
        course.flip_bit(rec, 10**9)


def test_a_stopped_study_is_taken_up_and_another_one_begun_anew(tmp_path):
    from gluontune.search.study import Study

    pieces = []

    def study(target, *, out, resume=False):
        ledger = Study("tta", 1, {"target": target}, out, resume)
        for number in range(len(ledger.document["done"]), 2):
            pieces.append(number)
            ledger.enter({"number": number})
            if len(pieces) == 1:
                raise KeyboardInterrupt
        return ledger.document

    with pytest.raises(KeyboardInterrupt):
        course.kept_study(study, 0.5, out=tmp_path)
    assert len(course.kept_study(study, 0.5, out=tmp_path)["done"]) == 2 and pieces == [0, 1]
    course.kept_study(study, 0.5, out=tmp_path)
    assert pieces == [0, 1], "what is complete is not done again"
    course.kept_study(study, 0.6, out=tmp_path)
    assert pieces == [0, 1, 0, 1], "other options begin anew"


def test_a_run_is_kept_only_for_its_own_recipe_and_if_it_is_whole(tmp_path, monkeypatch):
    asked = []

    def run(recipe, **options):
        asked.append(recipe.seed)
        return RunResult(recipe=recipe.to_dict(), status="failed" if recipe.seed == 9 else "ok")

    monkeypatch.setattr(gt.train, "run", run)
    path = tmp_path / "run.json"
    for seed in (0, 0, 1, 9, 9):
        course.kept_run(Recipe(seed=seed), path)
    assert asked == [0, 1, 9, 9]
    path.write_text("cut o")
    course.kept_run(Recipe(seed=9), path)
    assert asked == [0, 1, 9, 9, 9]


def test_recipes_in_turn_are_compared_with_the_first_and_a_failed_one_is_named(monkeypatch):
    from gluontune.course import experiments
    from gluontune.train import RunFailed

    closed = []

    def interleave(field, *, rounds, slice_s):
        for contender in field:
            contender.rates = [contender.recipe.batch_size_per_device * k for k in range(1, rounds + 1)]
            if contender.recipe.net == "no_such_net":
                contender.failure = RunFailed("UsageError", "unknown net", "starting")

    monkeypatch.setattr(experiments, "interleave", interleave)
    monkeypatch.setattr(experiments.Contender, "close", lambda self: closed.append(self.label))
    small = Recipe(batch_size_per_device=32)
    found = course.in_turn({"one": small, "large": small.override(batch_size_per_device=80)}, rounds=3)
    assert found["one"]["ratio"]["median"] == 1 and found["large"]["ratio"]["median"] == 2.5
    assert found["large"]["samples_per_sec"]["median"] == 160 and sorted(closed) == ["large", "one"]
    with pytest.raises(GluontuneError, match="none of that name: unknown net"):
        course.in_turn({"none of that name": small.override(net="no_such_net")})


def crossing(seconds):
    return {"train_seconds": seconds, "wall_seconds": 2 * seconds, "epoch": 1, "joules": None}


def test_a_race_in_which_some_never_arrive_is_shown_with_dashes():
    from gluontune.search.tta import conclude

    def row(recipe, seed, reached):
        return {
            "recipe": recipe, "seed": seed, "status": "reached" if reached else "not reached",
            "first": crossing(3.0 + seed) if reached else None, "sustained": None,
            "spent": {"train_seconds": 9.0, "wall_seconds": 12.0},
            "val_accuracy": [0.5, 0.8 if reached else 0.6], "train_elapsed": [1.5, 3.0],
        }  # fmt: skip

    rows = [row(name, seed, name == "against") for seed in (0, 1) for name in ("this", "against")]
    price = {"usd_per_hour": 36.0}
    study = {"given": {"target": 0.7, "recipes": {"this": {}, "against": {}}}, "done": rows, "price": price}
    conclude(study)
    titles = {"this": "large & fast", "against": "small"}
    shown = str(course.race_table(study, titles))
    assert "large &amp; fast" in shown and "0 of 2" in shown and shown.count("—") == 5
    assert "3.5" in shown and "0.07000" in shown  # two runs of 6 and 8 s at a cent a second
    figure = str(course.accuracy_bands(study, titles, caption="Two <races>"))
    assert "Two &lt;races&gt;" in figure and "ended at 60.0 % to 60.0 % in 2 repeats" in figure
    pair = {"factors": ["a", "b"], "ratio": {"median": 0.5, "ci95": [0.4, 0.6]}, "verdict": "less than promised"}
    assert "a × b 0.50×" in str(course.composition([pair], caption="Pairs"))
    with pytest.raises(UsageError, match="Pairs: no measurement"):
        course.composition([{**pair, "ratio": None}], caption="Pairs")
