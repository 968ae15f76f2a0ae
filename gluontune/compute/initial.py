"""The values that a net begins with where its owner has given none. Imported only where mxnet is needed."""

from __future__ import annotations

from typing import Any

from gluontune.runtime import mxnet


class FirstValues(mxnet().init.Xavier):  # type: ignore[misc]
    """Xavier's rule; a parameter that is no matrix, and has no rule of its own, gets what its name says.

    Layers that are made from a symbol (gluon-cv's SSD, any ``SymbolBlock``) have such: Xavier's rule refuses them.

    >>> mx = mxnet()
    >>> norm = mx.sym.BatchNorm(mx.sym.var("x"), name="norm", fix_gamma=False)
    >>> net = mx.gluon.SymbolBlock(norm, mx.sym.var("x"))
    >>> net.initialize(FirstValues())
    >>> net(mx.nd.ones((1, 2))).shape, net.collect_params()["norm_gamma"].data().asnumpy()
    ((1, 2), array([1., 1.], dtype=float32))
    """

    def __init__(self) -> None:
        super().__init__(magnitude=2)

    def _init_weight(self, name: Any, array: Any) -> None:
        if len(array.shape) > 1:
            super()._init_weight(name, array)
        elif name.endswith(("gamma", "var")):
            self._init_one(name, array)
        elif name.endswith(("beta", "bias", "mean")):
            self._init_zero(name, array)
        else:
            mxnet().init.Uniform()._init_weight(name, array)
