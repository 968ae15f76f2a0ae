"""PyTorch's ways of taking a training step, and the allocator that suits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench.benchmark import hold
from gluontune.search.bench.contender import Entrant

TORCH = "PyTorch"
_WORK = "gluontune.search.bench._torch_training:TorchStep"


def torch_entrants(
    net: str, batch_size: int, image_size: int, threads: int, python: Path, dtype: str = "float32"
) -> list[Entrant]:
    """PyTorch's modes: eager and compiled, each as it comes and channels_last.

    Args:
        net: of ``gluontune.search.bench.training.NETS``. image_size: side of its images.
        threads: of torch's operators. python: the peers' interpreter. dtype: ``float32`` or ``bfloat16``.
    """
    work = {"net": net, "batch_size": batch_size, "image_size": image_size, "threads": threads}
    env, note = {"OMP_NUM_THREADS": str(threads)}, "allocator: default"
    found = []
    for compiled in (False, True):
        for channels_last in (False, True):
            words = ["compile" if compiled else "eager", *(["channels_last"] if channels_last else [])]
            settings = {**work, "dtype": dtype, "compiled": compiled, "channels_last": channels_last}
            name = f"PyTorch {' '.join(words)} {dtype}"
            found.append(Entrant(name, TORCH, _WORK, settings, python=python, env=env, slices="steps", note=note))
    return found


def with_allocator(field: Sequence[Entrant], name: str, variables: Mapping[str, str]) -> list[Entrant]:
    """The same field, PyTorch's contenders with the allocator ``name``, which ``variables`` set."""
    note = f"allocator: {name}"
    return [replace(e, env={**e.env, **variables}, note=note) if e.peer == TORCH else e for e in field]


def allocator_of(wanted: Sequence[Entrant], say: Callable[[str], None]) -> tuple[str, dict[str, str]]:
    """The allocator with which PyTorch's step is the fastest, from a short trial of its best two modes."""
    torch = [e for e in wanted if e.peer == TORCH][-4:]
    picked = (torch[1], torch[2])  # eager channels_last and compiled, in bfloat16 where it is there
    choices = allocators()
    trial = [
        Entrant(f"{e.name}, {name}", name, e.target, e.settings, e.python, {**e.env, **env}, "steps")
        for e in picked
        for name, env in choices.items()
    ]
    rates: dict[str, float] = {}
    for contender in hold(trial, rounds=3, seconds=0.5, say=lambda line: say(f"allocators: {line}")):
        if contender.failure is None and contender.rates:
            name = contender.entrant.peer
            rates[name] = rates.get(name, 1.0) * stats.interval(contender.rates)["median"]
    best = max(rates, key=lambda name: rates[name], default="default")
    return best, choices[best]


def allocators() -> dict[str, dict[str, str]]:
    """The allocators that are installed here, by name, each with the variables that set it."""
    found: dict[str, dict[str, str]] = {"default": {}}
    for name in ("glibc", "tcmalloc", "jemalloc"):
        try:
            settings = launch_settings(cores=1, allocator=name).env
        except GluontuneError:  # not installed
            continue
        found[name] = {k: v for k, v in settings.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"}
    return found
