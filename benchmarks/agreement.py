"""Agreement of a rewritten network with the original: outputs and gradients, in float32 and in float64.

Two networks that are equal on paper differ in float32 by rounding, and a gradient that is zero on paper
(that of a bias before a BatchNorm, say) is nothing but rounding: a difference relative to itself then
means nothing. So the original also runs in float64, imperatively, without oneDNN. That run, the *truth*,
gives each array its scale (its largest absolute value there), shows which gradients are zero on paper
(below ``ZERO`` of the largest gradient: float64's own rounding), and how far the original's float32 is
from the truth. An array agrees if one of these holds:

* the difference between both float32 runs is at most ``tolerance`` times its scale;
* the rewritten run is as near to the truth as the original is (at most ``AS_NEAR`` times as far): the
  difference is float32's rounding.

The rewritten network runs in float64, too, where a difference above 1e-5 of a scale is a mathematical one. Rewrites
whose operators exist in float32 only cannot be checked in this way, and are named.

The contenders' processes import this module; it imports mxnet when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluontune.core.arrays import distance, size

__all__ = ["AS_NEAR", "TOLERANCE", "ZERO", "agreement"]

TOLERANCE = 1e-5
AS_NEAR = 2.0
ZERO = 1e-11

Arrays = dict[str, Any]


def agreement(net: Any, x: Any, rewrites: Sequence[str], tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Compare ``net`` with and without ``rewrites``. The net is in float64 afterwards: give a spare one.

    Args:
        net: an initialized HybridBlock; Dropout is switched off in it. x: a float32 batch.
        rewrites: names that apply to it.

    Returns:
        ``{"agrees", "arrays", "outputs", "gradients", "above", "float64", "zero_on_paper",
        "float32_only"}``: the largest relative differences in float32; the arrays ``above`` the tolerance,
        each with its ratio of distances to the truth; the largest difference in float64.
    """
    from gluontune.runtime import mxnet

    _switch_off_dropout(net)
    mx = mxnet()
    original = _run(mx, net, x, (), "static")
    rewritten = _run(mx, net, x, rewrites, "static")
    net.cast("float64")
    truth = _run(mx, net, x.astype("float64"), (), "imperative")
    double, left_out = _in_float64(mx, net, x.astype("float64"), rewrites)
    largest = max(size(v) for k, v in truth.items() if not k.startswith("output"))
    scales = {k: size(v) for k, v in truth.items()}
    zeros = [k for k in truth if not k.startswith("output") and scales[k] <= ZERO * largest]
    found: dict[str, float] = {"outputs": 0.0, "gradients": 0.0, "float64": 0.0}
    above: list[dict[str, Any]] = []
    for key in truth:
        kind = "outputs" if key.startswith("output") else "gradients"
        if key in zeros:
            scale = largest  # against the network's gradients: its own scale is rounding
        else:
            scale = scales[key] or 1.0
        difference = distance(rewritten[key], original[key]) / scale
        found[kind] = max(found[kind], difference)
        found["float64"] = max(found["float64"], distance(double[key], truth[key]) / scale)
        if not difference <= tolerance:
            away = distance(original[key], truth[key])
            ratio = distance(rewritten[key], truth[key]) / away if 0 < away < np.inf else float("inf")
            above.append({"array": key, "difference": difference, "ratio_of_distances": min(ratio, 1e9)})
    agrees = found["float64"] <= tolerance and all(float(a["ratio_of_distances"]) <= AS_NEAR for a in above)
    return {
        "agrees": bool(agrees),
        "arrays": len(truth),
        **{k: float(v) for k, v in found.items()},
        "above": above,
        "zero_on_paper": len(zeros),
        "float32_only": left_out,
    }


def _in_float64(mx: Any, net: Any, x: Any, rewrites: Sequence[str]) -> tuple[Arrays, list[str]]:
    """The rewritten run in float64, without the rewrites whose operators lack that type."""
    try:
        return _run(mx, net, x, rewrites, "imperative"), []
    except mx.MXNetError:
        pass
    kept: list[str] = []
    lacking = []
    for name in rewrites:  # one after the other, because some apply only after others
        try:
            _run(mx, net, x, [*kept, name], "imperative")
            kept.append(name)
        except mx.MXNetError:
            lacking.append(name)
    return _run(mx, net, x, kept, "imperative"), lacking


def _run(mx: Any, net: Any, x: Any, rewrites: Sequence[str], mode: str) -> Arrays:
    """Outputs and gradients of one training pass; averages and rewrites are restored."""
    from gluontune import compute
    from gluontune.runtime import set_data

    compute.set_mode(net, mode)
    parameters = net.collect_params()
    averages = {k: p.data().copy() for k, p in parameters.items() if p.grad_req == "null"}
    applied = compute.apply_rewrites(net, rewrites, x, verify=False)
    try:
        with mx.autograd.record():
            outputs = net(x)
            outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            heads = [(o * _weights(mx, o)).sum() for o in outputs]
        for parameter in parameters.values():
            if parameter.grad_req != "null":
                parameter.zero_grad()
        mx.autograd.backward(heads)
        mx.nd.waitall()
        found = {f"output {i}": o.asnumpy().astype("float64") for i, o in enumerate(outputs)}
        for name, parameter in parameters.items():
            if parameter.grad_req != "null":
                found[name] = parameter.grad().asnumpy().astype("float64")
        return found
    finally:
        applied.undo()
        mx.nd.waitall()  # static graphs write averages unseen by the engine
        for name, value in averages.items():
            set_data(parameters[name], value)


def _weights(mx: Any, output: Any) -> Any:
    """Fixed weights of a linear loss, so that no output's gradient is zero or equals another's."""
    drawn = np.random.default_rng(0).standard_normal(output.shape).astype("float32")
    return mx.nd.array(drawn, dtype=output.dtype)


def _switch_off_dropout(net: Any) -> None:
    from gluontune.compute._traversal import walk

    for _, block in walk(net):
        if hasattr(block, "_rate"):
            block._rate = 0.0
