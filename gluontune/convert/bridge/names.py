"""Converted modules: their arrays under Gluon's names, and passes that make their training faster.

torch.fx writes names of inputs, layers and arrays into Python text, and a symbol may come from an untrusted source.
Names with other characters are replaced in the module, which stores the map.
"""

from __future__ import annotations

import functools
import importlib
import keyword
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.bridge.registry import OPERATORS
from gluontune.convert.graph.params import write_params
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet, set_data
from gluontune.runtime.pytorch import torch

_PLAIN = re.compile(r"[\w /:+-]{1,200}")
_DEEPEST = 20  # modules within modules; deepcopy ends at Python's limit
# Names in the source of a forward method beside its arguments.
_READ = {"self", "getattr", "slice", "float", "device", "inf", "nan", "NoneType", "pytree", "fx_pytree"}
_KEY = "gluon_names"


def identifier(name: str, taken: set[str]) -> str:
    """A name for source like ``name``, not in ``taken``, which gets it.

    >>> taken = set()
    >>> identifier("data", taken), identifier("da/ta", taken), identifier("da:ta", taken), identifier("class", taken)
    ('data', 'da_ta', 'da_ta_2', '_class')
    """
    made = re.sub(r"\W", "_", name[-200:], flags=re.ASCII) or "_"
    if made[0].isdigit() or keyword.iskeyword(made) or made in _READ or made.startswith(("torch", "gluontune_")):
        made = "_" + made
    wanted, number = made, len(taken)
    while made in taken:
        made, number = f"{wanted}_{number}", number + 1
    taken.add(made)
    return made


def gluon_names(module: Any) -> dict[str, str]:
    """Gluon's names of renamed arrays in a module of ``to_torch``, by the new names."""
    return dict(getattr(module, "meta", {}).get(_KEY, {}))


def is_attribute(name: str) -> bool:
    """Whether source can have it as an attribute; ``self.__x`` is another name in a class.

    >>> is_attribute("fc"), is_attribute("0"), is_attribute("class"), is_attribute("ﬁ"), is_attribute("__x")
    (True, False, False, False, False)
    """
    return _is_spelled(name) and (not name.startswith("__") or name.endswith("__"))


