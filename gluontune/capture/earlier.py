"""Views of arrays that a step has not met: their values are leaves, so that steps on other parts of them are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gluontune.capture.events import Op, Run
from gluontune.capture.held import Alias, Held, View, view_operators
from gluontune.capture.lazy import LazyTorch

_REMEMBERED = 256  # arrays whose views are compared from step to step


class EarlierTorch(LazyTorch):
    """Takes what an earlier step, or the program before it, made to share memory as a value of its own.

    Where its base is met in the same step, or written to, the value follows from that of the base from then on.
    """

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.loose: dict[int, list[Any]] = {}  # arrays whose values are leaves in this step, by the ids of their bases
        self.early: dict[int, Any] = {}  # their tensors, until they are leaves
        self.parts: dict[int, tuple[int, set[str]]] = {}  # by an array's id: its first step, and the parts taken there
        self.roaming: set[int] = set()  # ids of arrays of which steps take parts that differ
        self.base = 0  # the number before the step's first value

    def _met(self, array: Any) -> bool:
        """Whether the step under way knows an array."""
        return id(array) in self.held

    def _bases(self, array: Any) -> Iterator[Any]:
        """What an array shares the memory of, from the next one on."""
        alias = self.aliases.get(id(array))
        while alias is not None:
            yield alias.base
            alias = self.aliases.get(id(alias.base))

    def _is_earlier(self, array: Any) -> bool:
        """Whether the step knows neither an array nor what it shares memory with; no gradient passes there."""
        for each in (array, *self._bases(array)):
            known, alias = self.truth.get(id(each)), self.aliases.get(id(each))
            if self._met(each) or self._owner(each) is not None or (known is not None and known.lost):
                return False
            if alias is not None and alias.view is None:
                return False
        return True

    def _roams(self, array: Any, kind: str, arguments: tuple[Any, ...]) -> bool:
        """Whether steps take different parts of an array that they have not met."""
        if not self.lazy or kind == "grad" or not self._is_earlier(array):
            return False
        key, part = id(array), repr((kind, arguments))
        if key not in self.parts and len(self.parts) >= _REMEMBERED:
            first = next(iter(self.parts))
            del self.parts[first]
            self.roaming.discard(first)
        step, taken = self.parts.setdefault(key, (self.base, set()))
        if step == self.base:
            taken.add(part)
        elif part not in taken:
            self.roaming.add(key)
        return key in self.roaming

    def _apart(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Run) -> Any:
        """A view of an array that the step has not met; it is looked at when it is used."""
        result = run()
        if result is not None and result is not array:
            shape, dtype = tuple(result.shape), self._named(result.dtype)
            view = View(*view_operators(kind, arguments, array, result), shape, dtype, False, False)
            self.aliases[id(result)] = Alias(result, array, view, run)
        return result

    def _earlier_value(self, array: Any) -> Any:
        """The tensor of an array of which :meth:`_is_earlier` is true."""
        bases = list(self._bases(array))
        root = self.truth.get(id(bases[-1])) if bases else None
        if root is None:
            return super()._from_mxnet(array)
        tensor = root.tensor
        for each in [*reversed(bases[:-1]), array]:
            view = self.aliases[id(each)].view
            assert view is not None
            for name, attrs in view.operators:
                tensor = self.interpreter.made(Op(name, attrs, [0], [1], False, False, ""))(tensor)
            tensor = tensor.reshape(view.shape)
        return tensor.detach().clone()

    # where values come from

    def _again(self, array: Any) -> Held | None:
        alias = self.aliases.get(id(array))
        if not self.lazy or alias is None or alias.array is not array or not self._is_earlier(array):
            return super()._again(array)
        for base in self._bases(array):
            self.loose.setdefault(id(base), []).append(array)
        self.early[id(array)] = self._earlier_value(array)
        return None

    def _from_mxnet(self, array: Any) -> Any:
        early = self.early.pop(id(array), None)
        return super()._from_mxnet(array) if early is None else early

    def _is_ours(self, array: Any) -> bool:
        return super()._is_ours(array) or id(array) in self.loose

    def _leaf(self, array: Any) -> Held:
        entry = super()._leaf(array)
        self._bound(array)
        return entry

    def _write(self, array: Any, value: int) -> None:
        super()._write(array, value)
        self._bound(array)

    def _bound(self, base: Any) -> None:
        """The step has met an array: the values of what shares its memory follow from its own."""
        for array in self.loose.pop(id(base), ()):
            entry, alias = self.held[id(array)], self.aliases[id(array)]
            if entry.base is None:
                entry.base, entry.view, entry.seen = self.hold(alias.base), alias.view, -1

    def _check_target(self, array: Any) -> None:
        for base in reversed(list(self._bases(array)) if self.lazy else []):
            self.hold(base)
        super()._check_target(array)

    def _close(self, step: Any) -> None:
        super()._close(step)
        self.loose.clear()
        self.early.clear()

    def release(self) -> None:
        super().release()
        self.loose.clear()
