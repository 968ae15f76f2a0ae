"""Names and texts that somebody else has chosen, on their way into source, pages and terminals: text, never code."""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import re
import shlex

import numpy as np
import pytest
from rich.text import Text

import gluontune as gt
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.search import results_store

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

NAMES = [
    'w", getattr(__import__("os"),"system")("touch RAN") or "', "w\n__import__('os').mkdir('RAN')", "a'b\"c\\", "\\",
    "{}", "{0.__class__}", "{{ 7 * 7 }}", "{% raw %}", "class", "None", "training", "forward", "inputs", "graph",
    "meta", "__class__", "__init__", "", ".", "a..b", "self.weight", "self", "SELF", "ﬁ", "ｗ",
    "a\u202eb", "a\x1b[2Jb", "\0", "\ud800",
    "x" * 9000, ".".join("a" * 300), "torch", "getattr", "gluontune_bridge_operators_neural_fully_connected", "0",
    "重み", "'''", '"""',
]  # fmt: skip
KEPT = ["fc_weight", "__x", "0.weight", "stage1/conv-1:weight", "body.1.gamma", "重み"]  # as before


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not os.listdir(tmp_path), "code was run"


def symbol(weights, data="data", attrs=(), layer="fc"):
    """A dense layer without bias for each of ``weights``, one behind the other, as a document."""
    nodes = [{"op": "null", "name": data, "inputs": []}]
    at = 0
    for name in weights:
        nodes.append({"op": "null", "name": name, "inputs": []})
        given = {"num_hidden": "2", "no_bias": "True", **dict(attrs)}
        place = len(nodes)
        nodes.append({"op": "FullyConnected", "name": layer, "attrs": given, "inputs": [[at, 0, 0], [place - 1, 0, 0]]})
        at = place
    return {"nodes": nodes, "arg_nodes": [], "heads": [[at, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}


def arrays(names):
    return {name: np.full((2, 2), 0.5 + n / 64, "float32") for n, name in enumerate(names)}


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[1:3], NAMES, NAMES[::-1], ["a", "a.b", 'a"'], ["a.training", "a"]])
def test_names_of_parameters_are_no_code_and_come_back(in_a_folder, names):
    module = gt.bridge.to_torch(symbol(names), arrays(names))
    expected = torch.ones(1, 2)
    for array in arrays(names).values():
        expected = expected @ torch.from_numpy(array).T
    assert torch.equal(module(torch.ones(1, 2)), expected)
    for one in (module, copy.deepcopy(module)):
        found = gt.bridge.from_torch(one)
        assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in arrays(names).items()}
    for line in module.code.splitlines():
        assert all(name not in line for name in names if len(name) > 20 and not name.isidentifier())
    module.load_state_dict(module.state_dict())


@pytest.mark.parametrize("name", KEPT)
def test_names_that_source_can_hold_stay(name):
    module = gt.bridge.to_torch(symbol([name]), arrays([name]))
    assert list(module.state_dict()) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_inputs_and_layers_are_no_code(in_a_folder, name):
    document = symbol(["w"], data=name, layer=name)
    document["nodes"].append({"op": "Dropout", "name": name, "inputs": [[2, 0, 0]]})
    document["nodes"].append({"op": "BatchNorm_v1", "name": name, "inputs": [[0, 0, 0]]})
    document["heads"] = [[3, 0, 0]]
    del document["nodes"][4]
    module = gt.bridge.to_torch(document, arrays("w"))
    assert module.inputs == [name] and module(torch.ones(1, 2)).tolist() == [[1.0, 1.0]]


def test_inputs_that_would_share_a_name_do_not(in_a_folder):
    names = ["a.b", "a/b", "a_b"]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": "Concat", "name": "c", "attrs": {"num_args": "3", "dim": "0"},
                  "inputs": [[0, 0], [1, 0], [2, 0]]})  # fmt: skip
    module = gt.bridge.to_torch({"nodes": nodes, "heads": [[3, 0]]}, {})
    assert module(*[torch.full((1,), float(n)) for n in range(3)]).tolist() == [0, 1, 2]


def test_two_variables_of_one_name_are_refused():
    with pytest.raises(GluontuneError, match="more than one variable named w"):
        gt.bridge.to_torch(symbol(["w", "w"]), arrays("w"))


@pytest.mark.parametrize("name", [n for n in NAMES if not n.isidentifier()])
def test_names_of_attributes_are_no_code(in_a_folder, name):
    from gluontune.convert.bridge import registry

    @gt.bridge.operator("hostile_names_own")
    def own(x, **attrs):
        return x

    try:
        node = {"op": "hostile_names_own", "name": "own", "attrs": {name: name}, "inputs": [[0, 0]]}
        document = {"nodes": [{"op": "null", "name": "data", "inputs": []}, node], "heads": [[1, 0]]}
        with pytest.raises(GluontuneError, match="no name of an attribute"):
            gt.bridge.to_torch(document, {})
        node["attrs"] = {"mode": name}
        assert gt.bridge.to_torch(document, {})(torch.ones(1)).tolist() == [1.0]
    finally:
        del registry.OPERATORS._entries["hostile_names_own"]


