"""The proof of a program: computed again by PyTorch and by MXNet, it gives the same losses, gradients and weights."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.capture.events import ADDED, RUNNING, Backward, Op, draws
from gluontune.capture.interpret import Interpreter, computes
from gluontune.capture.operators import Operators
from gluontune.capture.program import StepProgram
from gluontune.capture.updates import UPDATES
from gluontune.convert.bridge.registry import OPERATORS
from gluontune.core.arrays import gap, size
from gluontune.core.errors import GluontuneError

_WIDE = "float64"


def torch_results(
    program: StepProgram, leaves: Sequence[Any], given: Mapping[int, Any], dtype: str = "", place: Any = None
) -> dict[int, Any]:
    """A program's heads, gradients and written values on PyTorch, with the recorded draws, by their numbers.

    ``place`` is the ``torch.device`` that computes them, or None for the CPU.

    Updates take the gradients that are given, in place of those computed here: an optimizer that divides by their
    size turns rounding into a whole step.
    """
    unknown = {i.name: i.line for i in reversed(program.instructions)
               if isinstance(i, Op) and not (computes(i.name) or draws(i.name))}  # fmt: skip
    if unknown:
        told = ", ".join(f"{name} ({line})" for name, line in sorted(unknown.items()))
        raise GluontuneError(f"operators that PyTorch's side does not know: {told}")
    run, env, own = Interpreter(dtype, steady=True, place=place), dict[int, Any](), dict[int, Any]()
    run.wanted = program.variables
    for number, leaf in enumerate(leaves):
        run.put(env, number, run.tensor(leaf))
    for i, over in zip(program.instructions, program.last_uses(program.shown)):
        if isinstance(i, Op) and draws(i.name):
            for number in i.outputs:
                run.put(env, number, run.tensor(program.values[number].array))
        else:
            run.run(i, env)
        for number in i.outputs if isinstance(i, Backward) else ():
            own[number] = env[number]
            if given.get(number) is not None:
                env[number] = run.tensor(given[number])
        for number in over:
            env.pop(number, None)
    return {number: own.get(number, env[number]).detach().cpu().numpy() for number in program.shown}


class MXNetReplay:
    """A program on MXNet in float64, with the recorded draws; operator by operator, without hooks."""

    def __init__(self, mx: Any, program: StepProgram):
        self.mx, self.program, self.operators = mx, program, Operators(mx)

    def __call__(self, leaves: Sequence[np.ndarray], more: Collection[int] = ()) -> dict[int, Any]:
        """Heads, gradients, written values and ``more`` by their numbers, as numpy arrays."""
        program, env = self.program, dict[int, Any]()
        wanted = program.variables
        for number, leaf in enumerate(leaves):
            env[number] = self._array(leaf, number in wanted)
        shown = {*program.shown, *more}
        for i, over in zip(program.instructions, program.last_uses(shown)):
            if isinstance(i, Op):
                self._run(i, env, wanted)
            else:
                self._differentiate(i, env)
            for number in over:
                env.pop(number, None)
        return {number: env[number].asnumpy() for number in shown}

    def _array(self, values: Any, variable: bool) -> Any:
        dtype = _WIDE if values.dtype.kind == "f" else values.dtype
        array = self.mx.nd.array(values, dtype=dtype) if values.ndim else self.mx.np.array(values, dtype=dtype)
        if variable:
            array.attach_grad()
        return array

    def _run(self, op: Op, env: dict[int, Any], wanted: set[int]) -> None:
        if draws(op.name):
            for number in op.outputs:
                env[number] = self._array(self.program.values[number].array, number in wanted)
            return
        if op.name == ADDED:
            env[op.outputs[0]] = env[op.inputs[0]] + env[op.inputs[1]]
            return
        if op.name == RUNNING:
            old, batch = (env[number] for number in op.inputs)
            env[op.outputs[0]] = old * float(op.attrs["momentum"]) + batch * (1 - float(op.attrs["momentum"]))
            return
        attrs = dict(op.attrs)
        if op.name == "RNN" and "p" in attrs:
            attrs["p"] = "0"
        if op.mask is not None:
            x, mask = env[op.inputs[0]], self._array(op.mask, False)
            with self._mode(op):
                env[op.outputs[0]] = x * (mask.as_np_ndarray() if isinstance(x, self.mx.np.ndarray) else mask)
            return
        if attrs.get("dtype") in ("float32", "float16"):
            attrs["dtype"] = _WIDE
        inputs = [env[number] for number in op.inputs]
        changed = len(op.outputs) - op.results
        if changed and op.name not in UPDATES:
            self._normalize(op, inputs, attrs, env)
            return
        out = None
        if changed:  # in place, as optimizers do: nag's momentum takes in the weight that it has just written
            at = len(inputs) - changed
            out = inputs[0].copy()
            inputs = [out, *inputs[1:at], *[array.copy() for array in inputs[at:]]]
        is_np = op.name.startswith("_np")
        if op.attrs.get("lazy_update") == "True":
            inputs[1] = inputs[1].tostype("row_sparse")
        with self._mode(op):
            try:
                exact = op.name == "LeakyReLU" and attrs.get("act_type", "leaky") == "leaky"
                found = [_leaky(inputs[0], attrs)] if exact else self.operators(op.name, inputs, attrs, out, is_np)
            except self.mx.MXNetError:  # some know float32 alone
                if changed:
                    raise
                inputs = [array if array.dtype != np.float64 else array.astype("float32") for array in inputs]
                found = self.operators(op.name, inputs, attrs, None, is_np)
            found = [_wide(array) for array in ([out] if changed else found)]
        for number, array in zip(op.outputs, [*found[: op.results], *inputs[len(inputs) - changed :]]):
            if number in wanted and not op.recording:
                array = array.detach()
                array.attach_grad()
            env[number] = array

    def _normalize(self, op: Op, inputs: list[Any], attrs: dict[str, str], env: dict[int, Any]) -> None:
        """A BatchNorm in training, with the mean and the variance of the batch."""
        x, statistics = inputs[0].detach(), [array.copy() for array in inputs[3:]]
        axes = {"axis": int(attrs.get("axis", "1")), "exclude": True}
        with self._mode(op):
            is_np = isinstance(x, self.mx.np.ndarray)
            found = self.operators(op.name, [*inputs[:3], *statistics], attrs, None, is_np)
        x = x.as_nd_ndarray() if is_np else x
        mean = self.mx.nd.mean(x, **axes)
        square = self.mx.nd.mean(x * x, **axes) - mean * mean
        env.update(zip(op.outputs, [found[0], mean, square]))

    def _mode(self, op: Op) -> contextlib.AbstractContextManager[Any]:
        scope = self.mx.autograd._RecordingStateScope
        return scope(op.recording, op.training)  # type: ignore[no-any-return]

    def _differentiate(self, b: Backward, env: dict[int, Any]) -> None:
        heads = [env[h] for h in b.heads]
        grads = None if b.head_grads is None else [None if g is None else env[g] for g in b.head_grads]
        found = self.mx.autograd.grad(
            heads, [env[v] for v in b.variables], grads, retain_graph=b.retain, train_mode=b.training
        )
        for number, grad in zip(b.outputs, found):
            env[number] = grad


def _wide(array: Any) -> Any:
    narrow = np.dtype(array.dtype).kind == "f" and array.dtype != np.float64
    return array.astype(_WIDE) if narrow else array


def _leaky(x: Any, attrs: Mapping[str, str]) -> Any:
    """MXNet's rectifier with a slope, which rounds negative inputs to float32 whatever the array's type."""
    slope = float(np.float32(attrs.get("slope", "0.25")))
    return x * ((x > 0).astype(x.dtype) * (1 - slope) + slope)


def leaves_of(program: StepProgram) -> list[Any]:
    """The recorded leaves of a program."""
    return [value.array for value in program.values[: program.leaves]]


#: The largest gaps that count as agreement, by precision: of losses, of gradients (MXNet's sums round more than most),
#: of new weights from the same gradients.
BOUNDS = {"float64": (1e-8, 1e-8, 1e-8), "float32": (1e-4, 1e-2, 1e-3)}


@dataclass(frozen=True)
class Gaps:
    """Largest differences between two engines' results of one step.

    Losses are relative to the largest value of each, gradients to the largest gradient, weights to the largest change
    of a weight, or the weight itself.
    """

    losses: float
    gradients: float
    weights: float

    def agree(self, dtype: str = "float32") -> bool:
        """Whether none is larger than its bound.

        >>> Gaps(1e-6, 1e-5, 1e-5).agree(), Gaps(1e-6, 1e-5, 1e-5).agree("float64")
        (True, False)
        """
        return all(gap <= bound for gap, bound in zip((self.losses, self.gradients, self.weights), BOUNDS[dtype]))

    def to_dict(self) -> dict[str, float | None]:
        """For JSON; None where a result is infinite, no number, or of another size.

        >>> Gaps(float("inf"), 1e-6, 0.0).to_dict()
        {'losses': None, 'gradients': 1e-06, 'weights': 0.0}
        """
        return {name: number if math.isfinite(number) else None for name, number in vars(self).items()}

    def __str__(self) -> str:
        return f"losses {self.losses:.0e}, gradients {self.gradients:.0e}, weights {self.weights:.0e}"


def compare(program: StepProgram, mine: Mapping[int, Any], theirs: Mapping[int, Any]) -> Gaps:
    """The gaps of one engine's results to those of another; values that ``theirs`` lacks are left out."""

    def worst(numbers: Any, scale: float = 0.0) -> float:
        pairs = [(mine[number], theirs.get(number)) for number in numbers]
        return max((gap(_like(a, b), b, scale) for a, b in pairs if b is not None), default=0.0)

    gradients = program.gradients
    largest = max((size(g) for g in (theirs.get(number) for number in gradients) if g is not None), default=0.0)
    changes = [0.0]
    before = {value.name: value.array for value in program.values[: program.leaves] if value.name in program.writes}
    for name, number in program.writes.items():
        new, old = theirs.get(number), before.get(name)
        if new is not None and old is not None:
            changes.append(size(new - old))
    return Gaps(worst(program.heads), worst(gradients, largest), worst(program.writes.values(), max(changes)))


