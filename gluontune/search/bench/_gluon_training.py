"""Work of ``gluontune bench training`` and ``bench gpu``: a step by MXNet, by PyTorch's engine, of a whole session."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import how_it_ended
from gluontune.engines import ENGINES
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve


class MxnetStep:
    """A step of ``net`` on one synthetic batch: forward, cross entropy, backward, update by Nesterov's momentum.

    ``dtype``: ``float32``, or ``bfloat16`` by AMP. ``trainer``: ``mxnet``, Gluon's with its nag, or ``gluontune``, that
    of ``gt.optim.setup``.
    """

    def __init__(
        self, net: str, batch_size: int, image_size: int, dtype: str = "float32", mode: str = "imperative",
        rewrites: Sequence[str] = (), trainer: str = "mxnet",
    ):  # fmt: skip
        from gluontune import compute, optim
        from gluontune.runtime import mxnet

        mx = self.mx = mxnet()
        compute.start_process(dtype, "cpu")
        mx.random.seed(0)
        self.batch_size = batch_size
        self.x = mx.nd.random.normal(shape=(batch_size, 3, image_size, image_size))
        self.y = mx.nd.random.randint(0, 10, shape=(batch_size,)).astype("float32")
        self.net = build(net)
        self.net.initialize(mx.init.Xavier(magnitude=2))
        self.net(self.x)
        applied = compute.apply_rewrites(self.net, tuple(rewrites), self.x)
        compute.set_mode(self.net, mode)
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        parameters = self.net.collect_params()
        options: dict[str, Any] = {"learning_rate": 0.01, "momentum": 0.9, "wd": 5e-4}
        if trainer == "gluontune":
            self.trainer: Any = optim.setup("nag", self.net, batch_size=batch_size, lr_scaling="none", **options)
        else:
            self.trainer = mx.gluon.Trainer(parameters, "nag", options)
        self.step()  # compiles
        self.sync()
        trained = [p for p in parameters.values() if p.grad_req != "null"]
        self.info: dict[str, Any] = {
            "versions": {"mxnet": mx.__version__},
            "parameter_shapes": [list(p.shape) for p in trained],
            "changes": len(applied),
        }

    def step(self) -> int:
        with self.mx.autograd.record():
            self.value = self.loss(self.net(self.x), self.y)
        self.value.backward()
        self.trainer.step(self.batch_size)
        return self.batch_size

    def sync(self) -> None:
        self.mx.nd.waitall()

    def last_loss(self) -> float:
        return float(self.value.astype("float32").mean().asscalar())


def build(name: str) -> Any:
    """A new network by its name in ``gluontune.search.bench.training.NETS``, with 10 classes."""
    from gluontune.job.job import build_net
    from gluontune.runtime import mxnet

    if name != "small_vgg":
        return build_net(name, 10)
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    for width in (64, 128, 256):
        for _ in range(2):
            net.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    net.add(nn.Flatten(), nn.Dense(256, activation="relu"), nn.Dense(10))
    return net


class BridgedStep:
    """The same step on PyTorch's engine, in channels-last memory order.

    MXNet exports the net and its loss in another process (``python -m`` this module ``NET SIDE OUT``); the measured
    process reads them and steps as ``backend="torch"`` does.
    """

    def __init__(
        self, net: str, batch_size: int, image_size: int, threads: int, dtype: str = "float32", compiled: bool = False
    ):
        from gluontune import bridge
        from gluontune.convert.bridge.names import quicken
        from gluontune.optim.torch_rules import TorchOptimizer
        from gluontune.runtime import pytorch

        torch, side = pytorch.torch(), image_size
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.torch, self.half, self.batch_size = torch, dtype == "bfloat16", batch_size
        symbols, arrays = _exported(net, side)
        module = bridge.to_torch(symbols["net"], arrays).to(memory_format=torch.channels_last)
        quicken(module)
        self.loss = bridge.to_torch(symbols["loss"], {}, inputs=["output", "label"])
        self.x = torch.randn(batch_size, 3, side, side).contiguous(memory_format=torch.channels_last)
        self.y = torch.randint(0, 10, (batch_size,)).float()
        self.model = torch.compile(module) if compiled else module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.trained = list(trained.values())
        self.update = TorchOptimizer("nag", trained, lambda n: 0.01, momentum=0.9, wd=5e-4)
        self.step()  # compiles
        self.info: dict[str, Any] = {
            "versions": {"torch": torch.__version__},
            "parameter_shapes": [list(trained[name].shape) for name in arrays if name in trained],
        }

    def step(self) -> int:
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
        return float(self.value.detach())


def _exported(net: str, side: int) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The symbols of net and loss, and the seeded parameters in the order of Gluon's."""
    with tempfile.TemporaryDirectory(prefix="gluontune-export-") as folder:
        command = python("-m", "gluontune.search.bench._gluon_training", net, str(side), folder)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise GluontuneError(how_it_ended(f"the export of {net} from MXNet", done.returncode, done.stderr))
        symbols = json.loads((Path(folder) / "symbols.json").read_text(encoding="utf-8"))
        with np.load(Path(folder) / "arrays.npz") as arrays:
            return symbols, dict(arrays)


