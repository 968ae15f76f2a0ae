"""Hooks in MXNet's Python front end: every operator, view, copy, backward pass and update goes through a handler.

Generated operators of 1.9.1 all call ``mxnet.ndarray.register._imperative_invoke``; few methods reach C past it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gluontune.capture import operators
from gluontune.capture.events import Call
from gluontune.capture.held import arrays_behind, arrays_in, listed
from gluontune.capture.helpers.base import patched, with_subclasses


class Hooks:
    """The hooks of one process; in force in the thread that installed them, but within :meth:`quiet`."""

    def __init__(self, mx: Any, handler: Any):
        self.mx, self.handler = mx, handler
        self.thread, self.depth = threading.get_ident(), 0
        self.parameters: weakref.WeakSet[Any] = weakref.WeakSet()  # Gluon's that have been given arrays
        self.changes = 0  # how often parameters were given other arrays
        self.modes = [mx.autograd.is_recording(), mx.autograd.is_training()]  # of this thread
        self._before: list[tuple[Any, str, Any]] = []

    @property
    def active(self) -> bool:
        return self.depth == 0 and self.here

    @property
    def here(self) -> bool:
        """Whether the hooks are in force, or would be but for :meth:`quiet`."""
        return bool(self._before) and threading.get_ident() == self.thread

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """MXNet as it is."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def _quietly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.active:
            return function(*args, **kwargs)
        with self.quiet():
            return function(*args, **kwargs)

    def _put(self, owner: Any, name: str, new: Any) -> None:
        self._before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, new)

    def _around(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Have calls of a method or function call ``around(before, …)``."""
        self._before.append((owner, name, owner.__dict__[name]))
        patched(owner, name, around)

    def _method(self, owner: Any, name: str, hook: Callable[..., Any], quietly: bool = True) -> None:
        """Replace a method or function; ``hook(run, *args, **kwargs)`` is called where the hooks are in force.

        ``run`` is MXNet as it is if ``quietly``; else it comes to hooks again.
        """
        if name not in owner.__dict__:
            return
        before = owner.__dict__[name]

        @functools.wraps(before)
        def method(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return before(*args, **kwargs)
            run = functools.partial(self._quietly, before) if quietly else before
            return hook(functools.partial(run, *args, **kwargs), *args, **kwargs)

        self._put(owner, name, method)

    def install(self) -> None:
        mx, module = self.mx, importlib.import_module
        self._operators(module("mxnet.ndarray.register"))
        multiarray = module("mxnet.numpy.multiarray")
        self._method(multiarray, "_reshape_view", lambda run, a, *_: self.handler.view(a, "reshape", (), run))
        for kind in (mx.nd.NDArray, multiarray.ndarray):
            self._array(kind)
        self._compiled(module("mxnet._ctypes.ndarray").CachedOp)
        self._autograd(mx.autograd, module("mxnet.gluon.parameter"))
        self._gluon(mx)

    def remove(self) -> None:
        for owner, name, before in reversed(self._before):
            setattr(owner, name, before)
        self._before.clear()

    def _operators(self, register: Any) -> None:
        names = operators.operator_names(self.mx)
        before = register._imperative_invoke

        def invoke(handle: Any, arrays: Any, keys: Any, values: Any, out: Any, is_np: Any, many: Any) -> Any:
            if not self.active:
                return before(handle, arrays, keys, values, out, is_np, many)
            if self.handler.follow is not None:
                found = self.handler.follow.op(handle, arrays, keys, values, out, is_np, many)
                if found is not None:
                    return found

            def run(inputs: Any = None, changed: dict[str, str] | None = None) -> Any:
                given = {**attrs, **(changed or {})}
                ours = arrays if inputs is None else inputs
                return before(handle, ours, list(given), list(given.values()), out, is_np, many)

            attrs, raw = {str(key): str(value) for key, value in zip(keys, values)}, (handle, keys, values)
            return self.handler.op(Call(names[handle], arrays, attrs, out, run, is_np, many, raw))

        self._put(register, "_imperative_invoke", invoke)

    def _compiled(self, kind: Any) -> None:
        calls = operators.CompiledCalls(self.mx)
        before, begun = kind.__call__, kind.__init__

        def init(compiled: Any, symbol: Any, flags: Any = ()) -> None:
            begun(compiled, symbol, flags)
            calls.made(compiled, symbol)

        def call(compiled: Any, *arrays: Any, **more: Any) -> Any:
            run = functools.partial(self._quietly, before, compiled, *arrays, **more)
            if not self.active:
                return run()
            why_not = "a compiled graph with outputs of its own" if more else calls.why_not(compiled)
            return self.handler.unknown(why_not, run) if why_not else calls.call(compiled, arrays)

        self._put(kind, "__init__", init)
        self._put(kind, "__call__", call)

    def _array(self, kind: Any) -> None:
        handler = self.handler

        def basic(run: Any, array: Any, key: Any, *_: Any) -> Any:
            parts = array._basic_indexing_key_int_to_slice(tuple(k for k in key if k is not None))[0]
            shape = array.shape
            shares = len(parts) == len(shape) and array._basic_indexing_slice_is_contiguous(parts, shape)
            if not shares:  # a copy, by operators
                return run()
            return handler.view(array, "basic", (key,), functools.partial(self._quietly, run))

        self._method(kind, "_at", lambda run, a, i: handler.view(a, "at", (i,), run))
        self._method(kind, "_slice", lambda run, a, start, stop: handler.view(a, "slice", (start, stop), run))
        self._method(kind, "_get_nd_basic_indexing", basic, quietly=False)
        self._method(kind, "_get_np_basic_indexing", basic, quietly=False)
        views = {"reshape_view": "reshape", "as_np_ndarray": "same", "as_nd_ndarray": "same", "detach": "detach"}
        if kind is self.mx.nd.NDArray:  # of numpy arrays, an operator
            views["reshape"] = "reshape"
        for name, view in views.items():
            self._method(kind, name, lambda run, a, *_, view=view, **__: handler.view(a, view, (), run))
        self._method(kind, "_sync_copyfrom", lambda run, a, values: handler.write(a, values, run))
        self._method(kind, "asnumpy", lambda run, a: handler.read(a, run))
        for name in ("to_dlpack_for_read", "to_dlpack_for_write", "_to_shared_mem", "__getstate__"):
            self._method(kind, name, lambda run, a: handler.outside([a], run))
        self._method(kind, "attach_grad", self._attach)
        self._method(kind, "backward", self._backward)
        if "grad" in kind.__dict__:
            grad = kind.__dict__["grad"]
            self._put(kind, "grad", property(lambda a: self._gradient(a, grad)))

    def _gradient(self, array: Any, grad: property) -> Any:
        def run() -> Any:
            return self._quietly(grad.fget, array)  # type: ignore[arg-type]

        return self.handler.view(array, "grad", (), run) if self.active else run()

    def _attach(self, run: Any, array: Any, grad_req: str = "write", *rest: Any, **more: Any) -> None:
        run()
        self.handler.mark([array], [None], [grad_req])

    def _backward(self, run: Any, heads: Any, head_grads: Any = None, retain_graph: bool = False,
                  train_mode: bool = True, out_grad: Any = None) -> None:  # fmt: skip
        grads = head_grads if out_grad is None else out_grad  # of an array's own method
        self.handler.backward(listed(heads), None if grads is None else listed(grads), train_mode, retain_graph, run)

    def _autograd(self, autograd: Any, parameter: Any) -> None:
        handler = self.handler

        def mark(run: Any, arrays: Any, gradients: Any, grad_reqs: Any = "write") -> None:
            run()
            arrays = listed(arrays)
            reqs = [grad_reqs] * len(arrays) if isinstance(grad_reqs, str) else list(grad_reqs)
            handler.mark(arrays, listed(gradients), reqs)

        for name, at in (("set_recording", 0), ("set_training", 1)):
            self._around(autograd, name, functools.partial(operators.mode_noted, self, at))
        old = importlib.import_module("mxnet.contrib.autograd")
        self._around(old, "set_is_training", functools.partial(operators.modes_noted, self))
        self._method(autograd, "backward", self._backward)
        self._method(autograd, "mark_variables", mark)
        for name in ("grad", "get_symbol"):
            self._method(autograd, name, lambda run, *_, name=name, **__: handler.unknown(f"autograd.{name}", run))
        self._method(autograd.Function, "__call__", lambda run, f, *_: handler.unknown(
            f"autograd.Function {type(f).__name__}", run))  # fmt: skip
        kind = parameter.Parameter
        names = "initialize _init_grad _finish_deferred_init _load_init set_data cast reset_ctx"
        for name in names.split():
            self._put(kind, name, self._changing(kind.__dict__[name]))
        req = kind.__dict__["grad_req"]
        self._put(kind, "grad_req", property(req.fget, self._changing(req.fset)))

    def _changing(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """What gives a parameter arrays, values, or another request for its gradient."""

        @functools.wraps(before)
        def change(parameter: Any, *args: Any, **kwargs: Any) -> Any:
            self.parameters.add(parameter)
            run = functools.partial(self._quietly, before, parameter, *args, **kwargs)
            arrays, req = _arrays(parameter), getattr(parameter, "_grad_req", "")
            try:
                if not self.active:
                    return run()
                given = [value for value in (*args, *kwargs.values()) if hasattr(value, "asnumpy")]
                return self.handler.outside([*given, *arrays], run)
            finally:
                now = _arrays(parameter)
                same = len(now) == len(arrays) and all(map(operator.is_, now, arrays))
                if not same or req != getattr(parameter, "_grad_req", ""):
                    self.changes += 1
                    if self.active:
                        self.handler.outside([], lambda: None)

        return change

    def _gluon(self, mx: Any) -> None:
        handler, module = self.handler, importlib.import_module
        for owner in (mx.nd, module("mxnet.ndarray.utils"), module("mxnet.numpy_extension.utils"), mx.npx):
            self._method(owner, "save", lambda run, _, data: handler.outside([a for _, a in arrays_in(data)], run))
        for owner in (mx.nd, module("mxnet.ndarray.ndarray"), mx.npx):
            self._method(owner, "waitall", lambda run: handler.wait(run))
        self._method(mx.nd.NDArray, "wait_to_read", lambda run, _: handler.wait(run))

        def update(run: Any, trainer: Any, batch_size: Any, *_: Any, **__: Any) -> Any:
            return handler.update(trainer, batch_size, run)

        for name in ("step", "update"):
            self._method(mx.gluon.Trainer, name, update, quietly=False)
        updater = module("mxnet.optimizer.optimizer").Updater
        self._method(updater, "__call__", lambda run, u, *args: handler.updates(u, args, run), quietly=False)
        self._around(mx.gluon.Trainer, "_init_kvstore", operators.without_store)
        store = module("mxnet.kvstore.kvstore").KVStore
        for name in ("broadcast", "init", "push", "pull", "pushpull", "row_sparse_pull"):
            self._method(store, name, lambda run, *_, name=name, **__: handler.unknown(f"KVStore.{name}", run))
        for name in ("forward", "backward"):
            self._method(module("mxnet.executor").Executor, name, lambda run, *_, **__: handler.unknown(
                "a symbol that was bound", run))  # fmt: skip
        loader = mx.gluon.data.DataLoader

        def batches(before: Any, source: Any) -> Iterator[Any]:
            begin = functools.partial(self._quietly, before, source)
            iterator = handler.outside(arrays_behind(source._dataset), begin) if self.active else begin()
            following = functools.partial(self._quietly, next, iterator)
            while True:
                try:
                    yield handler.batch(source, following) if self.active else next(iterator)
                except StopIteration:
                    return

        self._around(loader, "__iter__", batches)
        self._method(  # which forks
            loader, "__init__", lambda run, _, dataset, *__, **___: handler.outside(arrays_behind(dataset), run)
        )
        for kind in with_subclasses(mx.io.DataIter):
            self._method(kind, "next", lambda run, source: handler.batch(
                source, lambda: handler.outside(arrays_behind(source), run)))  # fmt: skip
        self._method(mx.gluon.utils, "clip_global_norm", lambda run, arrays, most, *_, **__: handler.clip(
            arrays, most, run), quietly=False)  # fmt: skip
        self._around(mx.gluon.HybridBlock, "hybridize", operators.inert)
        self._around(mx.gluon.Block, "__setattr__", operators.counting)
        self._around(mx.gluon.Block, "__call__", functools.partial(operators.noted, self))
        self._method(mx.gluon.HybridBlock, "export", self._export, quietly=False)

    def _export(self, run: Any, block: Any, *_: Any, **__: Any) -> Any:
        def export() -> Any:
            if block.__dict__.get(operators.TAKES) and not block._cached_graph:
                block._build_cache(*block.__dict__[operators.TAKES])
            return run()

        arrays = [array for parameter in block.collect_params().values() for array in parameter._data or ()]
        return self.handler.outside(arrays, functools.partial(self._quietly, export))


def _arrays(parameter: Any) -> list[Any]:
    return [array for name in ("_data", "_grad") for array in getattr(parameter, name, None) or ()]
