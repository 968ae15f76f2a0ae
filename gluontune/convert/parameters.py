"""Parameters for a net, from arrays named by structure or from MXNet's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.graph.params import read_params
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import read_npz
from gluontune.runtime import mxnet, set_data


def set_parameters(net: Any, arrays: Mapping[str, Any], source: str = "parameters") -> None:
    """Set every parameter of ``net`` from arrays with the names of ``net.save_parameters``.

    Names may begin with ``net.``, as those of a net behind an input stage.

    Args:
        net: an initialized Gluon block. arrays: NDArrays or numpy arrays by name.
        source: their name in errors.

    Raises:
        GluontuneError: names one that is missing, left over, or of another shape.

    >>> from gluontune.runtime import mxnet, set_data
    >>> import numpy as np
    >>> net = mxnet().gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> set_parameters(net, {"weight": np.ones((1, 2)), "bias": np.zeros(1)})
    >>> net(mxnet().nd.ones((1, 2))).asnumpy().tolist()
    [[2.0]]
    """
    mx = mxnet()
    mine = net._collect_params_with_prefix()
    saved = {k[4:] if k.startswith("net.") and k not in mine else k: v for k, v in arrays.items()}
    for name in [*mine, *saved]:
        if name not in saved or name not in mine:
            where = "not in the file" if name not in saved else "not in the net"
            raise GluontuneError(f"{source}: of another net: parameter {name} is {where}")
        shape = mine[name].shape  # None in a net of SymbolBlock.imports
        if shape is not None and (
            len(shape) != np.ndim(saved[name]) or any(a > 0 and a != b for a, b in zip(shape, saved[name].shape))
        ):
            raise GluontuneError(
                f"{source}: of another net: parameter {name} has shape {tuple(saved[name].shape)}, the net's "
                f"{tuple(shape)}"
            )
    for name, parameter in mine.items():
        values = np.asarray(saved[name], "float32")
        if not parameter._data:
            parameter.shape = values.shape
            parameter.initialize(ctx=mx.cpu())
        set_data(parameter, mx.nd.array(values))


def load_parameters(net: Any, path: str | Path) -> None:
    """Load parameters from a file: ``.params`` (MXNet's) or ``.npz`` (numpy's)."""
    file = Path(path)
    if not file.is_file():
        raise GluontuneError(f"{path}: no such file; give a checkpoint, its folder, a .params or a .npz file")
    if file.suffix == ".npz":
        try:
            arrays: dict[str, Any] = read_npz(file)
        except (OSError, ValueError) as error:
            raise GluontuneError(f"{path}: cannot be read as .npz: {error}") from error
    elif file.suffix == ".params":
        arrays = read_params(file)  # not by MXNet's reader: damaged files end its process
    else:
        raise UsageError(f"{path}: give a checkpoint (.ckpt), its folder, a .params or a .npz file")
    set_parameters(net, arrays, str(path))


def perturb(net: Any, seed: int = 0) -> None:
    """Move gammas, betas and running statistics off their initial values, so that a mix-up changes outputs."""
    rng, mx = np.random.default_rng(seed), mxnet()
    for name, parameter in net.collect_params().items():
        if name.endswith(("gamma", "running_var")):
            values = rng.uniform(0.8, 1.2, parameter.shape)
        elif name.endswith(("beta", "running_mean", "bias")):
            values = rng.normal(0, 0.1, parameter.shape)
        else:
            continue
        set_data(parameter, mx.nd.array(values))
