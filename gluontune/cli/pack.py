"""``gluontune pack SRC OUT.rec``: packs images into RecordIO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from gluontune.cli import _common
from gluontune.cli._common import argument, option
from gluontune.cli._progress import progress_bar

if TYPE_CHECKING:
    from gluontune.records import PackReport


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
    label_column: Optional[list[str]] = option(None, "CSV column with a label; repeatable.")
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
    how: Packing = _common.RECORD,
    json: bool = _common.JSON_OPTION,
) -> None:
    """Pack images into RecordIO, in parallel.

    Plain JPEGs and PNGs are copied byte for byte; images that would look different from decoder to decoder
    (rotated by EXIF, CMYK, palette, 16 bits, transparent) are made plain. Damaged ones are listed and left out;
    incomplete ones (their data end early, and decoders fill in grey) are listed and packed.
    """
    from gluontune.records import pack as pack_records

    with progress_bar("packing", "images") as progress:
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
