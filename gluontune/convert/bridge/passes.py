"""Changes of a converted graph with the same outputs and gradients, bit by bit, and faster training."""

from __future__ import annotations

import importlib
from typing import Any

from gluontune.convert.bridge.registry import OPERATORS
from gluontune.runtime.pytorch import torch

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

    >>> library = torch()
    >>> nodes = [{"op": "null", "name": "x", "inputs": []},
    ...   {"op": "Activation", "name": "relu", "attrs": {"act_type": "relu"}, "inputs": [[0, 0, 0]]},
    ...   {"op": "Pooling", "name": "pool", "attrs": {"kernel": "(2, 2)", "pool_type": "max"}, "inputs": [[1, 0, 0]]}]
    >>> import json
    >>> from gluontune.bridge import to_torch
    >>> net = to_torch(json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[2, 0, 0]]}), {})
    >>> quicken(net), net(library.tensor([[[[-3.0, 1.0], [2.0, -1.0]]]])).tolist()
    (2, [[[[2.0]]]])
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
