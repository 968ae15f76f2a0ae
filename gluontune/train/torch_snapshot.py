"""What a training process of PyTorch's engine knows, as arrays on the host, and back.

The parameters lie under the same names as in a checkpoint of MXNet's engine, so ``gt.train.load`` gives the Gluon net
of either; the optimizer's states are of this engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.train.checkpoint import check_same_net, of_second, restore_loader

if TYPE_CHECKING:
    from gluontune.train.torch_session import TorchSession

__all__ = ["capture", "restore"]


def capture(session: TorchSession) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a checkpoint of ``session``, at the end of a step; the arrays are copies."""
    places, optimizer = session.job.names, session.optimizer
    arrays = {f"parameter/{places[n]}": _array(value) for n, value in session.net.state_dict().items()}
    numbers: dict[str, dict[str, float]] = {}
    for name, state in optimizer.states.items():
        for key, value in state.items():
            if isinstance(value, float):
                numbers.setdefault(name, {})[key] = value
            else:
                arrays[f"optimizer/{name}/{key}"] = _array(value)
    if session.gathered:
        for name, parameter in optimizer.parameters.items():
            if parameter.grad is not None:
                arrays[f"gradient/{name}"] = _array(parameter.grad)
    second = session.methods.second
    if second is not None:
        arrays.update({f"average/{place}": _array(value) for place, value in second.held.items()})
    arrays["random/torch"] = session.torch.get_rng_state().numpy().copy()
    return {
        "backend": "torch",
        "step": session.steps_taken,
        "epoch": session.epoch,
        "loader": session.feed.train.state_dict(),
        "optimizer": {"name": optimizer.name, "num_update": optimizer.num_update, "numbers": numbers},
        "gathered": session.gathered,
        "averaged": None if second is None else second.count,
    }, arrays


def restore(
    session: TorchSession, header: dict[str, Any], arrays: dict[str, np.ndarray], path: str, epoch: int | None = None
) -> None:
    """Put what :func:`capture` gave into a session that was just built or reset; ``path`` names it in errors.

    Where the number of ranks was another, so that the data were divided otherwise, ``epoch`` is the one to begin
    anew with; steps are then counted as if all epochs before had been taken by these ranks.

    Raises:
        GluontuneError: it is of another engine, net, optimizer or data set.
    """
    if header.get("backend") != "torch":
        raise GluontuneError(f"{path}: of MXNet's engine: go on with backend='mxnet'")
    library, net = session.torch, session.net
    saved = {k.partition("/")[2]: v for k, v in arrays.items() if k.startswith("parameter/")}
    mine = {session.job.names[name]: value for name, value in net.state_dict().items()}
    check_same_net(mine, saved, path)
    if epoch is None:
        restore_loader(session.feed.train.load_state_dict, header["loader"], session.rank, path)
    else:
        session.feed.train.set_epoch(epoch)
    net.load_state_dict({n: library.from_numpy(saved[p]) for n, p in session.job.names.items() if p in saved})
    optimizer, told = session.optimizer, header["optimizer"]
    if told["name"] != optimizer.name:
        raise GluontuneError(f"{path}: of the optimizer {told['name']!r}, this run has {optimizer.name!r}")
    optimizer.num_update = told["num_update"]
    optimizer.states = {name: dict(told["numbers"].get(name, {})) for name in optimizer.parameters}
    for key, value in arrays.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, state = rest.rpartition("/")
            optimizer.states[name][state] = _like(library, value, optimizer.parameters[name])
        elif kind == "gradient" and epoch is None:
            optimizer.parameters[rest].grad = _like(library, value, optimizer.parameters[rest])
    second = session.methods.second
    if second is not None:
        second.count = header.get("averaged") or 0
        second.held = {place: _like(library, v, session._by_place[place]) for place, v in of_second(arrays).items()}
    library.set_rng_state(library.from_numpy(arrays["random/torch"]))
    session.epoch, session.steps_taken, session.gathered = header["epoch"], header["step"], header["gathered"]
    if epoch is not None:
        steps = epoch * session.batches_per_epoch
        session.epoch, session.steps_taken, session.gathered = epoch, steps, 0
        optimizer.num_update = session.methods.updates.updates(steps)


def _array(tensor: Any) -> np.ndarray:
    return np.array(tensor.detach().cpu().numpy(), order="C")


def _like(library: Any, value: np.ndarray, parameter: Any) -> Any:
    """On the parameter's device, and in its memory order where it has its shape."""
    tensor = library.from_numpy(np.array(value)).to(parameter.device)
    return library.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
