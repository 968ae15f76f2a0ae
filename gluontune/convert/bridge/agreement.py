"""Differences between a converted module and its net: outputs, gradients, running statistics."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluontune.compute.tracing import traced
from gluontune.convert.bridge.names import gluon_names
from gluontune.convert.bridge.references import NOTHING, Writer, right_way
from gluontune.convert.bridge.registry import default_of
from gluontune.convert.bridge.source import as_numpy, settle
from gluontune.convert.bridge.stand_ins import stand_in
from gluontune.core.arrays import flat, gap, size
from gluontune.core.errors import GluontuneError, UsageError, first_line
from gluontune.runtime import as_nd_array, as_net_array, mxnet, uses_np
from gluontune.runtime.pytorch import torch


@dataclass(frozen=True)
class Agreement:
    """Greatest differences, each relative to the greatest absolute value of the array of MXNet's.

    Args:
        outputs: of each output, in order. gradients: by parameter (training only).
        statistics: by auxiliary state, after one step in training mode; of a running mean relative to the deviation
            too. MXNet changes them in the backward pass, the module in the forward pass.
        faults: wrong gradients of MXNet's, which other operators of MXNet's replaced in the comparison.
    """

    outputs: tuple[float, ...]
    gradients: dict[str, float] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def output(self) -> float:
        """The worst of the outputs."""
        return max(self.outputs, default=0.0)

    @property
    def gradient(self) -> float:
        """The worst of the gradients, each relative to the greatest gradient of the whole net.

        >>> Agreement((0.0,), {"a": 1e-9, "b": 2e-9}).gradient
        2e-09
        """
        return max(self.gradients.values(), default=0.0)

    def __str__(self) -> str:
        text = f"outputs differ by {self.output:.1e}"
        if self.gradients:
            worst = max(self.gradients, key=self.gradients.__getitem__)
            text += f", gradients by {self.gradient:.1e} ({worst})"
        if self.statistics:
            text += f", running statistics by {max(self.statistics.values()):.1e}"
        return text + "".join(f"; compared with another way through MXNet, for {fault}" for fault in self.faults)


def check(net: Any, module: Any, sample: Any, *, train: bool = False, dtype: str = "float32") -> Agreement:
    """Run the same sample through the Gluon net and its module and compare.

    Both are copied first; neither is changed. In training mode dropout is off on both sides, the loss is a fixed random
    weighting of the outputs, and gradients of all parameters are compared too. If MXNet's gradient is wrong
    (``docs/mxnet-faults.md``), other operators of MXNet's compute it, and ``faults`` of the result names it.

    Args:
        net: the HybridBlock. module: of ``to_torch(net)``. sample: a numpy array (or NDArray), or a tuple of them.
        train: compare training mode. dtype: "float32" or "float64", in which both compute.

    Raises:
        UsageError: another dtype, or a module with another number of outputs.
    """
    if dtype not in ("float32", "float64"):
        raise UsageError(f"check compares in float32 or float64, not {dtype!r}")
    samples = [as_numpy(s) for s in (sample if isinstance(sample, (tuple, list)) else (sample,))]
    samples = [s.astype(dtype) if s.dtype.kind == "f" else s for s in samples]
    try:
        theirs = _in_mxnet(net, samples, train, dtype)
    except mxnet().MXNetError as error:
        how = f"in {dtype}{', training' if train else ''}"
        raise GluontuneError(
            f"check: MXNet does not compute {type(net).__name__} {how}: {first_line(error)}"
        ) from error
    ours = _in_torch(module, samples, train, dtype)
    if len(theirs[0]) != len(ours[0]):
        raise UsageError(f"the net has {len(theirs[0])} outputs, the module {len(ours[0])}")
    scale = max(map(size, theirs[1].values()), default=0.0)
    return Agreement(
        tuple(gap(_shaped(a, b), b) for a, b in zip(ours[0], theirs[0])),
        {n: gap(_shaped(ours[1].get(n, np.zeros_like(g)), g), g, scale) for n, g in theirs[1].items()},
        {n: gap(ours[2].get(n, np.zeros(0)), s, _spread(n, theirs[2])) for n, s in theirs[2].items()},
        tuple(theirs[3]),
    )


def outputs_of(net: Any, samples: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    return list(_in_mxnet(net, samples, False, dtype)[0])


def gradients_of(net: Any, samples: list[np.ndarray], dtype: str) -> Any:
    """MXNet's outputs in training mode without dropout, gradients, statistics, and the weights of the outputs' sum."""
    outputs, gradients, states, _ = _in_mxnet(net, samples, True, dtype)
    return outputs, gradients, states, [_weights(o.shape, i, dtype) for i, o in enumerate(outputs)]


def _spread(name: str, states: dict[str, np.ndarray]) -> float:
    """The largest deviation of a running mean's values, to compare the mean with; it may be 0 itself."""
    variance = states.get(name.replace("mean", "var")) if "mean" in name else None
    return 0.0 if variance is None or not variance.size else size(variance) ** 0.5


