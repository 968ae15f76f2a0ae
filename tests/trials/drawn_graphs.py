"""Small nets of operators in random composition, through to_torch and migrate: outputs and gradients, both modes.

By hand, for many: ``python tests/trials/drawn_graphs.py --cases 10000 --seed 1``; each case has a seed of its own,
which is printed where it fails: ``--cases 1 --seed THAT`` draws it again. With ``--projects``
each is written by ``migrate`` as a project too, whose own ``check.py`` runs in a process that has neither mxnet nor
gluontune (one for many projects).
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import random
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

import gluontune as gt
from gluontune.convert.graph.schemas import schema
from gluontune.convert.graph.symbol import _AUXILIARY
from gluontune.core.errors import GluontuneError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from drawn_operators import FIXED, OPERATORS, fill
from operator_samples import SAMPLES

drawing = importlib.import_module("gluontune.convert.bridge.operators.creating")
torch = importlib.import_module("torch")

# Not drawn here: what gives nothing that others can read, what is compared by its distribution, and what takes no
# states in Python.
_LEFT_OUT = {"_contrib_MultiBoxTarget", "_contrib_MultiBoxDetection", "_contrib_MultiBoxPrior", "CTCLoss",
             "_contrib_box_nms", "_contrib_SyncBatchNorm", "MAERegressionOutput", "_grad_add",
             "amp_multicast", "amp_cast", "_npi_norm", "BatchNorm_v1"}  # fmt: skip
_NAMES = sorted(set(SAMPLES) - _LEFT_OUT)
_PLACES = {"_contrib_": "contrib", "_linalg_": "linalg", "_random_": "random", "_image_": "image"}


_NO_FLOATS = ("_npi_equal", "_npi_not_equal", "_npi_greater", "_npi_less", "_npi_logical_not", "_npi_is", "_np_any",
              "_np_all", "_npi_arg", "_random_randint", "_sample_multinomial")  # fmt: skip


class Draw:
    """Choices from Python's random numbers, as samples ask for them."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, values):
        return self.rng.choice(list(values))

    def int(self, low, high):
        return self.rng.randint(low, high)

    def shape(self, least=1, most=4):
        return tuple(self.int(1, 4) for _ in range(self.int(least, most)))


@dataclass
class Step:
    """An operator: what it reads (places of values, or arrays that are made for it), its attributes and outputs."""

    name: str
    reads: list
    attrs: dict
    outputs: int


