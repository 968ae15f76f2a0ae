"""Blocks as the text of classes: layers, ``nn.Sequential``, and classes of equal blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

from gluontune.convert.bridge.registry import OPERATORS
from gluontune.convert.migrate.body import Body, Elsewhere, Home, Made, flattening
from gluontune.convert.migrate.calls import Call, Trace
from gluontune.convert.migrate.expressions import Layer, layer_of
from gluontune.convert.migrate.text import Part
from gluontune.convert.migrate.units import Flow, Unit, chain, flow_of


class Writer:
    def __init__(self, trace: Trace):
        self.roots, self.arrays, self.names = trace.calls, trace.source.arrays, trace.names
        self.frozen, self.modes = trace.source.frozen, trace.modes
        self.auxiliary = {name for root in self.roots for name in root.graph.auxiliary()}
        self.used: dict[str, Any] = {}
        self.declared: set[str] = set()
        self.made: dict[str, Made] = {}

    def mine(self, name: str, path: str) -> bool:
        return name in self.arrays and (not path or self.names[name].startswith(path + "."))

    def net(self) -> Part:
        """The whole net; as one class if a parameter is used outside of its block."""
        part = self.block("").part
        if set(self.arrays) - self.declared:
            part = self._flat("").part
        return part

    def training(self) -> Made:
        """The class of a training step: its nets are modules, each part of the step is a method."""
        made = self._class("", self.roots, [flow_of(call, self.mine) for call in self.roots])
        return self._flat("") if set(self.arrays) - self.declared else made

    def block(self, path: str) -> Made:
        """The module of a block, from all of its calls."""
        if path not in self.made:
            calls = self._calls(path)
            flows = [flow_of(call, self.mine) for call in calls]
            # a net may have more inputs and outputs than a layer
            plain = path or all([c.gives] == f.outputs and c.takes == f.inputs for c, f in zip(calls, flows))
            found, declared = None, set(self.declared)
            if plain:
                found = self._alike([self._layer(c, f) for c, f in zip(calls, flows)])
            if plain and found is None:
                self.declared = declared
                found = self._alike([self._sequence(c, f) for c, f in zip(calls, flows)])
            if found is not None:
                self.made[path] = Made(found if path else flattening(found))
            else:
                self.made[path] = self._class(path, calls, flows)
        return self.made[path]

    def _calls(self, path: str) -> list[Call]:
        if not path:
            return self.roots
        found = [call for root in self.roots for call in root.all_calls() if call.path == path]
        return [call for call in found if list(call.all_nodes())]

    @staticmethod
    def _alike(parts: list[Part | None]) -> Part | None:
        return parts[0] if parts and all(part == parts[0] for part in parts) else None

    def _class(self, path: str, calls: list[Call], flows: list[Flow]) -> Made:
        kept = set(self.declared), dict(self.used), dict(self.made)
        home = Home(self, path, calls)
        try:
            return home.made(calls, flows)
        except Elsewhere:
            self.declared, self.used, self.made = kept
            return self._flat(path)

    def _flat(self, path: str) -> Made:
        """A block as one class, with the operators of all inner blocks."""
        calls = self._calls(path)
        for call in calls:
            call.flatten()
        if not path:
            self.declared, self.used, self.made = set(), {}, {}
        return Home(self, path, calls).made(calls, [flow_of(call, self.mine) for call in calls])

    def own_layer(self, unit: Unit, call: Call) -> tuple[Layer, list[str]] | None:
        """The layer of an operator with its parameters, if all belong to the block; else None."""
        if not isinstance(unit.what, int):
            return None
        nodes = call.graph.nodes
        node = nodes[unit.what]
        inputs = [nodes[n].name for n, _ in node.inputs if nodes[n].op is None]
        variables = [name for name in inputs if self.mine(name, call.path)]
        layer = layer_of(node, [self.arrays[name].shape for name in variables])
        layer = None if layer is None else self._with_frozen(layer, variables)
        fits = layer is not None and len(layer.names) == len(variables) == len(node.inputs) - len(unit.reads)
        return (layer, variables) if fits and layer is not None and len(unit.reads) == 1 else None

    def _with_frozen(self, layer: Layer, names: list[str]) -> Layer | None:
        """The layer with frozen parameters, or None if it has no setting for that."""
        frozen = [own for own, name in zip(layer.names, names) if name in self.frozen - self.auxiliary]
        settings = {"gamma": ("scale", False), "beta": ("center", False)}
        if not all(name in settings for name in frozen):
            return None
        return dataclasses.replace(layer, values=(*layer.values, *(settings[name] for name in frozen)))

    def _layer(self, call: Call, flow: Flow) -> Part | None:
        if not flow.units or len(flow.inputs) != 1 or len(flow.outputs) != 1:
            return None
        found = self.own_layer(flow.units[0], call)
        prefix = call.path + "." if call.path else ""
        if found is None or [self.names[n][len(prefix) :] for n in found[1]] != list(found[0].names):
            return None
        layer, variables = found
        if len(flow.units) == 1:
            self.declared.update(variables)
            return Part(layer.kind, layer.values, before=layer.before)
        if not chain(flow) or not layer.names:
            return None
        kept = set(self.declared)
        rest = Flow([self._plain(u, call) for u in flow.units[1:]], list(flow.units[0].gives), flow.outputs)
        home = Home(self, call.path, [call])
        lines = Body(home, call, rest).lines
        if home.parts or home.extra or home.late:
            self.declared = kept
            return None
        self.declared.update(variables)
        first = f"x = super().forward(x{layer.before})"
        return Part(call.kind, layer.values, text=("def forward(self, x):", f"    {first}", *lines), base=layer.kind)

    def _plain(self, unit: Unit, call: Call) -> Unit:
        """The operator of a call that is a single stateless one, such as a ``Dense``'s activation; else the unit."""
        if isinstance(unit.what, Call) and len(unit.what.nodes) == 1 and not unit.what.children:
            number = unit.what.nodes[0]
            if not OPERATORS[call.graph.nodes[number].op or ""].stateful:
                return Unit(number, unit.reads, unit.gives)
        return unit

    def _sequence(self, call: Call, flow: Flow) -> Part | None:
        calls = [unit.what for unit in flow.units if isinstance(unit.what, Call)]
        row = [f"{call.path}.{i}" if call.path else str(i) for i in range(len(flow.units))]
        if not call.kind.endswith("Sequential") or [c.path for c in calls] != row or len(flow.units) < 1:
            return None
        if len(flow.inputs) != 1 or not chain(flow) or len({c.path for c in calls}) < len(calls):
            return None
        parts: list[tuple[str, Part]] = []
        before = ""
        for place, child in enumerate(calls):
            part = self.block(child.path).part
            if self.block(child.path).methods.get(id(child)):
                return None
            if part.before and place == 0:
                before = part.before
            parts.append((str(place), part if place == 0 else flattening(part)))
        return Part("nn.Sequential", parts=parts, before=before)
