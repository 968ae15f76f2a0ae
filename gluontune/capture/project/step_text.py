"""Steps as text: ``model.py`` with the nets, ``train.py`` with losses, backward passes and updates in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.capture.events import Op
from gluontune.capture.interpret import bridge_name, computes
from gluontune.capture.project.changing import SCALING
from gluontune.capture.project.sections import Differentiated, Plan, Section
from gluontune.capture.project.tracing import BlockCall, Told
from gluontune.convert.bridge.names import is_attribute
from gluontune.convert.bridge.source import Source
from gluontune.convert.graph.schemas import schema
from gluontune.convert.graph.symbol import Graph, Node
from gluontune.convert.migrate.calls import CALL, Call, Entry, Trace, needed
from gluontune.convert.migrate.classes import Writer
from gluontune.convert.migrate.text import class_texts, headed
from gluontune.core.errors import GluontuneError, literal

_SAME = {"_copy", "identity", "_np_copy", "_copyto"}


def draw(plan: Plan, section: Section) -> None:
    """Put a section's graph, and the calls of blocks in it, into its root call."""
    graph, entries = Graph([], []), dict[int, Entry]()
    root = section.call
    calls, of_block = [root], dict[int, Call]()

    def call_for(block_call: BlockCall | None) -> Call:
        if block_call is None:
            return root
        if id(block_call) not in of_block:
            above = call_for(plan.known(block_call.parent))
            found = Call(plan.paths[id(block_call.block)], type(block_call.block).__name__, above)
            found.number, found.gives = len(calls), block_call.gives
            of_block[id(block_call)] = found
            above.children.append(found)
            calls.append(found)
        return of_block[id(block_call)]

    def entry_of(number: int) -> Entry:
        if number not in entries:
            name = plan.owner.get(number) or plan.names[number]
            known = next((i for i, node in enumerate(graph.nodes) if node.op is None and node.name == name), None)
            if known is None:
                graph.nodes.append(Node(None, name))
            entries[number] = (len(graph.nodes) - 1 if known is None else known, 0)
        return entries[number]

    root.takes = [entry_of(number) for number in section.reads]
    for place in section.places:
        op = plan.events[place]
        assert isinstance(op, Op)
        if not computes(op.name):
            raise GluontuneError(f"{op.line}: operator {op.name} is not known to PyTorch's side")
        inputs = [entry_of(number) for number in op.inputs]
        if _is_same(plan, op):
            entries[op.outputs[0]] = inputs[0]
            continue
        name, attrs = _told(plan, op)
        call = call_for(plan.call_of(place))
        node = Node(name, f"{op.name} ({op.line})", attrs, inputs, {CALL: str(call.number)})
        graph.nodes.append(node)
        entries.update({number: (len(graph.nodes) - 1, i) for i, number in enumerate(op.outputs)})
    gives = [entries.get(number) or entry_of(number) for number in section.gives]
    root.gives = gives[0] if len(gives) == 1 else gives
    graph.outputs = gives
    for call in calls[1:]:
        call.gives = _known(call.gives, entries)
    for call in calls:
        call.graph = graph
    read = needed(calls, graph)
    for place, node in enumerate(graph.nodes):
        if node.op is not None and place in read:
            calls[int(node.hidden[CALL])].nodes.append(place)


def _is_same(plan: Plan, op: Op) -> bool:
    given, found = plan.value(op.inputs[0]) if op.inputs else None, plan.value(op.outputs[0])
    if given is None or (given.shape, given.dtype) != (found.shape, found.dtype):
        return False
    return op.name in _SAME or op.name in ("Reshape", "_np_reshape", "Cast", "_npi_cast")


def _told(plan: Plan, op: Op) -> tuple[str, dict[str, Any]]:
    """The operator's name and attributes; sizes of the batch, which a reshape may name, follow from the others."""
    name, attrs = bridge_name(op.name), op.attrs
    found = plan.value(op.outputs[0]).shape
    if found and ((op.name == "Reshape" and op.view) or (attrs.get("newshape") == str(found) and 0 not in found)):
        given, shape = plan.value(op.inputs[0]).shape, (-1, *found[1:])
        if len(found) > 1 and len(given) > 1 and given[0] == found[0]:
            shape = (0, *(found[1:] if len(found) > 2 else (-1,)))
        name, attrs = "Reshape", {"shape": str(shape)}
    return name, schema(name).typed(attrs)


