"""What a training process knows, as arrays on the host, and back.

Random numbers: MXNet's generators cannot be read. So with checkpoints every step begins with generators that
are seeded from (seed, rank, step), where a net may draw from them at all; a resumed run then draws what an
uninterrupted one draws.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.optim import states
from gluontune.runtime import mxnet, set_data
from gluontune.train.arrays import to_numpy
from gluontune.train.checkpoint import check_same_net, of_second, restore_loader

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["capture", "may_draw", "parameters", "restore", "seed_step", "weights_of"]

_QUIET = ("mxnet.gluon.", "gluoncv.", "gluontune.")  # their blocks draw nothing unless they say "drop"


def capture(session: Session) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a checkpoint of ``session``, at the end of a step; the arrays are copies."""
    headers, named = {}, {}
    for place, (name, trainer) in enumerate(session.trainers.items()):
        headers[name], arrays = states.capture(trainer)
        own = "optimizer" if place == 0 else f"optimizer.{name}"
        named.update({f"{own}/{key}": value for key, value in arrays.items()})
    named.update({f"parameter/{name}": array for name, array in weights_of(session).items()})
    for place, array in enumerate(session.kind.state()):
        named[f"state/{place}"] = to_numpy(array)
    second = session.methods.second
    if second is not None:
        named.update({f"average/{name}": to_numpy(array) for name, array in second.held.items()})
    kind, keys, position, has_gauss, cached = np.random.get_state()
    named["random/numpy"] = np.asarray(keys)
    return {
        "step": session.steps_taken,
        "epoch": session.epoch,
        "loader": session.feed.train.state(),
        "optimizer": next(iter(headers.values())),
        "optimizers": headers,
        "state_parts": session.kind.state_parts(),
        "scaler": session.scaler.scaler.state_dict() if session.scaler else None,
        "averaged": None if second is None else second.count,
        "random": {"python": random.getstate(), "numpy": [kind, position, has_gauss, cached]},
    }, named


def weights_of(session: Session) -> dict[str, np.ndarray]:
    """Copies of all parameters, by name, of the first context.

    They are read when MXNet is at rest: a convolution in predict mode orders its weight anew for oneDNN, and who copies
    it meanwhile gets other numbers.
    """
    session.mx.nd.waitall()
    return {name: p.data(session.ctxs[0]).asnumpy() for name, p in parameters(session.net)}


def restore(session: Session, header: dict[str, Any], arrays: dict[str, np.ndarray], path: str) -> None:
    """Put what :func:`capture` gave into a session that was just built or reset; ``path`` names it in errors.

    Raises:
        GluontuneError: it is of another net, optimizer, data set or number of ranks.
    """
    if header.get("backend", "mxnet") != "mxnet":
        raise GluontuneError(f"{path}: of PyTorch's engine: go on with backend='torch', or take its net: gt.train.load")
    mine = dict(parameters(session.net))
    saved = {k.partition("/")[2]: v for k, v in arrays.items() if k.startswith("parameter/")}
    check_same_net(mine, saved, path)
    restore_loader(session.feed.train.restore, header["loader"], session.rank, path)
    for name, parameter in mine.items():
        set_data(parameter, session.array(saved[name]))
    headers = header.get("optimizers") or {"net": header["optimizer"]}
    if list(headers) != list(session.trainers):
        raise GluontuneError(
            f"{path}: of a job that updates {', '.join(headers)}; this one updates {', '.join(session.trainers)}"
        )
    for place, (name, trainer) in enumerate(session.trainers.items()):
        start = "optimizer/" if place == 0 else f"optimizer.{name}/"
        own = {k.partition("/")[2]: v for k, v in arrays.items() if k.startswith(start)}
        states.restore(trainer, headers[name], own, path)
    held = sorted((k for k in arrays if k.startswith("state/")), key=lambda k: int(k.partition("/")[2]))
    session.kind.set_state([session.array(arrays[k]) for k in held], header.get("state_parts", []))
    second = session.methods.second
    if second is not None:
        second.count = header.get("averaged") or 0
        second.held = {name: session.array(array) for name, array in of_second(arrays).items()}
    if session.scaler and header["scaler"]:
        session.scaler.scaler.load_state_dict(header["scaler"])
    version, internal, gauss = header["random"]["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, *rest = header["random"]["numpy"]
    np.random.set_state((kind, arrays["random/numpy"], *rest))
    session.epoch, session.steps_taken = header["epoch"], header["step"]


def parameters(net: Any) -> list[tuple[str, Any]]:
    """The parameters by their place in the net: Gluon's own names count on in each process."""
    return sorted(net._collect_params_with_prefix().items())


def may_draw(net: Any) -> bool:
    """Whether a forward pass of ``net`` may take numbers from MXNet's generators.

    Blocks of Gluon, GluonCV and gluontune do so only for dropout; nothing is known of others.

    >>> nn = mxnet().gluon.nn
    >>> plain, dropping = nn.HybridSequential(), nn.HybridSequential()
    >>> plain.add(nn.Dense(2)); dropping.add(nn.Dense(2), nn.Dropout(0.5))
    >>> may_draw(plain), may_draw(dropping)
    (False, True)
    """
    kind = type(net)
    if not kind.__module__.startswith(_QUIET) or "drop" in kind.__name__.lower():
        return True
    return any(may_draw(child) for child in net._children.values())


def seed_step(*key: int) -> None:
    """Seed Python's, numpy's and MXNet's generators for one step (about 2 ms, nearly all of it MXNet's)."""
    number = int(np.random.SeedSequence(key).generate_state(1)[0]) & 0x7FFFFFFF
    random.seed(number)
    np.random.seed(number)
    mxnet().random.seed(number)
