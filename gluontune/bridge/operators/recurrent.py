"""The fused RNN operator: several layers, both directions, one array of weights."""

from __future__ import annotations

from typing import Any

from gluontune.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()

_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}


def _sizes(mode: str, inputs: int, hidden: int, layers: int, ways: int) -> tuple[list[Any], list[Any]]:
    rows = _GATES[mode] * hidden
    weights, biases = [], []
    for layer in range(layers):
        for _ in range(ways):
            weights += [(rows, inputs if layer == 0 else hidden * ways), (rows, hidden)]
            biases += [(rows,), (rows,)]
    return weights, biases


def _sample(draw: Draw) -> Sample:
    mode, layers, both = draw.pick(list(_GATES)), draw.int(1, 2), draw.pick([True, False])
    ways, hidden = 2 if both else 1, draw.int(1, 3)
    weights, biases = _sizes(mode, 2, hidden, layers, ways)
    count = sum(a * b for a, b in weights) + sum(a for (a,) in biases)
    state = ("normal", (layers * ways, 2, hidden))
    inputs = [
        ("normal", (draw.int(1, 4), 2, 2)),
        ("unit", (count,)),
        state,
        *([state] if mode == "lstm" else []),
    ]
    return Sample(inputs, {"state_size": hidden, "num_layers": layers, "bidirectional": both, "mode": mode,
                           "state_outputs": draw.pick([True, False])}, True)  # fmt: skip


@operator("RNN", stateful=True, sample=_sample, many=lambda attrs: bool(attrs.get("state_outputs")))
class RNN(torch.nn.Module):
    """MXNet's and torch's gates stand in the same order; MXNet keeps all weights before all biases."""

    def __init__(self, state_size: int, num_layers: int, mode: str, bidirectional: bool = False, p: float = 0.0,
                 state_outputs: bool = False):  # fmt: skip
        super().__init__()
        self.hidden, self.layers, self.mode, self.both = state_size, num_layers, mode, bidirectional
        self.p, self.state_outputs = p or 0.0, state_outputs

    def forward(self, x: Any, parameters: Any, state: Any, cell: Any = None) -> Any:
        shapes = _sizes(self.mode, x.shape[-1], self.hidden, self.layers, 2 if self.both else 1)
        parts, at = [], 0
        for shape in (*shapes[0], *shapes[1]):
            size = shape[0] * (shape[1] if len(shape) > 1 else 1)
            parts.append(parameters[at : at + size].reshape(shape))
            at += size
        half = len(parts) // 2
        flat = [p for i in range(0, half, 2) for p in (*parts[i : i + 2], *parts[half + i : half + i + 2])]
        options = (flat, True, self.layers, self.p, self.training, self.both, False)
        if self.mode == "lstm":
            found = torch.lstm(x, (self._fit(state, x), self._fit(cell, x)), *options)
        else:
            run = {"gru": torch.gru, "rnn_relu": torch.rnn_relu, "rnn_tanh": torch.rnn_tanh}[self.mode]
            found = run(x, self._fit(state, x), *options)
        return tuple(found) if self.state_outputs else found[0]

    @staticmethod
    def _fit(state: Any, x: Any) -> Any:
        """A state of batch 1 (Gluon's begin state, made before the batch is known) takes the batch of ``x``."""
        state = state.to(x.dtype)
        return state if state.shape[1] == x.shape[1] else state.expand(-1, x.shape[1], -1)


@operator(
    "_rnn_param_concat",
    sample=lambda d: Sample([("normal", (3,)), ("normal", (4,))], {"dim": 0, "num_args": 2}),
)
def rnn_param_concat(*arrays: Any, dim: int = 1) -> Any:
    return torch.cat([a.reshape(-1) for a in arrays])
