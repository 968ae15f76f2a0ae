"""Loader, net and exchange, each measured alone: predictions for rungs, parts of a step on several devices, scaling.

More devices are not always better (deck 000): the exchange of gradients costs time in each step, the loader may be the
limit, and on a CPU the processes share the cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from gluontune import monitor, runtime
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.events import Guess
from gluontune.parallel.scaling import ALGORITHMS, Link, Parts, expected, minimum_bandwidth
from gluontune.recipe import Recipe
from gluontune.search.judge import TIE
from gluontune.search.measure import Contender
from gluontune.search.rung import Site
from gluontune.training.group import Group

_PROBE_S = 0.6  # of each part


def predict(
    rung: str, best: Contender | None, field: Sequence[Contender], site: Site, slice_s: float
) -> list[Guess | None]:
    """A prediction for each variant of a rung, or None, from the best recipe's loader and net, each measured alone.

    The variants of ``records`` are started, and their loaders measured alone.
    """
    nothing: list[Guess | None] = [None] * len(field)
    maker = _MAKERS.get(rung)
    if maker is None or best is None:
        return nothing
    best.launch()
    best.warm_up(slice_s)
    if best.group is None or best.group.world > 1:  # several ranks cannot be asked one by one
        return nothing
    if rung == "records":
        for contender in field:
            contender.launch()
        for contender in field:
            contender.warm_up(slice_s)
    return maker(best, field, site)


def _loading(contender: Contender) -> float | None:
    if contender.group is None or contender.group.world > 1:
        return None
    return contender.ask(lambda group: float(group.loading_alone(_PROBE_S)["samples_per_sec"]))


def _net(contender: Contender, sizes: Sequence[int]) -> dict[int, float] | None:
    """Milliseconds of a step of a contender's net alone, by its number of samples."""
    found = contender.ask(lambda group: group.training_alone(list(sizes), _PROBE_S))
    return {int(size): float(step["step_time_ms"]) for size, step in found.items()} if found else None


def _together(device: float, loader: float, workers: int, site: Site, of_workers: int, words: str) -> Guess:
    """The prediction for ``workers`` workers from the loader's rate with ``of_workers``."""
    found = monitor.expected_throughput(
        device_samples_per_sec=device, worker_samples_per_sec=loader / max(1, min(of_workers, site.cores)),
        num_workers=workers, cores=site.cores, shares_cores=not site.gpus,
    )  # fmt: skip
    parts = f"net alone {device:,.0f}/s, loader alone {loader:,.0f}/s"
    return {"samples_per_sec": found["samples_per_sec"], "basis": f"{parts}{words}"}


def _net_rate(best: Contender) -> float | None:
    size = best.recipe.global_batch_size
    steps = _net(best, [size])
    return 1e3 * size / steps[size] if steps else None


