"""Campaigns against what comes from others: names on their way into source, pages and terminals; damaged documents.

    python tests/trials/hostile_trials.py names --cases 2000 --seed 1
    python tests/trials/hostile_trials.py symbols --cases 5000 --seed 1
    python tests/trials/hostile_trials.py recipes --cases 5000 --seed 1
    python tests/trials/hostile_trials.py resumes --cases 2000 --seed 1

Each case draws from a generator of its own (seed and number): ``--first N --cases 1`` repeats case N. A case may be
taken or refused with a GluontuneError; anything else is told, as is one that takes over two seconds or 300 MiB, and
one that is not done after ten minutes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.util
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import gluontune as gt
from gluontune.cli._common import Terminal
from gluontune.core.errors import GluontuneError
from gluontune.report import ladder_table, print_sources, write_html, write_ladder_html
from gluontune.report.read import load
from gluontune.search import results_store
from gluontune.search.time_to_target import read_price

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import page_reader
import report_samples
import resumed_works

MOST_S, MOST_MIB = 2.0, 300.0
HANG_S = 600  # by the clock: what waits takes none of its own time
_MOST_BYTES = 4 << 30  # of this process: a case that wants more is told, and does not end the machine
RAN = "__import__('os').mkdir('RAN')"
PIECES = [
    '"', "'", '"""', "'''", "\\", "\n", "\r", "\t", "\0", "\x1b[2J", "\x07", "\x85", "\u2028", "\u202e", "{", "}",
    "{{", "}}", "{%", "%}", "{#", "#", "(", ")", "[", "]", ",", ".", ":", ";", "=", " ", "/", "-", "%s", "%(a)s",
    "$(x)", "`", "&", "<", ">", "</script>", "<script>", "onload=", "]]>", "--", "*", "@", "class", "def",
    "import", "None", "lambda", "self", "forward", "training", "weight", "__class__", "__init__", "__import__",
    "torch", "getattr", "data", "w", "0", "ﬁ", "ｗ", "é", "重", "😀", "\u200b", "a" * 300, f'", {RAN}) or ("',
    f"'; {RAN}; '", f"\n{RAN}\n", f"{{{{ {RAN} }}}}", f"{{% set x = {RAN} %}}", f"{{{RAN}}}", f'"""\n{RAN}\n"""',
    f"\\\n{RAN}", f"#\n{RAN}", RAN, f"lambda: {RAN}", f'"), exec("{RAN}") #', "[/bold]", "[link=x]", ":smile:",
]  # fmt: skip


def hostile(rng: random.Random) -> str:
    """A name of one to six pieces; now and then of thousands."""
    many = rng.choice([1, 1, 2, 3, 4, 6]) if rng.random() < 0.98 else rng.randrange(500, 2000)
    return "".join(rng.choice(PIECES) for _ in range(many))


# Names.


def symbol(weights: list[str], data: str, layer: str, attrs: dict[str, str]) -> dict[str, Any]:
    """Dense layers one behind the other, then Dropout."""
    nodes: list[dict[str, Any]] = [{"op": "null", "name": data, "inputs": []}]
    at = 0
    for name in weights:
        nodes.append({"op": "null", "name": name, "inputs": []})
        given = {"num_hidden": "2", "no_bias": "True", **attrs}
        nodes.append({"op": "FullyConnected", "name": layer, "attrs": given, "inputs": [[at, 0], [len(nodes) - 1, 0]]})
        at = len(nodes) - 1
    nodes.append({"op": "Dropout", "name": layer, "attrs": {}, "inputs": [[at, 0]]})
    return {"nodes": nodes, "arg_nodes": [], "heads": [[at + 1, 0]], "attrs": {"mxnet_version": ["int", 10901]}}


