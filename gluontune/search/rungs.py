"""The rungs, in order: each a name, a sentence, its requirement, and the changes to try.

To add a rung, add one entry here; the command line's choices, the report and the tests follow.
A rung offers one or more *variants*; the ladder measures them all against the best recipe so far,
interleaved, and goes on with the fastest. Each change is one that the field recommends.
"""

from __future__ import annotations

from typing import Any

from gluontune import runtime
from gluontune.core.errors import UsageError
from gluontune.methods.cards import with_methods
from gluontune.optim.torch_rules import TORCH_RULES
from gluontune.parallel import horovod, shared
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Registry
from gluontune.runtime import pytorch
from gluontune.search.budget import FEWEST_UPDATES
from gluontune.search.rung import Rung, Site, Variant, adding_to

RUNGS: Registry[Rung] = Registry("rung")
_rung = adding_to(RUNGS)


@_rung("naive", "the script as a tutorial writes it, in the environment as it comes")
def _naive(recipe: Recipe, site: Site) -> list[Variant]:
    return [Variant("as written", {})]


@_rung("together", "the best guess for this machine and job, all at once; the rungs below explain it")
def _together(recipe: Recipe, site: Site) -> list[Variant]:
    """The likely winners of the rungs that keep the arithmetic, then with 16 bits, then in several processes."""
    changes: dict[str, Any] = {}
    for name, place in (("environment", 0), ("records", 0), ("hybridized", -1)):
        rung, base = RUNGS[name], recipe.override(**changes)
        if rung.requires(base, site) is None:
            changes.update(rung.variants(base, site)[place].changes)
    found = [Variant("threads, loader and graph", changes)]
    for name, words in (("mixed-precision", "16 bits"), ("multi-device", "all devices")):
        base = recipe.override(**changes)
        if RUNGS[name].requires(base, site) is None:
            likely = RUNGS[name].variants(base, site)[0]
            found.append(Variant(f"{found[0].label}, {words}", {**changes, **likely.changes}))
    return found


@_rung("environment", "threads and allocator set for the cores that are really usable", owns=("runtime",))
def _environment(recipe: Recipe, site: Site) -> list[Variant]:
    return [Variant("tuned", {"runtime": "tuned"})]


@_rung(
    "multi-worker", "images are decoded and augmented in worker processes",
    lambda r, _: None if r.loader in ("gluon", "threaded") else f"the loader {r.loader!r} has no workers",
    instead={"loader": "gluon"},
)  # fmt: skip
def _multi_worker(recipe: Recipe, site: Site) -> list[Variant]:
    rule = site.cores - 3  # deck 000's recommendation
    counts = sorted({1, site.cores, *([rule] if rule > 1 else [])} - {recipe.num_workers})
    return [Variant(f"{n} worker{'s' if n > 1 else ''}", {"num_workers": n}) for n in counts]


def _packed_or_kept(recipe: Recipe, site: Site) -> str | None:
    if site.splits or (site.steady and site.fits_memory):
        return None
    why = "do not fit in memory" if site.steady else "draw each sample anew (random transforms)"
    return (
        f"the job's data() returns Gluon datasets, which cannot be packed, and they {why}; return the name of a data "
        "set, such as 'folder:/data/birds'"
    )


@_rung(
    "records", "images packed in RecordIO, decoded by gluontune's loaders", _packed_or_kept,
    owns=("loader", "num_workers"),
)  # fmt: skip
def _records(recipe: Recipe, site: Site) -> list[Variant]:
    in_memory = {"loader": "resident", "num_workers": 0}
    if not site.splits:
        return [Variant("samples kept in memory", in_memory)]
    found = [Variant("threaded", {"loader": "threaded", "num_workers": site.cores})]
    return [Variant("resident", in_memory), *found] if site.fits_memory else found


@_rung(
    "hybridized", "the net as a symbolic graph, slow operators rewritten where it measures faster",
    owns=("hybridize", "rewrites"),
)  # fmt: skip
def _hybridized(recipe: Recipe, site: Site) -> list[Variant]:
    found = [
        Variant("hybridize()", {"hybridize": "hybridized"}, rank=1),
        Variant("static", {"hybridize": "static"}, rank=2 if site.rewrites else 0),
    ]
    # The first rewrite alone, and all: a rewrite that cures one data type's slow path can slow down another's.
    for names in filter(None, dict.fromkeys((site.rewrites[:1], site.rewrites))):
        found.append(Variant(f"static, {' + '.join(names)}", {"hybridize": "static", "rewrites": names}))
    return found


def _has_half_precision(recipe: Recipe, site: Site) -> str | None:
    if site.gpus and site.step != "usual":
        return "float16 casts what goes into the net, and only the job's step() knows that"
    if site.gpus or site.bf16:
        return None
    return "no GPU that this mxnet can use, and the CPU has no bfloat16 instructions (avx512_bf16 or amx_bf16)"


