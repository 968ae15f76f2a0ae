"""The changes of a running script: under ``gluontune run``, and where a measurement asks for them.

What imports numpy comes after the script's begin, which may set variables that numpy reads.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluontune.capture.script import CHANGES, DECIDED, THREADS
from gluontune.core import files

if TYPE_CHECKING:
    from gluontune.capture.helpers.base import Helper
    from gluontune.capture.on_torch import OnTorch
    from gluontune.capture.watch import Watch

_DECIDING_S = 4.0  # at least, for contests in place to begin


def _compute_in(dtype: str) -> None:
    if dtype != "float32":
        from gluontune.compute.process import start_process

        start_process(dtype, "cpu")


def _helpers(names: Sequence[str], threads: bool) -> list[Helper]:
    """The changes of these names. threads: more of them are tried first."""
    from gluontune.recipe.registry import resolve

    return [resolve(place)() for place in [*[THREADS] * threads, *(CHANGES[name] for name in names)]]


class Account(ABC):
    """What one process of ``gluontune run`` does to a script, and tells at its end.

    Args:
        options: ``began`` (seconds since the epoch), ``out`` (a file for the document, or None), ``leave`` (names of
            changes that stay out), ``dtype``, and ``settings`` (names of variables that were set for this process).
    """

    def __init__(self, options: Mapping[str, Any]):
        self._options, self._pid = options, os.getpid()
        atexit.register(self._end)

    @abstractmethod
    def begin(self, mx: Any) -> None:
        """Mxnet was imported."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What was done and what it brought, for JSON."""

    @abstractmethod
    def lines(self, found: Mapping[str, Any]) -> list[str]:
        """The document in a line or two."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the script's objects: Python takes its modules apart next."""

    def _end(self) -> None:
        if os.getpid() != self._pid:  # a worker that the script forked
            return
        found = {"schema_version": 1, "seconds": time.time() - self._options["began"], **self.document()}
        if self._options.get("out"):
            files.write_json(Path(self._options["out"]), found)
        print("\n".join(f"gluontune: {line}" for line in self.lines(found)), file=sys.stderr)
        self.release()


class ChangesAccount(Account):
    """The changes of a script that MXNet computes, and the clock."""

    def __init__(self, options: Mapping[str, Any]):
        super().__init__(options)
        self.helpers: list[Helper] = []
        self._contest: Any = None

    def begin(self, mx: Any) -> None:
        _compute_in(self._options["dtype"])
        try:
            self._install(mx)
        except Exception as error:  # another mxnet, or a module beside the script that is called like one of ours
            for helper in self.helpers:
                helper.gave_up(error)

    def _install(self, mx: Any) -> None:
        from gluontune.capture.contest import Contest

        names = [name for name in CHANGES if name not in self._options["leave"]]
        for helper in _helpers(names, "OMP_NUM_THREADS" in self._options["settings"]):
            try:
                helper.install(mx)
            except Exception as error:
                helper.gave_up(error)
            self.helpers.append(helper)
        self._contest = Contest(self.helpers)
        self._contest.install(mx)
        gc.freeze()  # the modules imported so far: Python would go through them again and again

    def document(self) -> dict[str, Any]:
        measured = self._contest.saved() if self._contest else {}
        saved = {**{h.name: h.seconds_saved for h in self.helpers if h.seconds_saved > 0}, **measured}
        return {
            "seconds_as_is": time.time() - self._options["began"] + sum(saved.values()),
            "settings": self._options["settings"],
            "saved_seconds": saved,
            "estimated": [name for name in saved if name not in measured],
            "steps": self._contest.steps if self._contest else 0,
            "matches": [m.to_dict() for m in self._contest.matches] if self._contest else [],
            **{name: value for helper in self.helpers for name, value in helper.facts().items()},
            "notes": [note for helper in self.helpers for note in helper.notes],
        }

    def release(self) -> None:
        self.helpers, self._contest = [], None

    def lines(self, found: Mapping[str, Any]) -> list[str]:
        took, as_is = found["seconds"], found["seconds_as_is"]
        saved = sorted(found["saved_seconds"].items(), key=lambda item: -item[1])
        if not saved:
            outcome = "faster" if found["matches"] else "measured"
            return [f"took {took:.1f} s", f"no change inside the script was {outcome}"]
        settings = " (the allocator comes on top)" if found["settings"] else ""
        about = dict.fromkeys(found["estimated"], "about ")
        with_what = ", ".join(f"{name} {about.get(name, '')}{seconds:.1f} s" for name, seconds in saved)
        return [f"took {took:.1f} s; without the changes below about {as_is:.1f} s{settings}", with_what]


