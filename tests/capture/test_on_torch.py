"""Unchanged programs whose arithmetic goes over to PyTorch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest
from small_scripts import (
    BATCHES,
    CALLED,
    CRITICS,
    FIXED_GAMMA,
    FOLLOWED,
    HELD_OUT,
    NUMPY_UPDATES,
    ODD,
    PLAIN,
    PREDICTED,
    RESIDENT,
    SCRIPTS,
    TYPED,
    WHOLE,
    called_script,
    followed_script,
    odd_script,
    plain_script,
    predicted_script,
    resident_script,
    script,
)
from warm_python import warm

pytestmark = [pytest.mark.mxnet, pytest.mark.process]


def run(folder, text, *leave, device="cpu"):
    """What ``gluontune run --backend torch`` prints, its document, and its lines on stderr; a fork of a warm Python."""
    (folder / "train.py").write_text(text)
    options = {"began": time.time(), "settings": [], "out": str(folder / "out.json"), "leave": leave}
    more = {"dtype": "float32", "backend": "torch", "device": device}
    words = ["-m", "gluontune.capture.running", json.dumps({**options, **more}), "train.py"]
    return shown(warm("cv2", "torch").run(folder, *words), folder)


def command(folder, text):
    """The same by the command, in a process of its own."""
    (folder / "train.py").write_text(text)
    words = [sys.executable, "-m", "gluontune", "run", "--out", "out.json", "--backend", "torch", "train.py"]
    return shown(subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300), folder)


def shown(done, folder):
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text()), done.stderr


def as_it_is(folder, *texts):
    """What programs print under MXNet, one after the other in one process."""
    (folder / "plain.py").write_text(f"for text in {texts!r}: exec(text, {{}}); print('---')")
    done = warm("mxnet").run(folder, "plain.py")
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("---\n")[:-1]
    return printed[0] if len(texts) == 1 else printed


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """What the odd programs print under MXNet, by their names."""
    return dict(zip(ODD, as_it_is(tmp_path_factory.mktemp("odd"), *map(odd_script, ODD))))


def numbers(text):
    return [float(word) for word in text.split()]


QUICK = ("normalized", "adversaries", "compiled")  # the others are captured in test_capture.py, too


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS]
)
def test_a_program_prints_on_pytorch_what_it_prints_on_mxnet(name, tmp_path):
    printed, found, _ = run(tmp_path, script(name))
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, script(name))), rel=2e-3, abs=2e-3)
    assert found["why_not"] == ""
    assert found["steps_on_torch"] == found["steps"] - 2 > 2
    assert found["gaps"]["losses"] < 1e-5
    assert 0 < found["seconds_computing"] < found["seconds"]


#: A second device that each PyTorch has; as with a GPU, no operator takes its tensors with the CPU's.
SECOND = "import torch._lazy.ts_backend as second; second.init()\n"
COUNTED = """
import torch._lazy.metrics as metrics
print(int(any("::mm" in name or "::addmm" in name for name in metrics.counter_names())))
"""


@pytest.mark.parametrize("name", ["by hand", pytest.param("gathered", marks=pytest.mark.slow), "compiled"])
def test_another_device_computes_as_the_cpu_does(name, tmp_path):
    printed, found, _ = run(tmp_path, SECOND + script(name) + COUNTED, device="lazy")
    assert numbers(printed) == pytest.approx([*numbers(as_it_is(tmp_path, script(name))), 1], rel=2e-3, abs=2e-3)
    assert found["device"] == "lazy:0" and found["why_not"] == ""
    assert found["steps_on_torch"] == found["steps"] - 2


def test_values_come_back_from_another_device_where_mxnet_takes_over(odd, tmp_path):
    name = "a part that is written to"
    printed, found, _ = run(tmp_path, SECOND + odd_script(name), device="lazy")
    assert numbers(printed) == pytest.approx(numbers(odd[name]), rel=1e-3, abs=1e-4)
    assert LEFT[name] in found["why_not"] and found["steps_on_torch"] >= 4


def test_on_a_gpu_of_pytorch_the_first_gpu_of_a_script_is_mxnets_cpu(tmp_path):
    tried = """
