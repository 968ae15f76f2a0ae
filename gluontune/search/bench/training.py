"""``gluontune bench training``: one training step, ours against MXNet as installed and against PyTorch.

The batches are synthetic and stay in memory, so that only compute counts. All contenders have the same
networks (shapes of all parameters are compared), loss, update and batch, and the tuned ones and PyTorch
the same threads. PyTorch gets the allocator that was the fastest for it in a short trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Optional

from gluontune import runtime
from gluontune.compute import bfloat16_support
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.core.journal import Journal
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench.benchmark import Terms, document, hold, show as show_contest
from gluontune.search.bench.contender import OURS, Contender, Entrant, peer_python

UNIT = "samples_per_sec"
NETS = {"cifar_resnet20_v1": 32, "cifar_resnet56_v1": 32, "mobilenet0.25": 64, "small_vgg": 32}  # → side

_OURS_WORK = "gluontune.search.bench._gluon_training:MxnetStep"
_BRIDGED_WORK = "gluontune.search.bench._gluon_training:BridgedStep"
_TORCH_WORK = "gluontune.search.bench._torch_training:TorchStep"
_MXNET, _TORCH = "MXNet", "PyTorch"
_REWRITES = {
    "float32": ("pool-to-mean", "fuse-bn-relu", "order-sums", "keep-blocks"),
    "bfloat16": ("pool-to-mean", "pad-channels", "fuse-bn-relu"),
}
MODES = {  # of PyTorch: whether the net is compiled, and channels_last
    "eager": (False, False), "eager channels_last": (False, True), "compile": (True, False),
    "compile channels_last": (True, True),
}  # fmt: skip
_TWO = ("pool-to-mean", "fuse-bn-relu")  # a float32 row without the sums' rewrites, to show their gain


def run(
    nets: Sequence[str] = tuple(NETS), *, batch_sizes: Sequence[int] = (64,), threads: int | None = None, **terms: Any
) -> dict[str, Any]:
    """Measure each network of :data:`NETS` at each batch size, and return the document, a case for each.

    Over several cases the ratios are geometric means. ``terms`` are of :class:`Terms`.
    """
    for net in nets:
        if net not in NETS:
            close = nearest(net, list(NETS), n=2)
            hint = f"did you mean {', '.join(close)}?" if close else f"choose of {', '.join(NETS)}"
            raise UsageError(f"bench training: unknown net {net!r}: {hint}")
    if not nets or not batch_sizes or min(batch_sizes) < 1 or (threads is not None and threads < 1):
        raise UsageError("bench training: give a net, batch sizes and threads of at least 1")
    how, cases = Terms(**{"seconds": 2.0, **terms}), []
    conditions = {"threads": threads or runtime.usable_cores(), **how.pace, "only": list(how.only or ())}
    with how.journal("bench training", conditions) as journal:
        for net in dict.fromkeys(nets):
            for batch in dict.fromkeys(batch_sizes):
                case = partial(_case, net, batch, conditions["threads"], how, journal)
                cases.append(journal.piece(f"{net}, batch {batch}", case))
    return _join(cases, conditions)


def entrants(net: str, batch_size: int, threads: int, python: Path) -> list[Entrant]:
    """The contenders for one network and batch size on this machine; ``python`` is the peers' interpreter."""
    work = {"net": net, "batch_size": batch_size, "image_size": NETS[net]}
    tuned = launch_settings(cores=threads).env
    bf16 = bfloat16_support().level in ("native", "slow")

    def mxnet(name: str, peer: str, env: Mapping[str, str], note: str = "", **settings: Any) -> Entrant:
        return Entrant(name, peer, _OURS_WORK, {**work, **settings}, env=env, slices="steps", note=note)

    found = [
        mxnet("MXNet as installed, imperative", _MXNET, {}),
        mxnet("MXNet as installed, static", _MXNET, {}, mode="static"),
        mxnet("MXNet tuned, imperative", _MXNET, tuned, note="threads and allocator"),
        mxnet("MXNet tuned, static", _MXNET, tuned, note="threads and allocator", mode="static"),
    ]
    ours: list[tuple[str, Mapping[str, str], tuple[str, ...]]] = [
        ("gluontune float32", tuned, _REWRITES["float32"]),
        ("gluontune, two rewrites, float32", tuned, _TWO),
    ]
    if bf16:
        ours.append(("gluontune bfloat16", tuned, _REWRITES["bfloat16"]))
    if bf16 and runtime.amx_support().level == "granted":
        amx = {**tuned, **runtime.AMX_ENV}
        ours.append(("gluontune bfloat16, AMX", amx, _REWRITES["bfloat16"]))
        ours.append(("gluontune bfloat16, AMX, narrow in float32", amx, (*_TWO, "narrow-in-float32")))
    for name, env, rewrites in ours:
        dtype = "bfloat16" if "bfloat16" in name else "float32"
        made = {"mode": "static", "rewrites": rewrites, "dtype": dtype, "trainer": "gluontune"}
        found.append(mxnet(name, OURS, env, note=" + ".join(rewrites), **made))
    for dtype in _REWRITES if bf16 else ("float32",):
        for compiled in (False, True):
            variant = f"{'compiled, ' if compiled else ''}{dtype}"
            here = {**work, "threads": threads, "dtype": dtype, "compiled": compiled}
            name, note = f"gluontune on PyTorch, {variant}", "channels_last"
            found.append(Entrant(name, OURS, _BRIDGED_WORK, here, env=tuned, slices="steps", note=note))
    for dtype in _REWRITES if bf16 else ("float32",):
        found += torch_entrants(net, batch_size, NETS[net], threads, python, dtype)
    return found


