"""Networks of gluoncv's zoo, converted and compared, in a process of their own."""

from __future__ import annotations

import gc
import importlib
import json
from typing import Any


class Judge:
    """Builds networks with random weights, converts them and says how far both agree."""

    def __init__(self) -> None:
        from gluontune.runtime import mxnet
        from gluontune.runtime.pytorch import torch

        self.mx = mxnet()
        known = importlib.import_module("gluoncv.model_zoo.model_zoo")._models
        self.info = {"names": sorted(known), "torch": torch().__version__, "mxnet": self.mx.__version__}

    def judge(self, net_name: str, shape: list[int], gradients: bool) -> dict[str, Any]:
        """``{"status": "not traced" | "not converted" | "converted", "reason", "float32", …}``."""
        import numpy as np

        from gluontune import bridge
        from gluontune.compute.tracing import traced

        row: dict[str, Any] = {"status": "not traced", "reason": ""}
        row.update(dict.fromkeys(("float32", "float64", "gradients", "statistics", "operators")))
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        try:
            net = self._build(net_name, shape)
            net(self.mx.nd.array(x))
            symbol = traced(net).predict
            row["operators"] = len({node["op"] for node in json.loads(symbol.tojson())["nodes"]} - {"null"})
            row["status"] = "not converted"
            module = bridge.to_torch(net)
            row["float32"] = bridge.check(net, module, x).output
            row["status"] = "converted"
            row["float64"] = bridge.check(net, module, x, dtype="float64").output
            if gradients:
                row.update(self._gradients(net, module, x))
        except Exception as error:
            row["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            if row["status"] == "converted" and not isinstance(error.__cause__ or error, self.mx.MXNetError):
                row["status"] = "not converted"  # else it is MXNet that cannot: float64, or training
        gc.collect()
        return row

    def _gradients(self, net: Any, module: Any, x: Any) -> dict[str, float]:
        """In training mode, of two images: of one a BatchNorm's mean is exactly 0."""
        import numpy as np

        from gluontune import bridge

        two = np.concatenate([x, x[::-1] + 0.1 * x * x])[:2]
        found = bridge.check(net, module, two, train=True, dtype="float64")
        return {"gradients": found.gradient, "statistics": max(found.statistics.values(), default=0.0)}

    def _build(self, wanted: str, shape: list[int]) -> Any:
        """With random weights: nothing is downloaded."""
        from gluontune.search.bench.bridge import SEGMENTING

        zoo = importlib.import_module("gluoncv.model_zoo")
        self.mx.random.seed(1)
        failure: Exception | None = None
        crop = {"crop_size": shape[-1]} if wanted.startswith(SEGMENTING) else {}
        for options in ({"pretrained_base": False, **crop}, crop, {"pretrained_base": False, "classes": ["a", "b"]}):
            try:
                net = zoo.get_model(wanted, **options)
                break
            except Exception as error:  # gluoncv raises even Warning for a keyword that it does not take
                failure = failure or error
        else:
            raise failure or ValueError(wanted)
        for name, parameter in net.collect_params().items():  # those of traced parts name no initializer
            if parameter.init is None and name.endswith(("gamma", "_var", "beta", "bias", "_mean")):
                parameter.init = "ones" if name.endswith(("gamma", "_var")) else "zeros"
        net.initialize(self.mx.init.Xavier(factor_type="in", magnitude=2), force_reinit=False)
        if wanted.startswith("center_net"):
            from gluontune.runtime import set_data

            # It ranks its scores: with gammas of 1 all scores of a deep one are 1, and the order of equal ones is
            # nobody's.
            net(self.mx.nd.zeros(shape))
            for name, parameter in net.collect_params().items():
                if name.endswith("gamma"):
                    set_data(parameter, 0.6 * parameter.data())
        return net
