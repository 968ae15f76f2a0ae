"""What ``migrate`` writes of strangers' nets: states, order and nesting of outputs, modes, loops, draws; refusals."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from warm_python import warm

import gluontune as gt
from gluontune.convert.migrate import project as written
from gluontune.core.errors import GluontuneError, UsageError

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch):
    """``check.py`` runs where PyTorch is imported already; the command's doctests start it as users' machines do."""
    monkeypatch.setattr(written, "run_check", lambda place: warm("torch").run(place, "check.py"))


def block(forward, **children):
    """A HybridBlock of a function of (self, F, …)."""
    mx = gt.runtime.mxnet()

    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            for name, child in children.items():
                setattr(self, name, child)

        def hybrid_forward(self, F, *arrays):
            return forward(self, F, *arrays)

    net = Net()
    net.initialize(mx.init.Xavier())
    return net


def given(sample):
    mx = gt.runtime.mxnet()
    return [given(item) for item in sample] if isinstance(sample, (list, tuple)) else mx.nd.array(sample)


def migrated(net, sample, folder):
    sample = sample if isinstance(sample, tuple) else (sample,)
    net(*given(sample))
    made = gt.bridge.migrate(net, folder / "out", sample)
    assert made.agrees, made.told
    return made, (folder / "out" / "model.py").read_text("utf-8")


def drawn(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def _unrolled(cell):
    def forward(self, F, x):
        out, states = self.cell.unroll(3, x, layout="NTC", merge_outputs=True)
        return [out, *states]

    return lambda: (block(forward, cell=cell()), drawn(2, 3, 5))


def _cells():
    rnn = gt.runtime.mxnet().gluon.rnn
    stack = rnn.HybridSequentialRNNCell()
    for cell in (rnn.LSTMCell(5), rnn.ResidualCell(rnn.GRUCell(5)), rnn.DropoutCell(0.3)):
        stack.add(cell)
    return stack


def _layers():
    return gt.runtime.mxnet().gluon.rnn


STATES = {
    "LSTMCell": _unrolled(lambda: _layers().LSTMCell(4)),
    "GRUCell": _unrolled(lambda: _layers().GRUCell(4)),
    "stacked": _unrolled(_cells),
    "fused LSTM with states": lambda: (_layers().LSTM(4), (drawn(3, 2, 5), [drawn(1, 2, 4), drawn(1, 2, 4)])),
    "fused GRU with states": lambda: (_layers().GRU(4), (drawn(3, 2, 5), drawn(1, 2, 4))),
    "fused LSTM, both ways": lambda: (_layers().LSTM(4, bidirectional=True), drawn(3, 2, 5)),
}


@pytest.mark.parametrize("name", STATES)
def test_recurrent_nets_with_states(name, tmp_path):
    net, sample = STATES[name]()
    if name.startswith("fused"):
        net.initialize()
    _, text = migrated(net, sample, tmp_path)
    if name == "LSTMCell":
        assert text.count("class LSTMCell") == 1 and text.count("def forward") == 2  # three calls are of one method


def test_outputs_keep_their_order_and_their_nesting(tmp_path):
    def forward(self, F, x):
        p, q = x * 2, F.exp(x)
        return [F.stack(p, p), q, [p, [self.inner(q)]]]

    inner = block(lambda self, F, x: F.tanh(x))
    net = block(forward, inner=inner)
    made, text = migrated(net, drawn(2, 3), tmp_path)
    returned = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Return)]
    forms = [len(r.elts) for r in returned if isinstance(r, ast.Tuple) and isinstance(r.elts[-1], ast.List)]
    assert forms == [3]
    assert "outputs again: 4 compared" in made.told


def test_what_a_block_gives_keeps_its_order(tmp_path):
    """The one who calls reads the second first; a later call leaves one unread."""

    def two(self, F, x):
        return F.sin(x), F.cos(x)

    def forward(self, F, x):
        a, b = self.inner(x)
        c, _ = self.inner(b * 2 + a)
        return F.concat(b, a, c, dim=1)

    _, text = migrated(block(forward, inner=block(two)), drawn(2, 3), tmp_path)
    assert text.count("torch.sin") == 1 and "forward2" not in text


def test_a_block_that_computes_otherwise_at_its_second_call_has_two_methods(tmp_path):
    def one_or_two(self, F, x, *more):
        return self.dense(x) + (more[0] if more else 0)

    dense = gt.runtime.mxnet().gluon.nn.Dense(3)

    def forward(self, F, x):
        return self.inner(self.inner(x), x)

    _, text = migrated(block(forward, inner=block(one_or_two, dense=dense)), drawn(2, 3), tmp_path)
    assert "def forward2(self" in text


def test_both_modes_of_a_net_that_asks_for_the_mode(tmp_path):
    mx = gt.runtime.mxnet()
    dense = mx.gluon.nn.Dense(3)

    def forward(self, F, x):
        return self.dense(x) if mx.autograd.is_training() else [-self.dense(x), x]

    _, text = migrated(block(forward, dense=dense), drawn(2, 4), tmp_path)
    assert "if self.training:" in text and text.count("nn.Linear(") == 1


def test_a_block_that_another_block_calls_is_written_in_place(tmp_path):
    nn = gt.runtime.mxnet().gluon.nn
    shared = nn.Dense(3, in_units=3)
    holder = [shared]  # not a child of the one who calls

    def borrow(self, F, x):
        return F.relu(holder[0](x))

    net = block(lambda self, F, x: self.own(self.other(x)), own=shared, other=block(borrow))
    migrated(net, drawn(2, 3), tmp_path)


@pytest.mark.parametrize("mode", ["instance", "channel", "spatial"])
def test_a_dictionarys_key_stays_a_key(mode, tmp_path):
    """All ArcFace nets normalize so: the long line was broken within the key, which became a tuple."""
    net = block(lambda self, F, x: F.L2Normalization(x, mode=mode))
    migrated(net, drawn(2, 3, 4, 4), tmp_path)


def test_text_that_is_broken_means_the_same():
    from gluontune.convert.migrate.text import same_meaning, tidied

    name = "a" * 60
    for line in (f"y = {{'k': {name}, 'l': {name}}}[mode]", f"z = ({name} + {name})", f"x[{name}{name}, {name}]",
                 f'"""{name} {name} (a)"""', f"y = ({name}) and ({name})", f"y = f'{{{name}}} {name}'"):  # fmt: skip
        assert same_meaning(tidied(line + "\n"), line + "\n"), line
    for line in (f"f({name}, 'é, (', *{name}, **{name})", f"t = ({name}, {name})", f"f(a for a, b in ({name}, {name}))",
                 f"return {name}, [{name}, ({name} + 1)]", f"x = {name} + g({name},)", f"x = {{'a': {name}, **{name}}}",
                 f"x = f(k={name}, l=[{name}, h({name}, x)])", f"return [{name}], ({name}, {name})"):  # fmt: skip
        broken = tidied(line + "\n")
        assert same_meaning(broken, line + "\n") and broken.count("\n") > 2, line


def test_an_input_that_is_none_may_stand_between_others(tmp_path):
    """As the states of gluon-nlp's encoders; the text had a default before an argument without one."""
    mx = gt.runtime.mxnet()

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, states=None, y=None, last=None):
            return F.tanh(x) * y

    net = Net()
    net.hybridize()
    x = drawn(2, 3)
    net(mx.nd.array(x), None, mx.nd.array(x))
    made = gt.bridge.migrate(net, tmp_path / "out", (x, None, x))
    assert made.agrees, made.told


