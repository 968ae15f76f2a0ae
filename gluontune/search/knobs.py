"""The knobs of the search: each offers options on top of the best recipe so far.

To add a knob, add one entry here, its options in order from the smallest change to the largest: among
options that tie, the first is chosen.

The memory layout (NHWC or NCHW) is no knob: MXNet 1.9 convolves NCHW only on a CPU, and on a GPU the
net's layers fix the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Registry
from gluontune.search.rung import Rung, Site, Variant, adding_to, always
from gluontune.search.rungs import RUNGS

KNOBS: Registry[Rung] = Registry("knob")
_knob = adding_to(KNOBS)


def _processes(recipe: Recipe) -> int:
    return 1 if recipe.engine == "local" else recipe.num_devices


@_knob("threads", "OpenMP threads of each training process")
def _threads(recipe: Recipe, site: Site) -> list[Variant]:
    ranks = _processes(recipe)
    found: dict[int, Variant] = {}
    for cores in (None, max(1, site.cores // 2), site.cores):
        env = runtime.launch_settings(ranks, cores=cores, allocator="none").env
        count = int(env["OMP_NUM_THREADS"])
        found.setdefault(count, Variant(f"{count} thread{'s' if count > 1 else ''}", {"env": env}))
    return list(found.values())


@_knob("allocator", "the library that allocates and frees memory")
def _allocator(recipe: Recipe, site: Site) -> list[Variant]:
    found = []
    threads = runtime.launch_settings(allocator="none").env
    for name in ("glibc", "tcmalloc", "jemalloc"):
        label = "glibc, tuned" if name == "glibc" else name
        try:
            env = runtime.launch_settings(allocator=name).env
        except GluontuneError as error:
            found.append(Variant(label, {}, missing=str(error)))
            continue
        found.append(Variant(label, {"env": {k: v for k, v in env.items() if k not in threads}}))
    return found


@_knob("compute", "execution mode, rewrites and data type, which depend on each other")
def _compute(recipe: Recipe, site: Site) -> list[Variant]:
    """Every mode in every type: bfloat16 without its rewrites can be slower than float32."""
    modes = [Variant("imperative", {"hybridize": "imperative", "rewrites": ()})]
    modes += [Variant(v.label, {"rewrites": (), **v.changes}) for v in RUNGS["hybridized"].variants(recipe, site)]
    precision = RUNGS["mixed-precision"]
    lacking = precision.requires(recipe, site)
    if lacking:
        return [*modes, Variant("16 bits", {}, missing=lacking)]
    dtype = precision.variants(recipe, site)[0].changes["dtype"]
    if recipe.dtype == dtype:
        return [Variant(f"float32, {o.label}", {**o.changes, "dtype": "float32"}) for o in modes] + modes
    remark = "results change in the third digit: compare the accuracy"
    return modes + [Variant(f"{dtype}, {o.label}", {**o.changes, "dtype": dtype}, remark=remark) for o in modes]


_FEW = "the best recipe so far has fewer than two rewrites"


@_knob("rewrites", "the rewrites, each left out", lambda r, _: _FEW if len(r.rewrites) < 2 else None, slot="compute")
def _rewrites(recipe: Recipe, site: Site) -> list[Variant]:
    kept = {"hybridize": recipe.hybridize, "dtype": recipe.dtype}
    rest = {name: tuple(r for r in recipe.rewrites if r != name) for name in recipe.rewrites}
    return [Variant(f"without {name}", {**kept, "rewrites": others}) for name, others in rest.items()]


_FULL = "the best recipe so far does not compute in bfloat16"
_AMX = "Intel's matrix unit, which oneDNN leaves off"


@_knob("amx", _AMX, lambda r, _: None if r.dtype == "bfloat16" else _FULL, exists=lambda site: site.amx)
def _amx(recipe: Recipe, site: Site) -> list[Variant]:
    names = tuple(dict.fromkeys((*recipe.rewrites, "narrow-in-float32")))
    narrow = {"env": runtime.AMX_ENV, "rewrites": names}
    return [Variant("AMX", {"env": runtime.AMX_ENV}), Variant("AMX, narrow in float32", narrow)]


@_knob("loader", "the loader that decodes and augments, and its workers")
def _loader(recipe: Recipe, site: Site) -> list[Variant]:
    found: list[Variant] = []
    for rung in (RUNGS["multi-worker"], RUNGS["records"]):
        if rung.requires(recipe, site) is None:
            found += rung.variants(recipe, site)
    return found


def batch_size_knob(sizes: Sequence[int]) -> Rung:
    """The knob that is turned only on request: another batch size trains another model."""
    remark = "another batch size converges differently: compare the accuracy, not the throughput alone"

    def options(recipe: Recipe, site: Site) -> list[Variant]:
        return [Variant(f"batch {n}", {"batch_size_per_device": n}, remark=remark) for n in sizes]

    return Rung("batch-size", "images in one step", always, options)


def options_of(knob: Rung, recipe: Recipe, site: Site) -> list[Variant]:
    """The knob's options that change ``recipe``, each once, and those that cannot be tried here."""
    seen, found = [_effect(recipe)], []
    for option in knob.variants(recipe, site):
        effect = None if option.missing else _effect(option.on(recipe))
        if effect is None or effect not in seen:
            found.append(option)
            seen += [effect] if effect is not None else []
    return found


def _effect(recipe: Recipe) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields without ``runtime`` and ``env``, and the environment that results from these two."""
    fields = recipe.to_dict()
    kind, env = fields.pop("runtime"), fields.pop("env")
    child = runtime.child_env(kind, env, processes=_processes(recipe))
    return fields, runtime.applied(child, {})


def in_short(recipe: Recipe) -> Recipe:
    """The same recipe with ``runtime: tuned`` in place of the variables that it sets, if that is equivalent.

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
