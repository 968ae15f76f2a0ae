"""The check that a rewritten network computes the same: outputs and gradients on a sample, in both modes."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np

from gluontune.compute._blocks import give, take_back
from gluontune.compute._passes import explain, first_gross, preserved, run, varies, without_dropout
from gluontune.compute._traversal import batch_size, clear_caches, first_samples
from gluontune.compute.mode import set_mode
from gluontune.compute.process import started_dtype
from gluontune.compute.tracing import asks_for_mode
from gluontune.core.arrays import worst
from gluontune.core.errors import first_line

_MODES = ("imperative", "hybridized")
_ATTEMPTS = 5  # passes of the plain net before a rewrite is blamed
_SAMPLES = 4  # of the batch
_OUTPUTS = {"bfloat16": 0.2}  # relative; rounding through many layers, not a fault
_OUTPUTS_FLOAT32 = 5e-3


class Proof:
    """Results of a network to compare rewritten ones with. The net stays unchanged.

    Dropout layers are off. If the net still draws random numbers, outputs are compared in prediction mode; if it draws
    there too, only errors count. A network that cannot be compiled is compared in imperative mode alone.
    """

    def __init__(self, net: Any, inputs: tuple[Any, ...]):
        self._net, self._inputs, self._training, self._comparable = net, inputs, True, True
        self._plain: dict[str, Any] = {}
        # Enough for BatchNorm to have something to average over, if the first axis is the batch's.
        part = first_samples(inputs, _SAMPLES) if batch_size(inputs) > _SAMPLES else None
        with preserved(net), without_dropout(net, True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            set_mode(net, "imperative")
            if part is not None:
                with contextlib.suppress(Exception):  # a net for one batch size
                    run(net, part, False)
                    self._inputs = part
            try:
                if varies(net, self._inputs, True):
                    self._training = False
                    self._comparable = not varies(net, self._inputs, False)
            except Exception:  # works in prediction only
                return
            for mode in _MODES:
                set_mode(net, mode)
                try:
                    self._plain[mode] = self._pass()
                except Exception:  # it cannot be compiled
                    continue

    @property
    def compares(self) -> bool:
        """Whether results can be compared."""
        return bool(self._plain) and self._comparable

    def wrong(self, targets: list[Any], before: list[tuple[Any, type]]) -> tuple[str, str] | None:
        """The path of the first of the layers just changed that is faulty, and how, or None; they are taken back."""
        reason, path = self._compare()
        if not reason:
            return None
        take_back(before)
        # The plain net may differ from itself in one of several passes: a ``CustomOp`` of MXNet's may race.
        if self._comparable and any(self._compare()[0] for _ in range(_ATTEMPTS)):
            self._comparable = False
            give(targets)
            return None
        if not path:  # one of them
            for alone in _parts(targets):
                give(alone)
                fault = self._compare()[0]
                take_back(before)
                if fault:
                    return alone[0].path, fault
        return path or targets[0].path, reason

    def _compare(self) -> tuple[str, str]:
        """The first difference from the plain network, and the block's path if known."""
        with preserved(self._net), without_dropout(self._net, True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for mode, plain in self._plain.items():
                clear_caches(self._net)
                set_mode(self._net, mode)
                reason, path = self._compare_once(mode, plain)
                if reason:
                    return reason, path
        return "", ""

    def _compare_once(self, mode: str, plain: Any) -> tuple[str, str]:
        try:
            outputs, gradients = self._pass()
        except Exception as error:
            return f"it fails ({mode}): {first_line(error)}", explain(self._net, error).path
        if not self._comparable:
            return "", ""
        limit = _OUTPUTS.get(started_dtype() or "", _OUTPUTS_FLOAT32)
        apart = worst(outputs, plain[0])
        if apart > limit:
            return f"the outputs differ by {apart:.1e} ({mode})", ""
        if first_gross(dict(enumerate(gradients)), dict(enumerate(plain[1]))) is not None:
            return f"the gradients differ ({mode})", ""
        return "", ""

    def _pass(self) -> tuple[list[Any], list[Any]]:
        outputs, gradients = run(self._net, self._inputs, self._training)
        if self._training and asks_for_mode(self._net):
            outputs = outputs + run(self._net, self._inputs, False)[0]
        if not all(np.isfinite(o).all() for o in outputs):
            return outputs, []
        return outputs, gradients


def _parts(targets: list[Any]) -> list[list[Any]]:
    """Each target that can change alone, and those that go together (BatchNorm and its relu)."""
    parts: list[list[Any]] = [[]]
    for target in targets:
        parts[-1].append(target)
        if not target.with_next:
            parts.append([])
    return [part for part in parts if part]
