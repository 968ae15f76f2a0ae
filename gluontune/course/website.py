"""A static site of executed lessons with contents and search, made by mkdocs; it works offline from files."""

from __future__ import annotations

import base64
import html
import io
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import writable_folder
from gluontune.course.lessons import Lesson
from gluontune.course.running import need, solved

_ASSETS = ("site.css", "iframe-worker.js")  # in templates/; the second lets the search run in a page from a file
_PALETTE = [
    {"media": f"(prefers-color-scheme: {name})", "scheme": scheme, "primary": "blue grey"}
    for name, scheme in (("light", "default"), ("dark", "slate"))
]
_ABOUT = """# The course
Each lesson asks a question, has you predict the answer, measures it, and says why. The figures come from the machine on
which these pages were made; open the notebooks to make them on yours.

| lesson | question |
|---|---|
"""


def write_site(
    lessons: Sequence[Lesson], executed: str | os.PathLike[str], out: str | os.PathLike[str]
) -> tuple[list[Path], list[str]]:
    """Write ``OUT/index.html``, a page for each lesson, and what they need, into a folder of :func:`site_folder`.

    ``executed`` is the folder with ``NAME.ipynb`` of each, executed without an error. Returns the pages, and mkdocs'
    warnings of links that lead nowhere.
    """
    need("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = site_folder(out)
    with tempfile.TemporaryDirectory() as scratch:
        docs = Path(scratch, "docs")
        docs.mkdir()
        for name in _ASSETS:
            (docs / name).write_bytes((Path(__file__).parent / "templates" / name).read_bytes())
        rows = [f"| [{lesson.title}]({lesson.name}.md) | {lesson.question} |\n" for lesson in lessons]
        (docs / "index.md").write_text(_ABOUT + "".join(rows), encoding="utf-8")
        for lesson in lessons:
            for name, content in page_files(lesson, executed, {other.name for other in lessons}):
                (docs / name).write_bytes(content)
        Path(scratch, "mkdocs.yml").write_text("site_name: 'gluontune: the course'\n", encoding="utf-8")
        features = ["navigation.footer", "navigation.indexes", "toc.follow"]
        config = load_config(
            str(Path(scratch, "mkdocs.yml")), docs_dir=str(docs), site_dir=str(folder), use_directory_urls=False,
            theme={"name": "material", "font": False, "features": features, "palette": _PALETTE},
            extra_css=["site.css"], extra={"polyfills": ["iframe-worker.js"]}, plugins=["search", "offline"],
            markdown_extensions=["tables", "pymdownx.superfences", "pymdownx.highlight"],
            nav=["index.md", *({lesson.title: f"{lesson.name}.md"} for lesson in lessons)],
            validation={"links": {"anchors": "warn"}},
        )  # fmt: skip
        faults = BufferingHandler(1 << 20)
        faults.setLevel(logging.WARNING)  # links that lead nowhere
        logging.getLogger("mkdocs").addHandler(faults)
        try:
            build(config)
        finally:
            logging.getLogger("mkdocs").removeHandler(faults)
    pages = sorted(path for path in folder.glob("*.html") if path.name != "404.html")
    return pages, [record.getMessage() for record in faults.buffer]


def site_folder(out: str | os.PathLike[str]) -> Path:
    """The folder of a site, made if it is missing; a UsageError where it has other files: mkdocs empties it."""
    folder = writable_folder(out)
    if not (folder / "search/search_index.js").exists() and any(path.name[0] != "." for path in folder.iterdir()):
        raise UsageError(f"--site {folder}: holds other files, which the site would replace; give a new folder")
    return folder


def page_files(lesson: Lesson, executed: str | os.PathLike[str], names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """The Markdown page of an executed lesson, ``NAME.md``, and its figures, for mkdocs.

    ``names`` are the lessons that have a page beside it. A GluontuneError if it has not been executed, or failed.
    """
    import nbformat
    from nbconvert import MarkdownExporter

    path = Path(executed) / f"{lesson.name}.ipynb"
    if not path.is_file():
        raise GluontuneError(f"{path}: the lesson has not been executed: gluontune course run {lesson.name[:2]}")
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    notebook.cells = list(_shown(notebook.cells, path))
    resources = {"unique_key": lesson.name, "output_files_dir": ""}
    page, made = MarkdownExporter().from_notebook_node(notebook, resources=resources)

    def link(found: re.Match[str]) -> str:
        return f"[`{found[1]}`]({found[1]}.md)" if found[1] in names else f"`{found[1]}`"

    yield f"{lesson.name}.md", re.sub(r"\[?`(\d\d_\w+)`(?:\]\(\1\.ipynb\))?", link, page).encode()
    for figure, content in made.get("outputs", {}).items():
        yield Path(figure).name, content  # a notebook may name its figures


def _shown(cells: Sequence[Any], path: Path) -> Iterator[Any]:
    """The cells of a page: an exercise once, no parameters of papermill, formulas drawn, tables in one line."""
    for number, cell in enumerate(cells, 1):
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
            yield cell
            continue
        after = cells[number].source if number < len(cells) else ""
        if "injected-parameters" in cell.metadata.get("tags", []) or solved(cell.source) == after != cell.source:
            continue
        kept = []
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise GluontuneError(f"{path}: cell {number} failed ({output.ename}): run the lesson again")
            if output.get("name") == "stderr":  # warnings of libraries belong to the machine
                continue
            if output.output_type == "stream":
                output.text = as_read(output.text)
            elif "text/html" in output.data:  # a block of HTML ends at an empty line
                block = re.sub(r"\n\s*\n", "\n", output.data["text/html"].strip())
                output.data = {"text/html": f"<div class='shown'>{block}</div>"}
            if output.get("text", "-"):
                kept.append(output)
        cell.outputs = kept
        yield cell


def as_read(text: str) -> str:
    """What a lesson printed, without what asks a learner for something.

    >>> as_read("rate: no prediction yet. Put it here.\\nMeasured is 3; nothing was predicted for images a second.\\n")
    'Measured, images a second: 3.\\n'
    """
    text = re.sub(r"^.*: (?:no prediction yet|not answered yet)\. .*\n?", "", text, flags=re.M)
    return re.sub(r"^Measured is (.*?); nothing was predicted for (.*)\.$", r"Measured, \2: \1.", text, flags=re.M)


#: A formula of a cell's text; code in backticks is left alone.
_FORMULA = re.compile(r"`[^`]*`|\$\$(?P<own>.+?)\$\$|\$(?P<within>[^$\n]+?)\$", re.S)


def with_formulas(text: str) -> str:
    """Markdown with its LaTeX formulas drawn, because the site works offline and without scripts of others.

    What matplotlib's mathtext does not know stays as it is written.

    >>> with_formulas("costs `$5`"), with_formulas("$x$")[:29]
    ('costs `$5`', '<img class="math" alt="x" sty')
    >>> with_formulas("$\\\\nothing_of_this_name$")
    '$\\\\nothing_of_this_name$'
    """

    def draw(found: re.Match[str]) -> str:
        if (latex := found["own"] or found["within"]) is None:
            return found[0]
        try:
            image = _drawn(" ".join(latex.split()))
        except ValueError:
            return found[0]
        return f'<span class="formula">{image}</span>' if found["own"] else image

    return _FORMULA.sub(draw, text)


@cache
def _drawn(latex: str) -> str:
    from matplotlib import mathtext, rc_context

    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "gluontune", "mathtext.fontset": "cm"}):
        depth = mathtext.math_to_image(f"${latex}$", out, format="svg")
    svg = re.sub(rb"<\?xml.*?<svg|<metadata>.*?</metadata>", lambda m: b"<svg" * m[0].endswith(b"<svg"), out.getvalue(),
                 flags=re.S)  # fmt: skip
    data = base64.b64encode(svg).decode()
    height = float(re.search(rb'height="([\d.]+)pt"', svg)[1])  # type: ignore[index]
    style = f"height:{height / 9:.2f}em;vertical-align:-{depth / 9:.2f}em"
    return f'<img class="math" alt="{html.escape(latex)}" style="{style}" src="data:image/svg+xml;base64,{data}">'
