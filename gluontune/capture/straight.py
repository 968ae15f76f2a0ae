"""Parts of a template computed by straight Python code: no look-ups, no bookkeeping, updates of one kind together."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

from gluontune.capture.events import Backward, Op
from gluontune.capture.interpret import CONVOLUTION, Interpreter, as_declared, bridge_name, put
from gluontune.capture.program import CHANGING
from gluontune.capture.retreat import ERRORS
from gluontune.capture.template import Template
from gluontune.capture.updates import UPDATES, Tensors, update_of
from gluontune.core.errors import GluontuneError
from gluontune.runtime.pytorch import random_states, set_random_states, synchronize, torch

Env = MutableSequence[Any]
_BOUND = 1e-5  # relative, of the first results: rules for many tensors round otherwise
_OTHER_SUMS = 1e-4  # of convolutions that add up in another order
_TURNS = 6  # of each way, until the fastest is known
_FIRST_TURNS, _LOST = 2, 1.5  # after so many, ways that take so much longer than the fastest are given up


class Part:
    """Events of a template in a row: those from ``begin`` to ``end``.

    The interpreter's first run shows what each operator returns. The next ones are computed both ways, from the same
    random numbers, and compared; all others by the fastest code: on one thread or all, with channels last or not.
    Where ``like``, of the same operators with other shapes or attributes, has compared its ways, they are taken over.
    """

    def __init__(self, template: Template, interpreter: Interpreter, begin: int, end: int, like: Part | None = None):
        self.template, self.interpreter, self.like = template, interpreter, like
        self.put = functools.partial(put, template.wanted)
        self.events: list[Any] = template.events[begin:end]
        dynamic = template.dynamic()
        self.entries = [dynamic.get(at) for at in range(begin, end)]
        alike = Counter[Any]()
        self.order: list[int] = []  # of events of one name and entry
        for event, entry in zip(self.events, self.entries):
            key = entry, getattr(event, "name", "")
            self.order.append(alike[key])
            alike[key] += 1
        self.several: dict[int, bool] = {}  # whether an operator returns a sequence
        self.returned: dict[int, list[tuple[Any, Any]]] = {}  # shapes and types by place of the event
        self.tried: list[tuple[Callable[[Env, Sequence[Any]], None], float]] = []  # codes, with their bounds
        self.ways: list[tuple[Callable[[Env, Sequence[Any]], None], int]] = []  # codes that agree, with threads
        self.made_by: dict[Any, Interpreter] = {}  # what writes a code, by it
        self.seconds: list[list[float]] = []  # of each way's runs

    @property
    def compared(self) -> bool:
        """Whether all of its ways have been compared with the interpreter's."""
        return bool(self.ways) and not self.tried

    def __call__(self, env: Env, given: Sequence[Any]) -> None:
        """Compute the events. given: attributes' values of the step's entries, where they differ."""
        if len(self.ways) == 1 and self.compared:
            code, threads = self.ways[0]
            self.interpreter.torch.set_num_threads(threads)
            code(env, given)
        elif self.compared:
            self._take_turns(env, given)
        else:
            self._prove(env, given)

    def _prove(self, env: Env, given: Sequence[Any]) -> None:
        """Compute by the interpreter, and once more by the next code."""
        before, first = list(env), not (self.tried or self.ways)
        place = self.interpreter.place
        state = random_states(place) if self.tried else []
        self._interpreted(env, given, bool(self.tried))
        if first and self.like is not None:
            written = {by: self._written(by) for by in {self.like.made_by[code] for code, _ in self.like.ways}}
            self.ways = [(written[self.like.made_by[code]], threads) for code, threads in self.like.ways]
            self.like = None
            return
        if first:
            ways = [(self.interpreter, _BOUND)]
            if any(isinstance(e, Op) and bridge_name(e.name) == CONVOLUTION for e in self.events):
                ways.append((Interpreter(channels_last=True, place=place), _OTHER_SUMS))
            self.tried = [(self._written(interpreter), bound) for interpreter, bound in ways]
            return
        after, (code, bound) = random_states(place), self.tried.pop(0)
        set_random_states(state, place)
        try:
            code(before, given)
            self._compare(before, env, bound)
            few = {1} if place.type == "cpu" else set()
            self.ways += [(code, threads) for threads in sorted({*few, self.interpreter.threads})]
        except ERRORS:
            if not self.ways:
                raise
        set_random_states(after, place)

    def _take_turns(self, env: Env, given: Sequence[Any]) -> None:
        self.seconds = self.seconds or [[] for _ in self.ways]
        turn = min(range(len(self.ways)), key=lambda at: len(self.seconds[at]))
        code, threads = self.ways[turn]
        self.interpreter.torch.set_num_threads(threads)
        synchronize(self.interpreter.place)
        began = time.perf_counter()
        code(env, given)
        synchronize(self.interpreter.place)
        self.seconds[turn].append(time.perf_counter() - began)
        if turn == len(self.ways) - 1 and len(self.seconds[turn]) in (_FIRST_TURNS, _TURNS):
            middle = [statistics.median(seconds) for seconds in self.seconds]
            bound = min(middle) * (_LOST if len(self.seconds[turn]) < _TURNS else 1.0)
            left = [at for at, seconds in enumerate(middle) if seconds <= bound]
            self.ways, self.seconds = [self.ways[at] for at in left], [self.seconds[at] for at in left]

    def event(self, place: int, given: Sequence[Any]) -> Any:
        """An event with this step's numbers."""
        event, entry = self.events[place], self.entries[place]
        if entry is None or given[entry] is None:
            return event
        attrs = dict(event.attrs)
        at = self.order[place]
        for key, value in zip(map(str, self.template.entries[entry].keys), given[entry]):
            if key in attrs and key in CHANGING:
                attrs[key] = str(value)
            elif key in ("lrs", "wds") and key[:-1] in attrs:
                attrs[key[:-1]] = str(value).strip("()[] ").split(",")[at].strip()
        return replace(event, attrs=attrs)

    def _interpreted(self, env: Env, given: Sequence[Any], twice: bool) -> None:
        """Compute event by event. twice: the graph of an earlier part is gone through once more."""
        for place in range(len(self.events)):
            event = self.event(place, given)
            if isinstance(event, Backward):
                self.interpreter.backward(replace(event, retain=event.retain or twice), env)
                continue
            found = self.interpreter.found(event, env)
            self.several[place] = isinstance(found, (tuple, list))
            found = found if self.several[place] else (found,)
            self.returned[place] = [(tuple(tensor.shape), tensor.dtype) for tensor in found]
            for number, tensor in zip(event.outputs, found):
                self.put(env, number, as_declared(tensor, self.template.values[number]))

    def _compare(self, mine: Env, theirs: Env, bound: float) -> None:
        for event in self.events:
            for number in event.outputs:
                a, b = mine[number].detach(), theirs[number].detach()
                alike = a.shape == b.shape and a.dtype == b.dtype
                if not (alike and torch().allclose(a, b, rtol=bound, atol=bound * _size(b), equal_nan=True)):
                    raise GluontuneError("a template computes something else")

    # code

    def _written(self, interpreter: Interpreter) -> Callable[[Env, Sequence[Any]], None]:
        library = interpreter.torch
        names: dict[str, Any] = {"_mode": library._C._set_grad_enabled}
        lines, mode = list[str](), True
        for _, group in itertools.groupby(range(len(self.events)), self._together):
            places = list(group)
            place, event = places[0], self.events[places[0]]
            if isinstance(event, Backward):
                names[f"b{place}"] = functools.partial(interpreter.backward, event)
                lines.append(f"b{place}(e)")
                continue
            if event.recording != mode:
                mode = event.recording
                lines.append(f"_mode({mode})")
            if event.name in UPDATES:
                names[f"u{place}"] = Updates(self, places)
                lines.append(f"u{place}(e, g)")
            else:
                self._operator(place, event, names, lines, interpreter)
        if not mode:
            lines.append("_mode(True)")
        body = "\n        ".join(lines or ["pass"])
        text = f"def part(e, g):\n    try:\n        {body}\n    finally:\n        _mode(True)\n"
        exec(compile(text, "<a step's template>", "exec"), names)
        self.made_by[names["part"]] = interpreter
        return names["part"]  # type: ignore[no-any-return]

    def _together(self, place: int) -> int:
        """Equal for updates that follow each other in one mode."""
        event = self.events[place]
        return int(event.recording) if isinstance(event, Op) and event.name in UPDATES else -1 - place

    def _operator(self, place: int, event: Op, names: dict[str, Any], lines: list[str], run: Interpreter) -> None:
        changes = self.entries[place] is not None
        names[f"f{place}"] = Changing(self, place) if changes else run.function(event)
        arguments = ", ".join([*[f"e[{n}]" for n in event.inputs], *["given=g"] * changes])
        lines.append(f"r = f{place}({arguments})")
        for at, (number, kind) in enumerate(zip(event.outputs, self.returned[place])):
            value = self.template.values[number]
            text = f"r[{at}]" if self.several[place] else "r"
            if kind[0] != value.shape:
                text += f".reshape({value.shape})"
            dtype = getattr(self.interpreter.torch, value.dtype)
            if kind[1] != dtype:
                names[f"_{value.dtype}"] = dtype
                text += f".to(_{value.dtype})"
            lines.append(f"e[{number}] = {text}")
            if number in self.template.wanted:
                names["_put"] = self.put
                lines.append(f"_put(e, {number}, e[{number}])")


