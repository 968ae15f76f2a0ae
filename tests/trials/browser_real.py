"""The course in a real browser: ``make browser`` installs what drives it and then runs this.

Lessons are opened by ``gluontune course open`` and run cell by cell in JupyterLab, as a learner does; the site that
``gluontune course export`` writes is read on a phone's and a desk's screen, in light and dark.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

from gluontune.course.running import solved

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from course_small import FOLDER, small

IN_LAB = ("01_naive", "04_hybridize", "14_assessment")
GLUONTUNE = (str(Path(sys.executable).with_name("gluontune")),)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
HANG = 600_000  # ms for one cell
SCREENS = {"phone": (390, 844), "desk": (1366, 900)}

# Faults of the figures in what is shown: text that runs out of its figure or over other text, no size, no words for who
# cannot see it, ink that is too near to what lies behind it.
FIGURE_FAULTS = """(root) => {
  const rgb = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => {
    const [r, g, b] = rgb(colour).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = getComputedStyle(e).backgroundColor, parts = rgb(found);
      if (parts.length === 3 || parts[3] === 1) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const faults = [], figures = [...root.querySelectorAll("svg[role=img]")];
  for (const svg of figures) {
    const name = svg.getAttribute("aria-label") || "", frame = svg.getBoundingClientRect();
    const say = (text) => faults.push(`${name.slice(0, 60)}: ${text}`);
    if (name.length < 20) say("no words for who cannot see it");
    if (frame.width < 200 || frame.height < 60) say(`${frame.width} x ${frame.height} px`);
    if (frame.right > document.documentElement.clientWidth + 1) say("wider than the screen");
    const back = light(behind(svg));
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
    const boxes = texts.map((t) => t.getBoundingClientRect());
    texts.forEach((text, i) => {
      const box = boxes[i], said = text.textContent.trim(), ink = light(getComputedStyle(text).fill);
      const aside = Math.max(frame.left - box.left, box.right - frame.right);
      if (Math.max(aside, frame.top - box.top, box.bottom - frame.bottom) > 2)
        say(`"${said}" runs out of the figure`);
      const size = parseFloat(getComputedStyle(text).fontSize) * frame.width / svg.viewBox.baseVal.width;
      if (size < 9) say(`"${said}" is ${size.toFixed(1)} px small`);
      const onBar = /--i\\d/.test(text.getAttribute("style") || "");
      const contrast = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
      if (!onBar && contrast < 4.5) say(`"${said}" has a contrast of ${contrast.toFixed(1)}`);
      for (let j = 0; j < i; j++) {
        const across = Math.min(box.right, boxes[j].right) - Math.max(box.left, boxes[j].left);
        const down = Math.min(box.bottom, boxes[j].bottom) - Math.max(box.top, boxes[j].top);
        if (across > 2 && down > 0.35 * Math.min(box.height, boxes[j].height))
          say(`"${said}" lies over "${texts[j].textContent.trim()}"`);
      }
    });
  }
  return [figures.length, faults];
}"""


@pytest.fixture(scope="session")
def chromium():
    found = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    assert found, "Chromium is missing (Debian, Ubuntu: apt install chromium chromium-driver)"
    from playwright.sync_api import sync_playwright  # here, as `make test` collects this file without it

    with sync_playwright() as driver:
        # Playwright starts it with a fresh profile of its own.
        browser = driver.chromium.launch(executable_path=found, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


def watched(context):
    """A page of the context, and the list of what goes wrong on it."""
    page, wrong = context.new_page(), []
    page.set_default_timeout(60_000)
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"not loaded: {request.url}"))
    return page, wrong


@pytest.fixture
def lab(tmp_path):
    """Open a lesson with ``gluontune course open``; gives the folder and the address that it says."""
    started = []

    def start(name):
        folder = tmp_path / "notebooks"
        folder.mkdir()
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        for cell in notebook.cells:
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = with_values(cell.source, small(name))
        nbformat.write(notebook, folder / f"{name}.ipynb")
        shutil.copy(FOLDER / f"{name}.py", folder)
        places = {f"JUPYTER_{part}_DIR": str(tmp_path / part) for part in ("CONFIG", "DATA", "RUNTIME")}
        with open(tmp_path / "lab.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [*GLUONTUNE, "course", "open", name, "--folder", str(folder), "--no-browser", "--port", "8910"],
                env={**os.environ, **places}, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        started.append(server)
        address = re.search(r"http://127\.0\.0\.1:\d+/lab\S*", server.stdout.readline())[0]
        wait_for(address.split("/lab")[0] + "/api", server, tmp_path / "lab.log")
        return folder, address

    yield start
    for server in started:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0


def with_values(source, values):
    for name, value in values.items():
        source = re.sub(rf"^{name} = .*$", f"{name} = {value!r}", source, flags=re.M)
    ast.parse(source)  # a value over several lines is not replaced by this
    return source


def wait_for(address, server, log):
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab does not answer at {address}:\n{log.read_text()}")


@pytest.mark.parametrize("name", IN_LAB)
def test_a_lesson_runs_cell_by_cell_in_jupyterlab(name, lab, chromium):
    folder, address = lab(name)
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    context = chromium.new_context(viewport={"width": 1366, "height": 900}, color_scheme="light")
    page, wrong = watched(context)
    asked = set()
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    page.goto(address)
    shown = page.locator(".jp-Notebook .jp-Notebook-cell")
    shown.nth(len(cells) - 1).wait_for(state="attached")
    page.get_by_text("| Idle").wait_for()
    assert "Python 3 (gluontune)" in page.locator(".jp-KernelName").first.inner_text(), "the kernel that is promised"
    assert page.locator(".jp-mod-dirty").count() == 0, "a lesson that is only looked at is saved"
    assert page.locator(".jp-DirListing-itemText").all_inner_texts() == [f"{name}.ipynb"], "each lesson once"
    assert page.locator(".Toastify__toast").count() == 0, "nothing asks about news"
    shown.first.click()
    figures = 0
    for place, cell in enumerate(cells):
        page.keyboard.press("Shift+Enter")
        if cell.cell_type == "code":
            executed(shown.nth(place), page)
            count, faults = shown.nth(place).evaluate(FIGURE_FAULTS)
            assert not faults, f"cell {place}: {faults}"
            figures += count
    assert figures >= 2

    for place, cell in enumerate(cells):  # a learner answers the exercises
        if cell.cell_type == "code" and solved(cell.source) != cell.source:
            assert "not answered yet" in shown.nth(place).inner_text()
            shown.nth(place).locator(".cm-content").click()
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(solved(cell.source))
            page.keyboard.press("Control+Enter")
            shown.nth(place).get_by_text(": right.").first.wait_for(timeout=HANG)

    page.get_by_role("menuitem", name="Settings").click()
    page.get_by_text("Theme", exact=True).click()
    page.get_by_text("JupyterLab Dark", exact=True).click()
    page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
    page.wait_for_timeout(500)  # the theme's style sheet takes the place of the other
    assert page.locator(".jp-Notebook").evaluate(FIGURE_FAULTS) == [figures, []]

    page.keyboard.press("Control+S")
    saved = folder / f"{name}.ipynb"
    for _ in range(100):
        now = nbformat.read(saved, as_version=4).cells
        code = [c for c in now if c.cell_type == "code" and c.source]  # JupyterLab adds an empty cell at the end
        if all(c.execution_count for c in code):
            break
        page.wait_for_timeout(200)
    assert all(c.execution_count for c in code)
    assert not [o for c in code for o in c.outputs if o.output_type == "error"]
    assert not [line for line in wrong if "script" in line]
    assert {host.split(":")[0] for host in asked} == {"127.0.0.1"}, "the lesson asks nobody outside"
    context.close()


def executed(cell, page):
    """Wait until a code cell has run; an error in it fails."""
    prompt = cell.locator(".jp-InputPrompt")
    for _ in range(HANG // 200):
        if re.fullmatch(r"\[\d+\]:", prompt.inner_text().strip()):
            break
        page.wait_for_timeout(200)
    else:
        pytest.fail(f"the cell does not end: {cell.inner_text()[:300]}")
    page.wait_for_timeout(100)
    error = cell.locator(".jp-OutputArea-output", has_text=re.compile("Traceback|SyntaxError"))
    assert error.count() == 0, error.first.inner_text()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """All lessons' site, from the results of ``make course``; what has not been run is run."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([*GLUONTUNE, "course", "export", "--solved", "--site", str(folder)], check=True, cwd=FOLDER.parent)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_the_sites_pages_are_whole_on_every_screen(screen, scheme, site, chromium, tmp_path):
    width, height = SCREENS[screen]
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
    page, wrong = watched(context)
    pages = sorted(site.glob("*.html"))
    pages = [path for path in pages if path.name != "404.html"]  # which is for a server
    assert len(pages) == len(list(FOLDER.glob("[0-9][0-9]_*.py"))) + 1
    for path in pages:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path.name} runs over the side"
        count, faults = page.locator("body").evaluate(FIGURE_FAULTS)
        assert not faults, f"{path.name}: {faults}"
        assert count >= 1 or path.name == "index.html", f"{path.name}: no figure"
        dark = page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        assert dark == (scheme == "dark")
    assert not wrong
    context.close()


