"""A rung of the ladder, its variants, and the site: facts of the machine and the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from gluontune import runtime
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Registry
from gluontune.runtime import pytorch


@dataclass(frozen=True)
class Site:
    """Facts of the machine and the job from which a rung chooses its variants."""

    cores: int  # usable ones (affinity and quota)
    gpus: int  # that this mxnet can run on
    bf16: bool  # whether the CPU multiplies bfloat16 in hardware
    splits: bool  # whether the data are gluontune's (a named data set) rather than the job's Gluon datasets
    fits_memory: bool  # whether the decoded training images fit in half of the usable memory
    rewrites: tuple[str, ...]  # that change this net on this device
    num_train: int  # images in one epoch
    amx: bool = False  # whether the CPU has it and the kernel grants it to this process
    step: str = "usual"  # net and loss; "step": the job's own; "updates": the job's own, updates included
    metric: str = "accuracy"  # of the validation
    torch: bool = False  # whether PyTorch is installed
    steady: bool = False  # whether a sample of the job's Gluon datasets is the same each time it is read

    @classmethod
    def of(cls, ready: Mapping[str, Any], machine: Mapping[str, Any], recipe: Recipe) -> Site:
        """The site, from a process's ready event (guesses, if it is empty) and the facts of the machine."""
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
    """One way to climb a rung, or one setting of a knob."""

    label: str  # its name in the report
    changes: Mapping[str, Any]  # recipe fields
    rank: int = 0  # the lowest ranks are tried if there is no time for all variants
    remark: str = ""  # a caveat for the reader
    missing: str = ""  # the reason why it cannot be tried here

    def on(self, recipe: Recipe) -> Recipe:
        """``recipe`` with this setting; its ``env`` is added to the recipe's.

        >>> Variant("x", {"env": {"B": "2"}}).on(Recipe(env={"A": "1"})).env
        {'A': '1', 'B': '2'}
        """
        env = {"env": {**recipe.env, **self.changes["env"]}} if "env" in self.changes else {}
        return recipe.override(**{**self.changes, **env})


def label_of(label: str, epochs: float) -> str:
    """A variant's name for another length.

    >>> label_of("batch 64, Muon, 0.475 epochs", 0.332), label_of("batch 128", 0.7)
    ('batch 64, Muon, 0.332 epochs', 'batch 128, 0.7 epochs')
    """
    return f"{re.sub(', [0-9.e-]+ epochs$', '', label)}, {epochs:g} epochs"


Requires = Callable[[Any, Any], Optional[str]]
Variants = Callable[[Any, Any], list[Variant]]


@dataclass(frozen=True)
class Rung:
    """A step of the ladder, or a knob of the search."""

    name: str  # as in ladder.json, or of the stage in tune.json
    sentence: str  # its change in words, for the learner
    requires: Requires  # the reason why it cannot run here, or None
    variants: Variants  # the changes to try on top of the best recipe so far
    by_time: bool = False  # judged by the time to an accuracy, because its variants change what is learned
    pace: str | None = None  # the only pace at which it is climbed, unless it is requested by name; None: at each
    slot: str = ""  # knobs of the same slot replace each other's choice; "": a slot of its name
    exists: Callable[[Site], bool] = lambda site: True  # whether the machine has it; else the search has no row for it
    owns: tuple[str, ...] = ()  # fields that it changes for its own sake; set back, they leave it out of a recipe
    instead: Mapping[str, Any] = field(default_factory=dict)  # how it is tried where these fields leave it no place

    def offers(self, recipe: Recipe, site: Site) -> tuple[list[Variant], str | None]:
        """The variants, in place of what has taken theirs where need be; or the reason why there are none."""
        reason = self.requires(recipe, site)
        if reason is None:
            return self.variants(recipe, site), None
        other = recipe.override(**self.instead)
        if not self.instead or self.requires(other, site) is not None:
            return [], reason
        words = " in place of " + ", ".join(f"{name} {getattr(recipe, name)}" for name in self.instead)
        found = self.variants(other, site)
        return [replace(v, label=v.label + words, changes={**self.instead, **v.changes}) for v in found], None

    def left_out(self, recipe: Recipe, naive: Recipe) -> dict[str, Any]:
        """The naive values of the fields in which ``recipe`` has this rung; empty if it has it not."""
        return {f: getattr(naive, f) for f in self.owns if getattr(recipe, f) != getattr(naive, f)}


def always(recipe: Recipe, site: Site) -> str | None:
    return None


def adding_to(registry: Registry[Rung]) -> Callable[..., Callable[[Variants], Variants]]:
    """A decorator, with the arguments of :class:`Rung`, that registers a function of variants as a rung."""

    def named(name: str, sentence: str, requires: Requires = always, **how: Any) -> Callable[[Variants], Variants]:
        def add(variants: Variants) -> Variants:
            registry.add(name, Rung(name, sentence, requires, variants, **how))
            return variants

        return add

    return named


def processes_of(recipe: Recipe) -> int:
    return 1 if recipe.engine == "local" else recipe.num_devices


def effect_of(recipe: Recipe) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields without ``runtime`` and ``env``, and the environment that results from these two."""
    fields = recipe.to_dict()
    kind, env = fields.pop("runtime"), fields.pop("env")
    child = runtime.child_env(kind, env, processes=processes_of(recipe))
    return fields, runtime.applied(child, {})


def in_short(recipe: Recipe) -> Recipe:
    """The same recipe with ``runtime: tuned`` in place of the variables that it sets, if that is equivalent.

    >>> settings = runtime.launch_settings().env
    >>> short = in_short(Recipe(env=settings))
    >>> short.runtime, short.env
    ('tuned', {})
    """
    settings = runtime.launch_settings(processes_of(recipe)).env
    rest = {k: v for k, v in recipe.env.items() if settings.get(k) != v}
    short = recipe.override(runtime="tuned", env=rest)
    return short if effect_of(short) == effect_of(recipe) else recipe
