"""``gluontune bench scripts``: a list of Gluon scripts, each as it is and through the stages that gluontune has for it.

What the scripts print goes to files beside the document, which is saved after each stage.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core.errors import UsageError, clean
from gluontune.core.journal import Document, resumable
from gluontune.core.reading import explain_os_error, parse_yaml, read_text
from gluontune.runtime import machine_facts
from gluontune.search.bench.benchmark import selected
from gluontune.search.bench.script_stages import STAGES, Script, Site

SCHEMA = 1


def read_list(path: Path) -> list[Script]:
    """The scripts of a list in YAML or JSON: each a mapping with the fields of :class:`Script`.

    All but ``path`` may be left out: the name is then the file's, and the script runs in its own folder. Paths are
    relative to the list's folder.
    """
    try:
        entries = parse_yaml(read_text(path))
    except OSError as error:
        raise explain_os_error(path, error) from error
    except ValueError as error:
        raise UsageError(f"{path}: not YAML: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: give a list of scripts, each with path, and argv, cwd, env, name as needed")
    found = [_script(path, number, entry) for number, entry in enumerate(entries, 1)]
    names = [script.name for script in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{path}: name {twice[0]!r} stands there twice; names must differ")
    return found


def _script(path: Path, number: int, entry: Mapping[str, Any]) -> Script:
    where, kinds = f"{path}: entry {number}", {"argv": list, "env": dict}
    if unknown := sorted(set(map(str, entry)) - set(Script.__dataclass_fields__)):
        raise UsageError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(Script.__dataclass_fields__)}")
    for field, value in entry.items():
        if not isinstance(value, kinds.get(field, str)):
            raise UsageError(f"{where}: {field} is {value!r}; give a {kinds.get(field, str).__name__}")
    if not entry.get("path"):
        raise UsageError(f"{where}: lacks path, the script's file")
    file = path.absolute().parent / entry["path"]
    cwd = path.absolute().parent / entry["cwd"] if entry.get("cwd") else file.parent
    for place, exists in ((file, file.is_file()), (cwd, cwd.is_dir())):
        if not exists:
            raise UsageError(f"{where}: {place} is not there")
    argv, env = tuple(map(str, entry.get("argv", ()))), {str(k): str(v) for k, v in entry.get("env", {}).items()}
    name = entry.get("name") or file.stem
    return Script(name, str(file), argv, str(cwd), tuple(env.items()), entry.get("note", ""))


@resumable
def run(
    listed: Path, *, only: Sequence[str] | None = None, stages: Sequence[str] | None = None, time_limit: float = 600.0,
    out: Path | None = None, resume: bool = False, say: Callable[[str], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run every script of a list through the stages and return the document, saved as ``OUT/scripts.json`` after each.

    A script that does not run as it is goes through no other stage; ``resume`` keeps the stages that ended well.
    """
    scripts = {script.name: script for script in read_list(listed)}
    chosen = [scripts[name] for name in selected(scripts, only)]
    for name in stages or ():
        if name not in STAGES:
            raise UsageError(f"--stages {name!r}: there are {', '.join(STAGES)}")
    path = None if out is None else out / "scripts.json"
    fields = {"kind": "scripts", "given": {"list": str(listed.absolute())}, "rows": []}
    document = Document(path, "bench scripts", SCHEMA, fields, machine_facts, resume=resume)
    known = {row["name"]: row for row in document.document["rows"]}
    with document.under_way():
        for place, script in enumerate(chosen, 1):
            row = known.get(script.name, {})
            if row.get("command") != script.command():
                row = {"stages": {}}
            row = {"name": script.name, "note": script.note, "command": script.command(), "stages": row["stages"]}
            known[script.name] = row
            for name in stages or STAGES:
                if row["stages"].get(name, {}).get("status") != "ok":
                    if say is not None:
                        say(f"{place}/{len(chosen)} {script.name}, {name}")
                    row["stages"][name] = _staged(script, name, row["stages"], path, time_limit)
                    document.document.update(rows=[*known.values()], figures=_figures(known.values()))
                    document.save()
    document.save()
    return document.document


def _staged(
    script: Script, name: str, before: Mapping[str, Mapping[str, Any]], path: Path | None, time_limit: float
) -> dict[str, Any]:
    first = before.get("as is", {"status": "ok"})["status"]
    if name != "as is" and first != "ok":
        return {"status": "skipped", "last": f"as is: {first}"}
    folder = None if path is None else path.absolute().parent / re.sub(r"[^\w.-]", "_", script.name)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return STAGES[name](script, Site(folder, time_limit, before))


def _figures(rows: Any) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for name, found in row["stages"].items():
            figure = figures.setdefault(name, {"ok": 0, "of": 0})
            figure["of"] += 1
            figure["ok"] += found["status"] == "ok"
            for way, ratio in found.get("ratios", {}).items():
                ratios.setdefault((name, way), []).append(ratio["median"])
    for (name, way), medians in ratios.items():
        figures[name][way] = {"median": statistics.median(medians), "least": min(medians), "n": len(medians)}
    return figures


def holds(found: Mapping[str, Any]) -> bool:
    """Whether every script ended well in every stage, or was refused with a reason."""
    statuses = [each["status"] for row in found["rows"] for each in row["stages"].values()]
    return bool(statuses) and all(status in ("ok", "refused") for status in statuses)


def show(found: Mapping[str, Any], console: Any) -> None:
    from rich.table import Table

    columns = [name for name in STAGES if name in found.get("figures", {})]
    table = Table("script", *columns, "last line", title=f"{len(found['rows'])} scripts")
    for row in found["rows"]:
        done = [row["stages"][name] for name in columns if name in row["stages"]]
        cells = [_cell(row["stages"].get(name)) for name in columns]
        table.add_row(clean(row["name"]), *cells, clean(done[-1]["last"], 70) if done else "")
    console.print(table, markup=False)
    said = [f"{name}: {found['figures'][name]['ok']} of {found['figures'][name]['of']}" for name in columns]
    said += [
        f"{way} ÷ as is: median {ratio['median']:.2f}, least {ratio['least']:.2f} of {ratio['n']}"
        for name in columns
        for way, ratio in found["figures"][name].items()
        if isinstance(ratio, dict)
    ]
    console.print("; ".join(said), markup=False, highlight=False, soft_wrap=True)


def _cell(found: Mapping[str, Any] | None) -> str:
    """
    >>> _cell({"status": "ok", "seconds": 12.34}), _cell({"status": "failed", "exit": 1}), _cell(None)
    ('12.3 s', 'exit 1', '')
    >>> _cell({"status": "ok", "seconds": 12.34, "cell": "1.8 ×"})
    '1.8 ×'
    """
    if found is None:
        return ""
    if "cell" in found:
        return clean(found["cell"], 40)
    if found["status"] == "ok" and "seconds" in found:
        return f"{found['seconds']:.1f} s"
    return f"exit {found['exit']}" if found["status"] == "failed" and "exit" in found else str(found["status"])
