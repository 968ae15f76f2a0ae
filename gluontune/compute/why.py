"""Why mixed precision brings nothing here: the reasons that can be read from the network and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.compute.process import bfloat16_support
from gluontune.compute.rewriting import rewrites_for
from gluontune.errors import UsageError
from gluontune.runtime import mxnet

__all__ = ["why_no_gain"]

# Below this many multiplications for each value that a layer writes, memory sets the pace, not arithmetic.
MEMORY_BOUND_MACS_PER_VALUE = 40
# A phase of the step that takes this share (percent) without computing hides any gain in computing.
INPUT_BOUND_PCT = 30


def why_no_gain(
    net: Any, *inputs: Any, dtype: str, device: str = "cpu", phases_pct: Mapping[str, float] | None = None
) -> list[str]:
    """Reasons for which ``dtype`` brings little or nothing in training ``net``, one sentence each.

    An empty list means that nothing speaks against a gain; only a measurement says that there is one.

    Args:
        net: an initialized Gluon block. inputs: a sample batch, float32.
        dtype: ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``gpu``.
        phases_pct: shares of the phases of a measured step, as in ``RunResult.phases_pct``; a phase whose
            name has ``data``, ``load`` or ``wait`` in it counts as waiting for input.

    Raises:
        UsageError: another dtype or device, or no sample batch.

    >>> mx = mxnet()
    >>> net = mx.gluon.nn.Dense(3, in_units=5)
    >>> net.initialize()
    >>> why_no_gain(net, mx.nd.ones((2, 5)), dtype="bfloat16", phases_pct={"data": 60.0, "forward": 40.0})[0]
    'waiting for input takes 60 % of the step: a faster loader helps, faster arithmetic does not'
    """
    if dtype not in ("bfloat16", "float16"):
        raise UsageError(f"dtype {dtype!r}: choose bfloat16 or float16")
    if device not in ("cpu", "gpu"):
        raise UsageError(f"device {device!r}: choose cpu or gpu")
    if dtype == "float16" and device == "cpu":
        return ["MXNet has no float16 convolution or dense layer on a CPU: use bfloat16"]
    if dtype == "bfloat16" and device == "gpu":
        return ["MXNet 1.9 has no bfloat16 on a GPU: use float16"]
    reasons = []
    waiting = sum(v for k, v in (phases_pct or {}).items() if any(w in k for w in ("data", "load", "wait")))
    if waiting >= INPUT_BOUND_PCT:
        reasons.append(
            f"waiting for input takes {waiting:.0f} % of the step: a faster loader helps, faster arithmetic does not"
        )
    if dtype == "bfloat16":
        support = bfloat16_support()
        if support.level != "native":
            reasons.append(support.message)
    return reasons + _of_the_network(net, inputs, dtype, device)


def _of_the_network(net: Any, inputs: tuple[Any, ...], dtype: str, device: str) -> list[str]:
    from gluontune.compute._preserve import check_initialized
    from gluontune.compute._traversal import sample_of, walk, watch

    check_initialized(net)
    if not inputs:
        raise UsageError("why_no_gain needs a sample batch: why_no_gain(net, x, dtype=…)")
    inputs = sample_of(net, inputs)
    seen = watch(net, *inputs)
    nn = mxnet().gluon.nn
    macs, odd, odd_layers, values, transposed = 0.0, 0.0, [], 0.0, 0
    for path, block in walk(net):
        layer = isinstance(block, (nn.Conv2D, nn.Dense))  # with activation=, they have it for a child
        if id(block) not in seen or (block._children and not layer):
            continue
        outputs = seen[id(block)].output_shapes()
        values += sum(_product(shape) for shape in outputs)
        if not layer:
            continue
        weight = block.weight.shape
        work = sum(_product(s) for s in outputs) * _product(weight) / weight[0]
        macs += work
        if any(c % 8 for c in weight[:2]):
            odd += work
            odd_layers.append(path or "(the net)")
        transposed += getattr(block, "_kwargs", {}).get("layout") == "NCHW"
    reasons = []
    if macs and odd / macs > 0.1:
        reasons.append(
            f"{len(odd_layers)} layers with {100 * odd / macs:.0f} % of the arithmetic have channels that are no "
            f"multiple of eight (first: layer {odd_layers[0]}): they run on slower or padded kernels"
        )
    if macs < MEMORY_BOUND_MACS_PER_VALUE * values:
        reasons.append(
            f"only {macs / max(values, 1):.0f} multiplications for each value written: memory sets the pace, and "
            "arithmetic in half the bits saves little"
        )
    if device == "gpu" and transposed:
        reasons.append(f"{transposed} convolutions are NCHW: tensor cores want NHWC and each call transposes")
    if device == "cpu":
        slow = [name for name in rewrites_for(net, *inputs) if name in ("pool-to-mean", "pad-channels")]
        if slow:
            reasons.append(f"slow paths of oneDNN weigh more in {dtype}: apply the rewrites {', '.join(slow)} first")
    return reasons


def _product(shape: tuple[int, ...]) -> float:
    total = 1.0
    for size in shape:
        total *= size
    return total
