"""Layers that methods add to a net, with mxnet; a blurred one is Gluon's under another class, with its parameters."""

from __future__ import annotations

from typing import Any

from gluontune.compute._traversal import as_called, either_kind
from gluontune.runtime import mxnet

mx: Any = mxnet()
nn: Any = mx.gluon.nn


class SqueezeExcite(mx.gluon.HybridBlock):
    """Channels weighted by a small net over their means; ``between`` is the size of the small layer."""

    def __init__(self, channels: int, between: int, **names: Any):
        super().__init__(**names)
        with self.name_scope():
            self.squeeze = nn.Dense(between, activation="relu", in_units=channels)
            self.excite = nn.Dense(channels, activation="sigmoid", in_units=between)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if mx.util.is_np_array():
            share = self.excite(self.squeeze(x.mean(axis=(2, 3))))
            return x * F.np.expand_dims(F.np.expand_dims(share, 2), 3)
        share = self.excite(self.squeeze(F.mean(x, axis=(2, 3))))
        return F.broadcast_mul(x, F.expand_dims(F.expand_dims(share, 2), 3))


def _blurred(F: Any, x: Any, stride: int = 1) -> Any:
    """The binomial filter (1 2 1) / 4 in both directions, zeros outside; each ``stride``-th pixel."""
    wider = F.Pooling(x, kernel=(2, 2), stride=(1, 1), pad=(1, 1), pool_type="avg")
    return F.Pooling(wider, kernel=(2, 2), stride=(stride, stride), pool_type="avg")


class BlurredConv2D(nn.Conv2D):
    """A convolution with a stride, after a blur."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        return as_called(super().hybrid_forward, F, _blurred(F, x), weight, bias)


class BlurredMaxPool2D(nn.MaxPool2D):
    """Max-pooling with stride 1, a blur, and then each second pixel."""

    @either_kind
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return _blurred(F, F.Pooling(x, **{**self._kwargs, "stride": (1, 1)}), stride=2)


for _class in (BlurredConv2D, BlurredMaxPool2D):
    _class.__name__ = _class.__mro__[1].__name__  # Block.save writes it to files
