"""A static site of executed lessons with figures, contents and search, which works offline from files."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gluontune import __version__
from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write, writable_folder
from gluontune.course.lessons import Lesson

_HERE = Path(__file__).parent / "templates"


@dataclass
class Page:
    """One lesson as HTML: ``sections`` are (anchor, heading, text) for the contents and the search."""

    lesson: Lesson
    body: str
    sections: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def file(self) -> str:
        return f"{self.lesson.name}.html"


def write_site(lessons: Sequence[Lesson], executed: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[Path]:
    """Write ``OUT/index.html``, a page for each lesson, and the site's style, script and search index.

    Args:
        lessons: to show, in order.
        executed: folder with ``NAME.ipynb`` of each, executed without an error.
        out: folder of the site.

    Raises:
        GluontuneError: a lesson that has not been executed, or that failed.
    """
    import jinja2

    pages = [_page(lesson, Path(executed) / f"{lesson.name}.ipynb") for lesson in lessons]
    _link_lessons(pages)
    folder = writable_folder(out)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    common = {"pages": pages, "version": __version__}
    template = environment.get_template("page.html.j2")
    files = {"index.html": template.render(common, page=None)}
    for number, page in enumerate(pages):
        before, after = pages[number - 1] if number else None, pages[number + 1] if number + 1 < len(pages) else None
        files[page.file] = template.render(common, page=page, before=before, after=after)
    files["site.css"] = (_HERE / "site.css").read_text(encoding="utf-8") + _code_colours()
    files["site.js"] = (_HERE / "site.js").read_text(encoding="utf-8")
    index = [
        {"page": page.file, "lesson": page.lesson.title, "anchor": anchor, "heading": heading, "text": text}
        for page in pages
        for anchor, heading, text in page.sections
    ]
    # A script, not JSON, because a page opened from a file may not fetch another file.
    files["search.js"] = f"window.COURSE = {json.dumps(index, ensure_ascii=True)};\n"
    written = []
    for name, text in files.items():
        with atomic_write(folder / name, "w") as stream:
            stream.write(text)
        written.append(folder / name)
    return written


def broken_links(folder: str | os.PathLike[str]) -> list[str]:
    """Broken internal links of a site: ``page: link``; links to the web are not followed."""
    root = Path(folder)
    seen = {path.name: _Links(path.read_text(encoding="utf-8")) for path in sorted(root.glob("*.html"))}
    faults = []
    for name, page in seen.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            exists = not target or (root / target).is_file()
            anchors = seen[target or name].anchors if (target or name) in seen else {anchor}
            if not exists or (anchor and anchor not in anchors):
                faults.append(f"{name}: {link}")
    return faults


class _Links(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.append(value)


def _page(lesson: Lesson, path: Path) -> Page:
    import nbformat
    from nbconvert import HTMLExporter

    if not path.is_file():
        raise GluontuneError(f"{path}: the lesson has not been executed: gluontune course run {lesson.name[:2]}")
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise GluontuneError(f"{path}: cell {number} failed ({output.ename}): run the lesson again")
    notebook.cells = [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    sections = _sections(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
    for cell in notebook.cells:  # warnings of libraries belong to the machine, not to the lesson
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    body, _ = HTMLExporter(template_name="basic", anchor_link_text="").from_notebook_node(notebook)
    return Page(lesson, _tidy(body), sections)


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
        latex = found["own"] or found["within"]
        if latex is None:
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


def _tidy(body: str) -> str:
    """Replace nbconvert's anchors by ours, make tables scrollable, drop prompt numbers."""
    body = re.sub(r'<a class="anchor-link"[^>]*>.*?</a>', "", body, flags=re.S)
    body = re.sub(
        r'<h([1-3]) id="[^"]*">(.*?)</h\1>',
        lambda m: f'<h{m[1]} id="{_anchor(html.unescape(re.sub("<[^>]+>", "", m[2])))}">{m[2]}</h{m[1]}>',
        body,
        flags=re.S,
    )
    body = re.sub(r"<table.*?</table>", lambda m: f'<div class="scroll">{m[0]}</div>', body, flags=re.S)
    return re.sub(r'<div class="prompt[^"]*">.*?</div>', "", body, flags=re.S)


def _link_lessons(pages: Sequence[Page]) -> None:
    """Link the names of lessons in the text to their pages; a link to a notebook is one to its page."""
    for page in pages:
        page.body = re.sub(r'<a href="(\w+)\.ipynb"[^>]*>(<code>\1</code>)</a>', r"\2", page.body)
        for other in pages:
            name = other.lesson.name
            page.body = page.body.replace(f"<code>{name}</code>", f'<a href="{other.file}"><code>{name}</code></a>')


def _sections(notebook: Any) -> list[tuple[str, str, str]]:
    sections: list[tuple[str, list[str]]] = []
    for cell in notebook.cells:
        prose = cell.cell_type == "markdown"
        for line in re.sub(r"[`*]", "", cell.source).splitlines() if prose else [" ".join(cell.source.split())]:
            heading = re.match(r"#{1,3} (.+)", line) if prose else None
            if heading:
                sections.append((heading[1], []))
            elif sections:
                sections[-1][1].append(line)
    return [(_anchor(title), title, " ".join(lines).strip()) for title, lines in sections]


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _code_colours() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    drop = re.compile(r"^\.highlight \{[^}]*\}|^(pre|td|span)[^\n]*$", re.M)
    return f"\n{drop.sub('', light)}\n@media (prefers-color-scheme: dark) {{\n{drop.sub('', dark)}\n}}\n"