def test_the_sites_links_lead_somewhere(site, chromium):
    context = chromium.new_context(viewport={"width": 1366, "height": 900}, offline=True)
    page, wrong = watched(context)
    anchors = {}
    links = []
    for path in sorted(set(site.glob("*.html")) - {site / "404.html"}):
        page.goto(path.as_uri())
        anchors[path.name] = set(page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)"))
        links += [(path.name, x) for x in page.evaluate("[...document.links].map((a) => a.href)")]
    assert len(links) > 100 and not wrong
    for name, link in links:
        if link.startswith("file:"):
            target, _, anchor = link.rpartition("/")[2].partition("#")
            assert target in anchors and (not anchor or anchor in anchors[target]), f"{name}: {link}"
    context.close()


@pytest.mark.parametrize("screen", SCREENS)
def test_the_sites_search_finds_the_section(screen, site, chromium):
    width, height = SCREENS[screen]
    context = chromium.new_context(viewport={"width": width, "height": height}, offline=True)
    page, wrong = watched(context)
    page.goto((site / "index.html").as_uri())
    if screen == "phone":
        page.locator("label[for=__search].md-header__button").click()
    page.locator(".md-search__input").press_sequentially("ghost batches")
    hit = page.locator(".md-search-result__item a").first
    hit.wait_for()
    assert "06" in hit.inner_text()
    # the overlay behind the results is as wide as a screen of 1,259 pixels while it opens
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    hit.click()
    page.wait_for_url("**/06_large_batch.html*")
    page.locator(".md-search__input").press_sequentially("zyzzyva")
    page.get_by_text("No matching documents").wait_for(state="attached")
    assert not wrong
    context.close()
