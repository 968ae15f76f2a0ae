"""Unchanged programs whose arithmetic goes over to PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small_scripts import SCRIPTS, script

pytestmark = [pytest.mark.mxnet, pytest.mark.process]


def run(folder, text, *options):
    (folder / "train.py").write_text(text)
    words = [sys.executable, "-m", "gluontune", "run", "--out", "out.json", *options, "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text()), done.stderr


def numbers(text):
    return [float(word) for word in text.split()]


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_a_program_prints_on_pytorch_what_it_prints_on_mxnet(name, tmp_path):
    (tmp_path / "train.py").write_text(script(name))
    plain = subprocess.run(
        [sys.executable, "-c", "import gluontune as gt; gt.runtime.mxnet(); exec(open('train.py').read())"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert plain.returncode == 0, plain.stderr
    printed, found, _ = run(tmp_path, script(name), "--backend", "torch")
    assert numbers(printed) == pytest.approx(numbers(plain.stdout), rel=2e-3, abs=2e-3)
    assert found["why_not"] == ""
    assert found["steps_on_torch"] == found["steps"] - 2 > 2
    assert found["gaps"]["losses"] < 1e-5


def test_what_pytorch_does_not_know_is_computed_by_mxnet(tmp_path):
    text = script("by hand").replace("nd.log_softmax(out)", "nd.Custom(out, op_type='mine')").replace(
        "w, b =",
        """
class Mine(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], nd.log_softmax(in_data[0]))
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        g = out_grad[0]
        self.assign(in_grad[0], req[0], g - nd.exp(out_data[0]) * g.sum(axis=1, keepdims=True))
@mx.operator.register("mine")
class Prop(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Mine()
w, b =""",
    )  # fmt: skip
    printed, found, told = run(tmp_path, text, "--backend", "torch")
    assert len(numbers(printed)) == 4
    assert found["steps_on_torch"] == 0
    assert "Custom (train.py:" in found["why_not"]
    assert "MXNet computed all" in told
