"""What hooks ask of a handler, and what a trace consists of: values, operators and backward passes, steps."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gluontune.convert.graph.schemas import known_schema

Run = Callable[[], Any]  # what MXNet does at a hook
Arrays = Sequence[Any]


class Call(NamedTuple):
    """One call of an operator."""

    name: str  # MXNet's
    inputs: Sequence[Any]
    attrs: dict[str, str]  # as MXNet's text
    out: Any  # the array or arrays to write to, or None
    run: Callable[..., Any]  # computes it by MXNet; returns an array, or a list where it has several outputs
    is_np: bool = False  # it returns arrays of mx.np
    many: bool = False  # it returns a list, whatever their number
    raw: tuple[Any, Any, Any] = (None, (), ())  # handle, keys and values of attributes, as the front end gave them

    @property
    def sets_gamma(self) -> bool:
        """Whether MXNet writes ones into a BatchNorm's gamma, as ``fix_gamma`` asks of it whenever it computes."""
        return self.name in NORMALIZING and self.attrs.get("fix_gamma", "True") in ("True", "1")

    @property
    def mutated(self) -> tuple[int, ...]:
        """The places of the inputs that an update operator changes."""
        if not self.name.startswith("multi_"):
            return MUTATED.get(self.name, ())
        one, count = MUTATED.get(self.name[len("multi_") :], ()), int(self.attrs["num_weights"])
        each = len(self.inputs) // count
        return tuple(at * each + place for at in range(count) for place in one)

    def complete(self) -> dict[str, str]:
        """The attributes, with the number of inputs where the operator takes any number; lazy where rows are left.

        >>> Call("Concat", [1, 2], {"dim": "1"}, None, print).complete()
        {'dim': '1', 'num_args': '2'}
        """
        if self.name in LAZY:
            lazy = self.inputs[1].stype == "row_sparse" and self.attrs.get("lazy_update", "True") in ("True", "1")
            return {**self.attrs, "lazy_update": str(lazy)}
        known = known_schema(self.name)
        count = known.count if known else None
        return {**self.attrs, count: str(len(self.inputs))} if count and count not in self.attrs else self.attrs


class Handler:
    """What :mod:`gluontune.capture.hooks` ask of a recorder, but for what it records: here, what MXNet does."""

    follow: Any = None  # a step that comes again: it may answer a call of an operator before ``op`` is asked

    def read(self, array: Any, run: Run) -> Any:
        """Values of an array are copied to the host."""
        return run()

    def block(self, block: Any, args: tuple[Any, ...], run: Run) -> Any:
        """A call of a Gluon block; as ``updates``, of a trainer's updater with indices, gradients and weights."""
        return run()

    updates = block

    def clip(self, gradients: Arrays, most: float, run: Run) -> Any:
        """``gluon.utils.clip_global_norm``."""
        return run()

    def outside(self, arrays: Arrays, run: Run) -> Any:
        """C reads or writes these arrays past the operators: a parameter is set, a file is written."""
        return run()

    def wait(self, run: Run) -> Any:
        """``waitall`` and ``wait_to_read``."""
        return run()