def test_arrays_of_mxnets_are_taken_as_the_sample(tmp_path):
    mx = gt.runtime.mxnet()
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    net(mx.nd.ones((2, 4)))
    assert gt.bridge.migrate(net, tmp_path / "out", mx.nd.ones((2, 4))).agrees


def test_loops_are_modules_of_their_own(tmp_path):
    cell = gt.runtime.mxnet().gluon.rnn.LSTMCell(4, input_size=5)

    def forward(self, F, x, states):
        out, ends = F.contrib.foreach(self.cell, x, states)
        big = F.contrib.cond(F.sum(x) > 0, lambda: F.relu(x), lambda: x * 2)
        _, last = F.contrib.while_loop(
            lambda i, s: F.sum(i) < 3, lambda i, s: (s * 2, [i + 1, s + F.abs(x)]), [F.ones((1,)), x], max_iterations=5
        )
        return out, ends, big, last[1]

    sample = (drawn(3, 2, 5), [drawn(2, 4), drawn(2, 4)])
    _, text = migrated(block(forward, cell=cell), sample, tmp_path)
    assert "operators.Foreach(" in text and "operators.WhileLoop(" in text and "operators.Cond(" in text


def test_random_draws_are_left_out_of_the_comparison_and_drawn_in_training(tmp_path):
    dense = gt.runtime.mxnet().gluon.nn.Dense(4)

    def forward(self, F, x):
        mean, spread = F.split(self.dense(x), axis=1, num_outputs=2)
        draws = [F.random.uniform(1, 3, shape=(2,)), F.random.poisson(3, shape=(2,)), F.random.shuffle(x),
                 F.random.multinomial(F.softmax(x)), F.sample_normal(x, F.exp(x), shape=(2,))]  # fmt: skip
        return [mean + F.exp(spread) * F.random.normal(0, 1, shape=(3, 2)), *draws]

    net = block(forward, dense=dense)
    migrated(net, drawn(3, 8), tmp_path)
    module = gt.bridge.to_torch(net)
    x = torch.from_numpy(drawn(3, 8))
    assert not torch.equal(module(x)[0], module(x)[0])
    assert gt.bridge.check(net, module, x.numpy(), train=True, dtype="float64").gradient < 1e-10


