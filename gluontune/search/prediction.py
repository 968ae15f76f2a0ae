"""What a rung is expected to bring, said before it is measured: from loader and net, each measured alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluontune import monitor
from gluontune.core.ladder_document import Guess, RungRow
from gluontune.search.measure import Contender
from gluontune.search.rung import Site

__all__ = ["note", "predict"]

_PROBE_S = 0.6  # of each part


def predict(
    rung: str, best: Contender | None, field: Sequence[Contender], site: Site, slice_s: float
) -> list[Guess | None]:
    """A prediction for each variant of a rung, or None where nothing can be said beforehand.

    Args:
        rung: its name. best: the best recipe so far, whose loader and net are measured alone.
        field: the variants; those of ``records`` are started, and their loaders measured alone.
        slice_s: how long a contender's slice takes, for warming up.

    Returns:
        ``{"samples_per_sec", "basis"}``, or None, in the order of ``field``.
    """
    nothing: list[Guess | None] = [None] * len(field)
    maker = _MAKERS.get(rung)
    if maker is None or best is None:
        return nothing
    best.launch()
    best.warm_up(slice_s)
    if best.group is None or best.group.world > 1:  # several ranks cannot be asked one by one
        return nothing
    if rung == "records":
        for contender in field:
            contender.launch()
        for contender in field:
            contender.warm_up(slice_s)
    return maker(best, field, site)


def note(row: RungRow, guesses: Sequence[Guess | None]) -> None:
    """Enter the predictions into a rung's row: one for each variant, and the chosen one's as the row's."""
    for entry, guess in zip(row["variants"], guesses):
        entry["predicted"] = guess
        if entry["chosen"]:
            row["predicted"] = guess


def _loading(contender: Contender) -> float | None:
    """Samples a second of a contender's loader alone."""
    group = contender.group
    if group is None or group.world > 1:
        return None
    with contender.guarded():
        group.resume()
        found = group.loading_alone(_PROBE_S)
        group.pause()
        return float(found["samples_per_sec"])
    return None


def _net(contender: Contender, sizes: Sequence[int]) -> dict[int, float] | None:
    """Milliseconds of a step of a contender's net alone, by the number of samples in it."""
    group = contender.group
    if group is None:
        return None
    with contender.guarded():
        group.resume()
        found = group.training_alone(list(sizes), _PROBE_S)
        group.pause()
        return {int(size): float(step["step_time_ms"]) for size, step in found.items()}
    return None


def _together(device: float, loader: float, workers: int, site: Site, of_workers: int, words: str) -> Guess:
    """The prediction for ``workers`` workers, given a loader's rate that ``of_workers`` reached."""
    each = loader / max(1, min(of_workers, site.cores))
    found = monitor.expected_throughput(
        device_samples_per_sec=device,
        worker_samples_per_sec=each,
        num_workers=workers,
        cores=site.cores,
        shares_cores=not site.gpus,
    )
    parts = f"net alone {device:,.0f}/s, loader alone {loader:,.0f}/s"
    return {"samples_per_sec": found["samples_per_sec"], "basis": f"{parts}{words}"}


def _step_size(contender: Contender) -> int:
    """Samples in one step of the one process."""
    recipe = contender.recipe
    return recipe.batch_size_per_device * recipe.num_devices


def _rates(best: Contender) -> tuple[float, float] | None:
    """Samples a second of the best recipe's net and of its loader, each alone."""
    size = _step_size(best)
    steps = _net(best, [size])
    loader = _loading(best)
    return None if steps is None or loader is None else (1e3 * size / steps[size], loader)


def _multi_worker(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    found = _rates(best)
    if found is None or best.recipe.num_workers > 0:
        return [None] * len(field)
    net, loader = found
    shared = "" if site.gpus else ", both on the same cores"
    return [_together(net, loader, c.recipe.num_workers, site, 1, f" by one worker{shared}") for c in field]


def _records(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    size = _step_size(best)
    steps = _net(best, [size])
    guesses: list[Guess | None] = []
    for contender in field:
        loader = _loading(contender)
        if steps is None or loader is None:
            guesses.append(None)
            continue
        workers = contender.recipe.num_workers
        guesses.append(_together(1e3 * size / steps[size], loader, workers, site, workers, ""))
    return guesses


def _large_batch(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    size = _step_size(best)
    loader = _loading(best)
    steps = _net(best, [max(1, size // 2), size]) if size > 1 else None
    if steps is None or loader is None:
        return [None] * len(field)
    step_ms = monitor.fit_step_time(list(steps), list(steps.values()))
    workers = best.recipe.num_workers
    words = f"; fitted to steps of {' and '.join(str(s) for s in steps)}"
    return [
        _together(1e3 * _step_size(c) / step_ms(_step_size(c)), loader, workers, site, workers, words)
        if c.recipe.optimizer == best.recipe.optimizer  # what another's update costs is not known yet
        else None
        for c in field
    ]


def _multi_device(best: Contender, field: Sequence[Contender], site: Site) -> list[Guess | None]:
    found = _rates(best)
    if found is None:
        return [None] * len(field)
    net, loader = found
    workers = best.recipe.num_workers
    guesses: list[Guess | None] = []
    for contender in field:
        times = contender.recipe.num_devices if site.gpus else 1
        share = f"; {times} times the net" if site.gpus else "; the same cores, shared"
        words = f"{share}, the exchange of gradients not counted"
        guesses.append(_together(times * net, loader, workers, site, workers, words))
    return guesses


_MAKERS: dict[str, Callable[[Contender, Sequence[Contender], Site], list[Guess | None]]] = {
    "multi-worker": _multi_worker,
    "records": _records,
    "large-batch": _large_batch,
    "multi-device": _multi_device,
}