class Plan:
    """A drawn net: steps over values, of which the first is the input; each array is an input or a parameter."""

    def __init__(self, rng):
        self.rng, self.draw = rng, Draw(rng)
        self.steps, self.arrays, self.trained, self.fixed = [], {}, set(), set()
        self.numbers = np.random.default_rng(rng.getrandbits(32))
        self.shape = self.draw.shape(1, 4)
        self.values = [0]  # places that may be read
        self.count = 1
        self.single, self.train = False, False
        self.counted = []  # MXNet changes statistics where a gradient comes back, zeros of its own are none
        for _ in range(rng.randint(1, 6)):
            self.add(rng.choice(_NAMES))
        last = [v for v in self.values if v >= self.count - 3] or self.values
        self.gives = [rng.choice(last) for _ in range(rng.choice([1, 1, 2, 3]))] + self.counted
        if rng.random() < 0.3:
            self.gives.append(self.gives[0])
        # a difference is told relative to the greatest number, which shall not be rounding alone (softmax of one),
        # and a gradient relative to the greatest gradient
        self.gives = [self.step("_plus_scalar", [value], {"scalar": 1.0}) for value in self.gives]
        if rng.random() < 0.9 or self.trained - self.fixed:
            self.gives.append(self.step("_plus_scalar", [self.own("normal", (3,), (), True)], {"scalar": 1.0}))

    def add(self, name):
        sample = SAMPLES[name](self.draw)
        self.single |= sample.dtype == "float32" or OPERATORS[name].is_rounded(sample.attrs)
        states = _AUXILIARY.get(name, ())
        # MXNet writes ones into a gamma that is fixed, and whoever else reads it may read those
        alone = {*states, 1} if "BatchNorm" in name else states
        reads = [
            self.own(kind, shape, rest, True) if place in alone else self.read(kind, shape, rest)
            for place, (kind, shape, *rest) in enumerate(sample.inputs)
        ]
        self.fixed.update(reads[place] for place in states)
        attrs = {k: len(reads) if v == "?" else v for k, v in sample.attrs.items()}
        entry = OPERATORS[name]
        typed = schema(name).typed({k: str(v) for k, v in attrs.items()}, name)
        outputs = 1
        if entry.returns_tuple(typed):
            outputs = len(_outputs(name, len(reads), attrs))
        made = self.step(name, reads, attrs, outputs)
        if states or name.endswith("Output"):  # a head of Module's gives a gradient where anything comes back
            self.counted.append(made)
        if made in self.values and name.startswith(_NO_FLOATS):  # MXNet's older operators would stay there
            self.values.remove(made)
            made = self.step("Cast", [made], {"dtype": "float32"})
        if not sample.grads and outputs == 1 and made in self.values:  # MXNet has no gradient there, or another
            self.values.remove(made)
            self.step("BlockGrad", [made], {})

    def step(self, name, reads, attrs, outputs=1):
        self.steps.append(Step(name, reads, attrs, outputs))
        if name not in ("shape_array", "size_array"):  # whole numbers, in which MXNet would go on
            self.values += range(self.count, self.count + outputs)
        self.count += outputs
        return self.count - outputs

    def own(self, kind, shape, rest, trained):
        """An array for one operator alone: a parameter, or an input of the net; the states of BatchNorm are fixed."""
        name = f"a{len(self.arrays)}"
        self.arrays[name] = fill(kind, shape, *rest, rng=self.numbers)
        if trained:
            self.trained.add(name)
        return name

    def read(self, kind, shape, rest):
        """A value brought into the shape and the range that is asked for, or an array of its own."""
        if (
            kind in FIXED
            or kind in ("boxes", "detections", "objects", "whole", "triangle", "positive definite")
            or self.rng.random() < 0.4
        ):
            return self.own(kind, shape, rest, kind not in FIXED and self.rng.random() < 0.6)
        size = int(np.prod(shape))
        value = self.step("Reshape", [self.rng.choice(self.values)], {"shape": "(-1,)"})
        value = self.step("tile", [value], {"reps": f"({size},)"})
        value = self.step("slice", [value], {"begin": "(0,)", "end": f"({size},)"})
        value = self.step("Reshape", [value], {"shape": str(tuple(shape))})
        if kind == "distinct":
            name = f"a{len(self.arrays)}"
            self.arrays[name] = fill(kind, shape, rng=self.numbers)
            value = self.step("_mul_scalar", [self.step("tanh", [value], {})], {"scalar": 1e-3})
            return self.step("elemwise_add", [value, name], {})
        value = self.step("tanh", [value], {})
        if kind in ("positive", "above_one"):
            return self.step("_plus_scalar", [value], {"scalar": 1.3 if kind == "positive" else 2.3})
        return self.step("_mul_scalar", [value], {"scalar": 0.9})


def _outputs(name, inputs, attrs):
    sym = gt.runtime.mxnet().sym
    found = _call(sym, name)(*[sym.var(f"v{i}") for i in range(inputs)], **_texts(attrs))
    return found if isinstance(found, list) else found.list_outputs()


def _call(library, name):
    """MXNet's function of an operator, for arrays or symbols; those of ``mx.np`` take and give the plain kind."""
    if name.startswith("_np"):
        prefix, _, short = name[1:].partition("_")
        home = {"np": library.np._op, "npi": library.np._internal, "npx": library.npx}[prefix]
        home = home if hasattr(home, short) else library.npx._op if prefix == "npx" else home

        def call(*given, **attrs):
            found = getattr(home, short)(*(g.as_np_ndarray() for g in given), **attrs)
            many = isinstance(found, (list, tuple))
            return [f.as_nd_ndarray() for f in found] if many else found.as_nd_ndarray()

        return call
    short = next(((place, name[len(start) :]) for start, place in _PLACES.items() if name.startswith(start)), None)
    for home in (library, library.op, library._internal, *([getattr(library, short[0])] if short else [])):
        for known in (name, short[1] if short else name):
            if hasattr(home, known) and (home is not library or not name.startswith("_")):
                return getattr(home, known)
    raise LookupError(name)


