"""The link between ranks of this machine, fitted to measured exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.parallel import horovod
from gluontune.parallel.scaling import Link
from gluontune.recipe import Recipe
from gluontune.runtime.packages import to_make
from gluontune.training.group import Group

__all__ = ["fit_link", "measure_link"]

# Tensors and float32 values in each, of the exchanges from which a link's bandwidth and overheads are fitted.
_KINDS = [[1, 256], [1, 65_536], [1, 1_048_576], [1, 4_194_304], [64, 256], [64, 16_384]]
_REPEATS = 15


def measure_link(engine: str, ranks: int = 2, base: Recipe | None = None) -> tuple[Link, list[dict[str, float]]]:
    """The link between ranks of this machine, and the measured exchanges to which it is fitted.

    Raises:
        GluontuneError: the engine is not installed.
    """
    if engine == "horovod" and horovod.installed() is None:
        raise GluontuneError(f"Horovod is not installed: choose --engine kvstore, or: {to_make('horovod')}")
    probe = (base or Recipe()).override(
        net="softmax", loader="resident", num_workers=0, runtime="tuned", engine=engine, num_devices=ranks,
        batch_size_per_device=8, rewrites=(), exchange_every=1,
    )  # fmt: skip
    with Group(probe) as group:
        found = group.exchange_alone(_KINDS, _REPEATS)
    algorithm = "ring" if engine == "horovod" else "parameter-server"
    return fit_link(found, ranks, algorithm), found


def fit_link(measured: Sequence[Mapping[str, float]], devices: int = 2, algorithm: str = "ring") -> Link:
    """Bandwidth and overheads from exchanges of several sizes between ``devices`` devices.

    Non-negative least squares on relative errors, so that small exchanges count as much as large ones.

    Args:
        measured: ``{"bytes", "tensors", "ms"}`` of at least two sizes; of two numbers of tensors, too, for
            ``tensor_us``.

    >>> rows = [{"bytes": 1e6, "tensors": 1, "ms": 2.0}, {"bytes": 9e6, "tensors": 1, "ms": 10.0}]
    >>> link = fit_link([*rows, {"bytes": 1e6, "tensors": 101, "ms": 4.0}])
    >>> round(link.gb_per_sec, 6), round(link.overhead_ms, 6), round(link.tensor_us, 6)
    (1.0, 0.98, 20.0)
    """
    if len({row["bytes"] for row in measured}) < 2 or min(row["ms"] for row in measured) <= 0:
        raise UsageError("fit_link: give the times, above 0, of at least two sizes")
    import numpy as np
    from scipy import optimize

    sizes, counts, times = (np.array([row[k] for row in measured], float) for k in ("bytes", "tensors", "ms"))
    table = np.stack([np.ones_like(sizes), sizes / sizes.max(), counts], axis=1) / times[:, None]
    (overhead, largest, each), _ = optimize.nnls(table, np.ones_like(times))
    per_byte = largest / sizes.max()
    carried = 2 * (devices - 1) / devices if algorithm == "ring" else 2.0 * devices
    speed = 1e-6 * carried / per_byte if per_byte > 0 else 1e6
    return Link(float(speed), 0.0, float(overhead), 1e3 * float(each))
