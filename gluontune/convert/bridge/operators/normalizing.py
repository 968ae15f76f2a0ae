"""Normalizations, with MXNet's statistics."""

from __future__ import annotations

from typing import Any

from gluontune.convert.bridge.registry import operator
from gluontune.runtime import pytorch

torch: Any = pytorch.torch()
F = torch.nn.functional


@operator("BatchNorm", "BatchNorm_v1", stateful=True, many=lambda attrs: bool(attrs.get("output_mean_var")))
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


@operator("_contrib_BatchNormWithReLU", stateful=True)
class BatchNormWithReLU(BatchNorm):
    """BatchNorm, then relu."""

    def forward(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return super().forward(x, gamma, beta, mean, var).relu()


operator("_contrib_SyncBatchNorm", stateful=True, many=lambda attrs: bool(attrs.get("output_mean_var")))(BatchNorm)


@operator("LayerNorm", many=lambda attrs: bool(attrs.get("output_mean_var")))
def layer_norm(x: Any, gamma: Any, beta: Any, axis: int = -1, eps: float = 1e-5, output_mean_var: bool = False) -> Any:
    moved = x.movedim(axis, -1)
    out = F.layer_norm(moved, moved.shape[-1:], gamma, beta, eps).movedim(-1, axis)
    if not output_mean_var:
        return out
    return out, x.mean(axis, keepdim=True), (x.var(axis, unbiased=False, keepdim=True) + eps).sqrt()


@operator("InstanceNorm")
def instance_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-3) -> Any:
    axes = tuple(range(2, x.dim()))
    shape = [1, -1] + [1] * len(axes)
    out = (x - x.mean(axes, keepdim=True)) * torch.rsqrt(x.var(axes, unbiased=False, keepdim=True) + eps)
    return out * gamma.reshape(shape) + beta.reshape(shape)


@operator("GroupNorm")
def group_norm(x: Any, gamma: Any, beta: Any, num_groups: int = 1, eps: float = 1e-5) -> Any:
    def each(scale: Any) -> Any:  # MXNet 1.9 has one number a group
        scale = scale.repeat_interleave(x.shape[1] // scale.shape[0])
        return scale.reshape([1, -1] + [1] * (x.dim() - 2))

    return F.group_norm(x, num_groups, None, None, eps) * each(gamma) + each(beta)


@operator("L2Normalization")
def l2_normalization(x: Any, mode: str = "instance", eps: float = 1e-10) -> Any:
    axes = {"instance": tuple(range(1, x.dim())), "channel": (1,), "spatial": tuple(range(2, x.dim()))}[mode]
    return x / ((x * x).sum(axes, keepdim=True) + eps).sqrt()


@operator("LRN")
def lrn(x: Any, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Any:
    return F.local_response_norm(x, nsize, alpha, beta, knorm)
