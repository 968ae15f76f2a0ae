"""The verdict: the bottleneck of a training, with the evidence and the rung to try next.

The device's share of the step is the time of forward, backward and update (with waits) over that of a usual step. Near
one, the device is the limit; else the longest other phase is the cause. Causes from outside (heat, other programs on
the cores, waits in the user's lines) come first if they explain the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from gluontune.monitor.nvml import THERMAL
from gluontune.monitor.series import mean_of

#: Every kind of verdict, and its meaning.
KINDS = {
    "input-bound": "the device waits for data",
    "copy-bound": "the device waits for batches to be copied to it",
    "compute-bound": "the device is busy with the net itself",
    "launch-bound": "the operators are too small: the device waits for them to be queued",
    "communication-bound": "the devices wait for each other's gradients",
    "sync-bound": "the program waits for results in every step",
    "cpu-starved": "the cores are the limit, not the device",
    "thermally-throttled": "heat holds the device's clock down",
    "unknown": "too little was measured to say",
}

_DEVICE_PHASES = ("forward", "backward", "update")
_COMMUNICATION = ("allreduce", "communication")
_IDLE_MATTERS = 15.0  # percent of the step: with less idle time the device is the limit
_THROTTLED = 10.0  # percent of the samples
_OTHERS_MATTER = 20.0  # percent of all cores taken by other programs while all cores are busy
_WAIT_MATTERS = 35.0  # percent of the time that the training's threads wait for a core
_QUEUEING = 0.6  # share of the device's phases, or of the step, in which the host queues them
_QUEUEING_CPU = 0.35  # the same if the net runs on the cores that queue
_BLOCKED_MATTERS = 25.0  # percent of the step: waits of the host, and its delay in forward and backward


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a training.

    Args:
        kind: a key of :data:`KINDS`.
        sentence: one sentence for the reader, with figures.
        evidence: the figures behind it, units in their names.
        next_rung: the rung of the ladder to try, or None if no rung is the cure.
    """

    kind: str
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    next_rung: Optional[str] = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Case:
    """The signals, as percentages of a usual step where they are shares of time."""

    phases: Mapping[str, float]  # of the sampled steps, percent of a usual step
    device_pct: float
    idle_pct: float
    queue_share: float | None
    host: Mapping[str, float]  # the host's own time on steps without waits, percent of such a step
    # The host's time to queue the device's phases with an empty queue (in sampled steps), percent of a usual step. On
    # other steps a full queue delays the host as well.
    queued_pct: float
    step_ms: float | None
    util: Mapping[str, Any]
    facts: Mapping[str, Any]
    stretch: float = 1.0  # a sampled step's time, of a usual one

    def told(self, *names: str) -> str:
        """The phases' share of a sampled step, as every table and figure of phases has it."""
        return f"{self.share(*names) / self.stretch:.0f} % of the step"

    def share(self, *names: str) -> float:
        return sum(self.phases.get(name, 0.0) for name in names)

    @property
    def ranks(self) -> int:
        devices = int(self.facts.get("num_devices") or 1)
        return max(devices, int(self.facts.get("ranks") or 1))


