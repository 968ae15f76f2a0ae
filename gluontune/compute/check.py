"""Can this network be compiled, does it still compute the same, and if not: which line is it?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from gluontune.compute._diagnose import Finding, explain, first_line, source
from gluontune.compute._passes import gradient_gap, run, varies, without_dropout
from gluontune.compute._preserve import check_initialized, preserved
from gluontune.compute._traversal import Seen, flat, sample_of, walk, watch
from gluontune.compute.mode import set_mode, topmost_hybrid
from gluontune.compute.tracing import of_call, place_of_branch
from gluontune.errors import UsageError
from gluontune.gaps import worst
from gluontune.runtime import mxnet

__all__ = ["Finding", "HybridizeCheck", "check_hybridizable"]


@dataclass
class HybridizeCheck:
    """The answer of :func:`check_hybridizable`.

    ``output_error`` and ``gradient_error`` are the largest relative differences between both modes (None
    if compiling failed); ``notes`` say how they were taken.

    Args:
        findings: what stands against hybridizing, each with its file and line.
        output_error, gradient_error: largest relative differences between both modes; None if compiling failed.
        notes: how they were taken.
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
    """Run ``net`` imperatively and compiled, and compare outputs and gradients. The net stays as it was.

    Dropout layers are off while results are compared. A network that draws elsewhere, too, is compared in prediction
    mode, by its outputs.

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
        _compare(net, inputs, seen, result, tolerance or _default_tolerance())
    return result


def _static_findings(net: Any) -> list[Finding]:
    """What can be said without running: plain blocks, and hooks that compiled parents never call."""
    hybrid, nn = mxnet().gluon.HybridBlock, mxnet().gluon.nn
    findings = []
    for path, block in walk(net):
        if type(block) is nn.Sequential:
            findings.append(
                Finding(
                    "warning", path, "Sequential", "",
                    "a plain Sequential stays imperative; its layers are compiled one by one",
                    "Write HybridSequential() for Sequential(), or take the rewrite whole-sequential "
                    "(gt.compute.apply_rewrites), where all its layers are hybrid.",
                )
            )  # fmt: skip
        elif not isinstance(block, hybrid):
            findings.append(
                Finding(
                    "warning", path, type(block).__name__, source(type(block), "forward"),
                    "a plain Block stays imperative; what it contains is compiled piece by piece",
                    "Derive it from HybridBlock (forward → hybrid_forward).",
                )
            )  # fmt: skip
        elif path and (block._forward_hooks or block._forward_pre_hooks):
            findings.append(
                Finding(
                    "warning", path, type(block).__name__, "",
                    "it has a forward hook, which a compiled parent never calls",
                    "Detach it, or return what it looks at as another output.",
                )
            )  # fmt: skip
    return findings


def _compare(net: Any, inputs: tuple[Any, ...], seen: dict[int, Seen], result: HybridizeCheck, tol: float) -> None:
    two_graphs = _note_modes(net, seen, result)
    try:
        set_mode(net, "imperative")
        draws = varies(net, inputs, True)  # where not: works in prediction, but not while gradients are recorded
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
    """Warn of each compiled part that has another graph in training than in prediction; whether there is one."""
    found = False
    for root in topmost_hybrid(net):
        if id(root) not in seen:
            continue
        try:
            predict, train, why = of_call(root, seen[id(root)].arguments[0])
        except Exception:  # the comparison says what cannot be compiled
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
    """The deepest block for which ``wrong(block, inputs)`` holds, alone and on the inputs that it had."""
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
    """The graph must also fit the incomplete batch at the end of an epoch."""
    arrays = flat(inputs)
    size = arrays[0].shape[0] if arrays and arrays[0].shape else 0
    if size < 2 or any(not a.shape or a.shape[0] != size for a in arrays) or tol == float("inf"):
        return
    part = tuple(_map(lambda a: a[: size // 2], value) for value in inputs)
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


def _default_tolerance() -> float:
    from gluontune.compute.process import started_dtype

    return 0.1 if started_dtype() == "bfloat16" else 1e-3


def _map(function: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(function, item) for item in value)
    return None if value is None else function(value)