class TorchAccount(Account):
    """A script whose arithmetic goes over to PyTorch. folder: of the script."""

    def __init__(self, options: Mapping[str, Any], folder: str):
        from gluontune.capture.helpers.samples import Samples
        from gluontune.capture.on_torch import OnTorch  # before the script's folder is searched for modules

        super().__init__(options)
        self._folder, self._samples, self._engine_of = folder, Samples(), OnTorch
        self._engine: OnTorch | None = None

    def begin(self, mx: Any) -> None:
        if "samples" not in self._options["leave"]:
            try:
                self._samples.install(mx)
            except Exception as error:
                self._samples.gave_up(error)
        self._engine = self._engine_of(
            mx, self._folder, lambda line: print(f"gluontune: {line}", file=sys.stderr), self._options["device"]
        )
        self._engine.read_from(self._samples)

    def document(self) -> dict[str, Any]:
        done = self._engine.document() if self._engine else {}
        return {"backend": "torch", **done, **self._samples.facts(), "notes": self._samples.notes}

    def lines(self, found: Mapping[str, Any]) -> list[str]:
        moved, why_not = found.get("steps_on_torch", 0), found.get("why_not", "the script did not import it")
        told, of_it = f"MXNet computed all: {why_not}", ""
        if moved and self._engine:
            of_all = f"{moved}" if why_not else f"{moved} of {found['steps']}"
            then = f", then MXNet the rest: {why_not}" if why_not else ""
            told = f"PyTorch computed {of_all} training steps{then}; the proof: {self._engine.gaps}"
            if self._engine.place.type == "cpu":  # elsewhere they only start meanwhile
                of_it = f", {found['seconds_computing']:.1f} s of it in PyTorch's operators"
        return [f"took {found['seconds']:.1f} s{of_it}; {told}"]

    def release(self) -> None:
        if self._engine is not None:
            self._engine.recorder.release()


class InForce:
    """What was asked for by the options of :mod:`gluontune.capture.stepping`: installed at once, in force later."""

    def __init__(self, options: dict[str, Any], mx: Any, folder: str):
        from gluontune.runtime import applied

        self.options = options
        self.decides = bool(options["state"] == DECIDED)
        self.contest: Any = None  # of the changes that are kept only where they are faster
        self.engine: Any = None  # PyTorch's
        _compute_in(options["dtype"])
        threads = self.decides and options["backend"] == "mxnet" and "OMP_NUM_THREADS" in applied(os.environ)
        self.helpers = _helpers(options["changes"], threads)
        for helper in self.helpers:
            helper.install(mx)
        if self.decides:
            from gluontune.capture.contest import Contest

            self.contest = Contest(self.helpers, kept=options.get("contest"))
            self.contest.time_by(mx.nd.waitall)
            gc.freeze()  # as the running script does
        if options["backend"] == "torch":
            from gluontune.capture.helpers.samples import Samples
            from gluontune.capture.on_torch import OnTorch
            from gluontune.runtime.pytorch import torch

            torch().manual_seed(0)
            self.engine = OnTorch(mx, folder, lambda line: None)
            for helper in self.helpers:
                if isinstance(helper, Samples):
                    self.engine.read_from(helper)

    def step(self, steps: int) -> None:
        if self.contest is not None:
            self.contest.step()
            return
        for helper in self.helpers:
            self._bring(helper, steps)

    def _bring(self, helper: Helper, steps: int) -> None:
        if helper.state or helper.broken:
            return
        helper.after_step(steps, math.inf)
        helper.awaited(steps, math.inf)
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
        return {
            "notes": [note for helper in self.helpers for note in helper.notes],
            "changed": {h.name: h.state and h.facts().get("kept_batches", h.state) for h in self.helpers},
            "why_not": self.engine.why_not if self.engine is not None else "",
            "draws": self.engine is not None and self.engine.draws,
        }


def _notes(helper: Helper) -> str:
    return "; ".join(note.partition(": ")[2] or note for note in helper.notes)
