"""What a rung of the ladder is, and what it may know of the machine and the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gluontune import runtime
from gluontune.recipe import Recipe
from gluontune.runtime import pytorch

__all__ = ["Rung", "Site", "Variant"]


@dataclass(frozen=True)
class Site:
    """What a rung may know before it chooses: the machine and the job.

    Args:
        cores: usable cores (affinity and quota).
        gpus: GPUs that this mxnet can run on.
        bf16: whether the CPU multiplies bfloat16 in hardware.
        splits: whether the data are gluontune's (a named data set) rather than the job's Gluon datasets.
        fits_memory: whether the decoded training images fit in half of the usable memory.
        rewrites: names of the rewrites that have something to do in this net on this device.
        num_train: training images in one epoch.
        amx: whether the CPU has AMX and the kernel gives it to this process.
        step: ``usual`` (net and loss), ``step`` (the job's own) or ``updates`` (the job's own, updates included).
        metric: what validation measures, such as ``accuracy``.
        torch: whether PyTorch is installed.
        steady: whether a sample of the job's Gluon datasets is the same each time it is read.
    """

    cores: int
    gpus: int
    bf16: bool
    splits: bool
    fits_memory: bool
    rewrites: tuple[str, ...]
    num_train: int
    amx: bool = False
    step: str = "usual"
    metric: str = "accuracy"
    torch: bool = False
    steady: bool = False

    @classmethod
    def of(cls, ready: Mapping[str, Any], machine: Mapping[str, Any], recipe: Recipe) -> Site:
        """From what a training process says when it is ready, and the facts of the machine.

        Args:
            ready: the event; empty where the process never started, and what it would have said is guessed.
        """
        pixels = ready.get("image_bytes") or 0
        limit = (runtime.memory_limit_mib() or 0) * 2**20
        num_train = int(ready.get("num_train", 0))
        flags = set(machine.get("cpu", {}).get("flags", []))
        return cls(
            cores=runtime.usable_cores(),
            gpus=int(ready.get("gpus", 0)),
            bf16=bool({"avx512_bf16", "amx_bf16"} & flags),
            splits=bool(ready.get("splits", recipe.job is None)),
            fits_memory=bool(pixels) and num_train * pixels * 1.3 < limit / 2,
            rewrites=tuple(ready.get("rewrites", ())),
            num_train=num_train,
            amx=runtime.amx_support(flags).level == "granted",
            step=str(ready.get("step", "usual")),
            metric=str((ready.get("metric") or {}).get("name", "accuracy")),
            torch=pytorch.installed(),
            steady=bool(ready.get("steady")),
        )


@dataclass(frozen=True)
class Variant:
    """One way to climb a rung.

    Args:
        label: how the report calls it. changes: recipe fields.
        rank: where there is no time for all variants, those of the lowest ranks are tried.
    """

    label: str
    changes: Mapping[str, Any]
    rank: int = 0


@dataclass(frozen=True)
class Rung:
    """A step of the ladder.

    Args:
        name: as in ``ladder.json``.
        sentence: what it changes, for the learner.
        requires: the reason why it cannot run here, or None.
        variants: what to try on top of the best recipe so far.
        by_time: its variants change what is learned, so they count by the time to an accuracy, not by images a second.
        pace: climbed at this one alone, unless it is asked for by name; None: at each.
    """

    name: str
    sentence: str
    requires: Callable[[Recipe, Site], str | None]
    variants: Callable[[Recipe, Site], list[Variant]]
    by_time: bool = False
    pace: str | None = None
