"""Reports: terminal tables, and one self-contained HTML file, from ladders and RunResults alone.

Nothing here measures, and nothing here needs mxnet; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "Comparison": "comparing",
    "LiveLadder": "live",
    "Source": "read",
    "check_comparable": "tta",
    "check_ladder": "read",
    "collect": "read",
    "compare": "comparing",
    "comparison_table": "comparing",
    "factors_tables": "factors",
    "finish_factors": "factors",
    "finish_ladder": "page",
    "finish_tta": "tta",
    "ladder_sentence": "sentence",
    "ladder_table": "table",
    "load": "read",
    "load_tta": "tta",
    "print_sources": "table",
    "runs_table": "table",
    "sentence_parts": "sentence",
    "summary": "table",
    "tta_lines": "tta:summary_lines",
    "tta_table": "tta",
    "write_exchange_html": "exchange",
    "write_html": "page",
    "write_ladder_html": "page",
    "write_optimizers_html": "optimizers",
    "write_document_html": "page",
    "write_runs_html": "page",
    "write_svg": "page",
}

__all__ = [
    "Comparison",
    "LiveLadder",
    "Source",
    "check_comparable",
    "check_ladder",
    "collect",
    "compare",
    "comparison_table",
    "factors_tables",
    "finish_factors",
    "finish_ladder",
    "finish_tta",
    "ladder_sentence",
    "ladder_table",
    "load",
    "load_tta",
    "print_sources",
    "runs_table",
    "sentence_parts",
    "summary",
    "tta_lines",
    "tta_table",
    "write_document_html",
    "write_exchange_html",
    "write_html",
    "write_ladder_html",
    "write_optimizers_html",
    "write_runs_html",
    "write_svg",
]


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
