"""``gluontune pack SRC OUT.rec``: images become RecordIO."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional  # noqa: UP035 (typer reads annotations at run time)

import typer

from gluontune.cli import _common
from gluontune.cli._progress import progress_bar

if TYPE_CHECKING:
    from gluontune.records import PackReport

__all__ = ["register"]

SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def pack(
        src: List[str] = typer.Argument(  # noqa: UP006
            ..., help="Folder with a sub-folder for each class, a .lst, a .csv, or .tar archives (WebDataset)."
        ),
        out: str = typer.Argument(..., help="The .rec file; .idx and .crc are written beside it."),
        resize: Optional[int] = typer.Option(None, help="Shorter side in pixels. Default: as it is."),
        crop: bool = typer.Option(False, "--crop", help="Cut out the middle square."),
        format: str = typer.Option("keep", help="keep, jpg, png or raw (pixels)."),
        quality: Optional[int] = typer.Option(None, help="JPEG quality, 1 to 100. Default: 95 if encoded."),
        color: str = typer.Option("keep", help="keep, rgb or grey."),
        exact: bool = typer.Option(False, "--exact", help="Copy each file untouched, whatever is in it."),
        root: Optional[str] = typer.Option(None, help="Where relative paths of a list or table start."),
        path_column: Optional[str] = typer.Option(None, help="CSV column with the path."),
        label_column: Optional[List[str]] = typer.Option(None, help="CSV column with a label; repeatable."),  # noqa: UP006
        shuffle: Optional[bool] = typer.Option(
            None, "--shuffle/--no-shuffle", help="Pack in random order. Default: yes, but not for a .lst."
        ),
        seed: int = typer.Option(0, help="Of the random order."),
        shards: int = typer.Option(1, help="Number of files; together they hold the same order."),
        strict: bool = typer.Option(
            False, "--strict", help="Fail on the first image that cannot be packed, or is incomplete."
        ),
        check: Optional[bool] = typer.Option(
            None,
            "--check/--no-check",
            help="Decode copied files too, and tell which are incomplete: three times as long. Default: if strict.",
        ),
        resume: bool = typer.Option(False, "--resume", help="Go on where a killed run stopped."),
        workers: Optional[int] = typer.Option(None, help="Default: one for each usable core."),
        json: bool = _common.JSON_OPTION,
    ) -> None:
        """Pack images into RecordIO, in parallel.

        Plain JPEGs and PNGs are copied byte for byte; images that would look different from decoder to decoder
        (rotated by EXIF, CMYK, palette, 16 bits, transparent) are made plain. Damaged ones are listed and left out;
        incomplete ones (their data end early, and decoders fill in grey) are listed and packed.
        """
        from gluontune.records import pack as pack_records

        with _common.stdout_reserved(), progress_bar("packing", "images") as progress:
            report = pack_records(
                src if len(src) > 1 else src[0],
                out,
                resize=resize,
                crop=crop,
                format=format,
                quality=quality,
                color=color,
                exact=exact,
                root=root,
                path_column=path_column,
                label_columns=label_column,
                shuffle=shuffle,
                seed=seed,
                shards=shards,
                strict=strict,
                check=check,
                resume=resume,
                workers=workers,
                progress=progress,
            )
        if json:
            _common.emit(report.to_dict())
            return
        _print_report(report)


def _print_report(report: PackReport) -> None:
    def line(text: str) -> None:
        _common.stdout.print(text, highlight=False, soft_wrap=True, markup=False)

    for said, found in (("left out", report.skipped), ("packed as it is", report.incomplete)):
        for skip in found[:SHOWN]:
            line(f"{said}: {skip.path}: {skip.reason}")
        if len(found) > SHOWN:
            line(f"… and {len(found) - SHOWN:,} more (--json lists all)")
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
    line(f"{report.outputs[0]}{more}: {counts}; {', '.join(facts)}")
