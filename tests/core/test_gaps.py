"""What is no number, or cannot be compared, is infinitely far apart, and passes no comparison of the package."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gluontune.compute._passes import first_gross
from gluontune.core.arrays import distance, gap, gaps, worst
from gluontune.course.assessment import examine
from gluontune.runtime import mxnet
from gluontune.search.judge import judge_quality, loss_of
from gluontune.search.time_to_target import parity

SOURCE = Path(__file__).parents[2] / "gluontune"
INF, NAN = float("inf"), float("nan")
ONE = np.array([1.0, -2.0], np.float32)


@pytest.mark.parametrize(
    ("mine", "theirs", "apart"),
    [
        (ONE, ONE, 0.0),
        (ONE, np.array([1.0, -1.0], np.float32), 1.0),
        (np.array([NAN, -2.0], np.float32), ONE, INF),
        (ONE, np.array([NAN, NAN], np.float32), INF),
        (np.full(2, NAN), np.full(2, NAN), INF),
        (np.array([INF]), np.array([INF]), 0.0),
        (np.array([INF]), np.array([-INF]), INF),
        (np.array([INF]), np.array([1.0]), INF),
        (ONE, ONE.astype("float64"), INF),
        (ONE, ONE[None], INF),
        (np.zeros(0), np.zeros(0), 0.0),
        (np.array([250], np.uint8), np.array([5], np.uint8), 245.0),
    ],
)
def test_a_distance_is_never_nan(mine, theirs, apart):
    assert distance(mine, theirs) == distance(theirs, mine) == apart
    assert gap(mine, theirs) >= 0 and (gap(mine, theirs) == INF) == (apart == INF)


def test_names_and_numbers_of_arrays_are_compared():
    assert gaps({"a": ONE}, {"b": ONE}) == {"a": INF, "b": INF} and gaps({}, {}) == {}
    assert worst([ONE], [ONE, ONE]) == worst([ONE, ONE], [ONE]) == INF and worst([], []) == 0.0


def test_no_comparison_of_arrays_is_written_elsewhere():
    """``abs(a - b).max()`` is NaN where either is, and ``max(worst, nan)`` keeps ``worst``."""
    written = re.compile(r"abs\([^()]*(\([^()]*\)[^()]*)* - .*\)\.max\(|max\(\s*worst,(?! distance)")
    found = [str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if written.search(p.read_text("utf-8"))]
    assert found == ["core/arrays.py"]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("check.txt")), ids=lambda path: path.parts[-4])
def test_a_migrated_projects_own_check_lets_no_nan_pass(path):
    text = path.read_text("utf-8")
    told: dict = {"np": np}
    exec(text[text.index("def gap(") :].split("\n\n\n")[0], told)
    for ours, theirs in ((ONE * NAN, ONE), (ONE, ONE * NAN), (ONE * NAN, ONE * NAN), (ONE * INF, -ONE * INF)):
        assert told["gap"](ours, theirs) == INF
    assert told["gap"](ONE * INF, ONE) == told["gap"](ONE, ONE * INF) == INF
    assert told["gap"](ONE, ONE) == 0 and told["gap"](ONE * INF, ONE * INF) == 0


def test_gradients_that_are_no_numbers_are_gross():
    assert first_gross({"a": ONE}, {"a": ONE}) is None
    assert first_gross({"a": ONE * NAN}, {"a": ONE}) == first_gross({"a": ONE}, {"a": ONE * NAN}) == "a"
    assert first_gross({}, {"a": ONE}) == first_gross({"a": ONE}, {}) == "a"
    assert first_gross({"a": ONE, "b": ONE * 1e-6}, {"a": ONE, "b": -ONE * 1e-6}) is None, "all rounding"


def test_figures_that_are_no_numbers_lose():
    assert parity([8, NAN, NAN], [8, 9, 8])["verdict"] == "fails more often"
    alike = parity([8, 9], [8, 9], accuracy=[0.9, NAN], reference_accuracy=[0.9, 0.9])
    assert alike["verdict"] == "less accurate"
    loss = loss_of([0.8, 0.8], [NAN, NAN], 100)
    assert loss.certain(0.02) and loss.collapsed
    metric = {"name": "rmse", "mode": "min"}
    row = {"kept": True, "notes": [], "ratio_to_previous": None, "val_metric": {**metric, "values": [NAN]}}
    assert judge_quality(row, [{"kept": True, "val_metric": {**metric, "values": [1.0]}}]) and not row["kept"]


RANKS = {
    "alike": (lambda a: a, 0.0),
    "NaN in a weight": (lambda a: {**a, "arg:beta": a["arg:beta"] * NAN}, INF),
    "NaN in one value of many": (lambda a: {**a, "arg:beta": a["arg:beta"] * mxnet().nd.array([1, 1, NAN])}, INF),
    "NaN in running statistics": (lambda a: {**a, "aux:mean": a["aux:mean"] * NAN}, INF),
    "other running statistics": (lambda a: {**a, "aux:mean": a["aux:mean"] + 1}, 0.0),
    "another name": (lambda a: {**{n: a[n] for n in a if n != "arg:beta"}, "arg:v": a["arg:beta"]}, INF),
    "one more": (lambda a: {**a, "arg:v": a["arg:beta"]}, INF),
    "one less": (lambda a: {n: a[n] for n in a if n != "arg:beta"}, INF),
    "another type": (lambda a: {**a, "arg:beta": a["arg:beta"].astype("float64")}, INF),
    "another shape": (lambda a: {**a, "arg:beta": a["arg:beta"].reshape((1, 3))}, INF),
}


@pytest.mark.mxnet
@pytest.mark.parametrize("name", RANKS)
def test_ranks_that_hand_in_other_nets_differ(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mx, nd, (change, apart) = mxnet(), mxnet().nd, RANKS[name]
    names = ("gamma", "beta", "moving_mean", "moving_var")
    net = mx.sym.BatchNorm(mx.sym.var("data"), **{key: mx.sym.var(key[-4:]) for key in names})
    assert net.list_auxiliary_states() == ["mean", "_var"]
    arrays = {"arg:amma": nd.ones(3), "arg:beta": nd.array([1.0, 2.0, 3.0]), "aux:mean": nd.ones(3)}
    arrays["aux:_var"] = nd.ones(3)
    for rank, handed in enumerate((arrays, change(arrays))):
        (tmp_path / str(rank)).mkdir()
        nd.save(str(tmp_path / str(rank) / "net-0000.params"), handed)
        net.save(str(tmp_path / str(rank) / "net-symbol.json"))
    folders = [tmp_path / "0", tmp_path / "1"]
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), np.uint8)
    facts = {"classes": 3, "image_shape": [4, 4, 3], "mean": [0.5] * 3, "std": [0.25] * 3}
    for order in (folders, folders[::-1]):
        held, difference = examine._joined(order, images, facts)
        assert difference == apart
    if name == "other running statistics":
        values = (images / 255 - 0.5) / 0.25
        for arrays in held:
            assert np.allclose(arrays["aux:mean"].asnumpy(), values.mean((0, 1, 2)), atol=1e-4)
            assert np.allclose(arrays["aux:_var"].asnumpy(), values.var((0, 1, 2)), atol=1e-4)
