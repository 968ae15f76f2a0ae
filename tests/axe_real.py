"""The documentation site against axe-core: ``make axe`` builds it and then runs this, in Chromium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

#: One of each kind; all pages together take minutes: AXE_PAGES=all make axe.
PAGES = ("index.html", "tutorial.html", "glossary.html", "how-to/import.html", "reference/loading.html", "figures.html")
SITE = Path(__file__).resolve().parents[1] / "site"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_fault(scheme):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    every = os.environ.get("AXE_PAGES") == "all"
    # 404.html is for a server: its scripts and styles lie at absolute addresses
    found = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
    pages = found if every else [SITE / name for name in PAGES]
    assert all(path.is_file() for path in pages), "make docs builds the site"
    faults = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(color_scheme=scheme, viewport={"width": 1366, "height": 900}).new_page()
        for path in pages:
            page.goto(path.as_uri())
            for fault in Axe().run(page).response["violations"]:
                node = fault["nodes"][0]
                faults.append(
                    (path.name, fault["id"], len(fault["nodes"]), node["target"], node["failureSummary"][:250])
                )
        browser.close()
    assert not faults


def test_the_search_works_from_a_file_and_nothing_is_fetched():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1366, "height": 900}).new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "reference/loading.html"):
            page.goto((SITE / name).as_uri())
            page.locator(".md-search__input").click()
            page.keyboard.type("roofline")
            page.wait_for_selector(".md-search-result__item a", timeout=60_000)
            assert "glossary" in " ".join(
                page.eval_on_selector_all(".md-search-result__item a", "links => links.map(a => a.href)")
            )
        browser.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
