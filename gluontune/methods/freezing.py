"""The method that ends the training of a net's first layers before that of its last."""

from __future__ import annotations

from typing import Any

from gluontune.compute.depth import all_blocks

__all__ = ["frozen_layers", "trained_layers"]


def frozen_layers(
    progress: float, layers: int, start: float = 0.5, end: float = 0.9, level: float = 0.5, stages: int = 4
) -> int:
    """How many of the first layers are not trained any more. The last layer always is.

    Args:
        progress: share of the training that is over, 0 … 1. layers: those with trained parameters.
        start, end: shares of the training; the first layers stop at ``start``, the last of them by ``end``.
        level: share of the layers that stop. stages: so many equal steps from none to all of them.

    Source: Brock et al., FreezeOut, 2017; stages of a straight line as in MosaicML's Composer.

    >>> [frozen_layers(p / 10, 20, start=0.4, end=0.8, level=0.5, stages=2) for p in range(11)]
    [0, 0, 0, 0, 5, 5, 10, 10, 10, 10, 10]
    """
    if progress < start:
        return 0
    way = 1.0 if progress >= end else (progress - start) / (end - start)
    share = min(1.0, (int(way * stages + 1e-9) + 1) / stages)
    return max(0, min(layers - 1, round(level * share * layers)))


def trained_layers(net: Any) -> list[list[Any]]:
    """The trained parameters of each layer of a Gluon net that has some, in the order of its blocks.

    >>> from gluontune.train import build_net
    >>> [[p.name.rpartition("_")[2] for p in layer] for layer in trained_layers(build_net("mlp", 10))]
    [['weight', 'bias'], ['weight', 'bias'], ['weight', 'bias']]
    """
    found: list[list[Any]] = []
    seen: set[int] = set()
    for block in all_blocks(net):
        own = [p for p in block._reg_params.values() if p.grad_req != "null" and id(p) not in seen]
        seen.update(map(id, own))
        if own:
            found.append(own)
    return found
