"""Notebooks of the lessons, made from percent scripts; and copies with outputs, for readers of the repository.

``python -m tools.build_notebooks notebooks`` makes all of them; the same script gives the same bytes.
``python -m tools.build_notebooks notebooks --outputs runs/course`` also writes ``docs/lessons/``, with the outputs of
``make course``. Lessons that the folder lacks keep their published outputs, around today's text: a change of text alone
needs no run. The lessons themselves stay without outputs: a prediction comes before its figure.
"""

from __future__ import annotations

import datetime
import hashlib
import html
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write
from gluontune.course.website import as_read
from gluontune.report.svg import standalone
from gluontune.runtime.facts import machine_facts

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "docs" / "lessons"
#: Bytes of a figure and of a notebook: what a forge still shows at once.
LARGEST_FIGURE, LARGEST = 60_000, 500_000
_KINDS = ("text/html", "image/svg+xml", "image/png", "text/plain")
#: Of ``gluontune.course.kernel``: JupyterLab marks a notebook with another one as unsaved.
_LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
    "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
}  # fmt: skip
_NOTE = "outputs-of"  # the id of the cell that names the machine
#: Folders of the machine that ran a lesson, in what it printed.
_PLACES = re.compile(r"(?:/[\w.+-]+)*/(?=(?:runs|notebooks|docs|\.venv|gluontune(?:-[\w.-]+)?|tmp[\w]{6,})/)|/tmp(?=/)")


def notebook_text(script: Path) -> str:
    """The ``.ipynb`` of a percent script: no outputs, stable cell ids."""
    return _text(_notebook(script))


def _notebook(script: Path) -> Any:
    import jupytext

    notebook: Any = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = f"{digest}-{seen[digest]}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (gluontune)", "language": "python", "name": "python3"},
        "language_info": _LANGUAGE,
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _text(notebook: Any) -> str:
    import nbformat

    return nbformat.writes(notebook, version=4) + "\n"


def pair(folder: Path) -> list[Path]:
    """Write the ``.ipynb`` beside each lesson's script; returns the files."""
    return [_write(script.with_suffix(".ipynb"), notebook_text(script)) for script in _scripts(folder)]


def publish(folder: Path, executed: Path, machine: str, out: Path = PUBLISHED) -> list[Path]:
    """Write the lessons with the outputs of ``executed``; returns the files.

    Args:
        folder: of the scripts. executed: ``NAME.ipynb``, as ``gluontune course run`` leaves them; what ``--solved``
            added is left out. Lessons that it lacks keep the outputs that are in ``out``. machine: a sentence.

    Raises:
        GluontuneError: a lesson that was not run with today's text, failed, or is too large.
    """
    written = []
    for script in _scripts(folder):
        target = out / f"{script.stem}.ipynb"
        ran = executed / target.name
        written.append(_write(target, with_outputs(script, ran if ran.is_file() else target, machine)))
    return written


def with_outputs(script: Path, executed: Path, machine: str) -> str:
    """The ``.ipynb`` of a script with the outputs of an executed one."""
    import nbformat

    notebook = _notebook(script)
    if not executed.is_file():
        raise GluontuneError(f"{executed}: no such file; make course runs the lessons")
    cells = nbformat.read(executed, as_version=4).cells  # type: ignore[no-untyped-call]
    published = [cell for cell in cells if cell.get("id") == _NOTE]  # its outputs are as a reader sees them
    ran = iter(cells)
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        found = next((other for other in ran if other.source == cell.source), None)
        if found is None or found.execution_count is None:
            raise GluontuneError(f"{executed}: cell {number} of {script.name} was not run as it is today: make course")
        cell.execution_count = number
        cell.outputs = found.outputs if published else list(_kept(found.outputs, f"{executed}: cell {number}"))
    note = f"Outputs of {machine}. In JupyterLab (`make lab`) the lesson opens without them: predict first."
    notebook.cells += published or [nbformat.v4.new_markdown_cell(f"*{note}*", id=_NOTE)]  # type: ignore[no-untyped-call]
    text = _text(notebook)
    if len(text.encode()) > LARGEST:
        raise GluontuneError(f"{executed}: {len(text.encode()):,} bytes with its outputs, more than {LARGEST:,}")
    return text


