"""The methods of a class of the project: operators and calls of blocks as lines."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from gluontune.convert.bridge.names import identifier, is_attribute
from gluontune.convert.bridge.registry import OPERATORS, attributes, unknown_output
from gluontune.convert.graph.symbol import Graph
from gluontune.convert.migrate.calls import Call, Entry, entries
from gluontune.convert.migrate.expressions import arguments, expression, has_whole_numbers, named
from gluontune.convert.migrate.text import Part
from gluontune.convert.migrate.units import Flow, Unit, flow_of
from gluontune.core.errors import literal

_VARIABLES = ("x", "y", "z", "u", "v", "w")


class Elsewhere(Exception):
    """A block is called by a block that does not contain it."""


@dataclass
class Made:
    """A block's module: its part, and the method of each call (by its id) other than ``forward``."""

    part: Part
    methods: dict[int, str] = field(default_factory=dict)


def flattening(part: Part) -> Part:
    """A part that flattens its input itself, for callers that cannot."""
    if not part.before:
        return part
    lines = ("def forward(self, x):", f"    return super().forward(x{part.before})")
    name = "Dense" if part.kind == "nn.Linear" else "Flattened"
    return Part(name, part.values, part.parts, text=lines, base=part.kind)


class Home:
    """The modules and parameters of a class, shared by its methods."""

    def __init__(self, writer: Any, path: str, calls: list[Call]):
        self.writer, self.path = writer, path
        self.prefix = path + "." if path else ""
        self.parts: list[tuple[str, Part]] = []
        self.extra: list[str] = []
        self.late: list[str] = []
        self.boxes: set[str] = set()
        below = [name for name in writer.names.values() if name.startswith(self.prefix)]
        below += [call.path for call in calls[0].all_calls() if call.path.startswith(self.prefix)] if calls else []
        self.reserved = {name[len(self.prefix) :].partition(".")[0] for name in below}

    def made(self, calls: list[Call], flows: list[Flow]) -> Made:
        texts: list[tuple[str, ...]] = []
        given: list[str] = []
        chosen: dict[int, int] = {}
        for call, flow in zip(calls, flows):
            body = Body(self, call, flow)
            text = (", ".join(["self", *body.given]), *body.lines)
            if text not in texts:
                texts.append(text)
                given.append(", ".join(body.given))
            chosen[id(call)] = texts.index(text)
        methods = ["forward", *[f"forward{n}" for n in range(2, len(texts) + 1)]]
        lines: list[str] = []
        if not self.path and len(texts) > 1 and self.writer.modes:
            methods = ["predict", "learn"]
            lines = [f"def forward({texts[0][0]}):", "    if self.training:", f"        return self.learn({given[0]})",
                     f"    return self.predict({given[0]})"]  # fmt: skip
        for method, text in zip(methods, texts):
            lines += [f"def {method}({text[0]}):", *text[1:]]
        part = Part(calls[0].kind, (), self.parts, tuple(lines), tuple(self.extra), "nn.Module", late=tuple(self.late))
        return Made(part, {key: methods[place] for key, place in chosen.items() if place})

    def module(self, wanted: str, part: Part, taken: set[str]) -> str:
        """The name of a module without parameters; ``taken``: names in the same method."""
        known, names = dict(self.parts), (f"{wanted}{number}" for number in itertools.count(1))
        name = next(n for n in names if n not in taken | self.reserved and known.get(n, part) == part)
        if name not in known:
            self.parts.append((name, part))
        taken.add(name)
        return name

    def child(self, call: Call) -> tuple[str, str]:
        """The text of a call of an inner block, and the suffix of its input."""
        if not call.path.startswith(self.prefix) or call.path == self.path:
            raise Elsewhere
        relative = call.path[len(self.prefix) :]
        made = self.writer.block(call.path)
        if relative not in dict(self.parts):
            self._box(relative)
            self.parts.append((relative, made.part))
        method = made.methods.get(id(call))
        return self._reach(relative) + (f".{method}" if method else ""), made.part.before

    def parameter(self, name: str) -> str:
        """The text of a parameter, declared on first use."""
        relative = self.writer.names[name][len(self.prefix) :]
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
        """The text of the module of ``relative``; missing ones are added as empty modules."""
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
            self.late.append(f"{home}.register_buffer({literal(leaf)}, torch.zeros({shape}{kind}))")
        else:
            fixed = ", requires_grad=False" if name in self.writer.frozen else ""
            made = f"nn.Parameter(torch.zeros({shape}){fixed})"
            put = f".{leaf} = {made}" if is_attribute(leaf) else f".register_parameter({literal(leaf)}, {made})"
            self.late.append(home + put)


