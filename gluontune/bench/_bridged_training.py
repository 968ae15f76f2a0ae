"""A training step of a Gluon net on PyTorch's engine: work of ``gluontune bench training``.

MXNet exports the net and its loss in a process of its own (``python -m gluontune.bench._bridged_training NET SIDE
OUT``); the process that is measured reads them, and steps as ``backend="torch"`` does.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.interpreter import python
from gluontune.runtime.endings import how_it_ended

__all__ = ["make"]


def make(
    net: str, batch_size: int, image_size: int, threads: int, dtype: str = "float32", compiled: bool = False
) -> BridgedStep:
    """A step of ``net`` on one synthetic batch, in channels-last memory order.

    Args:
        net: a name of ``gluontune.bench.training.NETS``.
        threads: of torch's operators.
        dtype: ``float32``, or ``bfloat16`` by ``torch.autocast``.
        compiled: through ``torch.compile``.
    """
    from gluontune.runtime import pytorch

    torch = pytorch.torch()
    torch.set_num_threads(threads)
    return BridgedStep(torch, net, batch_size, image_size, dtype, compiled)


class BridgedStep:
    """Forward, cross entropy, backward, and the update by Nesterov's momentum."""

    def __init__(self, torch: Any, net: str, batch_size: int, side: int, dtype: str, compiled: bool):
        from gluontune import bridge
        from gluontune.bridge.passes import quicken
        from gluontune.optim.torch_optimizer import TorchOptimizer

        torch.manual_seed(0)
        self.torch, self.half, self.batch_size = torch, dtype == "bfloat16", batch_size
        symbols, arrays = _exported(net, side)
        module = bridge.to_torch(symbols["net"], arrays).to(memory_format=torch.channels_last)
        quicken(module)
        self.loss = bridge.to_torch(symbols["loss"], {})
        x = torch.randn(batch_size, 3, side, side)
        self.x = x.contiguous(memory_format=torch.channels_last)
        self.y = torch.randint(0, 10, (batch_size,)).float()
        self.model = torch.compile(module) if compiled else module
        there = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.trained = list(there.values())
        self.update = TorchOptimizer("nag", there, lambda n: 0.01, momentum=0.9, wd=5e-4)
        self.step()  # compiles
        self.info: dict[str, Any] = {
            "versions": {"torch": torch.__version__},
            "parameter_shapes": [list(there[name].shape) for name in arrays if name in there],
        }

    def step(self) -> int:
        """One whole step; returns its images."""
        for parameter in self.trained:
            parameter.grad = None
        cast = self.torch.autocast("cpu", self.torch.bfloat16) if self.half else contextlib.nullcontext()
        with cast:
            scores = self.model(self.x)
        self.value = self.loss(scores.float(), self.y).sum() / self.batch_size
        self.value.backward()
        self.update.step()
        return self.batch_size

    def last_loss(self) -> float:
        """Mean loss of the last step."""
        return float(self.value.detach())


def _exported(net: str, side: int) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The symbols of net and loss, and the seeded parameters in the order of Gluon's."""
    with tempfile.TemporaryDirectory(prefix="gluontune-export-") as folder:
        command = python("-m", "gluontune.bench._bridged_training", net, str(side), folder)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise GluontuneError(how_it_ended(f"the export of {net} from MXNet", done.returncode, done.stderr))
        symbols = json.loads((Path(folder) / "symbols.json").read_text(encoding="utf-8"))
        with np.load(Path(folder) / "arrays.npz") as arrays:
            return symbols, dict(arrays)


def _export(name: str, side: int, folder: Path) -> None:
    from gluontune.bench._mxnet_training import build
    from gluontune.runtime import mxnet

    mx = mxnet()
    mx.random.seed(0)
    net = build(name)
    net.initialize(mx.init.Xavier(magnitude=2))
    net(mx.nd.zeros((1, 3, side, side)))
    net.hybridize()
    scores = net(mx.sym.var("data"))
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(mx.sym.var("output"), mx.sym.var("label"))
    symbols = {"net": scores.tojson(), "loss": loss.tojson()}
    (folder / "symbols.json").write_text(json.dumps(symbols), encoding="utf-8")
    mx.nd.waitall()  # or a convolution's weight may be read while oneDNN orders it anew
    np.savez(folder / "arrays.npz", **{n: p.data().asnumpy() for n, p in net.collect_params().items()})


if __name__ == "__main__":
    _export(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
