"""``gluontune report``: HTML from results, or results against a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, argument, emit, option, say, stderr, stdout


def report(
    runs: list[Path] = argument(
        ...,
        "JSON of train, ladder, tta, factors, tune, esgd, bench; folders of them; monitor logs (.jsonl).",
        metavar="RUN…",
    ),
    out: Path = option(Path("report.html"), "The HTML file to write."),
    compare: bool = option(False, "Compare with the first; exit 1 on a regression. Writes no HTML."),
    threshold: float = option(5.0, "Percent of speed that --compare lets pass."),
    svg: Optional[Path] = option(None, "Write the first figure alone to this file, light and dark; no HTML."),
    json_output: bool = JSON_OPTION,
) -> None:
    """Make one self-contained HTML file from results, or compare them."""
    from gluontune import report as room

    console = stderr if json_output else stdout
    found = room.collect(runs)
    say(*(f"left out: {entry['reason']}" for entry in found.left_out), to=stderr)
    if compare:
        comparisons = room.compare(found.sources, threshold)
        console.print(room.comparison_table(comparisons))
        regressed = any(one.regressions for one in comparisons)
        if json_output:
            emit({"regressed": regressed, "comparisons": [one.to_dict() for one in comparisons]})
        raise typer.Exit(1 if regressed else 0)
    if svg is not None:
        room.write_svg(found.sources, svg)
        say(f"wrote {svg}", to=console)
        return
    room.write_html(found.sources, out)
    room.print_sources(console, found.sources)
    say(f"wrote {out}", to=console)
    if json_output:
        document: dict[str, Any] = {"out": str(out), "left_out": found.left_out}
        emit({**document, "sources": [room.summary(source) for source in found.sources]})
