"""check_hybridizable names the block, the line and the reason, and leaves the net as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gluontune.compute import check_hybridizable, set_mode
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


class Faulty(mx.gluon.HybridBlock):
    """A layer with one fault, chosen by name."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.calls = fault, 0

    def hybrid_forward(self, F, x):
        return getattr(self, self.fault)(F, x)

    def branch(self, F, x):
        return x if x.sum() > 0 else -x

    def shape(self, F, x):
        return F.reshape(x, shape=(x.shape[0], -1))

    def asnumpy(self, F, x):
        return x * float(x.asnumpy().max())

    def in_place(self, F, x):
        x[:] = 0
        return x

    def add_in_place(self, F, x):
        x += 1
        return x

    def plain_nd(self, F, x):
        return mx.nd.relu(x)

    def frozen(self, F, x):
        self.calls += 1
        return x * self.calls

    def batch_baked(self, F, x):
        if F is mx.nd:
            self.size = x.shape[0]
        return F.reshape(x, shape=(self.size, -1)) * 2.0

    def numpy_draw(self, F, x):
        return x * float(np.random.uniform(1, 2))


def net_with(fault):
    net = nn.HybridSequential()
    inner = nn.HybridSequential()
    inner.add(nn.Dense(6, activation="relu"), Faulty(fault))
    net.add(nn.Dense(5), inner, nn.Dense(2))
    net.initialize()
    return net


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("branch", "control flow depends on the data"),
        ("shape", "asks a Symbol for what only an NDArray has"),
        ("asnumpy", "takes a value out of the network"),
        ("in_place", "in place"),
        ("add_in_place", "in place"),
        ("plain_nd", "calls mx.nd"),
    ],
)
def test_a_fault_that_stops_tracing_is_named_with_path_line_and_cure(fault, reason):
    check = check_hybridizable(net_with(fault), mx.nd.random.uniform(shape=(4, 3)))
    assert not check.ok
    (finding,) = check.findings
    assert (finding.path, finding.block) == ("1.1", "Faulty")
    assert reason in finding.reason and finding.cure
    file, _, line = finding.where.rpartition(":")
    assert file == __file__
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert f"def {fault}(" in "".join(source[int(line) - 3 : int(line)])  # a line of the faulty method


@pytest.mark.parametrize("fault", ["frozen", "numpy_draw"])
def test_python_state_that_compiling_freezes_is_found_in_its_block(fault):
    check = check_hybridizable(net_with(fault), mx.nd.random.uniform(shape=(4, 3)))
    (finding,) = check.findings
    assert (finding.severity, finding.path) == ("error", "1.1") and "frozen" in finding.reason


def test_a_changed_result_is_located_in_the_deepest_block():
    class Once(mx.gluon.HybridBlock):
        """Doubles in NDArray mode only."""

        def hybrid_forward(self, F, x):
            return x * 2 if F is mx.nd else x

    net = nn.HybridSequential()
    inner = nn.HybridSequential()
    inner.add(nn.Dense(4), Once())
    net.add(inner, nn.Dense(2))
    net.initialize()
    check = check_hybridizable(net, mx.nd.random.uniform(shape=(4, 3)))
    (finding,) = check.findings
    assert (finding.path, finding.block) == ("0.1", "Once") and "computes something else" in finding.reason
    assert check.output_error > 1e-3


def test_a_graph_that_fits_one_batch_size_only_is_found():
    check = check_hybridizable(net_with("batch_baked"), mx.nd.random.uniform(shape=(4, 3)))
    assert [f.reason for f in check.findings] == ["compiled for a batch of 4, it fails or errs on a batch of 2"]