def test_pytorchs_engine_finds_its_parameters_by_the_names_in_the_module():
    from gluontune.convert.bridge.names import gluon_names
    from gluontune.engines.torch.export import Exported

    names = ['a"b_weight', "fc_bias"]
    module = gt.bridge.to_torch(symbol(names), arrays(names))
    job = Exported("", None, "", [], {}, dict(zip(names, ["0.weight", "0.bias"])), "sample", {}, -1,
                   {names[0]: 2.0}, {names[1]: 0.0}, [names[0]], [[names[0]], [names[1]]])  # fmt: skip
    job = job.renamed(gluon_names(module))
    there = set(dict(module.named_parameters()))
    assert set(job.names) == there and list(job.names.values()) == ["0.weight", "0.bias"]
    assert {*job.lr_mult, *job.wd_mult} == there and set(job.frozen) < there and job.layers[1] == ["fc_bias"]
    assert json.dumps(job.layers) == json.dumps([job.frozen, ["fc_bias"]])


def test_a_migrated_project_has_hostile_names_as_texts(in_a_folder, tmp_path_factory):
    """Of blocks, parameters and classes: of a net that was built from what somebody else wrote."""
    mx = gt.runtime.mxnet()
    hostile = [
        'a"); __import__("os").mkdir("RAN") #',
        "a\nb",
        "class",
        "'''",
        '"""\n#',
        "{{ 1 }}",
        "\\",
        "__x",
        "x y, z(",
        "重",
    ]
    seen = {}

    class Base(mx.gluon.nn.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                for child in hostile:
                    kind = type(f"Dense {child}", (mx.gluon.nn.Dense,), {})
                    self.register_child(kind(2, in_units=2, activation="relu"), child)
                    name = f"{child}_p"
                    self._reg_params[name] = self.params.get(f"p{len(seen)}", shape=(1, 2), init="ones")
                    seen[name] = child

        def hybrid_forward(self, F, x, **params):
            for name, parameter in params.items():
                x = F.broadcast_add(self._children[seen[name]](x), parameter)
            return x

    net = type('N"""\nimport os', (Base,), {})()
    net.initialize()
    out = tmp_path_factory.mktemp("migrated") / "project"
    made = gt.bridge.migrate(net, out, np.ones((4, 2), "float32"))
    assert made.agrees and made.classes >= 2
    assert {f"{child}_p" for child in hostile} < set(torch.load(out / "weights.pt", weights_only=True))


@pytest.mark.parametrize("name", ["training", "forward"])
def test_migrate_refuses_what_a_module_of_pytorchs_has_anyway(name, tmp_path):
    mx = gt.runtime.mxnet()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=2))
    net._children[name] = net._children.pop("0")
    net.initialize()
    with pytest.raises(GluontuneError, match=f"cannot have an attribute '{name}'"):
        gt.bridge.migrate(net, tmp_path / "p", np.ones((4, 2), "float32"))


def climbed(text, **changes):
    """A climb in which whatever may be somebody else's text is ``text``."""
    base = gt.Recipe(dataset=f"folder:{text}", env={"OMP_NUM_THREADS": "1"})
    best = base.override(env={text.replace("=", "") or "A": text}, runtime="tuned", **changes)
    row = {"name": text, "kept": True, "changes": {"env": {}, "runtime": "tuned"}, "ratio_to_previous": {"median": 2.0},
           "recipe": None}  # fmt: skip
    naive = {"name": "naive", "kept": True, "changes": {}, "ratio_to_previous": None, "recipe": base.to_dict()}
    return {"best": {"name": text or "b", "recipe": best.to_dict()}, "base_recipe": base.to_dict(),
            "dataset": {"name": f"folder:{text}"}, "rungs": [naive, row]}  # fmt: skip


@pytest.mark.parametrize("job", [None, 'it\'s "my"\njob.py'])
@pytest.mark.parametrize("name", [*NAMES, '", **{__import__("os").mkdir("RAN"): ""}, "', "\nepochs: 99 #", "😀\n"])
def test_what_a_climb_hands_over_has_them_as_texts(in_a_folder, tmp_path_factory, name, job):
    if "\0" in name or "\ud800" in name:  # nothing that a process can be started with
        return
    folder = tmp_path_factory.mktemp("handed")
    document = climbed(name, job=job)
    results_store.write_best(document, folder)
    assert gt.Recipe.from_yaml(folder / "best.yaml").env == document["best"]["recipe"]["env"]
    assert gt.Recipe.from_yaml(folder / "best.yaml").dataset == f"folder:{name}"
    assert gt.Recipe.from_yaml(folder / "best.yaml").epochs == 1.0
    parsed = ast.parse((folder / "best.py").read_text("utf-8"))
    settings = next(s for s in parsed.body if isinstance(s, ast.Assign) and s.targets[0].id == "ENVIRONMENT")
    told = ast.literal_eval(settings.value)
    assert told[name.replace("=", "") or "A"] == name
    plain = folder / "plain"
    results_store.write_best(climbed("plain", job=None if job is None else "job.py"), plain)
    kinds = [type(s) for s in ast.parse((plain / "best.py").read_text("utf-8")).body]
    assert [type(s) for s in parsed.body] == kinds, "a name has become a statement"


