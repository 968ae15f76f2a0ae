"""The shell of every page: one self-contained HTML file; no request leaves it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from gluontune.core.files import atomic_write
from gluontune.report.formatting import clean, finite, number

__all__ = ["light", "page", "write_page", "write_study"]

_HERE = Path(__file__).parent / "templates"
_SERIES_POINTS = 120  # of each series in the data that the page carries; the JSON file has them all


def page(title: str, data: Any, **shown: Any) -> str:
    """The HTML of one page.

    Args:
        data: embedded as JSON. shown: ``ladders``, ``runs``, ``studies``: views, ready for the template.
    """
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    given: dict[str, Any] = {"ladders": [], "runs": None, "studies": [], **shown}
    return (
        _template()
        .get_template("page.html.j2")
        .render(
            title=title,
            style=(_HERE / "style.css").read_text(encoding="utf-8"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=_json_for_html(data),
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            version=_version(),
            **given,
        )
    )


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write HTML beside and rename it into place."""
    with atomic_write(path, "wb") as stream:
        stream.write(text.encode("utf-8", errors="replace"))  # lone surrogates cannot be written


@lru_cache(maxsize=1)
def _template() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_study(path: str | os.PathLike[str], view: Mapping[str, Any], document: Any) -> None:
    """Write the page of one study.

    Args:
        view: from :func:`gluontune.report.study.study`. document: embedded as JSON.
    """
    title = clean(f"gluontune: {view['headline']}", 160)
    write_page(path, page(title, light(document), studies=[view]))


def _version() -> str:
    import gluontune

    return gluontune.__version__


def light(document: Any) -> Any:
    """The data without the bulk of the time series: every so-manieth reading."""
    if isinstance(document, Mapping):
        return {key: light(value) for key, value in document.items()}
    if isinstance(document, list):
        if len(document) > _SERIES_POINTS and all(v is None or number(v) is not None for v in document):
            document = document[:: -(-len(document) // _SERIES_POINTS)]
        return [light(value) for value in document]
    return finite(document)


def _json_for_html(document: Any) -> str:
    """JSON that no text in it can break out of a ``<script>`` element with."""
    text = json.dumps(document, allow_nan=False)  # ASCII: U+2028 and its kind are escaped, too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
