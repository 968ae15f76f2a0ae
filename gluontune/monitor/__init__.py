"""The reasons why a device idles, and its steadiness: samplers, step phases, verdicts, logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.monitor.command import (
        estimator_handler as estimator_handler,
        run_command as run_command,
        watch as watch,
    )
    from gluontune.monitor.logs import (
        JsonLines as JsonLines,
        TensorBoard as TensorBoard,
        prometheus_text as prometheus_text,
        read_log as read_log,
        run_result as run_result,
    )
    from gluontune.monitor.nvml import NvmlSampler as NvmlSampler, throttle_reasons as throttle_reasons
    from gluontune.monitor.phases import StepPhases as StepPhases, SyncTrace as SyncTrace, trace_syncs as trace_syncs
    from gluontune.monitor.sampler import Monitor as Monitor
    from gluontune.monitor.series import steadiness as steadiness, steadiness_of as steadiness_of
    from gluontune.monitor.verdicts import Verdict as Verdict, verdict as verdict
    from gluontune.monitor.whatif import (
        SimulatedDevice as SimulatedDevice,
        attainable_flops as attainable_flops,
        compare as compare,
        expected_throughput as expected_throughput,
        fit_step_time as fit_step_time,
        measured_peaks as measured_peaks,
    )
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
