"""Rewrites: changes of a network's layers that keep the mathematics and cure a slow path.

No rewrite is assumed to help: the callers measure (``gt.compute.hybridize``, the ladder).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gluontune.recipe.registry import Registry, resolve


@dataclass(frozen=True)
class Card:
    """A description of a rewrite.

    Args:
        replaces: the layers that it changes, and into what.
        why_slow: the cause, from oneDNN's log or the profiler.
        when_it_helps: and when it does not.
    """

    replaces: str
    why_slow: str
    when_it_helps: str


class Target(NamedTuple):
    """A layer that a rewrite would change: its path in the network, the block, and its new class.

    ``with_next``: its result is the same only together with the target after it.
    """

    path: str
    block: Any
    new_class: type
    with_next: bool = False


@dataclass(frozen=True)
class Rewrite:
    """One rewrite.

    Args:
        name: in recipes.
        card: the replaced layers, the cause, the gain.
        find: ``"module:function"``, which returns the targets for a network and the arrays of a forward pass
            (``{id(block): Seen}``, empty without sample inputs).
        devices: with the slow path.
        nothing: one sentence for a network without such layers.
        when: ``"module:function"``, which returns whether this process has the slow path; "" is always.
    """

    name: str
    card: Card
    find: str
    devices: tuple[str, ...]
    nothing: str
    when: str = ""

    def applies_here(self) -> bool:
        """Whether this process can have the slow path."""
        return not self.when or bool(resolve(self.when)())

    def targets(self, net: Any, seen: dict[int, Any]) -> list[Target]:
        """The layers of ``net`` that this rewrite would change."""
        return resolve(self.find)(net, seen)


REWRITES: Registry[Rewrite] = Registry("rewrite")


def _add(name: str, nothing: str, *, devices: tuple[str, ...] = ("cpu",), when: str = "", **card: str) -> None:
    """Add a rewrite whose targets are those of the function of its name in ``_rewrite_targets``."""
    find = f"gluontune.compute._rewrite_targets:{name.replace('-', '_')}"
    REWRITES.add(name, Rewrite(name, Card(**card), find, devices, nothing, when))


_add(
    "whole-sequential",
    "no plain Sequential whose layers are all hybrid",
    devices=("cpu", "gpu"),
    replaces="a plain Sequential whose layers are all hybrid → the HybridSequential of the same layers",
    why_slow="hybridize() compiles each layer of a plain Sequential alone: Python calls one graph after the "
    "other, no memory is planned over their borders, and rewrites of the whole graph do not reach it",
    when_it_helps="nets written as nn.Sequential() and compiled, the more the smaller their layers are; a "
    "block with a forward() of its own stays plain, and so does a Sequential that holds one",
)
_add(
    "pool-to-mean",
    "no average pooling with 1×1 output",
    replaces="GlobalAvgPool2D, and AvgPool2D whose window is the whole map → mean over the map",
    why_slow="oneDNN returns the gradient of a pooling with 1×1 output in a layout (acdB16b) for which it has only "
    "reference kernels: the pooling and every BatchNorm backward up to the next convolution run 50–200 times slower",
    when_it_helps="hybridized training on a CPU where BatchNorm or an activation stands before the "
    "pooling; in imperative mode and for inference it changes little",
)
_add(
    "max-to-pick",
    "no GlobalMaxPool1D over float32 (a sample input is needed to see it)",
    replaces="GlobalMaxPool1D → a look-up of the place of the largest value, which gets the whole gradient, as before",
    why_slow="oneDNN has no fast kernel for the gradient of a max pooling whose window is a long sequence",
    when_it_helps="convolutional text models (TextCNN) on a CPU: 7 times faster for 500 words, nothing for 20",
)
_add(
    "pad-channels",
    "no Conv2D over 1 or 3 channels",
    replaces="a Conv2D over 1 or 3 channels → the same over 4, the added ones zero in data and weight",
    why_slow="oneDNN's blocked kernels want a multiple of four channels: over 3 a bfloat16 convolution "
    "runs as gemm, and its output layout makes the BatchNorm after it slow too",
    when_it_helps="bfloat16 on a CPU (8 % of a ResNet-20 step); in float32 oneDNN has a kernel for 3 channels, "
    "and padding made the same step 5 % slower",
)
_add(
    "narrow-in-float32",
    "no Conv2D with channels that are no multiples of 32 (a sample input is needed to see it)",
    when="gluontune.compute.process:amx_bfloat16",
    replaces="Conv2D whose channels are no multiples of 32 → the same in float32, in a bfloat16 process",
    why_slow="AMX's tiles hold 32 channels; for fewer oneDNN pads the weights, which MXNet refuses, so "
    "that the convolution runs forward with AMX and backward without, in two layouts, and the BatchNorm "
    "between them on a reference kernel, 100 times slower",
    when_it_helps="bfloat16 with AMX, in networks that begin with 16 channels or so; float32 is more "
    "exact, never less; without AMX it changes nothing worth having",
)
_add(
    "fuse-bn-relu",
    "no BatchNorm between a convolution and a relu in a HybridSequential (a sample input is needed to see it)",
    replaces="a convolution's BatchNorm and the Activation('relu') after it in a HybridSequential → one kernel",
    why_slow="the relu reads and writes the whole map once more, forward and backward, and memory is "
    "slower than arithmetic",
    when_it_helps="training on a CPU, a little everywhere: 1–3 % of a ResNet-20 step; "
    "layers that a network calls as functions (ResNet V2) are not reached, and a BatchNorm over anything "
    "but a convolution's multiple of 16 channels is left alone: there the fused gradient can be wrong",
)
_add(
    "order-sums",
    "no sum whose second operand alone could be overwritten (a sample input is needed to see it)",
    replaces="residual + branch → branch + residual, in the compiled graph",
    why_slow="MXNet computes a sum into the memory of an operand that nobody reads any more; its oneDNN operator can "
    "do that with the first operand only, and for the second it computes elsewhere and then copies the whole map",
    when_it_helps="compiled training on a CPU of residual nets written that way round (the ResNets of both zoos) in "
    "float32; imperative mode traces no graph, and in bfloat16 casts stand before the sum: neither is reached",
)
_add(
    "keep-blocks",
    "no GlobalAvgPool2D over a multiple of 16 channels straight after a sum (a sample input is needed to see it)",
    replaces="GlobalAvgPool2D after a residual sum → a depthwise convolution by 1, then the mean",
    why_slow="the gradient of a mean comes in the plain layout, and goes back through relus and sums in it: "
    "each reorders its other, blocked operand, up to the first convolution in every path",
    when_it_helps="compiled training on a CPU of residual nets with a relu after the last sum (ResNet v1); "
    "it goes with pool-to-mean, which it contains",
)
