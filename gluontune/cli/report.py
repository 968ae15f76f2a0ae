"""``gluontune report``: HTML from results, or results against a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, emit, stderr, stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @app.command("report")
    def report(
        runs: list[Path] = typer.Argument(
            ...,
            metavar="RUN…",
            help="JSON of train, ladder, tta, factors, tune, esgd, bench; folders of them; monitor logs (.jsonl).",
        ),
        out: Path = typer.Option(Path("report.html"), "--out", help="The HTML file to write."),
        compare: bool = typer.Option(
            False, "--compare", help="Compare with the first; exit 1 on a regression. Writes no HTML."
        ),
        threshold: float = typer.Option(5.0, "--threshold", help="Percent of speed that --compare lets pass."),
        svg: Optional[Path] = typer.Option(
            None, "--svg", help="Write the first figure alone to this file, light and dark; no HTML."
        ),
        json_output: bool = JSON_OPTION,
    ) -> None:
        """Make one self-contained HTML file from results, or compare them."""
        from rich.text import Text

        from gluontune import report as room

        console = stderr if json_output else stdout
        found = room.collect(runs)
        for entry in found.left_out:
            stderr.print(Text(f"left out: {entry['reason']}"), soft_wrap=True)
        if compare:
            comparisons = room.compare(found.sources, threshold)
            console.print(room.comparison_table(comparisons))
            regressed = any(one.regressions for one in comparisons)
            if json_output:
                emit({"regressed": regressed, "comparisons": [one.to_dict() for one in comparisons]})
            raise typer.Exit(1 if regressed else 0)
        if svg is not None:
            room.write_svg(found.sources, svg)
            console.print(Text(f"wrote {svg}"), soft_wrap=True)
            return
        room.write_html(found.sources, out)
        room.print_sources(console, found.sources)
        console.print(Text(f"wrote {out}"), soft_wrap=True)
        if json_output:
            document: dict[str, Any] = {"out": str(out), "left_out": found.left_out}
            emit({**document, "sources": [room.summary(source) for source in found.sources]})
