"""Reports: terminal tables, and one self-contained HTML file, from ladders and RunResults alone.

Nothing here measures, and nothing here needs mxnet; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from typing import Any

from gluontune.registry import resolve

_NAMES = {
    "Comparison": "compare",
    "LiveLadder": "live",
    "Source": "read",
    "check_ladder": "read",
    "collect": "read",
    "compare": "compare",
    "comparison_table": "compare",
    "ladder_sentence": "sentence",
    "ladder_table": "table",
    "load": "read",
    "runs_table": "table",
    "sentence_parts": "sentence",
    "write_html": "page",
    "write_ladder_html": "page",
    "write_runs_html": "page",
}

__all__ = [
    "Comparison",
    "LiveLadder",
    "Source",
    "check_ladder",
    "collect",
    "compare",
    "comparison_table",
    "ladder_sentence",
    "ladder_table",
    "load",
    "runs_table",
    "sentence_parts",
    "write_html",
    "write_ladder_html",
    "write_runs_html",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        found = resolve(f"gluontune.report.{_NAMES[name]}:{name}")
        globals()[name] = found  # a module of the same name (compare) must not come back in its place
        return found
    raise AttributeError(f"module 'gluontune.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
