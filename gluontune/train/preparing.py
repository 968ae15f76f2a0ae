"""A session's nets made ready to train: initialized, rewritten, in their mode, with their input stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gluontune import compute, rules
from gluontune.errors import GluontuneError, UsageError
from gluontune.train.arrays import hint_of
from gluontune.train.method_steps import initialize, refuse_step
from gluontune.train.userfile import blaming

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["Prepared", "needs_values", "prepare_nets"]


@dataclass
class Prepared:
    """The nets of a job.

    Args:
        net: a block with all parameters. nets: what the job's step takes: the same, or a dict of blocks.
        rewrites: names of the rewrites that have something to do in it.
    """

    net: Any
    nets: Any
    rewrites: list[str]


def prepare_nets(session: Session) -> Prepared:
    """The nets of the session's job, their parameters on every context.

    Args:
        session: one whose data and devices are there.

    Raises:
        GluontuneError: the job's ``net()`` gives no Gluon block, or one that does not fit its samples.
        UsageError: rewrites are asked for, and what the nets take is known to the job's ``step`` only.
    """
    mx, recipe, job = session.mx, session.recipe, session.job
    made = job.net()
    several = isinstance(made, Mapping)
    nets = {str(name): block for name, block in made.items()} if several else {"net": made}
    for name, block in nets.items():
        if not isinstance(block, mx.gluon.Block):
            which = f"for {name!r} " if several else ""
            raise GluontuneError(
                f"{job.place('net')}net() of the job returned {which}{type(block).__name__}; return a Gluon Block"
            )
    if not nets:
        raise GluontuneError(f"{job.place('net')}net() of the job returned no net")
    session.seed()  # whatever net() has drawn
    for block in nets.values():
        if needs_values(block):
            block.initialize(compute.FirstValues(), ctx=session.ctxs)
        else:
            block.collect_params().reset_ctx(session.ctxs)
        compute.refuse_np(block)
    if several or job.step is not None:
        refuse_step(recipe, job.place("step"), "what the nets take is known to the job's step() only", "net")
        if recipe.rewrites:
            raise UsageError(
                f"recipe field rewrites={list(recipe.rewrites)}: {job.place('step')}what the nets take is known to the "
                "job's step() only, and a rewrite must be tried; use rewrites=[]"
            )
        # Compiled later, by try_one_batch: Gluon draws first values layer by layer, compiled in another order.
        net = _together(mx, nets) if several else made
        return Prepared(net, nets if several else made, [])
    inputs = session.feed.inputs(session.ctxs[0])
    with blaming(job.file, "the net", job.function("net"), f"a batch of shape {_shapes(inputs)}{hint_of(inputs)}"):
        made(*inputs)
        mx.nd.waitall()
    with rules.naming(recipe, "methods", "job" if recipe.job else "net"):
        initialize(recipe, session.feed, job, made)
    rewrites = compute.rewrites_for(made, *inputs, device=session.device)
    if recipe.rewrites:
        compute.apply_rewrites(made, recipe.rewrites, *inputs)
    if recipe.dtype == "float16":
        made.cast("float16")
    compute.set_mode(made, recipe.hybridize)
    if session.feed.stage is not None:
        made = compute.with_input_stage(made, session.feed.stage)
        compute.set_mode(made, recipe.hybridize)
    return Prepared(made, made, rewrites)


def needs_values(net: Any) -> bool:
    """Whether a parameter of ``net`` has not been initialized."""
    return any(not p._data and not p._deferred_init for p in net.collect_params().values())


def _together(mx: Any, nets: dict[str, Any]) -> Any:
    """A block that holds the nets under their names; it computes nothing itself."""
    whole = mx.gluon.Block(prefix="")
    for name, block in nets.items():
        whole.register_child(block, name)
    return whole


def _shapes(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str(tuple(getattr(x, "shape", ()))) for x in inputs)