def test_random_numbers_are_compared_in_prediction_mode():
    class Drops(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Dropout(x, p=0.5)

    net = nn.HybridSequential()
    net.add(nn.Dense(8), Drops(), nn.Dense(2))
    net.initialize()
    check = check_hybridizable(net, mx.nd.random.uniform(shape=(4, 3)))
    assert check.ok and any("prediction mode" in note for note in check.notes)

    class Noise(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x + F.random.uniform(shape=(4, 3))

    drawn = check_hybridizable(Noise(), mx.nd.ones((4, 3)))
    assert drawn.ok and any("cannot be compared" in note for note in drawn.notes)


def test_plain_blocks_and_hooks_are_warnings():
    net = nn.Sequential()
    child = nn.HybridSequential()
    child.add(nn.Dense(3))
    net.add(child)
    net.initialize()
    child[0].register_forward_hook(lambda *_: None)
    check = check_hybridizable(net, mx.nd.ones((2, 3)))
    assert check.ok
    assert [(f.severity, f.path) for f in check.findings] == [("warning", ""), ("warning", "0.0")]


def test_several_outputs_and_nested_inputs():
    class Two(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, states):
            return x + states[0], [states[1] * 2, states[0]]

    check = check_hybridizable(Two(), mx.nd.ones((2, 3)), [mx.nd.ones((2, 3)), mx.nd.ones((2, 3))])
    assert check.ok and check.output_error == 0.0


def test_the_net_is_as_it_was():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize()
    set_mode(net, "static")
    x = mx.nd.random.uniform(shape=(4, 3, 8, 8))
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    mx.nd.waitall()
    compiled = net._cached_op
    parameters = net.collect_params()
    before = {k: p.data().asnumpy() for k, p in parameters.items()}
    gradients = {k: p.grad().asnumpy() for k, p in parameters.items() if p.grad_req != "null"}
    assert check_hybridizable(net, x).ok
    assert net._active and net._cached_op is compiled and dict(net._flags)["static_shape"]
    for key, parameter in parameters.items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), before[key])
        if key in gradients:
            np.testing.assert_array_equal(parameter.grad().asnumpy(), gradients[key])
            assert parameter.data()._fresh_grad
    assert not any(block._forward_hooks for block in [net, *net])


def test_input_that_fails_imperatively_and_nets_without_parameters_are_usage_errors():
    net = nn.Dense(2, in_units=3)
    with pytest.raises(UsageError, match="never initialized"):
        check_hybridizable(net, mx.nd.ones((2, 3)))
    net.initialize()
    with pytest.raises(UsageError, match="before any hybridization"):
        check_hybridizable(net, mx.nd.ones((2, 4)))
    with pytest.raises(UsageError, match="sample input 0 is a ndarray"):
        check_hybridizable(net, np.ones((2, 3)))
    with pytest.raises(UsageError, match="sample batch"):
        check_hybridizable(net)
    with pytest.raises(UsageError, match="give a Gluon block"):
        check_hybridizable(object(), mx.nd.ones((2, 3)))


def test_a_net_with_dropout_is_compared_in_training_where_gradients_behind_max_pooling_are_right():
    """Recorded in prediction mode they are what the memory held, and the check blamed the dropout layer."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="relu"), nn.MaxPool2D(), nn.Dropout(0.5), nn.Dense(3))
    net.initialize()
    for _ in range(3):
        check = check_hybridizable(net, mx.nd.random.normal(shape=(16, 3, 20, 20)))
        assert check.ok and not check.findings and not check.notes
        assert check.gradient_error < 1e-4
    assert net[2]._rate == 0.5


def test_rounding_in_a_gradient_that_is_next_to_nothing_is_no_difference():
    """Of a weight before a BatchNorm, whose true gradient is 0, only rounding is left."""
    from gluontune.compute._passes import gradient_gap
    from gluontune.core.arrays import worst

    mine, theirs = [np.array([1.0]), np.array([1e-9])], [np.array([1.0]), np.array([2e-9])]
    assert gradient_gap(mine, theirs) < 1e-6 < worst(mine, theirs)
    assert gradient_gap(mine, [np.array([1.0]), np.array([1e-3])]) > 0.05