def verdict(
    phases_report: Mapping[str, Any],
    utilization: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Verdict:
    """The bottleneck of a training.

    Args:
        phases_report: from :meth:`StepPhases.report`; ``phases_pct`` suffices.
        utilization: from :meth:`Monitor.series`; may be empty.
        facts: the known ones of ``device`` (``cpu``, ``gpu``, ``simulated``), ``num_workers``, ``loader``,
            ``hybridize``, ``dtype``, ``num_devices``, ``ranks``, ``usable_cores``, ``batch_size_per_device``,
            and ``syncs`` (from :meth:`SyncTrace.report`) with ``steps``, the steps that they cover.

    Returns:
        The verdict; kind ``unknown`` if no step was measured.

    >>> it = verdict({"phases_pct": {"data": 70.0, "forward": 10.0, "backward": 20.0}}, {}, {"num_workers": 0})
    >>> it.kind, it.next_rung
    ('input-bound', 'multi-worker')
    """
    shares = phases_report.get("phases_pct") or {}
    if not shares or sum(shares.values()) <= 0:
        return Verdict("unknown", "No training step was measured in phases, so nothing can be said.")
    case = _case(phases_report, utilization or {}, facts or {})
    return next(found for rule in _RULES if (found := rule(case)) is not None)


def _case(report: Mapping[str, Any], util: Mapping[str, Any], facts: Mapping[str, Any]) -> _Case:
    times = report.get("step_time_ms") or {}
    sampled, usual = times.get("sampled"), times.get("unsampled")
    stretch = sampled / usual if sampled and usual else 1.0
    phases = {name: share * stretch for name, share in report["phases_pct"].items()}
    device = min(100.0, sum(phases.get(name, 0.0) for name in (*_DEVICE_PHASES, *_COMMUNICATION)))
    queued, full = report.get("queue_ms") or {}, report.get("phases_ms") or {}
    device_ms = sum(full.get(name, 0.0) for name in ("forward", "backward"))
    queue = sum(queued.get(name, 0.0) for name in ("forward", "backward")) / device_ms if device_ms else None
    host = {name: 100 * ms / usual for name, ms in (report.get("host_ms") or {}).items()} if usual else {}
    step_ms = usual or sampled
    ahead = 100 * sum(queued.get(name, 0.0) for name in _DEVICE_PHASES) / step_ms if step_ms else 0.0
    return _Case(phases, device, 100.0 - device, queue, host, ahead, step_ms, util, facts, stretch)


def _thermally_throttled(case: _Case) -> Verdict | None:
    masks = [m for row in (case.util.get("gpu_throttle_mask") or {}).values() for m in row if m is not None]
    if not masks:
        return None
    share = 100 * sum(int(mask) & THERMAL != 0 for mask in masks) / len(masks)
    if share < _THROTTLED:
        return None
    hottest = [t for row in (case.util.get("gpu_temp_c") or {}).values() for t in row if t is not None]
    warm = f" at up to {max(hottest):.0f} °C" if hottest else ""
    sentence = f"Heat held the GPU's clock down in {share:.0f} % of the samples{warm}: mend the cooling or lower the "
    sentence += "power limit before anything else."
    evidence = {"thermal_samples_pct": share, "hottest_c": max(hottest, default=None)}
    return Verdict("thermally-throttled", sentence, evidence)


def _cpu_starved(case: _Case) -> Verdict | None:
    tree, whole = mean_of(case.util.get("cpu_pct")), mean_of(case.util.get("system_cpu_pct"))
    quota = mean_of(case.util.get("cpu_quota_throttled_pct"))
    waited = mean_of(case.util.get("cpu_wait_pct"))
    evidence = {"cpu_pct": tree, "system_cpu_pct": whole, "cpu_wait_pct": waited, "cpu_quota_throttled_pct": quota}
    if quota is not None and quota >= _THROTTLED:
        sentence = f"The container's CPU quota stopped the processes in {quota:.0f} % of its periods: ask for more "
        sentence += "cores or start fewer threads and workers."
        return Verdict("cpu-starved", sentence, evidence, "environment")
    # Others may fill free cores: they harm this training only if its threads wait.
    held_up = waited is None or waited >= _WAIT_MATTERS
    if tree is not None and whole is not None and whole >= 90.0 and whole - tree >= _OTHERS_MATTER and held_up:
        waits = "" if waited is None else f" and waits for a core {waited:.0f} % of the time"
        sentence = f"Other programs take {whole - tree:.0f} % of the cores, and all are busy ({whole:.0f} %): this "
        sentence += f"training gets {tree:.0f} %{waits}."
        return Verdict("cpu-starved", sentence, evidence)
    accelerated = case.facts.get("device", "cpu") != "cpu"
    waiting = case.share("data")
    if accelerated and tree is not None and tree >= 90.0 and waiting >= _IDLE_MATTERS:
        rung = "records" if case.facts.get("loader", "gluon") == "gluon" else None
        sentence = f"The device waits for data {waiting:.0f} % of the step while every core is busy ({tree:.0f} %): "
        sentence += "more workers cannot help, cheaper decoding can."
        return Verdict("cpu-starved", sentence, {**evidence, "data_pct": waiting}, rung)
    return None


def _sync_bound(case: _Case) -> Verdict | None:
    rows = list(case.facts.get("syncs") or [])
    steps = int(case.facts.get("steps") or 0)
    calls = sum(row["calls"] for row in rows) / steps if steps else 0.0
    blocked = sum(row["blocked_ms"] for row in rows) / steps if steps else 0.0
    blocked_pct = 100 * blocked / case.step_ms if case.step_ms else 0.0
    # One wait a step costs only the overlap that it prevents: the host's share of the step. Several waits a step break
    # the queue, which shows as a host that is delayed in forward and backward.
    held = case.host.get("metrics", 0.0) - case.phases.get("metrics", 0.0)
    lost = min(case.share("data", "copy", "metrics", "rest"), max(0.0, held))
    lost += (case.queue_share or 0.0) * case.share("forward", "backward")
    cut = calls >= 2.0 and blocked_pct >= _BLOCKED_MATTERS and case.queued_pct >= _BLOCKED_MATTERS
    loaded = case.share("data", "copy") < _IDLE_MATTERS
    if not (cut or (loaded and held >= 30.0 and lost >= _IDLE_MATTERS)):
        return None
    where = f" ({rows[0]['where']}, {rows[0]['call']})" if rows else " in the metrics"
    times = f"{calls:.0f} times a step" if calls >= 2 else "in every step"
    sentence = f"The program waits for a result {times}{where}, so that the next work is not queued meanwhile: keep "
    sentence += "the values on the device and read them once every many steps."
    lines, held_up = [row["where"] for row in rows[:3]], max(held, blocked_pct)
    return Verdict("sync-bound", sentence, {"waits_per_step": calls or None, "where": lines, "held_up_pct": held_up})


def _outside_bound(case: _Case) -> Verdict | None:
    """Input, copying or communication: the longest wait of the device, if it is long enough."""
    talk = case.share(*_COMMUNICATION) or (case.share("update") if case.ranks > 1 else 0.0)
    causes = {"data": case.share("data"), "copy": case.share("copy"), "communication": talk}
    name = max(causes, key=lambda cause: causes[cause])
    share = causes[name]
    busy = {"device_busy_pct": case.device_pct}
    if share < _IDLE_MATTERS or (name != "communication" and case.idle_pct < _IDLE_MATTERS):
        return None
    gluon = case.facts.get("loader", "gluon") == "gluon"
    if name == "data":
        sentence = f"Waiting for data takes {case.told('data')}: the loader is slower than the device."
        rung = "multi-worker" if gluon and not case.facts.get("num_workers") else "records"
        return Verdict("input-bound", sentence, {"data_pct": share, **busy}, rung)
    if name == "copy":
        sentence = f"Copying batches to the device takes {case.told('copy')}: send smaller types (uint8 pixels, "
        sentence += "float16) and convert them there."
        return Verdict("copy-bound", sentence, {"copy_pct": share, **busy}, "records" if gluon else "mixed-precision")
    if share < case.share("forward", "backward") / 2:
        return None
    sentence = f"Exchanging gradients among {case.ranks} devices takes {share:.0f} % of the step: a larger batch "
    sentence += "exchanges them less often."
    return Verdict("communication-bound", sentence, {"communication_pct": share, "ranks": case.ranks}, "large-batch")


def _launch_bound(case: _Case) -> Verdict | None:
    queueing = max(case.queue_share or 0.0, case.queued_pct / 100)
    if queueing < (_QUEUEING_CPU if case.facts.get("device", "cpu") == "cpu" else _QUEUEING):
        return None
    imperative = case.facts.get("hybridize", "imperative") == "imperative"
    batch = case.facts.get("batch_size_per_device")
    size = f" at batch {batch}" if batch else ""
    cure = "one graph instead of single operators (hybridize)" if imperative else "a larger batch"
    percent = min(100.0, 100 * queueing)
    sentence = f"Queueing the operators takes {percent:.0f} % of the net's time{size}: they are too small for the "
    sentence += f"device; {cure} helps."
    evidence = {"queueing_pct": percent, "batch_size_per_device": batch}
    return Verdict("launch-bound", sentence, evidence, "hybridized" if imperative else "large-batch")


def _compute_bound(case: _Case) -> Verdict:
    tree, told = mean_of(case.util.get("cpu_pct")), case.told(*_DEVICE_PHASES, *_COMMUNICATION)
    evidence = {"device_busy_pct": case.device_pct, "cpu_pct": tree}
    on_cpu = case.facts.get("device", "cpu") == "cpu"
    cores = case.facts.get("usable_cores")
    if on_cpu and tree is not None and tree < 70.0 and cores != 1:
        sentence = f"The net itself takes {told} but uses only {tree:.0f} % of the cores: give it more threads."
        return Verdict("compute-bound", sentence, evidence, "environment")
    sentence = f"The net itself takes {told}: make its arithmetic cheaper."
    return Verdict("compute-bound", sentence, evidence, _compute_rung(case))


def _compute_rung(case: _Case) -> str:
    if case.facts.get("hybridize", "imperative") == "imperative":
        return "hybridized"
    if case.facts.get("dtype", "float32") == "float32":
        return "mixed-precision"
    return "multi-device" if case.ranks == 1 else "large-batch"


_Rule = Callable[[_Case], Optional[Verdict]]
_RULES: Sequence[_Rule] = (
    _thermally_throttled, _cpu_starved, _sync_bound, _outside_bound, _launch_bound, _compute_bound,
)  # fmt: skip