try:
    nd.zeros(1, ctx=mx.gpu(1))
except mx.MXNetError:
    print(7)
w, b ="""
    on_gpu = script("by hand").replace("nd.zeros(4)", "nd.zeros(4, ctx=mx.gpu())").replace("w, b =", tried, 1)
    assert "gpu()" in on_gpu and "gpu(1)" in on_gpu
    printed, found, _ = run(tmp_path, SECOND + on_gpu, device="lazy")
    assert numbers(printed) == pytest.approx([7, *numbers(as_it_is(tmp_path, script("by hand")))], rel=2e-3, abs=2e-3)
    assert found["steps_on_torch"] == found["steps"] - 2


def test_a_device_that_is_not_here_is_refused_before_the_script_starts(tmp_path):
    (tmp_path / "train.py").write_text("print('here')")
    for more, told in [
        (["--device", "cuda:7", "--backend", "torch"], "device 'cuda:7': "),
        (["--device", "cpu"], "--device goes with --backend torch"),
    ]:
        words = [sys.executable, "-m", "gluontune", "run", *more, "train.py"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2 and done.stdout == "" and told in done.stderr


QUICK_ODD = ("a view that is written to", "a part that is written to", "a function of its own")
LEFT = {  # where MXNet takes over, in the second epoch
    "a part that is written to": "a part of an array is written to",
    "values from the host, twice": "a part of an array is written to",
    "a function of its own": "autograd.Function Double cannot",
    "autograd.grad": "autograd.grad cannot",
    "a store": "KVStore.init cannot",
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK_ODD else pytest.param(name, marks=pytest.mark.slow) for name in ODD]
)
def test_what_no_step_did_before_changes_nothing(name, odd, tmp_path):
    printed, found, told = run(tmp_path, odd_script(name))
    assert numbers(printed) == pytest.approx(numbers(odd[name]), rel=1e-3, abs=1e-4)
    assert found["steps_on_torch"] >= 4
    assert LEFT.get(name, "") in found["why_not"]
    assert bool(found["why_not"]) == (name in LEFT) == ("then MXNet the rest: train.py:" in told)


def run_together(folder, names, text_of):
    """What programs that run one after the other in a process print, by PyTorch and by MXNet, and the document."""
    texts = [text_of(name) for name in names]
    (folder / "after").mkdir()
    script = f"for text in {texts}:\n    exec(text, {{}})\n    print('---')\n"
    printed, found, _ = run(folder, script)
    known = as_it_is(folder / "after", *texts)
    assert found["why_not"] == ""
    for name, mine, theirs in zip(names, printed.split("---\n"), [known] if len(texts) == 1 else known):
        assert numbers(mine) == pytest.approx(numbers(theirs), rel=2e-3, abs=2e-3), name
    return found


QUICK_FOLLOWED = ("another operator in mid-step", "a value that is read at times", "a view that outlives its step")


@pytest.mark.parametrize("name", PLAIN)
def test_what_users_do_is_computed_as_by_mxnet(name, tmp_path):
    printed, found, _ = run(tmp_path, plain_script(name))
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, plain_script(name))), rel=1e-3, abs=1e-4)
    assert found["why_not"] == "" and found["steps_on_torch"] == found["steps"] - 2


def test_a_gradient_passes_through_what_was_recorded_some_updates_before(tmp_path):
    text = CRITICS.replace("OFTEN", "5")
    printed, found, _ = run(tmp_path, text)
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, text)), rel=1e-4)
    assert found["why_not"] == "" and found["steps_on_torch"] >= 2  # of five updates each


def test_a_gradient_that_is_lost_is_no_silent_one(tmp_path):
    (tmp_path / "train.py").write_text(CRITICS.replace("OFTEN", "9"))
    words = [sys.executable, "-m", "gluontune", "run", "--backend", "torch", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout == ""
    assert "LostGradient: train.py:" in done.stderr and "run this program without --backend torch" in done.stderr


def test_ones_are_written_into_a_fixed_gamma(tmp_path):
    printed, found, _ = run(tmp_path, FIXED_GAMMA)
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, FIXED_GAMMA)), rel=1e-4)
    assert found["why_not"] == "" and found["steps_on_torch"] == 16


def test_samples_that_are_parts_of_one_array_keep_their_values(tmp_path):
    printed, found, told = run(tmp_path, HELD_OUT, "samples")
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, HELD_OUT)), rel=1e-5)
    assert found["why_not"] == "" and found["steps_on_torch"] == 25
    assert "legacy_json" not in told  # MXNet's words on symbols of other versions


def test_batches_that_go_straight_to_pytorch_are_arrays_like_others(tmp_path):
    printed, found, _ = run(tmp_path, BATCHES)
    mine, theirs = (re.split(r"[^-+.e\d]+", text) for text in (printed, as_it_is(tmp_path, BATCHES)))
    assert len(mine) > 150 and len(mine) == len(theirs)
    for one, other in zip(mine, theirs):
        assert one == other or float(one) == pytest.approx(float(other), rel=1e-4)
    assert found["why_not"] == "" and found["steps_on_torch"] == 18
    assert found["kept_batches"] == 5 * 3 + 2 + 2  # the loaders of later epochs have the rows of the first


@pytest.mark.parametrize(
    "names", [QUICK_FOLLOWED, pytest.param([n for n in FOLLOWED if n not in QUICK_FOLLOWED], marks=pytest.mark.slow)]
)
def test_steps_that_come_again_are_followed_as_long_as_they_are_the_same(names, tmp_path):
    found = run_together(tmp_path, names, followed_script)
    assert found["steps_followed"] >= sum(FOLLOWED[name][-1] for name in names)
    assert found["kept_batches"] > 0  # of the loader


LENGTHS = """
import mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
draw = np.random.RandomState(3)
net = gluon.nn.Sequential(); net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(4)); net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
total, cross = 0.0, gluon.loss.SoftmaxCELoss()
for size in [8] * 8 + [6, 5, 7, 4] * 2 + [6]:
    x, y = nd.array(draw.rand(size, 6)), nd.array(draw.randint(4, size=size))
    with autograd.record():
        loss = cross(net(x), y)
    loss.backward()
    trainer.step(size)
    total += loss.sum().asscalar()
