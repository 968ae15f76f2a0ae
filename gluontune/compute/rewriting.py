"""Rewrites applied one by one, compared on a sample, and undone if the results differ.

And the reasons, from the network and the machine, why mixed precision gains nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gluontune.compute._passes import check_initialized
from gluontune.compute._traversal import clear_caches, sample_of, walk, watch
from gluontune.compute.process import bfloat16_support
from gluontune.compute.rewrites import REWRITES
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet

logger = logging.getLogger("gluontune.compute")


class Change(NamedTuple):
    """One applied change."""

    path: str
    rewrite: str


@dataclass
class AppliedRewrites(Sequence[Change]):
    """The applied changes, in the order of the network; :meth:`undo` reverts them.

    ``notes`` has one sentence for each rewrite without targets, and for each that was undone because the network
    failed or computed something else; ``refused`` has the first such layer of each.
    """

    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[Change] = field(default_factory=list)
    _net: Any = field(default=None, repr=False)
    _before: list[tuple[Any, type]] = field(default_factory=list, repr=False)

    def __getitem__(self, index: Any) -> Any:
        return self.changes[index]

    def __len__(self) -> int:
        return len(self.changes)

    def undo(self) -> None:
        """Give each layer its former class. A second call does nothing."""
        from gluontune.compute._blocks import take_back

        take_back(self._before)
        if self._before:
            clear_caches(self._net)
        self._before = []


def apply_rewrites(net: Any, names: Sequence[str], *sample_inputs: Any, verify: bool = True) -> AppliedRewrites:
    """Apply rewrites to ``net``, in place.

    Outputs and gradients stay the same to rounding; parameters, their names, order and files stay unchanged, so that
    files load before and after. A hybridized network stays so, and compiles again at its next call.

    Args:
        net: a Gluon block, initialized.
        names: of :data:`REWRITES`. The order does not matter.
        sample_inputs: of the network. One forward pass (prediction mode) shows shapes; without them, only layers that
            need no shapes are changed.
        verify: after each rewrite, compare outputs and gradients on (a part of) the sample, imperative and compiled. A
            rewrite that raises, or with other results, is undone, with a line in ``notes``.

    Returns:
        the changes as ``(path, rewrite)``, with ``notes`` for rewrites without targets, and ``undo()``.

    Raises:
        UnknownNameError: an unknown rewrite.
        UsageError: a net that is no Gluon block, or inputs that are no NDArrays.

    >>> from gluontune.runtime import mxnet
    >>> nn = mxnet().gluon.nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(8, 3, in_channels=3), nn.GlobalAvgPool2D())
    >>> applied = apply_rewrites(net, ["pool-to-mean", "pad-channels"])
    >>> list(applied)
    [Change(path='1', rewrite='pool-to-mean'), Change(path='0', rewrite='pad-channels')]
    >>> applied.undo()
    >>> type(net[1]) is nn.GlobalAvgPool2D
    True
    """
    from gluontune.compute._blocks import give
    from gluontune.compute._proof import Proof

    _check_block(net, sample_inputs)
    if isinstance(names, str):
        names = [names]
    wanted = {REWRITES[name].name for name in names}
    chosen = [rewrite for rewrite in REWRITES if rewrite.name in wanted]  # later ones build on earlier ones
    inputs = sample_of(net, sample_inputs) if sample_inputs and chosen else ()
    seen = watch(net, *inputs) if inputs else {}
    proof = Proof(net, inputs) if verify and inputs else None
    applied = AppliedRewrites(_net=net)
    if proof is not None and not proof.compares:
        applied.notes.append("not verified: the net gives no two results alike, or none in training")
    for rewrite in chosen:
        targets = rewrite.targets(net, seen)
        if not targets:
            applied.notes.append(f"{rewrite.name}: nothing to do: {rewrite.nothing}")
            continue
        before = [(target.block, type(target.block)) for target in targets]
        give(targets)
        wrong = proof.wrong(targets, before) if proof is not None else None
        if wrong is not None:
            path, reason = wrong
            applied.refused.append(Change(path, rewrite.name))
            applied.notes.append(f"{rewrite.name}: taken back, because at {path or 'the net'} {reason}")
            logger.warning("%s", applied.notes[-1])
            continue
        applied._before += before
        applied.changes += [Change(target.path, rewrite.name) for target in targets]
    if applied.changes:
        clear_caches(net)
    return applied


def rewrites_for(net: Any, *inputs: Any, device: str = "cpu") -> list[str]:
    """Names of the rewrites that would change something in ``net`` on ``device``. Nothing is measured.

    Args:
        net: a Gluon block, initialized.
        inputs: sample inputs, as for :func:`apply_rewrites`.
        device: ``cpu`` or ``gpu``, or an ``mx.Context``.

    >>> from gluontune.runtime import mxnet
    >>> rewrites_for(mxnet().gluon.nn.GlobalAvgPool2D(), device="cpu")
    ['pool-to-mean']
    """
    from gluontune.compute._blocks import give, take_back

    _check_block(net, inputs)
    kind = getattr(device, "device_type", str(device))
    candidates = [r for r in REWRITES if kind in r.devices and r.applies_here()]
    seen = watch(net, *sample_of(net, inputs)) if inputs and candidates else {}
    names: list[str] = []
    before: list[tuple[Any, type]] = []
    try:
        for rewrite in candidates:  # later ones build on earlier ones
            targets = rewrite.targets(net, seen)
            names += [rewrite.name] if targets else []
            before += [(target.block, type(target.block)) for target in targets]
            give(targets)
    finally:
        take_back(before)
    return names


def _check_block(net: Any, inputs: tuple[Any, ...]) -> None:
    if not isinstance(net, mxnet().gluon.Block):
        raise UsageError(f"net is a {type(net).__name__}: give a Gluon block")
    if inputs:
        check_initialized(net)


MEMORY_BOUND_MACS_PER_VALUE = 40  # with fewer multiplications for each written value, memory is the limit
INPUT_BOUND_PCT = 30  # a phase without computing above this share of the step hides any gain


def why_no_gain(
    net: Any, *inputs: Any, dtype: str, device: str = "cpu", phases_pct: Mapping[str, float] | None = None
) -> list[str]:
    """Reasons why ``dtype`` gains little or nothing in training ``net``, one sentence each.

    An empty list does not prove a gain; only a measurement does.

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
    check_initialized(net)
    if not inputs:
        raise UsageError("why_no_gain needs a sample batch: why_no_gain(net, x, dtype=…)")
    inputs = sample_of(net, inputs)
    seen = watch(net, *inputs)
    nn = mxnet().gluon.nn
    macs, odd, odd_layers, values, transposed = 0.0, 0.0, [], 0, 0
    for path, block in walk(net):
        layer = isinstance(block, (nn.Conv2D, nn.Dense))  # with activation=, they have a child
        if id(block) not in seen or (block._children and not layer):
            continue
        outputs = seen[id(block)].output_shapes()
        values += sum(math.prod(shape) for shape in outputs)
        if not layer:
            continue
        weight = block.weight.shape
        work = sum(math.prod(s) for s in outputs) * math.prod(weight) / weight[0]
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
