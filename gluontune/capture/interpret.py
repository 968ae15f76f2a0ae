"""Events of a trace computed by PyTorch, one by one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gluontune.capture.events import ADDED, RUNNING, Backward, Op, Value
from gluontune.capture.operators import canonical
from gluontune.capture.updates import UPDATES, Tensors, update_of
from gluontune.convert.bridge.registry import OPERATORS, attributes
from gluontune.convert.graph.schemas import schema
from gluontune.convert.graph.symbol import Node
from gluontune.core.errors import GluontuneError
from gluontune.runtime.pytorch import torch

Env = Any  # tensors by the numbers of their values: a mutable mapping or a list

CONVOLUTION = "Convolution"


def bridge_name(name: str) -> str:
    """An operator's name as the bridge has it."""
    return canonical(name) or name


@functools.cache
def computes(name: str) -> bool:
    """Whether PyTorch's side knows an operator."""
    importlib.import_module("gluontune.convert.bridge.operators")
    return name in (ADDED, RUNNING) or name.removeprefix("multi_") in UPDATES or bridge_name(name) in OPERATORS


def put(wanted: set[int], env: Env, number: int, tensor: Any) -> None:
    """Note a value; one that gradients are asked of begins a graph."""
    if number in wanted and not tensor.requires_grad and tensor.is_floating_point():
        tensor = tensor.detach().requires_grad_()
    env[number] = tensor


class Interpreter:
    """Computes events, as the program does or in ``dtype``.

    If ``steady``, nothing is dropped between layers of an RNN; ``channels_last`` is of images in convolutions;
    ``place`` is the ``torch.device`` of its tensors, or None for the CPU.
    """

    def __init__(self, dtype: str = "", steady: bool = False, channels_last: bool = False, place: Any = None):
        self.torch, self.dtype, self.steady, self.channels_last = torch(), dtype, steady, channels_last
        self.place = place or self.torch.device("cpu")
        self.threads = self.torch.get_num_threads()  # what PyTorch had at first
        self.wanted: set[int] = set()  # numbers of values that gradients are asked of
        self.functions: dict[Any, Callable[..., Any]] = {}
        self.seconds = 0.0  # in a program's operators

    def tensor(self, array: Any) -> Any:
        """A numpy array, or a tensor in an operator's own precision, as a tensor in the interpreter's."""
        tensor = array if hasattr(array, "is_floating_point") else self.taken(array.copy())
        return tensor.to(getattr(self.torch, self.dtype)) if self.dtype and tensor.is_floating_point() else tensor

    def taken(self, array: Any) -> Any:
        """A numpy array as a tensor on the interpreter's device; on the CPU it shares the array's memory."""
        return self.torch.from_numpy(array).to(self.place)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Adds what the program's operators take to :attr:`seconds`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def put(self, env: Env, number: int, tensor: Any) -> None:
        put(self.wanted, env, number, tensor)

    def run(self, event: Op | Backward, env: Env) -> None:
        if isinstance(event, Backward):
            self.backward(event, env)
            return
        for number, tensor in zip(event.outputs, self.results(event, env)):
            self.put(env, number, self.tensor(tensor))

    def run_all(self, events: Sequence[Op | Backward], env: Env) -> Iterator[Sequence[Op | Backward]]:
        """Compute events in turn, updates of one kind that follow each other together; yields what was computed."""
        for _, group in itertools.groupby(events, _together):
            alike: list[Any] = list(group)
            if len(alike) > 1 and len({op.inputs[0] for op in alike}) == len(alike):
                self._update(alike, env)
                yield alike
                continue
            for event in alike:
                self.run(event, env)
                yield [event]

    def _update(self, ops: Sequence[Op], env: Env) -> None:
        inputs = zip(*[[env[number] for number in op.inputs] for op in ops])
        with self.torch.no_grad():
            found = update_of(ops[0].name, ops[0].attrs)(*map(Tensors, inputs))
        for place, results in enumerate(found if isinstance(found, tuple) else (found,)):
            for op, tensor in zip(ops, results.parts):
                self.put(env, op.outputs[place], self.tensor(tensor))

    def results(self, op: Op, env: Env) -> Sequence[Any]:
        """What an operator returns, as a sequence."""
        found = self.found(op, env)
        return found if isinstance(found, (tuple, list)) else (found,)

    def found(self, op: Op, env: Env) -> Any:
        """What an operator returns: a tensor or several."""
        if op.mask is not None:
            return env[op.inputs[0]] * self.tensor(op.mask)
        function, given = self.function(op), [env[number] for number in op.inputs]
        if self.torch.is_grad_enabled() == op.recording:
            return function(*given)
        with self.torch.set_grad_enabled(op.recording):
            return function(*given)

    def function(self, op: Op) -> Callable[..., Any]:
        """What computes the operator; kept."""
        key = op.name, tuple(op.attrs.items()), op.training, op.results, len(op.outputs)
        found = self.functions.get(key)
        if found is None:
            found = self.functions[key] = self.made(op)
        return found

    def made(self, op: Op) -> Callable[..., Any]:
        """What computes the operator; where it changes inputs, it returns their new values, too."""
        attrs = dict(op.attrs)
        if self.steady and op.name == "RNN" and "p" in attrs:
            attrs["p"] = "0"
        if self.dtype and attrs.get("dtype") in ("float32", "float16"):
            attrs["dtype"] = self.dtype
        if op.name == ADDED:
            return self.torch.add
        if op.name == RUNNING:
            momentum = float(attrs["momentum"])
            return lambda old, new: old * momentum + new * (1 - momentum)
        if op.name in UPDATES:
            return update_of(op.name, attrs)
        name = bridge_name(op.name)
        entry = OPERATORS[name]
        given = attributes(entry, Node(name, f"{op.name} ({op.line})", schema(name).typed(attrs)))
        if entry.source:
            given["like"] = self.torch.zeros((), dtype=getattr(self.torch, self.dtype or "float32"), device=self.place)
        if not entry.stateful:
            run = functools.partial(entry.run, **given)
            return functools.partial(_channels_last, run) if self.channels_last and name == CONVOLUTION else run
        module = entry.run(**given).train(op.training).to(self.place)
        return functools.partial(_batch_norm, module) if len(op.outputs) > op.results else module

    def backward(self, b: Backward, env: Env) -> None:
        library = self.torch
        heads = [env[h] for h in b.heads]
        given: Sequence[int | None] = b.head_grads or [None] * len(heads)
        grads = [library.ones_like(h) if g is None else env[g] for h, g in zip(heads, given)]
        pairs = [(h, g) for h, g in zip(heads, grads) if h.requires_grad]
        found: Sequence[Any] = [None] * len(b.variables)
        if pairs:
            engine = library.autograd.Variable._execution_engine  # autograd.grad imports sympy for a check of shapes
            found = engine.run_backward(
                tuple(h for h, _ in pairs), tuple(g for _, g in pairs), b.retain, False,
                tuple(env[v] for v in b.variables), allow_unreachable=True, accumulate_grad=False,
            )  # fmt: skip
        for number, variable, grad in zip(b.outputs, b.variables, found):
            env[number] = library.zeros_like(env[variable]) if grad is None else grad


