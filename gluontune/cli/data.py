"""Data sets and record files: ``data``, ``pack``, ``verify`` and ``size``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Callable, Optional

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gluontune import datasets, loading, records
from gluontune.cli._common import SHOWN, deliver, first_of, say, say_table, stderr, stdout
from gluontune.cli._options import JSON_OPTION, RECORD, argument, option
from gluontune.cli._progress import progress_bar, status_line
from gluontune.core.errors import UsageError


def list_(as_json: bool = JSON_OPTION) -> None:
    """List all data sets: source, licence, size, mean and deviation, and whether they are installed."""
    from gluontune.core.files import cache_dir

    rows = datasets.list_datasets()
    deliver({"folder": str(cache_dir()), "datasets": rows}, as_json, lambda: _show_list(rows, cache_dir()))


def _show_list(rows: list[dict[str, Any]], folder: Path) -> None:
    from gluontune.report.study import text_table

    table = text_table("name|images|shape|size|here")
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        count = f"{row['num_train']:,} + {row['num_test']:,}" if row["num_train"] else "any"
        shape = " x ".join(map(str, row["image_shape"])) if row["image_shape"] else "any"
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "-"
        here = "yes" if row["present"] else "no"
        table.add_row(row["name"], count, shape, size, here)
    stdout.print(table)
    for row in rows:
        say(f"{row['name']}: {row['summary']}\n    source: {row['source']}; licence: {row['licence']}")
        if row["mean"]:
            mean, std = (" ".join(f"{v:.4f}" for v in row[key]) for key in ("mean", "std"))
            say(f"    mean: {mean}; deviation: {std}")
    say(f"data folder: {folder} (GLUONTUNE_DATA)")


def fetch(
    name: str = argument(..., "cifar10 or fashion-mnist."),
    url: Optional[str] = option(None, "Download from here; the SHA-256 must be the same."),
    force: bool = option(False, "Even if it is here already."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Download a data set (resumable), check its SHA-256, install it."""
    with _progress(f"fetching {name}") as report:
        result = datasets.fetch(name, url=url, force=force, progress=report)
    _show(result, as_json)


