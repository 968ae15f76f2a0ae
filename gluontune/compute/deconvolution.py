"""Deconvolutions of MXNet 1.9.1 on a CPU whose backward pass ends the process, and another kernel for them.

oneDNN's kernel writes the weight's gradient to memory that is allocated only if it is a parameter's own. Where it goes
on (the weight is computed or cast, or used twice in a pass), it writes to nowhere. In float64 MXNet has its own kernel.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError

_WHAT = "a deconvolution on a CPU, whose weight is computed or used more than once in a pass (docs/mxnet-faults.md)"
_TOLD = f"deconvolutions are computed in float64, as MXNet's float32 kernel would end the process: {_WHAT}"
_INPUTS = ("data", "weight", "bias")
_SHARED = "IOLogicalSwapDesc"  # what MXNet says in prediction mode where a convolution has the same weight
_plain: dict[tuple[Any, str], Any] = {}
_wide, _amp = False, False  # whether all of them are in float64, and whether AMP casts to bfloat16


class _Endangered(Exception):
    """A backward pass would end the process."""


def told_of_deconvolutions() -> list[str]:
    """A sentence, where this process computes deconvolutions in float64."""
    return [_TOLD] if _wide else []


def endangered(heads: Any) -> bool:
    """Whether the backward pass of recorded arrays would end the process.

    Raises:
        GluontuneError: it would, and nothing helps: a deconvolution of three dimensions.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> layer = mx.gluon.nn.Conv2DTranspose(1, 2, in_channels=1)
    >>> layer.initialize()
    >>> with mx.autograd.record():
    ...     once = layer(mx.nd.ones((1, 1, 2, 2)))
    ...     twice = layer(once)
    >>> endangered(once), endangered(twice)
    (False, True)
    """
    from gluontune.runtime import mxnet

    mx = mxnet()
    found = [a for a in flat(heads) if isinstance(a, mx.nd.NDArray) and a.context.device_type == "cpu"]
    if _wide or any(np.dtype(a.dtype) == np.float64 for a in found):
        return False
    kernels = []
    for array in found:
        with contextlib.suppress(mx.base.MXNetError):  # not recorded
            nodes = json.loads(mx.autograd.get_symbol(array).tojson())["nodes"]
            uses = Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"])
            for node in nodes:
                if node["op"] == "Deconvolution" and goes_on(nodes, uses, node["inputs"][1]):
                    kernels.append(ast.literal_eval(node["attrs"]["kernel"]))
    if any(len(kernel) == 3 for kernel in kernels):
        raise GluontuneError(f"MXNet has no backward pass of three dimensions for {_WHAT}")
    return bool(kernels)


def goes_on(nodes: Sequence[Mapping[str, Any]], uses: Mapping[Any, int], entry: Sequence[int]) -> bool:
    """Whether the gradient of a node's output goes on, or is summed: it is no variable of one use.

    Args:
        nodes: of a symbol's JSON. uses: by node and output.
    """
    return nodes[entry[0]]["op"] != "null" or uses[tuple(entry[:2])] > 1


def refuse_endangered(heads: Any) -> None:
    """Raise a GluontuneError if the backward pass of recorded arrays would end the process."""
    if endangered(heads):
        raise GluontuneError(f"MXNet's backward pass would end the process: {_WHAT}")


def explored(run: Callable[[], Any], record: bool = True) -> Any:
    """The result of ``run``, a first pass on a CPU; where a backward pass of it would end the process, that in float64.

    Deconvolutions are computed in float64 from then on, as long as the process lives.

    Args:
        record: whether its result is what a backward pass begins with; otherwise ``run`` makes backward passes itself.
    """
    from gluontune.runtime import mxnet

    mx = mxnet()
    with contextlib.suppress(_Endangered):
        try:
            with mx.autograd.record(train_mode=False) if record else _asking(mx):
                found = run()
            mx.nd.waitall()
        except mx.base.MXNetError as error:
            if _SHARED not in str(error):
                raise
        else:
            if not record or not endangered(found):
                return found
    _replace(float64=True)
    return run()


@contextlib.contextmanager
def _asking(mx: Any) -> Iterator[None]:
    """A context in which each backward pass that would end the process raises :class:`_Endangered`."""
    places = [(mx.autograd, mx.autograd.backward), (mx.nd.NDArray, mx.nd.NDArray.backward)]

    def asking(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def ask(heads: Any, *args: Any, **named: Any) -> Any:
            if endangered(heads):
                raise _Endangered
            return backward(heads, *args, **named)

        return ask

    for owner, backward in places:
        owner.backward = asking(backward)
    try:
        yield
    finally:
        for owner, backward in places:
            owner.backward = backward


def keep_weights() -> None:
    """In a process with AMP, cast a deconvolution's input to float32, and no parameter: that would end the process."""
    _replace(float64=False)


def _replace(float64: bool) -> None:
    global _wide, _amp
    from gluontune.runtime import mxnet

    mx = mxnet()
    _wide, _amp = _wide or float64, _amp or not float64

    def cast(value: Any) -> Any:
        symbol = isinstance(value, mx.sym.Symbol)
        if not symbol and not isinstance(value, mx.nd.NDArray):
            return value
        if _amp and (value.get_children() is not None if symbol else np.dtype(value.dtype) != np.float32):
            value = (mx.sym if symbol else mx.nd).amp_cast(value, dtype="float32")
        return value.astype("float64") if float64 else value

    def casting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def run(*args: Any, **named: Any) -> Any:
            given = {name: cast(value) if name in _INPUTS else value for name, value in named.items()}
            found = plain(*map(cast, args), **given)
            return found.astype("float32") if float64 else found

        return run

    for module in (mx.nd, mx.nd.op, mx.sym, mx.sym.op, mx.npx, mx.nd.numpy_extension, mx.sym.numpy_extension):
        for name in ("Deconvolution", "deconvolution"):
            if hasattr(module, name):
                plain = _plain.setdefault((module, name), getattr(module, name))
                setattr(module, name, casting(plain))