print(total)
"""


def test_a_step_of_another_length_is_followed_when_it_comes_again(tmp_path):
    printed, found, _ = run(tmp_path, LENGTHS)
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, LENGTHS)), rel=1e-4)
    assert found["why_not"] == "" and found["structures"] == 6
    assert found["steps_followed"] >= 5  # two of those that come often, and the second of each other


ALL_NEW = LENGTHS.replace("[8] * 8 + [6, 5, 7, 4] * 2 + [6]", "[*range(1, 16), *range(1, 16)]")


def test_steps_that_never_come_again_are_no_longer_remembered(tmp_path):
    """Of the fifteen lengths those that come before the patience is over are known when they come again."""
    few = "import gluontune.capture.learning as learning\nlearning._FRUITLESS = 200, 100\n"
    followed = []
    for text in (ALL_NEW, few + ALL_NEW):
        printed, found, _ = run(tmp_path, text)
        assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, ALL_NEW)), rel=1e-4)
        assert found["why_not"] == "" and found["steps_on_torch"] == 27
        followed.append(found["structures"])
    assert followed[0] >= 10 and followed[1] == 0


QUICK_CALLED = ("blocks that do the same", "a forward that counts its calls", "an attribute that is set",
                "views in a call")  # fmt: skip


@pytest.mark.parametrize(
    "names", [QUICK_CALLED, pytest.param([n for n in CALLED if n not in QUICK_CALLED], marks=pytest.mark.slow)]
)
def test_calls_of_blocks_are_answered_where_their_python_does_nothing_else(names, tmp_path):
    found = run_together(tmp_path, names, called_script)
    assert found["calls_answered"] >= sum(CALLED[name][-1] for name in names)


@pytest.mark.parametrize("names", [list(PREDICTED)])
def test_predictions_are_followed_as_steps_of_their_own(names, tmp_path):
    found = run_together(tmp_path, names, predicted_script)
    assert found["steps_followed"] >= sum(PREDICTED[name][-1] for name in names)


LOADED = "of weights that are loaded"
QUICK_RESIDENT = ("rows of a part", "in the step", "at times", "that are kept", "that arrive with their array")


@pytest.mark.parametrize(
    "names",
    [
        QUICK_RESIDENT,
        [LOADED],
        pytest.param([n for n in RESIDENT if n not in (*QUICK_RESIDENT, LOADED)], marks=pytest.mark.slow),
    ],
)
def test_steps_on_other_parts_of_an_array_are_followed(names, tmp_path):
    found = run_together(tmp_path, names, resident_script)
    assert found["steps_followed"] >= sum(RESIDENT[name][-1] for name in names)


LONGER = LENGTHS.replace("[8] * 8 + [6, 5, 7, 4] * 2 + [6]", "[8] * 30 + [6, 5, 7] * 3")


def test_a_step_of_another_length_is_computed_by_code_at_once(tmp_path):
    """Its way is known from the others: it is not computed twice to be compared."""
    text = "from gluontune.capture.straight import Part\nbefore, counted = Part._compare, []\n"
    text += "Part._compare = lambda *given: (counted.append(1), before(*given))[1]\n"
    printed, found, _ = run(tmp_path, text + LONGER + "print(len(counted))")
    assert numbers(printed)[:-1] == pytest.approx(numbers(as_it_is(tmp_path, LONGER)), rel=1e-4)
    assert found["why_not"] == "" and found["steps_followed"] >= 26
    assert 0 < numbers(printed)[-1] <= 4  # parts of the first length


def test_updates_of_numpy_arrays_are_answered(tmp_path):
    printed, found, _ = command(tmp_path, NUMPY_UPDATES)
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, NUMPY_UPDATES)), rel=1e-3, abs=1e-3)
    assert found["why_not"] == ""
    assert found["calls_answered"] >= 30


def test_whole_numbers_have_mxnets_types_and_values(tmp_path):
    printed, found, _ = run(tmp_path, f"WHOLE = {WHOLE}{TYPED}")
    assert printed == "[]\n"
    assert found["why_not"] == ""


FAILS = """
def fails(x):
    import sys
    bridge = sys.modules.get("gluontune.convert.bridge.registry")
    if bridge:
        bridge.OPERATORS._entries["sin"] = bridge.Operator("sin", lambda x: x.nothing())
    return x.sin() * 0 + x