def shown(text):
    from rich.table import Table

    from gluontune.cli._common import Terminal

    out = io.StringIO()
    table = Table("column")
    table.add_row(text)
    terminal = Terminal(file=out, force_terminal=True, color_system=None, width=4000)
    terminal.print(text, soft_wrap=True)
    terminal.print(table)
    terminal.print(Text(text))
    return out.getvalue()


@pytest.mark.parametrize("text", ["a\x1b[31mred", "a\x01b", "a\u202eb", "a\x9b31m", "\ud800", "a\x7fb"])
def test_a_terminal_shows_no_control_characters_of_others(text):
    said = shown(text)
    assert (
        not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", said)
        and said.count("\\ud800" if text == "\ud800" else "\ufffd") == 3
    )


def test_a_terminal_takes_no_markup_from_others():
    assert shown("[bold]x[/nothing] :smile:").count("[bold]x[/nothing] :smile:") == 3


def test_a_terminal_still_draws_in_colours_of_its_own():
    from gluontune.cli._common import Terminal

    out = io.StringIO()
    Terminal(file=out, force_terminal=True, color_system="standard").print(Text("x", style="red"))
    assert "\x1b[31m" in out.getvalue()


@pytest.mark.parametrize("error", [GluontuneError, UsageError])
def test_an_error_has_no_control_characters_and_an_end(error):
    told = str(error("a\x1b[2J\nb" + "c" * 100_000))
    assert told.startswith("a\ufffd[2J\nb") and len(told) == 4000
    assert str(UnknownNameError("unit", "\x1b", ["ms"])).startswith("unknown unit '\\x1b'")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\x7f"])
def test_classes_whose_names_hold_control_characters_are_refused(tmp_path, name):
    for where in ("one", name):
        (tmp_path / "in" / where).mkdir(parents=True)
        (tmp_path / "in" / where / "1.jpg").write_bytes(b"x")
    (tmp_path / "a.csv").write_text(f'path,label\nin/one/1.jpg,one\nin/one/1.jpg,"{name}"\n')
    for read in (
        lambda: gt.records.pack(tmp_path / "in", tmp_path / "o.rec"),
        lambda: gt.records.pack(tmp_path / "a.csv", tmp_path / "o.rec"),
        lambda: gt.datasets.open(f"folder:{tmp_path / 'in'}"),
    ):
        with pytest.raises(GluontuneError, match="control character in its name") as caught:
            read()
        assert "\n" not in str(caught.value) and not list(tmp_path.glob("o.*"))


@pytest.mark.parametrize("up", [".", ".."])
def test_a_link_to_a_folder_that_holds_it_is_no_class(tmp_path, up):
    folder = tmp_path / "in"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.jpg").write_bytes(b"x")
    (folder / "cat" / "again").symlink_to("../.." if up == ".." else "..")  # within a class it is passed over
    from gluontune.records.sources import read_source

    assert [os.path.basename(item.path) for item in read_source(folder, shuffle=False).items] == ["cat.jpg", "dog.jpg"]
    (folder / "loop").symlink_to(up)
    for read in (lambda: read_source(folder), lambda: gt.datasets.open(f"folder:{folder}")):
        with pytest.raises(GluontuneError, match=r"loop: a link to a folder that holds it"):
            read()


def test_a_printed_command_can_be_run_as_it_stands(tmp_path, capsys):
    from gluontune.cli.main import main

    file = tmp_path / "my job; touch x.py"
    assert main(["init", str(file)]) == 0
    told = capsys.readouterr().out.partition("next: ")[2]
    assert shlex.split(told) == ["gluontune", "doctor", "--job", str(file)]


@pytest.mark.parametrize("name, text, told", [
    ("a.csv", "path,label\nx.jpg," + "a" * 200_000 + "\n", "not a table: field larger"), ("a.csv", "\n\n", "empty"),
    ("a.csv", "path,label\nx\0.jpg,a\n", "zero bytes"), ("a.lst", "1\t1\tx\0.jpg\n", "zero bytes"),
    ("a.lst", "9" * 5000 + "\t1\tx.jpg\n", "the key"),
])  # fmt: skip
def test_lists_and_tables_of_others_are_refused_in_a_sentence(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(GluontuneError, match=told) as caught:
        gt.records.pack(tmp_path / name, tmp_path / "o.rec")
    assert len(str(caught.value)) <= 4000
