"""Sums, means, extremes, norms, softmax, losses; operators of ``mx.np`` that ``mx.nd`` lacks or defines differently."""

from __future__ import annotations

import ast
from typing import Any, Callable

import numpy as np

from gluontune.convert.bridge.operators.creating import dtype_of
from gluontune.convert.bridge.registry import operator, operators
from gluontune.convert.graph.schemas import axes_of
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()


def dims(x: Any, axis: Any, exclude: bool = False) -> tuple[int, ...]:
    return axes_of(x.dim(), axis, exclude)


def _extreme(best: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
        over = dims(x, axis, exclude)
        if not over:
            return x
        found = best(x.detach(), over, keepdim=True)
        # equal ones get the whole gradient each: windows of padding, say, which PyTorch's convolution in float64 rounds
        # in its own way at the ends of a row, and MXNet's all alike
        equal = torch.isclose(x.detach(), found, 1e-13, 0) if x.dtype == torch.float64 else x.detach() == found
        found = found + ((x - x.detach()) * equal.to(x.dtype)).sum(over, keepdim=True)
        return found if keepdims else found.squeeze(over)

    return reduce


def _sum(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
    over = dims(x, axis, exclude)
    return x.sum(over, keepdim=keepdims) if over else x  # to PyTorch, no axes are all


def _mean(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
    over = dims(x, axis, exclude)
    found = (x if x.is_floating_point() else x.double()).mean(over, keepdim=keepdims) if over else x
    return found.to(x.dtype)


def _prod(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
    for a in sorted(dims(x, axis, exclude), reverse=True):
        x = x.prod(a, keepdim=keepdims)
    return x


def _nan_to(number: float, run: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
        return run(torch.where(torch.isnan(x), torch.full_like(x, number), x), axis, keepdims, exclude)

    return reduce


def _one_at_least(run: Callable[..., Any]) -> Callable[..., Any]:
    """Outside of ``mx.np`` the sum of a whole array has the shape (1,)."""

    def reduce(x: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
        return torch.atleast_1d(run(x, axis, keepdims, exclude))

    return reduce


for _name, _run in {"sum": _sum, "mean": _mean, "prod": _prod, "max": _extreme(torch.amax), "nansum": _nan_to(0, _sum),
                    "min": _extreme(torch.amin), "nanprod": _nan_to(1, _prod)}.items():  # fmt: skip
    operator(_name)(_one_at_least(_run))


def _numpy(run: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdims: bool = False, dtype: str | None = None) -> Any:
        found = x if axis == () else run(x, axis, keepdims)  # () is no axis to mx.np, and all to mx.nd
        return found.to(dtype_of(dtype)) if dtype else found

    return reduce


for _name, _run in {"_np_sum": _sum, "_npi_mean": _mean, "_np_max": _extreme(torch.amax),
                    "_np_min": _extreme(torch.amin), "_np_prod": _prod,
                    }.items():  # fmt: skip
    operator(_name)(_numpy(_run))


@operator("norm")
def norm(x: Any, ord: int = 2, axis: Any = None, keepdims: bool = False) -> Any:
    over = dims(x, axis)
    return torch.atleast_1d(x.abs().sum(over, keepdims) if ord == 1 else (x * x).sum(over, keepdims).sqrt())


def _lengths(x: Any, length: Any, axis: int) -> Any:
    places = torch.arange(x.shape[axis], device=x.device).reshape(
        [-1 if a == axis % x.dim() else 1 for a in range(x.dim())]
    )
    return places < length.unsqueeze(axis)


@operator("softmax")
def softmax(x: Any, length: Any = None, axis: int = -1, temperature: float | None = None, use_length: bool = False,
            dtype: str | None = None) -> Any:  # fmt: skip
    x = x / temperature if temperature else x
    if use_length:
        mask = _lengths(x, length, axis)
        return torch.softmax(x.masked_fill(~mask, -torch.inf), axis).masked_fill(~mask, 0)
    return torch.softmax(x, axis, dtype=dtype_of(dtype))


class _OwnGradient(torch.autograd.Function):
    """An output layer: its gradient is that of its loss, independent of the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, output: Any, gradient: Any) -> Any:
        ctx.save_for_backward(gradient)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *_grads: Any) -> Any:
        return ctx.saved_tensors[0], None, None


@operator("SoftmaxOutput")
def softmax_output(x: Any, label: Any = None, grad_scale: float = 1.0, multi_output: bool = False,
                   normalization: str = "null", use_ignore: bool = False,
                   ignore_label: float = -1.0) -> Any:  # fmt: skip
    axis = 1 if multi_output else -1
    output = torch.softmax(x, axis)
    if label is None:
        return output
    if label.shape == x.shape:
        return _OwnGradient.apply(x, output.detach(), (output.detach() - label) * grad_scale)
    valid = label != ignore_label
    index = label.long().unsqueeze(axis).clamp(0, x.shape[axis] - 1)
    gradient = output.detach() - torch.zeros_like(output).scatter(axis, index, 1.0)
    gradient = gradient * valid.unsqueeze(axis) if use_ignore else gradient
    share = np.float32(grad_scale)  # as MXNet has it
    if multi_output and normalization != "valid":
        share /= np.float32(label[0].numel())
    if normalization != "null":
        share /= np.float32(x.shape[0] if normalization == "batch" else max(1, int(valid.sum())))
    return _OwnGradient.apply(x, output.detach(), gradient * float(share))


def _regression(link: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[..., Any]:
    def layer(x: Any, label: Any = None, grad_scale: float = 1.0) -> Any:
        output = link(x)
        if label is None:
            return output
        outputs = output[0].numel() if x.dim() > 1 else 1
        share = float(np.float32(grad_scale / outputs))  # as MXNet has it
        gradient = slope(output.detach() - label.reshape(output.shape)) * share
        return _OwnGradient.apply(x, output.detach(), gradient)

    return layer


operator("LinearRegressionOutput")(_regression(lambda x: x, lambda gap: gap))
operator("LogisticRegressionOutput")(_regression(torch.sigmoid, lambda gap: gap))
operator("MAERegressionOutput")(_regression(lambda x: x, torch.sign))


@operator("make_loss")
@operator("MakeLoss")
def make_loss(x: Any, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: str = "null") -> Any:
    count: Any = 1
    if normalization == "batch":
        count = x.shape[0]
    elif normalization == "valid":
        count = (x.detach() > valid_thresh).sum().clamp(min=1)
    return _OwnGradient.apply(x, x.detach(), torch.ones_like(x) * (grad_scale / count))


@operator("_after_loss")
def after_loss(x: Any, loss: Any) -> Any:
    """``x``, behind which a loss was computed that no gradient would come to; it has its own whatever comes."""
    return x + _OwnGradient.apply(loss, torch.zeros((), dtype=x.dtype, device=x.device), torch.zeros_like(loss))


@operator("CTCLoss")
def ctc_loss(x: Any, label: Any, *lengths: Any, use_data_lengths: bool = False, use_label_lengths: bool = False,
             blank_label: str = "first") -> Any:  # fmt: skip
    given = list(lengths)
    steps = given.pop(0).long() if use_data_lengths else torch.full((x.shape[1],), x.shape[0], device=x.device)
    first, label = blank_label == "first", label.long()
    if use_label_lengths:
        count = given.pop(0).long()
    else:  # up to the first padding
        count = (label != (0 if first else -1)).long().cumprod(1).sum(1)
    blank = 0 if first else x.shape[2] - 1
    scores = torch.log_softmax(x, 2)
    return torch.nn.functional.ctc_loss(scores, label.clamp(min=0), steps, count, blank, "none")


@operator("moments", many=True)
def moments(x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    over = dims(x, axes)
    return x.mean(over, keepdim=keepdims), x.var(over, unbiased=False, keepdim=keepdims)


operators(globals(), {
    "log_softmax": lambda x, axis=-1, temperature=None, dtype=None:
        torch.log_softmax(x / temperature if temperature else x, axis, dtype_of(dtype)),
    "softmin": lambda x, axis=-1, temperature=None: torch.softmax(-x / temperature if temperature else -x, axis),
    "SoftmaxActivation": lambda x, mode="instance": torch.softmax(x, 1 if mode == "channel" else -1),
    "softmax_cross_entropy": lambda x, label:
        torch.nn.functional.cross_entropy(x, label.long(), reduction="sum").reshape(1),
})  # fmt: skip


for _name, _run in {
    "_npx_relu": torch.relu, "_npx_sigmoid": torch.sigmoid, "_npi_arcsinh": torch.arcsinh, "_npi_fix": torch.trunc,
    "_npi_arctanh": torch.arctanh, "_npi_arccosh": torch.arccosh, "_npi_degrees": torch.rad2deg,
    "_npi_radians": torch.deg2rad, "_npi_logical_not": torch.logical_not, "_npi_isnan": torch.isnan,
    "_npi_isinf": torch.isinf, "_npi_isfinite": torch.isfinite, "_npi_arctan2": torch.arctan2,
    "_npi_hypot": torch.hypot,
}.items():  # fmt: skip
    operator(_name, rounded=_name in ("_npi_degrees", "_npi_radians"))(_run)


@operator("_npi_var")
def np_var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    x = x.to(dtype_of(dtype, x.dtype))
    if axis == ():
        return (x - x) / (1 - ddof)
    return torch.var(x, dims(x, axis), correction=ddof, keepdim=keepdims)


@operator("_npi_norm")
def np_norm(x: Any, axis: Any = None, ord: Any = 2, keepdims: bool = False, flag: Any = -2) -> Any:
    axis = ast.literal_eval(axis) if isinstance(axis, str) else axis
    kind = "nuc" if int(flag) == 2 else {"inf": torch.inf, "-inf": -torch.inf}.get(str(ord), ord)
    over = dims(x, axis)
    if int(flag) in (-2, 1) or len(over) == 1 or kind in ("fro", None):
        power = 2.0 if kind in ("fro", None) else float(kind)
        return torch.linalg.vector_norm(x, power, over, keepdim=str(keepdims) == "True")
    return torch.linalg.matrix_norm(x, kind if kind == "nuc" else float(kind), over, keepdim=str(keepdims) == "True")


@operator("_np_cumsum")
def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    found = x.reshape(-1).cumsum(0) if axis is None else x.cumsum(axis)
    return found.to(dtype_of(dtype, found.dtype))


@operator("_npi_hsplit", many=True)
def hsplit(x: Any, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0) -> Any:
    return x.chunk(sections, 1) if sections else x.tensor_split(list(indices)[1:], 1)


@operator("_linspace", source=True)
def linspace(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, dtype: Any = "float32",
             endpoint: Any = True, num: Any = None, like: Any = None) -> Any:  # fmt: skip
    count = int(num if num is not None else step)
    parts = max(1, count - (str(endpoint) in ("True", "1")))
    places = torch.arange(count, dtype=torch.float64, device=None if like is None else like.device)
    return (start + places * ((stop or 0.0) - start) / parts).to(dtype_of(dtype, torch.float32))


operators(globals(), {
    "_npi_cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "_npi_rint": lambda x: x.round(),
    "_npi_around": lambda x, decimals=0: torch.round(x, decimals=decimals),
    "_np_any": lambda x, axis=None, keepdims=False: _sum(x != 0, axis, keepdims) > 0 if axis != () else x != 0,
    "_np_all": lambda x, axis=None, keepdims=False: _sum(x == 0, axis, keepdims) == 0 if axis != () else x != 0,
    "_npi_std": lambda x, axis=None, ddof=0, keepdims=False, dtype=None: np_var(x, axis, ddof, keepdims, dtype).sqrt(),
    "_npi_argmin": lambda x, axis=None, keepdims=False: torch.argmin(x, axis, keepdim=keepdims),
    "_np_moveaxis": lambda x, source, destination: x.movedim(tuple(source), tuple(destination)),
    "_np_roll": lambda x, shift, axis=None: torch.roll(x, shift, axis),
    "_npi_flip": lambda x, axis: x.flip(axis),
    "_npi_tril": lambda x, k=0: torch.tril(x, k),
    "_np_trace": lambda x, offset=0, axis1=0, axis2=1: x.diagonal(offset, axis1, axis2).sum(-1),
    "diag _np_diag": lambda x, k=0, axis1=0, axis2=1:
        torch.diag_embed(x, k) if x.dim() == 1 else x.diagonal(k, axis1, axis2),
    "_np_diagonal": lambda x, offset=0, axis1=0, axis2=1: x.diagonal(offset, axis1, axis2),
    "_npi_diff": lambda x, n=1, axis=-1: torch.diff(x, n, axis),
    "_npi_vstack": lambda *arrays: torch.vstack(arrays),
    "_npi_hstack": lambda *arrays: torch.hstack(arrays),
    "_npi_dstack": lambda *arrays: torch.dstack(arrays),
    "_npi_column_stack": lambda *arrays: torch.column_stack(arrays),
    "_npi_where_lscalar": lambda condition, x, scalar=0.0: torch.where(condition != 0, torch.full_like(x, scalar), x),
    "_npi_where_rscalar": lambda condition, x, scalar=0.0: torch.where(condition != 0, x, torch.full_like(x, scalar)),
    "_npi_nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None, copy=True: torch.nan_to_num(x, nan, posinf, neginf),
})  # fmt: skip