DRAWS = {
    "_random_normal": {"loc": 1.0, "scale": 2.0}, "_random_uniform": {"low": 1.0, "high": 3.0},
    "_random_exponential": {"lam": 2.0}, "_random_gamma": {"alpha": 2.0, "beta": 3.0}, "_random_poisson": {"lam": 3.0},
    "_random_negative_binomial": {"k": 3, "p": 0.4}, "_random_randint": {"low": 0, "high": 5},
    "_random_generalized_negative_binomial": {"mu": 2.0, "alpha": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_of_mxnets_distribution(name):
    mx = gt.runtime.mxnet()
    mx.random.seed(5)
    torch.manual_seed(5)
    theirs = getattr(mx.nd._internal, name)(shape=(40000,), **DRAWS[name]).asnumpy()
    ours = gt.bridge.to_torch(getattr(mx.sym._internal, name)(shape=(40000,), **DRAWS[name]))().numpy()
    assert ours.dtype == theirs.dtype
    spread = theirs.std()
    assert abs(ours.mean() - theirs.mean()) < 0.05 * spread and abs(ours.std() / spread - 1) < 0.05


@pytest.mark.parametrize("decorated", [False, True])
def test_the_project_of_a_net_of_numpy_arrays(decorated, tmp_path):
    """A class under ``use_np`` has a copy of every method of its bases, in a wrapper."""
    mx = gt.runtime.mxnet()
    with mx.util.np_shape(True), mx.util.np_array(True):
        nn = mx.gluon.nn

        @(mx.util.use_np if decorated else lambda kind: kind)
        class Net(nn.HybridBlock):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(6)

            def hybrid_forward(self, F, x):
                y = F.npx.relu(self.dense(x))
                z = F.np.concatenate([y, F.np.cumsum(y, axis=1)], axis=1)
                return F.np.where(z > 0.5, z, F.np.zeros_like(z)), F.np.sum(z, axis=1).reshape(-1, 1)

        net = Net()
        net.initialize()
        net(mx.np.array(drawn(3, 4)))
        made = gt.bridge.migrate(net, tmp_path / "out", drawn(3, 4))
        assert made.agrees, made.told
        assert gt.runtime.mxnet().gluon.Block.__call__.__name__ == "__call__"
        assert ("__call__" in vars(Net)) is decorated


def test_recurrent_nets_of_numpy_arrays_begin_with_zeros_and_give_their_last_step(tmp_path):
    """MXNet itself cannot compile them: the begin state's batch is 0 there, and ``x[-1]`` ends at 0."""
    mx = gt.runtime.mxnet()
    with mx.util.np_shape(True), mx.util.np_array(True):

        class Net(mx.gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                self.encoder, self.out = mx.gluon.rnn.GRU(4), mx.gluon.nn.Dense(2)

            def hybrid_forward(self, F, x):
                steps = self.encoder(x)
                return self.out(steps[-1]), steps[:, -1]

        net, x = Net(), drawn(5, 3, 2)
        net.initialize()
        wanted = net(mx.np.array(x))
        found = gt.bridge.to_torch(net)(torch.from_numpy(x))
        for ours, theirs in zip(found, wanted):
            np.testing.assert_allclose(ours.detach().numpy(), theirs.asnumpy(), atol=1e-6)
        made = gt.bridge.migrate(net, tmp_path / "out", x)
        assert made.agrees, made.told


def test_quotients_of_whole_numbers_are_whole(tmp_path):
    """As those of a detector's places in its map, of which MXNet cuts the rest off."""

    def places(self, F, x):
        _, width = F.split(F.shape_array(x), num_outputs=2, axis=0)
        place = F.Cast(F.topk(F.flatten(x), k=7), "int64")
        row = F.Cast(F.broadcast_div(place, width - 2), "float32")
        return F.broadcast_mul(row, x), F.Cast(place / 2, "float32"), F.broadcast_div(x, x + 9)

    migrated(block(places), drawn(4, 7), tmp_path)


def test_the_sum_over_all_named_axes_has_one_dimension(tmp_path):
    """As it has in MXNet outside of ``mx.np``, where PyTorch's has none."""

    def sums(self, F, x):
        row = F.reshape(x, shape=(-1,))
        return F.sum(row, axis=0), F.mean(x, axis=(0, 1)), F.sum(x, axis=(-2, -1)), F.mean(x, axis=-1), F.sum(x, axis=1)

    _, text = migrated(block(sums), drawn(3, 4), tmp_path)
    assert "x.sum((1,))" in text, "an axis that is not the first leaves others"


def test_an_operator_that_only_names_the_library_imports_it(tmp_path):
    """``getattr(torch, dtype)``: operators.py had no import of torch."""
    net = block(lambda self, F, x: F.cast(x, "float64"))
    net.initialize()
    made = gt.bridge.migrate(net, tmp_path / "out", drawn(3, 2))
    assert made.agrees, made.told


def test_a_net_that_is_a_layer_and_what_follows_it(tmp_path):
    nn = gt.runtime.mxnet().gluon.nn

    class Turned(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(8, 5))

        def hybrid_forward(self, F, x, weight):
            return F.tanh(F.FullyConnected(x, weight, no_bias=True, num_hidden=8, flatten=False)).transpose()

    for number, net in enumerate((Turned(), nn.Dense(4, activation="relu", in_units=10))):
        net.initialize()
        made = gt.bridge.migrate(net, tmp_path / str(number), drawn(3, 2, 5))
        assert made.agrees, made.told


def test_a_check_that_fails_says_where(tmp_path):
    import subprocess
    import sys

    net = gt.runtime.mxnet().gluon.nn.Dense(3)
    net.initialize()
    migrated(net, drawn(2, 4), tmp_path)
    model = tmp_path / "out" / "model.py"
    text = model.read_text("utf-8")

    def told():
        ran = subprocess.run([sys.executable, "check.py"], cwd=model.parent, capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stdout.strip().endswith("does NOT agree")
        return ran.stdout

    weights = torch.load(model.with_name("weights.pt"), weights_only=True)
    torch.save({**weights, "bias": weights["bias"] + 1}, model.with_name("weights.pt"))
    assert "outputs 0: " in told() and "outputs in training again 0" in told()
    torch.save(weights, model.with_name("weights.pt"))
    wrapped = text + "\n\nplain = build\n\n\ndef build():\n    net = plain()\n    run = net.forward\n"
    model.write_text(wrapped + "    net.forward = lambda x: [run(x)]\n    return net\n", "utf-8")
    assert "returned in the form [0], MXNet's is 0" in told()


def test_a_check_that_does_not_run_says_why(tmp_path, monkeypatch):
    from gluontune.convert.migrate import project

    plain = project.written
    monkeypatch.setattr(
        project,
        "written",
        lambda *args: (lambda t, texts: (t, {**texts, "model.py": "import nothing_like_it\n"}))(*plain(*args)),
    )
    net = gt.runtime.mxnet().gluon.nn.Dense(3, in_units=4)
    net.initialize()
    made = gt.bridge.migrate(net, tmp_path / "out", drawn(2, 4))
    assert not made.agrees and "nothing_like_it" in made.told and "check.py" in made.told


def test_what_migrate_cannot_write_is_a_sentence(tmp_path):
    mx = gt.runtime.mxnet()

    class Op(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

    class Prop(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Op()

    mx.operator.register("doubled_by_python")(Prop)
    net = block(lambda self, F, x: F.Custom(x, op_type="doubled_by_python"))
    with pytest.raises(GluontuneError, match=r"CustomOp \(doubled_by_python\)"):
        gt.bridge.migrate(net, tmp_path / "custom", drawn(2, 3))
    symbol = mx.gluon.SymbolBlock(mx.sym.tanh(mx.sym.var("data")), mx.sym.var("data"))
    with pytest.raises(UsageError, match="lost its blocks"):
        gt.bridge.migrate(symbol, tmp_path / "symbol", drawn(2, 3))
    assert not (tmp_path / "custom").exists()