def _export(name: str, side: int, folder: Path) -> None:
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
    mx.nd.waitall()  # else a convolution's weight may be read while oneDNN reorders it
    np.savez(folder / "arrays.npz", **{n: p.data().asnumpy() for n, p in net.collect_params().items()})


if __name__ == "__main__":
    _export(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))


class EngineWork:
    """A session of the recipe's engine, with ``torch.compile`` left out if it is pretended.

    ``part``: ``step``: on one batch again and again; ``loader``: batches on the device, no step; ``both``: as in
    training.
    """

    def __init__(self, recipe: Mapping[str, Any], part: str = "step", pretend: bool = False):
        made = Recipe.from_dict(recipe)
        self.part = part
        if pretend and made.backend == "torch":
            from gluontune.runtime import pytorch

            library: Any = pytorch.torch()
            library.compile = lambda net, **how: net
        self.session = resolve(ENGINES[made.backend].session)(made)
        self.session.build()
        self.session.phases.enable(False)
        self.batch = self.session.progress.next_batch()
        self.step()
        self.sync()
        self.info: dict[str, Any] = {"versions": self.session.versions(), "notes": list(self.session.news)}

    def step(self) -> int:
        session = self.session
        session._losses.clear()
        if self.part == "both":
            return int(session.step())
        if self.part == "loader":
            return len(session.progress.next_batch()[0])
        with session.phases.step() as phase:
            return int(session.train(self.batch, phase))

    def sync(self) -> None:
        self.session.phases.wait()

    def remarks(self) -> list[str]:
        """Of the session: memory, skipped steps."""
        return list(self.session.remarks())

    def close(self) -> None:
        self.session.close()


class Sight:
    """The GPUs that PyTorch sees, and the cards that it has code for, in ``info``."""

    def __init__(self) -> None:
        from gluontune.runtime import pytorch

        torch = pytorch.torch()
        cards = [torch.cuda.get_device_capability(place) for place in range(torch.cuda.device_count())]
        self.info = {
            "versions": {"torch": torch.__version__},
            "built_for": torch.version.cuda, "code": torch.cuda.get_arch_list(), "capabilities": cards,
        }  # fmt: skip

    def step(self) -> int:
        return 1


@contextlib.contextmanager
def beside_smi() -> Iterator[list[float | None]]:
    """A list that gets what nvidia-smi shows of the work within, as of :func:`smi_means`."""
    seen: list[float | None] = []
    query = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "500"]
    with tempfile.TemporaryFile("w+") as log:
        found = shutil.which("nvidia-smi")
        smi = subprocess.Popen([found, *query], stdout=log, stderr=subprocess.DEVNULL) if found else None
        try:
            yield seen
        finally:
            if smi is not None:
                smi.terminate()
                smi.wait()
        log.seek(0)
        seen += smi_means(log.read())


def smi_means(log: str) -> tuple[float | None, float | None]:
    """Mean percent and most MiB of the first columns of what nvidia-smi printed; None where it printed N/A.

    >>> smi_means("90, 800\\n[N/A], 1200\\n100, 1000\\n"), smi_means("")
    ((95.0, 1200.0), (None, None))
    """
    columns: list[list[float]] = [[], []]
    for line in log.splitlines():
        for values, cell in zip(columns, line.split(",")):
            if re.fullmatch(r"\s*\d+(\.\d+)?\s*", cell):
                values.append(float(cell))
    return (statistics.mean(columns[0]) if columns[0] else None, max(columns[1], default=None))


def airbench_runs(lines: Iterator[bytes]) -> Iterator[dict[str, float]]:
    """``{"seconds", "accuracy", "flipped"}`` of each run, from the table that airbench94 prints.

    >>> table = [b"|  run  |  epoch  |  val_acc  |  tta_val_acc  |  time_seconds  |",
    ...          b"|     1 |       7 |    0.9301 |               |         3.1000 |",
    ...          b"|     1 |    eval |    0.9340 |        0.9405 |         3.4000 |"]
    >>> list(airbench_runs(iter(table)))
    [{'seconds': 3.4, 'accuracy': 0.934, 'flipped': 0.9405}]
    """
    head: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.decode(errors="replace").strip().strip("|").split("|")]
        if "tta_val_acc" in cells:
            head = cells
        elif head and len(cells) == len(head) and "eval" in cells:
            seen = dict(zip(head, cells))
            seconds = next(value for name, value in seen.items() if name.endswith("time_seconds"))
            yield {"seconds": float(seconds), "accuracy": float(seen["val_acc"]), "flipped": float(seen["tta_val_acc"])}
