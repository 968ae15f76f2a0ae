"""A recorder that knows, beside operators, what they belong to: calls of blocks, updates, clipping."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gluontune.capture.events import Run, Step
from gluontune.capture.recorder import Recorder

_EPOCHS = ("epochs", "num_epochs", "nepoch", "epoch_num", "n_epochs", "max_epochs", "num_epoch")


@dataclass
class BlockCall:
    """A call of a block: its events are those from ``begin`` to ``end``."""

    block: Any
    parent: BlockCall | None
    name: str  # the script's variable, of a block that no other called
    begin: int
    end: int = 0
    gives: Any = None  # numbers of values in lists


@dataclass
class Told:
    """What a trainer's update (``trainer``) or ``clip_global_norm`` (``most``) did, as one."""

    begin: int  # of its events
    line: str
    end: int = 0
    gradients: dict[str, int] = field(default_factory=dict)  # values by parameters' names, before
    new: dict[str, int] = field(default_factory=dict)  # the gradients' values after it
    weights: dict[str, int] = field(default_factory=dict)
    trainer: Any = None
    batch_size: Any = 1
    rate: float = 0.0
    count: int = 0  # of updates, this one included
    most: float = 0.0
    by_hand: bool = False  # the script computes the factor itself, from a norm that it reads
    size: int = 0  # the value that has the batch's size, where the script computes it


@dataclass
class Seen:
    """A step with what its events belong to."""

    step: Step = field(default_factory=Step)
    calls: list[BlockCall] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)  # what gave batches, in order
    gradients: dict[str, int] = field(default_factory=dict)  # their values at the end, by parameters' names

    @property
    def updates(self) -> list[Told]:
        """What trainers did."""
        return [told for told in self.told if told.trainer is not None]

    @property
    def inside(self) -> set[int]:
        """The places of events within what was told."""
        return {place for told in self.told for place in range(told.begin, told.end)}


class Tracing(Recorder):
    """Records steps as :class:`Seen`; ``finished`` is called with each."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Seen], None]):
        super().__init__(mx, folder, lambda step: finished(self.latest))
        self.seen, self.latest, self.open = Seen(), Seen(), list[BlockCall]()
        self.trainers: dict[int, str] = {}  # names by id
        self.asks_for_mode = ""
        self.epochs = (1, "")  # and where the script has their number

    def block(self, block: Any, args: tuple[Any, ...], run: Run) -> Any:
        self._between_steps()
        parent = self.open[-1] if self.open else None
        call = BlockCall(block, parent, "" if parent else self._name_of(block), len(self.step.events))
        self.seen.calls.append(call)
        self.open.append(call)
        try:
            result = run()
            call.gives = self._numbers(result)
        finally:
            self.open.pop()
            call.end = len(self.step.events)
        return result

    def _numbers(self, nest: Any) -> Any:
        if isinstance(nest, (list, tuple)):
            return [self._numbers(item) for item in nest]
        return self.hold(nest).value if isinstance(nest, (self.mx.nd.NDArray, self.mx.np.ndarray)) else None

    def _name_of(self, block: Any) -> str:
        """The variable of the script that holds a block, from the innermost frame that has one."""
        for frame in _frames():
            own = vars(frame.f_locals["self"]) if hasattr(frame.f_locals.get("self"), "__dict__") else {}
            for names in (frame.f_locals, own, frame.f_globals):
                found = next((str(name) for name, value in names.items() if value is block), "")
                if found.isidentifier() and not found.startswith("_"):
                    return found
        return ""

    def clip(self, gradients: Sequence[Any], most: float, run: Run) -> Any:
        owners = [self._owner(array) for array in gradients]
        told = Told(len(self.step.events), self._line(), most=float(most))
        if all(owner is not None and owner.kind == "gradient" for owner in owners):
            names = [owner.name for owner in owners if owner is not None]
            told.gradients = {name: self.hold(array).value for name, array in zip(names, gradients)}
            self.seen.told.append(told)
        result = run()
        told.new = {name: self.hold(array).value for name, array in zip(told.gradients, gradients)}
        told.end = len(self.step.events)
        return result

    def update(self, trainer: Any, batch_size: Any, run: Run) -> Any:
        told = Told(len(self.step.events), self._line(), trainer=trainer, batch_size=batch_size)
        for parameter in trainer._params:
            for array in parameter._grad or () if parameter.grad_req != "null" else ():
                if id(array) in self.held:
                    told.gradients[parameter.name] = self.hold(array).value
        told.begin = len(self.step.events)
        result = super().update(trainer, batch_size, run)
        if id(trainer) not in self.trainers:
            self._first_update(trainer)
        for parameter in trainer._params:
            for arrays, known in ((parameter._data, told.weights), (parameter._grad, told.new)):
                for array in arrays or ():
                    if id(array) in self.held:
                        known[parameter.name] = self.held[id(array)].value
        optimizer = trainer._optimizer
        told.end, told.rate, told.count = len(self.step.events), float(optimizer.learning_rate), optimizer.num_update
        self.seen.told.append(told)
        return result

    def watch_mode(self) -> None:
        """Note the line of a net that asks for ``autograd.is_training()``: its steps show one answer alone."""
        before = self.mx.autograd.is_training

        def is_training() -> Any:
            if self.open and _is_the_scripts(sys._getframe(1)):
                self.asks_for_mode = self.asks_for_mode or self._line()
            return before()

        self.mx.autograd.is_training = is_training

    def _first_update(self, trainer: Any) -> None:
        name, number = self._name_of(trainer) or "trainer", 2
        while name in self.trainers.values():
            name, number = f"{name.rstrip('0123456789')}{number}", number + 1
        self.trainers[id(trainer)] = name
        for names in (space for frame in _frames() for space in (frame.f_locals, frame.f_globals)):
            spaces = [(f"{k}.", vars(v)) for k, v in names.items() if type(v).__name__ == "Namespace"]
            for prefix, space in [("", names), *spaces]:
                for key in _EPOCHS:
                    if isinstance(space.get(key), int) and not self.epochs[1]:
                        self.epochs = space[key], f"{prefix}{key} of the script"

    def variable_names(self) -> dict[str, str]:
        """The script's names of ``attach_grad``'s arrays, by the recorder's."""
        main = vars(sys.modules["__main__"])
        found = {}
        for owner in self.variables.values():
            name = next((str(k) for k, v in main.items() if v is owner.array and not k.startswith("_")), "")
            found[owner.name] = name or owner.name
        return found

    def batch(self, source: Any, run: Run) -> Any:
        result = super().batch(source, run)
        self.seen.loaders.append(source)
        return result

    def _close(self, step: Step) -> None:
        before = self.before
        super()._close(step)
        if not self.updated:  # validation, and the end of an epoch: the next step goes on from the last one
            self.before = {**before, **self.before}

    def end(self) -> None:
        for key, entry in self.held.items():
            owner = self._owner(entry.array) if entry.array is not None else self.variables.get(-key)
            if owner is not None and (owner.kind == "gradient" or key < 0):
                self.seen.gradients[owner.name] = entry.value
        self.latest, self.seen = self.seen, Seen()
        self.latest.step = self.step
        super().end()


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if _is_the_scripts(frame):
            yield frame
        frame = frame.f_back


def _is_the_scripts(frame: Any) -> bool:
    return not str(frame.f_globals.get("__name__", "")).startswith(("mxnet", "gluontune"))