#: Operators that change inputs in place, by the places of those inputs.
MUTATED = {
    "sgd_mom_update": (2,), "nag_mom_update": (2,), "signum_update": (2,), "rmsprop_update": (2,),
    "adam_update": (2, 3), "ftrl_update": (2, 3), "ftml_update": (2, 3, 4), "rmspropalex_update": (2, 3, 4),
    "lamb_update_phase1": (2, 3), "_adamw_update": (2, 3), "_sparse_adagrad_update": (2,),
    "_contrib_group_adagrad_update": (2,), "mp_sgd_update": (2,), "mp_sgd_mom_update": (2, 3),
    "mp_nag_mom_update": (2, 3),
}  # fmt: skip
#: Update operators that leave the rows alone that a sparse gradient lacks, unless they are told otherwise.
LAZY = ("sgd_update", "sgd_mom_update", "adam_update")
#: A running statistic of BatchNorm takes in a batch's: MXNet does so in the backward pass, in its order.
RUNNING = "running"
#: A gradient is added to what was there, as ``grad_req="add"`` asks.
ADDED = "added"
NORMALIZING = ("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
_DRAWS = ("_random_", "_sample_", "_npi_normal", "_npi_uniform", "_npi_bernoulli", "_npi_choice", "_npi_exponential",
          "_npi_gamma", "_npi_gumbel", "_npi_laplace", "_npi_logistic", "_npi_multinomial", "_npi_pareto",
          "_npi_rayleigh", "_npi_weibull", "_npi_powerd", "_npi_shuffle", "_shuffle", "_image_random")  # fmt: skip


@functools.cache
def draws(name: str) -> bool:
    """Whether an operator draws random numbers.

    >>> draws("_random_normal"), draws("_random_pdf_normal"), draws("Dropout")
    (True, False, False)
    """
    return name.startswith(_DRAWS) and "_pdf_" not in name


@dataclass
class Value:
    """What an array holds between two writes."""

    shape: tuple[int, ...]
    dtype: str
    #: What made it, where no operator of this step did: parameter, variable (of attach_grad), gradient, batch, host
    #: (copied from the host in this step), mxnet, or earlier.
    source: str = ""
    name: str = ""  # of a parameter; of others where it came from
    line: str = ""  # of the program
    array: np.ndarray | None = None  # a copy: of leaves, of heads, gradients and new parameters
    digest: bytes = b""  # of a copy that was let go

    def let_go(self, digest: bool = False) -> None:
        """Forget the copy, or know only whether another is equal to it."""
        if digest and self.array is not None:
            self.digest = hashlib.blake2b(np.ascontiguousarray(self.array).data).digest()
        self.array = None


@dataclass
class Op:
    """An operator that was called.

    ``outputs``: its results, then the new values of inputs that it changed; of a BatchNorm in training the mean and the
    variance of the batch. ``mask``: what a Dropout multiplied with, of copied values. ``view``: it shares memory.
    """

    name: str
    attrs: dict[str, str]
    inputs: list[int]
    outputs: list[int]
    recording: bool
    training: bool
    line: str
    results: int = 1
    mask: np.ndarray | None = None
    view: bool = False

    def one_by_one(self) -> list[Op]:
        """An update of several weights as updates of one each."""
        if not self.name.startswith("multi_"):
            return [self]
        name, count, found = self.name[len("multi_") :], int(self.attrs["num_weights"]), []
        each, states = len(self.inputs) // count, (len(self.outputs) - count) // count
        for at in range(count):
            attrs = {key: value for key, value in self.attrs.items() if key not in ("lrs", "wds", "num_weights")}
            for several in ("lrs", "wds"):
                attrs[several[:-1]] = self.attrs[several].strip("()[] ").split(",")[at].strip()
            inputs = self.inputs[at * each : (at + 1) * each]
            outputs = [self.outputs[at], *self.outputs[count + at * states : count + (at + 1) * states]]
            found.append(replace(self, name=name, attrs=attrs, inputs=inputs, outputs=outputs, results=1))
        return found


@dataclass
class Backward:
    """A backward pass: gradients of ``heads`` by ``variables`` are ``outputs``. retain: the tape is kept."""

    heads: list[int]
    head_grads: list[int | None] | None
    variables: list[int]
    outputs: list[int]
    training: bool
    line: str
    retain: bool = False

    @property
    def inputs(self) -> list[int]:
        """All values that it reads."""
        return [*self.heads, *[g for g in self.head_grads or () if g is not None], *self.variables]


@dataclass
class Step:
    """What was seen between two ends of training steps."""

    values: dict[int, Value] = field(default_factory=dict)
    events: list[Op | Backward] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)  # final values of parameters, by name
    updates: list[dict[str, Any]] = field(default_factory=list)  # what trainers were told
    unknown: list[str] = field(default_factory=list)  # what no graph can hold, with its line