net = nn.HybridSequential()"""


@pytest.mark.parametrize("before", ["            loss = cross(out, y)", "        trainer.step(len(x))"])
def test_mxnet_takes_a_step_over_where_pytorch_fails(before, tmp_path):
    indent = before[: len(before) - len(before.lstrip())]
    text = script("normalized").replace(before, f"{indent}if epoch: out = fails(out)\n{before}")
    text = text.replace("net = nn.HybridSequential()", FAILS)
    printed, found, _ = run(tmp_path, text)
    assert numbers(printed) == pytest.approx(numbers(as_it_is(tmp_path, text)), rel=2e-3, abs=2e-3)
    assert 4 <= found["steps_on_torch"] < found["steps"]
    assert "nothing" in found["why_not"]


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
    printed, found, told = command(tmp_path, text)
    assert len(numbers(printed)) == 4
    assert found["steps_on_torch"] == 0
    assert "Custom (train.py:" in found["why_not"]
    assert "MXNet computed all" in told


def test_a_script_starts_without_the_command_line(tmp_path):
    (tmp_path / "train.py").write_text("print('here')")
    words = [sys.executable, "-X", "importtime", "-m", "gluontune", "run", "--backend", "torch", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout == "here\n"
    assert "MXNet computed all" in done.stderr
    assert "gluontune.capture.script" in done.stderr
    assert "typer" not in done.stderr
