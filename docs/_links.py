"""Links of the site: what a forge shows as a file of the repository is a page there (a hook of mkdocs)."""

from __future__ import annotations

import re
from typing import Any

#: Files and folders that texts link to, and the pages that the site makes of them.
PAGES = {
    "examples/README.md": "reference/examples.md",
    "gluontune/": "reference/index.md",
    "gluontune/cli/": "reference/cli/index.md",
    "gluontune/recipe/recipe.py": "reference/recipe.md",
}


def on_page_markdown(markdown: str, **given: Any) -> str:
    """The page with links to pages.

    >>> on_page_markdown("[a](../lessons/01_naive.ipynb) [b](../../examples/README.md)")
    '[a](../course/01_naive.md) [b](../reference/examples.md)'
    """
    markdown = re.sub(r"\]\(((?:\.\./)*)lessons/(\w+)\.ipynb\)", r"](\1course/\2.md)", markdown)
    for place, page in PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(place)}\)", rf"](\1{page})", markdown)
    return markdown
