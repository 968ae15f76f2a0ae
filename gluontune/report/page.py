"""One self-contained HTML file from ladders and RunResults: no request leaves the page."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from gluontune.files import atomic_write, write_json
from gluontune.report import views
from gluontune.report.read import Source, check_ladder
from gluontune.report.sentence import ladder_sentence
from gluontune.report.words import clean, finite, number
from gluontune.result import RunResult

__all__ = ["finish_ladder", "render", "write_html", "write_ladder_html", "write_runs_html"]

_HERE = Path(__file__).parent / "templates"
_SERIES_POINTS = 120  # of each series in the data that the page carries; the JSON file has them all


def write_ladder_html(ladder: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the report of one ladder.

    Args:
        ladder: the document of ``ladder.json``; interrupted and failed ladders are reported as such.
        path: the HTML file.

    Raises:
        GluontuneError: a value of the wrong shape, another schema version, a folder that cannot be written.
    """
    write_html([Source(Path("ladder.json"), "ladder", ladder=check_ladder(ladder))], path)


def finish_ladder(ladder: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Give a ladder its sentence, and write ``ladder.json`` and ``ladder.html`` into ``folder``.

    The HTML comes last: whatever a figure may fail on, the measurements are on disk by then.
    """
    ladder["sentence"] = ladder_sentence(ladder)
    write_json(Path(folder) / "ladder.json", finite(ladder))
    write_ladder_html(ladder, Path(folder) / "ladder.html")


def write_runs_html(
    results: Sequence[RunResult], path: str | os.PathLike[str], labels: Sequence[str] | None = None
) -> None:
    """Write the report of one or several runs side by side.

    Args:
        results: the runs; failed ones are rows that say why.
        path: the HTML file.
        labels: how the report calls the runs; "run 1", "run 2", … if left out.
    """
    names = list(labels) if labels is not None else [f"run {n}" for n in range(1, len(results) + 1)]
    if len(names) != len(results):
        raise ValueError(f"{len(results)} results need as many labels, not {len(names)}")
    write_html([Source(Path(f"{n}.json"), n, run=run) for n, run in zip(names, results)], path)


def write_html(sources: Sequence[Source], path: str | os.PathLike[str]) -> None:
    """Write one report of all ``sources``: the ladders first, then the runs side by side."""
    text = render(sources)
    with atomic_write(path, "wb") as stream:
        stream.write(text.encode("utf-8", errors="replace"))  # lone surrogates cannot be written


def render(sources: Sequence[Source]) -> str:
    """The HTML of :func:`write_html`."""
    ladders = [s for s in sources if s.ladder is not None]
    runs = [s for s in sources if s.run is not None]
    shown = [views.ladder_view(s.ladder or {}, s.label, f"l{n}") for n, s in enumerate(ladders)]
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    data = {
        "ladders": {s.label: _light(s.ladder) for s in ladders},
        "runs": {s.label: _light(s.run.to_dict()) for s in runs if s.run is not None},
    }
    return (
        _template()
        .get_template("page.html.j2")
        .render(
            title=_title(shown, runs),
            ladders=shown,
            runs=views.runs_view({s.label: s.run for s in runs if s.run is not None}) if runs else None,
            style=(_HERE / "style.css").read_text(encoding="utf-8"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=_json_for_html(data),
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            version=_version(),
        )
    )


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


def _title(ladders: Sequence[Mapping[str, Any]], runs: Sequence[Source]) -> str:
    if len(ladders) == 1 and not runs:
        return clean(f"gluontune ladder: {ladders[0]['headline']}", 160)
    return f"gluontune report: {len(ladders)} ladder(s), {len(runs)} run(s)"


def _version() -> str:
    import gluontune

    return gluontune.__version__


def _light(document: Any) -> Any:
    """The data without the bulk of the time series: every so-manieth reading."""
    if isinstance(document, Mapping):
        return {key: _light(value) for key, value in document.items()}
    if isinstance(document, list):
        if len(document) > _SERIES_POINTS and all(v is None or number(v) is not None for v in document):
            document = document[:: -(-len(document) // _SERIES_POINTS)]
        return [_light(value) for value in document]
    return finite(document)


def _json_for_html(document: Any) -> str:
    """JSON that no text in it can break out of a ``<script>`` element with."""
    text = json.dumps(document, allow_nan=False)  # ASCII: U+2028 and its kind are escaped, too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