def _kept(outputs: list[Any], where: str) -> Iterator[Any]:
    """What a reader sees of a cell's outputs, without the folders of the machine that ran it."""
    for output in outputs:
        if output.output_type == "error":
            raise GluontuneError(f"{where} failed: {output.ename}: {output.evalue}")
        if output.output_type == "stream":
            if output.name != "stdout":
                continue
            output.text = as_read(_PLACES.sub("", output.text))
            if output.text:
                yield output
            continue
        data = {kind: _light(output.data[kind]) for kind in _KINDS if kind in output.data}
        for shown in _figures(data.get("text/html", "")) or [data]:
            largest = max((len(text) for text in shown.values()), default=0)
            if largest > LARGEST_FIGURE:
                raise GluontuneError(f"{where}: an output of {largest:,} bytes, more than {LARGEST_FIGURE:,}")
            yield output_of(shown)


def output_of(data: Mapping[str, str]) -> Any:
    """A notebook's output."""
    import nbformat

    return nbformat.v4.new_output("display_data", data=dict(data))  # type: ignore[no-untyped-call]


def _figures(page: str) -> list[dict[str, str]]:
    """The figures of an output as files with their words: a forge shows these, and takes an ``<svg>`` out of HTML."""
    found = []
    keys = re.findall(r"<span style='color:var\((--c\d)\)'>&#9632;</span> (.*?)</span>", page)
    if len(keys) > 1:  # what each colour is, which stands beside the figure in HTML
        found.append({"image/svg+xml": standalone(_legend(keys)), "text/plain": ", ".join(name for _, name in keys)})
    for svg, caption in re.findall(r"(<svg.*?</svg>)(?:<figcaption>(.*?)</figcaption>)?", page, re.S):
        spoken = re.search(r'aria-label="(.*?)"', svg)
        words = html.unescape(caption or (spoken.group(1) if spoken else "a figure"))
        found.append({"image/svg+xml": standalone(svg), "text/plain": words})
        found.append({"text/markdown": f"*{words}*", "text/plain": words})
    return found


def _legend(keys: list[tuple[str, str]]) -> str:
    """A figure that names the colours, in rows of three."""
    words = html.escape("Colours: " + ", ".join(html.unescape(name) for _, name in keys))
    parts = [f'<svg viewBox="0 0 345.6 {18 * -(-len(keys) // 3)}" width="518" role="img" aria-label="{words}">']
    for place, (colour, name) in enumerate(keys):
        x, y = 115 * (place % 3), 18 * (place // 3)
        parts.append(f'<rect x="{x + 2}" y="{y + 4}" width="9" height="9" style="fill:var({colour})"/>')
        parts.append(f'<text x="{x + 15}" y="{y + 12}" style="font-size:10px">{name}</text>')
    return "".join([*parts, "</svg>"])


def _light(text: str) -> str:
    """An output without folders; the coordinates of its figures have two decimals, their words stay.

    >>> _light('<svg aria-label="0.001"><path d="M 1.23456 7"/><text x="0.001">0.001</text></svg> 1.23456')
    '<svg aria-label="0.001"><path d="M 1.23 7"/><text x="0.00">0.001</text></svg> 1.23456'
    """
    places = re.compile(r'(?<= )(?:d|x|y|x1|x2|y1|y2|points|transform)="[^"]*"')
    return places.sub(lambda found: re.sub(r"(\d\.\d\d)\d+", r"\1", found.group()), _PLACES.sub("", text))


def sentence(facts: Mapping[str, Any], day: datetime.date) -> str:
    """The machine, its versions and the day.

    >>> sentence({"cpu": {"model": "Xeon", "usable_cores": 2}, "memory_mib": 24105, "gpus": [], "python": "3.11.7",
    ...           "packages": {"mxnet": "1.9.1", "numpy": "1.23.5"}}, datetime.date(2026, 11, 26))
    '2 cores of Xeon, 24 GiB, no GPU; Python 3.11.7, mxnet 1.9.1, numpy 1.23.5; 2026-11-26'
    """
    cpu, packages = facts["cpu"], facts["packages"]
    gpus = ", ".join(gpu["name"] for gpu in facts["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {packages[name]}" for name in ("mxnet", "numpy") if name in packages)
    size = f"{cpu['usable_cores']} cores of {cpu['model']}, {round(facts['memory_mib'] / 1024)} GiB, {gpus}"
    return f"{size}; Python {facts['python']}, {versions}; {day}"


def _scripts(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]_*.py"))


def _write(target: Path, text: str) -> Path:
    target.parent.mkdir(exist_ok=True)
    with atomic_write(target, "w") as stream:
        stream.write(text)
    return target


def main(words: list[str]) -> None:
    """Write the notebooks of a folder, and with ``--outputs FOLDER`` the published ones."""
    executed = words[words.index("--outputs") + 1] if "--outputs" in words else None
    folder = Path(words[0] if words and words[0] != "--outputs" else "notebooks")
    written = pair(folder)
    if executed is not None:
        written += publish(folder, Path(executed), sentence(machine_facts(), datetime.date.today()))
    print(*written, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