@_rung("mixed-precision", "16-bit multiplications with 32-bit masters", _has_half_precision, owns=("dtype",))
def _mixed_precision(recipe: Recipe, site: Site) -> list[Variant]:
    dtype = "float16" if site.gpus else "bfloat16"
    found = [Variant(dtype, {"dtype": dtype})]
    full = {"dtype": dtype, "hybridize": "static", "rewrites": site.rewrites}
    if any(getattr(recipe, field) != value for field, value in full.items() if field != "dtype"):
        found.append(Variant(f"{dtype}, static, rewritten", full))
    if dtype == "bfloat16" and site.amx:
        # Each variant has its own process: oneDNN reads the variable when it is loaded.
        env = {**recipe.env, **runtime.AMX_ENV}
        names = (*site.rewrites, "narrow-in-float32")
        found.append(Variant("bfloat16, AMX, static, rewritten", {**full, "env": env}))
        found.append(Variant("bfloat16, AMX, narrow in float32", {**full, "rewrites": names, "env": env}))
    return found


_MIN_UPDATES = 30  # in one epoch: with fewer, an epoch cannot show whether a batch size learns


def _enough_images(recipe: Recipe, site: Site) -> str | None:
    if site.step == "updates":
        return "the job's step() does its own updates, and decides itself what a batch is to them"
    if site.metric != "accuracy":
        return (
            f"a larger batch is judged by the time to an accuracy, and this job measures {site.metric}; set "
            "batch_size_per_device yourself"
        )
    if site.num_train < 2 * recipe.global_batch_size * _MIN_UPDATES:
        return (
            f"{site.num_train} training images make fewer than {_MIN_UPDATES} updates an epoch at twice the "
            f"batch of {recipe.global_batch_size}"
        )
    return None


#: Muon learns more per step than SGD. Schedules of 40 to 60 updates end higher, and more alike, by a cosine and a
#: momentum of 0.85 than by one cycle and 0.9: six seeds of the sample, 40 updates: 75.8 to 78.0 %, not 66 to 75.
_MUON = {
    "optimizer": "muon", "learning_rate": 0.015, "base_batch_size": 64, "lr_scaling": "sqrt", "wd": 0.1,
    "momentum": 0.85, "schedule": "cosine", "schedule_params": {}, "warmup_epochs": 0.0,
}  # fmt: skip
#: On ResNet-20 and the sample; LARS's paper scales by the root, LAMB's too.
_LARS = {"optimizer": "lars", "learning_rate": 4.0, "base_batch_size": 128, "lr_scaling": "sqrt", "wd": 1e-4}
_LAMB = {"optimizer": "lamb", "learning_rate": 0.01, "base_batch_size": 128, "lr_scaling": "sqrt", "wd": 0.05}
#: Muon's length as a share of the naive epochs, by the factor of the batch.
_LENGTHS = {1: 0.5, 2: 0.75, 4: 0.75}


def _growing(recipe: Recipe, batch: int, warmup: float) -> list[Variant]:
    """A larger batch that doubles half-way, if the rest of the recipe allows it."""
    changed = {"batch_size_per_device": batch, "warmup_epochs": warmup}
    try:
        grown = with_methods(recipe.override(**changed), ["batch-growth"])
    except UsageError:
        return []
    return [Variant(f"batch {batch}, {2 * batch} from half-way on", grown.differences(recipe), rank=3)]


