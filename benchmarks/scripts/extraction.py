"""Scripts out of git checkouts: files as they are at a commit; chapters and notebooks as the program of their cells."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gluontune.core.errors import GluontuneError, UsageError

__all__ = ["Checkout", "checkout", "program"]

_CELL = re.compile(r"^```(?:\{\.python[^}\n]*\}|python)[^\n]*\n(.*?)^```", re.M | re.S)
_NOT_HERE = ("%", "!", "from __future__ import")
_TAB = re.compile(r"^#@tab ([\w, ]+)\n")


class Checkout:
    """A git repository (with a work tree or bare) at one commit.

    Args:
        folder: of the repository. commit: full hash.

    Raises:
        UsageError: the repository lacks the commit.
    """

    def __init__(self, folder: Path, commit: str):
        self._git = ["git", "-C", str(folder), "-c", "safe.directory=*"]
        self.folder, self.commit = folder, commit
        if self._run("cat-file", "-t", commit).returncode:
            raise UsageError(f"{folder}: lacks commit {commit}; fetch it: git -C {folder} fetch origin {commit}")

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self._git, *words], capture_output=True)

    def names(self, paths: Sequence[str]) -> list[str]:
        """The files at and below ``paths``.

        Raises:
            GluontuneError: one of the paths does not exist at the commit.
        """
        found = self._run("ls-tree", "-r", "-z", "--name-only", self.commit, "--", *paths)
        names = found.stdout.decode().split("\0")[:-1]
        for path in paths:
            if not any(name == path or name.startswith(path.rstrip("/") + "/") for name in names):
                raise GluontuneError(f"{self.folder}: no {path} at {self.commit}")
        return names

    def extract(self, paths: Sequence[str], into: Path) -> list[str]:
        """Write the files at and below ``paths``. Returns the names of those whose content the repository lacks."""
        lacking = []
        for name in self.names(paths):
            blob = self._run("cat-file", "blob", f"{self.commit}:{name}")
            if blob.returncode:  # a partial clone, or one without large files
                lacking.append(name)
                continue
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(blob.stdout)
        return lacking


def checkout(root: Path, repository: str, commit: str) -> Checkout:
    """The checkout of ``OWNER/NAME`` below ``root``: ``root/NAME`` or ``root/OWNER/NAME``, bare or with a work tree.

    Raises:
        UsageError: none of the folders exists.
    """
    owner, name = repository.split("/")
    for folder in (root / name, root / owner / name):
        if (folder / ".git").exists() or (folder / "objects").is_dir():
            return Checkout(folder, commit)
    raise UsageError(f"{root}: no checkout of {repository}: git clone https://github.com/{repository} {root / name}")


def program(text: str, suffix: str) -> str:
    """The Python program of a chapter (``.md``) or notebook (``.ipynb``): its code cells in order.

    Of a chapter with tabs for several frameworks, MXNet's cells and those for all are taken. Lines that only IPython
    understands (``%`` and ``!``) become comments, as do imports from ``__future__``, which only a first cell may have.

    >>> text = "Text.\\n```python\\n%matplotlib inline\\nx = 1\\n```\\nMore.\\n```python\\nprint(x)\\n```\\n"
    >>> print(program(text, ".md"))
    # %matplotlib inline
    x = 1
    <BLANKLINE>
    print(x)
    <BLANKLINE>
    """
    if suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        codes = ["".join(cell["source"]) for cell in cells]
        codes = ["# " + code.replace("\n", "\n# ") if code.startswith("%%") else code for code in codes]
    else:
        codes = [_of_mxnet(match[1]) for match in _CELL.finditer(text)]
    lines = "\n\n".join(code.rstrip("\n") for code in codes if code.strip()).split("\n")
    return "\n".join(f"# {line}" if line.startswith(_NOT_HERE) else line for line in lines) + "\n"


def _of_mxnet(code: str) -> str:
    """The code of a cell without its tab's line; nothing if the cell is for other frameworks."""
    tab = _TAB.match(code)
    if tab is None:
        return code
    return code[tab.end() :] if {"all", "mxnet"} & {word.strip() for word in tab[1].split(",")} else ""