def as_declared(tensor: Any, value: Value) -> Any:
    """A result in MXNet's shape, () and (1,) are one to the bridge, and type, that of whole numbers is not."""
    if tuple(tensor.shape) != value.shape:
        if tensor.numel() != math.prod(value.shape):
            raise GluontuneError(f"a result has the shape {tuple(tensor.shape)}, MXNet's has {value.shape}")
        tensor = tensor.reshape(value.shape)
    dtype = _type(value.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


@functools.cache
def _type(name: str) -> Any:
    return getattr(torch(), name)


def _together(event: Op | Backward) -> Any:
    """Equal for updates by the same numbers."""
    return (event.name, event.attrs) if isinstance(event, Op) and event.name in UPDATES else id(event)


def _channels_last(run: Callable[..., Any], x: Any, *rest: Any) -> Any:
    """A convolution of images whose channels are last in memory, which others then take as they are."""
    return run(x.contiguous(memory_format=torch().channels_last) if x.dim() == 4 else x, *rest)


def _batch_norm(module: Any, x: Any, gamma: Any, beta: Any, *_: Any) -> Any:
    """Batch normalization, and the mean and the biased variance of the batch."""
    library, at = torch(), module.axis % x.dim()
    x = x if at == 1 else x.movedim(at, 1)
    gamma = library.ones_like(gamma) if module.fix_gamma else gamma
    out, mean, scale = library.native_batch_norm(x, gamma, beta, None, None, True, 0.0, module.eps)
    var = 1 / (scale * scale) - module.eps
    return out if at == 1 else out.movedim(1, at), mean.detach(), var.detach()
