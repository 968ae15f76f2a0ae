"""Muon in PyTorch, for the twin of a recipe with it: ``torch.optim.Muon`` refuses the weights of convolutions."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["TorchMuon"]

_QUINTIC = (3.4445, -4.7750, 2.0315)


class TorchMuon:
    """The update of our ``muon``, layers of one shape at once; biases, gammas and betas by PyTorch's fused AdamW.

    Args:
        torch: the module. parameters: of the net. lr, wd, momentum: as of our recipe; ``wd`` is of matrices only.
    """

    def __init__(self, torch: Any, parameters: list[Any], *, lr: float, wd: float, momentum: float):
        self.torch, self.wd, self.momentum = torch, wd, momentum
        vectors = [p for p in parameters if p.ndim <= 1]
        self.rest = torch.optim.AdamW(vectors, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
        self.own = {"lr": lr}
        self.param_groups = [self.own, *self.rest.param_groups]
        self.by_shape: dict[tuple[int, int], list[Any]] = {}
        for p in parameters:
            if p.ndim > 1:
                self.by_shape.setdefault((p.shape[0], p.numel() // p.shape[0]), []).append(p)
        self.moments = {shape: torch.zeros(len(ps), *shape) for shape, ps in self.by_shape.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.rest.zero_grad(set_to_none=set_to_none)
        for layers in self.by_shape.values():
            for p in layers:
                p.grad = None

    def step(self) -> None:
        torch, rate = self.torch, self.own["lr"]
        with torch.no_grad():
            for shape, layers in self.by_shape.items():
                moment = self.moments[shape]
                grads = torch.stack([p.grad.reshape(shape) for p in layers])
                moment.mul_(self.momentum).add_(grads)
                turned = self._orthogonalized(grads.add_(moment, alpha=self.momentum))
                turned *= rate * 0.2 * math.sqrt(max(shape))
                torch._foreach_mul_(layers, 1 - rate * self.wd)
                torch._foreach_sub_(layers, [each.reshape(p.shape) for each, p in zip(turned, layers)])
        self.rest.step()

    def _orthogonalized(self, x: Any) -> Any:
        a, b, c = _QUINTIC
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = self.torch.baddbmm(x, self.torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if tall else x
