"""Parts as ``model.py``: one class for all parts that differ only in numbers."""

from __future__ import annotations

import ast
import itertools
import re
import string
from dataclasses import dataclass, field
from typing import Any

from gluontune.convert.bridge.names import is_attribute
from gluontune.convert.bridge.registry import OPERATORS
from gluontune.core.errors import literal

#: The number of a layer's positional settings.
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
        """Name the numbers that differ between the parts; those that always change together share a name."""
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
        """The arguments of a part whose numbers begin at ``start``; ``name`` returns the text of a number."""
        first: dict[str, int] = {}
        for place, column in self.columns.items():
            first.setdefault(column, place)
        return [f"{column}={name(start + place)}" for column, place in first.items()]


def model_text(root: Part, title: str, used: dict[str, Any]) -> str:
    """The text of ``model.py``; ``used`` as in :func:`headed`."""
    classes, made = class_texts(root)
    build = f'\n\ndef build():\n    """The net, with random weights."""\n    return {made}\n'
    return headed(title, "\n\n".join(classes) + build, used)


def class_texts(root: Part) -> tuple[list[str], str]:
    """The texts of the classes, each after those that it uses, and the text that makes the root."""
    groups: dict[Any, _Group] = {}
    _collect(root, groups)
    for group in groups.values():
        group.settle()
    numbers = root.numbers()
    made = _made(root, 0, lambda place: str(numbers[place][1]), groups)
    return [_class_text(group, groups) for group in groups.values()], made


def headed(title: str, body: str, used: dict[str, Any]) -> str:
    """The text of a module with the imports that it uses; ``used``, the functions of operators.py, gets BatchNorm's."""
    norm = _NORM if re.search(r"\bBatchNorm\(", body) else ""
    lines = [f'"""{title}"""', "", "import torch"]
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    if "operators." in body or norm:
        lines += ["", "import operators"]
    if norm:
        used["BatchNorm"] = OPERATORS["BatchNorm"].run
    if "torch." not in body + norm:
        lines.remove("import torch")
    return "\n".join(lines) + "\n\n" + norm + "\n" + body


def _collect(part: Part, groups: dict[Any, _Group]) -> None:
    for _, inner in part.parts:
        _collect(inner, groups)
    if part.is_class:
        key = part.key()
        if key not in groups:
            names = {group.name for group in groups.values()} | {"BatchNorm", "F"}
            name = part.kind.lstrip("_")
            name = name if is_attribute(name.title()) else "Block"
            base = name[0].upper() + name[1:]
            others = (f"_{number}" for number in itertools.count(27))
            suffixes = itertools.chain(("", *string.ascii_uppercase[1:]), others)
            groups[key] = _Group(next(base + suffix for suffix in suffixes if base + suffix not in names))
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
    if part.is_class and part.base == "nn.Module":
        group = groups[part.key()]
        return f"{group.name}({', '.join(group.given(start, name))})"
    if part.kind == "nn.Sequential":
        made = []
        for _, inner in part.parts:
            made.append(_made(inner, start, name, groups))
            start += len(inner.numbers())
        return f"nn.Sequential({', '.join(made)})"
    kind = groups[part.key()].name if part.is_class else part.kind
    texts = [_made(inner, 0, lambda place: "?", groups) for _, inner in part.parts]  # a loop's body: no numbers
    for place, (label, value) in enumerate(part.values):
        text = name(start) if type(value) is int else literal(value)
        start += type(value) is int
        if label in ("*", "output_size"):
            text = value
        plain = label == "*" or place < _PLAIN.get(part.base if part.is_class else part.kind, 0)
        texts.append(text if plain else f"{label}={text}")
    return f"{kind}({', '.join(texts)})"


