"""All published figures measured anew, one after the other: ``python -m benchmarks measure`` (``make measure``).

``figures.yaml`` has each figure's commands, the document that they leave, and the code that it is of. What has been
measured on today's code is left as it is, so that a run that was stopped goes on with the next figure.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from benchmarks.publishing import commit, publish
from gluontune.core.errors import GluontuneError, UsageError

__all__ = ["changed_since", "figures", "measure", "state"]

HERE = Path(__file__).resolve().parent
_NO_RESUME = ("pack", "train", "strangers")  # all other commands go on with what their --out holds


def figures(names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The entries of ``figures.yaml`` by the figure's name: these, or all.

    Raises:
        UsageError: an unknown name.

    >>> figures(["packing"])["packing"]["commands"]
    ['gluontune bench packing $data/photos --out $out/run.json']
    """
    known = yaml.safe_load((HERE / "figures.yaml").read_text(encoding="utf-8"))
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"{', '.join(unknown)}: no such figure; there are {', '.join(known)}")
    return {name: known[name] for name in names or known}


def state(ident: str, code: Sequence[str], folder: Path = HERE) -> str:
    """How a published figure stands to today's code: "" where it is of this code, else a sentence."""
    path = folder / f"{ident}.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not document:
        return "never measured"
    if not document.get("commit"):
        return f"of {document['date']}, no commit named"
    changed = changed_since(document["commit"], code)
    return f"of {document['commit']}: {len(changed)} files have changed since, {changed[0]} first" if changed else ""


def changed_since(commit: str, code: Sequence[str], root: Path = HERE.parent) -> list[str]:
    """The files of ``code`` (files and folders below ``root``) that compute otherwise than at ``commit``.

    Comments, docstrings and the layout of Python files do not count; of other files every byte does.

    Raises:
        GluontuneError: the commit is not known here.
    """

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True)
        if done.returncode:
            raise GluontuneError(f"git {' '.join(words)}: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout

    names = git("diff", "--no-renames", "--name-only", "-z", commit, "--", *code).decode().split("\0")
    found = []
    for name in filter(None, names):
        now = (root / name).read_bytes() if (root / name).is_file() else b""
        before = git("show", f"{commit}:{name}") if git("ls-tree", commit, "--", name) else b""
        if not name.endswith(".py") or _computes(now) != _computes(before):
            found.append(name)
    return found


def _computes(source: bytes) -> str:
    """What of a Python file is not for readers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
            node.body = node.body[1:]  # type: ignore[attr-defined]
    return ast.dump(tree)


def measure(
    names: Sequence[str], out: Path, data: Path | None = None, again: bool = False,
    say: Callable[[str], None] = lambda line: None, folder: Path = HERE,
) -> dict[str, str]:  # fmt: skip
    """Measure figures whose code has changed since, and publish each; those that fail are named, and the rest goes on.

    Args:
        names: of the figures; all if empty. out: a folder for the runs; what it holds is gone on with.
        data: the folder with ``cifar10/`` and ``photos/``. again: also what is of today's code.
        folder: of the published documents, for tests.

    Returns:
        What became of each: "measured", "of today's code", or why it failed.

    Raises:
        UsageError: an unknown name.
    """
    found = {}
    for ident, entry in figures(names).items():
        why = state(ident, entry["code"], folder)
        if not why and not again:
            found[ident] = "of today's code"
        else:
            say(f"{ident}: {why or 'once more'}")
            run = out / f"{ident}-{commit()}"
            found[ident] = _measured(entry, run, data, say) or _published(ident, entry, run, folder)
        say(f"{ident}: {found[ident]}")
    return found


def _measured(entry: Mapping[str, Any], out: Path, data: Path | None, say: Callable[[str], None]) -> str:
    """Run the commands of a figure; why it cannot be measured, or ""."""
    out.mkdir(parents=True, exist_ok=True)
    if any("$data" in line for line in entry["commands"]) and data is None:
        return "needs --data"
    for words in _commands(entry["commands"], out, data):
        say(shlex.join(words))
        if code := subprocess.run(words, cwd=HERE.parent, stdout=sys.stderr).returncode:
            return f"failed: {shlex.join(words)} ended with {code}"
    return ""


def _published(ident: str, entry: Mapping[str, Any], out: Path, folder: Path) -> str:
    command = re.sub(r" --out \S+|\$(out|data)/", "", entry["commands"][-1])
    try:
        publish(ident, out / entry.get("document", "run.json"), folder, command)
    except GluontuneError as error:
        return f"not published: {error}"
    return "measured"


def _commands(lines: Sequence[str], out: Path, data: Path | None) -> Iterator[list[str]]:
    """The commands as words; what is packed is packed no second time, and what was stopped goes on."""
    for line in lines:
        places = {"out": str(out.absolute()), "data": str(data and data.absolute())}
        words = [Template(word).substitute(places) for word in shlex.split(line)]
        program, command = words[0], words[3] if words[0] == "python" else words[1]
        if command == "pack" and Path(words[-1]).is_file():
            continue
        written = Path(words[words.index("--out") + 1]) if "--out" in words else None
        begun = written and (any(written.parent.glob(f"{written.name}*")) if written.suffix else any(written.glob("*")))
        if begun and command not in _NO_RESUME:
            words.append("--resume")
        yield [sys.executable, *(words[1:] if program == "python" else ["-m", "gluontune", *words[1:]])]