def _known(nest: Any, entries: Mapping[int, Entry]) -> Any:
    """A block's result: entries of the graph where they are in it."""
    if isinstance(nest, list):
        return [_known(item, entries) for item in nest]
    return entries.get(nest) if nest is not None else None


_ZEROS = {"zeros_like", "_zeros", "_npi_zeros", "_npi_zeros_like", "_np_zeros_like"}


@dataclass
class StepText:
    """The texts of a step."""

    model: str  # classes and builders of model.py
    training: str  # the class of train.py
    build: str  # makes it
    step: list[str]  # the function
    used: dict[str, Any]  # functions of operators.py
    nets: list[str]  # builders' names
    helpers: list[str]  # of the function


def step_text(plan: Plan, names: Mapping[str, str], frozen: set[str], trainers: Mapping[int, str]) -> StepText:
    """A step as text. names: of parameters in the project; frozen: those without gradients."""
    sections = [part for part in plan.parts if isinstance(part, Section)]
    for section in sections:
        draw(plan, section)
    used = {name for s in sections for name in s.call.graph.variables()}
    kept = {name: array for name, array in plan.arrays.items() if name in used}
    trace = Trace([s.call for s in sections], [], Source(Graph([], []), kept, None, frozen), dict(names), modes=False)
    writer = Writer(trace)
    made = writer.training()
    classes, build = class_texts(made.part)
    functions = dict(writer.used)
    training, nets, builders = _with_builders(classes[-1], [label for label, _ in made.part.parts], set(names.values()))
    model = headed("The nets, migrated from MXNet Gluon.", "\n\n".join([*classes[:-1], *builders]), functions)
    lines = _Lines(plan, made.methods, names, trainers)
    return StepText(model, training, build, lines.text(), functions, nets, sorted(lines.helpers))


def _with_builders(training: str, labels: Sequence[str], names: set[str]) -> tuple[str, list[str], list[str]]:
    """The class of the step with a function of ``model.py`` for each net, their names and texts."""
    found, texts = [], []
    for label in labels:
        line = re.search(rf"^        self\.{re.escape(label)} = (.+)$", training, re.MULTILINE)
        if line is None or not any(name.startswith(label + ".") for name in names):
            continue
        found.append(f"build_{label}")
        texts.append(f'def build_{label}():\n    """With random weights."""\n    return {line[1]}\n')
        training = training.replace(line[0], f"        self.{label} = build_{label}()")
    return training, found, texts


