"""Why a device idles, and how steady it is: samplers, steadiness, step phases, verdicts, logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.monitor.command import estimator_handler as estimator_handler
    from gluontune.monitor.command import run_command as run_command
    from gluontune.monitor.live import watch as watch
    from gluontune.monitor.logs import JsonLines as JsonLines
    from gluontune.monitor.logs import TensorBoard as TensorBoard
    from gluontune.monitor.logs import prometheus_text as prometheus_text
    from gluontune.monitor.logs import read_log as read_log
    from gluontune.monitor.logs import run_result as run_result
    from gluontune.monitor.nvml import NvmlSampler as NvmlSampler
    from gluontune.monitor.nvml import throttle_reasons as throttle_reasons
    from gluontune.monitor.phases import StepPhases as StepPhases
    from gluontune.monitor.phases import SyncTrace as SyncTrace
    from gluontune.monitor.phases import trace_syncs as trace_syncs
    from gluontune.monitor.sampler import Monitor as Monitor
    from gluontune.monitor.series import steadiness as steadiness
    from gluontune.monitor.series import steadiness_of as steadiness_of
    from gluontune.monitor.simulated import SimulatedDevice as SimulatedDevice
    from gluontune.monitor.verdicts import Verdict as Verdict
    from gluontune.monitor.verdicts import verdict as verdict
    from gluontune.monitor.whatif import attainable_flops as attainable_flops
    from gluontune.monitor.whatif import compare as compare
    from gluontune.monitor.whatif import expected_throughput as expected_throughput
    from gluontune.monitor.whatif import fit_step_time as fit_step_time
    from gluontune.monitor.whatif import measured_peaks as measured_peaks
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