def _multi_worker(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    net, loader = _net_rate(best), _loading(best)
    if net is None or loader is None or best.recipe.num_workers > 0 or best.recipe.loader not in ("gluon", "threaded"):
        return [None] * len(field)
    shared = "" if site.gpus else ", both on the same cores"
    return [_together(net, loader, c.recipe.num_workers, site, 1, f" by one worker{shared}") for c in field]


def _records(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    net = _net_rate(best)
    loaders = [(_loading(c), c.recipe.num_workers) for c in field]
    return [
        _together(net, rate, n, site, n, "") if net is not None and rate is not None else None for rate, n in loaders
    ]


def _large_batch(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    size, loader = best.recipe.global_batch_size, _loading(best)
    steps = _net(best, [max(1, size // 2), size]) if size > 1 else None
    if steps is None or loader is None:
        return [None] * len(field)
    step_ms = monitor.fit_step_time(list(steps), list(steps.values()))
    workers, words = best.recipe.num_workers, f"; fitted to steps of {' and '.join(str(s) for s in steps)}"
    sizes = [c.recipe.global_batch_size for c in field]
    return [
        _together(1e3 * n / step_ms(n), loader, workers, site, workers, words)
        if c.recipe.optimizer == best.recipe.optimizer  # the cost of another's update is unknown
        else None
        for n, c in zip(sizes, field)
    ]


def _multi_device(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    net, loader, workers = _net_rate(best), _loading(best), best.recipe.num_workers
    if net is None or loader is None:
        return [None] * len(field)
    guesses: list[Guess | None] = []
    for times in (contender.recipe.num_devices if site.gpus else 1 for contender in field):
        share = f"; {times} times the net" if site.gpus else "; the same cores, shared"
        words = f"{share}, the exchange of gradients not counted"
        guesses.append(_together(times * net, loader, workers, site, workers, words))
    return guesses


_MAKERS: dict[str, Callable[[Contender, Sequence[Contender], Site], list[Guess | None]]] = {
    "multi-worker": _multi_worker, "records": _records, "large-batch": _large_batch, "multi-device": _multi_device,
}  # fmt: skip


_SHARE = 0.1  # of a step's time, below which an exchange explains nothing
_REPEATS = 9
_LOOK_S = 0.4


def step_shares(contender: Contender) -> dict[str, Optional[float]]:
    """Exchange and input of a step of several ranks, each measured alone, as shares (0 … 1) of the step's time.

    None for a part that cannot be measured in one process with several GPUs.
    """
    found: dict[str, Optional[float]] = {"exchange": None, "input": None}

    def look(group: Group) -> None:
        step_ms = 1e3 * group.samples_per_step / rate
        if group.world > 1:
            held = group.gradients()
            each = max(1, held["bytes"] // 4 // held["tensors"])
            found["exchange"] = min(1.0, group.exchange_alone([[held["tensors"], each]], _REPEATS)[0]["ms"] / step_ms)
        found["input"] = min(1.0, rate / group.world / group.loading_alone(_LOOK_S)["samples_per_sec"])

    if contender.rates:
        rate = stats.interval(contender.rates)["median"]
        contender.ask(look)
    return found


def compare_counts(
    one: Contender, field: Sequence[Contender], shares: Mapping[str, Mapping[str, Optional[float]]], gpus: bool
) -> Optional[dict[str, Any]]:
    """One device beside several, measured in the same rounds: ``{"rows", "best", "sentence"}``, or None.

    Processes on a CPU share its cores: their efficiency is the throughput ÷ that of one process with all cores.
    """
    ran = [c for c in field if c.failure is None and c.rates and one.rates]
    if one.failure is not None or not ran:
        return None
    alone = one.recipe.num_devices
    rows = [_row(one, one, alone, {}, gpus), *(_row(c, one, alone, shares.get(c.label, {}), gpus) for c in ran)]
    fastest = max(row["samples_per_sec"]["median"] for row in rows)
    best = next(r for r in rows if r["samples_per_sec"]["median"] * (1 + TIE) >= fastest)
    return {"rows": rows, "best": best["devices"], "sentence": _sentence(rows, best, gpus)}


def _row(c: Contender, one: Contender, alone: int, shares: Mapping[str, Optional[float]], gpus: bool) -> dict[str, Any]:
    count, together = c.recipe.num_devices, min(len(c.rates), len(one.rates))  # a slow variant is cut off early
    ratio = None if c is one else stats.ratio_interval(c.rates[:together], one.rates[:together])
    speedup = 1.0 if ratio is None else ratio["median"]
    return {
        "label": c.label, "devices": count, "samples_per_sec": stats.interval(c.rates), "speedup": ratio,
        "efficiency": speedup / (count / alone) if gpus else speedup, "exchange_share": shares.get("exchange"),
        "input_share": shares.get("input"),
    }  # fmt: skip


def _sentence(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], gpus: bool) -> str:
    """
    >>> rate = {"median": 90.0, "ci95": [89.0, 91.0], "n": 9}
    >>> two = {"label": "2 processes", "devices": 2, "samples_per_sec": rate, "efficiency": 0.9,
    ...        "exchange_share": 0.25, "input_share": 0.02}
    >>> one = {**two, "devices": 1, "samples_per_sec": {**rate, "median": 100.0}, "efficiency": 1.0}
    >>> _sentence([one, two], one, gpus=False)
    '1 process is best here: 2 processes reach 0.90 times its throughput; the exchange of gradients takes 25 % ...'
    >>> as_fast = {**two, "efficiency": 1.0, "speedup": {"median": 1.0, "ci95": [0.92, 1.1], "n": 9}}
    >>> _sentence([one, as_fast], as_fast, gpus=False)
    '2 processes: 1.00 times one process (95 %: 0.92–1.10), no certain difference'
    """
    what = ("GPU", "GPUs") if gpus else ("process", "processes")
    count, speedup, efficiency = best["devices"], best.get("speedup"), best["efficiency"]
    name = f"{count} {what[count != 1]}"
    if speedup is not None and speedup["ci95"][0] <= 1:
        text = f"{speedup['median']:.2f} times one {what[0]} {stats.around(speedup)}"
        return f"{best['label']}: {text}, no certain difference"
    if count > 1:
        reached = (
            f"efficiency {100 * efficiency:.0f} %" if gpus else f"{efficiency:.2f} times one process with all cores"
        )
        return f"{name} are best here: {best['label']}, {reached}{_reason(best, gpus)}"
    others = [r for r in rows if r["devices"] != count]
    if not others:
        return f"{name} is best here"
    rival = max(others, key=lambda r: r["samples_per_sec"]["median"])
    ratio = rival["samples_per_sec"]["median"] / best["samples_per_sec"]["median"]
    return f"{name} is best here: {rival['label']} reach {ratio:.2f} times its throughput{_reason(rival, gpus)}"


def _reason(row: Mapping[str, Any], gpus: bool) -> str:
    found, exchange, loading = [], row["exchange_share"], row["input_share"]
    if exchange is not None and exchange >= _SHARE:
        found.append(f"the exchange of gradients takes {100 * exchange:.0f} % of a step")
    if loading is not None and loading >= 0.5:
        found.append(f"the loader is at {100 * loading:.0f} % of what it can give")
    if not found and row["efficiency"] < 0.95:
        why = "waits for the slowest, or memory that they share" if gpus else "the processes share cores and memory"
        found.append(f"neither exchange nor loader explains it: {why}")
    return f"; {', '.join(found)}" if found else ""


SCHEMA = 1
DEVICES = (8, 64, 512)
BANDWIDTHS = (1.25, 12.5, 50.0)  # GB/s: 10, 100 and 400 Gbit/s

_WINDOWS = 12  # of steps; their times stand for those of the devices
_WINDOW_S = 0.25
_NOTE = (
    "This is a model, not a measurement: step, input and exchange times measured here, carried over to machines "
    "that nobody has measured. Contention of switches and of host cores, and faults, are not in it."
)


def scale(
    recipe: Recipe,
    *,
    devices: Sequence[int] = DEVICES,
    bandwidths: Sequence[float] = BANDWIDTHS,
    latency_us: float = 20.0,
    overhead_ms: float = 0.5,
    servers: int | None = None,
    hidden: float = 0.0,
    shared_loader: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Measure one device with ``recipe``, and predict the throughput of many by the scaling model.

    Args:
        recipe: of each device; its batch stays (weak scaling).
        devices: numbers of devices. bandwidths: GB/s of each device's connection, one direction.
        latency_us: of a message. overhead_ms: of an exchange. servers: of the parameter server; None: one for each
            device. hidden: share of the exchange that overlaps the backward pass.
        shared_loader: samples a second of a common source (file server) of all devices; None: no limit.
        say: called with a line of progress. time_limit: seconds of silence after which a run counts as hung.

    Returns:
        ``{"note", "parts", "minimum_bandwidth_gb_per_sec", "rows": [{"algorithm", "gb_per_sec", …}]}``, rows as from
        :func:`gluontune.parallel.scaling.expected`.

    Raises:
        UsageError: an impossible number. GluontuneError (RunFailed): the recipe does not train.
    """
    if min(devices, default=1) < 1:
        raise UsageError(f"devices={min(devices)}: give whole numbers of at least 1")
    links = {speed: Link(speed, latency_us, overhead_ms) for speed in bandwidths}
    alone = recipe.override(engine="local", num_devices=1, exchange_every=1, compression="none")
    say("measuring a step, the loader and the gradients of one device")
    with Group(alone, time_limit=time_limit) as group:
        parts = measure_parts(group, hidden=hidden, shared_loader=shared_loader)
    step = math.fsum(parts.step_ms) / len(parts.step_ms)
    rows = []
    for algorithm, (speed, link), count in itertools.product(ALGORITHMS, links.items(), devices):
        asked = (servers or count) if algorithm == "parameter-server" else None
        found = expected(parts, count, link, algorithm, servers or count)
        rows.append({"algorithm": algorithm, "gb_per_sec": speed, "servers": asked, **found})
    shown = {name: value for name, value in vars(parts).items() if name not in ("step_ms", "hidden")}
    return {
        "schema_version": SCHEMA, "kind": "scale", "note": _NOTE, "recipe": alone.to_dict(),
        "machine": runtime.machine_facts(),
        "given": {"latency_us": latency_us, "overhead_ms": overhead_ms, "hidden": hidden},
        "parts": {"step_ms": step, "slowest_step_ms": max(parts.step_ms), **shown},
        "minimum_bandwidth_gb_per_sec": minimum_bandwidth(parts.gradient_bytes, parts.batch, parts.batch, 1e-3 * step),
        "rows": rows,
    }  # fmt: skip


def measure_parts(group: Group, hidden: float = 0.0, shared_loader: float | None = None) -> Parts:
    size = int(group.ready[0]["samples_per_step"])
    held = group.gradients()
    loading = group.loading_alone(_WINDOW_S * 4)
    first = group.training_alone([size], _WINDOW_S)[str(size)]
    times = [
        group.training_alone([size], max(_WINDOW_S, 3e-3 * first["step_time_ms"]))[str(size)]["step_time_ms"]
        for _ in range(_WINDOWS)
    ]
    rate, inline = float(loading["samples_per_sec"]), group.recipe.num_workers == 0
    return Parts(
        step_ms=times, gradient_bytes=held["bytes"], tensors=held["tensors"], batch=size,
        input_ms=1e3 * size / rate if inline else 0.0, loader_samples_per_sec=None if inline else rate,
        shared_loader_samples_per_sec=shared_loader, hidden=hidden,
    )  # fmt: skip