class _Lines:
    """The lines of the function ``step``."""

    def __init__(self, plan: Plan, methods: Mapping[int, str], names: Mapping[str, str], trainers: Mapping[int, str]):
        self.plan, self.methods, self.names, self.trainers = plan, methods, names, trainers
        self.helpers: set[str] = set()
        self.pending: set[str] = set()
        self.trained = set(plan.slope.values())

    def text(self) -> list[str]:
        plan, lines = self.plan, list[str]()
        states = [n for n in plan.inputs if plan.is_state(n)]
        given = [n for n in plan.inputs if not plan.is_state(n)]
        if given:
            lines.append(f"{self._tuple(given)} = batch")
        if states:
            lines.append(f"{self._tuple(states)} = states")
        for part in plan.parts:
            if isinstance(part, Section):
                lines += self._section(part)
            elif isinstance(part, Differentiated):
                lines += self._backward(part)
            else:
                lines += self._told(part)
        losses = ", ".join(dict.fromkeys(plan.names[h] for h in plan.heads))
        kept = ", ".join(f"{plan.names[n]}.detach()" for n in plan.next_states)  # what the next step takes
        lines.append(f"return [{losses}], [{kept}]")
        return lines

    def _tuple(self, numbers: Sequence[int]) -> str:
        names = ", ".join(self.plan.names[n] for n in numbers)
        return f"({names},)" if len(numbers) == 1 else names

    def _section(self, section: Section) -> list[str]:
        plan = self.plan
        ops = [plan.events[place] for place in section.places]
        if section.gradients and not section.weights and all(getattr(op, "name", "") in _ZEROS for op in ops):
            return self._cleared(set(section.gradients))
        scaled = self._scaled(section)
        if scaled is not None:
            parameters = self._parameters(set(section.gradients))
            return [f"for parameter in {parameters}:", f"    parameter.grad.mul_({scaled!r})"]
        reads = [self._read(number) for number in section.reads]
        method = self.methods.get(id(section.call), "")
        call = f"model{'.' + method if method else ''}({', '.join(reads)})"
        lines = [f"{', '.join(plan.names[n] for n in section.gives)} = {call}"]
        for name, number in section.gradients.items():
            lines.append(f"{self._parameter(name)}.grad = {plan.names[number]}.detach()")
        for name, number in section.weights.items():
            lines.append(f"{self._parameter(name)}.copy_({plan.names[number]})")
        if section.recording and not section.weights:
            return lines
        if section.recording:
            return [lines[0], "with torch.no_grad():", *[f"    {line}" for line in lines[1:]]]
        mode = [] if section.training or section.weights or section.gradients else ["model.eval()"]
        block = ["with torch.no_grad():", *[f"    {line}" for line in lines]]
        return [*mode, *block, *(["model.train()"] if mode else [])]

    def _scaled(self, section: Section) -> float | None:
        """The number that a section multiplies gradients with, if that is all it does."""
        found = set()
        for place in section.places:
            op = self.plan.events[place]
            if not isinstance(op, Op) or op.name not in SCALING:
                return None
            before, after = (self.plan.slope.get(n) for n in (op.inputs[0], op.outputs[0]))
            if before != after or not before:
                return None
            found.add(float(op.attrs["scalar"]))
        return found.pop() if len(found) == 1 and not section.weights else None

    def _read(self, number: int) -> str:
        name = self.plan.slope.get(number)
        return f"{self._parameter(name)}.grad" if name else self.plan.names[number]

    def _parameter(self, name: str) -> str:
        place = self.names[name]
        if all(map(is_attribute, place.split("."))):
            return f"model.{place}"
        home, _, leaf = place.rpartition(".")
        return f"getattr(model.get_submodule({literal(home)}), {literal(leaf)})"

    def _cleared(self, names: set[str]) -> list[str]:
        self.pending -= names
        if names >= self.trained:
            return ["model.zero_grad()"]
        return [f"for parameter in {self._parameters(names)}:", "    parameter.grad = None"]

    def _parameters(self, names: set[str]) -> str:
        """Text of an iterable of parameters."""
        if names >= self.trained:
            return "model.parameters()"
        tops = sorted({self.names[name].partition(".")[0] for name in names})
        whole = {name for name in self.trained if self.names[name].partition(".")[0] in tops}
        if whole == names and len(tops) == 1 and "." in self.names[min(names)]:
            return f"model.{tops[0]}.parameters()"
        return f"({', '.join(self._parameter(name) for name in sorted(names))},)"

    def _backward(self, part: Differentiated) -> list[str]:
        plan, event = self.plan, part.event
        lines = []
        if not part.adds:
            lines += self._cleared(set(part.variables) if self.pending - set(part.variables) else self.trained)
        self.pending |= set(part.variables)
        heads = [plan.names[h] for h in event.heads]
        retain = "retain_graph=True" if event.retain else ""
        grads = event.head_grads or []
        if any(g is not None for g in grads):
            given = ", ".join("None" if g is None else self._read(g) for g in grads)
            more = f", {retain}" if retain else ""
            return [*lines, f"torch.autograd.backward([{', '.join(heads)}], [{given}]{more})"]
        sums = [name if plan.value(h).shape in ((), (1,)) else f"{name}.sum()" for h, name in zip(event.heads, heads)]
        whole = sums[0] if len(sums) == 1 else f"({' + '.join(sums)})"
        return [*lines, f"{whole}.backward({retain})"]

    def _told(self, told: Told) -> list[str]:
        if told.trainer is None:
            self.helpers.add("clip_global_norm")
            return [f"clip_global_norm({self._parameters(set(told.gradients))}, {told.most!r})"]
        self.pending -= set(told.gradients)
        size = told.batch_size
        first = next((n for n in self.plan.inputs if self.plan.value(n).source in ("batch", "host")), None)
        if told.size:
            size = f"float({self.plan.names[told.size]})"
        elif first is not None and self.plan.value(first).shape[:1] == (size,) and size > 1:
            size = f"len({self.plan.names[first]})"
        return [f'trainers["{self.trainers[id(told.trainer)]}"].step({size})']
