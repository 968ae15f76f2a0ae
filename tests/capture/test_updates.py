"""Update operators in PyTorch against MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.capture.events import LAZY, MUTATED, Op, Value
from gluontune.capture.operators import Operators
from gluontune.capture.program import StepProgram
from gluontune.capture.proof import MXNetReplay
from gluontune.capture.updates import UPDATES, Tensors, update_of
from gluontune.convert.graph.schemas import schema
from gluontune.core.arrays import worst
from gluontune.runtime import mxnet
from gluontune.runtime.pytorch import torch

pytestmark = pytest.mark.mxnet

OPTIONS = {
    "sgd_mom_update": {"momentum": 0.9},
    "mp_sgd_mom_update": {"momentum": 0.9},
    "nag_mom_update": {"momentum": 0.8},
    "adam_update": {"beta1": 0.8, "epsilon": 1e-6},
    "rmsprop_update": {"gamma1": 0.9, "epsilon": 1e-6, "clip_weights": 0.5},
    "ftrl_update": {"lamda1": 0.02, "beta": 0.5},
    "signum_update": {"momentum": 0.9, "wd_lh": 0.01},
}


@pytest.mark.parametrize("name", sorted(set(UPDATES) - {"_sparse_adagrad_update"}))
@pytest.mark.parametrize("clip", [-1.0, 0.3])
def test_an_update_is_mxnets(name, clip):
    mx, random = mxnet(), np.random.default_rng(7)
    precise = name.startswith("mp_")
    names = schema(name).inputs
    arrays = [random.uniform(0.1, 1, (3, 4)).astype("float32") for _ in names]
    arrays[1] = random.normal(size=(3, 4)).astype("float32")
    if precise:
        arrays[0], arrays[1] = arrays[0].astype("float16"), arrays[1].astype("float16")
        arrays[-1] = arrays[0].astype("float32")
    attrs = {"lr": 0.1, "wd": 0.01, "rescale_grad": 0.5, "clip_gradient": clip, **OPTIONS.get(name, {})}
    given = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    Operators(mx)(name, given, attrs, given[0])
    theirs = [given[0], *[given[place] for place in MUTATED.get(name, ())]]
    typed = schema(name).typed({key: str(value) for key, value in attrs.items()})
    mine = UPDATES[name](*[torch().from_numpy(array.copy()) for array in arrays], **typed)
    mine = mine if isinstance(mine, tuple) else (mine,)
    bound = 1e-3 if precise else 1e-5
    assert worst([m.numpy() for m in mine], [t.asnumpy() for t in theirs]) < bound
    assert worst([mine[0].numpy()], [arrays[0]]) > bound  # it moved
    several = UPDATES[name](*[Tensors([torch().from_numpy(array.copy())] * 2) for array in arrays], **typed)
    for one, two in zip(mine, several if isinstance(several, tuple) else (several,)):
        assert worst([part.numpy() for part in two.parts], [one.numpy()] * 2) < 1e-6


@pytest.mark.parametrize("name", sorted(n for n in set(UPDATES) & set(MUTATED) if not n.startswith(("mp_", "_sparse"))))
def test_mxnets_replay_updates_in_place_as_an_optimizer_does(name):
    mx, random = mxnet(), np.random.default_rng(23)
    count = len(schema(name).inputs)
    arrays = [random.uniform(0.1, 1, (3, 4)) for _ in range(count)]
    attrs = {key: str(n) for key, n in {"lr": 0.25, "wd": 0.5, "rescale_grad": 0.5, **OPTIONS.get(name, {})}.items()}
    outputs = list(range(count, count + 1 + len(MUTATED[name])))
    values = tuple(Value((3, 4), "float64", "parameter", f"p{n}") for n in range(outputs[-1] + 1))
    op = Op(name, attrs, list(range(count)), outputs, False, False, "", 1)
    theirs = MXNetReplay(mx, StepProgram(values, count, (op,), {"p0": count}))(arrays, outputs)
    mine = update_of(name, attrs)(*[torch().from_numpy(array.copy()) for array in arrays])
    assert worst([tensor.numpy() for tensor in mine], [theirs[number] for number in outputs]) < 1e-6


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("lazy", [True, False])
def test_a_sparse_gradient_changes_its_own_rows_alone(name, lazy):
    mx, random = mxnet(), np.random.default_rng(11)
    arrays = [random.uniform(0.1, 1, (5, 3)).astype("float32") for _ in schema(name).inputs]
    arrays[1][[0, 3]] = 0
    attrs = {"lr": 0.1, "wd": 0.1, "lazy_update": lazy, **OPTIONS.get(name, {})}
    given = [mx.nd.array(array) for array in arrays]
    given[1] = given[1].tostype("row_sparse")
    Operators(mx)(name, given, attrs, given[0])
    theirs = [given[0], *[given[place] for place in MUTATED.get(name, ())]]
    rule = update_of(name, {key: str(value) for key, value in attrs.items()})
    found = rule(*[torch().from_numpy(array.copy()) for array in arrays])
    mine = [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found,))]
    assert worst(mine, [array.asnumpy() for array in theirs]) < 1e-5
    assert np.array_equal(mine[0][[0, 3]], arrays[0][[0, 3]]) == lazy
    several = rule(*[Tensors([torch().from_numpy(array.copy())] * 2) for array in arrays])
    assert worst([t.parts[1].numpy() for t in (several if isinstance(several, tuple) else (several,))], mine) < 1e-6
