"""``gluontune verify FILE.rec``: is every record what was written?"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Optional

import typer

from gluontune.cli import _common
from gluontune.cli._progress import progress_bar

if TYPE_CHECKING:
    from gluontune.records import VerifyReport

__all__ = ["register"]

SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def verify(
        file: str = typer.Argument(..., help="The .rec file; .idx and .crc beside it are used if there."),
        repair: Optional[str] = typer.Option(None, metavar="OUT.rec", help="Write all whole records there."),
        index: Optional[str] = typer.Option(None, help="Another index file."),
        decode: bool = typer.Option(True, "--decode/--no-decode", help="Decode each image too."),
        workers: Optional[int] = typer.Option(None, help="Default: one for each usable core."),
        json: bool = _common.JSON_OPTION,
    ) -> None:
        """Check every record: framing, checksum, index row, image. Exits with 1 if anything is wrong.

        Without a .crc file, damage inside an image shows only if it breaks the image's format.
        With --repair, 0 means that the new file is written, however much was wrong with the old one.
        """
        from gluontune import records

        with _common.stdout_reserved(), progress_bar("verifying", "MB", 1e6) as progress:
            if repair is not None:
                repaired = records.repair(file, repair, index, decode=decode, workers=workers, progress=progress)
                report = repaired.verified
            else:
                report = records.verify(file, index, decode=decode, workers=workers, progress=progress)
        if json:
            extra = {"repair": repaired.to_dict()} if repair is not None else {}
            _common.emit({**report.to_dict(), **extra})
        else:
            _print_report(report)
            if repair is not None:
                _common.stdout.print(
                    f"{repaired.out}: {repaired.kept:,} records kept ({repaired.restored:,} of them restored by "
                    f"their checksums), {repaired.lost:,} lost",
                    highlight=False,
                    soft_wrap=True,
                )
                _print_uncertain(repaired.uncertain)
        raise typer.Exit(0 if report.ok or repair is not None else 1)


def _print_uncertain(keys: list[int]) -> None:
    if keys:
        shown = ", ".join(map(str, keys[:SHOWN])) + (", …" if len(keys) > SHOWN else "")
        _common.stdout.print(
            f"{len(keys):,} of them are whole, but their keys are not proven: {shown}", highlight=False, soft_wrap=True
        )


def _print_report(report: VerifyReport) -> None:
    def line(text: str) -> None:
        _common.stdout.print(text, highlight=False, soft_wrap=True, markup=False)

    if report.no_record_file:
        line(f"{report.path}: this is no record file: no record starts anywhere in it")
        line("gluontune pack FOLDER OUT.rec makes one of images")
        return
    for damage in report.damaged[:SHOWN]:
        where = "" if damage.index is None else f"record {damage.index}, "
        line(f"{where}byte {damage.offset:,}: {damage.reason}")
    if len(report.damaged) > SHOWN:
        line(f"… and {len(report.damaged) - SHOWN:,} more (--json lists all)")
    for one in report.incomplete[:SHOWN]:
        line(f"record {one.index}, byte {one.offset:,}: {one.reason}")
    if len(report.incomplete) > SHOWN:
        line(f"… and {len(report.incomplete) - SHOWN:,} more (--json lists all)")
    for problem in report.problems[:SHOWN]:
        line(problem)
    if len(report.problems) > SHOWN:
        line(f"… and {len(report.problems) - SHOWN:,} more (--json lists all)")
    faults = f"{len(report.damaged):,} fault{'s' * (len(report.damaged) != 1)}"
    line(f"{report.path}: {report.records:,} records, {report.whole:,} whole, {faults}")
    if report.incomplete:
        line(f"{len(report.incomplete):,} images are incomplete: whole records, but trained on as decoders read them")
    if report.unchecked:
        line(
            f"{report.unchecked:,} records have no checksum: their framing and images were looked at, "
            "but a changed pixel would not show"
        )
    if report.damaged:
        line(f"keep what is whole: gluontune verify {quote(str(report.path))} --repair OUT.rec")