def _shaped(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """PyTorch's single numbers with MXNet's one dimension."""
    return ours.reshape(theirs.shape) if ours.size == theirs.size == 1 and not ours.shape else ours


def _weights(shape: tuple[int, ...], number: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(shape).astype(dtype)


def _steady(symbol: str, dtype: str) -> str:
    """A symbol's JSON without dropout or undefined values, whose new arrays have ``dtype``."""
    # Deterministic, and with operators that MXNet computes correctly.
    write = Writer("defined")
    document = write.rewritten(json.loads(symbol), lambda number, node, own: stand_in(node, own, write.add))
    for node in document["nodes"]:
        attrs = node.get("attrs", {})
        if node["op"] in ("Dropout", "RNN") and "p" in attrs:
            attrs["p"] = "0"
        if "sparse_grad" in attrs:  # same values; the copy's parameters have dense gradients
            attrs["sparse_grad"] = "False"
        if node["op"] != "null" and attrs.get("dtype") == "float32":
            attrs["dtype"] = dtype
        if "dtype" not in attrs and default_of(node["op"], "dtype") == "float32":
            node["attrs"] = {**attrs, "dtype": dtype}
    return json.dumps(document, ensure_ascii=False)


def _in_mxnet(net: Any, samples: list[np.ndarray], train: bool, dtype: str) -> Any:
    mx = mxnet()
    graphs = traced(net, len(samples))
    names, symbol = graphs.names, graphs.train if train else graphs.predict
    if symbol is None:
        raise UsageError(f"check(train=True): {type(net).__name__}: {graphs.why}")
    symbol = mx.sym.load_json(_steady(symbol.tojson(), dtype))
    faults: list[str] = []
    if train:
        fixed = [p.name for p in net.collect_params().values() if p.grad_req == "null"]
        shapes = {name: s.shape for name, s in zip(names, samples)}
        symbol, faults = right_way(symbol, shapes, dtype, [*names, *fixed])
    asked = [NOTHING] if NOTHING in symbol.list_inputs() else []
    inputs = [mx.sym.var(name) for name in (*names, *asked)]
    count = len(symbol)
    if not symbol.list_inputs():  # MXNet compiles no graph without a variable
        symbol = mx.sym.Group([*symbol, mx.sym.identity(inputs[0])])
    if uses_np(net):
        symbol, inputs = symbol.as_np_ndarray(), [variable.as_np_ndarray() for variable in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Cannot decide type for the following arguments", the inputs
        block = mx.gluon.SymbolBlock(symbol, inputs)
    values = net.collect_params()
    lacking = [name for name in (*names[len(samples) :], *block.collect_params()) if name not in values]
    if lacking:
        raise UsageError(f"check: {type(net).__name__} takes more than {len(samples)} inputs: {', '.join(lacking)}")
    settle()
    for name, parameter in block.collect_params().items():
        source = values[name]
        parameter.grad_req = source.grad_req
        data = source.data(source.list_ctx()[0]).copy()
        data = data.astype(dtype) if np.dtype(data.dtype).kind == "f" else data
        parameter._load_init(data, mx.cpu(), cast_dtype=True, dtype_source="saved")
    arrays = [mx.nd.array(s, dtype=s.dtype) for s in samples]
    if asked:
        arrays.append(mx.nd.zeros((1,), dtype=dtype))
        arrays[-1].attach_grad()
    arrays = as_net_array(arrays, net)
    if not train:
        return [o.asnumpy() for o in flat(block(*arrays))[:count]], {}, {}, []
    with mx.autograd.record():
        outputs = as_nd_array(flat(block(*arrays))[:count])
        parts = [
            (o.astype(dtype) * mx.nd.array(_weights(o.shape, i, dtype), dtype=dtype)).sum()
            for i, o in enumerate(outputs)
            if np.dtype(o.dtype).kind == "f"  # whole numbers have no gradients
        ]
        loss = mx.nd.add_n(*parts) if parts else None
    if loss is not None and any(p.grad_req != "null" for p in block.collect_params().values()):
        loss.backward()
    found = block.collect_params()
    grads = {n: p.grad().asnumpy() for n, p in found.items() if p.grad_req != "null"}
    states = {n: found[n].data().asnumpy() for n in symbol.list_auxiliary_states()}
    return [o.asnumpy() for o in outputs], grads, states, faults


def _in_torch(module: Any, samples: list[np.ndarray], train: bool, dtype: str) -> Any:
    from gluontune.convert.bridge.operators import creating

    library = torch()
    module = copy.deepcopy(module).to("cpu", getattr(library, dtype)).train(train)
    for part in module.modules():
        if isinstance(part, library.fx.GraphModule) and dtype != "float32":
            for node in part.graph.nodes:
                if node.kwargs.get("dtype") == "float32":
                    node.kwargs = {**node.kwargs, "dtype": dtype}
            part.recompile()
        if isinstance(getattr(part, "p", None), float):
            part.p = 0.0
    tensors = [library.from_numpy(s.copy()) for s in samples]
    before = library.get_default_dtype()
    library.set_default_dtype(getattr(library, dtype))  # the default dtype of draws
    try:
        with creating.steady(), library.set_grad_enabled(train):
            outputs = flat(module(*tensors))
    finally:
        library.set_default_dtype(before)
    if not train:
        return [o.detach().numpy() for o in outputs], {}, {}
    parts = [(o * library.from_numpy(_weights(tuple(o.shape), i, dtype))).sum() for i, o in enumerate(outputs)]
    loss = [part for part in parts if part.requires_grad]
    if loss:
        library.stack(loss).sum().backward()
    names = gluon_names(module)
    grads = {
        names.get(n, n): (library.zeros_like(p) if p.grad is None else p.grad).numpy()
        for n, p in module.named_parameters()
    }
    states = {names.get(n, n): b.numpy() for n, b in module.named_buffers()}
    return [o.detach().numpy() for o in outputs], grads, states
