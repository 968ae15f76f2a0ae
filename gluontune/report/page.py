"""One self-contained HTML file from ladders and RunResults, without any request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.core.files import atomic_write, write_json
from gluontune.recipe.result import RunResult
from gluontune.report import document_types as documents, figures, views
from gluontune.report.formatting import clean, finite
from gluontune.report.read import Source, check_ladder
from gluontune.report.sentence import ladder_sentence
from gluontune.report.study import keyed, light, page, write_page, write_study
from gluontune.report.svg import standalone


def write_ladder_html(ladder: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the report of one ladder.

    Args:
        ladder: the document of ``ladder.json``; interrupted and failed ladders are reported as such.
        path: the HTML file.

    Raises:
        GluontuneError: a value of the wrong shape, another schema version, a folder that cannot be written.

    >>> import pathlib, tempfile
    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    >>> ladder = {"schema_version": 1, "rungs": [naive], "best": {"name": "naive"}}
    >>> page = pathlib.Path(tempfile.mkdtemp()) / "ladder.html"
    >>> write_ladder_html(ladder, page)
    >>> page.read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    beside = Path(path).parent / "ladder.json"  # best.py and best.yaml are read from its folder
    write_html([Source(beside, "ladder", ladder=check_ladder(ladder))], path)


def finish_ladder(ladder: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Add a ladder's sentence, and write ``ladder.json`` and ``ladder.html`` into ``folder``.

    The HTML comes last, so that the measurements are on disk if a figure fails.
    """
    ladder["sentence"] = ladder_sentence(ladder)
    write_json(Path(folder) / "ladder.json", finite(ladder))
    write_ladder_html(ladder, Path(folder) / "ladder.html")


def write_runs_html(
    results: Sequence[RunResult], path: str | os.PathLike[str], labels: Sequence[str] | None = None
) -> None:
    """Write the report of one or several runs side by side.

    Args:
        results: the runs; failed ones are rows with the reason.
        path: the HTML file.
        labels: the runs' names in the report; "run 1", "run 2", … by default.

    Raises:
        ValueError: the number of labels differs from that of results.
    """
    names = list(labels) if labels is not None else [f"run {n}" for n in range(1, len(results) + 1)]
    if len(names) != len(results):
        raise ValueError(f"{len(results)} results need as many labels, not {len(names)}")
    write_html([Source(Path(f"{n}.json"), n, run=run) for n, run in zip(names, results)], path)


def write_html(sources: Sequence[Source], path: str | os.PathLike[str]) -> None:
    """Write one report of all ``sources``: the ladders, the runs side by side, then the studies.

    Args:
        sources: of :func:`collect`. path: of the HTML file.

    >>> import json, pathlib, tempfile
    >>> from gluontune.recipe import Recipe
    >>> from gluontune.report import collect
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> found = RunResult(recipe=Recipe().to_dict(), val_accuracy=[0.5])
    >>> _ = (folder / "run.json").write_text(json.dumps(found.to_dict()))
    >>> write_html(collect([folder]).sources, folder / "report.html")
    >>> (folder / "report.html").is_file()
    True
    """
    write_page(path, render(sources))


def write_svg(sources: Sequence[Source], path: str | os.PathLike[str]) -> None:
    """Write the first figure of ``sources`` as an SVG file, for a README or a slide.

    Args:
        sources: of :func:`collect`. path: of the SVG file.

    Raises:
        UsageError: ``sources`` have no figure.

    >>> import json, pathlib, tempfile
    >>> from gluontune.report import collect
    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    >>> ladder = {"schema_version": 1, "rungs": [naive], "best": {"name": "naive"}}
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "ladder.json").write_text(json.dumps(ladder))
    >>> write_svg(collect([folder]).sources, folder / "ladder.svg")
    >>> "<svg" in (folder / "ladder.svg").read_text(encoding="utf-8")
    True
    """
    ladders = [s.ladder["rungs"] for s in sources if s.ladder is not None]
    pictures = [f["svg"] for s in sources for f in (s.study or {}).get("figures", ())]
    pictures += filter(None, [figures.throughput("ladder", rungs, "samples a second") for rungs in ladders])
    if not pictures:
        raise UsageError(f"{sources[0].path}: it has no figure to write as SVG; give a ladder or a benchmark")
    with atomic_write(path) as file:
        file.write(standalone(pictures[0]).encode("utf-8"))


def write_document_html(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page of a study, a search or a benchmark; see :mod:`gluontune.report.document_types`.

    Args:
        document: of the command. path: of the HTML file.

    >>> import pathlib, tempfile
    >>> row = {"name": "ours", "peer": "gluontune", "images_per_sec": {"median": 400.0, "ci95": [390.0, 410.0], "n": 9},
    ...        "status": "ok", "reason": "", "note": ""}
    >>> page = pathlib.Path(tempfile.mkdtemp()) / "loading.html"
    >>> write_document_html({"rows": [row], "conditions": {"size": 224}, "machine": {}, "ours": {}}, page)
    >>> "ours" in page.read_text(encoding="utf-8")
    True
    """
    write_study(path, documents.view(document, str(path)), document)


def render(sources: Sequence[Source]) -> str:
    """The HTML of :func:`write_html`."""
    ladders = [s for s in sources if s.ladder is not None]
    runs = {s.label: s.run for s in sources if s.run is not None}
    studies = [s for s in sources if s.study is not None]
    shown = [views.ladder_view(s.ladder or {}, f"l{n}", s.path.parent) for n, s in enumerate(ladders)]
    if len(ladders) == 1 and not runs and not studies:
        title = clean(f"gluontune ladder: {shown[0]['headline']}", 160)
    else:
        counts = {"ladder(s)": len(ladders), "run(s)": len(runs), "other document(s)": len(studies)}
        texts = [f"{n} {name}" for name, n in counts.items() if n or (name != "other document(s)" and not studies)]
        title = f"gluontune report: {', '.join(texts)}"
    if len(ladders) > 1 or runs:
        shown = [{**view, "over": f"{view['over']} · {clean(s.label, 120)}"} for view, s in zip(shown, ladders)]
    shown += [views.runs_view(runs)] if runs else []
    shown += [keyed(s.study or {}, f"s{n}") for n, s in enumerate(studies)]
    data = {
        "ladders": {s.label: light(s.ladder) for s in ladders},
        "runs": {label: light(run.to_dict()) for label, run in runs.items()},
        **({"studies": {s.label: light(s.document) for s in studies}} if studies else {}),
    }
    return page(title, data, shown)
