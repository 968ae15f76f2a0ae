"""What others have chosen in a script that is migrated: names in a symbol that it loads, and names of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gluontune.capture.api import migrate_script
from gluontune.convert.graph.params import write_params

pytestmark = [pytest.mark.mxnet, pytest.mark.process]
pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

RAN = '__import__("os").mkdir("RAN")'
NAMES = [
    f'" + str({RAN}) + "', f"a = 1\n{RAN}\nb", f"x.y'); {RAN} #", "class", "ﬁ", "__w", "a b", "\\", "fc.weight", "重"
]  # fmt: skip
FILE = f'a"""\\N{{x}}\n{RAN}\n#.py'
# Clips one gradient alone, changes another by hand, and updates a third without a trainer: each is named in train.py.
SCRIPT = """
import os
import mxnet as mx
from mxnet import autograd, gluon
beside = os.path.dirname(os.path.abspath(__file__))
net = gluon.SymbolBlock.imports(f"{beside}/net.json", ["data"], f"{beside}/net.params")
named = [p for name, p in sorted(net.collect_params().items())]
trainer = gluon.Trainer(named, "sgd", {"learning_rate": 0.01})
for _ in range(8):
    with autograd.record():
        loss = (net(mx.nd.random.uniform(shape=(4, 2))) ** 2).sum()
    loss.backward()
    gluon.utils.clip_global_norm([p.grad() for p in named[:-1]], 0.5)
    for p in named[:-1]:
        p.grad()[:] = p.grad() * mx.nd.array([[1, 0.5], [0.5, 1]])
    trainer.step(4)
"""


def net_of(names, folder):
    nodes, at = [{"op": "null", "name": "data", "inputs": []}], 0
    for number, name in enumerate(names):
        nodes.append({"op": "null", "name": name, "inputs": []})
        nodes.append({"op": "FullyConnected", "name": f"fc{number}", "attrs": {"num_hidden": "2", "no_bias": "True"},
                      "inputs": [[at, 0, 0], [len(nodes) - 1, 0, 0]]})  # fmt: skip
        at = len(nodes) - 1
    document = {"nodes": nodes, "arg_nodes": [n for n, one in enumerate(nodes) if one["op"] == "null"],
                "heads": [[at, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}  # fmt: skip
    (folder / "net.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    write_params(folder / "net.params", {f"arg:{n}": np.eye(2, dtype="float32") + k / 64 for k, n in enumerate(names)})


def test_names_in_a_loaded_symbol_and_of_files_are_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net_of(NAMES, tmp_path)
    (tmp_path / FILE).write_text(SCRIPT)
    made = migrate_script([FILE], tmp_path / "project", time_limit=300)
    assert made.told.endswith("\nagrees")
    train = [sys.executable, "train.py", "--epochs", "1", "--steps", "2"]
    told = subprocess.run(train, cwd=made.path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    names = json.loads(Path(made.path, "names.json").read_text("utf-8"))
    assert sorted(names.values()) == sorted(NAMES)
    assert "RAN" not in {name for _, folders, _ in os.walk(tmp_path) for name in folders}, "code was run"
