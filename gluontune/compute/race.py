"""Ways to run one network, timed in turn (each is compiled once and keeps its graph), and the cache of outcomes."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType
from typing import Any

import psutil

from gluontune import __version__
from gluontune.compute._passes import GradientCheck, capture, restore
from gluontune.compute._traversal import as_imperative, walk
from gluontune.compute.mode import MODES, compile_roots, topmost_hybrid
from gluontune.compute.process import started_dtype
from gluontune.compute.rewriting import apply_rewrites
from gluontune.compute.tracing import trace_of
from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, first_line
from gluontune.core.files import cache_dir, read_sealed, write_sealed
from gluontune.core.stats import Interval, in_turn, interval, ratio_interval
from gluontune.runtime import machine_facts, mxnet

# The three modes and more; oneDNN's subgraph backend is for inference and left out.
SETTINGS: dict[str, dict[str, Any]] = {
    **MODES,
    "static_alloc": {"active": True, "static_alloc": True},
    "static, bulks of 1": {**MODES["static"], "forward_bulk_size": 1, "backward_bulk_size": 1},
    "static, bulks of 100": {**MODES["static"], "forward_bulk_size": 100, "backward_bulk_size": 100},
}
REFERENCE_ROUNDS = 3  # runs of a reference that is far behind in a heat
SHORT_S = 0.05  # a step shorter than this runs once untimed first; a longer one fills the caches itself


@dataclass(eq=False)
class Trial:
    """One way to run the network, and its measurements.

    Args:
        settings: ``imperative``, ``hybridized``, ``static_alloc``, ``static`` or one with a bulk size.
        rewrites: the applied ones.
        step_ms: ``{"median", "ci95", "n"}`` of forward, loss and backward; None if it failed or was not run.
        compile_s: the first step less a later one.
        memory_mib: growth of resident memory at the first steps (0 if it reused memory).
        break_even_steps: steps after which compiling has paid against imperative; None if it never does.
        speedup: against imperative without rewrites, from interleaved pairs: ``{"median", "ci95", "n"}``.
        dropped: the end of its race and its distance to the best; "" for those in the last heat.
        error: first line of the failure.
    """

    settings: str
    rewrites: tuple[str, ...]
    step_ms: Interval | None = None
    compile_s: float = 0.0
    memory_mib: float = 0.0
    break_even_steps: int | None = None
    speedup: Interval | None = None
    dropped: str = ""
    error: str = ""
    _times: list[float] = field(default_factory=list, repr=False)
    _state: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Settings and rewrites in a line."""
        return " + ".join((self.settings, *self.rewrites))

    @property
    def median_ms(self) -> float:
        """Median milliseconds of a step; infinite if none was measured."""
        return float(self.step_ms["median"]) if self.step_ms else math.inf

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, without times and graphs."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}

    def took(self, times: Sequence[float], reference: Sequence[float]) -> None:
        self._times = list(times)
        self.step_ms = interval([t * 1e3 for t in times])
        self.speedup = ratio(reference, times) if reference else None


