"""What the search turns: each knob offers options on top of the best recipe so far.

To add a knob, add one entry here. Options stand in order from the smallest change to the largest,
because of options that measure alike the first is taken.

The memory layout (NHWC or NCHW) is no knob: MXNet 1.9 convolves NCHW only on a CPU, and on a GPU the
layout is fixed in the net's own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune import runtime
from gluontune.errors import GluontuneError
from gluontune.ladder.rung import Site
from gluontune.ladder.rungs import RUNGS
from gluontune.recipe import Recipe
from gluontune.registry import Registry

__all__ = ["KNOBS", "Knob", "Option", "batch_size_knob", "in_short", "options_of"]


@dataclass(frozen=True)
class Option:
    """One setting of a knob.

    Args:
        label: how tables call it.
        changes: recipe fields; ``env`` is added to the recipe's, not put in its place.
        remark: what else a reader must know, or "".
        missing: why it cannot be tried here, or "".
    """

    label: str
    changes: Mapping[str, Any]
    remark: str = ""
    missing: str = ""

    def on(self, recipe: Recipe) -> Recipe:
        """``recipe`` with this option.

        >>> Option("x", {"env": {"B": "2"}}).on(Recipe(env={"A": "1"})).env
        {'A': '1', 'B': '2'}
        """
        changes = dict(self.changes)
        if "env" in changes:
            changes["env"] = {**recipe.env, **changes["env"]}
        return recipe.override(**changes)


@dataclass(frozen=True)
class Knob:
    """One part of the recipe that is searched.

    Args:
        name: of the stage in ``tune.json``.
        slot: knobs of the same slot replace each other's choice.
        sentence: what it turns.
        requires: why it cannot be turned here, or None.
        options: what to try on top of a recipe.
        exists: whether the machine has it at all; where not, the search has no row for it.
    """

    name: str
    slot: str
    sentence: str
    requires: Callable[[Recipe, Site], str | None]
    options: Callable[[Recipe, Site], list[Option]]
    exists: Callable[[Site], bool] = lambda site: True


KNOBS: Registry[Knob] = Registry("knob")


def _always(recipe: Recipe, site: Site) -> str | None:
    return None


def _knob(
    name: str,
    sentence: str,
    requires: Callable[[Recipe, Site], str | None] = _always,
    slot: str = "",
    exists: Callable[[Site], bool] = lambda site: True,
) -> Callable[[Callable[[Recipe, Site], list[Option]]], Callable[[Recipe, Site], list[Option]]]:
    def add(options: Callable[[Recipe, Site], list[Option]]) -> Callable[[Recipe, Site], list[Option]]:
        KNOBS.add(name, Knob(name, slot or name, sentence, requires, options, exists))
        return options

    return add


def _processes(recipe: Recipe) -> int:
    return 1 if recipe.engine == "local" else recipe.num_devices


@_knob("threads", "OpenMP threads of each training process")
def _threads(recipe: Recipe, site: Site) -> list[Option]:
    ranks = _processes(recipe)
    found: dict[int, Option] = {}
    for cores in (None, max(1, site.cores // 2), site.cores):
        env = runtime.launch_settings(ranks, cores=cores, allocator="none").env
        count = int(env["OMP_NUM_THREADS"])
        found.setdefault(count, Option(f"{count} thread{'s' if count > 1 else ''}", {"env": env}))
    return list(found.values())


@_knob("allocator", "how the process keeps and gives back memory")
def _allocator(recipe: Recipe, site: Site) -> list[Option]:
    found = []
    threads = runtime.launch_settings(allocator="none").env
    for name in ("glibc", "tcmalloc", "jemalloc"):
        label = "glibc, tuned" if name == "glibc" else name
        try:
            env = runtime.launch_settings(allocator=name).env
        except GluontuneError as error:
            found.append(Option(label, {}, missing=str(error)))
            continue
        found.append(Option(label, {"env": {k: v for k, v in env.items() if k not in threads}}))
    return found


@_knob("compute", "execution mode, rewrites and data type, which depend on each other")
def _compute(recipe: Recipe, site: Site) -> list[Option]:
    """Every mode in every type: bfloat16 without its rewrites can be slower than float32."""
    modes = [Option("imperative", {"hybridize": "imperative", "rewrites": ()})]
    modes += [Option(v.label, {"rewrites": (), **v.changes}) for v in RUNGS["hybridized"].variants(recipe, site)]
    precision = RUNGS["mixed-precision"]
    lacking = precision.requires(recipe, site)
    if lacking:
        return [*modes, Option("16 bits", {}, missing=lacking)]
    dtype = precision.variants(recipe, site)[0].changes["dtype"]
    if recipe.dtype == dtype:
        return [Option(f"float32, {o.label}", {**o.changes, "dtype": "float32"}) for o in modes] + modes
    remark = "results change in the third digit: compare the accuracy"
    return modes + [Option(f"{dtype}, {o.label}", {**o.changes, "dtype": dtype}, remark) for o in modes]


def _several_rewrites(recipe: Recipe, site: Site) -> str | None:
    return None if len(recipe.rewrites) > 1 else "the best recipe so far has fewer than two rewrites"


@_knob("rewrites", "the rewrites, each left out", _several_rewrites, slot="compute")
def _rewrites(recipe: Recipe, site: Site) -> list[Option]:
    fields = ("hybridize", "dtype")
    found = []
    for name in recipe.rewrites:
        changes = {f: getattr(recipe, f) for f in fields}
        changes["rewrites"] = tuple(r for r in recipe.rewrites if r != name)
        found.append(Option(f"without {name}", changes))
    return found


def _in_bfloat16(recipe: Recipe, site: Site) -> str | None:
    return None if recipe.dtype == "bfloat16" else "the best recipe so far does not compute in bfloat16"


@_knob("amx", "Intel's matrix unit, which oneDNN leaves off", _in_bfloat16, exists=lambda site: site.amx)
def _amx(recipe: Recipe, site: Site) -> list[Option]:
    names = tuple(dict.fromkeys((*recipe.rewrites, "narrow-in-float32")))
    narrow = {"env": runtime.AMX_ENV, "rewrites": names}
    return [Option("AMX", {"env": runtime.AMX_ENV}), Option("AMX, narrow in float32", narrow)]


@_knob("loader", "who decodes and augments, and with how many workers")
def _loader(recipe: Recipe, site: Site) -> list[Option]:
    found = []
    for rung in (RUNGS["multi-worker"], RUNGS["records"]):
        if rung.requires(recipe, site) is None:
            found += [Option(v.label, v.changes) for v in rung.variants(recipe, site)]
    return found


def batch_size_knob(sizes: Sequence[int]) -> Knob:
    """The knob that is turned only when asked: another batch size trains another model."""
    remark = "another batch size converges differently: compare the accuracy, not the throughput alone"

    def options(recipe: Recipe, site: Site) -> list[Option]:
        return [Option(f"batch {n}", {"batch_size_per_device": n}, remark) for n in sizes]

    return Knob("batch-size", "batch-size", "images in one step", _always, options)


def options_of(knob: Knob, recipe: Recipe, site: Site) -> list[Option]:
    """The knob's options that really change ``recipe``, each once; those that cannot be tried as well."""
    seen = [_effect(recipe)]
    found = []
    for option in knob.options(recipe, site):
        if option.missing:
            found.append(option)
            continue
        effect = _effect(option.on(recipe))
        if effect not in seen:
            found.append(option)
            seen.append(effect)
    return found


def _effect(recipe: Recipe) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields without ``runtime`` and ``env``, and the environment that those two make."""
    fields = recipe.to_dict()
    kind, env = fields.pop("runtime"), fields.pop("env")
    child = runtime.child_env(kind, env, processes=_processes(recipe))
    return fields, runtime.applied(child, {})


def in_short(recipe: Recipe) -> Recipe:
    """The same environment as ``runtime: tuned`` where that says it with fewer variables.

    >>> settings = runtime.launch_settings().env
    >>> short = in_short(Recipe(env=settings))
    >>> short.runtime, short.env
    ('tuned', {})
    """
    ranks = _processes(recipe)
    settings = runtime.launch_settings(ranks).env
    rest = {k: v for k, v in recipe.env.items() if settings.get(k) != v}
    short = recipe.override(runtime="tuned", env=rest)
    return short if _effect(short) == _effect(recipe) else recipe
