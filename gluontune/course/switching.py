"""oneDNN off and on: the same net in two processes that take turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluontune import runtime, stats
from gluontune.bench.contender import OURS, Contender, Entrant
from gluontune.bench.contest import hold
from gluontune.errors import GluontuneError
from gluontune.gaps import gap
from gluontune.recipe import Recipe
from gluontune.runtime.launch import launch_settings

__all__ = ["onednn"]

_OFF = {"MXNET_MKLDNN_ENABLED": "0", "MXNET_ONEDNN_ENABLED": "0"}


def onednn(net: str, *, side: int = 224, rounds: int = 5, seconds: float = 1.0) -> dict[str, Any]:
    """What oneDNN brings a net with random weights, one image at a time.

    Args:
        net: a name of the zoo. side: of the random images. rounds, seconds: as for :func:`gluontune.bench.hold`.

    Returns:
        ``off`` and ``on`` (images a second), ``speedup``, and ``output_delta``: the largest difference of the class
        scores ÷ the largest score.
    """
    images = Recipe(net=net, dataset=f"synthetic:train=10,test=4,size={side}")
    settings = {"mode": "static", "recipe": images.to_dict(), "source": None, "batch_size": 1, "val_images": 4}
    env = launch_settings(cores=runtime.usable_cores()).env
    entrants = [
        Entrant(name, OURS, "gluontune.bench._inference:make", settings, env={**env, **more}, slices="steps")
        for name, more in (("off", _OFF), ("on", {}))
    ]
    scores: list[np.ndarray] = []

    def ask(field: list[Contender]) -> None:
        found = [contender.ask("predict_all") for contender in field]
        scores.extend(np.asarray(one["scores"]) for one in found if one)

    off, on = hold(entrants, rounds=rounds, seconds=seconds, time_limit=600.0, finish=ask)
    for contender in (off, on):
        if contender.failure is not None:
            raise GluontuneError(f"{net} with oneDNN {contender.entrant.name}: {contender.failure}")
    return {
        "off": stats.interval(off.rates),
        "on": stats.interval(on.rates),
        "speedup": stats.ratio_interval(on.rates, off.rates),
        "output_delta": gap(scores[1], scores[0]),
    }
