"""A session's net made ready to train: initialized, rewritten, in its mode, with its input stage."""

from __future__ import annotations

from typing import Any

from gluontune import compute
from gluontune.errors import GluontuneError
from gluontune.train.checks import explain_shapes

__all__ = ["prepare_net"]


def prepare_net(session: Any) -> tuple[Any, list[str]]:
    """The net of the session's job, its parameters on every context, and the rewrites that apply to it.

    Args:
        session: one whose data and devices are there.

    Raises:
        GluontuneError: the job's ``net()`` gives no Gluon block, or one that does not fit its images.
    """
    mx, recipe = session.mx, session.recipe
    net = session.job.net()
    if not isinstance(net, mx.gluon.Block):
        raise GluontuneError(f"net() of the job returned {type(net).__name__}; return a Gluon Block")
    session._seed()  # whatever net() has drawn
    if any(not p._data and not p._deferred_init for p in net.collect_params().values()):
        net.initialize(mx.init.Xavier(magnitude=2), ctx=session.ctxs)
    sample = session.feed.sample(session.ctxs[0])
    with explain_shapes(sample.shape):
        net(sample)
    rewrites = compute.rewrites_for(net, sample, device=session.device)
    compute.apply_rewrites(net, recipe.rewrites, sample)
    if recipe.dtype == "float16":
        net.cast("float16")
    compute.set_mode(net, recipe.hybridize)
    if session.feed.stage is not None:
        net = compute.with_input_stage(net, session.feed.stage)
        compute.set_mode(net, recipe.hybridize)
    return net, rewrites
