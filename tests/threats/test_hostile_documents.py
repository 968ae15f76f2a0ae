"""Documents that somebody else has made or damaged: each reader answers with its own error, in a sentence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import gluontune as gt
from benchmarks import deck, monitoring, networks
from gluontune.core.errors import GluontuneError
from gluontune.core.files import read_npz
from gluontune.core.journal import Document, Journal
from gluontune.course import lessons
from gluontune.job import checkpoint
from gluontune.job.batches import read_weights
from gluontune.job.user_file import load_module
from gluontune.monitor import read_log
from gluontune.optim import trainer
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.records.fields import join_fields, split_fields
from gluontune.report.read import load as read_report
from gluontune.report.tta import load_tta
from gluontune.search.bench import bridge
from gluontune.search.time_to_target import read_price
from gluontune.training import elastic

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
    {"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": ["check('a', 1)"]}]}
)
READERS = {
    "result": (RunResult.load, "a.json", RUN),
    "report": (read_report, "a.json", RUN),
    "ladder": (read_report, "a.json", LADDER),
    "tta": (load_tta, "a.json", '{"schema_version": 1, "kind": "tta", "summary": []}'),
    "resume": (
        lambda path: Document(
            path, "climb", 1, {"kind": "ladder", "rungs": []}, dict, asked=lambda d: {"rungs": d["rungs"]}, resume=True
        ),
        "a.json",
        LADDER,
    ),
    "journal": (
        lambda path: Journal(path.with_name("b.json"), "bench", {}, dict, resume=True).close(),
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
    "progress": (lambda path: lessons.progress_of(lessons.Lesson("a", "A", "", path)), "a.json", LESSON),
    "benchmarks networks": (
        lambda path: networks._known(path, networks.QUICK),
        "a.json",
        '{"schema_version": 1, "conditions": {"pace": {}}, "rows": [{"name": "a", "status": "ok"}]}',
    ),
    "bench bridge": (bridge._known, "a.json", '{"schema_version": 1, "rows": [{"name": "a", "status": "ok"}]}'),
    "benchmarks monitoring": (monitoring._taken_up, "a.json", '{"parts": {}}'),
    "benchmarks deck": (lambda path: deck._before(path, {}), "a.json", '{"conditions": {}, "rows": []}'),
    "optimizer states": (trainer._read, "a.npz", ""),
    "zipped params": (gt.graph.read_params, "b.params", ""),
    "individual": (read_weights, "b.npz", ""),
    "prices": (read_price, "b.yaml", "prices: [{machine: m, usd_per_hour: 0.5, date: 2026-01-31, source: a}]"),
    "fields of a record": (lambda path: split_fields(path.read_bytes()), "record", ""),
    "elastic run": (elastic.read_spec, "c.json", '{"recipe": {}}'),
}


def whole(name: str, folder: Path) -> bytes:
    """A document that the reader takes, as bytes."""
    if name == "optimizer states":
        np.savez(folder / "whole.npz", header=json.dumps({"format": trainer.FORMAT}), w=np.arange(4.0))
        return (folder / "whole.npz").read_bytes()
    if name in ("individual", "zipped params"):
        np.savez(folder / "whole.npz", w=np.arange(4.0))
        return (folder / "whole.npz").read_bytes()
    if name == "fields of a record":
        return join_fields({"image": b"...", "caption": "a robin", "boxes": np.full((1, 5), 0.5, "float32")})[1]
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
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 90_000, "[" * 400 + "]" * 400, "", "\ufeff{}", "null", "7"])
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


@pytest.mark.parametrize("read", [trainer._read, gt.graph.read_params, read_weights])
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
        trainer._read(str(tmp_path / "a.npz"))


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


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefg", "bcdefgh")
)


@pytest.mark.parametrize("text, told", [
    (BOMB + "env: [*h, *h]\n", "more than 100,000 characters once its aliases are written out"),
    ("env: &a {A: *a}\n", "holds itself"), ("rewrites: &a [*a]\n", "holds itself"),
    ("epochs: 1\nseed: 2\nepochs: 3\n", "the key 'epochs' stands in it twice"),
    ("env: {A: '1', A: '2'}\n", "the key 'A' stands in it twice"),
    ("#" * 40_000, "40,000 bytes, where a document of this kind has at most 32,768"),
    ("env: {A: 1}\n", "give texts"),
    ("seed: " + "1:" * 9000 + "1\n", "a number of 18,001 characters"),
    ("epochs: !!int ''\n", "not valid YAML"),
])  # fmt: skip
def test_a_recipe_that_would_cost_or_mislead_is_refused_in_a_sentence(tmp_path, text, told):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(GluontuneError, match=told) as caught:
        Recipe.from_yaml(tmp_path / "a.yaml")
    assert len(str(caught.value)) <= 4000


def test_aliases_that_say_something_once_are_taken(tmp_path):
    (tmp_path / "a.yaml").write_text("env: &e {A: '1'}\nseed: &n 3\nbatch_size_per_device: *n\n")
    found = Recipe.from_yaml(tmp_path / "a.yaml")
    assert (found.seed, found.batch_size_per_device, found.env) == (3, 3, {"A": "1"})


@pytest.mark.parametrize("read", [Recipe.from_yaml, read_price, gt.graph.read_symbol, gt.graph.read_params, read_log,
                                  RunResult.load, read_report, checkpoint.read, elastic.read_spec])  # fmt: skip
@pytest.mark.parametrize("what", ["/dev/zero", "fifo", "folder"])
def test_what_is_no_file_is_refused_and_not_read(tmp_path, read, what):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with pytest.raises(GluontuneError, match=r"not a regular file|a folder"):
        read(str(tmp_path / what))  # of an absolute path nothing is left


@pytest.mark.parametrize("read", [RunResult.load, read_report, gt.graph.read_symbol, elastic.read_spec])
@pytest.mark.parametrize("text, told", [
    ('{"a": 1, "a": 2}', "the key 'a' stands in it twice"), ('{"a": %s}' % ("9" * 5000), "5,000 digits"),
    ("[" + "[]," * 600_000 + "0]", "500,000 lists"), ('{"a": "' + "x" * (17 << 20) + '"}', "bytes|more than 16 MiB"),
])  # fmt: skip
def test_json_that_would_cost_or_mislead_is_refused(tmp_path, read, text, told):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(GluontuneError) as caught:
        read(tmp_path / "a.json")
    assert re.search(told, str(caught.value)) or text[0] == "["  # a symbol is a mapping


def node(**changes):
    document = json.loads(SYMBOL)
    document["nodes"][1].update(changes)
    return json.dumps(document)


@pytest.mark.parametrize("text", [
    SYMBOL.replace('{"mxnet_version": ["int", 10901]}', "null"), node(attrs=None),
])  # fmt: skip
def test_a_symbol_may_leave_attributes_out(text):
    try:
        assert gt.graph.read_symbol(text).operators() == {"Activation": ["a"]}
    except GluontuneError as error:
        assert "act_type" in str(error)


@pytest.mark.parametrize("version", ['["int", "x"]', "7", "[]", "null", '"1.9.1"'])
def test_any_form_of_the_version_is_read(version):
    """Symbols that people hold have it as a number, a list, a text, or not at all."""
    graph = gt.graph.read_symbol(SYMBOL.replace('["int", 10901]', version))
    assert graph.operators() == {"Activation": ["a"]}


@pytest.mark.parametrize("text", [
    node(name=7), node(op=7), node(op=[]), node(inputs=7), node(inputs=[7]), node(inputs=[[-1, 0]]),
    node(inputs=[[0, -1]]), node(inputs=[["0", 0]]), node(inputs=[[0, 10**9]]), node(inputs=[[True, 0]]),
    node(attrs=[1]), node(attrs="a"),
    node(attrs={"act_type": "relux"}), node(attrs={"act_type": 7}),
    node(attrs={"act_type": "relu", "__shape__": "(a,)"}),
    node(op="Reshape", attrs={"shape": "(" * 300}), node(op="Reshape", attrs={"shape": "('a', 'b')"}),
    node(op="Reshape", attrs={"shape": "'abc'"}), node(op="FullyConnected", attrs={"num_hidden": "1e999"}),
    SYMBOL.replace("[[1, 0, 0]]", "[1]"),
    SYMBOL.replace("[[1, 0, 0]]", "[[9, 0, 0]]"),
])  # fmt: skip
def test_a_damaged_symbol_is_told_in_a_sentence(text):
    with pytest.raises(GluontuneError) as caught:
        gt.graph.read_symbol(text)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_a_layer_that_cannot_be_made_is_named():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    for text in (node(op="Dropout", attrs={"p": "7"}), node(op="SliceChannel", attrs={"num_outputs": "0"})):
        with contextlib.suppress(GluontuneError):
            gt.bridge.to_torch(text, {})
    with pytest.raises(GluontuneError, match=r"layer a: Activation cannot be made of its inputs"):
        gt.bridge.to_torch(node(inputs=[]), {})


@pytest.mark.parametrize("shape", [(-8,), (-1, 3), (2**62,), (2**32, 2**32), (-(2**62),)])
def test_arrays_of_shapes_that_the_file_does_not_hold_are_refused(tmp_path, shape):
    """With (-8,) the reader went back to where it had been, and read the rest of the file again, for ever."""
    head = struct.pack("<Iii", 0xF993FAC9, 0, len(shape)) + struct.pack(f"<{len(shape)}q", *shape)
    array = head + struct.pack("<iii", 1, 0, 0)
    (tmp_path / "a.params").write_bytes(struct.pack("<QQQ", 0x112, 0, 1 << 40) + array + bytes(400))
    with pytest.raises(GluontuneError, match="damaged or cut"):
        gt.graph.read_params(tmp_path / "a.params")


def test_two_arrays_of_one_name_are_refused(tmp_path):
    gt.graph.write_params(tmp_path / "a.params", {"arg:w": np.ones(2), "aux:w": np.zeros(2)})
    with pytest.raises(GluontuneError, match="two of its arrays have one name"):
        gt.graph.read_params(tmp_path / "a.params")


HEADERS = [
    {}, {"recipe": 3}, {"recipe": {"a": 1}}, {"recipe": []}, {"recipe": {"net": "mlp"}},
    {"recipe": {"net": "mlp"}, "step": "x", "progress": {"result": {}}},
    {"recipe": {"net": "mlp"}, "step": 7, "progress": []},
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_a_checkpoint_whose_header_somebody_has_written_is_told(tmp_path, header):
    from gluontune.training.hooks import Checkpoints, Keeper

    checkpoint.write(tmp_path / checkpoint.name_of(7), header, {"w": np.ones(2)})
    with pytest.raises(GluontuneError, match=checkpoint.name_of(7)):
        Keeper(Recipe(net="mlp"), Checkpoints(tmp_path, resume=True)).find()


def test_a_checkpoint_whose_header_is_no_mapping_is_damaged(tmp_path):
    body = b"[1]\n" + whole("individual", tmp_path)
    digest = hashlib.sha256(body).hexdigest()
    (tmp_path / "a.ckpt").write_bytes(f"{checkpoint.FORMAT} {digest}\n".encode() + body)
    with pytest.raises(GluontuneError, match="no mapping"):
        checkpoint.read(tmp_path / "a.ckpt")


def test_the_job_file_that_a_checkpoint_names_does_not_run_unasked(tmp_path):
    from gluontune.job.trained import recipe_of_source

    job = str(tmp_path / "job.py")
    checkpoint.write(tmp_path / "a.ckpt", {"recipe": Recipe(job=job).to_dict()}, {"w": np.ones(2)})
    with pytest.raises(GluontuneError, match="a program that would run: name it yourself, with --job"):
        recipe_of_source(tmp_path / "a.ckpt", Recipe())
    assert recipe_of_source(tmp_path / "a.ckpt", Recipe(job=job)).job == job
    assert recipe_of_source(tmp_path / "a.ckpt", Recipe(job="own.py"), ["job"]).job == "own.py"
