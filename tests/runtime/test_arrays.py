"""Parameters are set in whatever layout a forward pass left them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gluontune as gt
from gluontune.compute import _passes, set_mode
from gluontune.compute._passes import preserved
from gluontune.convert.graph.params import set_parameters
from gluontune.runtime import mxnet, set_data

SHAPES = {
    "Conv1D": [(64, 64, 40), (8, 16, 10), (1, 3, 9)],
    "Conv2D": [(8, 16, 10, 10), (2, 3, 9, 9), (16, 64, 7, 7)],
    "Conv3D": [(2, 16, 6, 6, 6), (1, 3, 5, 5, 5)],
    "Conv1DTranspose": [(8, 16, 10), (1, 3, 9)],
    "Conv2DTranspose": [(8, 16, 10, 10), (1, 3, 9, 9)],
    "Conv3DTranspose": [(2, 16, 4, 4, 4)],
    "Dense": [(64, 128), (3, 7), (256, 1024)],
}


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static"])
@pytest.mark.parametrize("kind", SHAPES)
def test_parameters_are_set_after_a_pass_in_prediction_mode(kind, mode):
    """MXNet 1.9.1 cannot copy into a weight that a Conv1D has ordered for oneDNN: set_data and copyto then fail."""
    mx, drawn = mxnet(), np.random.default_rng(3)
    for shape in SHAPES[kind]:
        layer = getattr(mx.gluon.nn, kind)(32) if kind == "Dense" else getattr(mx.gluon.nn, kind)(32, 3)
        layer.initialize()
        set_mode(layer, mode)
        x = mx.nd.array(drawn.normal(size=shape))

        def used(layer=layer, x=x):
            layer(x), layer(x).wait_to_read()
            mx.nd.waitall()

        used()
        values = drawn.normal(size=layer.weight.shape).astype("float32")
        set_data(layer.weight, mx.nd.array(values))
        np.testing.assert_array_equal(layer.weight.data().asnumpy(), values)
        used()
        with preserved(layer):
            set_data(layer.weight, mx.nd.zeros(values.shape))
            used()
        np.testing.assert_array_equal(layer.weight.data().asnumpy(), values)
        used()
        set_parameters(layer, {"weight": 2 * values, "bias": np.ones(32)})
        assert np.isfinite(_passes.run(layer, (x,), True)[0][0]).all()
        np.testing.assert_array_equal(layer.weight.data().asnumpy(), 2 * values)


def test_nothing_in_the_package_sets_parameters_by_another_way():
    """A direct ``set_data`` or ``copyto`` fails on a Conv1D; the course's descent sets what never ran."""
    package = Path(gt.__file__).parent
    direct = re.compile(r"\.set_data\(|\.copyto\(array\)")
    found = [
        f"{path.relative_to(package)}:{number}"
        for path in package.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if direct.search(line) and path.name not in ("arrays.py", "descent.py")
    ]
    assert not found


JOB = '''
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

class Net(nn.HybridSequential):
    """Embedding, one-dimensional convolution and the greatest of each channel over time."""

    def hybrid_forward(self, F, x):
        x = F.transpose(self[0](x), (0, 2, 1))
        return self[3](self[2](self[1](x)))

def net():
    net = Net()
    net.add(nn.Embedding(50, 64), nn.Conv1D(32, 3), nn.GlobalMaxPool1D(), nn.Dense(2))
    return net

def data():
    words = np.random.default_rng(0).integers(0, 50, (256, 40)).astype("float32")
    labels = (words[:, 0] > 25).astype("float32")
    return tuple(gluon.data.ArrayDataset(words[part], labels[part]) for part in (slice(0, 192), slice(192, 256)))
'''


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static"])
def test_a_text_net_of_one_dimensional_convolutions_trains(tmp_path, reused, mode):
    (tmp_path / "job.py").write_text(JOB)
    recipe = gt.Recipe(job=str(tmp_path / "job.py"), batch_size_per_device=64, epochs=2, hybridize=mode)
    result = gt.train.run(recipe, site=reused.site)
    assert result.ok, result.error