def gaps_of_the_script(program: StepProgram, place: Any = None) -> Gaps:
    """PyTorch's gaps, in the precision of the script, to what MXNet computed in it. place: of PyTorch's tensors."""
    recorded = {number: program.values[number].array for number in program.shown}
    return compare(program, torch_results(program, leaves_of(program), recorded, place=place), recorded)


def gaps_in_float64(mx: Any, program: StepProgram) -> Gaps:
    """The gaps where both compute again in float64. mx: the mxnet module, without hooks."""
    leaves = leaves_of(program)
    theirs = MXNetReplay(mx, program)(leaves)
    return compare(program, torch_results(program, leaves, theirs, "float64"), theirs)


def _like(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.reshape(b.shape).astype(b.dtype) if a.size == b.size else a


def rounded(program: StepProgram) -> bool:
    """Whether MXNet computes an operator of it with seven digits whatever the arrays' type."""
    importlib.import_module("gluontune.convert.bridge.operators")
    known = [i for i in program.instructions if isinstance(i, Op) and i.name in OPERATORS]
    leaky = ("LeakyReLU", "leaky")  # which the replay has in another way
    return any(
        OPERATORS[i.name].is_rounded(i.attrs) and (i.name, i.attrs.get("act_type", "leaky")) != leaky for i in known
    )
