"""Rules that take all parameters at once give what they give one by one."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

from gluontune.optim.torch_rules import TorchOptimizer  # noqa: E402

SHAPES = {
    "conv0_weight": (4, 3, 3, 3), "conv1_weight": (4, 3, 3, 3), "conv2_weight": (4, 3, 3, 3),
    "conv3_weight": (30, 4, 1, 1), "dense0_weight": (5, 8), "dense1_weight": (5, 8), "dense0_bias": (5,),
    "batchnorm0_gamma": (5,), "batchnorm0_beta": (5,),
}  # fmt: skip
AIRBENCH = {"fixed_norm": True, "filters_only": True, "ns_steps": 3, "rest": "nag", "momentum": 0.6}
CASES = {
    "nag": ("nag", {}), "sgd": ("sgd", {}), "sgd without momentum": ("sgd", {"momentum": 0.0}),
    "muon": ("muon", {}), "muon, the rest by nag": ("muon", {"rest": "nag"}), "muon of airbench": ("muon", AIRBENCH),
    "nag, clipped": ("nag", {"clip_gradient": 0.5}),
}  # fmt: skip


def trained(name, options, together):
    rng = np.random.default_rng(len(name))
    params = {n: torch.nn.Parameter(torch.tensor(rng.standard_normal(s))) for n, s in SHAPES.items()}
    optimizer = TorchOptimizer(
        name, params, lambda n: 0.1 / n, wd=0.01, lr_mult={"conv1_weight": 0.5, "dense0_bias": 3.0},
        wd_mult={"dense1_weight": 0.0, "batchnorm0_beta": 2.0}, **options,
    )  # fmt: skip
    if not together:

        def alone(parts, *given, rule=optimizer.rule):
            for part in parts:
                rule([part], *given)

        optimizer.rule = alone
    for step in range(3):
        for n, w in params.items():  # one that a frozen layer has no gradient of
            w.grad = None if n == "dense1_weight" and step == 1 else torch.tensor(rng.standard_normal(w.shape))
        optimizer.step(0.5)
    return {n: w.detach().numpy() for n, w in params.items()}


@pytest.mark.parametrize("case", CASES)
def test_together_is_as_one_by_one(case):
    name, options = CASES[case]
    one, all_at_once = trained(name, options, False), trained(name, options, True)
    for n, w in one.items():
        np.testing.assert_allclose(all_at_once[n], w, rtol=0, atol=0 if name != "muon" else 1e-13, err_msg=n)
