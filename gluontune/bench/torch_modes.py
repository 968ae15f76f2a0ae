"""PyTorch's ways of taking a training step, and the allocator that suits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gluontune import stats
from gluontune.bench.contender import Entrant
from gluontune.bench.contest import hold
from gluontune.errors import GluontuneError
from gluontune.runtime.launch import launch_settings

__all__ = ["TORCH", "allocator_of", "allocators", "torch_entrants"]

TORCH = "PyTorch"
_WORK = "gluontune.bench._torch_training:make"


def torch_entrants(
    net: str,
    batch_size: int,
    image_size: int,
    threads: int,
    python: Path,
    allocator: Mapping[str, str] | None = None,
    allocator_name: str = "default",
    dtype: str = "float32",
) -> list[Entrant]:
    """PyTorch's modes: eager and compiled, each as it comes and channels_last.

    Args:
        net: of ``gluontune.bench.training.NETS``. image_size: side of its images.
        threads: of torch's operators. python: the peers' interpreter.
        allocator: variables that set the allocator ``allocator_name``. dtype: ``float32`` or ``bfloat16``.
    """
    work = {"net": net, "batch_size": batch_size, "image_size": image_size, "threads": threads}
    env = {"OMP_NUM_THREADS": str(threads), **(allocator or {})}
    found = []
    for compiled in (False, True):
        for channels_last in (False, True):
            words = ["compile" if compiled else "eager", *(["channels_last"] if channels_last else [])]
            settings = {**work, "dtype": dtype, "compiled": compiled, "channels_last": channels_last}
            name, note = f"PyTorch {' '.join(words)} {dtype}", f"allocator: {allocator_name}"
            found.append(Entrant(name, TORCH, _WORK, settings, python=python, env=env, slices="steps", note=note))
    return found


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