def torch_entrants(
    net: str, batch_size: int, image_size: int, threads: int, python: Path, dtype: str = "float32"
) -> list[Entrant]:
    work = {"net": net, "batch_size": batch_size, "image_size": image_size, "threads": threads}
    how: dict[str, Any] = {"python": python, "env": {"OMP_NUM_THREADS": str(threads)}, "slices": "steps"}
    found = []
    for mode, (compiled, channels_last) in MODES.items():
        settings = {**work, "dtype": dtype, "compiled": compiled, "channels_last": channels_last}
        name = f"PyTorch {mode} {dtype}"
        found.append(Entrant(name, _TORCH, _TORCH_WORK, settings, note="allocator: default", **how))
    return found


def with_allocator(field: Sequence[Entrant], name: str, variables: Mapping[str, str]) -> list[Entrant]:
    note = f"allocator: {name}"
    return [replace(e, env={**e.env, **variables}, note=note) if e.peer == _TORCH else e for e in field]


def allocator_of(
    wanted: Sequence[Entrant], say: Callable[[str], None], contest: Callable[..., list[Contender]] = hold
) -> tuple[str, dict[str, str]]:
    """The fastest allocator for PyTorch's step, from a short trial of its best two modes."""
    torch = [e for e in wanted if e.peer == _TORCH][-4:]
    picked = (torch[1], torch[2])  # eager channels_last and compiled, in bfloat16 if available
    choices = allocators()
    trial = [
        Entrant(f"{e.name}, {name}", name, e.target, e.settings, e.python, {**e.env, **env}, "steps")
        for e in picked
        for name, env in choices.items()
    ]
    rates: dict[str, float] = {}
    for contender in contest(trial, rounds=3, seconds=0.5, say=lambda line: say(f"allocators: {line}")):
        if contender.failure is None and contender.rates:
            name = contender.entrant.peer
            rates[name] = rates.get(name, 1.0) * stats.interval(contender.rates)["median"]
    best = max(rates, key=lambda name: rates[name], default="default")
    return best, choices[best]