def _is_spelled(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.is_normalized("NFKC", name)


def is_free(name: str) -> bool:
    """Whether PyTorch's modules have no attribute of that name."""
    return bool(name) and not hasattr(torch().nn.Module(), name)


class Places:
    """The places of a symbol's arrays in a module: Gluon's names (dots separate modules), if valid in source."""

    def __init__(self, root: Any):
        self.root = root
        self.of: dict[str, str] = {}
        self._taken = set(_reserved())

    def home(self, name: str) -> tuple[Any, str]:
        """The submodule for the array ``name``, and the array's name in it."""
        *path, leaf = name.split(".")
        home = self.root if len(path) < _DEEPEST and all(map(_plain, [*path, leaf])) else None
        self._taken.update(path[:1])
        for part in path:
            if home is not None and not hasattr(home, part) and part not in _reserved():
                home.add_module(part, torch().nn.Module())
            home = None if home is None else home._modules.get(part)
        if home is None or hasattr(home, leaf) or leaf in _reserved():
            home, path, leaf = self.root, [], identifier(name, self._taken)
        self._taken.update(() if path else (leaf,))
        self.of[name] = ".".join([*path, leaf])
        return home, leaf

    def layer(self, name: str) -> str:
        return identifier(name or "layer", self._taken)

    def store(self, module: Any) -> None:
        """Store the map in the module, and so in its copies."""
        module.meta[_KEY] = {place: name for name, place in self.of.items() if place != name}


def _plain(part: str) -> bool:
    return bool(_PLAIN.fullmatch(part)) and (_is_spelled(part) or not part.isidentifier())


@functools.cache
def _reserved() -> frozenset[str]:
    """Attributes of every converted module."""
    library = torch()
    return frozenset({*dir(library.fx.GraphModule(library.nn.Module(), library.fx.Graph())), "inputs"})


def from_torch(module: Any, to: Any = None) -> dict[str, np.ndarray]:
    """Parameters and running statistics of a module of ``to_torch``, by Gluon's names.

    Args:
        module: on any device. bfloat16 is returned as float32.
        to: a Gluon block to fill, or a ``.params`` file to write (as ``net.export`` does: ``SymbolBlock.imports`` and
            ``mx.mod`` read it). None: only return them.

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
        tensor = tensor.float() if tensor.dtype == library.bfloat16 else tensor
        arrays[names.get(place, place)] = tensor.numpy().copy()
    if isinstance(to, (str, Path)):
        trained = {names.get(place, place) for place, _ in module.named_parameters()}
        write_params(to, {("arg:" if n in trained else "aux:") + n: a for n, a in arrays.items()})
    elif to is not None:
        _fill(to, arrays)
    return arrays


def _fill(net: Any, arrays: dict[str, np.ndarray]) -> None:
    parameters = net.collect_params()
    unknown = [name for name in arrays if name not in parameters]
    lacking = [name for name in parameters if name not in arrays]
    if unknown or lacking:
        fault = f"the block has no {unknown[0]}" if unknown else f"the module has no {lacking[0]}"
        raise GluontuneError(f"block and module are not the same net: {fault}")
    mx = mxnet()
    for name, array in arrays.items():
        shape = parameters[name].shape
        if shape is not None and all(n > 0 for n in shape) and tuple(shape) != array.shape:
            raise GluontuneError(f"parameter {name}: the module has {array.shape}, the block {tuple(shape)}")
        set_data(parameters[name], mx.nd.array(array, dtype=array.dtype))


# Operators whose output is a new tensor that their backward pass does not read.
_FRESH = ("Convolution", "FullyConnected", "elemwise_add", "broadcast_add", "BatchNorm")


def quicken(module: Any) -> int:
    """Move rectifiers behind max-pooling, where they have fewer elements, and let them write into their input.

    A rectifier and a maximum commute; the window's first greatest number gets the gradient in both orders, and none if
    all are below zero. Rectifiers work in place after a convolution, dense layer, sum, BatchNorm or max-pooling whose
    output nothing else reads.

    Args:
        module: of :func:`gluontune.bridge.to_torch`; changed.

    Returns:
        the number of changed layers.
    """
    importlib.import_module("gluontune.convert.bridge.operators")
    parts = [part for part in module.modules() if isinstance(part, torch().fx.GraphModule)]  # two modes have three
    return sum(_quicken(part) for part in parts)


def _quicken(module: Any) -> int:
    graph, changed = module.graph, 0
    relu, pooling = OPERATORS["Activation"].run, OPERATORS["Pooling"].run
    fresh = {OPERATORS[name].run for name in _FRESH}
    for node in list(graph.nodes):
        if node.target is pooling and _commutes(node) and _is_relu(node.args[0], relu):
            rectifier = node.args[0]
            node.args = (rectifier.args[0], *node.args[1:])
            with graph.inserting_after(node):
                after = graph.call_function(relu, (node,), dict(rectifier.kwargs))
            node.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
            graph.erase_node(rectifier)
            changed += 1
    for node in graph.nodes:
        if _is_relu(node, relu, alone=False) and len(node.args[0].users) == 1:
            source = node.args[0]
            kind = type(module.get_submodule(source.target)) if source.op == "call_module" else source.target
            if kind in fresh or (kind is pooling and _commutes(source) and not source.kwargs.get("global_pool")):
                node.target, node.kwargs = torch().relu_, {}
                changed += 1
    module.recompile()
    return changed


def _is_relu(node: Any, relu: Any, alone: bool = True) -> bool:
    is_one = node.target is relu and node.kwargs.get("act_type") == "relu"
    return is_one and (not alone or len(node.users) == 1)


def _commutes(node: Any) -> bool:
    """Whether a pooling takes maxima of windows within the image."""
    how = node.kwargs
    within = not any(how.get("pad") or ()) and how.get("pooling_convention", "valid") == "valid"
    return how.get("pool_type", "max") == "max" and (within or bool(how.get("global_pool")))
