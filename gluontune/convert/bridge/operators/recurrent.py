"""The fused RNN operator (layers, directions, one array of weights), and control flow, whose bodies are modules."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import operator
from gluontune.core.errors import GluontuneError
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}


def _sizes(
    mode: str, inputs: int, hidden: int, layers: int, ways: int, projected: int = 0
) -> tuple[list[Any], list[Any]]:
    """Shapes of the weights and of the biases; ``projected`` is the size of an LSTM's projection, 0 without one."""
    rows, given = _GATES[mode] * hidden, projected or hidden
    weights, biases = [], []
    for layer in range(layers):
        for _ in range(ways):
            weights += [(rows, inputs if layer == 0 else given * ways), (rows, given)]
            weights += [(projected, hidden)] if projected else []
            biases += [(rows,), (rows,)]
    return weights, biases


@operator(
    "RNN",
    stateful=True,
    many=lambda attrs: bool(attrs.get("state_outputs")),
    rounded=lambda attrs: attrs.get("mode") == "rnn_relu",
)
class RNN(torch.nn.Module):
    """MXNet's and torch's gates have the same order; MXNet's array has all weights before all biases.

    Projections, sequences of different lengths and clipped cells, which MXNet has on GPUs alone, are computed step by
    step.
    """

    def __init__(self, state_size: int, num_layers: int, mode: str, bidirectional: bool = False, p: float = 0.0,
                 state_outputs: bool = False, projection_size: int | None = None,
                 lstm_state_clip_min: float | None = None, lstm_state_clip_max: float | None = None,
                 lstm_state_clip_nan: bool = False, use_sequence_length: bool = False):  # fmt: skip
        super().__init__()
        self.hidden, self.layers, self.mode, self.both = state_size, num_layers, mode, bidirectional
        self.p, self.state_outputs = p or 0.0, state_outputs
        self.projected, self.limits = projection_size or 0, (lstm_state_clip_min, lstm_state_clip_max)
        self.by_length = use_sequence_length

    def forward(self, x: Any, parameters: Any, state: Any, *others: Any) -> Any:
        rest = list(others)
        cell = rest.pop(0) if self.mode == "lstm" else None
        ways = 2 if self.both else 1
        weights, biases = _sizes(self.mode, x.shape[-1], self.hidden, self.layers, ways, self.projected)
        parts, at = [], 0
        for shape in (*weights, *biases):
            size = shape[0] * (shape[1] if len(shape) > 1 else 1)
            parts.append(parameters[at : at + size].reshape(shape))
            at += size
        half, each = len(weights), len(weights) // (self.layers * ways)
        pieces = [
            (parts[each * i : each * (i + 1)], parts[half + 2 * i : half + 2 * i + 2])
            for i in range(self.layers * ways)
        ]
        state, cell = self._fit(state, x), None if cell is None else self._fit(cell, x)
        if self.projected or self.by_length or self.limits != (None, None):
            found = self._by_steps(x, pieces, state, cell, rest[0].long() if self.by_length else None)
        else:
            flat = [p for weight, bias in pieces for p in (*weight, *bias)]
            options = (flat, True, self.layers, self.p, self.training, self.both, False)
            if self.mode == "lstm":
                found = torch.lstm(x, (state, cell), *options)
            else:
                run = {"gru": torch.gru, "rnn_relu": torch.rnn_relu, "rnn_tanh": torch.rnn_tanh}[self.mode]
                found = run(x, state, *options)
        return tuple(found) if self.state_outputs else found[0]

    def _by_steps(self, x: Any, pieces: Any, state: Any, cell: Any, lengths: Any) -> tuple[Any, ...]:
        steps = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        there = steps < (x.shape[0] if lengths is None else lengths.unsqueeze(0))
        turned = steps if lengths is None else torch.where(there, lengths.unsqueeze(0) - 1 - steps, steps)
        turned = turned.flip(0) if lengths is None else turned
        ends, cells = [], []
        for layer in range(self.layers):
            if layer and self.p and self.training:
                x = torch.nn.functional.dropout(x, self.p)
            outputs = []
            for way in range(2 if self.both else 1):
                at = layer * (2 if self.both else 1) + way
                order = turned.unsqueeze(2).expand(-1, x.shape[1], x.shape[2]) if way else None
                given = x.gather(0, order) if way else x
                h, c, found = state[at], None if cell is None else cell[at], []
                for step in range(len(x)):
                    now = there[step].unsqueeze(1) if lengths is not None else None
                    new = self._step(given[step], h, c, *pieces[at])
                    h = new[0] if now is None else torch.where(now, new[0], h)
                    c = new[1] if now is None or c is None else torch.where(now, new[1], c)
                    found.append(new[0] if now is None else torch.where(now, new[0], torch.zeros_like(new[0])))
                out = torch.stack(found)
                outputs.append(out.gather(0, turned.unsqueeze(2).expand_as(out)) if way else out)
                ends.append(h)
                cells.append(c)
            x = torch.cat(outputs, 2)
        return (x, torch.stack(ends), *([] if cell is None else [torch.stack(cells)]))

    def _step(self, x: Any, h: Any, c: Any, weights: Any, biases: Any) -> tuple[Any, Any]:
        linear = torch.nn.functional.linear
        a, b = linear(x, weights[0], biases[0]), linear(h, weights[1], biases[1])
        if self.mode == "lstm":
            into, forget, new, out = (a + b).chunk(4, 1)
            c = forget.sigmoid() * c + into.sigmoid() * new.tanh()
            c = c if self.limits == (None, None) else c.clamp(*self.limits)
            h = out.sigmoid() * c.tanh()
            return (linear(h, weights[2]) if self.projected else h), c
        if self.mode == "gru":
            reset, update = ((p + q).sigmoid() for p, q in zip(a.chunk(3, 1)[:2], b.chunk(3, 1)[:2]))
            new = (a.chunk(3, 1)[2] + reset * b.chunk(3, 1)[2]).tanh()
            return (1 - update) * new + update * h, None
        return ((a + b).relu() if self.mode == "rnn_relu" else (a + b).tanh()), None

    @staticmethod
    def _fit(state: Any, x: Any) -> Any:
        """A state of batch 1 (Gluon's begin state, made before the batch is known) takes the batch of ``x``."""
        state = state.to(x.dtype)
        return state if state.shape[1] == x.shape[1] else state.expand(-1, x.shape[1], -1)