def allocators() -> dict[str, dict[str, str]]:
    """The allocators that are installed here, by name, each with the variables that set it."""
    found: dict[str, dict[str, str]] = {"default": {}}
    for name in ("glibc", "tcmalloc", "jemalloc"):
        try:
            settings = launch_settings(cores=1, allocator=name).env
        except GluontuneError:  # not installed
            continue
        found[name] = {k: v for k, v in settings.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"}
    return found


def _case(net: str, batch: int, threads: int, how: Terms, journal: Journal) -> dict[str, Any]:
    where, python, name = f"{net}, batch {batch}", peer_python(how.peers), "default"
    say, wanted = partial(how.tell, of=where), entrants(net, batch, threads, python)
    chosen = how.kept(wanted)
    if any(e.peer == _TORCH for e in chosen) and python.is_file():
        name, variables = allocator_of(wanted, say, how.contest)
        chosen = with_allocator(chosen, name, variables)

    def finish(measured: list[Contender]) -> None:
        for contender in measured:
            if contender.failure is None:
                contender.info["loss"] = contender.ask("last_loss")

    contenders = how.contest(chosen, say=say, finish=finish, journal=journal, key=where, **how.pace)
    shapes = _same_shapes(net, contenders)
    conditions = {"net": net, "batch_size": batch, "image_size": NETS[net], "allocator_of_pytorch": name}
    found = document(contenders, conditions=conditions, unit=UNIT)
    for row in found["rows"]:
        row["info"].pop("parameter_shapes", None)
        row.update(net=net, batch_size=batch)
    return {**found, **conditions, "parameters": sum(map(math.prod, shapes)), "figures": _figures(contenders)}


def _same_shapes(net: str, contenders: Sequence[Contender]) -> list[list[int]]:
    """The shapes of the trained parameters, in order; a GluontuneError if they differ between two contenders."""
    shapes = {c.entrant.name: c.info["parameter_shapes"] for c in contenders if "parameter_shapes" in c.info}
    first = next(iter(shapes), "")
    for name, found in shapes.items():
        if found != shapes[first]:
            raise GluontuneError(f"bench training: {net} has other parameters in {name} than in {first}")
    return shapes.get(first, [])


def _figures(contenders: Sequence[Contender]) -> dict[str, Any]:
    """Our ratios for one case, as :data:`_WORDS` names them, from pairs within rounds of measured contenders."""
    rounds = max((len(c.rates) for c in contenders), default=0)
    whole = [c for c in contenders if c.failure is None and c.rates and len(c.rates) == rounds]

    def best(peer: str, word: str = "", without: str = "none") -> Optional[Contender]:
        rows = [c for c in whole if c.entrant.peer == peer and word in c.entrant.name and without not in c.entrant.name]
        return max(rows, key=lambda c: stats.interval(c.rates)["median"], default=None)

    pairs = {
        "ours_to_mxnet_imperative": (best(OURS), best(_MXNET, "as installed, imperative")),
        "ours_to_pytorch": (best(OURS), best(_TORCH)),
        "float32_to_pytorch": (best(OURS, "float32", "bfloat16"), best(_TORCH, "float32", "bfloat16")),
    }
    found = {}
    for name, (ours, theirs) in pairs.items():
        if ours is not None and theirs is not None:
            rows = {"ours": ours.entrant.name, "theirs": theirs.entrant.name}
            found[name] = {**stats.ratio_interval(ours.rates, theirs.rates), **rows}
    return found


def _join(cases: list[dict[str, Any]], conditions: Mapping[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(case["ours"]["name"] for case in cases if case["ours"]))
    versions = {name: version for case in cases for name, version in case["versions"].items()}
    kept = ("net", "batch_size", "image_size", "parameters", "allocator_of_pytorch", "figures", "ours")
    ratios = _means(case["ours"].get("ratio_to", {}) for case in cases)
    ours = {"name": " / ".join(names), "ratio_to": ratios} if names else {}
    return {
        "rows": [row for case in cases for row in case["rows"]],
        "cases": [{name: case[name] for name in kept} for case in cases], "limit": {}, "ours": ours,
        "figures": _means(case["figures"] for case in cases), "machine": cases[0]["machine"],
        "versions": versions, "conditions": dict(conditions),
    }  # fmt: skip


def _means(ratios: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for name, ratio in (pair for each in ratios for pair in each.items()):
        found.setdefault(name, []).append(ratio["median"])
    return {name: {"median": geometric_mean(values), "cases": len(values)} for name, values in found.items()}


_WORDS = {
    "ours_to_mxnet_imperative": "ours ÷ MXNet as installed, imperative",
    "ours_to_pytorch": "ours ÷ the best PyTorch",
    "float32_to_pytorch": "ours ÷ the best PyTorch, both in float32",
}


def show(found: Mapping[str, Any], console: Any) -> None:
    for case in found["cases"]:
        rows = [r for r in found["rows"] if (r["net"], r["batch_size"]) == (case["net"], case["batch_size"])]
        title = f"{case['net']}, batch {case['batch_size']}, {found['conditions']['threads']} threads"
        show_contest({"rows": rows, "ours": {}, "limit": {}}, console, title, UNIT)
        console.print(f"{case['parameters']:,} parameters, the same shapes in all contenders", highlight=False)
        for name, ratio in case["figures"].items():
            text = f"{stats.said(ratio, '.2f')}, {ratio['ours']} ÷ {ratio['theirs']}"
            console.print(f"{_WORDS[name]}: {text}", highlight=False)
    if len(found["cases"]) > 1:
        for name, ratio in found["figures"].items():
            text = f"geometric mean over {ratio['cases']} cases: {ratio['median']:.2f}"
            console.print(f"{_WORDS[name]}, {text}", highlight=False)
