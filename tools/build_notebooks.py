"""Notebooks of the lessons, made from percent scripts.

``python -m tools.build_notebooks notebooks`` makes all of them; the same script gives the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from gluontune.core.files import atomic_write


def notebook_text(script: Path) -> str:
    """The ``.ipynb`` of a percent script: no outputs, stable cell ids."""
    import jupytext
    import nbformat

    notebook: Any = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = f"{digest}-{seen[digest]}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return nbformat.writes(notebook, version=4) + "\n"


def pair(folder: Path) -> list[Path]:
    """Write the ``.ipynb`` beside each lesson's script; returns the files."""
    written = []
    for script in sorted(folder.glob("[0-9][0-9]_*.py")):
        target = script.with_suffix(".ipynb")
        with atomic_write(target, "w") as stream:
            stream.write(notebook_text(script))
        written.append(target)
    return written


if __name__ == "__main__":
    for path in pair(Path(sys.argv[1] if len(sys.argv) > 1 else "notebooks")):
        print(path)
