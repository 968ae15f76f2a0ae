"""Products and triangles of matrices, attention of several heads, diagonals, and mx.np's own ways of joining."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gluontune.graph.rules.moving import new_shape
from gluontune.graph.rules.reducing import axes_of, reduced
from gluontune.graph.shapes import MaybeShape, Shape, rule

Attrs = Mapping[str, Any]


def _diagonal(attrs: Attrs, x: Shape, offset: str, first: int, second: int) -> Shape:
    """All other axes, and the diagonal behind them."""
    k = attrs.get(offset) or 0
    a, b = attrs.get("axis1", first) % len(x), attrs.get("axis2", second) % len(x)
    size = max(0, min(x[a] + min(k, 0), x[b] - max(k, 0)))
    return (*(n for i, n in enumerate(x) if i not in (a, b)), size)


def _made_diagonal(x: Shape, k: int) -> Shape:
    return (*x[:-1], x[-1] + abs(k), x[-1] + abs(k))


def _selfatt(x: Shape, heads: int) -> Shape:
    return (x[1] * heads, x[0], x[0])


def _einsum(attrs: Attrs, shapes: list[Any]) -> Shape:
    taken, _, given = str(attrs["subscripts"]).replace(" ", "").partition("->")
    sizes = {letter: n for word, shape in zip(taken.split(","), shapes) for letter, n in zip(word, shape)}
    return tuple(sizes[letter] for letter in given)


def _tensordot(attrs: Attrs, a: Shape, b: Shape) -> Shape:
    left, right = (axes_of(len(s), tuple(attrs[f"{n}_axes_summed"])) for n, s in (("a", a), ("b", b)))
    return (*reduced(a, left, False), *reduced(b, right, False))


def _joined(shapes: list[Any], axis: int) -> Shape:
    first = shapes[0]
    return (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])


def _moment(attrs: Attrs, x: Shape) -> Shape:
    return reduced(x, axes_of(len(x), attrs["axis"]), attrs["keepdims"])


def _moved(attrs: Attrs, x: Shape) -> Shape:
    rank = len(x)
    source, target = ([a % rank for a in attrs[name]] for name in ("source", "destination"))
    rest = [n for a, n in enumerate(x) if a not in source]
    for place, a in sorted(zip(target, source)):
        rest.insert(place, x[a])
    return tuple(rest)


def _differences(attrs: Attrs, x: Shape) -> Shape:
    axis = attrs["axis"] % len(x)
    return (*x[:axis], max(0, x[axis] - attrs["n"]), *x[axis + 1 :])


def _at_least(x: Shape, rank: int) -> Shape:
    if rank == 3:
        return {0: (1, 1, 1), 1: (1, *x, 1), 2: (*x, 1)}.get(len(x), x)  # type: ignore[return-value]
    return (*(1,) * (rank - len(x)), *x)


def _column(x: Shape) -> Shape:
    return new_shape(x, (-1, 1)) if len(x) < 2 else x


Run = Callable[[Attrs, list[Any]], Shape]
_RULES: dict[str, Run] = {
    "_contrib_interleaved_matmul_selfatt_qk": lambda a, s: _selfatt(s[0], a["heads"]),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda a, s: (*s[0][:2], s[0][2] // 3),
    "_contrib_interleaved_matmul_encdec_qk": lambda a, s: (s[0][1] * a["heads"], s[0][0], s[1][0]),
    "_contrib_interleaved_matmul_encdec_valatt": lambda a, s: (s[1][1], s[0][1], s[0][2] // 2),
    "_linalg_det": lambda a, s: s[0][:-2] or (1,),
    "_linalg_sumlogdiag": lambda a, s: s[0][:-2] or (1,),
    "_linalg_gemm": lambda a, s: s[2],
    "_linalg_syrk": lambda a, s: (*s[0][:-2], *(s[0][-1 if a["transpose"] else -2],) * 2),
    "_linalg_trmm": lambda a, s: s[1],
    "_linalg_trsm": lambda a, s: s[1],
    "_linalg_extractdiag": lambda a, s: _diagonal({"offset": a["offset"]}, s[0], "offset", -2, -1),
    "_linalg_makediag": lambda a, s: _made_diagonal(s[0], a["offset"]),
    "diag": lambda a, s: _made_diagonal(s[0], a["k"]) if len(s[0]) == 1 else _diagonal(a, s[0], "k", 0, 1),
    "_np_diag": lambda a, s: _made_diagonal(s[0], a["k"]) if len(s[0]) == 1 else _diagonal(a, s[0], "k", 0, 1),
    "_np_diagonal": lambda a, s: _diagonal(a, s[0], "offset", 0, 1),
    "_np_trace": lambda a, s: _diagonal(a, s[0], "offset", 0, 1)[:-1],
    "_np_cumsum": lambda a, s: (math.prod(s[0]),) if a["axis"] is None else s[0],
    "_np_moveaxis": lambda a, s: _moved(a, s[0]),
    "_npi_arctan2": lambda a, s: _broadcast(s),
    "_npi_hypot": lambda a, s: _broadcast(s),
    "_npi_var": lambda a, s: _moment(a, s[0]),
    "_npi_std": lambda a, s: _moment(a, s[0]),
    "_npi_diff": lambda a, s: _differences(a, s[0]),
    "_npi_einsum": _einsum,
    "_npi_tensordot": lambda a, s: _tensordot(a, s[0], s[1]),
    "_npi_tensordot_int_axes": lambda a, s: (*s[0][: len(s[0]) - a["axes"]], *s[1][a["axes"] :]),
    "_npi_vstack": lambda a, s: _joined([_at_least(x, 2) for x in s], 0),
    "_npi_hstack": lambda a, s: _joined([_at_least(x, 1) for x in s], min(1, len(s[0]) - 1)),
    "_npi_dstack": lambda a, s: _joined([_at_least(x, 3) for x in s], 2),
    "_npi_column_stack": lambda a, s: _joined([_column(x) for x in s], 1),
    "_npi_eye": lambda a, s: (a["N"], a["N"] if a["M"] is None else a["M"]),
    "_npi_identity": lambda a, s: tuple(a["shape"]),
}  # fmt: skip
for _name in ("_contrib_div_sqrt_dim", "_linalg_inverse", "_linalg_potrf", "_linalg_potri", "_npi_around", "_npi_fix",
              "_np_roll", "_npi_flip", "_npi_tril", "_shuffle"):  # fmt: skip
    _RULES[_name] = lambda a, s: s[0]
_SOURCES = ("_npi_eye", "_npi_identity")


def _broadcast(shapes: list[Any]) -> Shape:
    rank = max(map(len, shapes))
    whole = [(*(1,) * (rank - len(s)), *s) for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*whole))


def _register(name: str, run: Run) -> None:
    @rule(name, needs=0 if name in _SOURCES else -1)
    def shapes_of(attrs: Attrs, shapes: list[MaybeShape]) -> list[MaybeShape]:
        return [run(attrs, shapes)]


for _name, _run in _RULES.items():
    _register(_name, _run)


@rule("_npi_hsplit")
def hsplit(attrs: Attrs, shapes: list[MaybeShape]) -> list[MaybeShape]:
    x = shapes[0] or ()
    size = x[1]
    if attrs["sections"]:
        parts = [size // attrs["sections"]] * attrs["sections"]
    else:
        ends = [*list(attrs["indices"])[1:], size]
        parts = [b - a for a, b in zip([0, *ends], ends)]
    return [(x[0], n, *x[2:]) for n in parts]
