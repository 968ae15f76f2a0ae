"""Control flow; each body is a module."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import operator
from gluontune.core.errors import GluontuneError
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


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
    """One of two bodies."""

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