class Changing:
    """An operator whose numbers change from step to step."""

    def __init__(self, part: Part, place: int):
        self.part, self.place = part, place
        self.entry: Any = part.entries[place]
        self.known: Any = object()
        self.function: Any = None

    def __call__(self, *inputs: Any, given: Sequence[Any]) -> Any:
        values = given[self.entry]
        key = None if values is None else list(map(str, values))
        if key != self.known:
            self.known = key
            self.function = self.part.interpreter.made(self.part.event(self.place, given))
        return self.function(*inputs)


class Updates:
    """Updates in a row: those by the same numbers are computed together."""

    def __init__(self, part: Part, places: list[int]):
        self.part, self.places = part, places
        self.entries = sorted({e for place in places if (e := part.entries[place]) is not None})
        self.known: Any = object()
        self.groups: list[tuple[Any, list[list[int]], list[list[int]]]] = []

    def __call__(self, env: Env, given: Sequence[Any]) -> None:
        key = [None if given[e] is None else list(map(str, given[e])) for e in self.entries]
        if key != self.known:
            self.known, self.groups = key, self._grouped(given)
        for update, inputs, outputs in self.groups:
            found = update(*[Tensors([env[n] for n in numbers]) for numbers in inputs])
            for numbers, tensors in zip(outputs, found if isinstance(found, tuple) else (found,)):
                for number, tensor in zip(numbers, tensors.parts):
                    self.part.put(env, number, tensor)

    def _grouped(self, given: Sequence[Any]) -> list[Any]:
        groups: list[list[Op]] = []
        alike: dict[Any, list[Op]] = {}
        made: set[int] = set()
        for op in [self.part.event(place, given) for place in self.places]:
            if not made.isdisjoint(op.inputs):  # one goes on from another
                alike, made = {}, set()
            key = op.name, len(op.inputs), tuple(op.attrs.items())
            if key not in alike:
                alike[key] = []
                groups.append(alike[key])
            alike[key].append(op)
            made.update(op.outputs)
        return [
            (
                update_of(ops[0].name, ops[0].attrs),
                [list(numbers) for numbers in zip(*[op.inputs for op in ops])],
                [list(numbers) for numbers in zip(*[op.outputs for op in ops])],
            )
            for ops in groups
        ]


def _size(tensor: Any) -> float:
    return float(tensor.abs().max()) if tensor.numel() and tensor.is_floating_point() else 0.0