@_rung("large-batch", "a larger batch, by the time it needs to the same accuracy", _enough_images, by_time=True)
def _large_batch(recipe: Recipe, site: Site) -> list[Variant]:
    """Candidates for an earlier accuracy; the ladder trains them in the order of their expected gain."""
    sizes = [recipe.batch_size_per_device * factor for factor in (2, 4, 8)]
    sizes = [batch for batch in sizes if site.num_train >= batch * recipe.num_devices * _MIN_UPDATES]
    warmup = min(1.0, 0.2 * recipe.epochs)
    found = [Variant(f"batch {n}", {"batch_size_per_device": n, "warmup_epochs": warmup}, 1) for n in sizes]
    if sizes:
        found += _growing(recipe, sizes[0], warmup)
    if recipe.optimizer == "muon":
        return found
    for name, layerwise in (("LARS", _LARS), ("LAMB", _LAMB)):
        if sizes[1:]:  # layer-wise rates are for batches that SGD cannot use
            changes = {"batch_size_per_device": sizes[-1], "warmup_epochs": warmup, **layerwise}
            found.append(Variant(f"batch {sizes[-1]}, {name}", changes, rank=2))
    for factor, length in _LENGTHS.items():
        n = factor * recipe.batch_size_per_device
        fewest = FEWEST_UPDATES * n * recipe.num_devices * recipe.accumulate / site.num_train  # epochs
        short = round(max(length * recipe.epochs, 1.01 * fewest), 3)
        if short <= 0.75 * recipe.epochs:
            changes = {"batch_size_per_device": n, "epochs": short, **_MUON}
            found.append(Variant(f"batch {n}, Muon, {short:g} epochs", changes))
            if factor == 2:
                # The same updates from two steps of the present batch: the same memory, half the cost of updates.
                changes = {**changes, "batch_size_per_device": n // 2, "accumulate": 2 * recipe.accumulate}
                label = f"batch {n} of 2 steps, Muon, {short:g} epochs"
                found.append(Variant(label, changes, rank=3))
    return found


def _two_devices(recipe: Recipe, site: Site) -> str | None:
    if site.step == "updates":
        return "the job's step() does its own updates, on one device"
    if site.gpus == 1:
        return "one GPU in this machine"
    if not site.gpus and site.cores < 2:
        return "one usable core and no GPU"
    return None


@_rung(
    "multi-device", "all GPUs, or two processes on the CPU that exchange gradients", _two_devices,
    owns=("engine", "num_devices", "batch_size_per_device"),
)  # fmt: skip
def _multi_device(recipe: Recipe, site: Site) -> list[Variant]:
    if site.gpus:
        return [Variant(f"{n} GPUs", {"num_devices": n}) for n in _counts(site.gpus)]
    # Shared memory gives the same sums as the parameter server, without its process.
    ways = {"shared memory": "shared-memory"} if shared.available() else {"kvstore": "kvstore"}
    if horovod.installed():
        ways["Horovod"] = "horovod"
    found = []
    for count in _counts(site.cores)[:3]:  # each is a whole group to start and measure
        # The global batch stays, so that the accuracy can be compared.
        alike = {"num_devices": count, "batch_size_per_device": max(1, recipe.batch_size_per_device // count)}
        found += [Variant(f"{count} processes, {name}", {"engine": engine, **alike}) for name, engine in ways.items()]
    return found


def _torch_trains(recipe: Recipe, site: Site) -> str | None:
    if not site.torch:
        return f"PyTorch is not installed: {pytorch.INSTALL}"
    if recipe.optimizer not in TORCH_RULES and not _followed(site):
        return f"the torch backend has no optimizer {recipe.optimizer!r}"
    return None


def _followed(site: Site) -> bool:
    """Whether PyTorch can only follow MXNet's program: in one process, in float32."""
    return site.step != "usual" or not site.splits or site.metric not in ("accuracy", "loss")


@_rung("modern-engine", "the same net, start, batches and rules, computed by PyTorch", _torch_trains)
def _modern_engine(recipe: Recipe, site: Site) -> list[Variant]:
    changes: dict[str, Any] = {
        "backend": "torch", "hybridize": "hybridized", "rewrites": (), "dtype": "float32", "stochastic_depth": 0.0,
        "batch_size_per_device": recipe.global_batch_size, "engine": "local", "num_devices": 1,
        "exchange_every": 1, "compression": "none",
    }  # fmt: skip
    if recipe.loader == "gluon" and site.splits:
        changes.update(RUNGS["records"].variants(recipe, site)[0].changes)
    changes = {name: value for name, value in changes.items() if getattr(recipe, name) != value}
    found = [Variant("PyTorch", changes)]
    if _followed(site):
        return found
    if site.cores > 1 and not site.gpus:
        each = max(1, recipe.global_batch_size // site.cores)
        several = {"engine": "ddp", "num_devices": site.cores, "batch_size_per_device": each}
        found.append(Variant(f"PyTorch, {site.cores} processes", {**changes, **several}))
    halved = [Variant(f"PyTorch, bfloat16{v.label[7:]}", {**v.changes, "dtype": "bfloat16"}) for v in found]
    return found + halved if site.bf16 else found


#: The cards in gt.methods that suit a short training. Their cost is the same in every step, so slices can measure it.
_METHODS, _METHOD_LENGTH = ("whitening-init", "label-smoothing", "alternating-flip"), 0.75  # of the epochs


def _learns_in_our_way(recipe: Recipe, site: Site) -> str | None:
    if not site.num_train:
        return "the number of training images is not known: naive did not run"
    if site.step != "usual":
        return "the job's step() computes its own loss, which methods change"
    if site.metric != "accuracy":
        return f"methods are judged by the time to an accuracy, and this job measures {site.metric}"
    return None


@_rung("methods", "fewer epochs, with methods that make more of each", _learns_in_our_way, by_time=True, pace="full")
def _methods(recipe: Recipe, site: Site) -> list[Variant]:
    fewest = FEWEST_UPDATES * recipe.update_batch_size / site.num_train  # epochs
    short = round(max(_METHOD_LENGTH * recipe.epochs, 1.01 * fewest), 3)
    found: list[Variant] = []
    for name in _METHODS if short <= 0.8 * recipe.epochs else ():
        try:
            changed = with_methods(recipe, [name])
        except UsageError:  # it contradicts the rest of the recipe
            continue
        if name in recipe.methods or changed == recipe:
            continue
        found.append(Variant(f"{name}, {short:g} epochs", changed.override(epochs=short).differences(recipe)))
    return found


def _counts(most: int) -> list[int]:
    """Numbers of devices to try beside one: powers of two, and all.

    >>> _counts(2), _counts(6), _counts(8)
    ([2], [2, 4, 6], [2, 4, 8])
    """
    return sorted({*(2**k for k in range(1, most.bit_length())), most})
