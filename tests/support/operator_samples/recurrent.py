"""Drawn cases of ``gluontune.convert.bridge.operators.recurrent``."""

from __future__ import annotations

from gluontune.convert.bridge.operators.recurrent import _GATES, _sizes
from operator_samples.cases import Draw, Sample


def _sample(draw: Draw) -> Sample:
    mode, layers, both = draw.pick(list(_GATES)), draw.int(1, 2), draw.pick([True, False])
    ways, hidden = 2 if both else 1, draw.int(1, 3)
    weights, biases = _sizes(mode, 2, hidden, layers, ways)
    count = sum(a * b for a, b in weights) + sum(a for (a,) in biases)
    state = ("normal", (layers * ways, 2, hidden))
    inputs = [("normal", (draw.int(1, 4), 2, 2)), ("unit", (count,)), state, *([state] if mode == "lstm" else [])]
    return Sample(inputs, {"state_size": hidden, "num_layers": layers, "bidirectional": both, "mode": mode,
                           "state_outputs": draw.pick([True, False])}, True)  # fmt: skip


SAMPLES = {
    "RNN": _sample,
    "_rnn_param_concat": lambda d: Sample([("normal", (3,)), ("normal", (4,))], {"dim": 0, "num_args": 2}),
}
