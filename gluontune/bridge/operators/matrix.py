"""Products of matrices."""

from __future__ import annotations

from typing import Any

from gluontune.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def _turn(x: Any, turned: bool) -> Any:
    return x.transpose(-1, -2) if turned else x


def _batch(draw: Draw) -> Sample:
    a, b = draw.pick([True, False]), draw.pick([True, False])
    left, right = (2, *((3, 4) if not a else (4, 3))), (2, *((4, 5) if not b else (5, 4)))
    return Sample([("normal", left), ("normal", right)], {"transpose_a": a, "transpose_b": b})


@operator("batch_dot", sample=_batch)
def batch_dot(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b))


def _dot(draw: Draw) -> Sample:
    drawn = _batch(draw)
    return Sample([(kind, shape[1:]) for kind, shape in drawn.inputs], drawn.attrs)


@operator("dot", sample=_dot)
def dot(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    if a.dim() == b.dim() == 1:
        return (a * b).sum().reshape(1)
    left = a.movedim(0, -1) if transpose_a else a
    right = b.movedim(-1, 0) if transpose_b else b
    return torch.tensordot(left, right, 1)


@operator("_linalg_gemm2", sample=lambda d: Sample(
    [("normal", (2, 3, 4)), ("normal", (2, 4, 5))], {"alpha": d.pick([0.5, 1.0])}))  # fmt: skip
def gemm2(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, axis: int = -2
) -> Any:
    return alpha * torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b))


@operator("_npi_matmul", sample=lambda d: Sample([("normal", (2, 3, 4)), ("normal", (2, 4, 5))], {}))
def matmul(a: Any, b: Any) -> Any:
    return torch.matmul(a, b)


@operator("_np_dot", sample=lambda d: Sample([("normal", (d.int(1, 3), 4)), ("normal", (4, 5))], {}))
def np_dot(a: Any, b: Any) -> Any:
    if a.dim() == 0 or b.dim() == 0:
        return a * b
    return torch.tensordot(a, b, dims=([-1], [-2 if b.dim() > 1 else 0]))
