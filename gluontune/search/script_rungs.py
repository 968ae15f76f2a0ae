"""The rungs of an unchanged script: what each changes about the way in which it is run, or why it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Union

from gluontune import runtime
from gluontune.compute.process import bfloat16_support
from gluontune.recipe.registry import Registry
from gluontune.runtime import pytorch
from gluontune.search.rung import Rung, Variant
from gluontune.training.starting import ScriptRun

#: Variants on top of a run, or the reason why there are none.
Ways = Union[list[Variant], str]
_THREADS = "OMP_NUM_THREADS"


def _environment(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    cores = runtime.usable_cores()
    if _THREADS in os.environ or cores < 2:  # what the user has set stays
        return [Variant("allocator", {"runtime": "tuned"})]
    return [
        Variant("allocator, 1 thread", {"runtime": "tuned", "env": {_THREADS: "1"}}),
        Variant(f"allocator, {cores} threads", {"runtime": "tuned", "env": {_THREADS: str(cores)}}),
    ]


def _workers(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    if not seen["loaders"]:
        return "the script reads its data itself: no DataLoader of Gluon's was seen"
    has = f"it has {seen['workers']}" if seen["workers"] else "it has none"
    return f"a script's workers are its own ({has}): others would draw other random numbers"


def _records(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    if not seen["loaders"]:
        return "the script reads its data itself: no DataLoader of Gluon's was seen"
    return [Variant("samples kept in memory", {"changes": ("samples", *run.changes)})]


def _hybridized(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    changes = (*run.changes, "blocks")
    return [
        Variant(state, {"changes": changes, "state": state}) for state in ("compiled", "compiled and rewritten")
    ]  # by the names of gluontune.capture.helpers.blocks, which needs no import here


def _mixed_precision(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    support = bfloat16_support()
    return support.message if support.level == "none" else [Variant("bfloat16", {"dtype": "bfloat16"})]


def _modern_engine(run: ScriptRun, seen: Mapping[str, Any]) -> Ways:
    if not pytorch.installed():
        return f"PyTorch is not installed: {pytorch.INSTALL}"
    threads = {} if _THREADS in os.environ else {_THREADS: str(runtime.usable_cores())}
    kept = tuple(name for name in run.changes if name == "samples")  # blocks are MXNet's
    changes = {"backend": "torch", "changes": kept, "state": "", "dtype": "float32", "runtime": "tuned", "env": threads}
    return [Variant("PyTorch", changes)]


SCRIPT_RUNGS: Registry[Rung] = Registry("rung of a script")


def _add(name: str, sentence: str, ways: Callable[[ScriptRun, Mapping[str, Any]], Ways]) -> None:
    def requires(run: ScriptRun, seen: Mapping[str, Any]) -> str | None:
        found = ways(run, seen)
        return found if isinstance(found, str) else None

    SCRIPT_RUNGS.add(name, Rung(name, sentence, requires, ways))  # type: ignore[arg-type]  # asked only if it is a list


_add("naive", "the script as python runs it", lambda run, seen: [Variant("as written", {})])
_add("environment", "threads and allocator set before the script starts", _environment)
_add("multi-worker", "samples made in worker processes", _workers)
_add("records", "samples that are the same in each epoch are computed once", _records)
_add("hybridized", "blocks called as compiled graphs, slow layers rewritten in them", _hybridized)
_add("mixed-precision", "16-bit multiplications with 32-bit masters", _mixed_precision)
_add("large-batch", "a larger batch", lambda run, seen: "a script's batch and rate are its own")
_add("multi-device", "several processes", lambda run, seen: "a script chooses its devices itself")
_add("modern-engine", "the same steps, computed by PyTorch", _modern_engine)
