"""``gluontune size``: measure and choose workers, prefetch and loader for a data set on this machine."""

from __future__ import annotations

from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, argument, deliver, option, say, say_table
from gluontune.cli._progress import status_line


def size(
    source: str = argument(..., "A .rec file, or the name of a data set."),
    image_size: int = option(224, "Side of the images that the net takes.", "--size"),
    channels: int = option(3, "3 (colour) or 1 (grey)."),
    batch_size: int = option(64, "Images in a step of this process."),
    augment: str = option("random-resized-crop-flip", "Name of an augmentation."),
    step_time_ms: Optional[float] = option(None, "Time of one training step of your model, without loading."),
    loader: Optional[list[str]] = option(None, "Measure only this; repeatable."),
    max_workers: Optional[int] = option(None, "Measure no more workers."),
    seconds: float = option(1.0, "Time of each measured point."),
    disk: bool = option(True, "Measure the disk, too."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure loaders, workers and prefetch here; choose the smallest that keep up with your step."""
    options = locals()
    from gluontune.loading import size as measure

    kept = ("source", "batch_size", "augment", "step_time_ms", "max_workers", "seconds", "disk")
    shape, given = (image_size, image_size, channels), {key: options[key] for key in kept}
    with status_line("sizing") as tell:
        report = measure(image_shape=shape, loaders=loader, progress=lambda at: tell(f"measuring {at}"), **given)
    deliver(report.to_dict(), as_json, lambda: show(report))


def show(report: Any) -> None:
    """The curve, the choice, the decks' rule, and the limits."""
    rows = []
    for point in report.points:
        prefetch, waits = "auto" if point.prefetch is None else str(point.prefetch), point.wait_pct
        rate, waited = f"{point.samples_per_sec:,.0f}", "" if waits is None else f"{waits:.0f} %"
        chosen = "chosen" if point == report.choice else ""
        rows.append((point.loader, str(point.num_workers), prefetch, rate, waited, chosen))
    say_table(("loader", "workers", "prefetch", "images/s", "trainer waits", ""), rows)
    say(*lines(report))


def lines(report: Any) -> list[str]:
    """Notes that the table omits."""
    choice, rule = report.choice, report.rule
    prefetch = "" if choice.prefetch is None else f", prefetch={choice.prefetch}"
    rate = "not measured: more than twice the usable cores"
    if rule["samples_per_sec"] is not None:
        rate = f"{rule['samples_per_sec']:,.0f} images/s"
    found = [
        f"choose loader={choice.loader}, num_workers={choice.num_workers}{prefetch}: {report.reason}",
        f"the decks' rule {rule['text']} would say {rule['num_workers']} workers ({rate}); "
        f"usable cores here: {report.usable_cores}",
        f"limit of decoding alone on all usable cores: {report.decode_samples_per_sec:,.0f} images/s "
        f"(loaders decode with {report.decoder})",
    ]
    if report.disk is not None:
        random = ", ".join(f"{r['reads_per_sec']:,.0f} at depth {r['queue_depth']}" for r in report.disk["random"])
        cached = " (through the page cache: the file system has no direct reads)" if report.disk["cached"] else ""
        found.append(
            f"limit of the disk{cached}: {report.disk['sequential_samples_per_sec']:,.0f} images/s in sequence "
            f"({report.disk['sequential_mib_per_sec']:,.0f} MiB/s); random records a second: {random}"
        )
    return found + [f"note: {note}" for note in report.notes]
