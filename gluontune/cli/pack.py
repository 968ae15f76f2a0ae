"""``gluontune pack SRC OUT.rec``: packs images into RecordIO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import typer

from gluontune.cli import _common
from gluontune.cli._progress import progress_bar

if TYPE_CHECKING:
    from gluontune.records import PackReport


@dataclass(frozen=True)
class Packing:
    """Options of the records."""

    resize: Optional[int] = typer.Option(None, help="Shorter side in pixels. Default: as it is.")
    crop: bool = typer.Option(False, "--crop", help="Cut out the middle square.")
    format: str = typer.Option("keep", help="keep, jpg, png or raw (pixels).")
    quality: Optional[int] = typer.Option(None, help="JPEG quality, 1 to 100. Default: 95 if encoded.")
    color: str = typer.Option("keep", help="keep, rgb or grey.")
    exact: bool = typer.Option(False, "--exact", help="Copy each file untouched, whatever is in it.")
    root: Optional[str] = typer.Option(None, help="Where relative paths of a list or table start.")
    path_column: Optional[str] = typer.Option(None, help="CSV column with the path.")
    label_column: Optional[list[str]] = typer.Option(None, help="CSV column with a label; repeatable.")
    shuffle: Optional[bool] = typer.Option(
        None, "--shuffle/--no-shuffle", help="Pack in random order. Default: yes, but not for a .lst."
    )
    seed: int = typer.Option(0, help="Of the random order.")
    shards: int = typer.Option(1, help="Number of files; together they hold the same order.")
    strict: bool = typer.Option(
        False, "--strict", help="Fail on the first image that cannot be packed, or is incomplete."
    )
    check: Optional[bool] = typer.Option(
        None,
        "--check/--no-check",
        help="Decode copied files too, and report incomplete ones: three times as long. Default: if strict.",
    )
    resume: bool = typer.Option(False, "--resume", help="Go on where a killed run stopped.")
    workers: Optional[int] = typer.Option(None, help="Default: one for each usable core.")


def pack(
    src: list[str] = typer.Argument(
        ..., help="Folder with a sub-folder for each class, a .lst, a .csv, or .tar archives (WebDataset)."
    ),
    out: str = typer.Argument(..., help="The .rec file; .idx and .crc are written beside it."),
    how: Packing = _common.RECORD,
    json: bool = _common.JSON_OPTION,
) -> None:
    """Pack images into RecordIO, in parallel.

    Plain JPEGs and PNGs are copied byte for byte; images that would look different from decoder to decoder
    (rotated by EXIF, CMYK, palette, 16 bits, transparent) are made plain. Damaged ones are listed and left out;
    incomplete ones (their data end early, and decoders fill in grey) are listed and packed.
    """
    from gluontune.records import pack as pack_records

    with _common.stdout_reserved(), progress_bar("packing", "images") as progress:
        given = {**vars(how), "label_columns": how.label_column}
        del given["label_column"]
        report = pack_records(src if len(src) > 1 else src[0], out, progress=progress, **given)
    _common.deliver(report.to_dict(), json, lambda: _print_report(report))


def _print_report(report: PackReport) -> None:
    for text, found in (("left out", report.skipped), ("packed as it is", report.incomplete)):
        _common.say(*_common.first_of([f"{text}: {skip.path}: {skip.reason}" for skip in found]))
    facts = [f"{report.bytes / 1e6:,.1f} MB", f"{report.images_per_sec:,.0f} images/s"]
    if report.converted:
        facts.append(f"{report.converted:,} encoded anew")
    if report.incomplete:
        facts.append(f"{len(report.incomplete):,} incomplete")
    if report.resumed:
        facts.append(f"{report.resumed:,} from the interrupted run")
    if report.classes is not None:
        facts.append(f"{len(report.classes)} classes")
    more = f" (first of {len(report.outputs)} files)" if len(report.outputs) > 1 else ""
    counts = f"{report.packed:,} images packed, {len(report.skipped):,} left out"
    _common.say(f"{report.outputs[0]}{more}: {counts}; {', '.join(facts)}")