@operator("_rnn_param_concat")
def rnn_param_concat(*arrays: Any, dim: int = 1) -> Any:
    return torch.cat([a.reshape(-1) for a in arrays])


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


@operator("_foreach", stateful=True, many=True, loops=True)
class Foreach(torch.nn.Module):
    """The body for each item along the first axis of the data; its last outputs are the next step's states."""

    def __init__(self, body: Any, num_out_data: int, in_data_locs: Any, in_state_locs: Any, remain_locs: Any,
                 num_outputs: int = 0):  # fmt: skip
        super().__init__()
        self.body, self.count = body, num_out_data
        self.data, self.states, self.rest = in_data_locs, in_state_locs, remain_locs

    def forward(self, *arrays: Any) -> Any:
        data, rest = arrays[: len(self.data)], arrays[len(self.data) + len(self.states) :]
        states = list(arrays[len(self.data) : len(self.data) + len(self.states)])
        steps = []
        for step in range(data[0].shape[0]):
            given = dict(zip(self.data, (array[step] for array in data)))
            given.update(zip(self.states, states))
            given.update(zip(self.rest, rest))
            found = _listed(self.body(*(given[place] for place in sorted(given))))
            steps.append(found[: self.count])
            states = found[self.count :]
        return (*(torch.stack(outputs) for outputs in zip(*steps)), *states)


@operator("_while_loop", stateful=True, many=True, loops=True)
class WhileLoop(torch.nn.Module):
    """The body while the condition holds; the outputs of its steps are filled with zeros to ``max_iterations``."""

    def __init__(self, condition: Any, body: Any, max_iterations: int, num_out_data: int, cond_input_locs: Any,
                 func_input_locs: Any, func_var_locs: Any, num_outputs: int = 0):  # fmt: skip
        super().__init__()
        self.condition, self.body, self.most, self.count = condition, body, max_iterations, num_out_data
        self.asked, self.given = cond_input_locs, func_input_locs
        self.variables = [func_input_locs[place] for place in func_var_locs]

    def forward(self, *arrays: Any) -> Any:
        values = list(arrays)
        steps: list[Any] = []
        while len(steps) < self.most and bool(self.condition(*(values[i] for i in self.asked))):
            found = _listed(self.body(*(values[i] for i in self.given)))
            steps.append(found[: self.count])
            for place, value in zip(self.variables, found[self.count :]):
                values[place] = value
        outputs = steps or [
            [torch.zeros_like(o) for o in _listed(self.body(*(values[i] for i in self.given)))[: self.count]]
        ]
        stacked = [torch.stack(each) for each in zip(*outputs)]
        stacked = [torch.cat([o, o.new_zeros(self.most - len(o), *o.shape[1:])]) for o in stacked]
        return (*stacked, *(values[place] for place in self.variables))


@operator("_cond", stateful=True, many=True, loops=True)
class Cond(torch.nn.Module):
    def __init__(self, condition: Any, then: Any, other: Any, cond_input_locs: Any, then_input_locs: Any,
                 else_input_locs: Any, num_outputs: int = 0):  # fmt: skip
        super().__init__()
        self.condition, self.then, self.other = condition, then, other
        self.asked, self.given = cond_input_locs, (then_input_locs, else_input_locs)

    def forward(self, *arrays: Any) -> Any:
        chosen = bool(self.condition(*(arrays[i] for i in self.asked)))
        body, places = (self.then, self.given[0]) if chosen else (self.other, self.given[1])
        return tuple(_listed(body(*(arrays[i] for i in places))))


class ByMode(torch.nn.Module):
    """Runs one of two graphs, which take the net's inputs and then all its arrays; it has no parameters itself.

    Args:
        predict, train: the graphs; train None: ``.train()`` is refused. why: the reason for None.
    """

    def __init__(self, predict: Any, train: Any, why: str = ""):
        super().__init__()
        self.predict, self.graph_of_training, self.why = predict, train, why

    def train(self, mode: bool = True) -> Any:
        if mode and self.graph_of_training is None:
            raise GluontuneError(f"the module was converted for prediction alone: {self.why}")
        return super().train(mode)

    def forward(self, *arrays: Any) -> Any:
        return (self.graph_of_training if self.training else self.predict)(*arrays)
