"""The check that a network compiles and computes the same, or the line that prevents it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from gluontune.compute._passes import (
    Finding,
    check_initialized,
    explain,
    gradient_gap,
    preserved,
    run,
    source,
    varies,
    without_dropout,
)
from gluontune.compute._traversal import Seen, batch_size, first_samples, sample_of, walk, watch
from gluontune.compute.mode import set_mode, topmost_hybrid
from gluontune.compute.process import started_dtype
from gluontune.compute.tracing import in_both_modes, place_of_branch, trace_of
from gluontune.core.arrays import worst
from gluontune.core.errors import UsageError, first_line
from gluontune.runtime import mxnet


@dataclass
class HybridizeCheck:
    """The result of :func:`check_hybridizable`.

    Args:
        findings: obstacles to hybridizing, each with its file and line.
        output_error, gradient_error: largest relative differences between both modes; None if compiling failed.
        notes: the conditions of the comparison.
    """

    findings: list[Finding] = field(default_factory=list)
    output_error: float | None = None
    gradient_error: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the network compiles and computes the same."""
        return not any(f.severity == "error" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        lines = ["compiles, same results" if self.ok else "cannot be hybridized as it is"]
        for f in self.findings:
            lines.append(f"{f.severity}: {f.path or 'the net'} ({f.block}) {f.where}: {f.reason}. {f.cure}")
        return "\n".join(lines + self.notes)


def check_hybridizable(net: Any, *inputs: Any, tolerance: float | None = None) -> HybridizeCheck:
    """Run ``net`` imperatively and compiled, and compare outputs and gradients. The net stays unchanged.

    Dropout layers are off during the comparison. A network with other random numbers is compared in prediction mode, by
    its outputs.

    Args:
        net: an initialized Gluon block.
        inputs: a sample batch, as the network takes it: one argument each (a recurrent net's states are a list),
            or all in one list.
        tolerance: largest relative difference that counts as the same (default 1e-3, in bfloat16 0.1).

    Raises:
        UsageError: the net is not initialized, or fails imperatively too (wrong shape or type of input).

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> class Branch(mx.gluon.HybridBlock):
    ...     def hybrid_forward(self, F, x):
    ...         return x if x.sum() > 0 else -x
    >>> check = check_hybridizable(Branch(), mx.nd.ones((2, 3)))
    >>> check.ok, check.findings[0].reason
    (False, 'control flow depends on the data')
    """
    check_initialized(net)
    if not inputs:
        raise UsageError("check_hybridizable needs a sample batch: check_hybridizable(net, x)")
    inputs = sample_of(net, inputs)
    seen = watch(net, *inputs)
    result = HybridizeCheck(findings=_static_findings(net))
    with preserved(net), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compare(net, inputs, seen, result, tolerance or (0.1 if started_dtype() == "bfloat16" else 1e-3))
    return result


def _static_findings(net: Any) -> list[Finding]:
    """Findings without a run: plain blocks, and hooks that compiled parents never call."""
    hybrid, nn = mxnet().gluon.HybridBlock, mxnet().gluon.nn
    findings = []
    for path, block in walk(net):
        kind, where = type(block), ""
        if kind is nn.Sequential:
            reason = "a plain Sequential stays imperative; its layers are compiled one by one"
            cure = (
                "Write HybridSequential() for Sequential(), or take the rewrite whole-sequential "
                "(gt.compute.apply_rewrites), where all its layers are hybrid."
            )
        elif not isinstance(block, hybrid):
            where = source(kind, "forward")
            reason = "a plain Block stays imperative; what it contains is compiled piece by piece"
            cure = "Derive it from HybridBlock (forward → hybrid_forward)."
        elif path and (block._forward_hooks or block._forward_pre_hooks):
            reason = "it has a forward hook, which a compiled parent never calls"
            cure = "Detach it, or return what it looks at as another output."
        else:
            continue
        findings.append(Finding("warning", path, kind.__name__, where, reason, cure))
    return findings


def _compare(net: Any, inputs: tuple[Any, ...], seen: dict[int, Seen], result: HybridizeCheck, tol: float) -> None:
    two_graphs = _note_modes(net, seen, result)
    try:
        set_mode(net, "imperative")
        draws = varies(net, inputs, True)  # raises if only prediction works
        set_mode(net, "hybridized")
        frozen = draws and not varies(net, inputs, True)
    except Exception as error:
        result.findings.append(explain(net, error))
        return
    if frozen:
        result.findings.append(_locate(net, seen, _freezes, "every compiled call draws or counts the same"))
        return
    with without_dropout(net, draws):
        _compare_results(net, inputs, seen, result, tol, two_graphs)


def _compare_results(
    net: Any, inputs: tuple[Any, ...], seen: dict[int, Seen], result: HybridizeCheck, tol: float, two_graphs: bool
) -> None:
    set_mode(net, "imperative")
    training = not varies(net, inputs, True)
    if not training and varies(net, inputs, False):
        result.notes.append("it draws random numbers in prediction mode too: results cannot be compared")
        return
    if not training:
        result.notes.append("the network draws random numbers in training: compared in prediction mode, outputs only")
    plain = run(net, inputs, training)
    predicted = run(net, inputs, False)[0] if two_graphs else []
    try:
        set_mode(net, "hybridized")
        compiled = run(net, inputs, training)
        predicted_too = run(net, inputs, False)[0] if two_graphs else []
    except Exception as error:
        result.findings.append(explain(net, error))
        return
    result.output_error = max(worst(compiled[0], plain[0]), worst(predicted_too, predicted))
    result.gradient_error = gradient_gap(compiled[1], plain[1])
    if max(result.output_error, result.gradient_error) > tol:
        detail = f"outputs differ by {result.output_error:.1e}, gradients by {result.gradient_error:.1e}"
        result.findings.append(_locate(net, seen, lambda *args: _differs(*args) > tol, detail))
        return
    _other_batch_size(net, inputs, result, tol)


def _note_modes(net: Any, seen: dict[int, Seen], result: HybridizeCheck) -> bool:
    """Warn of each compiled part with another graph in training than in prediction. Returns whether one exists."""
    found = False
    for root in topmost_hybrid(net):
        if id(root) not in seen:
            continue
        try:
            predict, train, why = in_both_modes(functools.partial(trace_of, root, seen[id(root)].arguments[0]))
        except Exception:  # the comparison reports what cannot be compiled
            continue
        if train is not predict:
            found = True
            where = place_of_branch(root)
            result.findings.append(
                Finding(
                    "warning", "", type(root).__name__, where.rpartition(", ")[2] if ", " in where else "",
                    "it computes something else in training than in prediction (is_training()), and Gluon's "
                    "hybridize() keeps the graph of whichever it ran first",
                    "Compile it by gt.compute.set_mode or gt.compute.hybridize, which keep a graph for each mode.", why,
                )
            )  # fmt: skip
    return found


def _differs(block: Any, inputs: tuple[Any, ...]) -> float:
    set_mode(block, "imperative")
    plain = run(block, inputs, True)
    set_mode(block, "hybridized")
    compiled = run(block, inputs, True)
    return max(worst(compiled[0], plain[0]), gradient_gap(compiled[1], plain[1]))


def _freezes(block: Any, inputs: tuple[Any, ...]) -> bool:
    set_mode(block, "imperative")
    varied = varies(block, inputs, True)
    set_mode(block, "hybridized")
    return varied and not varies(block, inputs, True)


def _locate(net: Any, seen: dict[int, Seen], wrong: Callable[[Any, tuple[Any, ...]], Any], detail: str) -> Finding:
    """The deepest block for which ``wrong(block, inputs)`` holds, alone and on its inputs."""
    reason = "compiled, it computes something else: Python state, numpy values or is_training() were frozen"
    cure = "What changes from call to call must come in as an input or be drawn by F.random or F.Dropout."
    path, culprit = "", net
    for candidate, block in reversed(list(walk(net))):
        arguments = seen[id(block)].arguments[0] if id(block) in seen else ()
        if not arguments or not hasattr(block, "_active"):
            continue
        try:
            if wrong(block, arguments):
                path, culprit = candidate, block
                break
        except Exception:  # not every block can be run alone
            continue
    kind = type(culprit)
    return Finding("error", path, kind.__name__, source(kind, "hybrid_forward"), reason, cure, detail)


def _other_batch_size(net: Any, inputs: tuple[Any, ...], result: HybridizeCheck, tol: float) -> None:
    """Check the graph on an incomplete batch, as at the end of an epoch."""
    size = batch_size(inputs)
    if size < 2 or tol == float("inf"):
        return
    part = first_samples(inputs, size // 2)
    try:
        compiled, detail = run(net, part, False)[0], ""  # with the graph that the whole batch compiled
    except Exception as error:
        compiled, detail = None, first_line(error)
    set_mode(net, "imperative")
    try:
        plain = run(net, part, False)[0]
    except Exception:
        return  # no other batch size works imperatively either
    apart = worst(compiled or [], plain)
    detail = detail or f"outputs differ by {apart:.1e}"
    if apart > tol:
        result.findings.append(
            Finding(
                "error", "", type(net).__name__, source(type(net), "hybrid_forward"),
                f"compiled for a batch of {size}, it fails or errs on a batch of {size // 2}",
                "Use 0 or -1 for the batch in reshapes; do not keep a size in self.", detail,
            )
        )  # fmt: skip
