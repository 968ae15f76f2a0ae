"""The report's figures and tables in a notebook, in the reader's light or dark theme."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from gluontune.core.errors import UsageError, did_you_mean
from gluontune.course.lessons import own_folder
from gluontune.recipe.result import RunResult
from gluontune.report import figures, formatting as fmt, study_figures
from gluontune.report.read import row_of

_VIEW = re.compile(r'<svg viewBox="[\d.]+ [\d.]+ ([\d.]+) [\d.]+"')


class Markup(str):
    """HTML that Jupyter shows. ``str(m)`` is the markup itself."""

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<figure of {len(self)} characters; show it in a notebook>"


def show(kind: str, results: Mapping[str, RunResult]) -> Markup:
    """One figure over one or several runs.

    Args:
        kind: ``throughput``, ``phases``, ``utilization`` or ``accuracy``.
        results: labels to results.
    """
    if kind not in _DRAW:
        raise UsageError(f"show({kind!r}): choose one of {', '.join(_DRAW)}")
    rows = [row_of(result, label) for label, result in results.items()]
    return framed([_legend(kind, rows), _DRAW[kind](f"lesson-{kind}", rows) or ""])


def _utilizations(name: str, rows: list[dict[str, Any]]) -> str:
    return "".join(
        f"<figure><figcaption>{html.escape(row['name'])}</figcaption>"
        f"{figures.utilization(f'{name}-{place}', row, wide=True) or '(too short to sample)'}</figure>"
        for place, row in enumerate(rows)
    )


_DRAW: dict[str, Callable[[str, list[dict[str, Any]]], str | None]] = {
    "throughput": lambda name, rows: figures.throughput(name, rows, "images/s"), "phases": figures.phases,
    "utilization": _utilizations, "accuracy": figures.accuracy,
}  # fmt: skip


def framed(parts: Iterable[str]) -> Markup:
    """Figures with the palette of their surroundings' theme, which grow with the page up to 1.5 times their size."""

    def sized(found: re.Match[str]) -> str:
        return f'{found.group()} style="width:{1.5 * float(found.group(1)):.0f}px"'

    drawn = _VIEW.sub(sized, "".join(parts))
    return Markup(f"<style>{_palette()}</style><div class='gt-figure'>{drawn}</div>")


def table(rows: Iterable[Mapping[str, Any]]) -> Markup:
    """A plain table; the keys of the first row are its head."""
    listed = [dict(row) for row in rows]
    if not listed:
        return Markup("<p>(nothing)</p>")
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in listed[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) + "</tr>" for row in listed
    )
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def _legend(kind: str, rows: list[dict[str, Any]]) -> str:
    """Names of the phases, or of the devices, beside their colours."""
    if kind == "phases":
        named = [(p, c) for p, c in figures.PHASE_SERIES.items() if any(row["phases_pct"].get(p) for row in rows)]
    elif kind == "utilization":
        named = list(dict.fromkeys(pair for row in rows for pair in figures.utilization_series(row)))
        named = [("usable CPU cores" if title == "CPU" else title, colour) for title, colour in named]
    else:
        return ""
    items = (
        f"<span style='white-space:nowrap'><span style='color:var(--c{c})'>&#9632;</span> {html.escape(title)}</span>"
        for title, c in named
    )
    return f"<p>{' &nbsp; '.join(items)}</p>"


def _palette() -> str:
    """The colours of the report's page, for the figures of a notebook alone."""
    style = (resources.files("gluontune.report") / "templates" / "style.css").read_text(encoding="utf-8")
    light, dark = (part.split("}", 1)[0] for part in style.split(":root {", 2)[1:])
    # the panel behind labels has the colour of the surroundings: JupyterLab's, or the site's
    around = "--panel: var(--jp-layout-color0, var(--page, var(--bg)));"
    light, dark = (re.sub(r"--panel: [^;]+;", around, part) for part in (light, dark))
    scope = ".gt-figure"
    wide = (
        f"{scope} {{ color: var(--fg); max-width: 46rem; }} {scope} svg {{ max-width: 100%; height: auto; }} "
        f"{scope} figure {{ margin: 0 0 1em; }} {scope} figcaption {{ color: var(--muted); font-size: .9em; }}"
    )
    night = f"@media (prefers-color-scheme: dark) {{ {scope} {{{dark}}} }}"
    chosen = (  # JupyterLab's own theme wins over the system's
        f"[data-jp-theme-light='true'] {scope} {{{light}}} [data-jp-theme-light='false'] {scope} {{{dark}}}"
    )
    return f"{scope} {{{light}}} {night} {chosen} {wide}"


def composition(rows: Sequence[Mapping[str, Any]], *, caption: str) -> Markup:
    """A dot for each pair of factors, and for all: their measured gain ÷ the product of their gains.

    Args:
        rows: one list of ``interactions`` in ``factors.json``.
    """
    return captioned(study_figures.interaction_dots("lesson-composition", rows), caption)


def accuracy_bands(study: Mapping[str, Any], titles: Mapping[str, str], *, caption: str) -> Markup:
    """Validation accuracy over training time: all seeds of each recipe, and the band between them.

    Args:
        study: a ``tta.json``. titles: names of its recipes (``this``, ``against``).
    """
    groups = {title: [row for row in study["done"] if row["recipe"] == name] for name, title in titles.items()}
    target = study["given"]["target"]
    return captioned(study_figures.accuracy_band("lesson-bands", groups, target), caption)


def race_table(study: Mapping[str, Any], titles: Mapping[str, str]) -> Markup:
    """Time, spread and cost to the target, by recipe; a dash if no run reached it."""

    def or_dash(value: float | None, form: str) -> str:
        return "—" if value is None else format(value, form)

    rows = []
    for name, title in titles.items():
        found = study["summary"][name]
        times = found["train_seconds"]
        rows.append({
            "recipe": title, "reached the target": f"{times['reached']} of {times['repeats']}",
            "seconds of training, median": or_dash(times["median"], ".1f"),
            "spread over seeds, percent": or_dash(times["cv_pct"], ".1f"),
            "all seconds, median": or_dash(found["wall_seconds"]["median"], ".1f"),
            "dollars, median run": or_dash(found["usd"], ".5f"),
            "dollars for a success, failed runs paid": or_dash(found["usd_with_failures"], ".5f"),
        })  # fmt: skip
    return table(rows)


def captioned(svg: str | None, caption: str) -> Markup:
    """One figure with its caption; a UsageError if there is no figure."""
    if svg is None:
        raise UsageError(f"{fmt.clean(caption, 80)}: no measurement to draw")
    return framed([f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"])


def picture(name: str) -> Markup:
    """A picture of the course by its name.

    Args:
        name: such as ``"ring"``; the error for an unknown one lists all.

    Raises:
        UsageError: no such picture.

    >>> "A ring all-reduce" in str(picture("ring"))
    True
    >>> picture("rign")
    Traceback (most recent call last):
        ...
    gluontune.errors.UsageError: picture('rign'): did you mean 'ring'? there are ...
    """
    folder = own_folder() / "pictures"  # which ``python -m tools.pictures`` fills
    known = sorted(path.stem for path in folder.glob("*.svg"))
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"picture({name!r}): {hint and hint + ' '}there are {', '.join(known)}")
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8").strip()
    return captioned(svg, html.unescape(svg.partition("<title>")[2].partition("</title>")[0]))
