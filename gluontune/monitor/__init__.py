"""Why a device idles, and how steady it is: samplers, steadiness, step phases, verdicts, logs."""

from __future__ import annotations

from typing import Any

from gluontune import lazy

# where each public name lives; a room is imported when one of its names is first used
_HOMES = {
    "JsonLines": "logs",
    "Monitor": "sampler",
    "NvmlSampler": "nvml",
    "SimulatedDevice": "simulated",
    "StepPhases": "phases",
    "SyncTrace": "syncs",
    "TensorBoard": "logs",
    "Verdict": "verdicts",
    "attainable_flops": "whatif",
    "compare": "whatif",
    "estimator_handler": "estimator",
    "expected_throughput": "whatif",
    "fit_step_time": "whatif",
    "measured_peaks": "whatif",
    "prometheus_text": "logs",
    "read_log": "logs",
    "run_command": "command",
    "run_result": "logs",
    "steadiness": "steady",
    "steadiness_of": "series",
    "throttle_reasons": "nvml",
    "trace_syncs": "syncs",
    "together": "steady",
    "verdict": "verdicts",
    "watch": "live",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