def _texts(attrs):
    return {k: str(v) for k, v in attrs.items() if v is not None or k in ("axis", "end", "begin", "logit")}


def block_of(plan):
    """A HybridBlock of the plan: its middle steps are a block inside, which some nets call twice."""
    mx = gt.runtime.mxnet()
    twice = plan.rng.random() < 0.25

    def run(F, values, arrays, steps):
        for step in steps:
            given = [arrays[r] if isinstance(r, str) else values[r] for r in step.reads]
            found = _call(F, step.name)(*given, **_texts(step.attrs))
            values += list(found)[: step.outputs] if step.outputs > 1 else [found]

    class Drawn(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="net_")
            with self.name_scope():
                for name in sorted(plan.trained):
                    shape = plan.arrays[name].shape
                    start = mx.init.Constant(mx.nd.array(plan.arrays[name]))
                    how = {"grad_req": "null"} if name in plan.fixed else {}
                    setattr(self, name, self.params.get(name, shape=shape, init=start, **how))
                self.inner = Inner() if twice else None

        def hybrid_forward(self, F, x, *inputs, **parameters):
            arrays = {**dict(zip(free_of(plan), inputs)), **parameters}
            values = [x]
            run(F, values, arrays, plan.steps)
            found = [values[v] for v in plan.gives]
            if twice:
                found += [self.inner(found[0]), self.inner(self.inner(found[-1])[0])[1]]
            return found if len(found) > 1 else found[0]

    class Inner(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.tanh(x), (x, F.sigmoid(x) * 2)[1]

    return Drawn()


def free_of(plan):
    return [name for name in plan.arrays if name not in plan.trained]


def module_of(texts):
    """The written model in this process."""
    kept = {name: sys.modules.get(name) for name in ("operators", "model")}
    try:
        for name in ("operators", "model"):
            if f"{name}.py" in texts:
                made = types.ModuleType(name)
                sys.modules[name] = made
                exec(compile(texts[f"{name}.py"], f"{name}.py", "exec"), made.__dict__)
                if hasattr(made, "STEADY"):
                    made.STEADY = True
        return made.build()
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def differences(seed, folder=None):
    """What is wrong of a drawn net: sentences; and what it is of. None where MXNet itself cannot compute it.

    With ``folder`` its project is written there; see :func:`disagreeing`.
    """
    mx = gt.runtime.mxnet()
    plan = Plan(random.Random(seed))
    net = block_of(plan)
    net.initialize()
    x = fill("normal", plan.shape, rng=plan.numbers).astype("float32")
    samples = (x, *[plan.arrays[n].astype("float32") for n in free_of(plan)])
    kinds = [step.name for step in plan.steps]
    try:
        net(*[mx.nd.array(s, dtype=s.dtype) for s in samples])
        mx.nd.waitall()
    except mx.MXNetError:
        return None, kinds
    wrong = []
    dtype, bar = ("float32", 2e-3) if plan.single else ("float64", 1e-7)
    try:
        module = gt.bridge.to_torch(net, inputs=len(samples))
        for train in (False, True):
            found = gt.bridge.check(net, module, samples, train=train, dtype=dtype)
            if not max(found.output, found.gradient, *found.statistics.values()) <= bar:
                wrong.append(f"to_torch, train={train}: {found}")
        project = importlib.import_module("gluontune.convert.migrate.project")
        trace, texts = project.written(net, samples)
        wrong += _of_migrate(trace, texts, module, samples)
        if folder is not None:
            with (
                mock.patch.object(project, "written", lambda *_: (trace, dict(texts))),
                mock.patch.object(project.subprocess, "run", _later),
                mock.patch("os.fsync"),
            ):
                gt.bridge.migrate(net, folder, samples)
    except GluontuneError as error:
        if "only implemented in GPU" in str(error):
            return None, kinds
        wrong.append(f"refused: {error}")
    except mx.MXNetError:
        return None, kinds
    return wrong, kinds


def _later(command, **how):
    """``check.py`` runs with those of other projects in one process."""
    return subprocess.CompletedProcess(command, 0, "agrees", "")


_ALL = """
import json, runpy, sys, torch
sys.modules["mxnet"] = sys.modules["gluontune"] = None
plain, told = list(sys.path), {}
for folder in sys.argv[1:]:
    sys.path[:] = [folder, *plain]
    for name in ("model", "operators"):
        sys.modules.pop(name, None)
    said = []
    try:
        runpy.run_path(f"{folder}/check.py", {"print": lambda *words: said.append(" ".join(words))}, "__main__")
    except SystemExit as end:
        if end.code or said[-1:] != ["agrees"]:
            told[folder] = " | ".join(said)
    except BaseException as error:
        told[folder] = f"raw {type(error).__name__}: {error}"
    torch.set_default_dtype(torch.float32)
sys.stdout.write(json.dumps(told))
"""


def disagreeing(folders):
    """What ``check.py`` of those projects says that do not agree, by folder, in a process without mxnet."""
    ran = subprocess.run(
        [sys.executable, "-B", "-c", _ALL, *map(str, folders)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr[-400:])
    return json.loads(ran.stdout)


def _of_migrate(trace, texts, module, samples):
    """The text of the net against its module, run twice in both modes."""
    for node in module.graph.nodes:
        if node.kwargs.get("dtype") == "float32":
            node.kwargs = {**node.kwargs, "dtype": "float64"}
    module.recompile()
    other = module_of(texts)
    arrays = {trace.names[n]: torch.from_numpy(a.copy()) for n, a in trace.source.arrays.items()}
    other.load_state_dict(arrays)
    wrong = []
    before = torch.get_default_dtype()
    for train in (False, True):
        one, two = (m.double().train(train) for m in (module, other))
        for part in (*one.modules(), *two.modules()):
            if isinstance(getattr(part, "p", None), float):
                part.p = 0.0
        for _ in range(2):
            torch.set_default_dtype(torch.float64)
            try:
                given = [torch.from_numpy(s).double() for s in samples]
                given = [g.requires_grad_() for g in given]
                with mock.patch.object(drawing, "STEADY", True):
                    sides = [_ran(m, given) for m in (one, two)]
            finally:
                torch.set_default_dtype(before)
            if [a.shape for a in sides[0]] != [a.shape for a in sides[1]]:
                wrong.append(f"migrate, train={train}: shapes differ")
            elif any(not torch.allclose(a.double(), b.double(), 1e-9, 1e-9, equal_nan=True) for a, b in zip(*sides)):
                wrong.append(f"migrate, train={train}: numbers differ")
    return wrong


def _ran(module, given):
    found = module(*given)
    outputs = list(_flat(found))
    parts = [(o * torch.arange(1, o.numel() + 1).reshape(o.shape).cos()).sum() for o in outputs if o.requires_grad]
    slopes = torch.autograd.grad(sum(parts), given, allow_unused=True) if parts else []
    return [*(o.detach() for o in outputs), *(torch.zeros(()) if s is None else s for s in slopes)]


def _flat(nest):
    for item in nest if isinstance(nest, (list, tuple)) else [nest]:
        yield from _flat(item) if isinstance(item, (list, tuple)) else [item]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after these")
    parser.add_argument("--projects", action="store_true", help="write and run each project too")
    asked = parser.parse_args()
    bad, skipped, seen, done = set(), 0, collections.Counter(), 0
    end = time.monotonic() + asked.seconds
    seeds = range(asked.seed, asked.seed + asked.cases)
    for first in seeds[::100]:
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as place:
            for seed in seeds[first - asked.seed :][:100]:
                if time.monotonic() > end:
                    break
                done += 1
                try:
                    wrong, kinds = differences(seed, Path(place, str(seed)) if asked.projects else None)
                except Exception as error:  # what is raised raw is a finding
                    wrong, kinds = [f"raw {type(error).__name__}: {error}"[:400]], []
                    if asked.cases == 1:
                        raise
                skipped += wrong is None
                seen.update(kinds)
                if wrong:
                    bad.add(seed)
                    print(f"seed {seed}: {'; '.join(wrong)[:600]} [{' '.join(kinds)}]", flush=True)
            for folder, told in disagreeing(Path(place).glob("*")).items() if asked.projects else ():
                bad.add(int(Path(folder).name))
                print(f"seed {Path(folder).name}: its project: {told[:600]}", flush=True)
        print(f"until {seed}: {done} cases, {len(bad)} wrong, {skipped} left to MXNet", flush=True)
    print(f"{done} cases, {len(bad)} wrong, {skipped} that MXNet cannot compute, {len(seen)} operators")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
