"""The changes of a script that trains on command, and when they are in force."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from gluontune.capture.helpers.base import Helper
from gluontune.capture.helpers.samples import Samples
from gluontune.capture.names import CHANGES, DECIDED, THREADS
from gluontune.capture.watch import Watch
from gluontune.recipe.registry import resolve
from gluontune.runtime import applied

_DECIDING_S = 4.0  # at least, for contests in place to begin
_TICK_S = 0.02


class InForce:
    """What was asked for: installed at once, in force a few steps later.

    Args:
        options: as :class:`gluontune.capture.stepping.Stepping` has them. mx: the mxnet module, just imported.
        folder: of the script.

    Attributes:
        helpers: that change the script. contest: of the changes that are kept only where they are faster. engine:
            PyTorch's.
    """

    def __init__(self, options: dict[str, Any], mx: Any, folder: str):
        self.options = options
        self.decides = bool(options["state"] == DECIDED)
        self.helpers: list[Helper] = []
        self.contest: Any = None
        self.engine: Any = None
        if options["dtype"] != "float32":
            from gluontune.compute.process import start_process

            start_process(options["dtype"], "cpu")
        places = [CHANGES[name] for name in options["changes"]]
        if self.decides and options["backend"] == "mxnet" and "OMP_NUM_THREADS" in applied(os.environ):
            places.insert(0, THREADS)
        for place in places:
            helper = resolve(place)()
            helper.install(mx)
            self.helpers.append(helper)
        if self.decides:
            from gluontune.capture.contest import Contest

            self.contest = Contest(self.helpers, kept=options.get("contest"))
            self.contest.time_by(mx.nd.waitall)
        if options["backend"] == "torch":
            from gluontune.capture.on_torch import OnTorch
            from gluontune.runtime.pytorch import torch

            torch().manual_seed(0)
            self.engine = OnTorch(mx, folder, lambda line: None)
            for helper in self.helpers:
                if isinstance(helper, Samples):
                    self.engine.read_from(helper)

    def step(self, steps: int) -> None:
        """A training step has ended, the one of this number."""
        if self.contest is not None:
            self.contest.step()
            return
        for helper in self.helpers:
            self._bring(helper, steps)

    def _bring(self, helper: Helper, steps: int) -> None:
        if helper.state or helper.broken:
            return
        helper.after_step(steps, math.inf)
        while helper.waits:
            time.sleep(_TICK_S)
            helper.after_step(steps, math.inf)
        if helper.states:
            wanted = self.options["state"]
            helper.state = wanted if wanted in helper.states else helper.states[0]
            helper.settled([])

    @property
    def enough(self) -> bool:
        """Whether a measurement makes sense, even if something is missing: where it decides, nothing has to change."""
        return self.decides and (self.engine is None or self.engine.recorder.lazy)

    def missing(self, seconds: float, watch: Watch) -> str:
        """Why what was asked for is not in force, seconds after the first step; "" where it is."""
        if self.engine is not None and not self.engine.recorder.lazy:
            return str(self.engine.why_not)
        if self.decides:
            known = self.contest.over or (self.contest.idle and seconds >= _DECIDING_S)
            return "" if known else "contests in place"
        for helper in self.helpers:
            facts = helper.facts()
            if "kept_batches" in facts and not facts["kept_batches"]:
                none = "no DataLoader of Gluon's was seen: the script reads its data itself"
                return _notes(helper) or ("no sample came a second time yet" if watch.loaders else none)
            if "blocks_left" not in facts:
                continue
            if helper.state and self.options["state"] not in ("", helper.state):
                return "no layer of its blocks is slow in a way that a rewrite cures"
            if not helper.state:
                kinds = ", ".join(f"{kind}: {why}" for kind, why in facts["blocks_left"].items())
                return _notes(helper) or kinds or "there is no block to compile"
        return ""

    def facts(self) -> dict[str, Any]:
        """What is known of the changes."""
        return {
            "notes": [note for helper in self.helpers for note in helper.notes],
            "changed": {
                helper.name: helper.state and helper.facts().get("kept_batches", helper.state)
                for helper in self.helpers
            },
            "why_not": self.engine.why_not if self.engine is not None else "",
            "draws": self.engine is not None and self.engine.draws,
        }


def _notes(helper: Helper) -> str:
    return "; ".join(note.partition(": ")[2] or note for note in helper.notes)
