"""A module of two graphs: what a net with a branch on ``autograd.is_training()`` computes in each mode."""

from __future__ import annotations

from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


class ByMode(torch.nn.Module):
    """Runs one of two graphs, which take the net's inputs and then all its arrays; it has no parameters itself.

    Args:
        predict, train: the graphs; train None: ``.train()`` is refused. why: there is none.
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