def through_the_bridge(rng: random.Random) -> None:
    import torch

    weights = list(dict.fromkeys(hostile(rng) for _ in range(3)))
    data = hostile(rng)
    attrs = {hostile(rng): hostile(rng)} if rng.random() < 0.2 else {}
    document = symbol(weights, data, hostile(rng), attrs)
    arrays = {name: np.full((2, 2), 0.5 + n / 8, "float32") for n, name in enumerate(weights)}
    if data in arrays:
        return
    module = gt.bridge.to_torch(document, arrays)
    expected = torch.ones(1, 2)
    for array in arrays.values():
        expected = expected @ torch.from_numpy(array).T
    assert torch.allclose(module(torch.ones(1, 2)), expected), "it computes something else"
    found = gt.bridge.from_torch(copy.deepcopy(module))
    assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in arrays.items()}, "names were lost"


def through_the_climb(rng: random.Random, folder: Path) -> None:
    text, value = hostile(rng), hostile(rng)
    base = gt.Recipe(dataset=f"folder:{text}")
    job = str(folder / "job.py") if rng.random() < 0.3 else None
    best = base.override(env={text: value}, runtime="tuned", job=job)
    row = {"name": text, "kept": True, "changes": {"env": {}, "runtime": 1, text: 1}, "recipe": None,
           "ratio_to_previous": {"median": 2.0}}  # fmt: skip
    naive = {"name": "naive", "kept": True, "changes": {}, "ratio_to_previous": None, "recipe": base.to_dict()}
    document = {"best": {"name": "b", "recipe": best.to_dict()}, "base_recipe": base.to_dict(),
                "dataset": {"name": text}, "rungs": [naive, row]}  # fmt: skip
    results_store.write_best(document, folder)
    if (folder / "best.yaml").stat().st_size < 1 << 15:
        again = gt.Recipe.from_yaml(folder / "best.yaml")
        assert again.env == {text: value} and again.dataset == base.dataset, "best.yaml says something else"
    body = ast.parse((folder / "best.py").read_text("utf-8")).body
    told = next(s for s in body if isinstance(s, ast.Assign) and getattr(s.targets[0], "id", "") == "ENVIRONMENT")
    assert ast.literal_eval(told.value)[text] == value, "best.py sets something else"
    document["best"]["recipe"] = best.override(env={"A": "1"}, dataset="folder:a").to_dict()
    calm = results_store.best_script(document)
    assert [type(s) for s in body] == [type(s) for s in ast.parse(calm).body], "a text has become a statement"


def through_a_page(rng: random.Random, folder: Path) -> None:
    with mock.patch.object(report_samples, "HOSTILE", hostile(rng)):
        (folder / "a.json").write_text(json.dumps(report_samples.hostile_ladder()))
    source = load(folder / "a.json")
    write_ladder_html(source.ladder, folder / "page.html")
    page = page_reader.Page((folder / "page.html").read_text("utf-8"))
    assert len(page.find("script")) == 2, "a script more"
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")], "a handler"
    shown = io.StringIO()
    Terminal(file=shown, width=200, force_terminal=True, color_system=None).print(ladder_table(source.ladder))
    in_terminal(shown.getvalue())


def in_terminal(text: str) -> None:
    found = re.search(r"[^\n\t -~\xa0-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]", text)
    assert found is None, f"a control character: {found[0]!r}"


def through_the_terminal(rng: random.Random, folder: Path) -> None:
    from gluontune.cli import main

    name = hostile(rng).replace("\0", "").replace("/", "")[:80] or "a"
    arguments = rng.choice([["verify", name], ["train", "--recipe", name], ["report", name], ["train", "--net", name],
                            ["pack", name, "o.rec"], ["export", "--net", name], [name], ["train", "--set", name],
                            ["ladder", "--rungs", name], ["init", f"{name}.py"], ["data", "fetch", name]])  # fmt: skip
    out = io.StringIO()  # the consoles write to whatever is standard output or error at the time
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), _chdir(folder):
        main.main(arguments if name[0] != "-" else ["verify", "--", name])
    said = out.getvalue()
    in_terminal(said)
    assert "fault of gluontune" not in said and "Traceback" not in said, said