class Race:
    """The network, the timed step, and the network's original state.

    Args:
        net: an initialized block. step: one training step with it. inputs: a sample batch.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, net: Any, step: Callable[[], None], inputs: tuple[Any, ...]):
        self.net, self.step, self.inputs = net, step, inputs
        self.plain, self._check = capture(net), GradientCheck(net)

    def heat(self, trials: Sequence[Trial], rounds: int, deadline: float, reference: Trial) -> int:
        """Time the trials in turn. Returns the number of rounds.

        Args:
            rounds: the maximum. A reference that is no trial itself runs in the first few.
            deadline: of ``clock``; a round starts only if it would end before.
        """
        running = [t for t in trials if not t.error]
        times: dict[int, list[float]] = {id(t): [] for t in [reference, *running]}
        made = 0
        for number in range(rounds if running else 0):
            both = [reference, *running] if reference not in running and number < REFERENCE_ROUNDS else running
            price = sum(self._repeats(t) * min(t._times) for t in both)
            if self.clock() + price > deadline:
                break
            for trial in in_turn(both, number):
                times[id(trial)].append(self.time(trial))
            made += 1
        if made:
            for trial in [reference, *running]:
                trial.took(times[id(trial)], times[id(reference)])
        return made

    def time(self, trial: Trial) -> float:
        restore(trial._state)
        repeats = self._repeats(trial)
        if min(trial._times) < SHORT_S:
            self.step()  # warms the caches for this trial
        start = self.clock()
        for _ in range(repeats):
            self.step()
        return (self.clock() - start) / repeats

    def prepare(self, trial: Trial) -> list[float]:
        """The seconds of two steps after one that compiles; [] for a trial with an ``error``.

        A rewritten net with clearly different gradients has failed.
        """
        restore(self.plain)
        before = _rss_mib()
        try:
            apply_rewrites(self.net, trial.rewrites, *self.inputs, verify=False)  # verified before the race
            compile_roots(self.net, SETTINGS[trial.settings])
            seconds = []
            for _ in range(3):
                start = self.clock()
                self.step()
                seconds.append(self.clock() - start)
                if trial.name == "imperative":
                    self._check.note()
            other = self._check.differing() if trial.rewrites else ""
            if other:
                raise GluontuneError(f"the gradient of {other} is not that of the plain network")
        except Exception as error:
            trial.error = first_line(error)
            return []
        trial.compile_s = max(0.0, seconds[0] - min(seconds[1:]))
        trial.memory_mib = max(0.0, _rss_mib() - before)
        trial._state = capture(self.net)
        return seconds[1:]

    def _repeats(self, trial: Trial) -> int:
        return max(1, min(20, int(0.1 / max(1e-4, min(trial._times)))))


def fastest(trials: Iterable[Trial]) -> Trial:
    return min(trials, key=lambda trial: trial.median_ms)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of the ratios in common rounds: how many times as fast the second is."""
    n = min(len(mine), len(theirs))
    return ratio_interval(mine[:n], theirs[:n])


def present_mode(net: Any) -> str:
    """The name of the mode nearest to that of ``net``.

    >>> from gluontune.runtime import mxnet
    >>> net = mxnet().gluon.nn.Dense(1)
    >>> before = present_mode(net)
    >>> net.hybridize(static_alloc=True, static_shape=True)
    >>> before, present_mode(net)
    ('imperative', 'static')
    """
    blocks = topmost_hybrid(net)
    if not blocks or not blocks[0]._active:
        return "imperative"
    flags = {key: value for key, value in blocks[0]._flags if key != "inline_limit"}
    for name, settings in SETTINGS.items():
        wanted = {key: value for key, value in settings.items() if key != "active"}
        if settings["active"] and all(flags.get(k, False) == wanted.get(k, False) for k in {*flags, *wanted}):
            return name
    return "hybridized"


def _rss_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


SCHEMA = 2  # of the cached documents
# Prefixes of environment variables that change the speed of a step.
_SETTINGS = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "MXNET_", "MALLOC_", "GLIBC_TUNABLES",
    "LD_PRELOAD", "CUDA_", "NVIDIA_",
)  # fmt: skip
_MACHINE = ("os", "architecture", "libc", "cpu", "memory_limit_mib", "gpus", "gpu_driver", "packages")


def fingerprint(
    net: Any, batches: Sequence[tuple[Any, ...]], loss: Callable[..., Any] | None, names: Sequence[str]
) -> str:
    """A digest of all that a race's outcome depends on but the weights' values: graph, shapes, machine, versions.

    Names with a process's counters of blocks are left out, so that the next process gets the same digest.
    """
    facts = machine_facts()
    parts = {
        "schema": SCHEMA, "gluontune": __version__, "mxnet": mxnet().__version__, "dtype": started_dtype(),
        "candidates": [list(names), list(SETTINGS)],
        "inputs": [[_array(a) for a in flat(batch)] for batch in batches], "net": _structure(net),
        "graphs": [_graph(root, batches[0] if root is net else None) for root in topmost_hybrid(net)],
        "loss": _callable(loss), "machine": {key: facts[key] for key in _MACHINE},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_SETTINGS)},
    }  # fmt: skip
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def recall(key: str) -> dict[str, Any] | None:
    """The cached race: ``trials``, ``chosen`` (one of them), ``notes``, ``complete`` and ``budget_s``.

    None if the file differs in any way from what :func:`keep` writes.
    """
    found = read_sealed(_path(key))
    if found is None or found["key"] != key:
        return None
    trials = [Trial(**{**row, "rewrites": tuple(row["rewrites"])}) for row in found["trials"]]
    return {**found, "trials": trials, "chosen": trials[found["chosen"]]}


