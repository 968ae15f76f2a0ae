"""Normalizations, with MXNet's statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gluontune.convert.bridge.registry import Draw, Sample, operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


def _bn_sample(draw: Draw) -> Sample:
    shape, axis = (draw.int(2, 3), 3, *[draw.int(1, 4) for _ in range(draw.int(0, 2))]), 1
    attrs = {"eps": draw.pick([1e-3, 1e-5]), "momentum": draw.pick([0.9, 0.5]), "axis": axis,
             "fix_gamma": draw.pick([True, False]), "use_global_stats": draw.pick([False, False, True])}  # fmt: skip
    channel = [("positive", (3,)), ("normal", (3,)), ("normal", (3,)), ("positive", (3,))]
    return Sample([("normal", shape), *channel], attrs, draw.pick([True, False]))


def _sync_sample(draw: Draw) -> Sample:
    drawn = _bn_sample(draw)
    attrs = {k: v for k, v in drawn.attrs.items() if k != "axis"}
    return replace(drawn, attrs={**attrs, "key": "bn"}, dtype="float32")


@operator("BatchNorm", stateful=True, sample=_bn_sample, many=lambda attrs: bool(attrs.get("output_mean_var")))
class BatchNorm(torch.nn.Module):
    """Batch normalization with a biased running variance, as in MXNet.

    gamma, beta and the running statistics are inputs; the statistics are changed in place in training, but where
    no gradient passes: MXNet changes them in the backward pass, so one at the input with a fixed gamma and beta
    (ResNet v2) keeps 0 and 1.
    """

    def __init__(self, eps: float = 1e-3, momentum: float = 0.9, fix_gamma: bool = True,
                 use_global_stats: bool = False, axis: int = 1, output_mean_var: bool = False):  # fmt: skip
        super().__init__()
        self.eps, self.momentum, self.fix_gamma, self.axis = eps, momentum, fix_gamma, axis
        self.use_global_stats, self.output_mean_var = use_global_stats, output_mean_var

    def forward(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        if self.axis % x.dim() != 1:
            x = x.movedim(self.axis, 1)
        # MXNet counts in the backward pass, which a fixed gamma lets through if it wants a gradient
        counted = torch.is_grad_enabled() and any(a.requires_grad for a in (x, gamma, beta))
        gamma = torch.ones_like(gamma) if self.fix_gamma else gamma
        if not self.training or self.use_global_stats:
            out, seen = torch.batch_norm(x, gamma, beta, mean, var, False, 0.0, self.eps, False), (mean, var)
        else:
            count = x.numel() // x.shape[1]
            if self.output_mean_var or count == 1:
                axes = [0, *range(2, x.dim())]
                seen = (x.mean(axes), x.var(axes, unbiased=False))
            out, *new = self._train(x, gamma, beta, mean, var, count, seen if count == 1 else None)
            if counted:
                with torch.no_grad():
                    mean.copy_(new[0])
                    var.copy_(new[1])
        out = out if self.axis % x.dim() == 1 else out.movedim(1, self.axis)
        return (out, *seen) if self.output_mean_var else out

    def _train(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, count: int, seen: Any) -> Any:
        new_mean, new_var = mean.clone(), var.clone()  # the backward pass keeps the arguments
        if seen is not None:  # one value a channel: the mean itself
            out = torch.batch_norm(x, gamma, beta, None, None, True, 0.0, self.eps, False)
            new_mean = torch.lerp(seen[0], mean, self.momentum)
            new_var = var * self.momentum
        else:
            out = torch.batch_norm(x, gamma, beta, new_mean, new_var, True, 1 - self.momentum, self.eps, False)
            # torch adds the unbiased variance
            new_var = var * (self.momentum / count) + new_var * ((count - 1) / count)
        return out, new_mean, new_var


def _relu_sample(draw: Draw) -> Sample:
    drawn = _bn_sample(draw)  # oneDNN's alone, for images
    return replace(drawn, inputs=[("normal", (2, 3, draw.int(2, 4), 4)), *drawn.inputs[1:]], dtype="float32")


@operator("_contrib_BatchNormWithReLU", stateful=True, sample=_relu_sample)
class BatchNormWithReLU(BatchNorm):
    """BatchNorm, then relu."""

    def forward(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return super().forward(x, gamma, beta, mean, var).relu()


operator("_contrib_SyncBatchNorm", stateful=True, sample=lambda d: _sync_sample(d),
         many=lambda attrs: bool(attrs.get("output_mean_var")))(BatchNorm)  # fmt: skip


def _layer_sample(draw: Draw) -> Sample:
    shape = draw.shape(2, 4)
    axis = draw.pick([-1, 1])
    return Sample(
        [("normal", shape), ("normal", (shape[axis],)), ("normal", (shape[axis],))], {"axis": axis, "eps": 1e-4}
    )


@operator("LayerNorm", sample=_layer_sample, many=lambda attrs: bool(attrs.get("output_mean_var")))
def layer_norm(x: Any, gamma: Any, beta: Any, axis: int = -1, eps: float = 1e-5, output_mean_var: bool = False) -> Any:
    moved = x.movedim(axis, -1)
    out = F.layer_norm(moved, moved.shape[-1:], gamma, beta, eps).movedim(-1, axis)
    if not output_mean_var:
        return out
    return out, x.mean(axis, keepdim=True), (x.var(axis, unbiased=False, keepdim=True) + eps).sqrt()


def _instance_sample(draw: Draw) -> Sample:
    inputs = [("normal", (2, 3, draw.int(2, 4), 3)), ("normal", (3,)), ("normal", (3,))]
    return Sample(inputs, {"eps": draw.pick([1e-3, 1e-5])}, dtype="float32")


@operator("InstanceNorm", sample=_instance_sample)
def instance_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-3) -> Any:
    axes = tuple(range(2, x.dim()))
    shape = [1, -1] + [1] * len(axes)
    out = (x - x.mean(axes, keepdim=True)) * torch.rsqrt(x.var(axes, unbiased=False, keepdim=True) + eps)
    return out * gamma.reshape(shape) + beta.reshape(shape)


def _group_sample(draw: Draw) -> Sample:
    groups = draw.pick([1, 2, 4])
    scales = [("normal", (groups,)), ("normal", (groups,))]
    return Sample([("normal", (2, 4, draw.int(1, 3), 3)), *scales], {"num_groups": groups})


@operator("GroupNorm", sample=_group_sample)
def group_norm(x: Any, gamma: Any, beta: Any, num_groups: int = 1, eps: float = 1e-5) -> Any:
    def each(scale: Any) -> Any:  # MXNet 1.9 has one number a group
        scale = scale.repeat_interleave(x.shape[1] // scale.shape[0])
        return scale.reshape([1, -1] + [1] * (x.dim() - 2))

    return F.group_norm(x, num_groups, None, None, eps) * each(gamma) + each(beta)


@operator("L2Normalization", sample=lambda d: Sample(
    [("normal", d.shape(3, 4))], {"mode": d.pick(["instance", "channel", "spatial"]), "eps": 1e-5}))  # fmt: skip
def l2_normalization(x: Any, mode: str = "instance", eps: float = 1e-10) -> Any:
    axes = {"instance": tuple(range(1, x.dim())), "channel": (1,), "spatial": tuple(range(2, x.dim()))}[mode]
    return x / ((x * x).sum(axes, keepdim=True) + eps).sqrt()


@operator(
    "LRN",
    sample=lambda d: Sample(
        [("normal", (2, 6, 3, 3))], {"nsize": d.pick([3, 5]), "alpha": 1e-2, "knorm": 2.0}, dtype="float32"
    ),
)
def lrn(x: Any, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Any:
    return F.local_response_norm(x, nsize, alpha, beta, knorm)
