"""Documents that somebody else has made or damaged: each reader answers with its own error, in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gluontune as gt
from benchmarks import deck, monitoring, networks
from gluontune.bench import bridge
from gluontune.course import lessons, progress
from gluontune.errors import GluontuneError
from gluontune.files import read_npz
from gluontune.journal import Journal
from gluontune.ladder import resumable as ledger
from gluontune.ladder.cost import read_price
from gluontune.monitor import read_log
from gluontune.optim import states
from gluontune.recipe import Recipe
from gluontune.records.fields import join_fields, split_fields
from gluontune.report.read import load as read_report
from gluontune.report.tta import load_tta
from gluontune.result import RunResult
from gluontune.train import checkpoint, elastic
from gluontune.train.individual import read_weights
from gluontune.train.userfile import load_module

RUN = json.dumps(RunResult(Recipe().to_dict(), val_accuracy=[0.5], train_loss=[1.0]).to_dict())
LADDER = json.dumps({"schema_version": 1, "kind": "ladder", "machine": {}, "rungs": [], "best": {}})
SYMBOL = json.dumps(
    {
        "nodes": [{"op": "null", "name": "data", "inputs": []},
                  {"op": "Activation", "name": "a", "attrs": {"act_type": "relu"}, "inputs": [[0, 0, 0]]}],
        "arg_nodes": [0], "heads": [[1, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]},
    }
)  # fmt: skip
LOG = '{"gluontune_monitor_log": 1}\n{"t_s": 1.0, "cpu_pct": 5.0}\n{"t_s": 2.0, "mark": "train"}\n'
LESSON = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["# A"]},
            {"cell_type": "code", "source": ["check('a', 1)"]},
        ]
    }
)
READERS = {
    "result": (RunResult.load, "a.json", RUN),
    "report": (read_report, "a.json", RUN),
    "ladder": (read_report, "a.json", LADDER),
    "tta": (load_tta, "a.json", '{"schema_version": 1, "kind": "tta", "summary": []}'),
    "resume": (lambda path: ledger.take_up(path, 1, "climb", "rungs"), "a.json", LADDER),
    "journal": (
        lambda path: Journal(path.with_name("b.json"), "bench", {}, resume=True).close(),
        "b.journal.jsonl",
        '{"journal": 1, "kind": "bench", "given": {}, "machine": {}, "versions": {}}\n{"key": "a", "piece": 1}\n',
    ),
    "symbol": (gt.graph.read_symbol, "a.json", SYMBOL),
    "params": (gt.graph.read_params, "a.params", ""),
    "monitor log": (read_log, "a.jsonl", LOG),
    "recipe": (Recipe.from_yaml, "a.yaml", "epochs: 3\nlr: 1\n"),
    "checkpoint": (checkpoint.read, "a.ckpt", ""),
    "job": (load_module, "job.py", "def net():\n    return None\n"),
    "lesson": (lessons._read, "a.json", LESSON),
    "progress": (lambda path: progress._one(lessons.Lesson("a", "A", "", path)), "a.json", LESSON),
    "benchmarks networks": (
        lambda path: networks._known(path, networks.QUICK),
        "a.json",
        '{"schema_version": 1, "conditions": {"pace": {}}, "rows": [{"name": "a", "status": "ok"}]}',
    ),
    "bench bridge": (
        bridge._known,
        "a.json",
        '{"schema_version": 1, "rows": [{"name": "a", "status": "ok"}]}',
    ),
    "benchmarks monitoring": (monitoring._taken_up, "a.json", '{"parts": {}}'),
    "benchmarks deck": (lambda path: deck._before(path, {}), "a.json", '{"conditions": {}, "rows": []}'),
    "optimizer states": (states._read, "a.npz", ""),
    "zipped params": (gt.graph.read_params, "b.params", ""),
    "individual": (read_weights, "b.npz", ""),
    "prices": (
        read_price,
        "b.yaml",
        "prices: [{machine: m, usd_per_hour: 0.5, date: 2026-01-31, source: a}]",
    ),
    "fields of a record": (lambda path: split_fields(path.read_bytes()), "record", ""),
    "elastic run": (elastic.read_spec, "c.json", '{"recipe": {}}'),
}


def whole(name: str, folder: Path) -> bytes:
    """A document that the reader takes, as bytes."""
    if name == "optimizer states":
        np.savez(folder / "whole.npz", header=json.dumps({"format": states.FORMAT}), w=np.arange(4.0))
        return (folder / "whole.npz").read_bytes()
    if name in ("individual", "zipped params"):
        np.savez(folder / "whole.npz", w=np.arange(4.0))
        return (folder / "whole.npz").read_bytes()
    if name == "fields of a record":
        return join_fields({"image": b"...", "caption": "a robin", "boxes": np.full((1, 5), 0.5, "float32")})[
            1
        ]
    if name == "params":
        gt.graph.write_params(folder / "whole", {"arg:w": np.arange(6.0, dtype="float32").reshape(2, 3)})
        return (folder / "whole").read_bytes()
    if name == "checkpoint":
        checkpoint.write(folder / "whole", {"step": 3}, {"w": np.arange(4.0)})
        return (folder / "whole").read_bytes()
    return READERS[name][2].encode()


@pytest.fixture(scope="module", autouse=True)
def one_look_at_the_machine():
    """A journal says where it was begun, and each look takes a tenth of a second."""
    facts = gt.runtime.machine_facts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gluontune.runtime.machine_facts", lambda: facts)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


# What could do harm in a job file that runs takes letters; these are none.
BYTES = st.sampled_from([*b'[]{}(),:"\\0-9.#\n\t \0\x80\xff', 0xC3])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["schema_version", "recipe", "rungs", "kind", "summary", "nodes", "heads", "t_s", "op", "epochs"]
    ) | st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_document_is_one_of_our_errors(place, name, data):
    read, file, _ = READERS[name]
    kind = data.draw(
        st.sampled_from(["bytes", "cut", "json"] if file.endswith(("json", "jsonl")) else ["bytes", "cut"])
    )
    content = bytearray(whole(name, place))
    if kind == "json":
        content = bytearray(json.dumps(data.draw(JSON)).encode())
    elif kind == "cut":
        del content[data.draw(st.integers(0, len(content))) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(BYTES)
    (place / file).write_bytes(content)
    try:
        read(place / file)
    except GluontuneError as error:
        assert str(error) and len(str(error)) < 2000


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 90_000, "[" * 400 + "]" * 400, "", "\ufeff{}", "null", "7"]
)
def test_no_nesting_and_no_emptiness_breaks_a_reader(place, name, text):
    read, file, _ = READERS[name]
    (place / file).write_text(text)
    if name == "recipe" and text in ("", "null", "\ufeff{}"):  # a recipe of defaults
        assert read(place / file) == Recipe()
        return
    if name == "fields of a record":  # bytes that end without a directory are an image
        assert read(place / file)[1] == []
        return
    with pytest.raises(GluontuneError) as caught:
        read(place / file)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("read", [Recipe.from_yaml, read_price])
def test_a_thirteenth_month_is_told(tmp_path, read):
    (tmp_path / "a.yaml").write_text("prices: 2026-13-01\n")
    with pytest.raises(GluontuneError, match="month"):
        read(tmp_path / "a.yaml")


@pytest.mark.parametrize("read", [states._read, gt.graph.read_params, read_weights])
def test_arrays_that_unpack_to_a_thousand_times_their_size_are_refused(tmp_path, read):
    np.savez_compressed(tmp_path / "a.npz", w=np.zeros(5 << 20))
    with pytest.raises(GluontuneError):
        read(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="more than 100 times its size"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("text", ["[" * 90_000, "7", "null", '{"format": 3}'])
def test_states_with_a_strange_header_are_refused(tmp_path, text):
    np.savez(tmp_path / "a.npz", header=text, w=np.arange(4.0))
    with pytest.raises(GluontuneError):
        states._read(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    "name",
    [
        "result", "report", "symbol", "params", "monitor log", "checkpoint", "job", "lesson", "progress",
        "benchmarks deck", "benchmarks monitoring", "optimizer states", "zipped params", "individual", "prices",
        "fields of a record",
        "elastic run",
    ],
)  # fmt: skip
def test_what_was_not_damaged_is_read(place, name):
    """Else the tests above would say nothing. (The others' whole documents are read by the tests of their rooms.)"""
    read, file, _ = READERS[name]
    (place / file).write_bytes(whole(name, place))
    read(place / file)