def migrated(rng: random.Random, folder: Path, count: int = 12) -> None:
    """One net of many names; its project is imported and run here, where a look at it is cheap."""
    import torch

    mx = gt.runtime.mxnet()
    names = list(dict.fromkeys(hostile(rng) for _ in range(count)))
    places: dict[str, str] = {}

    class Base(mx.gluon.nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                for name in names:
                    kind = re.sub(r"[^ -~]", "?", name.replace("\\", "/"))[:200]
                    made = type(kind or "D", (mx.gluon.nn.Dense,), {})
                    self.register_child(made(2, in_units=2, activation="relu"), name)
                    parameter = self.params.get(f"p{len(places)}", shape=(1, 2), init="ones")
                    self._reg_params[f"{name}_"] = parameter
                    places[f"{name}_"] = name

        def hybrid_forward(self, F: Any, x: Any, **params: Any) -> Any:
            for name, parameter in params.items():
                x = F.broadcast_add(self._children[places[name]](x), parameter)
            return x

    net = type("Net", (Base,), {})()
    net.initialize()
    plain = subprocess.run
    try:
        subprocess.run = lambda *a, **k: subprocess.CompletedProcess(a, 0, "agrees", "")  # type: ignore[assignment]
        x = np.ones((4, 2), "float32")
        gt.bridge.migrate(net, folder / "project", x)
    finally:
        subprocess.run = plain  # type: ignore[assignment]
    sys.path.insert(0, str(folder / "project"))
    try:
        spec = importlib.util.spec_from_file_location("model", folder / "project" / "model.py")
        assert spec is not None and spec.loader is not None
        model = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(model)
        built = model.build()
        built.load_state_dict(torch.load(folder / "project" / "weights.pt", weights_only=True))
        ours, theirs = built(torch.from_numpy(x)).detach().numpy(), net(mx.nd.array(x)).asnumpy()
        assert np.allclose(ours, theirs), "it computes something else"
    finally:
        sys.path.remove(str(folder / "project"))
        sys.modules.pop("operators", None)


def names(rng: random.Random, number: int, folder: Path) -> None:
    ways: list[tuple[int, Callable[..., None]]] = [
        (1, through_the_climb),
        (5, through_the_terminal),
        (40, through_a_page),
        (100, migrated),
    ]
    for every, way in ways:  # what takes longer comes less often
        if (number + every // 2) % every == 0:
            with contextlib.suppress(GluontuneError):
                way(rng, folder)
    through_the_bridge(rng)


# Documents.

VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "a", "None", "(1,)", "-1",
    "(0, 0)", "(99999999999, 1)", "1e999", "9" * 400, "(" * 300, "[[[]]]", [], {}, [[]], [0], [1, 2, 3], {"a": 1},
    [[0, 0, 0]], "FullyConnected", "BatchNorm", "null", "RNN", "SliceChannel", "_foreach", "Custom",
]  # fmt: skip


def graphs() -> list[tuple[dict[str, Any], dict[str, np.ndarray], dict[str, tuple[int, ...]]]]:
    """Small symbols of many kinds of operators, with their arrays."""

    def node(op: str, name: str, inputs: list[int], **attrs: str) -> dict[str, Any]:
        return {"op": op, "name": name, "attrs": attrs, "inputs": [[n, 0, 0] for n in inputs]}

    def drawn(*shape: int) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(shape).astype("float32")

    image = [
        node("null", "data", []), node("null", "c_weight", [], __shape__="(4, 3, 3, 3)"), node("null", "c_bias", []),
        node("Convolution", "c", [0, 1, 2], kernel="(3, 3)", num_filter="4", pad="(1, 1)"),
        *(node("null", f"b_{part}", []) for part in ("gamma", "beta", "moving_mean", "moving_var")),
        node("BatchNorm", "b", [3, 4, 5, 6, 7], eps="1e-5", fix_gamma="False"),
        node("Activation", "a", [8], act_type="relu"),
        node("Pooling", "p", [9], kernel="(2, 2)", stride="(2, 2)", pool_type="max"),
        node("SliceChannel", "s", [10], num_outputs="2", axis="1"),
        {**node("Concat", "cat", [11], num_args="2", dim="1"), "inputs": [[11, 0, 0], [11, 1, 0]]},
        node("Reshape", "r", [12], shape="(0, -1)"), node("null", "f_weight", []),
        node("FullyConnected", "f", [13, 14], num_hidden="5", no_bias="True"), node("Dropout", "d", [15], p="0.5"),
        node("softmax", "out", [16], axis="-1"),
    ]  # fmt: skip
    arrays = {"c_weight": drawn(4, 3, 3, 3), "c_bias": drawn(4), "f_weight": drawn(5, 64)}
    arrays |= {f"b_{part}": np.ones(4, "float32") for part in ("gamma", "beta", "moving_mean", "moving_var")}
    text = [
        node("null", "data", []), node("null", "e_weight", []),
        node("Embedding", "e", [0, 1], input_dim="9", output_dim="4"), node("SwapAxis", "t", [2], dim1="0", dim2="1"),
        node("null", "r_parameters", []), node("null", "state", [], __shape__="(1, 2, 3)"),
        node("RNN", "r", [3, 4, 5], mode="gru", state_size="3", num_layers="1", state_outputs="False"),
        node("slice_axis", "s", [6], axis="0", begin="-1", end="None"), node("squeeze", "q", [7], axis="(0,)"),
        node("_plus_scalar", "plus", [8], scalar="2"), node("LeakyReLU", "l", [9], act_type="leaky", slope="0.1"),
        node("mean", "m", [10], axis="1", keepdims="True"), node("broadcast_mul", "x", [10, 11]),
        node("_arange", "ar", [], start="0", stop="3"), node("broadcast_add", "y", [12, 13]),
        node("tile", "ti", [14], reps="(2, 1)"), node("transpose", "tr", [15], axes="(1, 0)"),
        node("Cast", "ca", [16], dtype="float32"), node("clip", "cl", [17], a_min="-1", a_max="1"),
        node("Pad", "pa", [18], mode="constant", pad_width="(0, 0, 1, 1)"),
    ]  # fmt: skip
    words = {"e_weight": drawn(9, 4), "r_parameters": drawn(3 * 3 * (4 + 3 + 2))}
    made = []
    for nodes, held, _ in (
        (image, arrays, {"data": (2, 3, 8, 8)}),
        (text, words, {"data": (2, 6), "state": (1, 2, 3)}),
    ):
        document = {"nodes": nodes, "arg_nodes": [n for n, one in enumerate(nodes) if one["op"] == "null"],
                    "node_row_ptr": list(range(len(nodes) + 1)), "heads": [[len(nodes) - 1, 0, 0]],
                    "attrs": {"mxnet_version": ["int", 10901]}}  # fmt: skip
        made.append((document, held))
    return made


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a document with each of its keys."""
    for key, inner in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


def damaged(document: Any, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        holder, key = rng.choice(list(places(document)))
        what = rng.randrange(4)
        if what == 0:
            del holder[key]
        elif what == 1:
            holder[key] = copy.deepcopy(rng.choice(list(places(document)))[0])
        elif what == 2 and isinstance(holder, dict):
            holder[hostile(rng) if rng.random() < 0.5 else rng.choice(["shape", "axis", "__shape__", "num_args"])] = (
                rng.choice(VALUES)
            )
        else:
            holder[key] = hostile(rng) if rng.random() < 0.15 else copy.deepcopy(rng.choice(VALUES))


def scratched(text: str, rng: random.Random) -> bytes:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(data))
        data[at : at + rng.choice([0, 1, 1, 8])] = rng.choice(
            [b"", b'"', b"[" * 400, b"{", b"9" * 5000, b"\0", b"\xff", b",", b"-", b"e9"]
        )
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)


_GRAPHS: list[Any] = []


def symbols(rng: random.Random, number: int, folder: Path) -> None:
    _GRAPHS.extend([] if _GRAPHS else graphs())
    plain, arrays = copy.deepcopy(rng.choice(_GRAPHS))
    whole = json.dumps(plain)
    if number % 4:
        with contextlib.suppress(TypeError, RecursionError):  # a document that holds itself, or no JSON
            damaged(plain, rng)
            whole = json.dumps(plain)
    data = scratched(whole, rng) if number % 4 == 0 else whole.encode()
    file = folder / "net-symbol.json"
    file.write_bytes(data)
    graph = gt.graph.read_symbol(file)
    for node in graph.nodes:
        _ = node.shape
    gt.bridge.to_torch(file, arrays)


RECIPES = [
    "dataset: cifar10\nnet: cifar_resnet20_v1\nepochs: 3\nlearning_rate: 1e-3\nschedule: multifactor\n"
    "schedule_params: {steps: [1, 2], factor: 0.1, unit: epochs}\noptimizer: lars\n"
    "optimizer_params:\n  trust_coefficient: 0.002\nmethods: {mixup: true, ema: {decay: 0.99}}\nloader: resident\n"
    "env:\n  OMP_NUM_THREADS: '2'\n  A: \"x\\ty\"\nrewrites: [pool-to-mean]\nruntime: tuned\n",
    "job: job.py\nbackend: torch\nloader: threaded\nbatch_size_per_device: &size 64\nbase_batch_size: *size\n"
    "seed: 0x10\nseconds: 1_000.5\ntarget_accuracy: .8\naccumulate: 2\nwd: ~\nclip_global_norm: 1.0\n",
    "prices:\n- {machine: m, usd_per_hour: 0.5, date: 2026-01-31, source: a}\n- machine: n\n  usd_per_hour: 1\n"
    "  date: 2025-02-03\n  source: b\n",
]  # fmt: skip
YAML_PIECES = [
    "&a ", "*a", "*b", "<<: *a", "!!python/object/apply:os.mkdir [RAN]", "!!binary aGk=", "!!set {a, b}",
    "!!omap [a: 1]", "!!float x", "!!int ''", "!!timestamp x", "!!bool maybe", "!!null x", "!!map [1]",
    "!!seq {}", "!!str {}", "!a ", "{", "}", "[", "]", ",", ":", ": ", "- ", "? ", "| ", "> ", "'", '"', "#",
    "%YAML 1.1\n", "---\n", "...\n", "\n", "  ", "\t", "\0", "\x1b", "\xff", "\u2028", "~", "true", "1e999", "-1",
    "0x", ".inf", ".nan", "1:2:3:4", "9" * 5000, "2001-99-99", "[" * 500, "{a: " * 300, "a" * 40000, "=", "<<: ",
    "<<: [*a, *a]", "? [a]\n: 1\n", "&x [*x]", "&x {a: *x}", "epochs: 2\n", "env: {A: null}\n",
    "methods: {ema: {decay: []}}\n", "schedule_params: [1]\n",
    "&a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\n"
    "env: &e [*d,*d,*d,*d]\nrewrites: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
]  # fmt: skip


def recipes(rng: random.Random, number: int, folder: Path) -> None:
    """Of three kinds: damaged text; a field with a value that is none; fields and values at random."""
    text = rng.choice(RECIPES)
    if number % 3 == 0:
        for _ in range(rng.choice([1, 2, 4])):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(YAML_PIECES) + text[at + rng.choice([0, 0, 1, 5, 20]) :]
    elif number % 3 == 1:
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = (
            lines[at].split(":")[0]
            + ": "
            + rng.choice([rng.choice(YAML_PIECES), json.dumps(hostile(rng)), json.dumps(rng.choice(VALUES))])
        )
        text = "\n".join(lines) + "\n"
    else:
        fields = list(gt.Recipe().to_dict())
        text = json.dumps(
            {
                rng.choice(fields): rng.choice([*VALUES, hostile(rng), {hostile(rng): rng.choice(VALUES)}])
                for _ in range(3)
            }
        )
    file = folder / "recipe.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(GluontuneError):
        read_price(file)
    recipe = gt.Recipe.from_yaml(file)
    again = gt.Recipe.from_dict(recipe.to_dict())
    assert again == recipe
    recipe.resolved().to_yaml()
    _ = recipe.scaled_learning_rate, hash(recipe)


_DOCUMENTS: list[Any] = []


def documents(rng: random.Random, number: int, folder: Path) -> None:
    """Results, ladders and benchmarks, as ``gluontune report`` reads and shows them."""
    if not _DOCUMENTS:
        published = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.json"))
        _DOCUMENTS.extend(json.loads(file.read_text("utf-8")) for file in published if file.stat().st_size < 1 << 18)
        _DOCUMENTS.extend([report_samples.full_ladder(), report_samples.run_result().to_dict()] * 4)
    document = copy.deepcopy(rng.choice(_DOCUMENTS))
    with contextlib.suppress(TypeError, RecursionError):
        damaged(document, rng)
    try:
        text = json.dumps(document)
    except (ValueError, RecursionError):  # it holds itself
        return
    (folder / "a.json").write_text(text)
    source = load(folder / "a.json")
    print_sources(Terminal(file=io.StringIO(), width=100), [source])
    if number % 10 == 0:
        write_html([source], folder / "page.html")
        page_reader.Page((folder / "page.html").read_text("utf-8"))


def resumes(rng: random.Random, number: int, folder: Path) -> None:
    """Documents with which ``--resume`` goes on: of a climb, a study, its parts, a list of scripts."""
    resumed_works.resume(rng, folder, damaged)


KINDS = {"names": names, "symbols": symbols, "recipes": recipes, "documents": documents, "resumes": resumes}


def _peak_mib(reset: bool = False) -> float:
    """The largest memory of this process so far; ``reset``: from now on."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS" if reset else "VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class _Hang(BaseException):
    """Not an Exception: nothing that is tested may swallow it."""


def _hung(*_: object) -> None:
    raise _Hang(f"not done after {HANG_S} s")


_stop: list[int] = []  # signals: what has been counted until then is told


def campaign(
    kind: str, cases: int, seed: int, first: int = 0, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Run the cases and count what came of them."""
    found: dict[str, Any] = {"kind": kind, "cases": 0, "seed": seed, "taken": 0, "refused": 0, "executed": 0,
             "raw": 0, "slow": 0, "large": 0, "slowest_s": 0.0, "largest_mib": 0.0, "told": []}  # fmt: skip
    for number in range(first, first + cases):
        if _stop:
            break
        found["cases"] += 1
        rng, folder = random.Random(f"{kind} {seed} {number}"), Path(tempfile.mkdtemp())
        before, began = _peak_mib(reset=True), time.process_time()
        fault = ""
        alarm = signal.signal(signal.SIGALRM, _hung)
        signal.alarm(HANG_S)
        try:
            with _chdir(folder):
                KINDS[kind](rng, number, folder)
            found["taken"] += 1
        except GluontuneError as error:
            found["refused"] += 1
            if len(str(error)) > 4000 or str(error).count("\n") > 3:
                fault = f"a long message: {str(error)[:300]}"
            with contextlib.suppress(AssertionError):
                in_terminal(str(error))
                error = None  # type: ignore[assignment]
            fault = fault or ("a message with a control character" if error is not None else "")
        except (Exception, _Hang):
            fault = traceback.format_exc(limit=-4)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)
        seconds, grown = time.process_time() - began, _peak_mib() - before
        if any("RAN" in names for _, names, _ in os.walk(folder)):
            found["executed"] += 1
            fault = f"code was run; {fault}"
        found["raw"] += bool(fault)
        found["slow"] += seconds > MOST_S and kind != "names"
        found["large"] += grown > MOST_MIB and kind != "names"
        found["slowest_s"], found["largest_mib"] = (max(found["slowest_s"], seconds), max(found["largest_mib"], grown))
        if fault or (kind != "names" and (seconds > MOST_S or grown > MOST_MIB)):
            told = f"{kind} --seed {seed} --first {number} --cases 1: {seconds:.1f} s, {grown:.0f} MiB: {fault}"
            found["told"] = [*found["told"], told][:40]
            say(told)
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: _stop.append(number))
    found = campaign(
        given.kind, given.cases, given.seed, given.first, lambda text: print(text, file=sys.stderr, flush=True)
    )
    print(json.dumps({**found, "told": len(found["told"])}, indent=2))
    return int(bool(found["executed"] + found["raw"] + found["slow"] + found["large"]))


if __name__ == "__main__":
    sys.exit(main())
