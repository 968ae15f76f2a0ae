"""The parameters of a converted module, given back to Gluon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.bridge.names import gluon_names
from gluontune.convert.graph.params import write_params
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime.pytorch import torch


def from_torch(module: Any, to: Any = None) -> dict[str, np.ndarray]:
    """Parameters and running statistics of a module that ``to_torch`` made, by Gluon's names.

    Args:
        module: as it is now, on any device. bfloat16 comes back as float32.
        to: a Gluon block that is filled with them, or a ``.params`` file to write (as ``net.export`` does:
            ``SymbolBlock.imports`` and ``mx.mod`` read it). None: only return them.

    Raises:
        GluontuneError: the block lacks a parameter of the module, or the module one of the block's.

    >>> module = torch().nn.Module()
    >>> module.fc_weight = torch().nn.Parameter(torch().ones(2, 3))
    >>> from_torch(module)["fc_weight"].shape
    (2, 3)
    """
    library = torch()
    if not isinstance(module, library.nn.Module):
        raise UsageError(f"from_torch takes a torch.nn.Module, not {type(module).__name__}")
    names, arrays = gluon_names(module), {}
    for place, tensor in module.state_dict().items():
        tensor = tensor.detach().cpu()
        arrays[names.get(place, place)] = (
            (tensor.float() if tensor.dtype == library.bfloat16 else tensor).numpy().copy()
        )
    if isinstance(to, (str, Path)):
        trained = {names.get(place, place) for place, _ in module.named_parameters()}
        write_params(to, {("arg:" if n in trained else "aux:") + n: a for n, a in arrays.items()})
    elif to is not None:
        _fill(to, arrays)
    return arrays


def _fill(net: Any, arrays: dict[str, np.ndarray]) -> None:
    from gluontune.runtime import mxnet, set_data

    parameters = net.collect_params()
    unknown = [name for name in arrays if name not in parameters]
    lacking = [name for name in parameters if name not in arrays]
    if unknown or lacking:
        told = f"the block has no {unknown[0]}" if unknown else f"the module has no {lacking[0]}"
        raise GluontuneError(f"block and module are not the same net: {told}")
    mx = mxnet()
    for name, array in arrays.items():
        shape = parameters[name].shape
        if shape is not None and all(n > 0 for n in shape) and tuple(shape) != array.shape:
            raise GluontuneError(f"parameter {name}: the module has {array.shape}, the block {tuple(shape)}")
        set_data(parameters[name], mx.nd.array(array, dtype=array.dtype))