def add(
    name: str = argument(..., "cifar10 or fashion-mnist."),
    archive: Path = argument(..., "The archive (or folder) that is on this machine."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Install a data set from an archive on this machine; wrong contents are refused."""
    with _progress(f"adding {name}") as report:
        result = datasets.add(name, archive, progress=report)
    _show(result, as_json)


def make(
    name: str = argument(..., "sample, or synthetic:train=2000,test=200,size=256x256,…"),
    source: Optional[Path] = option(None, "sample: folder with the four official files of Fashion-MNIST."),
    out: Path = option(Path("data"), "sample: folder for the records."),
    fast: bool = option(False, "sample: compress with zlib, not zopfli: 4 % larger."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Generate a data set: synthetic images, or the embedded sample from the official files."""
    options: dict[str, Any] = {}
    if name == "sample":
        if source is None:
            raise UsageError("data make sample: say --source FOLDER, with the four official files of Fashion-MNIST")
        options = {"source": source, "out": out, "fast": fast}
    with _progress(f"making {name}") as report:
        result = datasets.make(name, progress=report, **options)
    _show(result, as_json)


def _show(result: dict[str, Any], as_json: bool) -> None:
    deliver(result, as_json, lambda: say(*(f"{key}: {value}" for key, value in result.items())))


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; a new total (images after bytes) restarts it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield report


@dataclass(frozen=True)
class Packing:
    """Options of the records."""

    resize: Optional[int] = option(None, "Shorter side in pixels. Default: as it is.")
    crop: bool = option(False, "Cut out the middle square.")
    format: str = option("keep", "keep, jpg, png or raw (pixels).")
    quality: Optional[int] = option(None, "JPEG quality, 1 to 100. Default: 95 if encoded.")
    color: str = option("keep", "keep, rgb or grey.")
    exact: bool = option(False, "Copy each file untouched, whatever is in it.")
    root: Optional[str] = option(None, "Where relative paths of a list or table start.")
    path_column: Optional[str] = option(None, "CSV column with the path.")
    label_columns: Optional[list[str]] = option(None, "CSV column with a label; repeatable.", "--label-column")
    shuffle: Optional[bool] = option(
        None, "Pack in random order. Default: yes, but not for a .lst.", "--shuffle/--no-shuffle"
    )
    seed: int = option(0, "Of the random order.")
    shards: int = option(1, "Number of files; together they hold the same order.")
    strict: bool = option(False, "Fail on the first image that cannot be packed, or is incomplete.")
    check: Optional[bool] = option(
        None,
        "Decode copied files too, and report incomplete ones: three times as long. Default: if strict.",
        "--check/--no-check",
    )
    resume: bool = option(False, "Go on where a killed run stopped.")
    workers: Optional[int] = option(None, "Default: one for each usable core.")


def pack(
    src: list[str] = argument(
        ..., "Folder with a sub-folder for each class, a .lst, a .csv, or .tar archives (WebDataset)."
    ),
    out: str = argument(..., "The .rec file; .idx and .crc are written beside it."),
    how: Packing = RECORD,
    as_json: bool = JSON_OPTION,
) -> None:
    """Pack images into RecordIO, in parallel.

    Plain JPEGs and PNGs are copied byte for byte; images that would look different from decoder to decoder
    (rotated by EXIF, CMYK, palette, 16 bits, transparent) are made plain. Damaged ones are listed and left out;
    incomplete ones (their data end early, and decoders fill in grey) are listed and packed.
    """
    with progress_bar("packing", "images") as progress:
        report = records.pack(src if len(src) > 1 else src[0], out, progress=progress, **vars(how))
    deliver(report.to_dict(), as_json, lambda: _packed(report))


def _packed(report: records.PackReport) -> None:
    for text, found in (("left out", report.skipped), ("packed as it is", report.incomplete)):
        say(*first_of([f"{text}: {skip.path}: {skip.reason}" for skip in found]))
    facts = [f"{report.bytes / 1e6:,.1f} MB", f"{report.images_per_sec:,.0f} images/s"]
    incomplete = len(report.incomplete)
    counts = {"encoded anew": report.converted, "incomplete": incomplete, "from the interrupted run": report.resumed}
    facts += [f"{count:,} {what}" for what, count in counts.items() if count]
    if report.classes is not None:
        facts.append(f"{len(report.classes)} classes")
    more = f" (first of {len(report.outputs)} files)" if len(report.outputs) > 1 else ""
    packed = f"{report.packed:,} images packed, {len(report.skipped):,} left out"
    say(f"{report.outputs[0]}{more}: {packed}; {', '.join(facts)}")


def verify(
    file: str = argument(..., "The .rec file; .idx and .crc beside it are used if there."),
    repair: Optional[str] = option(None, "Write all whole records there.", metavar="OUT.rec"),
    index: Optional[str] = option(None, "Another index file."),
    decode: bool = option(True, "Decode each image too."),
    workers: Optional[int] = option(None, "Default: one for each usable core."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check every record: framing, checksum, index row, image. Exits with 1 if anything is wrong.

    Without a .crc file, damage inside an image shows only if it breaks the image's format.
    With --repair, 0 means that the new file is written, however much was wrong with the old one.
    """
    with progress_bar("verifying", "MB", 1e6) as progress:
        how: dict[str, Any] = {"decode": decode, "workers": workers, "progress": progress}
        repaired = None if repair is None else records.repair(file, repair, index, **how)
        report = records.verify(file, index, **how) if repaired is None else repaired.verified

    def show() -> None:
        say(*_verified(report))
        if repaired is not None:
            restored = f"{repaired.restored:,} of them restored by their checksums"
            say(f"{repaired.out}: {repaired.kept:,} records kept ({restored}), {repaired.lost:,} lost")
            if keys := repaired.uncertain:
                shown = ", ".join(map(str, keys[:SHOWN])) + (", …" if len(keys) > SHOWN else "")
                say(f"{len(keys):,} of them are whole, but their keys are not proven: {shown}")

    extra = {} if repaired is None else {"repair": repaired.to_dict()}
    deliver({**report.to_dict(), **extra}, as_json, show)
    raise typer.Exit(0 if report.ok or repaired is not None else 1)


def _verified(report: records.VerifyReport) -> Iterator[str]:
    if report.no_record_file:
        yield f"{report.path}: this is no record file: no record starts anywhere in it"
        yield "gluontune pack FOLDER OUT.rec makes one of images"
        return
    places = ("" if damage.index is None else f"record {damage.index}, " for damage in report.damaged)
    yield from first_of([f"{where}byte {d.offset:,}: {d.reason}" for where, d in zip(places, report.damaged)])
    yield from first_of([f"record {one.index}, byte {one.offset:,}: {one.reason}" for one in report.incomplete])
    yield from first_of(report.problems)
    faults = f"{len(report.damaged):,} fault{'s' * (len(report.damaged) != 1)}"
    yield f"{report.path}: {report.records:,} records, {report.whole:,} whole, {faults}"
    if report.incomplete:
        yield f"{len(report.incomplete):,} images are incomplete: whole records, but trained on as decoders read them"
    if report.unchecked:
        yield (
            f"{report.unchecked:,} records have no checksum: their framing and images were looked at, "
            "but a changed pixel would not show"
        )
    if report.damaged:
        yield f"keep the intact records: gluontune verify {quote(str(report.path))} --repair OUT.rec"


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
    with status_line("sizing") as tell:
        report = loading.size(
            source, image_shape=(image_size, image_size, channels), batch_size=batch_size, augment=augment,
            step_time_ms=step_time_ms, loaders=loader, max_workers=max_workers, seconds=seconds, disk=disk,
            progress=lambda at: tell(f"measuring {at}"),
        )  # fmt: skip
    deliver(report.to_dict(), as_json, lambda: _sized(report))


def _sized(report: Any) -> None:
    """Print the curve, the choice, the decks' rule, and the limits."""
    rows = []
    for point in report.points:
        prefetch, waits = "auto" if point.prefetch is None else str(point.prefetch), point.wait_pct
        rate, waited = f"{point.samples_per_sec:,.0f}", "" if waits is None else f"{waits:.0f} %"
        chosen = "chosen" if point == report.choice else ""
        rows.append((point.loader, str(point.num_workers), prefetch, rate, waited, chosen))
    say_table(("loader", "workers", "prefetch", "images/s", "trainer waits", ""), rows)
    choice, rule = report.choice, report.rule
    prefetch = "" if choice.prefetch is None else f", prefetch={choice.prefetch}"
    rate = "not measured: more than twice the usable cores"
    if rule["samples_per_sec"] is not None:
        rate = f"{rule['samples_per_sec']:,.0f} images/s"
    say(
        f"choose loader={choice.loader}, num_workers={choice.num_workers}{prefetch}: {report.reason}",
        f"the decks' rule {rule['text']} would say {rule['num_workers']} workers ({rate}); "
        f"usable cores here: {report.usable_cores}",
        f"limit of decoding alone on all usable cores: {report.decode_samples_per_sec:,.0f} images/s "
        f"(loaders decode with {report.decoder})",
    )
    if report.disk is not None:
        random = ", ".join(f"{r['reads_per_sec']:,.0f} at depth {r['queue_depth']}" for r in report.disk["random"])
        cached = " (through the page cache: the file system has no direct reads)" if report.disk["cached"] else ""
        say(
            f"limit of the disk{cached}: {report.disk['sequential_samples_per_sec']:,.0f} images/s in sequence "
            f"({report.disk['sequential_mib_per_sec']:,.0f} MiB/s); random records a second: {random}"
        )
    say(*(f"note: {note}" for note in report.notes))


COMMANDS = (pack, verify, size)
GROUPS = {"data": ("Data sets: list, download, take over, generate.", (list_, fetch, add, make))}
