"""``gluontune verify FILE.rec``: checks every record against its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Optional

import typer

from gluontune.cli import _common
from gluontune.cli._common import SHOWN, argument, first_of, option
from gluontune.cli._progress import progress_bar

if TYPE_CHECKING:
    from gluontune.records import VerifyReport


def verify(
    file: str = argument(..., "The .rec file; .idx and .crc beside it are used if there."),
    repair: Optional[str] = option(None, "Write all whole records there.", metavar="OUT.rec"),
    index: Optional[str] = option(None, "Another index file."),
    decode: bool = option(True, "Decode each image too."),
    workers: Optional[int] = option(None, "Default: one for each usable core."),
    json: bool = _common.JSON_OPTION,
) -> None:
    """Check every record: framing, checksum, index row, image. Exits with 1 if anything is wrong.

    Without a .crc file, damage inside an image shows only if it breaks the image's format.
    With --repair, 0 means that the new file is written, however much was wrong with the old one.
    """
    from gluontune import records

    with progress_bar("verifying", "MB", 1e6) as progress:
        if repair is not None:
            repaired = records.repair(file, repair, index, decode=decode, workers=workers, progress=progress)
            report = repaired.verified
        else:
            report = records.verify(file, index, decode=decode, workers=workers, progress=progress)
    extra = {"repair": repaired.to_dict()} if repair is not None else {}

    def show() -> None:
        _common.say(*_lines(report))
        if repair is not None:
            restored = f"{repaired.restored:,} of them restored by their checksums"
            _common.say(f"{repaired.out}: {repaired.kept:,} records kept ({restored}), {repaired.lost:,} lost")
            if keys := repaired.uncertain:
                shown = ", ".join(map(str, keys[:SHOWN])) + (", …" if len(keys) > SHOWN else "")
                _common.say(f"{len(keys):,} of them are whole, but their keys are not proven: {shown}")

    _common.deliver({**report.to_dict(), **extra}, json, show)
    raise typer.Exit(0 if report.ok or repair is not None else 1)


def _lines(report: VerifyReport) -> Iterator[str]:
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
