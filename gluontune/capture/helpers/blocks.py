"""Blocks of the script, compiled where it runs them imperatively, with slow layers rewritten in the compiled graph.

The graph is called in the block's place, once a forked process has computed outputs and gradients both ways.
"""

from __future__ import annotations

import threading
from typing import Any

from gluontune.capture.helpers.base import Helper, patched
from gluontune.capture.helpers.compiled import Compiled, answers_of, on_gpu, proof_of, static_flags
from gluontune.capture.purity import is_constant, why_not_compiled

PLAIN, REWRITTEN = "compiled", "compiled and rewritten"
_WATCHED_S, _WATCHED_STEPS = 0.5, 3
_MOST_ROOTS = 64
_OWN = {"_active", "_backend", "_monitor_all", "skip_states"}  # attributes that Gluon itself sets


class Root:
    """An outermost block of the script, as it was called."""

    def __init__(self, block: Any, reason: str):
        self.block, self.reason = block, reason
        self.arguments: tuple[Any, ...] | None = None
        self.shapes: set[Any] = set()
        self.calls = 0  # in recorded steps
        self.rewrites: list[str] = []
        self.ways: dict[str, Compiled] = {}


class Blocks(Helper):
    """Calls a compiled graph in place of each outermost hybrid block."""

    name = "compiled blocks"

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[int, Root] = {}
        self._local = threading.local()
        self._phase = "watching"
        self._candidates: list[Root] = []  # in the order of the proof's answers
        self._steps, self._apart = 1, 0.0

    def install(self, mx: Any) -> None:
        self._mx, self._autograd = mx, mx.autograd
        self._array, self._main = mx.nd.NDArray, threading.get_ident()
        patched(mx.gluon.HybridBlock, "forward", self._around_forward)
        patched(mx.gluon.nn.Sequential, "forward", self._around_forward)
        patched(mx.gluon.HybridBlock, "_clear_cached_op", self._around_change)
        patched(mx.gluon.HybridBlock, "__setattr__", self._around_setting)

    # -- calls

    def _around_forward(self, original: Any, block: Any, *args: Any) -> Any:
        local = self._local
        if self.broken or getattr(local, "inside", False) or self._phase == "over":
            return original(block, *args)
        if threading.get_ident() != self._main:
            self._stop("the script calls blocks from several threads")
            return original(block, *args)
        root = self._roots.get(id(block))
        if root is None:
            if self._phase != "watching" or not self._autograd.is_recording():
                return original(block, *args)  # a summary hangs hooks into a net that training does not see
            root = self._meet(block)
        if root.reason or not args or not isinstance(args[0], self._array):
            return original(block, *args)  # its children may be roots
        local.inside = True
        try:
            if self.state and self._phase == "proven":
                way = root.ways.get(self.state)
                if way is not None and way.takes(args):
                    return self._compiled(root, way, original, args)
            if self._phase == "watching" and self._autograd.is_recording():
                root.arguments, root.calls = args, root.calls + 1
                root.shapes.add(tuple(getattr(a, "shape", None) for a in args))
            return original(block, *args)
        finally:
            local.inside = False

    def _compiled(self, root: Root, way: Compiled, original: Any, args: tuple[Any, ...]) -> Any:
        try:
            return way(*args)
        except Exception as error:
            root.ways.clear()
            root.reason = f"{type(error).__name__} when compiled"
            self.note(f"{self.name}: {type(root.block).__name__} is left as it is: {root.reason}")
            return original(root.block, *args)

    def _meet(self, block: Any) -> Root:
        reason = "too many blocks" if len(self._roots) >= _MOST_ROOTS else why_not_compiled(self._mx, block)
        if reason and not type(block).__module__.startswith("mxnet.") and isinstance(block, self._mx.gluon.HybridBlock):
            self.note(f"{self.name}: {type(block).__name__} is left as it is: {reason}")
        root = self._roots[id(block)] = Root(block, reason)
        return root

    def _around_change(self, original: Any, block: Any) -> None:
        original(block)
        self._changed(block)

    def _around_setting(self, original: Any, block: Any, name: str, value: Any) -> None:
        before = vars(block).get(name)
        original(block, name, value)
        told = self._phase == "proven" and name not in _OWN and value is not None and before is not None
        if told and is_constant(value) and is_constant(before) and before != value:
            self._changed(block)

    def _changed(self, block: Any) -> None:
        """The script has changed a block: graphs that were compiled before may no longer be what it computes."""
        if self._phase != "proven" or getattr(self._local, "inside", False):
            return
        if any(way.holds(block) for root in self._roots.values() for way in root.ways.values()):
            self._stop(f"the script has changed {type(block).__name__}")

    def _stop(self, reason: str) -> None:
        self.state, self.states, self._phase = "", [], "over"
        for root in self._roots.values():
            root.ways.clear()
        self.note(f"{self.name}: not used any more: {reason}")

    def facts(self) -> dict[str, Any]:
        """How far the compiled blocks' outputs were apart in the proof, and why others are left as they are."""
        kinds = {type(root.block).__name__: root.reason for root in self._roots.values() if root.reason}
        return {"outputs_apart": self._apart, "blocks_left": kinds}

    # -- the proof

    def after_step(self, step: int, seconds: float) -> None:
        self._steps = step
        if self._phase == "watching" and step >= _WATCHED_STEPS and seconds >= _WATCHED_S:
            candidates = [root for root in self._roots.values() if root.arguments is not None and not root.reason]
            if not candidates or any(on_gpu(root.arguments) for root in candidates):
                self._phase = "over"
                return
            self._candidates, self._proof, self._phase = candidates, proof_of(self._mx, candidates), "proving"
        elif self._phase == "proving" and (found := answers_of(self._proof, len(self._candidates))) is not None:
            self._take(found)

    def _take(self, found: list[dict[str, Any]]) -> None:
        for root, answer in zip(self._candidates, found):
            if answer["reason"]:
                root.reason = answer["reason"]
                self.note(f"{self.name}: {type(root.block).__name__} is left as it is: {root.reason}")
                continue
            self._apart = max(self._apart, answer["apart"])
            root.rewrites = answer["rewrites"]
            often = root.calls > self._steps
            flags = static_flags(often, len(root.shapes) > 1)
            root.ways[PLAIN] = Compiled(self._mx, root.block, flags, (), root.arguments or ())
            if root.rewrites:
                root.ways[REWRITTEN] = Compiled(self._mx, root.block, flags, root.rewrites, root.arguments or ())
        proven = [root for root in self._roots.values() if root.ways]
        for root in proven:
            root.ways.setdefault(REWRITTEN, root.ways[PLAIN])
        self._phase = "proven" if proven else "over"
        if any(root.rewrites for root in proven):
            self.states = [REWRITTEN, PLAIN]
        elif proven:
            self.states = [PLAIN]
        for root in self._roots.values():
            root.arguments = None

    @property
    def waits(self) -> bool:
        return self._phase == "proving" and not self.broken

    def settled(self, left: list[str]) -> None:
        for root in self._roots.values():
            if self.state != REWRITTEN and REWRITTEN not in left and root.rewrites:
                root.ways.pop(REWRITTEN, None)
        if not self.state and not left:
            self._phase = "over"
