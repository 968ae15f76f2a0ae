"""One table of operators: what ``to_torch`` runs is what the text that ``migrate`` writes computes."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from drawn_graphs import Draw, differences, module_of
from drawn_operators import DRAWN, OPERATORS, fill, symbol_of
from operator_samples import SAMPLES

import gluontune as gt
from gluontune.convert.bridge.registry import attributes
from gluontune.convert.graph.symbol import Node
from gluontune.convert.migrate.body import Home
from gluontune.convert.migrate.calls import Call
from gluontune.convert.migrate.copying import copied
from gluontune.convert.migrate.expressions import expression, named
from gluontune.convert.migrate.text import model_text, same_meaning, tidied
from gluontune.convert.migrate.units import flow_of

drawing = importlib.import_module("gluontune.convert.bridge.operators.creating")
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


class Bare:
    """What a class needs of a writer where no array is a parameter."""

    def __init__(self):
        self.names, self.used, self.arrays, self.declared = {}, {}, {}, set()

    def own_layer(self, unit, call):
        return None


def written(graph):
    """The model of a graph whose variables are all its inputs."""
    writer = Bare()
    takes = [(number, 0) for number, node in enumerate(graph.nodes) if node.op is None]
    nodes = [number for number, node in enumerate(graph.nodes) if node.op is not None]
    call = Call("", "Net", takes=takes, gives=list(graph.outputs), graph=graph, nodes=nodes)
    part = Home(writer, "", []).made([call], [flow_of(call, lambda name, path: False)]).part
    texts = {"model.py": tidied(model_text(part, "One operator.", writer.used))}
    return {**texts, "operators.py": tidied(copied(writer.used))} if writer.used else texts


@pytest.mark.parametrize("name", DRAWN)
def test_the_text_of_an_operator_computes_what_the_bridge_computes(name):
    rng = random.Random(name)
    for seed in range(2):
        sample = SAMPLES[name](Draw(rng))
        numbers = np.random.default_rng(seed)
        document = symbol_of(gt.runtime.mxnet(), name, sample)
        graph = gt.graph.read_symbol(document)
        arrays = [fill(*each, rng=numbers).astype("float32") for each in sample.inputs]
        states = {n: arrays[int(n[1:])] for n in graph.auxiliary()}  # the module has them, the text is given them
        names = [n["name"] for n in document["nodes"][:-1] if n["name"] not in states]
        module = gt.bridge.to_torch(json.dumps(document), states, inputs=names)
        other = module_of(written(graph))
        for train in (False, True):
            found = []
            for side in (module, other):
                given = [torch.from_numpy(a.copy()) for a in arrays]
                for tensor in given[: len(names)]:
                    tensor.requires_grad_(sample.grads)
                with mock.patch.object(drawing, "STEADY", True):
                    out = side.train(train)(*given[: len(names) if side is module else None])
                out = list(out) if isinstance(out, (tuple, list)) else [out]
                loss = [o.sum() for o in out if o.requires_grad]
                if loss:
                    sum(loss).backward()
                found.append([*out, *(g.grad for g in given if g.grad is not None)])
            assert len(found[0]) == len(found[1])
            for ours, theirs in zip(*found):
                torch.testing.assert_close(ours, theirs, equal_nan=True)


#: What has no text, and why.
WITHOUT = {}


def test_every_operator_of_the_table_has_a_text():
    """All at once in one file: no two of our modules have helpers of one name that differ."""
    used: dict = {}
    homes = (torch, torch.nn.functional)
    for entry in OPERATORS:
        own = any(getattr(home, getattr(entry.run, "__name__", ""), None) is entry.run for home in homes)
        if entry.name not in WITHOUT and not own:  # torch's own stand in the text by their names
            named(Node(entry.name, "layer"), used)
    text = copied(used)
    held: dict = {}
    exec(compile(text, "operators.py", "exec"), held)
    assert not [name for name in used if name not in held] and same_meaning(tidied(text), text)
    assert len(used) > 250
    names = [line.split("(")[0] for line in text.splitlines() if line.startswith(("def ", "class "))]
    assert len(names) == len(set(names))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "I", "-"]
    done = subprocess.run(ruff, input=tidied(text), capture_output=True, text=True)
    assert "import numpy" in text and done.returncode == 0, done.stdout


def test_every_operator_is_drawn():
    """But loops, whose bodies are graphs of their own: ``test_bridge.py`` has them; and what ties losses to outputs."""
    loops = {entry.name for entry in OPERATORS if entry.loops}
    assert {entry.name for entry in OPERATORS} - set(SAMPLES) == {*loops, "_after_loss"} and len(loops) == 3


@pytest.mark.parametrize("scalar", [-2.0, 0.5])
def test_a_negative_number_keeps_its_sign_in_a_power(scalar):
    node = Node("_rpower_scalar", "layer", {"scalar": scalar})
    assert attributes(OPERATORS["_rpower_scalar"], node) == {"scalar": scalar}
    x = torch.tensor([2.0])
    assert eval(expression(node, ["x"], "x", {}), {"x": x}) == scalar**2


@pytest.mark.parametrize("seed", range(40))
def test_operators_in_random_composition(seed):
    """``python tests/trials/drawn_graphs.py --cases 10000`` draws more."""
    wrong, kinds = differences(seed)
    assert not wrong, (wrong, kinds)
