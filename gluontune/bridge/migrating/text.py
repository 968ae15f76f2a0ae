"""Parts as ``model.py``: one class for all parts that differ in nothing but numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gluontune.bridge.migrating.parts import Part
from gluontune.bridge.names import is_attribute
from gluontune.texts import literal

__all__ = ["model_text"]

#: How many of a layer's settings stand without their name.
_PLAIN = {"nn.Conv1d": 3, "nn.Conv2d": 3, "nn.Conv3d": 3, "nn.Linear": 2, "BatchNorm": 1, "nn.Dropout": 1,
          "nn.AdaptiveAvgPool2d": 1, "nn.AdaptiveMaxPool2d": 1, "nn.MaxPool2d": 1, "nn.AvgPool2d": 1}  # fmt: skip

_NORM = '''
class BatchNorm(operators.BatchNorm):
    """Batch normalization as MXNet has it: the running variance is the biased one, momentum is what stays.

    scale and center say whether gamma and beta are trained.
    """

    def __init__(
        self,
        channels,
        eps=1e-5,
        momentum=0.9,
        fix_gamma=False,
        use_global_stats=False,
        axis=1,
        scale=True,
        center=True,
    ):
        super().__init__(eps, momentum, fix_gamma, use_global_stats, axis)
        self.gamma = nn.Parameter(torch.ones(channels), requires_grad=scale)
        self.beta = nn.Parameter(torch.zeros(channels), requires_grad=center)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return super().forward(x, self.gamma, self.beta, self.running_mean, self.running_var)

'''


@dataclass
class _Group:
    name: str
    parts: list[Part] = field(default_factory=list)
    columns: dict[int, str] = field(default_factory=dict)

    def settle(self) -> None:
        """Name the numbers in which the parts differ; those that always go together share a name."""
        rows = [part.numbers() for part in self.parts]
        known: dict[tuple[int, ...], str] = {}
        for place, (role, _) in enumerate(rows[0]):
            values = tuple(row[place][1] for row in rows)
            if len(set(values)) > 1:
                if values not in known:
                    number = sum(n.rstrip("0123456789") == role for n in known.values())
                    known[values] = f"{role}{number + 1}" if number else role
                self.columns[place] = known[values]

    def given(self, start: int, name: Any) -> list[str]:
        """The arguments that make a part whose numbers begin at ``start`` of those that ``name`` tells."""
        first: dict[str, int] = {}
        for place, column in self.columns.items():
            first.setdefault(column, place)
        return [f"{column}={name(start + place)}" for column, place in first.items()]


def model_text(root: Part, title: str, needs: set[str]) -> str:
    """The text of ``model.py``; ``needs`` is told the names of imports."""
    groups: dict[Any, _Group] = {}
    _collect(root, groups)
    for group in groups.values():
        group.settle()
    classes = [_class_text(group, groups) for group in groups.values()]
    body = "\n\n".join(classes)
    numbers = root.numbers()
    made = _made(root, 0, lambda place: str(numbers[place][1]), groups)
    build = f'\n\ndef build():\n    """The net, with random weights."""\n    return {made}\n'
    body += build
    norm = _NORM if re.search(r"\bBatchNorm\(", body) else ""
    lines = [f'"""{title}"""', "", "import torch"]
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    if "operators." in body or norm:
        lines += ["", "import operators"]
        needs.add("operators")
    if norm:
        needs.add("BatchNorm")
    if "torch." not in body + norm:
        lines.remove("import torch")
    return "\n".join(lines) + "\n\n" + norm + "\n" + body


def _collect(part: Part, groups: dict[Any, _Group]) -> None:
    for _, inner in part.parts:
        _collect(inner, groups)
    if part.own:
        key = part.key()
        if key not in groups:
            names = {group.name for group in groups.values()} | {"BatchNorm", "F"}
            name = part.kind.lstrip("_")
            name = name if is_attribute(name.title()) else "Block"
            name, number = name[0].upper() + name[1:], 2
            base = name
            while name in names:
                name, number = (
                    f"{base}{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[number - 1]}" if number < 27 else f"{base}_{number}",
                    number + 1,
                )
            groups[key] = _Group(name)
        groups[key].parts.append(part)


def _class_text(group: _Group, groups: dict[Any, _Group]) -> str:
    part = group.parts[0]
    lines = [f"class {group.name}({part.base}):"]
    if part.base == "nn.Module" and (part.parts or part.extra or part.late):
        parameters = list(dict.fromkeys(group.columns.values()))
        lines += [f"    def __init__({', '.join(['self', *parameters])}):", "        super().__init__()"]
        lines += [f"        {line}" for line in part.extra]
        numbers = part.numbers()
        start = 0

        def name(place: int) -> str:
            return group.columns.get(place) or str(numbers[place][1])

        for label, inner in part.parts:
            made = _made(inner, start, name, groups)
            home, _, leaf = label.rpartition(".")
            place = f"self.get_submodule({literal(home)})" if home else "self"
            if is_attribute(leaf):
                lines.append(f"        {place}.{leaf} = {made}")
            else:
                lines.append(f"        {place}.add_module({literal(leaf)}, {made})")
            start += len(inner.numbers())
        lines += [f"        {line}" for line in part.late]
        lines.append("")
    return "\n".join([*lines, *(f"    {line}" for line in part.text)]) + "\n"


def _made(part: Part, start: int, name: Any, groups: dict[Any, _Group]) -> str:
    """The text that makes a part; ``name`` tells what stands for the number at a place."""
    if part.own and part.base == "nn.Module":
        group = groups[part.key()]
        return f"{group.name}({', '.join(group.given(start, name))})"
    if part.kind == "nn.Sequential":
        made = []
        for _, inner in part.parts:
            made.append(_made(inner, start, name, groups))
            start += len(inner.numbers())
        return f"nn.Sequential({', '.join(made)})"
    kind = groups[part.key()].name if part.own else part.kind
    told = [_made(inner, 0, lambda place: "?", groups) for _, inner in part.parts]  # what a loop does: no numbers
    for place, (label, value) in enumerate(part.values):
        text = name(start) if type(value) is int else literal(value)
        start += type(value) is int
        if label in ("*", "output_size"):
            text = value
        plain = label == "*" or place < _PLAIN.get(part.base if part.own else part.kind, 0)
        told.append(text if plain else f"{label}={text}")
    return f"{kind}({', '.join(told)})"