def keep(key: str, trials: Sequence[Trial], chosen: Trial, notes: list[str], complete: bool, budget_s: float) -> None:
    """Cache a race; a folder that cannot be written is no error."""
    document = {
        "key": key, "trials": [trial.to_dict() for trial in trials],
        "chosen": list(trials).index(chosen), "notes": notes, "complete": complete, "budget_s": budget_s,
    }  # fmt: skip
    with contextlib.suppress(GluontuneError):
        write_sealed(_path(key), document)


def _path(key: str) -> Path:
    return cache_dir() / "hybridize" / f"{key}.json"


def _array(array: Any) -> Any:
    if not hasattr(array, "shape"):
        return type(array).__name__
    return [list(array.shape), str(array.dtype), str(getattr(array, "context", "")), type(array).__name__]


_PLAIN = (int, float, str)
# Names and attributes that a hybridized forward sets: neither changes the result.
_IGNORED = (
    "_prefix", "_name", "_alias", "_empty_prefix", "_active", "_backend", "_profiler_scope_name", "_in_format",
    "_out_format",
)  # fmt: skip


def _structure(net: Any) -> list[Any]:
    rows = []
    for path, block in walk(net):
        kind = type(block)
        code = [
            _callable(inspect.unwrap(vars(base).get(name)))  # type: ignore[arg-type]
            for base in kind.__mro__
            if not base.__module__.startswith(("mxnet.", "builtins"))
            for name in ("forward", "hybrid_forward")
        ]
        settings = repr(block) if not block._children else ""
        settings += json.dumps(
            {k: v for k, v in vars(block).items() if k not in _IGNORED and isinstance(v, _PLAIN)},
            sort_keys=True,  # restoring a net after a race changes the order
        )
        parameters = [[list(p.shape or ()), str(p.dtype), p.grad_req] for p in block._reg_params.values()]
        rows.append([path, kind.__module__, kind.__qualname__, code, settings, parameters])
    return rows


def _graph(root: Any, inputs: tuple[Any, ...] | None) -> Any:
    """Operators and attributes of the traced graph without names; None if it cannot be traced."""
    if inputs is None:
        return None
    try:
        with as_imperative(root):
            symbol = trace_of(root, inputs)
        graph = json.loads(symbol.tojson(remove_amp_cast=False))
        # An input's third number counts earlier traces of running statistics.
        nodes = [[n["op"], n.get("attrs"), [i[:2] for i in n["inputs"]]] for n in graph["nodes"] if n["op"] != "null"]
        variables = [i for i, n in enumerate(graph["nodes"]) if n["op"] == "null"]
        return [nodes, variables, graph["heads"]]
    except Exception:  # tracing runs the user's code
        return None


def _callable(value: Any) -> Any:
    """The code and names of a function, or a block's structure."""
    if value is None:
        return None
    if hasattr(value, "_children") and hasattr(value, "_reg_params"):
        return _structure(value)
    call = inspect.getattr_static(type(value), "__call__", None)  # an object that is called
    code = getattr(value, "__code__", None) or getattr(call, "__code__", None)
    names = [str(getattr(value, name, "")) for name in ("__module__", "__qualname__")]
    return [type(value).__qualname__, *names, _code(code) if isinstance(code, CodeType) else None]


def _code(code: CodeType) -> list[Any]:
    return [code.co_code.hex(), list(code.co_names), [_constant(c) for c in code.co_consts]]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)  # a set's order is random
