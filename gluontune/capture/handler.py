"""What a handler of hooks is asked: a call of an operator, a view, a copy, a backward pass, an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of an operator.

    Args:
        name: MXNet's. inputs: arrays. attrs: by name, as MXNet's text. out: the array or arrays to write to, or None.
        run: computes it by MXNet; returns an array, or a list where the operator has several outputs.
        is_np, many: whether it returns arrays of ``mx.np``, and a list whatever their number.
        raw: handle, keys and values of the attributes, as the front end gave them.
    """

    name: str
    inputs: Sequence[Any]
    attrs: dict[str, str]
    out: Any
    run: Callable[..., Any]
    is_np: bool = False
    many: bool = False
    raw: tuple[Any, Any, Any] = (None, (), ())


class Handler:
    """What is done at each hook; here, what MXNet does.

    Attributes:
        follow: what may answer a call of an operator before :meth:`op` is asked, or None.
    """

    follow: Any = None

    def op(self, call: Call) -> Any:
        """An operator."""
        return call.run()

    def view(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """An array that shares memory: ``kind`` is reshape, at, slice (with a begin and an end), basic (with a key),
        same, detach or grad.
        """
        return run()

    def write(self, array: Any, values: Any, run: Callable[[], None]) -> None:
        """Values of the host are copied into an array."""
        run()

    def read(self, array: Any, run: Callable[[], Any]) -> Any:
        """Values of an array are copied to the host."""
        return run()

    def mark(self, arrays: Sequence[Any], gradients: Sequence[Any], reqs: Sequence[str]) -> None:
        """Variables have been given gradients."""

    def backward(
        self, heads: Sequence[Any], head_grads: Sequence[Any] | None, train: bool, retain: bool, run: Callable[[], Any]
    ) -> Any:
        """A backward pass into the gradients of marked variables."""
        return run()

    def unknown(self, what: str, run: Callable[[], Any]) -> Any:
        """Something that no graph can hold."""
        return run()

    def update(self, trainer: Any, batch_size: Any, run: Callable[[], Any]) -> Any:
        """``Trainer.step`` or ``Trainer.update``."""
        return run()

    def block(self, block: Any, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """A call of a Gluon block."""
        return run()

    def updates(self, updater: Any, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """A call of a trainer's updater, with indices, gradients and weights."""
        return run()

    def clip(self, gradients: Sequence[Any], most: float, run: Callable[[], Any]) -> Any:
        """``gluon.utils.clip_global_norm``."""
        return run()

    def batch(self, source: Any, run: Callable[[], Any]) -> Any:
        """The next batch of a ``DataLoader`` or ``DataIter``."""
        return run()

    def outside(self, arrays: Sequence[Any], run: Callable[[], Any]) -> Any:
        """C reads or writes these arrays past the operators: a parameter is set, a file is written."""
        return run()

    def wait(self, run: Callable[[], Any]) -> Any:
        """``waitall`` and ``wait_to_read``."""
        return run()
