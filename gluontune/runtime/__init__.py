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
    from gluontune.runtime.arrays import (
        as_nd_array as as_nd_array,
        as_net_array as as_net_array,
        put_values as put_values,
        set_data as set_data,
        uses_np as uses_np,
    )
    from gluontune.runtime.cpu import (
        AMX_ENV as AMX_ENV,
        amx_support as amx_support,
        memory_limit_mib as memory_limit_mib,
        usable_cores as usable_cores,
    )
    from gluontune.runtime.facts import (
        can_run_mxnet_on_gpu as can_run_mxnet_on_gpu,
        gpu_count as gpu_count,
        machine_facts as machine_facts,
    )
    from gluontune.runtime.importing import mxnet as mxnet
    from gluontune.runtime.launch import (
        LaunchSettings as LaunchSettings,
        applied as applied,
        bind_to_cpus as bind_to_cpus,
        child_env as child_env,
        cpus_for_rank as cpus_for_rank,
        install_kernel as install_kernel,
        launch_settings as launch_settings,
    )
    from gluontune.runtime.system import System as System
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
