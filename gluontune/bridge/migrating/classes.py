"""Calls as the text of classes: layers, ``nn.Sequential``, and classes that like blocks share."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from gluontune.bridge.convert import attributes
from gluontune.bridge.migrating.calls import Call
from gluontune.bridge.migrating.expressions import Layer, arguments, expression, layer_of
from gluontune.bridge.migrating.parts import Part
from gluontune.bridge.migrating.units import Entry, Flow, Unit, chain, flow_of
from gluontune.bridge.names import is_attribute
from gluontune.bridge.registry import OPERATORS
from gluontune.errors import GluontuneError
from gluontune.graph.symbol import Graph
from gluontune.texts import literal

__all__ = ["Writer"]

_VARIABLES = ("x", "y", "z", "u", "v", "w")


class Writer:
    """Makes parts of a traced net."""

    def __init__(self, graph: Graph, arrays: dict[str, np.ndarray], names: dict[str, str], frozen: set[str]):
        self.graph, self.arrays, self.names, self.frozen = graph, arrays, names, frozen
        self.auxiliary = set(graph.auxiliary())
        self.used: set[Any] = set()
        self.declared: set[str] = set()

    def mine(self, number: int, path: str) -> bool:
        name = self.graph.nodes[number].name
        return name in self.arrays and (not path or self.names[name].startswith(path + "."))

    def net(self, call: Call, inputs: list[str]) -> Part:
        part = self.part(call, inputs)
        left = sorted(set(self.arrays) - self.declared)
        if left:
            raise GluontuneError(
                f"parameter {left[0]} stands outside of the block that uses it; migrate cannot place it"
            )
        return part

    # One call.
    def part(self, call: Call, inputs: list[str] | None = None) -> Part:
        flow = flow_of(call, self.graph, self.mine)
        if inputs is not None and len(inputs) > 1:
            order = {name: place for place, name in enumerate(inputs)}
            flow.inputs = sorted(flow.inputs, key=lambda e: order[self.graph.nodes[e[0]].name])
        else:
            found = self._layer(call, flow) or self._sequence(call, flow)
            if found is not None:
                return found if inputs is None else _said(found)
        return self._class(call, flow, inputs)

    def _own_layer(self, unit: Unit, path: str) -> tuple[Layer, list[int]] | None:
        """The layer that an operator is, with its parameters, where all lie in the block itself."""
        if not isinstance(unit.what, int):
            return None
        node = self.graph.nodes[unit.what]
        variables = [n for n, _ in node.inputs if self.graph.nodes[n].op is None and self.mine(n, path)]
        layer = layer_of(node, [self.arrays[self.graph.nodes[n].name].shape for n in variables])
        layer = (
            None if layer is None else self._with_frozen(layer, [self.graph.nodes[n].name for n in variables])
        )
        fits = layer is not None and len(layer.names) == len(variables) == len(node.inputs) - len(unit.reads)
        return (layer, variables) if fits and layer is not None and len(unit.reads) == 1 else None

    def _with_frozen(self, layer: Layer, names: list[str]) -> Layer | None:
        """The layer that leaves frozen parameters alone; None where it has no way to say so."""
        frozen = [own for own, name in zip(layer.names, names) if name in self.frozen - self.auxiliary]
        if not frozen:
            return layer
        said = {"gamma": ("scale", False), "beta": ("center", False)}
        if not all(own in said for own in frozen):
            return None
        return dataclasses.replace(layer, values=(*layer.values, *(said[own] for own in frozen)))

    def _named(self, variables: list[int], path: str) -> list[str]:
        prefix = path + "." if path else ""
        return [self.names[self.graph.nodes[n].name][len(prefix) :] for n in variables]

    def _layer(self, call: Call, flow: Flow) -> Part | None:
        if not flow.units or len(flow.inputs) != 1:
            return None
        found = self._own_layer(flow.units[0], call.path)
        if found is None or self._named(found[1], call.path) != list(found[0].names):
            return None
        layer, variables = found
        if len(flow.units) == 1:
            self.declared.update(self.graph.nodes[n].name for n in variables)
            return Part(layer.kind, layer.values, before=layer.before)
        if not chain(flow, flow.inputs) or not layer.names:
            return None
        kept = set(self.declared)
        rest = Flow([self._plain(u) for u in flow.units[1:]], list(flow.units[0].gives), flow.outputs)
        lines, parts, extra = self._lines(call, rest, ["x"])
        if parts or extra:
            self.declared = kept
            return None
        self.declared.update(self.graph.nodes[n].name for n in variables)
        first = f"x = super().forward(x{layer.before})"
        return Part(
            call.kind, layer.values, text=("def forward(self, x):", f"    {first}", *lines), base=layer.kind
        )

    def _plain(self, unit: Unit) -> Unit:
        """The operator itself where a call is but one without state, as the activation of a ``Dense``."""
        if isinstance(unit.what, Call) and len(unit.what.nodes) == 1 and not unit.what.children:
            number = unit.what.nodes[0]
            if not OPERATORS[self.graph.nodes[number].op or ""].stateful:
                return Unit(number, unit.reads, unit.gives)
        return unit

    def _sequence(self, call: Call, flow: Flow) -> Part | None:
        calls = [unit.what for unit in flow.units if isinstance(unit.what, Call)]
        row = [f"{call.path}.{i}" if call.path else str(i) for i in range(len(flow.units))]
        if not call.kind.endswith("Sequential") or [c.path for c in calls] != row or len(flow.units) < 1:
            return None
        if len(flow.inputs) != 1 or not chain(flow, flow.inputs):
            return None
        parts: list[tuple[str, Part]] = []
        before = ""
        for place, child in enumerate(calls):
            part = self.part(child)
            if part.before and place == 0:
                before = part.before
            parts.append((str(place), part if place == 0 else _said(part)))
        return Part("nn.Sequential", parts=parts, before=before)

    # A class of its own.
    def _class(self, call: Call, flow: Flow, inputs: list[str] | None) -> Part:
        given = [self._argument(e, i, len(flow.inputs), inputs) for i, e in enumerate(flow.inputs)]
        lines, parts, extra = self._lines(call, flow, given)
        head = f"def forward({', '.join(['self', *given])}):"
        return Part(call.kind, parts=parts, text=(head, *lines), extra=tuple(extra), base="nn.Module")

    def _argument(self, entry: Entry, place: int, count: int, inputs: list[str] | None) -> str:
        if inputs is not None and count > 1:
            return re.sub(r"\W", "_", self.graph.nodes[entry[0]].name)
        return _VARIABLES[place] if place < len(_VARIABLES) else f"x{place}"

    def _lines(
        self, call: Call, flow: Flow, given: list[str]
    ) -> tuple[list[str], list[tuple[str, Part]], list[str]]:
        body = _Body(self, call, flow, given)
        body.run()
        return body.lines, body.parts, body.extra


def _said(part: Part) -> Part:
    """A part that flattens its input itself, where the one who calls it cannot."""
    if not part.before:
        return part
    lines = ("def forward(self, x):", f"    return super().forward(x{part.before})")
    name = "Dense" if part.kind == "nn.Linear" else "Flattened"
    return Part(name, part.values, part.parts, text=lines, base=part.kind)


class _Body:
    """The forward method of one class."""

    def __init__(self, writer: Writer, call: Call, flow: Flow, given: list[str]):
        self.writer, self.call, self.flow, self.graph = writer, call, flow, writer.graph
        self.values = dict(zip(flow.inputs, given))
        self.given = given
        self.lines: list[str] = []
        self.parts: list[tuple[str, Part]] = []
        self.extra: list[str] = []
        self.boxes: set[str] = set()
        self.taken = set(given)
        self.seen: dict[str, Part] = {}

    def run(self) -> None:
        last: dict[Entry, int] = {}
        for place, unit in enumerate(self.flow.units):
            last.update(dict.fromkeys(unit.reads, place))
        last.update({entry: len(self.flow.units) for entry in self.flow.outputs})
        for place, unit in enumerate(self.flow.units):
            text = self._text(unit)
            for entry in [e for e in self.values if last.get(e, -1) <= place]:
                del self.values[entry]
            name = self._free()
            many = not isinstance(unit.what, int) and len(unit.gives) > 1
            if isinstance(unit.what, int):
                node = self.graph.nodes[unit.what]
                many = OPERATORS[node.op or ""].returns_tuple(node.attrs)
            for number, entry in enumerate(unit.gives):
                at = entry[1] if isinstance(unit.what, int) else number
                self.values[entry] = f"{name}[{at}]" if many else name
            self.lines.append(f"    {name} = {text}")
        outputs = [self.values[entry] for entry in self.flow.outputs]
        end = self.lines[-1].strip().split(" = ", 1) if self.lines else ["", ""]
        if len(outputs) == 1 and end[0] == outputs[0]:
            self.lines[-1] = f"    return {end[1]}"
        else:
            self.lines.append("    return " + ", ".join(outputs))

    def _free(self) -> str:
        busy = {text.partition("[")[0] for text in self.values.values()}
        number = 0
        while True:
            name = _VARIABLES[number] if number < len(_VARIABLES) else f"x{number}"
            if name not in busy:
                return name
            number += 1

    def _value(self, entry: Entry) -> str:
        if entry in self.values:
            return self.values[entry]
        name = self.graph.nodes[entry[0]].name
        prefix = self.call.path + "." if self.call.path else ""
        relative = self.writer.names[name][len(prefix) :]
        if name not in self.writer.declared:
            self.writer.declared.add(name)
            self._declare(name, relative)
        home, _, leaf = relative.rpartition(".")
        if is_attribute(leaf):
            return self._reach(relative)
        return f"getattr({self._reach(home) if home else 'self'}, {literal(leaf)})"

    def _reach(self, relative: str) -> str:
        if all(is_attribute(token) for token in relative.split(".")):
            return f"self.{relative}"
        home, _, leaf = relative.rpartition(".")
        if home and is_attribute(leaf):
            return f"self.get_submodule({literal(home)}).{leaf}"
        return f"self.get_submodule({literal(relative)})"

    def _box(self, relative: str) -> str:
        """The text of the module that keeps ``relative``; empty modules are made on the way."""
        tokens = relative.split(".")[:-1]
        for count in range(1, len(tokens) + 1):
            path = ".".join(tokens[:count])
            if path not in self.boxes and path not in dict(self.parts):
                self.boxes.add(path)
                home = self._reach(".".join(tokens[: count - 1])) if count > 1 else "self"
                self.extra.append(f"{home}.add_module({literal(tokens[count - 1])}, nn.Module())")
        return self._reach(".".join(tokens)) if tokens else "self"

    def _declare(self, name: str, relative: str) -> None:
        array = self.writer.arrays[name]
        home, leaf = self._box(relative), relative.rpartition(".")[2]
        shape = ", ".join(str(n) for n in array.shape) or "()"
        if name in self.writer.auxiliary or array.dtype.kind != "f":
            kind = "" if array.dtype.kind == "f" else f", dtype=torch.{array.dtype.name}"
            self.extra.append(f"{home}.register_buffer({literal(leaf)}, torch.zeros({shape}{kind}))")
        else:
            fixed = ", requires_grad=False" if name in self.writer.frozen else ""
            made = f"nn.Parameter(torch.zeros({shape}){fixed})"
            set_so = (
                f".{leaf} = {made}" if is_attribute(leaf) else f".register_parameter({literal(leaf)}, {made})"
            )
            self.extra.append(home + set_so)

    def _text(self, unit: Unit) -> str:
        if isinstance(unit.what, Call):
            return self._child(unit, unit.what)
        node = self.graph.nodes[unit.what]
        entry = OPERATORS[node.op or ""]
        if not entry.stateful:
            args = [self._value(e) for e in node.inputs]
            like = self.given[0] if self.given else "next(self.parameters())"
            busy = {t.partition("[")[0] for t in self.values.values()}
            like = like if like in busy else next(iter(sorted(busy)), "next(self.parameters())")
            return expression(node, args, like, self.writer.used)
        found = self.writer._own_layer(unit, self.call.path)
        if found is not None and not found[0].names:
            part = Part(found[0].kind, found[0].values)
        else:
            told = arguments(attributes(entry, node), entry.run)
            part = Part(f"operators.{entry.run.__name__}", (("*", told),) if told else ())
            self.writer.used.add(entry.run)
        name = self._fresh(entry.run.__name__.lower())
        self.parts.append((name, part))
        return f"self.{name}({', '.join(self._value(e) for e in node.inputs)})"

    def _fresh(self, wanted: str) -> str:
        names, number = {n for n, _ in self.parts}, 1
        while f"{wanted}{number}" in names:
            number += 1
        return f"{wanted}{number}"

    def _child(self, unit: Unit, call: Call) -> str:
        prefix = self.call.path + "." if self.call.path else ""
        if not call.path.startswith(prefix) or call.path == self.call.path:
            raise GluontuneError(f"block {call.path or 'of the net'} ({call.kind}) is called by another block than "
                                 "its own; migrate cannot write that; gt.bridge.to_torch converts it")  # fmt: skip
        relative = call.path[len(prefix) :]
        part = self.writer.part(call)
        before = self.seen.setdefault(call.path, part)
        if before is part:
            self._box(relative)
            self.parts.append((relative, part))
        elif (before.text, [p.key() for _, p in before.parts]) != (
            part.text,
            [p.key() for _, p in part.parts],
        ):
            raise GluontuneError(f"block {call.path} ({call.kind}) computes something else at its second call; "
                                 "migrate cannot write that; gt.bridge.to_torch converts it")  # fmt: skip
        reads = flow_of(call, self.graph, self.writer.mine).inputs
        args = ", ".join(f"{self._value(e)}{part.before}" for e in reads)
        return f"{self._reach(relative)}({args})"
