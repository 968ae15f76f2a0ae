"""Products of matrices."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import operator, operators
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def _turn(x: Any, turned: bool) -> Any:
    return x.transpose(-1, -2) if turned else x


@operator("dot")
def dot(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    if a.dim() == b.dim() == 1:
        return (a * b).sum().reshape(1)
    left = a.movedim(0, -1) if transpose_a else a
    right = b.movedim(-1, 0) if transpose_b else b
    return torch.tensordot(left, right, 1)


@operator("_np_dot")
def np_dot(a: Any, b: Any) -> Any:
    if a.dim() == 0 or b.dim() == 0:
        return a * b
    return torch.tensordot(a, b, dims=([-1], [-2 if b.dim() > 1 else 0]))


# Attention of several heads with interleaved queries, keys and values in one array (gluon-nlp, sockeye), as in MXNet's
# src/operator/contrib/transformer.cc.
def _heads(x: Any, heads: int, parts: int) -> Any:
    """(steps, batch, heads · parts · size) as (parts, batch · heads, steps, size)."""
    x = x.reshape(x.shape[0], x.shape[1], heads, parts, -1).permute(3, 1, 2, 0, 4)
    return x.reshape(parts, -1, *x.shape[3:])


def _together(found: Any, heads: int) -> Any:
    """(batch · heads, steps, size) as (steps, batch, heads · size)."""
    found = found.reshape(-1, heads, *found.shape[1:]).permute(2, 0, 1, 3)
    return found.reshape(*found.shape[:2], -1)


@operator("_contrib_interleaved_matmul_selfatt_qk")
def selfatt_qk(x: Any, heads: int) -> Any:
    queries, keys, _ = _heads(x, heads, 3)
    return torch.matmul(queries / queries.shape[-1] ** 0.5, keys.transpose(1, 2))


@operator("_contrib_interleaved_matmul_encdec_qk")
def encdec_qk(queries: Any, keys_values: Any, heads: int) -> Any:
    queries, keys = _heads(queries, heads, 1)[0], _heads(keys_values, heads, 2)[0]
    return torch.matmul(queries / queries.shape[-1] ** 0.5, keys.transpose(1, 2))


operator("_linalg_inverse")(torch.inverse)
operator("_linalg_det")(torch.det)


def _triangle(a: Any, lower: bool) -> Any:
    return torch.tril(a) if lower else torch.triu(a)


@operator("_linalg_potrf")
def potrf(a: Any, lower: bool = True) -> Any:
    found = torch.linalg.cholesky(a)
    return found if lower else found.mT


@operator("_linalg_trsm")
def trsm(
    a: Any, b: Any, transpose: bool = False, rightside: bool = False, lower: bool = True, alpha: float = 1.0
) -> Any:
    a = _turn(_triangle(a, lower), transpose)
    return alpha * torch.linalg.solve_triangular(a, b, upper=lower == transpose, left=not rightside)


@operator("_linalg_trmm")
def trmm(
    a: Any, b: Any, transpose: bool = False, rightside: bool = False, lower: bool = True, alpha: float = 1.0
) -> Any:
    a = _turn(_triangle(a, lower), transpose)
    return alpha * (torch.matmul(b, a) if rightside else torch.matmul(a, b))


operators(globals(), {
    "batch_dot": lambda a, b, transpose_a=False, transpose_b=False:
        torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b)),
    "_linalg_gemm2": lambda a, b, transpose_a=False, transpose_b=False, alpha=1.0, axis=-2:
        alpha * torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b)),
    "_npi_matmul": lambda a, b: torch.matmul(a, b),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda x, attention, heads:
        _together(torch.matmul(attention, _heads(x, heads, 3)[2]), heads),
    "_contrib_interleaved_matmul_encdec_valatt": lambda keys_values, attention, heads:
        _together(torch.matmul(attention, _heads(keys_values, heads, 2)[1]), heads),
    "_contrib_div_sqrt_dim": lambda x: x / x.shape[-1] ** 0.5,
    "_linalg_gemm": lambda a, b, c, transpose_a=False, transpose_b=False, alpha=1.0, beta=1.0:
        alpha * torch.matmul(_turn(a, transpose_a), _turn(b, transpose_b)) + beta * c,
    "_linalg_syrk": lambda a, transpose=False, alpha=1.0:
        alpha * torch.matmul(_turn(a, transpose), _turn(a, not transpose)),
    "_linalg_sumlogdiag": lambda a: a.diagonal(dim1=-2, dim2=-1).log().sum(-1),
    "_linalg_extractdiag": lambda a, offset=0: a.diagonal(offset, -2, -1),
    "_linalg_makediag": lambda a, offset=0: torch.diag_embed(a, offset),
    "_npi_einsum": lambda *arrays, subscripts, optimize=0: torch.einsum(subscripts, *arrays),
    "_npi_tensordot_int_axes": lambda a, b, axes: torch.tensordot(a, b, axes),
    "_npi_tensordot": lambda a, b, a_axes_summed, b_axes_summed:
        torch.tensordot(a, b, (tuple(a_axes_summed), tuple(b_axes_summed))),
    "_linalg_potri": lambda a, lower=True: torch.cholesky_inverse(_triangle(a, lower), upper=not lower),
})  # fmt: skip