@dataclass
class Part:
    """The constructor of a module.

    Args:
        kind: the class; of a class of the project, its group's key before it has a name.
        values: settings of a layer by name. parts: inner modules (name, part), in order.
        text: the forward method's lines, of a class of the project. base: its base class.
        extra, late: further lines of ``__init__``, before the modules and after. before: the suffix of the input.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()
    parts: list[tuple[str, Part]] = field(default_factory=list)
    text: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    base: str = ""
    before: str = ""
    late: tuple[str, ...] = ()

    @property
    def is_class(self) -> bool:
        return bool(self.text)

    def key(self) -> Any:
        """A key, equal for parts that differ only in numbers."""
        inside = tuple((name, part.key()) for name, part in self.parts)
        settings = tuple((name, None if type(v) is int else v) for name, v in self.values)
        return self.kind, settings, inside, self.text, self.extra, self.late, self.base

    def numbers(self) -> list[tuple[str, int]]:
        """All integers inside, in order, with their names."""
        found = [(name, value) for name, value in self.values if type(value) is int]
        for _, part in self.parts:
            found += part.numbers()
        return found


_WIDTH = 100


def tidied(text: str) -> str:
    """Break long calls, one argument a line, and put two blank lines between definitions.

    The result is parsed: if its meaning changed, the text is returned unchanged.
    """
    lines = [part for line in text.splitlines() for part in _broken(line.rstrip())]
    joined = "\n".join(lines)
    joined = re.sub(r"\n+(?=(class|def|@)[ \w])", "\n\n\n", joined)
    joined = re.sub(r"\n+(?=    (?:def |@\w))", "\n\n", joined)
    joined = re.sub(r"(\n *@[^\n]*)\n+(?= *(?:def|class) )", r"\1\n", joined)
    joined = re.sub(r"(\n(?:class|@)[^\n]*:)\n\n(?=    def )", r"\1\n", joined)
    joined = joined.strip() + "\n"
    return joined if same_meaning(joined, text) else text


def same_meaning(one: str, other: str) -> bool:
    """Whether two texts are the same program.

    >>> same_meaning("x[a]", "x[\\n    a\\n]"), same_meaning("x[a]", "x[\\n    a,\\n]")
    (True, False)
    """
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False


def _broken(line: str) -> list[str]:
    text = line.lstrip()
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):  # a part of a statement, or a comment
        return [line]
    raw = text.encode()
    return _laid(raw, 0, len(raw), statement, line[: len(line) - len(text)])


#: The part of an expression or a statement that comes last.
_LAST = {ast.Assign: "value", ast.AnnAssign: "value", ast.AugAssign: "value", ast.Return: "value", ast.Expr: "value",
         ast.keyword: "value", ast.Starred: "value", ast.BinOp: "right", ast.IfExp: "orelse"}  # fmt: skip


def _is_bare(node: Any) -> bool:
    """Whether it is a tuple without brackets."""
    return isinstance(node, ast.Tuple) and any(item.col_offset == node.col_offset for item in node.elts)


def _laid(raw: bytes, start: int, end: int, node: Any, indent: str, after: str = "") -> list[str]:
    """The lines of ``raw[start:end]``, the text of ``node``: the items of its last bracket one a line."""
    line = indent + raw[start:end].decode().strip() + after
    while (last := _LAST.get(type(node))) or _is_bare(node):
        node = getattr(node, last) if last else node.elts[-1]
    items: list[Any] = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    opened = getattr(node, "col_offset", 0)
    if isinstance(node, ast.Call):
        items = sorted([*node.args, *node.keywords], key=lambda item: item.end_col_offset)
        opened = raw.index(b"(", node.func.end_col_offset)
    if len(line) <= _WIDTH or not items:
        return [line]
    lines, at, closed = [indent + raw[start : opened + 1].decode().strip()], opened + 1, node.end_col_offset - 1
    alone = len(items) == 1 and isinstance(items[0], ast.GeneratorExp)  # its brackets are the call's
    for item in items:
        comma = raw.find(b",", min(item.end_col_offset, closed), closed)
        stop = closed if comma < 0 else comma
        lines += _laid(raw, at, stop, item, indent + "    ", "" if alone else ",")
        at = stop + 1
    return [*lines, indent + raw[closed:end].decode().strip() + after]
