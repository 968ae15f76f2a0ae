"""The platform: making mxnet importable, launch settings, facts of the machine, the doctor.

Nothing here imports mxnet except :func:`mxnet` itself.

>>> import gluontune as gt
>>> gt.runtime.usable_cores() >= 1
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.runtime import doctor as doctor
    from gluontune.runtime.amx import AMX_ENV as AMX_ENV
    from gluontune.runtime.amx import amx_support as amx_support
    from gluontune.runtime.arrays import as_nd_array as as_nd_array
    from gluontune.runtime.arrays import as_net_array as as_net_array
    from gluontune.runtime.arrays import put_values as put_values
    from gluontune.runtime.arrays import set_data as set_data
    from gluontune.runtime.arrays import uses_np as uses_np
    from gluontune.runtime.cpu import memory_limit_mib as memory_limit_mib
    from gluontune.runtime.cpu import usable_cores as usable_cores
    from gluontune.runtime.facts import can_run_mxnet_on_gpu as can_run_mxnet_on_gpu
    from gluontune.runtime.facts import gpu_count as gpu_count
    from gluontune.runtime.facts import machine_facts as machine_facts
    from gluontune.runtime.importing import mxnet as mxnet
    from gluontune.runtime.kernel import install_kernel as install_kernel
    from gluontune.runtime.launch import LaunchSettings as LaunchSettings
    from gluontune.runtime.launch import applied as applied
    from gluontune.runtime.launch import bind_to_cpus as bind_to_cpus
    from gluontune.runtime.launch import child_env as child_env
    from gluontune.runtime.launch import cpus_for_rank as cpus_for_rank
    from gluontune.runtime.launch import launch_settings as launch_settings
    from gluontune.runtime.system import System as System
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
