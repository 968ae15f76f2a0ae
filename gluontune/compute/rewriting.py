"""Rewrites put in place: applied one by one, compared on a sample, taken back where something else comes out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gluontune.compute.rewrites import REWRITES
from gluontune.errors import UsageError

__all__ = ["AppliedRewrites", "Change", "apply_rewrites", "rewrites_for"]

logger = logging.getLogger("gluontune.compute")


class Change(NamedTuple):
    """One change that was made."""

    path: str
    rewrite: str


@dataclass
class AppliedRewrites(Sequence[Change]):
    """The changes that were made, in the order of the network; :meth:`undo` takes them back.

    ``notes`` has one sentence for each rewrite that found nothing to do, and for each that was taken back because
    the network failed or computed something else with it; ``refused`` has the first such layer of each.
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
        """Give each layer back the class that it had. A second call does nothing."""
        from gluontune.compute._blocks import take_back
        from gluontune.compute._traversal import clear_caches

        take_back(self._before)
        if self._before:
            clear_caches(self._net)
        self._before = []


def apply_rewrites(net: Any, names: Sequence[str], *sample_inputs: Any, verify: bool = True) -> AppliedRewrites:
    """Apply rewrites to ``net``, in place.

    Outputs and gradients stay the same to rounding; parameters, their names, their order and their files
    are untouched, so that what was saved before loads after, and the other way round. A network that was
    hybridized stays so, and compiles again at its next call.

    Args:
        net: a Gluon block, initialized.
        names: of :data:`REWRITES`. The order does not matter.
        sample_inputs: what the network takes. One forward pass (prediction mode) shows shapes; without
            them, only layers that need no shapes to be known are changed.
        verify: after each rewrite, compare outputs and gradients on (a part of) the sample, imperative and
            compiled. A rewrite with which they differ, or which raises, is taken back and told in ``notes``.

    Returns:
        the changes as ``(path, rewrite)``, with ``notes`` for rewrites that found nothing, and ``undo()``.

    Raises:
        UnknownNameError: a name that is no rewrite.
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
    from gluontune.compute._traversal import clear_caches, sample_of, watch

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
            applied.refused.append(Change(wrong.path, rewrite.name))
            applied.notes.append(f"{rewrite.name}: taken back, because at {wrong.path or 'the net'} {wrong.reason}")
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
    from gluontune.compute._traversal import sample_of, watch

    _check_block(net, inputs)
    kind = getattr(device, "device_type", str(device))
    candidates = [r for r in REWRITES if kind in r.devices and r.applies_here()]
    seen = watch(net, *sample_of(net, inputs)) if inputs and candidates else {}
    names: list[str] = []
    before: list[tuple[Any, type]] = []
    try:
        for rewrite in candidates:  # later ones build on earlier ones, so these are put in place for a moment
            targets = rewrite.targets(net, seen)
            names += [rewrite.name] if targets else []
            before += [(target.block, type(target.block)) for target in targets]
            give(targets)
    finally:
        take_back(before)
    return names


def _check_block(net: Any, inputs: tuple[Any, ...]) -> None:
    from gluontune.compute._preserve import check_initialized
    from gluontune.runtime import mxnet

    if not isinstance(net, mxnet().gluon.Block):
        raise UsageError(f"net is a {type(net).__name__}: give a Gluon block")
    if inputs:
        check_initialized(net)