class Body:
    """One method: the names of its arguments (``given``) and its lines."""

    def __init__(self, home: Home, call: Call, flow: Flow):
        self.home, self.call, self.flow, self.graph = home, call, flow, call.graph
        self.lines: list[str] = []
        self.values: dict[Entry, str] = {}
        self.given: list[str] = []
        self.taken: set[str] = set()
        of_net = call.parent is None and call.takes
        if of_net and set(flow.inputs) <= set(entries(call.takes)):  # else it follows a layer of torch's
            for place, nest in enumerate(call.takes):
                self._take(nest, self._argument(place, nest))
        else:
            self.given = [_variable(place) for place in range(len(flow.inputs))]
            self.values = dict(zip(flow.inputs, self.given))
        self._run()

    def _argument(self, place: int, nest: Any) -> str:
        while isinstance(nest, list) and nest:
            nest = nest[0]
        known = len(self.call.takes) > 1 and nest
        name = identifier(self.graph.nodes[nest[0]].name, self.taken) if known else _variable(place)
        last = not list(entries(self.call.takes[place:]))  # an array that follows has no default
        self.given.append(f"{name}=None" if last else name)
        return name

    def _take(self, nest: Any, name: str) -> None:
        if isinstance(nest, list):
            for place, item in enumerate(nest):
                self._take(item, f"{name}[{place}]")
        elif nest is not None:
            self.values[nest] = name

    def _run(self) -> None:
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
                if not many and any(entry[1] for entry in unit.gives):
                    raise unknown_output(node.name, node.op, max(entry[1] for entry in unit.gives))
            for number, entry in enumerate(unit.gives):
                at = entry[1] if isinstance(unit.what, int) else number
                self.values[entry] = f"{name}[{at}]" if many else name
            self.lines.append(f"    {name} = {text}")
        if self.call.parent is None:
            value = self._nest(self.call.gives)
            value = value[1:-1] if isinstance(self.call.gives, list) and len(self.call.gives) > 1 else value
        else:
            value = ", ".join(self._value(entry) for entry in self.flow.outputs)
        end = self.lines[-1].strip().split(" = ", 1) if self.lines else ["", ""]
        if value == end[0]:
            self.lines[-1] = f"    return {end[1]}"
        else:
            self.lines.append(f"    return {value}")

    def _nest(self, nest: Any) -> str:
        """The net's result, in the lists and tuples of Gluon's."""
        if nest is None:
            return "None"
        if isinstance(nest, list):
            return f"[{', '.join(self._nest(item) for item in nest)}]"
        return self._value(nest)

    def _free(self) -> str:
        busy = {text.partition("[")[0] for text in self.values.values()}
        return next(name for name in map(_variable, itertools.count()) if name not in busy)

    def _value(self, entry: Entry) -> str:
        if entry in self.values:
            return self.values[entry]
        return self.home.parameter(self.graph.nodes[entry[0]].name)

    def _text(self, unit: Unit) -> str:
        if isinstance(unit.what, Call):
            text, before = self.home.child(unit.what)
            reads = flow_of(unit.what, self.home.writer.mine).inputs
            return f"{text}({', '.join(f'{self._value(e)}{before}' for e in reads)})"
        node = self.graph.nodes[unit.what]
        entry = OPERATORS[node.op or ""]
        used = self.home.writer.used
        if not entry.stateful:
            args = [self._value(e) for e in node.inputs]
            return expression(node, args, self._like(), used, has_whole_numbers(self.graph.nodes))
        found = self.home.writer.own_layer(unit, self.call)
        if found is not None and not found[0].names:
            part = Part(found[0].kind, found[0].values)
        else:
            settings = arguments(attributes(entry, node), entry.run)
            bodies = [(f"{node.op}{n}", self._loop(graph)) for n, graph in enumerate(node.subgraphs)]
            part = Part(f"operators.{named(node, used)}", (("*", settings),) if settings else (), bodies)
        name = self.home.module(entry.run.__name__.lower(), part, self.taken)
        return f"self.{name}({', '.join(self._value(e) for e in node.inputs)})"

    def _loop(self, graph: Graph) -> Part:
        takes = [(number, 0) for number, node in enumerate(graph.nodes) if node.op is None]
        nodes = [number for number, node in enumerate(graph.nodes) if node.op is not None]
        gives = graph.outputs[0] if len(graph.outputs) == 1 else list(graph.outputs)
        call = Call("", "Step", takes=takes, gives=gives, graph=graph, nodes=nodes)
        flow = flow_of(call, lambda name, path: False)
        return Home(self.home.writer, "", []).made([call], [flow]).part

    def _like(self) -> str:
        known = sorted(self.values.values())
        first = self.given[0] if self.given else ""
        return first if first in known else next(iter(known), "next(self.parameters(), None)")


def _variable(number: int) -> str:
    return _VARIABLES[number] if number < len(_VARIABLES) else f"x{number}"
